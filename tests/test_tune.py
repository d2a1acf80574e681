"""The command line of tuning, on a tiny model whose hidden states know which words a text has."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.classify import main as classify
from pipeline.head import load_head
from pipeline.task_file import load_task
from pipeline.tune import main
from tests.tiny import save_tiny_model
from tests.tiny_classifiers import save_tiny_classifier

ROOT = Path(__file__).parents[1]
WORDS = {
    "billing": ("refund", "invoice", "charged", "payment"),
    "technical": ("crash", "error", "bug", "log"),
    "account": ("login", "password", "profile", "user"),
}
FILLER = ("the", "my", "was", "today", "again", "please", "a", "with")
TASK = """
text = ["body"]
system = "Classify: {descriptions}."
user = "Ticket: {text}"
answer = "Category:"
[labels]
billing = "payments"
technical = "bugs"
account = "login"
"""
SECRET = "Xenophanes"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def text_of(label: str, rng: np.random.Generator) -> str:
    words = [*rng.choice(WORDS[label], 3), *rng.choice(FILLER, 3), SECRET]
    return " ".join(rng.permutation(words))


def rows(n_rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    labels = [list(WORDS)[place % 3] for place in range(n_rows)]
    return pa.table({"id": range(n_rows), "body": [text_of(label, rng) for label in labels], "truth": labels})


@pytest.fixture
def files(tmp_path: Path, model: Path) -> Any:
    (tmp_path / "t.toml").write_text(TASK)
    pq.write_table(rows(90), tmp_path / "in.parquet")

    def tune(*flags: Any, table: pa.Table | None = None) -> int:
        if table is not None:
            pq.write_table(table, tmp_path / "in.parquet")
        given = [tmp_path / "in.parquet", "--truth", "truth", "--task", tmp_path / "t.toml", "--model", model]
        return main([str(flag) for flag in [*given, "-o", tmp_path / "t2.toml", *flags]])

    tune.folder = tmp_path  # type: ignore[attr-defined]
    return tune


def test_a_head_learns_what_the_prompt_cannot_and_classify_decides_by_it(files, model, capsys):
    assert files() == 0
    told = capsys.readouterr()
    assert "90 labelled texts in 90 rows: 63 to tune on, 27 held out" in told.out
    for variant in ("as given / none", "as given / batch", "without descriptions / contextual", "head "):
        assert f"\n{variant}" in told.out
    assert "one example per label / none" in told.out
    assert "same answers with the labels in another order" in told.out
    assert "the head is better" in told.out
    assert "fitted on all 90 texts" in told.out and "\nhead kept: right on " in told.out
    assert SECRET not in told.out + told.err

    task = load_task(files.folder / "t2.toml")
    assert (task.head, task.calibration) == (files.folder / "t2.head.safetensors", "none")
    assert 'head = "t2.head.safetensors"' in (files.folder / "t2.toml").read_text()
    head = load_head(task.head)
    assert head.labels == ("billing", "technical", "account") and dict(head.notes)["rows"] == "90"

    unseen = rows(60, seed=1)
    pq.write_table(unseen, files.folder / "new.parquet")
    arguments = [files.folder / "new.parquet", files.folder / "out.parquet", "--task", files.folder / "t2.toml"]
    assert classify([str(argument) for argument in [*arguments, "--model", model, "--verify", 20]]) == 0
    labelled = pq.read_table(files.folder / "out.parquet")
    right = np.mean([label == truth for label, truth in zip(labelled["label"], labelled["truth"], strict=True)])
    assert right > 0.8, right


def test_a_head_is_refused_with_another_prompt(files, model, capsys):
    assert files("--head-only") == 0
    path = files.folder / "t2.toml"
    path.write_text(path.read_text().replace("Ticket: {text}", "Mail: {text}"))
    arguments = [files.folder / "in.parquet", files.folder / "out.parquet", "--task", path, "--model", model]
    assert classify([str(argument) for argument in arguments]) == 2
    assert "was fitted for another model, --dtype or prompt" in capsys.readouterr().err


def test_the_same_rows_give_the_same_files(files):
    assert files("--head-only") == 0
    first = [(files.folder / name).read_bytes() for name in ("t2.toml", "t2.head.safetensors")]
    assert files("--head-only", "--overwrite") == 0
    assert [(files.folder / name).read_bytes() for name in ("t2.toml", "t2.head.safetensors")] == first


def test_without_a_head_the_best_prompt_is_written(files, capsys):
    assert files("--no-head", "--no-examples", "--held-out", 0) == 0
    assert "\nhead" not in capsys.readouterr().out
    task = load_task(files.folder / "t2.toml")
    assert (task.head, task.examples) == (None, ())
    assert not (files.folder / "t2.head.safetensors").exists()


def test_labels_by_chance_leave_the_prompt(files, capsys):
    table = rows(60)
    shuffled = np.random.default_rng(5).permutation(table["truth"].to_pylist()).tolist()
    assert files(table=table.set_column(2, "truth", pa.array(shuffled))) == 0
    told = capsys.readouterr().out
    assert "the head is better" not in told


def test_too_few_rows_are_told(files, capsys):
    table = rows(11)
    assert files("--head-only", table=table) == 0
    told = capsys.readouterr().out
    assert "too few labelled texts (below 4 of a label): 'account' 3" in told
    assert "too few to tell good from bad" in told


def test_a_label_without_rows_gets_no_head(files, capsys):
    table = rows(30).filter(pa.array([place % 3 != 2 for place in range(30)]))
    assert files(table=table) == 0
    assert "no head: label 'account' has 0 texts to tune on" in capsys.readouterr().out
    assert load_task(files.folder / "t2.toml").head is None


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (
            ["billing"] * 8,
            "label 'technical' has 0 labelled texts, and a head needs at least 2 of each label; so",
        ),
        (["billing", "technical", "account", "billing"], "label 'technical' has 1 labelled text, and a head"),
        (["billing", "technical"] * 3 + ["account"], "label 'account' has 1 labelled text, and a head needs at least"),
    ],
)
def test_only_a_head_and_too_few_texts_for_it_is_told_and_nothing_is_written(files, capsys, labels, told):
    table = pa.table({"body": [f"text {place}" for place in range(len(labels))], "truth": labels})
    assert files("--head-only", table=table) == 65
    error, hint = capsys.readouterr().err.splitlines()
    assert told in error and "--head-only" in hint
    assert {path.name for path in files.folder.iterdir()} == {"t.toml", "in.parquet"}


def test_limits_that_were_chosen_for_the_prompt_are_left_out_with_a_head(files, capsys):
    limits = 'scoring = "sequence"\nmin_score = 0.9\nmin_margin = 0.2\ndefault_label = "billing"\n'
    (files.folder / "t.toml").write_text(limits + TASK)
    assert files("--head-only") == 0
    assert "left out of the task: min_score, min_margin, default_label, chosen for the" in capsys.readouterr().out
    task = load_task(files.folder / "t2.toml")
    assert (task.min_score, task.min_margin, task.default_label, task.scoring) == (0, 0, None, "auto")
    assert files("--no-head", "--overwrite", "--held-out", 0) == 0
    assert "left out" not in capsys.readouterr().out
    assert load_task(files.folder / "t2.toml").min_score == 0.9


def test_a_classifier_has_nothing_to_tune(files, capsys):
    classifier = save_tiny_classifier(files.folder / "classifier", "bert")
    assert files("--model", classifier) == 2
    told = capsys.readouterr()
    assert "has a head of its own for its classes" in told.err and "pipeline.evaluate" in told.err
    assert not (files.folder / "t2.toml").exists()


@pytest.mark.parametrize(("signum", "cause"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")])
def test_a_signal_ends_it_in_one_line_and_leaves_nothing(files, capsys, monkeypatch, signum, cause):
    monkeypatch.setattr("pipeline.tuning.choose.choose", lambda *_: os.kill(os.getpid(), signum))
    before = signal.signal(signum, signal.SIG_DFL)  # what the tests were started to ignore would stay ignored
    try:
        assert files() == 75
    finally:
        signal.signal(signum, before)
    assert capsys.readouterr().err == f"error: stopped by {cause}\nhint: run the same command again\n"
    assert {path.name for path in files.folder.iterdir()} == {"t.toml", "in.parquet"}


def test_blank_unlabelled_and_contradictory_rows_are_counted(files, capsys):
    table = rows(30).to_pydict()
    table["truth"][0] = None
    table["body"][1] = " "
    table["body"][4] = table["body"][3]
    table["body"][9] = table["body"][6]
    assert files("--head-only", table=pa.table(table)) == 0
    told = capsys.readouterr().out
    assert "25 labelled texts in 28 rows" in told
    assert "2 rows without label or text left out; 1 texts left out since their rows do not agree" in told


def test_any_number_of_labels_get_a_head_too(files, model, capsys):
    (files.folder / "t.toml").write_text('mode = "multi"\n' + TASK)
    rng = np.random.default_rng(0)
    truth = [[name for name in WORDS if rng.random() < 0.5] for _ in range(200)]
    texts = [
        " ".join([*(word for name in names for word in rng.choice(WORDS[name], 2)), *rng.choice(FILLER, 3)])
        for names in truth
    ]
    assert files(table=pa.table({"body": texts, "truth": pa.array(truth, pa.list_(pa.string()))})) == 0
    assert "the head is better" in capsys.readouterr().out
    assert load_head(files.folder / "t2.head.safetensors").multi
    arguments = [files.folder / "in.parquet", files.folder / "out.parquet", "--task", files.folder / "t2.toml"]
    assert classify([str(argument) for argument in [*arguments, "--model", model]]) == 0
    labelled = pq.read_table(files.folder / "out.parquet").to_pydict()
    pairs = list(zip(labelled["label"], labelled["truth"], strict=True))
    right = np.mean([(name in given) == (name in wanted) for given, wanted in pairs for name in WORDS])
    assert right > 0.75, right


def test_rows_of_a_csv_file_teach_as_well(files, model, capsys):
    rows(40).to_pandas().to_csv(files.folder / "rows.csv", index=False)
    flags = ["--truth", "truth", "--task", files.folder / "t.toml", "--model", model, "--head-only"]
    assert main([str(flag) for flag in [files.folder / "rows.csv", *flags, "-o", files.folder / "t3.toml"]]) == 0
    assert "40 labelled texts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (("--no-head", "--head-only"), 2, "--no-head and --head-only exclude each other"),
        (("--truth", "none"), 65, "--truth 'none' is not in the input"),
        (("--truth", "id"), 65, "--truth 'id' holds int64, not labels"),
        (("--truth", "body"), 2, "is a column of the text"),
        (("--truth", "Truth"), 65, "--truth 'Truth' is not in the input"),
        (("-o", "/nowhere/t2.toml"), 73, "there is no folder"),
        (("-o", "-"), 2, "-o '-' is no file"),
        (("--model", "/nowhere"), 69, "/nowhere"),
        (("--held-out", "2"), 2, "--held-out"),
        (("--max-rows", "0"), 2, "--max-rows"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(files, capsys, flags, exit_code, message):
    assert files(*flags) == exit_code
    told = capsys.readouterr().err
    assert message in told and told.startswith("error: ") and told.count("\n") == 2
    assert {path.name for path in files.folder.iterdir()} == {"t.toml", "in.parquet"}


def test_labels_that_the_task_does_not_have_are_counted_and_not_named(files, capsys):
    table = rows(30).set_column(2, "truth", pa.array([f"{SECRET} {place}" for place in range(30)]))
    assert files(table=table) == 65
    told = capsys.readouterr().err
    assert "holds values that are not labels of the task in 30 rows" in told and SECRET not in told


def test_what_exists_is_replaced_only_when_asked(files, capsys):
    (files.folder / "t2.head.safetensors").write_bytes(b"mine")
    assert files() == 73
    assert "t2.head.safetensors' exists already" in capsys.readouterr().err
    assert (files.folder / "t2.head.safetensors").read_bytes() == b"mine"


def test_a_fault_of_this_program_quotes_no_row(files, capsys, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr("pipeline.tuning.rows.text_frame", fail)
    assert files() == 70
    told = capsys.readouterr().err
    assert "internal error: ValueError at rows.py:" in told and SECRET not in told


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipeline.tune import main; main(['--help']); "
        "assert not {'torch', 'sklearn', 'transformers', 'polars'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "--truth" in done.stdout
