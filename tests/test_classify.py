"""The command line: exit codes, messages, every flag, and nothing left behind."""

import json
import logging
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.command.progress
from pipeline.classify import main
from pipeline.command.options import Options
from pipeline.engine.packed import PackedEngine
from pipeline.parquet.sink import ParquetSink
from pipeline.task_file import load_task
from tests.hard_files import UNUSABLE, USABLE, bits, with_text
from tests.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[1]
NOWHERE = "/there/is/no/such/model"  # a run that gets as far as the model ends with 69
SECRET = "Mrs Featherstonehaugh owes 4711 guilders"
TEXTS = [f"Ticket {i}: the invoice of May shows the wrong sum, {'please ' * (i % 7)}help" for i in range(24)]


@dataclass(frozen=True)
class Said:
    """How a run ended: its exit code, and what went to stdout and stderr."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stderr.splitlines()

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


CommandLine = Callable[..., Said]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches the tests even where they were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def classify(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line in this process, with a tiny model unless told otherwise."""
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Said:
        words = [str(argument) for argument in arguments]
        if "--model" not in words:
            words += ["--model", str(tiny_model_folder)]
        capsys.readouterr()
        exit_code = main(words)
        return Said(exit_code, *capsys.readouterr())

    return run


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    return write_tickets(tmp_path / "in.parquet", TEXTS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def write_tickets(path: Path, texts: list[str] | list[str | None], **columns: Any) -> Path:
    table = pa.table({"id": pa.array(range(len(texts)), pa.int64()), **columns, "text": pa.array(texts, pa.string())})
    pq.write_table(table, path)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def labels_of(path: Path, column: str = "label") -> list[str | None]:
    labels: list[str | None] = pq.read_table(path).column(column).to_pylist()
    return labels


def metrics_of(said: Said, path: Path) -> dict[str, Any]:
    assert said.exit_code == 0, said.stderr
    metrics: dict[str, Any] = json.loads(path.read_text())
    return metrics


# What comes out


@pytest.mark.parametrize("name", sorted(USABLE.keys() - {"names_duplicate"}))
def test_the_output_is_the_input_with_labels_behind_it(name: str, classify: CommandLine, tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    USABLE[name](path)
    said = classify(path, output, "--text-column", "text", "--score-column", "score", "--status-column", "status")
    assert said.exit_code == 0, said.stderr
    far = {"coerce_int96_timestamp_unit": "us"} if name == "types_int96_far" else {}
    before, after = pq.ParquetFile(path, **far), pq.ParquetFile(output)
    n_columns = len(before.schema_arrow)
    assert pa.schema(list(after.schema_arrow)[:n_columns], before.schema_arrow.metadata).equals(
        before.schema_arrow, check_metadata=True
    )
    assert after.schema_arrow.names[n_columns:] == ["label", "score", "status"]
    assert after.metadata.num_rows == before.metadata.num_rows
    rows = pa.concat_tables([after.schema_arrow.empty_table(), *map(after.read_row_group, range(after.num_row_groups))])
    for i in range(n_columns):
        expected = [value for group in range(before.num_row_groups) for value in bits(before.read_row_group(group)[i])]
        assert bits(rows[i]) == expected, before.schema_arrow.names[i]
    labels, statuses = rows["label"].to_pylist(), rows["status"].to_pylist()
    assert {*labels} <= {"billing", "technical", "account", None}
    assert [label is None for label in labels] == [status == "blank" for status in statuses]


def test_labels_are_those_of_the_reference_path_in_original_order(classify: CommandLine, tmp_path: Path) -> None:
    texts = [" ".join(random.Random(i).choices(TEXTS[i % 24].split(), k=1 + i * 7 % 40)) for i in range(200)]
    path, packed, single = write_tickets(tmp_path / "in.parquet", texts), tmp_path / "p", tmp_path / "s"
    assert classify(path, packed, "--buffer-rows", 64).exit_code == 0
    assert classify(path, single, "--engine", "single").exit_code == 0
    assert len(set(labels_of(packed))) > 1
    assert labels_of(packed) == labels_of(single)
    assert pq.read_table(packed).column("id").to_pylist() == list(range(200))


def test_text_columns_are_found_by_name_and_the_choice_is_told(
    classify: CommandLine, tmp_path: Path, output: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"Subject": ["a"], "Body": ["b"], "truth": ["c"]}), path)
    assert "text from columns Subject, Body" in classify(path, output).lines


def test_a_file_without_rows_gives_one_with_the_added_columns(
    classify: CommandLine, tmp_path: Path, output: Path
) -> None:
    said = classify(write_tickets(tmp_path / "in.parquet", []), output, "--verify", 5)
    assert said.exit_code == 0
    assert pq.read_table(output).schema.names == ["id", "text", "label"]
    assert pq.read_table(output).num_rows == 0


def test_the_footer_says_where_the_labels_come_from(classify: CommandLine, tickets: Path, output: Path) -> None:
    classify(tickets, output, "--engine", "padded")
    entry = json.loads(pq.read_metadata(output).metadata[b"parquet_classify"])
    assert entry["engine"] == "padded"
    assert entry["labels"] == ["billing", "technical", "account"]
    assert entry["calibration"] == "contextual"
    assert len(entry["fingerprint"]) == 64
    assert entry.keys() >= {"version", "model", "scoring"}


