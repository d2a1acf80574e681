"""Ways to decide, through the command line: constrained scoring, several labels, batch calibration, margins, few-shot.

Whatever the rule, the promises are those of every run: the label is that of the row alone, buffers and engines change
nothing, a run that was stopped goes on to the same labels.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

import pipeline.passes
from pipeline.build import build_stage, hidden_states
from pipeline.classify import main
from pipeline.engine.load import load_model
from pipeline.head import LinearHead, load_head
from pipeline.settings import Settings
from pipeline.task_file import task_from_toml
from tests.tiny import save_tiny_model
from tests.tiny_classifiers import CLASSES, save_tiny_classifier

WORDS = ["refund", "invoice", "crash", "login", "password", "error", "app", "charged", "café", "価格"]
NESTED = '[labels]\nbill = ""\n"bill to pay" = ""\nbilling = ""\naccount = ""'
RULES = {
    "nested labels": f'scoring = "constrained"\n{NESTED}',
    "nested labels in full": f'scoring = "sequence"\n{NESTED}',
    "batch constrained": 'calibration = "batch"\nscoring = "constrained"',
    "several labels": 'mode = "multi"\n[thresholds]\nbilling = 0.4',
    "several labels, batch": 'mode = "multi"\ncalibration = "batch"\nquestion = "{label} ({description})?"',
    "few-shot": '[[examples]]\ntext = "the app crashes"\nlabel = "technical"\n'
    '[[examples]]\ntext = "refund"\nlabel = "billing"',
    "answers": '[answers]\nbilling = "money matters"\naccount = "money"',
    "head": 'head = "fitted.safetensors"',
    "head, several labels": 'head = "fitted.safetensors"\nmode = "multi"',
    "margin": "min_margin = 0.2\nmin_score = 0.4\ndefault_label = \"unsure\"",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def write_head(path: Path, toml: str, model: Path) -> None:
    """A head with random weights for the prompt of a task, all of whose labels it gives about as often."""
    loaded = load_model(str(model))
    task = task_from_toml(toml.replace("head =", "# head ="), "task")
    states = hidden_states(task, loaded, Settings(), [" ".join(WORDS[i : i + 4]) for i in range(7)])
    weights = np.random.default_rng(0).normal(0, 1, (3, states.shape[1])).astype(np.float32)
    bias = -(weights @ states.mean(axis=0))
    fitted_for = build_stage(task, loaded, Settings()).prompt_fingerprint
    LinearHead(weights, bias, task.label_names, task.multi, fitted_for).save(path)


class Rule:
    """Runs of the command line with one rule."""

    def __init__(self, folder: Path, model: Path, toml: str) -> None:
        self.folder, self.model = folder, model
        self.task = folder / "task.toml"
        if "head" in toml:
            write_head(folder / "fitted.safetensors", toml, model)
        self.task.write_text(toml, encoding="utf-8")
        self.input = folder / "in.parquet"
        rng = np.random.default_rng(0)
        texts: list[str | None] = [" ".join(rng.choice(WORDS, int(n))) for n in rng.integers(1, 14, 70)]
        texts[5:5], texts[40:40] = [None, "  "], texts[:3]
        pl.DataFrame({"id": range(len(texts)), "text": texts}).write_parquet(self.input)

    def run(self, *flags: object, exit_code: int = 0) -> pl.DataFrame:
        output = self.folder / "out.parquet"
        columns = ("--score-column", "score", "--status-column", "status")
        words = [self.input, output, "--task", self.task, "--model", self.model, *columns, *flags, "--overwrite"]
        assert main([*map(str, words)]) == exit_code
        return pl.read_parquet(output) if exit_code == 0 else pl.DataFrame()


# Models with a head of their own: (family, of several labels, task).
CLASSIFIERS = {
    "classifier that sees what came before": ("llama", False, ""),
    "classifier that sees all": ("bert", False, '[labels]\ngood = ""\nbad = ""\nopen = ""\n'
    '[answers]\ngood = "praise"\nbad = "complaint"\nopen = "question"'),
    "classifier of several labels": ("qwen2", True, 'mode = "multi"'),
}  # fmt: skip


@pytest.fixture(params=[*RULES, *CLASSIFIERS])
def rule(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Rule:
    if request.param in RULES:
        return Rule(tmp_path, model, RULES[request.param])
    family, multi, toml = CLASSIFIERS[request.param]
    changes = {"problem_type": "multi_label_classification"} if multi else {}
    return Rule(tmp_path, save_tiny_classifier(tmp_path / "classifier", family, **changes), toml)


def flat(scores: pl.Series) -> list[float]:
    return (scores.explode() if scores.dtype == pl.List else scores).drop_nulls().to_list()


def assert_same(out: pl.DataFrame, expected: pl.DataFrame, what: str) -> None:
    assert out.drop("score").equals(expected.drop("score")), what
    difference = max((abs(a - b) for a, b in zip(flat(out["score"]), flat(expected["score"]), strict=True)), default=0)
    assert difference < 1e-4, f"{what}: largest difference of a score {difference:.2g}"


def test_every_row_has_the_labels_it_would_get_alone(rule: Rule) -> None:
    """--verify scores every text again on the reference path, and fails on another label."""
    out = rule.run("--verify", 100)
    # a classifier's tokenizer is trained anew, and not the same each time: its model may like one label best everywhere
    assert len({round(score, 3) for score in flat(out["score"])}) > 10, (
        "a test on rows that are all alike shows nothing"
    )
    if rule.model.name != "classifier":
        labels = out["label"].explode() if out["label"].dtype == pl.List else out["label"]
        assert labels.drop_nulls().n_unique() > 1, "a test on one label alone shows nothing"
    blank = out.filter(pl.col("text").is_null() | (pl.col("text").str.strip_chars() == ""))
    assert blank["label"].null_count() == len(blank) == 2
    assert (blank["status"] == "blank").all()


def test_engines_agree(rule: Rule) -> None:
    encoder = json.loads((rule.model / "config.json").read_text())["model_type"] == "bert"
    assert_same(rule.run("--engine", "padded"), rule.run("--engine", "single"), "padded and single")
    for fast in ["padded"] if encoder else ["fused", "packed"]:
        assert_same(rule.run(), rule.run("--engine", fast), f"auto and {fast}")


def test_neither_buffers_nor_passes_nor_the_store_change_anything(rule: Rule) -> None:
    expected = rule.run()
    assert_same(rule.run("--buffer-rows", 7), expected, "buffers of 7 rows")
    assert_same(rule.run("--max-batch-tokens", 60), expected, "passes of 60 tokens")
    assert_same(rule.run("--no-cache"), expected, "no store")
    cache = rule.folder / "cache"
    assert_same(rule.run("--cache", cache), expected, "an empty cache")
    assert rule.run("--cache", cache).equals(rule.run("--cache", cache)), "scores from the cache"


def test_a_run_that_fails_midway_goes_on_to_the_same_labels(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, n_passes = rule.run(), 0
    score_bucket: Callable[..., Any] = pipeline.passes.score_bucket

    def failing(*args: Any) -> Any:
        nonlocal n_passes
        n_passes += 1
        if n_passes == 6:
            raise OSError("the device is gone")
        return score_bucket(*args)

    with monkeypatch.context() as broken:
        broken.setattr(pipeline.passes, "score_bucket", failing)
        rule.run("--max-batch-tokens", 60, "--buffer-rows", 9, exit_code=70)
    assert_same(rule.run("--buffer-rows", 20), expected, "resumed")


def test_batch_calibration_is_measured_on_the_input_and_contextual_is_not(tmp_path: Path, model: Path) -> None:
    rule = Rule(tmp_path, model, 'calibration = "batch"')
    whole, head = rule.run(), rule.run("--limit", 40)
    assert not head["score"].equals(whole["score"].head(40))
    whole, head = rule.run("--calibration", "contextual"), rule.run("--limit", 40, "--calibration", "contextual")
    np.testing.assert_allclose(flat(head["score"]), flat(whole["score"].head(40)), atol=1e-5)


def test_the_fingerprint_tells_apart_what_batch_calibration_was_measured_on(tmp_path: Path, model: Path) -> None:
    rule = Rule(tmp_path, model, 'calibration = "batch"')

    def fingerprint(*flags: object) -> str:
        rule.run(*flags)
        footer = pq.read_metadata(tmp_path / "out.parquet").metadata[b"parquet_classify"]
        return str(json.loads(footer)["fingerprint"])

    assert fingerprint() == fingerprint("--buffer-rows", 5)
    assert fingerprint() != fingerprint("--limit", 40)


def test_a_few_texts_are_too_few_for_batch_calibration_and_the_run_says_so(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, model, 'calibration = "batch"')
    rule.run("--limit", 10)
    assert "in.parquet on only 8 distinct texts" in capsys.readouterr().err
    rule.run()
    assert "distinct texts" not in capsys.readouterr().err


def test_batch_calibration_of_a_folder_is_that_of_each_file_whatever_becomes_of_the_others(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one prior for all, a file that arrived or failed made every finished one a stranger."""
    rule = Rule(tmp_path, model, 'calibration = "batch"')
    rows = pl.read_parquet(rule.input)
    (tmp_path / "in").mkdir()
    parts = {"a": rows.head(36), "b": rows.slice(36, 18), "c": rows.slice(54)}
    for name in "bc":
        parts[name].write_parquet(tmp_path / "in" / f"{name}.parquet")
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1, but no more")
    columns = ["--score-column", "score", "--status-column", "status"]
    command = [*map(str, [tmp_path / "in", tmp_path / "out", "--task", rule.task, "--model", model, *columns])]
    assert main(command) == 65
    parts["a"].write_parquet(tmp_path / "in" / "a.parquet")
    parts["a"].write_parquet(tmp_path / "in" / "d.parquet")
    capsys.readouterr()
    assert main(command) == 0
    assert "2 files labelled, 2 finished before" in capsys.readouterr().err
    for name, part in parts.items():
        part.write_parquet(rule.input)
        assert_same(pl.read_parquet(tmp_path / "out" / f"{name}.parquet"), rule.run(), f"file {name} alone")


