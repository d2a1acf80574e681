import base64
import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import evaluate

PLANTED = "PLANTED text of a row"
NO_TRUTH = [None, None]

# 10 rows with a truth, 2 without; one of the 10 has no label
TRUTH = ["billing"] * 5 + ["technical"] * 3 + ["account"] * 2 + NO_TRUTH
LABEL = ["billing"] * 4 + ["account"] + ["technical"] * 2 + ["billing"] + ["account", None] + ["billing"] * 2
SCORE = [0.9, 0.9, 0.8, 0.7, 0.4, 0.95, 0.6, 0.5, 0.99, None, 0.5, 0.5]


def write(path: Path, **columns: Any) -> Path:
    n_rows = len(next(iter(columns.values())))
    pq.write_table(pa.table({"text": [PLANTED] * n_rows, **columns}), path)
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    return write(tmp_path / "labelled.parquet", truth=TRUTH, label=LABEL, score=pa.array(SCORE, pa.float32()))


def report(path: Path, *flags: str) -> dict[str, Any]:
    """What ``--json`` says."""
    file = path.with_suffix(".json")
    assert evaluate.main([str(path), "--truth", "truth", "--json", str(file), "--overwrite", *flags]) == 0
    facts: dict[str, Any] = json.loads(file.read_text())
    return facts


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, and the two lines that say why."""
    exit_code = evaluate.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert captured.out == "" and PLANTED not in captured.err
    error, hint = captured.err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")
    return exit_code, error, hint


def test_the_numbers_are_those_counted_by_hand(labelled: Path) -> None:
    facts = report(labelled, "--score", "score")
    assert (facts["n_read"], facts["n"], facts["n_answered"]) == (12, 10, 9)
    assert facts["accuracy"]["value"] == pytest.approx(7 / 10)
    assert facts["accuracy_answered"]["value"] == pytest.approx(7 / 9)
    assert (facts["majority_label"], facts["majority_accuracy"]) == ("billing", 0.5)
    # account: 1 of 2 predicted, 1 of 2 true; billing: 4 of 5, 4 of 5; technical: 2 of 2, 2 of 3
    quality = {label["label"]: label for label in facts["labels"]}
    assert [quality[name]["f1"] for name in ("account", "billing", "technical")] == pytest.approx([0.5, 0.8, 0.8])
    assert quality["technical"] == {
        "label": "technical", "precision": 1, "recall": pytest.approx(2 / 3), "f1": 0.8, "support": 3, "predicted": 2,
    }  # fmt: skip
    assert facts["macro_f1"]["value"] == pytest.approx(0.7)
    assert facts["macro_f1"]["low"] <= 0.7 <= facts["macro_f1"]["high"]
    assert facts["weighted_f1"] == pytest.approx((2 * 0.5 + 5 * 0.8 + 3 * 0.8) / 10)
    assert ["billing", "billing", 4] in facts["confusion"] and ["account", None, 1] in facts["confusion"]
    assert sum(n_rows for _, _, n_rows in facts["confusion"]) == 10
    assert facts["scores"]["n"] == 9 and len(facts["scores"]["bins"]) == 15
    assert facts["scores"]["levels"][-1] == {
        "threshold": pytest.approx(0.8), "n": 5, "coverage": 0.5, "accuracy": 1.0,
    }  # fmt: skip
    assert facts["micro_f1"] is None and facts["hamming_loss"] is None


def test_json_has_the_same_keys_always(labelled: Path) -> None:
    keys = {
        "inputs", "truth_column", "prediction_column", "n_read", "n", "n_answered", "accuracy", "accuracy_answered",
        "macro_f1", "weighted_f1", "micro_f1", "hamming_loss", "majority_label", "majority_accuracy", "labels",
        "confusion", "statuses", "scores", "notes",
    }  # fmt: skip
    assert report(labelled).keys() == report(labelled, "--score", "score").keys() == keys


def test_the_text_says_how_good_the_labels_are(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([str(labelled), "--truth", "truth", "--score", "score"]) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert lines[0] == "rows 10 with a truth, 2 without are left out"
    assert "accuracy 70.0 % 95 %: 39.7 % to 89.2 %; labels that are right" in lines
    assert "baseline 50.0 % always billing" in lines
    assert "technical 100.0 % 66.7 % 80.0 % 3 2" in lines
    assert "truth \\ predicted account billing technical (none)" in lines
    assert "billing 1 4 . ." in lines
    assert "0.8000 50.0 % 100.0 %" in lines or "0.7999 50.0 % 100.0 %" in lines
    assert captured.err == "" and PLANTED not in captured.out


def test_many_labels_show_their_worst_confusions_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"intent_{i:02}" for i in range(40)]
    path = write(tmp_path / "many.parquet", truth=names * 2, label=[*names, *names[1:], names[0]])
    assert evaluate.main([str(path), "--truth", "truth"]) == 0
    out = capsys.readouterr().out
    assert "and 30 rows in 30 other confusions" in out
    assert "truth \\ predicted" not in out


def test_json_on_stdout_is_all_there_is(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([str(labelled), "--truth", "truth", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["n"] == 10 and captured.err == ""


def test_several_files_count_as_one(labelled: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more.parquet", truth=["billing", "other"], label=["billing", "billing"])
    facts = report(labelled, str(more))
    assert (facts["n"], facts["inputs"]) == (12, [str(labelled), str(more)])
    assert facts["accuracy"]["value"] == pytest.approx(8 / 12)
    assert {label["label"]: label["support"] for label in facts["labels"]}["other"] == 1


@pytest.mark.parametrize("type_", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_every_type_of_string_is_a_label(tmp_path: Path, type_: pa.DataType) -> None:
    truth = pa.array(TRUTH, pa.string()).cast(type_)
    path = write(tmp_path / "typed.parquet", truth=truth, label=pa.array(LABEL, pa.string()).cast(type_))
    assert report(path)["accuracy"]["value"] == pytest.approx(0.7)


def test_a_low_score_is_no_answer_where_the_status_tells(tmp_path: Path) -> None:
    path = write(
        tmp_path / "status.parquet",
        truth=["a", "a", "b", "b"],
        label=["a", "b", "b", "other"],
        status=["ok", "ok", "ok", "low_score"],
    )
    with_status, without = report(path, "--status", "status"), report(path)
    assert (with_status["n_answered"], without["n_answered"]) == (3, 4)
    assert with_status["statuses"] == {"ok": 3, "low_score": 1}
    # a label that is only predicted is listed, and is none of those that the mean is over
    assert without["labels"][-1] == {
        "label": "other", "precision": 0, "recall": 0, "f1": 0, "support": 0, "predicted": 1,
    }  # fmt: skip
    assert without["macro_f1"]["value"] == with_status["macro_f1"]["value"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_rows_without_any_label_are_all_wrong(tmp_path: Path) -> None:
    path = write(tmp_path / "blank.parquet", truth=["a", "b"], label=pa.nulls(2), score=pa.nulls(2, pa.float32()))
    facts = report(path, "--score", "score", "--html", str(tmp_path / "blank.html"))
    assert facts["accuracy"]["value"] == 0 and facts["accuracy_answered"] is None
    assert facts["scores"]["n"] == 0 and facts["scores"]["levels"] == []
    assert facts["notes"] == ["no row has a predicted label"]


def test_labels_that_differ_in_spelling_only_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "spelling.parquet", truth=["Lost Card", "Refund"], label=["lost_card", "refund "])
    facts = report(path)
    assert facts["accuracy"]["value"] == 0
    assert facts["notes"][0] == "no label occurs both in the truth and in the predictions"
    assert "'Lost Card' in the truth and 'lost_card' in the predictions, and 1 more" in facts["notes"][1]
    assert facts["notes"][1] in capsys.readouterr().err


# --- several labels a row ---------------------------------------------------------------------------------------------


def test_several_labels_a_row_are_judged_label_by_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "multi.parquet",
        truth=[["a", "b"], ["a"], [], ["b"], None],
        label=[["b", "a"], ["a", "b"], [], None, ["a"]],
    )
    facts = report(path, "--html", str(tmp_path / "multi.html"))
    assert (facts["n"], facts["n_answered"]) == (4, 3)
    assert facts["accuracy"]["value"] == pytest.approx(2 / 4)  # a row without an answer is wrong
    assert facts["hamming_loss"] == pytest.approx(2 / 8)
    # a: 2 hits, 2 predicted, 2 true; b: 1 hit, 2 predicted, 2 true
    assert [label["f1"] for label in facts["labels"]] == pytest.approx([1, 0.5])
    assert facts["macro_f1"]["value"] == pytest.approx(0.75)
    assert facts["micro_f1"] == pytest.approx(2 * 3 / 8)
    assert facts["confusion"] == [] and facts["majority_label"] is None
    out = capsys.readouterr().out
    assert "Hamming loss" in out and "all labels of a row right" in out


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.large_list(pa.string())], ids=str
)
def test_one_label_in_the_truth_and_lists_in_the_prediction_go_together(tmp_path: Path, type_: pa.DataType) -> None:
    label = pa.array([["a"], None, ["a", None, "a"]], pa.list_(pa.string())).cast(type_)
    facts = report(write(tmp_path / "mixed.parquet", truth=["a", "b", "b"], label=label))
    assert facts["accuracy"]["value"] == pytest.approx(1 / 3)
    assert [label["predicted"] for label in facts["labels"]] == [2, 0]


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pictures(page: Page) -> list[str]:
    sources = [str(attributes["src"]) for tag, attributes in page.tags if tag == "img"]
    drawn = [base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")).decode() for source in sources]
    for svg in drawn:
        ElementTree.fromstring(svg)  # a browser shows nothing of a picture that is not well-formed
    return drawn


def test_the_page_needs_nothing_else_and_holds_no_text_of_rows(labelled: Path, tmp_path: Path) -> None:
    report(labelled, "--score", "score", "--html", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "://" not in text and "<script" not in text and "<link" not in text and PLANTED not in text
    assert len(pictures(page)) == 3
    for svg in pictures(page):
        assert PLANTED not in svg and "<script" not in svg
        links = set(re.findall(r'(?:href|src)="([^"]*)"', svg))
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert "70.0 %" in text and "technical" in text


def test_names_of_labels_are_not_mark_up(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "a $x_1$ & b", "中文", "new\nline", 'say "hi"', "x" * 200, "$", "\\"]
    path = write(tmp_path / "names.parquet", truth=names, label=names)
    report(path, "--html", str(tmp_path / "names.html"))
    text = (tmp_path / "names.html").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text and "a $x_1$ &amp; b" in text
    (heat_map,) = pictures(Page(text))
    assert "<script" not in heat_map and "a $x_1$ &amp; b" in heat_map and "中文" in heat_map


def test_a_page_is_the_same_every_time(labelled: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        report(labelled, "--score", "score", "--html", str(tmp_path / name))
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_of_very_many_labels_the_most_confused_are_mapped(tmp_path: Path) -> None:
    names = [f"intent_{i:03}" for i in range(120)]
    path = write(tmp_path / "many.parquet", truth=names, label=[*names[:60], *names[61:], names[60]])
    report(path, "--html", str(tmp_path / "many.html"))
    text = (tmp_path / "many.html").read_text(encoding="utf-8")
    assert "The 20 labels with the fewest wrong rows are left out." in text
    (heat_map,) = pictures(Page(text))
    assert "intent_119" in heat_map and "intent_059" not in heat_map


# --- what is refused --------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom pipeline.evaluate import main\nassert main(['--help']) == 0\n"
        "heavy = {'sklearn', 'matplotlib', 'scipy', 'numpy', 'pyarrow', 'polars', 'torch'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("flags", "exit_code", "error", "hint"),
    [
        (["--truth", "trut"], 65, "--truth 'trut' is not in input", "did you mean 'truth'?"),
        (["--truth", "xyz"], 65, "columns: 'text', 'truth', 'label', 'score'", "--truth COLUMN"),
        (["--truth", "truth", "--prediction", "labels"], 65, "--prediction 'labels' is not", "'label'?"),
        (["--truth", "score"], 65, "--truth 'score' holds float in input", "--truth COLUMN"),
        (["--truth", "truth", "--score", "text"], 65, "--score 'text' holds string in input", "--score COLUMN"),
        (["--truth", "truth", "--status", "score"], 65, "--status 'score' holds float", "--status COLUMN"),
        (["--truth", "label"], 2, "--truth and --prediction are both 'label'", "two columns"),
        (["--truth", "truth", "--json", "a", "--html", "a"], 2, "--json and --html are both 'a'", "two files"),
        (["--truth", "truth", "--html", "s3://a/b?region=x"], 2, "--html 's3://a/b' is not on this", "copy it"),
        (["--truth", "truth", "--score", "confidence"], 65, "--score 'confidence' is not in", "--score-column NAME"),
        (["--truth", "truth", "--html", "-"], 2, "--html '-' is no file", "name a file"),
        (["--truth", "truth", "--html", "no/folder/x"], 73, "there is no folder", "create"),
        (["--trut", "truth"], 2, "no such option: --trut", "did you mean --truth?"),
        ([], 2, "missing option '--truth'", "--help"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_and_a_hint(
    labelled: Path, flags: list[str], exit_code: int, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told_error, told_hint = told(capsys, labelled, *flags)
    assert (code, error in told_error, hint in told_hint) == (exit_code, True, True), (told_error, told_hint)


def test_a_missing_input_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error, _ = told(capsys, tmp_path / "nowhere.parquet", "--truth", "truth")
    assert code == 66 and "does not exist" in error


def test_another_kind_of_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, error, _ = told(capsys, __file__, "--truth", "truth")
    assert code == 65 and "is not a Parquet file" in error


def test_a_truth_without_values_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "nulls.parquet", truth=pa.nulls(3, pa.string()), label=["a"] * 3)
    code, error, _ = told(capsys, path, "--truth", "truth")
    assert code == 65 and "no row has a truth: column 'truth' holds nothing but nulls, in 3 rows" in error


def test_labels_that_are_not_utf_8_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "bytes.parquet", truth=["a"], label=pa.array([b"\xff"]).view(pa.string()))
    code, error, _ = told(capsys, path, "--truth", "truth")
    assert code == 65 and "holds labels that are not UTF-8" in error


def test_ctrl_c_is_no_traceback(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.evaluation.rows.read_rows", stop)
    code, error, _ = told(capsys, labelled, "--truth", "truth", "--html", tmp_path / "page.html")
    assert code == 130 and "stopped by Ctrl-C" in error
    assert [path.name for path in tmp_path.iterdir()] == [labelled.name]


def test_scores_that_are_no_probabilities_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "logits.parquet", truth=["a"], label=["a"], score=[-1.5])
    code, error, _ = told(capsys, path, "--truth", "truth", "--score", "score")
    assert code == 65 and "--score 'score' holds -1.5" in error


def test_scores_of_several_labels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "multi.parquet", truth=[["a"]], label=[["a"]], score=[0.5])
    code, error, _ = told(capsys, path, "--truth", "truth", "--score", "score")
    assert code == 2 and "one label a row" in error


def test_a_column_twice_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, ["truth", "truth", "label"]), path)
    code, error, _ = told(capsys, path, "--truth", "truth")
    assert code == 65 and "column 'truth' stands 2 times" in error


def test_a_file_that_exists_is_replaced_only_when_asked_for(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    code, error, hint = told(capsys, labelled, "--truth", "truth", "--html", page)
    assert code == 73 and "exists already" in error and "--overwrite" in hint and page.read_text() == "mine"
    assert evaluate.main([str(labelled), "--truth", "truth", "--html", str(page), "--overwrite"]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_no_input_is_overwritten(labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = labelled.read_bytes()
    other = write(tmp_path / "other.parquet", truth=["a"], label=["a"])
    for inputs in ([labelled, other], [other, labelled]):
        code, error, _ = told(capsys, *inputs, "--truth", "truth", "--json", labelled, "--overwrite")
        assert code == 73 and "is the input" in error
    assert labelled.read_bytes() == before


def test_a_failure_leaves_no_file_behind(labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, labelled, "--truth", "score", "--html", tmp_path / "x.html", "--json", tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == [labelled.name]


@pytest.mark.parametrize("library", ["sklearn", "matplotlib"])
def test_a_library_that_is_missing_is_told(
    labelled: Path, library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("pipeline.evaluation.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(library), *sys.meta_path])
    code, error, hint = told(capsys, labelled, "--truth", "truth", "--html", labelled.with_suffix(".html"))
    assert code == 2 and f"needs '{library}', which is not installed" in error
    assert hint == "hint: pip install -c constraints.txt -e '.[report]'"


class Missing:
    """Finds that a library is not there."""

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


# --- texts are no labels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "prediction", "flag"), [("truth", "body", "--prediction"), ("body", "label", "--truth")]
)
@pytest.mark.parametrize("n_rows", [20, 3000])
def test_a_column_of_texts_is_refused_and_not_quoted(
    tmp_path: Path, truth: str, prediction: str, flag: str, n_rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    body = [f"{PLANTED} {number}" for number in range(n_rows)]
    path = write(tmp_path / "texts.parquet", body=body, truth=["a", "b"] * (n_rows // 2), label=["a"] * n_rows)
    flags = ["--truth", truth, "--prediction", prediction, "--html", tmp_path / "x.html", "--json", tmp_path / "x.json"]
    code, error, hint = told(capsys, path, *flags)
    assert code == 65 and error.startswith(f"error: {flag} 'body' holds ") and "--prediction" in hint
    assert (f"20 different values in {n_rows} rows" if n_rows == 20 else "more than 1,000 different values") in error
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_long_values_are_no_labels_where_none_is_in_both_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "few.parquet", truth=["a", "b"], label=[PLANTED * 9, "c"])
    code, error, _ = told(capsys, path, "--truth", "truth")
    assert code == 65 and "--prediction 'label' holds values of more than 100 characters" in error


def test_a_million_different_values_are_refused_before_anything_large_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.evaluation.rows import _Reading

    n_rows = []
    add = _Reading.add
    monkeypatch.setattr(
        _Reading, "add", lambda self, batch, *more: (n_rows.append(len(batch)), add(self, batch, *more))
    )
    names = pa.array(range(1_000_000)).cast(pa.string())
    path = write(tmp_path / "million.parquet", truth=names, label=names)
    code, error, _ = told(capsys, path, "--truth", "truth")
    assert code == 65 and "--truth 'truth' holds more than 1,000 different values in its first" in error
    assert sum(n_rows) <= 8192


def test_a_thousand_labels_are_labels(tmp_path: Path) -> None:
    names = [f"intent {number}" for number in range(1000)]
    assert report(write(tmp_path / "many.parquet", truth=names * 2, label=names * 2))["accuracy"]["value"] == 1


# --- intervals, and more than one file --------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [["a", "b"] * 2, ["a"] * 14 + ["b"]])
def test_too_few_rows_have_no_interval(tmp_path: Path, truth: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "few.parquet", truth=truth, label=truth)
    assert report(path, "--html", str(tmp_path / "x.html"))["macro_f1"] == {"value": 1, "low": None, "high": None}
    assert "too few rows for an interval; every label counts the same" in capsys.readouterr().out
    assert "too few rows for an interval" in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize("pattern", ["", "/*.parquet"])
def test_folders_and_globs_are_all_their_files(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write(folder / "a.parquet", truth=["a"], label=["a"])
    write(folder / "b.parquet", truth=["b"], label=["a"])
    (folder / ".b.parquet.scores").write_bytes(b"")
    facts = tmp_path / "x.json"
    assert evaluate.main([f"{folder}{pattern}", "--truth", "truth", "--json", str(facts)]) == 0
    told = json.loads(facts.read_text())
    assert told["n"] == 2 and [Path(name).name for name in told["inputs"]] == ["a.parquet", "b.parquet"]


def test_a_file_that_is_given_twice_is_told(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for twice in (labelled, labelled.parent):
        code, error, _ = told(capsys, labelled, twice, "--truth", "truth")
        assert code == 2 and "is given twice" in error