def test_an_output_that_is_labelled_again_has_one_footer_entry(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second.parquet"
    classify(tickets, output)
    assert classify(output, second, "--label-column", "again", "--engine", "single").exit_code == 0
    assert json.loads(pq.read_metadata(second).metadata[b"parquet_classify"])["engine"] == "single"
    assert labels_of(second, "again") == labels_of(second)


def test_stdout_stays_empty_and_the_summary_counts_rows(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    path = write_tickets(tmp_path / "in.parquet", [*TEXTS, None, "  "])
    said = classify(path, output, "--labels", "yes,no")
    assert said.stdout == ""
    found = {line.split()[-1]: int(line.split()[-4]) for line in said.lines if line.endswith(("yes", "no", "(none)"))}
    labels = labels_of(output)
    assert found == {"yes": labels.count("yes"), "no": labels.count("no"), "(none)": 2}
    assert any("blank: no text" in line for line in said.lines)
    assert said.lines[-1] == f"done: {output}"


# Refusals: one line, one hint, the right code, nothing left behind, and no model loaded

FLAG_ERRORS: dict[str, tuple[list[str], str]] = {
    "unknown": (["--lables", "a,b"], "no such option: --lables"),
    "no value": (["--limit"], "option '--limit' requires an argument"),
    "too many arguments": (["third.parquet"], "unexpected extra argument"),
    "no number": (["--limit", "many"], "--limit: 'many' is not a whole number above 0"),
    "no rows": (["--limit", "0"], "--limit: '0' is not a whole number above 0"),
    "no probability": (["--min-score", "x"], "--min-score: 'x' is not a number"),
    "no choice": (["--engine", "fast"], "--engine: 'fast' is not one of 'auto', 'fused', 'packed', 'padded', 'single'"),
    "probability of 2": (["--min-score", "2"], "--min-score: 2.0 is not a probability, which is between 0 and 1"),
    "one label": (["--labels", "a"], "--labels: at least two labels are needed"),
    "label without limit": (["--default-label", "x"], "--default-label: 'x' has no effect without min_score"),
    "margin of 2": (["--min-margin", "2"], "--min-margin: 2.0 is not a probability, which is between 0 and 1"),
    "no such built-in task": (["--task", "builtin:tikets"], "the nearest is 'builtin:tickets'"),
    "limit and many labels": (["--mode", "multi", "--min-score", ".5"], "--min-score: 0.5 has no effect with mode"),
    "explained dry": (["--dry-run", "--explain", "3"], "--explain 3 and --dry-run exclude each other"),
    "printed and explained": (["--print-task", "--explain", "3"], "--print-task and --explain 3 exclude each other"),
    "printed and dry": (["--print-task", "--dry-run"], "--print-task and --dry-run exclude each other"),
    "revision of nothing": (["--model", "embedded", "--revision", "v1"], "--revision 'v1' has no effect"),
    "bar as JSON": (["--progress", "bar", "--log-format", "text", "--log-format", "json"], "exclude each other"),
    "metrics over input": (["--metrics", "in.parquet"], "--metrics 'in.parquet' is INPUT"),
    "metrics over output": (["--metrics", "./out.parquet"], "--metrics 'out.parquet' is OUTPUT"),
    "no task file": (["--task", "none.toml"], "task file 'none.toml' does not exist"),
    "task file with a typo": (["--task", "typo.toml"], "'lables'"),
    "one name for two columns": (["--score-column", "label"], "--label-column and --score-column are both 'label'"),
    "empty name": (["--label-column", ""], "an added column has an empty name"),
}


@pytest.mark.parametrize("name", FLAG_ERRORS)
def test_wrong_flags_are_refused(
    name: str, classify: CommandLine, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.toml").write_text("lables = {}\n")
    flags, message = FLAG_ERRORS[name]
    said = classify("--model", NOWHERE, "in.parquet", "out.parquet", *flags)
    assert_refused(said, 2, message, as_json=name == "bar as JSON")
    assert names_in(tmp_path) == ["in.parquet", "typo.toml"]


def assert_refused(said: Said, exit_code: int, message: str, *, as_json: bool = False) -> None:
    assert said.exit_code == exit_code, said.stderr
    assert said.stdout == ""
    if as_json:
        (last,) = said.messages
        assert (last["level"], last["exit_code"]) == ("error", exit_code)
        assert message in last["message"]
        return
    errors = [line for line in said.lines if line.startswith("error: ")]
    assert len(errors) == 1, said.stderr
    assert message in errors[0]
    assert said.lines.index(errors[0]) >= len(said.lines) - 2  # it is the last, but for a hint
    assert said.lines[-1].startswith(("hint: ", "error: "))
    assert "Traceback" not in said.stderr


def test_no_arguments_are_a_usage_error_with_a_way_to_help(classify: CommandLine) -> None:
    said = classify()
    assert_refused(said, 2, "missing argument 'INPUT'")
    assert said.lines[-1] == "hint: see python -m pipeline.classify --help"


def test_a_missing_output_is_a_usage_error(classify: CommandLine) -> None:
    assert_refused(classify("in.parquet", "--limit", 1), 2, "missing argument 'OUTPUT'")


def test_the_task_is_printed_with_all_flags_applied_and_no_input(classify: CommandLine, tmp_path: Path) -> None:
    flags = ["--labels", "high,low", "--min-score", ".5", "--default-label", "?", "--text-column", "body"]
    said = classify("--print-task", "--task", "builtin:urgency", *flags, "--model", NOWHERE)
    assert (said.exit_code, said.stderr) == (0, "")
    (tmp_path / "mine.toml").write_text(said.stdout, encoding="utf-8")
    task = load_task(tmp_path / "mine.toml")
    assert task.label_names == ("high", "low")
    assert (task.text, task.min_score, task.default_label) == (("body",), 0.5, "?")
    assert names_in(tmp_path) == ["mine.toml"]
    again = classify("--print-task", "--task", tmp_path / "mine.toml")
    assert again.stdout.partition("\n")[2] == said.stdout.partition("\n")[2]


def test_flags_switch_the_limits_of_a_task_file_off(classify: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('min_score = 0.4\ndefault_label = "other"\n')
    for flags, left in (
        (["--min-score", "0"], (0.0, None)),
        (["--default-label", ""], (0.4, None)),
        ([], (0.4, "other")),
    ):
        said = classify("--print-task", "--task", tmp_path / "t.toml", *flags)
        assert said.exit_code == 0, said.stderr
        (tmp_path / "printed.toml").write_text(said.stdout, encoding="utf-8")
        task = load_task(tmp_path / "printed.toml")
        assert (task.min_score, task.default_label) == left
    refused = classify("--print-task", "--task", tmp_path / "t.toml", "--min-score", "0", "--default-label", "ask")
    assert_refused(refused, 2, "--default-label: 'ask' has no effect without min_score or min_margin")


def test_printing_a_task_writes_no_metrics_and_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from pipeline.classify import main\n"
        f"code = main(['--print-task', '--metrics', {str(tmp_path / 'm.json')!r}])\n"
        "heavy = {'torch', 'transformers', 'polars', 'pyarrow', 'numpy', 'accelerate'} & sys.modules.keys()\n"
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path) == []


def test_a_glob_that_the_shell_replaced_is_answered_with_quotes(classify: CommandLine) -> None:
    assert classify("in/a.parquet", "in/b.parquet", "out").lines[-1].startswith("hint: put a glob in quotes")


def test_an_unknown_flag_is_answered_with_the_nearest(classify: CommandLine) -> None:
    assert classify("a", "b", "--label-colum", "x").lines[-1] == "hint: did you mean --label-column?"


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_broken_input_is_refused(name: str, classify: CommandLine, tmp_path: Path) -> None:
    write, message = UNUSABLE[name]
    write(tmp_path / "in.parquet")
    said = classify(tmp_path / "in.parquet", tmp_path / "out.parquet", "--model", NOWHERE)
    assert_refused(said, 65, message)
    assert names_in(tmp_path) == ["in.parquet"]


def table_errors() -> dict[str, tuple[pa.Table, list[str], str, str]]:
    """Name → input, flags, message, hint."""
    plain = with_text()
    return {
        "no text": (plain.drop_columns("text"), [], "no text column is called text or ticket", "--text-column NAME"),
        "two texts": (
            plain.append_column("body", plain["text"]),
            [],
            "may be the text: 'text', 'body'",
            "--text-column",
        ),
        "missing": (plain, ["--text-column", "txet"], "text column 'txet' is not in the input", "did you mean 'text'"),
        "numbers": (
            plain,
            ["--text-column", "ticket_id"],
            "text column 'ticket_id' holds int64, not strings",
            "--text-col",
        ),
        "label": (
            plain.append_column("label", plain["text"]),
            [],
            "already has a column 'label'",
            "--label-column NAME",
        ),
        "score": (plain, ["--score-column", "ticket_id"], "already has a column 'ticket_id'", "--score-column"),
        "duplicate": (
            pa.table([plain["text"]] * 2, ["text"] * 2),
            ["--text-column", "text"],
            "stands 2 times",
            "rename",
        ),
    }


@pytest.mark.parametrize("name", table_errors())
def test_a_table_that_does_not_fit_is_refused(name: str, classify: CommandLine, tmp_path: Path, output: Path) -> None:
    table, flags, message, hint = table_errors()[name]
    pq.write_table(table, tmp_path / "in.parquet")
    said = classify(tmp_path / "in.parquet", output, *flags, "--model", NOWHERE)
    assert_refused(said, 65, message)
    assert said.lines[-1].startswith("hint: ")
    assert hint in said.lines[-1]
    assert names_in(tmp_path) == ["in.parquet"]


def test_a_missing_input_is_66(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    assert_refused(classify(tmp_path / "no.parquet", output, "--model", NOWHERE), 66, "does not exist")
    assert names_in(tmp_path) == []


def test_an_output_that_exists_is_73_and_stays(classify: CommandLine, tickets: Path, output: Path) -> None:
    output.write_bytes(b"precious")
    said = classify(tickets, output, "--model", NOWHERE)
    assert_refused(said, 73, "exists already")
    assert said.lines[-1] == "hint: replace it with --overwrite"
    assert output.read_bytes() == b"precious"


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_the_input_is_never_the_output(flags: list[str], classify: CommandLine, tickets: Path, tmp_path: Path) -> None:
    before = tickets.read_bytes()
    link = tmp_path / "link.parquet"
    link.symlink_to(tickets)
    for target in (tickets, link):
        said = classify(tickets, target, *flags, "--model", NOWHERE)
        assert said.exit_code == 73
        assert tickets.read_bytes() == before
    assert names_in(tmp_path) == ["in.parquet", "link.parquet"]


def test_an_output_without_a_folder_is_73(classify: CommandLine, tickets: Path, tmp_path: Path) -> None:
    assert_refused(classify(tickets, tmp_path / "no" / "out.parquet", "--model", NOWHERE), 73, "there is no folder")


def test_metrics_without_a_folder_are_73(classify: CommandLine, tickets: Path, output: Path, tmp_path: Path) -> None:
    said = classify(tickets, output, "--metrics", tmp_path / "no" / "m.json", "--model", NOWHERE)
    assert_refused(said, 73, "there is no folder")
    assert_refused(classify(tickets, output, "--metrics", tmp_path, "--model", NOWHERE), 73, "is a folder")
    assert names_in(tmp_path) == ["in.parquet"]


def test_a_missing_model_is_69_and_leaves_nothing(
    classify: CommandLine, tickets: Path, tmp_path: Path, output: Path
) -> None:
    assert_refused(classify(tickets, output, "--model", NOWHERE), 69, f"there is no model folder '{NOWHERE}'")
    assert names_in(tmp_path) == ["in.parquet"]


def test_refusals_come_in_order_of_their_cost(classify: CommandLine, tickets: Path, tmp_path: Path) -> None:
    """Everything is wrong; the mistakes are mended one by one."""
    missing, nowhere = tmp_path / "no.parquet", tmp_path / "no" / "out.parquet"
    bad_task = ["--task", str(tmp_path / "no.toml")]
    codes = [
        classify(missing, nowhere, "--limit", "x", *bad_task, "--model", NOWHERE).exit_code,
        classify(missing, nowhere, *bad_task, "--model", NOWHERE).exit_code,
        classify(missing, nowhere, "--model", NOWHERE).exit_code,
        classify(tickets, nowhere, "--text-column", "x", "--model", NOWHERE).exit_code,
        classify(tickets, nowhere, "--model", NOWHERE).exit_code,
        classify(tickets, tmp_path / "out.parquet", "--model", NOWHERE).exit_code,
    ]
    assert codes == [2, 2, 66, 65, 73, 69]


# Flags


def test_task_flags_change_what_is_asked(classify: CommandLine, tickets: Path, output: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('text = ["text"]\n[labels]\nred = ""\nblue = ""\n')
    flags = ["--task", tmp_path / "mine.toml", "--metrics", tmp_path / "m.json"]
    metrics = metrics_of(classify(tickets, output, *flags), tmp_path / "m.json")
    assert (metrics["task"], metrics["labels"], metrics["calibration"]) == ("mine", ["red", "blue"], "contextual")
    assert {*labels_of(output)} <= {"red", "blue"}
    flags += ["--labels", "up, down", "--calibration", "none", "--scoring", "sequence", "--overwrite"]
    metrics = metrics_of(classify(tickets, output, *flags), tmp_path / "m.json")
    assert (metrics["labels"], metrics["calibration"], metrics["scoring"]) == (["up", "down"], "none", "sequence")
    assert {*labels_of(output)} <= {"up", "down"}


def test_first_token_scoring_refuses_labels_that_share_one(classify: CommandLine, tickets: Path, output: Path) -> None:
    said = classify(tickets, output, "--labels", "aa1,aa2", "--scoring", "first-token")
    assert_refused(said, 2, "begin with the same token")
    assert not output.exists()


def test_several_text_columns_are_joined(classify: CommandLine, tmp_path: Path) -> None:
    """Only what both columns say together can give these labels."""
    halves = {"a": [text[:20] for text in TEXTS], "b": [text[20:] for text in TEXTS]}
    joined = [f"{a.strip()}\n\n{b.strip()}" for a, b in zip(halves["a"], halves["b"], strict=True)]
    stripped = {name: [text.strip() for text in texts] for name, texts in halves.items()}
    path = write_tickets(tmp_path / "in.parquet", joined, **stripped)
    scores = ["--score-column", "p"]
    assert classify(path, tmp_path / "1", *scores, "--text-column", "text").exit_code == 0
    assert classify(path, tmp_path / "2", *scores, "--text-column", "a", "--text-column", "b").exit_code == 0
    assert classify(path, tmp_path / "3", *scores, "--text-column", "b", "--text-column", "a").exit_code == 0
    whole, forth, back = (pq.read_table(tmp_path / name).column("p").to_pylist() for name in "123")
    assert forth == pytest.approx(whole, abs=1e-5)
    assert back != pytest.approx(whole, abs=1e-5)


def test_added_columns_have_the_names_asked_for(classify: CommandLine, tickets: Path, output: Path) -> None:
    names = ["--label-column", "kind", "--score-column", "p", "--status-column", "how"]
    classify(tickets, output, *names)
    table = pq.read_table(output)
    assert table.schema.names == ["id", "text", "kind", "p", "how"]
    assert [str(type_) for type_ in table.schema.types[2:]] == ["string", "float", "string"]
    assert all(1 / 3 <= p <= 1 for p in table["p"].to_pylist())
    assert {*table["how"].to_pylist()} == {"ok"}


def test_improbable_labels_give_way_to_any_default(classify: CommandLine, tickets: Path, output: Path) -> None:
    classify(tickets, output, "--min-score", 1, "--default-label", "ask a human", "--status-column", "s")
    assert {*labels_of(output)} == {"ask a human"}
    assert {*labels_of(output, "s")} == {"low_score"}
    classify(tickets, output, "--min-score", 1, "--overwrite")
    assert {*labels_of(output)} == {None}


def test_overlong_texts_are_cut_left_out_or_refused(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    path = write_tickets(tmp_path / "in.parquet", ["short", "long " * 400])
    flags = ["--max-tokens", 300, "--status-column", "s", "--overwrite", "--overlong"]
    said = classify(path, output, *flags, "truncate")
    assert labels_of(output, "s") == ["ok", "truncated"]
    assert any("truncated: longer than --max-tokens" in line for line in said.lines)
    classify(path, output, *flags, "null")
    assert labels_of(output, "s") == ["ok", "overlong"]
    assert labels_of(output)[1] is None
    before = output.read_bytes()
    assert_refused(classify(path, output, *flags, "fail"), 3, "row 1: its prompt is longer than --max-tokens 300")
    assert output.read_bytes() == before


def test_a_prompt_that_leaves_no_room_is_a_usage_error(classify: CommandLine, tickets: Path, output: Path) -> None:
    said = classify(tickets, output, "--max-tokens", 20)
    assert_refused(said, 2, "--max-tokens 20 leaves no room for text")
    assert not output.exists()


def test_model_flags_reach_the_model(classify: CommandLine, tickets: Path, output: Path, tmp_path: Path) -> None:
    flags = ["--metrics", tmp_path / "m.json", "--overwrite", "--device", "cpu"]
    metrics = metrics_of(classify(tickets, output, *flags), tmp_path / "m.json")
    assert (metrics["device"], metrics["dtype"]) == ("cpu", "float32")
    wide = metrics["fingerprint"]
    metrics = metrics_of(classify(tickets, output, *flags, "--dtype", "bfloat16"), tmp_path / "m.json")
    assert metrics["dtype"] == "bfloat16"
    assert metrics["fingerprint"] != wide
    said = classify(tickets, output, "--device", "mps", "--overwrite")
    assert_refused(said, 2, "--device mps: this machine")


def test_a_revision_reaches_the_hub(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, file: str, *, revision: str | None) -> None:
        asked.update(name=name, file=file, revision=revision)
        raise OSError("no network here")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    said = classify(tickets, output, "--model", "some/model", "--revision", "v7")
    assert_refused(said, 69, "cannot get model 'some/model' from the hub: no network here")
    assert asked == {"name": "some/model", "file": "config.json", "revision": "v7"}


def test_pickled_weights_need_a_flag(classify: CommandLine, tickets: Path, output: Path, tmp_path: Path) -> None:
    import torch

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer=tokenizer).lm
    folder = tmp_path / "pickled"
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert_refused(classify(tickets, output, "--model", folder), 69, "cannot load model")
    assert classify(tickets, output, "--model", folder, "--trust-remote-code").exit_code == 0


@pytest.mark.parametrize("engine", ["fused", "packed", "padded", "single"])
def test_the_engine_asked_for_runs(
    engine: str, classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    said = classify(tickets, output, "--engine", engine, "--metrics", tmp_path / "m.json")
    assert metrics_of(said, tmp_path / "m.json")["engine"] == engine


def test_sizes_change_the_work_and_not_the_labels(classify: CommandLine, tickets: Path, tmp_path: Path) -> None:
    n_buckets, labels = [], []
    for name, flags in {"1": [], "2": ["--buffer-rows", 2], "3": ["--max-batch-tokens", 1]}.items():
        said = classify(tickets, tmp_path / name, *flags, "--metrics", tmp_path / "m.json")
        n_buckets.append(metrics_of(said, tmp_path / "m.json")["buckets"])
        labels.append(labels_of(tmp_path / name))
    assert n_buckets[0] < n_buckets[1] < n_buckets[2] == len(TEXTS)
    assert labels[0] == labels[1] == labels[2]


def test_limit_writes_the_first_rows_only(classify: CommandLine, tickets: Path, tmp_path: Path, output: Path) -> None:
    whole = tmp_path / "whole.parquet"
    classify(tickets, whole)
    assert classify(tickets, output, "--limit", 7).exit_code == 0
    assert pq.read_table(output).to_pylist() == pq.read_table(whole).slice(0, 7).to_pylist()
    assert classify(tickets, output, "--limit", 1000, "--overwrite").exit_code == 0
    assert pq.read_table(output).num_rows == len(TEXTS)


def test_overwrite_replaces_the_output(classify: CommandLine, tickets: Path, output: Path) -> None:
    output.write_bytes(b"old")
    assert classify(tickets, output, "--overwrite").exit_code == 0
    assert pq.read_table(output).num_rows == len(TEXTS)


def test_dry_run_says_what_would_be_done_and_does_nothing(classify: CommandLine, tickets: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "m.json"
    flags = ["--labels", "yes,no", "--limit", 5, "--score-column", "p", "--metrics", metrics, "--dry-run"]
    said = classify(tickets, tmp_path / "out.parquet", *flags, "--model", NOWHERE)
    assert said.exit_code == 0
    assert said.stderr == ""
    for words in (
        "5 of 24",
        "1 row group",
        "text",
        "yes, no",
        "label (string), p (float)",
        "not loaded",
        "Ticket: {text}",
    ):
        assert words in said.stdout
    assert TEXTS[0] not in said.stdout
    assert names_in(tmp_path) == ["in.parquet"]


def test_dry_run_shows_examples_answers_and_the_least_a_label_needs(
    classify: CommandLine, tickets: Path, tmp_path: Path
) -> None:
    task = tmp_path / "t.toml"
    task.write_text(
        'min_score = 0.5\nmin_margin = 0.25\ndefault_label = "ask"\n[labels]\na = ""\nb = ""\n'
        '[answers]\na = "alpha"\n[[examples]]\ntext = "First."\nlabel = "a"\n'
    )
    said = classify(tickets, tmp_path / "out.parquet", "--task", task, "--dry-run").stdout
    assert "one label a row" in said
    assert "0.5 probability and 0.25 more than the next, or 'ask'" in said
    shown = "user turn of an example:\n  Ticket: First.\nanswer turn of an example:\n  Category: alpha\nuser turn:\n"
    assert shown in said


def test_dry_run_shows_the_questions_and_thresholds_of_any_number_of_labels(
    classify: CommandLine, tickets: Path, tmp_path: Path
) -> None:
    task = tmp_path / "t.toml"
    task.write_text('mode = "multi"\nyes = "ja"\n[labels]\na = ""\nb = ""\n[thresholds]\nb = 0.75\n')
    said = classify(tickets, tmp_path / "out.parquet", "--task", task, "--dry-run").stdout
    assert "any number of labels a row" in said
    assert "a 0.5, b 0.75" in said
    assert "'ja' against 'no'" in said
    assert "questions behind it:\n  a: (ja or no)\n  b: (ja or no)\n" in said


def test_dry_run_refuses_what_a_run_would_refuse(classify: CommandLine, tickets: Path, output: Path) -> None:
    output.write_bytes(b"old")
    assert_refused(classify(tickets, output, "--dry-run"), 73, "exists already")
    assert "would be replaced" in classify(tickets, output, "--dry-run", "--overwrite").stdout
    assert output.read_bytes() == b"old"


def test_verify_prints_the_agreement(classify: CommandLine, tickets: Path, output: Path, tmp_path: Path) -> None:
    said = classify(tickets, output, "--verify", 10, "--metrics", tmp_path / "m.json")
    verdict = metrics_of(said, tmp_path / "m.json")["verify"]
    assert (verdict["n_texts"], verdict["n_same"]) == (10, 10)
    assert 0 < verdict["largest_difference"] < 1e-4
    assert any(line.startswith("verify: 10 of 10 texts") for line in said.lines)


def test_texts_left_out_as_overlong_are_not_verified(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    """They have no score in the run, but would have one on the reference path."""
    path = write_tickets(tmp_path / "in.parquet", ["short", "long " * 400, "brief"])
    said = classify(path, output, "--max-tokens", 300, "--overlong", "null", "--verify", 3)
    assert said.exit_code == 0, said.stderr
    assert any(line.startswith("verify: 2 of 2 texts") for line in said.lines)


def test_a_failed_verification_leaves_no_output(
    classify: CommandLine, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is right for a few rows, as at start-up, and mixes up the rows of larger buckets."""
    score = PackedEngine.score
    monkeypatch.setattr(
        PackedEngine, "score", lambda self, bucket: score(self, bucket)[:: -1 if len(bucket.rows) > 3 else 1]
    )
    flags = ["--verify", 24, "--metrics", tmp_path / "m.json", "--engine", "packed"]
    said = classify(tickets, tmp_path / "out.parquet", *flags)
    assert_refused(said, 3, "of 24 texts get another label when they are scored alone (rows ")
    assert "--engine single" in said.lines[-1]
    assert names_in(tmp_path) == ["in.parquet", "m.json"]
    assert json.loads((tmp_path / "m.json").read_text())["verify"]["wrong_rows"]


def test_metrics_count_the_run(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    path = write_tickets(tmp_path / "in.parquet", [*TEXTS, TEXTS[0], None, " "])
    metrics = metrics_of(classify(path, output, "--metrics", tmp_path / "m.json"), tmp_path / "m.json")
    assert (metrics["exit_code"], metrics["error"], metrics["verify"]) == (0, None, None)
    assert (metrics["rows"], metrics["texts"], metrics["null_label_rows"]) == (27, 24, 2)
    assert sum(metrics["label_rows"].values()) == 25
    assert metrics["status_rows"] == {"ok": 25, "blank": 2}
    assert metrics["seconds"].keys() == {"load", "run", "read", "tokenize", "model", "write", "total"}
    assert metrics["padded_tokens"] >= metrics["fed_tokens"] > 24 * 10
    assert metrics["tokens_per_second"] > metrics["rows_per_second"] > 0
    assert metrics["peak_rss_mib"] > 50
    assert names_in(tmp_path) == ["in.parquet", "m.json", "out.parquet"]


def test_metrics_tell_of_a_failed_run(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    said = classify(tmp_path / "no.parquet", output, "--metrics", tmp_path / "m.json")
    metrics = json.loads((tmp_path / "m.json").read_text())
    assert metrics["exit_code"] == said.exit_code == 66
    assert said.lines[0] == f"error: {metrics['error']}"


def test_metrics_that_cannot_be_written_at_the_end_are_74(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ParquetSink.commit

    def commit_and_block(sink: ParquetSink, metadata: Any = None) -> None:
        commit(sink, metadata)
        (tmp_path / "m.json").mkdir()

    monkeypatch.setattr(ParquetSink, "commit", commit_and_block)
    said = classify(tickets, output, "--metrics", tmp_path / "m.json")
    assert said.exit_code == 74
    assert any(line.startswith("error: writing --metrics") for line in said.lines)
    assert pq.read_table(output).num_rows == len(TEXTS)
    assert names_in(tmp_path) == ["in.parquet", "m.json", "out.parquet"]


def test_json_messages_are_one_object_a_line(classify: CommandLine, tickets: Path, output: Path) -> None:
    messages = classify(tickets, output, "--log-format", "json", "--verify", 3).messages
    assert all(message.keys() >= {"time", "level", "message"} for message in messages)
    (model,) = (message for message in messages if "engine" in message)
    assert model["engine"] == "fused"
    assert messages[-1]["message"] == "done"
    assert messages[-1]["summary"]["rows"] == len(TEXTS)
    (error,) = classify(tickets, output, "--log-format=json").messages
    assert (error["level"], error["exit_code"], error["hint"]) == ("error", 73, "replace it with --overwrite")


def test_progress_is_told_in_lines_when_stderr_is_no_terminal(
    classify: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.command.progress, "LINE_SECONDS", 0.01)
    path = write_tickets(tmp_path / "in.parquet", [f"{text} {i}" for i in range(10) for text in TEXTS])
    for flags in ([], ["--progress", "bar"], ["--progress", "log"]):
        said = classify(path, tmp_path / "out.parquet", "--overwrite", *flags)
        assert any(line.startswith("rows ") and "/240 (" in line for line in said.lines)
        assert "\x1b" not in said.stderr
        assert "\r" not in said.stderr
    said = classify(path, tmp_path / "out.parquet", "--overwrite", "--progress", "none")
    assert not any("/240 (" in line for line in said.lines)


def test_version_is_told(classify: CommandLine) -> None:
    said = classify("--version")
    assert (said.exit_code, said.stderr) == (0, "")
    assert said.stdout.startswith("parquet-classify ")


# Environment variables


def test_every_flag_has_a_variable_and_both_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.command.options import parse

    values = {
        "task": "t.toml",
        "text_column": "a b,c",
        "labels": "x,y",
        "mode": "multi",
        "label_column": "l",
        "score_column": "p",
        "status_column": "s",
        "min_score": "0.5",
        "min_margin": "0.25",
        "default_label": "z",
        "scoring": "sequence",
        "calibration": "none",
        "model": "m",
        "revision": "r",
        "device": "cpu",
        "dtype": "float16",
        "max_tokens": "9",
        "overlong": "null",
        "trust_remote_code": "1",
        "engine": "padded",
        "quantize": "int8",
        "min_agreement": "80%",
        "buffer_rows": "7",
        "max_batch_tokens": "8",
        "ray": "10.0.0.1:6379",
        "workers": "2,4",
        "cpus_per_worker": "3",
        "gpus_per_worker": "0.5",
        "unit_rows": "6",
        "cache": "c.db",
        "no_cache": "1",
        "max_failed": "2.5%",
        "overwrite": "true",
        "verify": "3",
        "metrics": "m.json",
        "log_format": "json",
        "progress": "none",
        "limit": "5",
        "dry_run": "yes",
        "explain": "4",
        "print_task": "1",
        "debug": "1",
    }
    assert values.keys() == {field.name for field in fields(Options)} - {"input", "output", "version"}
    switches = {"trust_remote_code", "no_cache", "overwrite", "dry_run", "print_task", "debug"}
    flags = []
    for name, value in values.items():
        for part in value.split(",") if name == "text_column" else [value]:
            flags += [f"--{name.replace('_', '-')}", *([] if name in switches else [part])]
    by_flags = parse(["i", "o", *flags])
    for name, value in values.items():
        monkeypatch.setenv(f"PIPELINE_{name.upper()}", value)
    by_variables = parse(["i", "o"])
    assert by_flags == by_variables
    plain = Options("i", "o")
    assert all(getattr(by_flags, name) != getattr(plain, name) for name in values)


def test_a_flag_wins_over_its_variable(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_LIMIT", "3")
    classify(tickets, output)
    assert pq.read_table(output).num_rows == 3
    classify(tickets, output, "--limit", 4, "--overwrite")
    assert pq.read_table(output).num_rows == 4


def test_an_error_names_the_variable_that_holds_the_value(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_LIMIT", "lots")
    assert classify(tickets, output).lines[0] == "error: PIPELINE_LIMIT: 'lots' is not a whole number above 0"
    assert classify(tickets, output, "--limit", "x").lines[0] == "error: --limit: 'x' is not a whole number above 0"


# Faults


def test_a_fault_is_one_line_without_words_of_a_row(
    classify: CommandLine, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError(SECRET)

    path = write_tickets(tmp_path / "in.parquet", [SECRET])
    monkeypatch.setattr("pipeline.passes.score_bucket", fail)
    flags = ["--calibration", "none", "--metrics", tmp_path / "m.json"]
    said = classify(path, output, *flags)
    assert said.exit_code == 70
    assert said.lines[-2].startswith("internal error: KeyError at passes.py:")
    assert said.lines[-1].startswith("hint: run again with --debug")
    assert SECRET not in said.stderr + (tmp_path / "m.json").read_text()
    assert names_in(tmp_path) == ["in.parquet", "m.json"]
    assert "Traceback (most recent call last)" in classify(path, output, *flags, "--debug").stderr


def test_a_panic_of_polars_is_a_fault_too(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: Any) -> None:
        raise pl.exceptions.PanicException("boom")

    assert not issubclass(pl.exceptions.PanicException, Exception)
    monkeypatch.setattr("pipeline.prepare.text_frame", panic)
    said = classify(tickets, output)
    assert said.exit_code == 70
    assert "internal error: PanicException at prepare.py:" in said.stderr


def test_no_words_of_any_row_reach_messages_or_metrics(classify: CommandLine, tmp_path: Path, output: Path) -> None:
    texts = [SECRET, f"{SECRET} {'again ' * 500}", f"<|im_start|>{SECRET}", None, f"{SECRET} \x00"]
    path = write_tickets(tmp_path / "in.parquet", texts)
    for flags in (
        ["--verify", 5, "--max-tokens", 300],
        ["--log-format", "json", "--overwrite"],
        ["--max-tokens", 300, "--overlong", "fail", "--overwrite"],
        ["--dry-run", "--overwrite"],
        ["--text-column", "id", "--overwrite"],
    ):
        said = classify(path, output, *flags, "--metrics", tmp_path / "m.json")
        everything = said.stdout + said.stderr + (tmp_path / "m.json").read_text()
        for word in SECRET.split():
            assert word not in everything
    footer = str(pq.read_metadata(output).metadata)
    assert "guilders" not in footer


def test_warnings_of_libraries_are_messages(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ParquetSink.write

    def warn(sink: ParquetSink, rows: pa.Table) -> None:
        logging.getLogger("some.library").warning("old\nweights")
        write(sink, rows)

    monkeypatch.setattr(ParquetSink, "write", warn)
    assert "warning: old weights" in classify(tickets, output).lines
    messages = classify(tickets, output, "--overwrite", "--log-format", "json").messages
    assert [message["level"] for message in messages if "weights" in message["message"]] == ["warning"]


# Signals


def test_a_signal_during_the_last_step_changes_nothing(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ParquetSink.commit

    def interrupted_commit(sink: ParquetSink, metadata: Any = None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        commit(sink, metadata)

    monkeypatch.setattr(ParquetSink, "commit", interrupted_commit)
    assert classify(tickets, output).exit_code == 0
    assert pq.read_table(output).num_rows == len(TEXTS)


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_and_the_command_it_names_goes_on(
    signum: signal.Signals,
    exit_code: int,
    classify: CommandLine,
    tickets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ParquetSink, "write", lambda *_: os.kill(os.getpid(), signum))
    said = classify(tickets, tmp_path / "out.parquet", "--metrics", tmp_path / "m.json", "--buffer-rows", 5)
    assert said.exit_code == exit_code
    assert said.lines[-2].startswith("error: stopped by ")
    resume = said.lines[-1].removeprefix("hint: go on with the same command: python -m pipeline.classify ")
    assert json.loads((tmp_path / "m.json").read_text())["exit_code"] == exit_code
    assert names_in(tmp_path) == [".out.parquet.scores", "in.parquet", "m.json"]
    monkeypatch.undo()
    assert main(shlex.split(resume)) == 0
    assert names_in(tmp_path) == ["in.parquet", "m.json", "out.parquet"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_that_a_signal_leads_to_is_told_as_the_signal(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("half a module") from None

    monkeypatch.setattr(ParquetSink, "write", fail)
    said = classify(tickets, output)
    assert said.exit_code == 75
    assert said.lines[-2].startswith("error: stopped by SIGTERM; ")


def start(*arguments: object) -> subprocess.Popen[str]:
    """The real thing, in a process of its own."""
    command = [sys.executable, "-m", "pipeline.classify", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the process ended before it said {words!r}")


@pytest.fixture
def many_tickets(tmp_path: Path) -> Path:
    return write_tickets(tmp_path / "in.parquet", [f"{text} {i}" for i in range(4000) for text in TEXTS])


def test_sigterm_ends_a_real_run(many_tickets: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    process = start(many_tickets, tmp_path / "out.parquet", "--model", tiny_model_folder, "--buffer-rows", 20)
    read_until(process, "on cpu in float32")
    time.sleep(0.5)
    assert ".out.parquet.partial" in names_in(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    assert names_in(tmp_path) == [".out.parquet.scores", "in.parquet"]


def test_ctrl_c_twice_ends_a_real_run_at_once(many_tickets: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    """In one large buffer the second thread is busy for long; the second Ctrl-C does not wait for it."""
    process = start(many_tickets, tmp_path / "out.parquet", "--model", tiny_model_folder, "--buffer-rows", 1_000_000)
    read_until(process, "on cpu in float32")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert names_in(tmp_path) == ["in.parquet"]


def test_sigterm_while_the_model_loads_ends_a_real_run(tickets: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    process = start(tickets, tmp_path / "out.parquet", "--model", tiny_model_folder)
    read_until(process, "loading model")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75, stderr
    assert names_in(tmp_path) == ["in.parquet"]


# What is imported, and who reads


def test_help_and_wrong_flags_import_nothing_heavy() -> None:
    program = (
        "import sys; from pipeline.classify import main\n"
        "codes = [main(['--help']), main(['a']), main(['a', 'b', '--limit', 'x']), main(['a', 'b', '--labels', 'x'])]\n"
        "heavy = {'torch', 'transformers', 'polars', 'pyarrow', 'numpy', 'accelerate'} & sys.modules.keys()\n"
        "sys.exit(f'{codes} {heavy}' if heavy or codes != [0, 2, 2, 2] else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_every_flag_and_variable_in_full(classify: CommandLine) -> None:
    """In 80 columns, where the longest names once ended in dots."""
    said = classify("--help")
    assert (said.exit_code, said.stderr) == (0, "")
    for field in fields(Options):
        if field.name in ("input", "output"):
            assert f" {field.name.upper()} " in said.stdout
            continue
        assert f" --{field.name.replace('_', '-')} " in said.stdout
        assert field.name == "version" or f"PIPELINE_{field.name.upper()}]" in said.stdout
    for exit_code in (0, 2, 3, 65, 66, 69, 70, 73, 74, 75, 130):
        assert f" {exit_code} " in said.stdout


def test_a_refused_input_or_output_imports_no_torch(tickets: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pipeline.classify import main\n"
        f"codes = [main(['no', 'b']), main([{str(tickets)!r}, {str(tmp_path)!r}]), "
        f"main([{str(tickets)!r}, {str(tmp_path / 'o')!r}, '--dry-run'])]\n"
        "heavy = {'torch', 'transformers', 'accelerate'} & sys.modules.keys()\n"
        "sys.exit(f'{codes} {heavy}' if heavy or codes != [66, 73, 0] else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_openmp_threads_sleep_when_they_have_no_work() -> None:
    program = "import os; from pipeline.classify import main; main(['--version']); print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines()[-1] == "PASSIVE"


@pytest.mark.parametrize("flags", [["--help"], ["--version"], ["--dry-run"], ["--print-task"]])
def test_a_reader_that_goes_away_is_no_error(flags: list[str], tickets: Path, output: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "pipeline.classify", str(tickets), str(output), *flags]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.stderr, done.returncode) in (("", 0), ("", 1))  # 1 is what rich makes of it


def test_a_log_that_nobody_reads_does_not_end_a_run(
    classify: CommandLine, tickets: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    assert classify(tickets, output).exit_code == 0
    assert pq.read_table(output).num_rows == len(TEXTS)


# What a stranger broke


def test_a_half_copied_model_is_the_models_fault(
    classify: CommandLine, tickets: Path, output: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "half"
    shutil.copytree(tiny_model_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    assert_refused(classify(tickets, output, "--model", folder), 69, f"cannot load model {str(folder)!r}")


def test_a_model_whose_tokenizer_has_too_many_tokens_is_the_models_fault(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    tiny_model(vocab_size=50).lm.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    for engine in ("auto", "single"):
        said = classify(tickets, output, "--model", folder, "--engine", engine)
        assert_refused(said, 69, f"model {str(folder)!r} cannot be run")


def test_a_context_too_small_for_the_prompt_is_named_and_not_a_flag(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "short"
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer=tokenizer, max_position_embeddings=32).lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert_refused(classify(tickets, output, "--model", folder), 2, f"the context of model {str(folder)!r} (32, ")


def test_room_for_the_longest_label_is_not_taken_from_the_text(
    classify: CommandLine, tickets: Path, output: Path
) -> None:
    """A label of 2,000 tokens left four for prompt and text together, and every text was labelled as an ellipsis."""
    label = "qzj " * 505 + "x"
    said = classify(tickets, output, "--labels", f"a,{label}", "--scoring", "sequence")
    assert_refused(said, 2, "leaves no room for text")


def test_metrics_never_replace_what_is_no_file(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    fifo, link, target = tmp_path / "fifo", tmp_path / "link", tmp_path / "metrics.json"
    os.mkfifo(fifo)
    assert_refused(classify(tickets, output, "--metrics", fifo), 73, "is not a regular file")
    link.symlink_to(target)
    assert classify(tickets, output, "--metrics", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["exit_code"] == 0


def test_metrics_never_replace_the_task_file(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    task = tmp_path / "task.toml"
    task.write_text('answer = ""\n')
    assert_refused(classify(tickets, output, "--task", task, "--metrics", task), 2, "is the file of --task")
    assert task.read_text() == 'answer = ""\n'


def test_a_metrics_name_that_is_too_long_is_refused_before_the_run(
    classify: CommandLine, tickets: Path, output: Path, tmp_path: Path
) -> None:
    said = classify(tickets, output, "--metrics", tmp_path / ("m" * 250), "--model", NOWHERE)
    assert_refused(said, 73, "cannot be written: File name too long")


def test_a_full_stdout_is_a_failure_of_the_device(tickets: Path, output: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "pipeline.classify", str(tickets), str(output), "--dry-run"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert run.returncode == 74, run.stderr
    assert "error: writing to stdout failed: No space left on device" in run.stderr