def test_what_was_scored_to_calibrate_is_counted_apart(tmp_path: Path, model: Path) -> None:
    rule = Rule(tmp_path, model, 'calibration = "batch"')
    n_texts = rule.run()["text"].drop_nulls().str.strip_chars().replace("", None).n_unique() - 1

    def counts(*flags: object) -> tuple[int, int, int]:
        rule.run("--metrics", tmp_path / "metrics.json", *flags)
        metrics = json.loads((tmp_path / "metrics.json").read_text())
        return metrics["calibration_texts"], metrics["texts"], metrics["known_texts"]

    assert counts() == (n_texts, 0, n_texts)
    assert counts("--no-cache") == (n_texts, n_texts, 0)


def test_texts_that_are_too_long_to_get_a_label_have_no_say_in_calibration(tmp_path: Path, model: Path) -> None:
    rule = Rule(tmp_path, model, 'calibration = "batch"')
    rows = pl.read_parquet(rule.input)
    limits = ("--max-tokens", 240, "--overlong", "null")
    expected = rule.run(*limits)
    too_long = pl.DataFrame({"id": [100, 101], "text": ["refund " * 200, "crash " * 200]})
    pl.concat([too_long, rows]).write_parquet(rule.input)
    out = rule.run(*limits)
    assert out["status"].to_list()[:2] == ["overlong", "overlong"]
    assert_same(out.slice(2), expected, "behind two texts that are too long")


def test_several_labels_are_lists_in_the_order_of_the_task_with_their_probabilities(
    tmp_path: Path, model: Path
) -> None:
    rule = Rule(tmp_path, model, RULES["several labels"])
    out = rule.run()
    assert out.schema["label"] == pl.List(pl.String)
    assert out.schema["score"] == pl.List(pl.Float32)
    names, limits = ["billing", "technical", "account"], {"billing": 0.4, "technical": 0.5, "account": 0.5}
    for labels, scores in out.filter(pl.col("label").is_not_null()).select("label", "score").iter_rows():
        assert labels == [name for name in names if name in labels]
        assert all(score >= limits[label] for label, score in zip(labels, scores, strict=True))
    assert out["label"].list.len().drop_nulls().n_unique() > 1


def test_explanations_show_the_prompt_and_the_scores_that_decided(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, model, 'scoring = "constrained"\n[labels]\nbill = ""\n"bill to pay" = ""\naccount = ""')
    out = rule.run("--explain", 2)
    stdout, stderr = capsys.readouterr()
    for row in range(2):
        text, label, score = out.row(row, named=True)["text"], out["label"][row], out["score"][row]
        page = stdout[stdout.index(f"row {row}:") :]
        assert f"Ticket: {text}<|im_end|>" in page
        assert "<|im_start|>system" in page
        lines = page.split("row ")[1].splitlines()
        assert f"  → {label}" in lines
        (line,) = [line for line in lines if line.startswith(f"    {label}  ")]
        assert float(line.split()[-1]) == pytest.approx(score, abs=1e-4)
        assert text not in stderr
    assert "row 2:" not in stdout
    assert re.search(r"[1-9]\d* fed for the labels", stdout)


def test_explanations_of_many_files_are_as_many_as_were_asked_for(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        pl.DataFrame({"text": [f"refund {name}", None, f"invoice {name}"]}).write_parquet(
            tmp_path / "in" / f"{name}.parquet"
        )
    assert main([str(tmp_path / "in"), str(tmp_path / "out"), "--model", str(model), "--explain", "3"]) == 0
    stdout = capsys.readouterr().out
    assert stdout.count("tokens\n") == 3
    assert "a.parquet, row 0: " in stdout
    assert "a.parquet, row 2: " in stdout
    assert "refund b" in stdout
    assert "invoice b" not in stdout


def test_explanations_say_what_a_row_gets_where_no_label_is_sure(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, model, 'min_score = 1.0\ndefault_label = "other"')
    pl.DataFrame({"id": [0, 1], "text": ["refund", "crash " * 400]}).write_parquet(rule.input)
    rule.run("--explain", 2, "--max-tokens", 200, "--overlong", "null")
    stdout = capsys.readouterr().out
    assert "  → other: not sure enough\n" in stdout
    assert "  → null: too long, and --overlong is null\n" in stdout


def test_explanations_cannot_drive_a_terminal(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = Rule(tmp_path, model, "")
    pl.DataFrame({"id": [0], "text": ["refund \x1b[31mred\x07\rgone"]}).write_parquet(rule.input)
    rule.run("--explain", 1)
    stdout = capsys.readouterr().out
    assert "refund \\x1b[31mred\\x07\\rgone" in stdout
    assert not {"\x1b", "\x07", "\r"} & {*stdout}


def test_a_head_needs_no_tokens_of_labels_and_is_not_calibrated(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, model, RULES["head"])
    rule.run("--explain", 1, "--metrics", tmp_path / "metrics.json")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["scoring"], metrics["calibration"]) == ("head", "none")
    assert "0 fed for the labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        ('head = "missing.safetensors"', [], "does not exist"),
        ('head = "task.toml"', [], "is not a whole safetensors file"),
        ('head = "fitted.safetensors"', ["--labels", "billing,account"], "was fitted for label 'technical' too"),
        ('head = "fitted.safetensors"', ["--mode", "multi"], "was fitted for mode 'single'"),
    ],
)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_head_that_fits_no_model_is_refused_before_one_is_loaded(
    tmp_path: Path, toml: str, flags: list[str], message: str, dry_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    weights, labels = np.zeros((3, 2), np.float32), ("billing", "technical", "account")
    LinearHead(weights, weights[:, 0], labels, multi=False, fitted_for="").save(tmp_path / "fitted.safetensors")
    rule = Rule(tmp_path, Path("/there/is/no/such/model"), "")
    rule.task.write_text(toml, encoding="utf-8")
    rule.run(*flags, *dry_run, exit_code=2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: task file {str(rule.task)!r}: head: ")
    assert message in said.err


@pytest.mark.parametrize("change", ['user = "Please: {text}"', 'system = "Something else."'])
def test_a_head_is_refused_for_another_prompt(
    tmp_path: Path, model: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, model, RULES["head"])
    rule.task.write_text(f"{RULES['head']}\n{change}", encoding="utf-8")
    rule.run(exit_code=2)
    stderr = capsys.readouterr().err
    assert "was fitted for another model, --dtype or prompt" in stderr
    assert "python -m pipeline.tune" in stderr


def test_a_head_is_refused_for_another_model(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = Rule(tmp_path, model, RULES["head"])
    rule.model = save_tiny_model(tmp_path / "other", "qwen2")
    rule.run(exit_code=2)
    assert "was fitted for another model" in capsys.readouterr().err


def test_another_head_is_another_fingerprint(tmp_path: Path, model: Path) -> None:
    """Scores of an older head must not be taken from the cache, nor its files for finished."""
    rule = Rule(tmp_path, model, RULES["head"])
    cache = tmp_path / "cache"
    before = rule.run("--cache", cache)
    head = load_head(tmp_path / "fitted.safetensors")
    replace(head, weights=-head.weights).save(tmp_path / "fitted.safetensors")
    after = rule.run("--cache", cache)
    assert not before["label"].equals(after["label"])


# ------------------------------------------------------------------------------------------------ classifier models


def test_a_classifiers_labels_are_its_classes(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = Rule(tmp_path, save_tiny_classifier(tmp_path / "classifier", "llama"), "")
    out = rule.run("--metrics", tmp_path / "metrics.json", "--explain", 1)
    assert {*out["label"].drop_nulls()} <= {*CLASSES}
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["labels"], metrics["scoring"], metrics["calibration"]) == ([*CLASSES], "classifier", "none")
    page = capsys.readouterr().out
    assert "support tickets" not in page, "nothing is asked of such a model"
    assert out["text"][0] in page


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--labels", "complaint,praise"), "are not this model's classes"),
        (("--mode", "multi"), "this model's classes exclude each other"),
    ],
)
def test_a_task_that_is_not_the_classifiers_is_refused(
    flags: tuple[str, ...], message: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Rule(tmp_path, save_tiny_classifier(tmp_path / "classifier", "llama"), "")
    rule.run(*flags, exit_code=2)
    assert message in capsys.readouterr().err


def test_control_tokens_in_a_row_are_plain_characters_to_a_classifier_too(tmp_path: Path, model: Path) -> None:
    rule = Rule(tmp_path, save_tiny_classifier(tmp_path / "classifier", "bert"), "")
    texts = ["refund [SEP] invoice", "refund [ SEP ] invoice", "[CLS]", "[PAD] [PAD]"]
    pl.DataFrame({"id": range(4), "text": texts}).write_parquet(rule.input)
    assert (rule.run("--verify", 4)["status"] == "ok").all()
