"""Folders and globs through the command line: every file on its own, failures told, nothing done twice."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.engine.load
from pipeline.classify import main
from pipeline.command.manifest import MANIFEST_NAME, Manifest
from pipeline.command.output_folder import LOCK_NAME
from pipeline.command.run import FOLDER_JOURNAL
from pipeline.errors import StorageError
from pipeline.head import LinearHead
from pipeline.parquet.sink import ParquetSink
from pipeline.prepare import Prepared
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.verify import spread

ROOT = Path(__file__).parents[1]
NOWHERE = "/there/is/no/such/model"  # a run that gets as far as the model ends with 69
TEXTS = [f"Ticket {i}: the invoice of May shows the wrong sum, {'please ' * (i % 5)}help" for i in range(12)]


def write(path: Path, n_rows: int = 4, column: str = "text", **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, column: TEXTS[:n_rows]}), path)
    return path


def files_in(folder: Path) -> list[str]:
    """All files but the manifest and the journal."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in found if name not in (MANIFEST_NAME, FOLDER_JOURNAL)]


class Night:
    """The command line in this process, from ``in`` to ``out``, with a tiny model unless told otherwise."""

    def __init__(self, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.input, self.output, self.metrics_path = folder / "in", folder / "out", folder / "metrics.json"
        self._model, self._capsys = model, capsys
        self.stdout = self.stderr = ""

    def run(self, *flags: object, source: object = None, output: object = None) -> int:
        words = [str(word) for word in (source or self.input, output or self.output, *flags)]
        model = [] if "--model" in words else ["--model", str(self._model)]
        self.metrics_path.unlink(missing_ok=True)
        exit_code = main([*words, *model, "--metrics", str(self.metrics_path)])
        self.stdout, self.stderr = self._capsys.readouterr()
        return exit_code

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads(self.metrics_path.read_text())
        return metrics

    @property
    def counts(self) -> tuple[int, int, int]:
        files = self.metrics["files"]
        return files["done"], files["skipped"], files["failed"]

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]

    @property
    def last_line(self) -> str:
        return self.stderr.splitlines()[-1]


@pytest.fixture
def night(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Night:
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        monkeypatch.delenv(name)
    return Night(tmp_path, tiny_model_folder, capsys)


# What comes out


def test_every_file_of_a_hive_folder_is_labelled_in_its_place_with_its_own_schema(night: Night) -> None:
    write(night.input / "dt=2024-01-01/part-0.parquet", 3, ticket_id=[1, 2, 3])
    write(night.input / "dt=2024-01-02/part-0.parquet", 2, column="Body", when=[1.5, None])
    write(night.input / "all.pq", 4)
    (night.input / "_SUCCESS").touch()
    (night.input / "dt=2024-01-01/.part-0.parquet.crc").touch()
    assert night.run("--score-column", "score") == 0, night.stderr
    assert files_in(night.output) == ["all.pq", "dt=2024-01-01/part-0.parquet", "dt=2024-01-02/part-0.parquet"]
    first, second = (night.output / f"dt=2024-01-0{day}/part-0.parquet" for day in (1, 2))
    assert pq.ParquetFile(first).schema_arrow.names == ["ticket_id", "text", "label", "score"]
    assert pq.ParquetFile(second).schema_arrow.names == ["when", "Body", "label", "score"]
    assert json.loads(pq.read_metadata(second).metadata[b"parquet_classify"])["text_columns"] == ["Body"]
    assert night.counts == (3, 0, 0)
    assert night.metrics["rows"] == 9
    assert sum(night.metrics["label_rows"].values()) == 9
    assert night.metrics["text_columns"] == ["text", "Body"]
    assert "text from column text in 2 files" in night.stderr
    assert night.last_line == f"done: {night.output}: 3 files labelled"


def test_labels_are_those_of_each_file_alone(night: Night, tmp_path: Path) -> None:
    write(night.input / "a.parquet", 12)
    write(night.input / "b.parquet", 5)
    assert night.run() == 0
    assert night.run(source=night.input / "b.parquet", output=tmp_path / "b.parquet") == 0
    assert night.metrics["files"] is None
    assert pq.read_table(night.output / "b.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


def test_a_glob_writes_a_folder_even_for_one_file(night: Night) -> None:
    write(night.input / "dt=1/a.parquet")
    write(night.input / "dt=2/b.parquet")
    assert night.run(source=night.input / "dt=1" / "*.parquet") == 0
    assert files_in(night.output) == ["a.parquet"]
    assert night.run(source=f"{night.input}/**/*.parquet") == 0
    assert files_in(night.output) == ["a.parquet", "dt=1/a.parquet", "dt=2/b.parquet"]
    assert night.counts == (2, 0, 0)


def test_limit_counts_in_each_file(night: Night) -> None:
    write(night.input / "a.parquet", 4)
    write(night.input / "b.parquet", 2)
    assert night.run("--limit", 3) == 0
    assert [pq.read_metadata(night.output / name).num_rows for name in ("a.parquet", "b.parquet")] == [3, 2]


# One that fails


def test_a_broken_file_is_told_and_the_others_go_on(night: Night) -> None:
    write(night.input / "a.parquet")
    (night.input / "d").mkdir()
    broken = night.input / "d/b.parquet"
    broken.write_bytes(b"PAR1 half a file")
    write(night.input / "e.parquet", column="words")
    write(night.input / "c.parquet")
    assert night.run() == 65
    assert files_in(night.output) == ["a.parquet", "c.parquet"]
    assert not (night.output / "d").exists()
    assert night.counts == (2, 0, 2)
    assert len(night.errors) == 2
    assert night.errors[0].startswith(f"error: input {str(broken)!r} is truncated")
    assert night.errors[1].startswith(f"error: {night.input / 'e.parquet'}: no text column")
    assert [failure["exit_code"] for failure in night.metrics["failures"]] == [65, 65]
    assert night.metrics["failures"][0]["input"] == str(broken)
    assert night.metrics["exit_code"] == 65
    assert night.last_line.endswith("2 files labelled, 2 failed")

    write(broken)
    os.remove(night.input / "e.parquet")
    assert night.run() == 0
    assert night.counts == (1, 2, 0)
    assert files_in(night.output) == ["a.parquet", "c.parquet", "d/b.parquet"]


def test_the_exit_code_is_the_largest_of_the_failures(night: Night) -> None:
    write(night.input / "a.parquet").write_bytes(b"")
    write(night.input / "b.parquet")
    (night.input / "c.parquet").symlink_to("nowhere")
    write(night.output / "b.parquet")
    assert night.run("--model", NOWHERE) == 73
    assert [failure["exit_code"] for failure in night.metrics["failures"]] == [65, 73, 66]
    assert "was not made from this input in this way" in night.stderr
    assert night.last_line.endswith("0 files labelled, 3 failed")


def test_the_model_is_not_loaded_if_no_file_is_left(night: Night) -> None:
    write(night.input / "a.parquet").write_bytes(b"x")
    assert night.run("--model", NOWHERE) == 65
    assert not night.output.exists()


def test_a_model_that_is_missing_leaves_nothing(night: Night) -> None:
    write(night.input / "d/a.parquet")
    assert night.run("--model", NOWHERE) == 69
    assert not night.output.exists()


def test_a_file_that_turns_out_broken_midway_is_taken_out_of_the_counts(night: Night) -> None:
    write(night.input / "a.parquet", 12)
    long = pa.table({"text": [*TEXTS, "a very long ticket " * 300]})
    pq.write_table(long, night.input / "b.parquet", row_group_size=4)
    write(night.input / "c.parquet", 2)
    assert night.run("--overlong", "fail", "--max-tokens", 400, "--buffer-rows", 4) == 3
    assert files_in(night.output) == ["a.parquet", "c.parquet"]
    assert night.metrics["rows"] == 14
    assert sum(night.metrics["label_rows"].values()) == 14
    assert night.metrics["failures"][0]["error"].startswith(str(night.input / "b.parquet"))


def test_a_full_disk_ends_the_run(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet")

    def fail(*_: object) -> None:
        raise StorageError("writing output failed: no space left on device")

    monkeypatch.setattr(ParquetSink, "write", fail)
    assert night.run() == 74
    assert night.counts == (0, 0, 0)
    assert [path.name for path in night.output.iterdir()] == [FOLDER_JOURNAL], "what was scored is not lost"


def test_an_output_that_is_in_the_way_is_that_files_fault(night: Night) -> None:
    write(night.input / "d/a.parquet")
    write(night.input / "e/a.parquet")
    write(night.input / "f.parquet")
    (night.output / "f.parquet").mkdir(parents=True)
    (night.output / "d").touch()
    assert night.run() == 73
    assert night.counts == (1, 0, 2)
    assert files_in(night.output) == ["d", "e/a.parquet"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_may_not_be_written_to_is_73(night: Night) -> None:
    write(night.input / "a.parquet")
    night.output.mkdir()
    night.output.chmod(0o500)
    assert night.run("--model", NOWHERE) == 73


# Refusals of the whole run


def test_the_output_is_not_the_input_nor_in_it(night: Night) -> None:
    write(night.input / "a.parquet")
    assert night.run("--model", NOWHERE, output=night.input) == 73
    assert night.run("--model", NOWHERE, "--overwrite", output=night.input / "out") == 73
    assert files_in(night.input) == ["a.parquet"]


def test_an_output_that_is_a_file_is_73(night: Night) -> None:
    write(night.input / "a.parquet")
    night.output.touch()
    assert night.run("--model", NOWHERE) == 73
    assert night.output.is_file()


def test_an_output_folder_below_nothing_is_73(night: Night) -> None:
    write(night.input / "a.parquet")
    assert night.run("--model", NOWHERE, output=night.output / "deeper") == 73
    assert not night.output.exists()


def test_a_folder_or_glob_without_files_is_66(night: Night) -> None:
    night.input.mkdir()
    assert night.run("--model", NOWHERE) == 66
    assert night.run("--model", NOWHERE, source=night.input / "*.parquet") == 66
    assert not night.output.exists()


def test_wrong_flags_are_told_once(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet")
    assert night.run("--model", NOWHERE, "--score-column", "label") == 2
    assert len(night.errors) == 1


# What is not done twice


def test_finished_files_are_skipped(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "d/b.parquet")
    assert night.run() == 0
    before = (night.output / "d/b.parquet").stat().st_mtime_ns
    for flags in ([], ["--overwrite"], ["--buffer-rows", "2", "--engine", "single"]):
        assert night.run(*flags) == 0, night.stderr
        assert night.counts == (0, 2, 0)
    assert night.metrics["rows"] == 0
    assert (night.output / "d/b.parquet").stat().st_mtime_ns == before
    assert night.last_line.endswith("0 files labelled, 2 finished before")


def test_a_new_file_is_added_to_those_finished(night: Night) -> None:
    write(night.input / "dt=1/a.parquet")
    assert night.run() == 0
    write(night.input / "dt=2/a.parquet")
    assert night.run() == 0
    assert night.counts == (1, 1, 0)


def test_a_changed_input_is_done_again_with_overwrite_only(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet")
    assert night.run() == 0
    write(night.input / "b.parquet", 7)
    assert night.run("--model", NOWHERE) == 69  # for the other one, which needs the model to know
    assert night.run() == 73
    assert night.counts == (0, 1, 1)
    assert "b.parquet' exists already, and was not made from this input in this way" in night.errors[0]
    assert pq.read_metadata(night.output / "b.parquet").num_rows == 4
    assert night.run("--overwrite") == 0
    assert night.counts == (1, 1, 0)
    assert pq.read_metadata(night.output / "b.parquet").num_rows == 7


@pytest.mark.parametrize(
    "flags", [["--label-column", "x"], ["--labels", "yes,no"], ["--limit", "2"], ["--min-score", "0.9"]]
)
def test_changed_settings_do_all_again_with_overwrite_only(flags: list[str], night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet")
    assert night.run() == 0
    assert night.run(*flags) == 73
    assert night.counts == (0, 0, 2)
    assert night.run(*flags, "--overwrite") == 0
    assert night.counts == (2, 0, 0)


def test_a_deleted_output_is_done_again_and_a_changed_one_with_overwrite(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet")
    assert night.run() == 0
    (night.output / "a.parquet").unlink()
    assert night.run() == 0
    assert night.counts == (1, 1, 0)
    with (night.output / "a.parquet").open("ab") as file:
        file.write(b"x")
    assert night.run() == 73
    assert night.run("--overwrite") == 0
    assert night.counts == (1, 1, 0)


def test_a_damaged_manifest_is_as_none(night: Night) -> None:
    write(night.input / "a.parquet")
    assert night.run() == 0
    (night.output / MANIFEST_NAME).write_text("{")
    assert night.run() == 73
    assert "warning: " in night.stderr
    assert night.run("--overwrite") == 0
    assert night.counts == (1, 0, 0)
    assert night.run() == 0
    assert night.counts == (0, 1, 0)


# Kills, signals, two runs


class Killed(BaseException):
    """Nothing runs after it but what a dying process leaves anyway."""


@pytest.mark.parametrize("moment", ["begin", "finish"])
def test_a_run_killed_around_a_commit_goes_on_where_it_was(
    moment: str, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the second output appears, or after it has and before that is written down."""
    for name in ("a", "b", "c"):
        write(night.input / f"{name}.parquet")
    step = getattr(Manifest, moment)

    def killed_at_b(manifest: Manifest, file: str, *how: Any) -> Any:
        if file == "b.parquet":
            raise Killed
        return step(manifest, file, *how)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, moment, killed_at_b)
        assert night.run() == 70
    done_before = {"begin": ["a.parquet"], "finish": ["a.parquet", "b.parquet"]}[moment]
    assert files_in(night.output) == done_before
    assert night.run() == 0, night.stderr
    assert night.counts == (3 - len(done_before), len(done_before), 0)
    assert night.run() == 0
    assert night.counts == (0, 3, 0)


def test_another_file_in_the_place_of_an_output_that_never_appeared_is_not_taken_for_it(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as finished, with whatever labels it had, or none."""
    write(night.input / "a.parquet")

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "commit", killed)
        assert night.run() == 70
    assert night.run("--labels", "red,green", source=night.input / "a.parquet", output=night.output / "a.parquet") == 0
    assert night.run() == 73
    assert night.counts == (0, 0, 1)
    write(night.output / "a.parquet")
    assert night.run() == 73
    assert night.run("--overwrite") == 0
    assert night.counts == (1, 0, 0)


def test_a_rerun_where_the_input_tells_no_times_says_so(night: Night, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.write(write(night.input / "a.parquet"), "in/a.parquet")
    source = f"zip://in::file://{tmp_path}/in.zip"
    assert night.run(source=source) == 0, night.stderr
    assert night.run(source=source) == 73
    assert "tells no times" in night.stderr
    assert night.run("--overwrite", source=source) == 0


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_and_the_next_goes_on(
    signum: signal.Signals, exit_code: int, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the first output is put in its place, which is finished and written down."""
    for name in ("a", "b"):
        write(night.input / f"{name}.parquet")
    commit = ParquetSink.commit

    def interrupted_commit(sink: ParquetSink, metadata: Any = None) -> None:
        os.kill(os.getpid(), signum)
        commit(sink, metadata)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "commit", interrupted_commit)
        assert night.run() == exit_code
    signal.signal(signal.SIGINT, before)
    assert "holds what was finished: 1 file labelled" in night.stderr
    assert files_in(night.output) == ["a.parquet"]
    assert night.run() == 0
    assert night.counts == (1, 1, 0)


def test_a_run_that_is_killed_goes_on_where_it_was(night: Night, tiny_model_folder: Path) -> None:
    """A real process and SIGKILL, which nothing can clean up after."""
    for i in range(60):
        write(night.input / f"{i:02}.parquet", 12)
    command = [sys.executable, "-m", "pipeline.classify", str(night.input), str(night.output)]
    process = subprocess.Popen(
        [*command, "--model", str(tiny_model_folder), "--engine", "single"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (night.output / "02.parquet").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    n_done = len(list(night.output.glob("*.parquet")))
    assert 3 <= n_done < 60
    assert night.run() == 0, night.stderr
    assert night.counts == (60 - n_done, n_done, 0)
    assert files_in(night.output) == [f"{i:02}.parquet" for i in range(60)]


def test_a_second_run_is_refused_while_the_first_lives(night: Night) -> None:
    write(night.input / "a.parquet")
    night.output.mkdir()
    with (night.output / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert night.run("--model", NOWHERE) == 73
        assert "another run is writing into output" in night.stderr
    assert night.run() == 0  # a crashed run leaves the file, and no lock
    assert files_in(night.output) == ["a.parquet"]


# Verify, dry run, messages


def test_texts_to_verify_are_spread_over_the_rows_of_all_files() -> None:
    assert spread(4, [10, 10]) == [2, 2]
    assert spread(1, [10, 90, 10]) == [0, 1, 0]
    assert spread(3, [0, 1, 0, 8]) == [0, 0, 0, 3]
    assert spread(9, [1, 2]) == [3, 6]
    assert spread(0, [5, 5]) == [0, 0]
    assert spread(5, [0, 0]) == [0, 0]
    assert spread(5, []) == []


def test_verify_counts_over_all_files(night: Night) -> None:
    write(night.input / "a.parquet", 12)
    write(night.input / "b.parquet", 1)
    write(night.input / "c.parquet", 12)
    assert night.run("--verify", 6) == 0
    assert night.metrics["verify"]["n_texts"] == 6
    assert night.stderr.count("verify: ") == 1


def test_a_file_that_fails_its_verification_is_not_written(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    write(night.input / "a.parquet", 12)
    write(night.input / "b.parquet", 2)
    score = Stage._score

    def wrong(stage: Stage, prepared: Prepared, stats: RunStats) -> None:
        score(stage, prepared, stats)
        if prepared.table.num_rows > 3:  # the small file has fewer
            prepared.scores[:] = prepared.scores[:, ::-1]

    monkeypatch.setattr(Stage, "_score", wrong)
    assert night.run("--verify", 28) == 3
    assert files_in(night.output) == ["b.parquet"]
    assert night.metrics["verify"]["wrong_rows"]
    assert night.counts == (1, 0, 1)
    assert night.metrics["failures"][0]["error"].startswith(f"{night.input / 'a.parquet'}: --verify 24: ")


def test_a_dry_run_lists_the_files_and_writes_nothing(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "d/b.parquet", 12)
    assert night.run() == 0
    write(night.input / "c.parquet", 2)
    write(night.input / "d/b.parquet", 11)
    (night.input / "e.parquet").touch()
    assert night.run("--model", NOWHERE, "--overwrite", "--dry-run") == 65
    assert night.stdout.startswith("dry run: nothing was written\n")
    assert "\n 4 rows  a.parquet  (finished before" in night.stdout
    assert "\n 2 rows  c.parquet  (would be created)" in night.stdout
    assert "\n11 rows  d/b.parquet  (would be replaced)" in night.stdout
    assert "is empty (0 bytes)" in night.errors[0]
    assert files_in(night.output) == ["a.parquet", "d/b.parquet"]
    assert night.run("--model", NOWHERE, "--dry-run", output=night.output.parent / "new") == 65
    assert not (night.output.parent / "new").exists()


@pytest.mark.parametrize(
    ("toml", "scoring", "calibration"),
    [
        ('calibration = "batch"\nscoring = "sequence"\nmin_score = 0.5', "sequence", "batch"),
        ('calibration = "batch"\nmode = "multi"\n[thresholds]\nbilling = 0.7', "'yes' against 'no'", "batch"),
        ('calibration = "batch"\nhead = "h.safetensors"', "head ", "none"),
    ],
)
def test_a_dry_run_says_of_many_files_what_it_says_of_one(
    night: Night, tmp_path: Path, toml: str, scoring: str, calibration: str
) -> None:
    write(night.input / "a.parquet")
    (tmp_path / "t.toml").write_text(toml)
    weights, labels = np.zeros((3, 2), np.float32), ("billing", "technical", "account")
    LinearHead(weights, weights[:, 0], labels, multi=False, fitted_for="").save(tmp_path / "h.safetensors")
    flags = ("--task", tmp_path / "t.toml", "--score-column", "p", "--model", NOWHERE, "--dry-run")
    assert night.run(*flags) == 0, night.stderr
    of_many = said_in(night.stdout)
    assert night.run(*flags, source=night.input / "a.parquet", output=tmp_path / "a.parquet") == 0, night.stderr
    of_one = said_in(night.stdout)
    assert {name: of_many[name] for name in of_one} == of_one
    assert of_one["scoring"].startswith(scoring)
    assert of_one["calibration"] == calibration
    assert ("at least" in of_one, "thresholds" in of_one) == ("min_score" in toml, "multi" in toml)


def said_in(plan: str) -> dict[str, str]:
    """What a dry run says that is the same for any file: facts by name, and the prompt."""
    lines = (line.split("  ", 1) for line in plan.partition("system turn:")[0].splitlines())
    facts = {words[0]: words[1].strip() for words in lines if len(words) == 2 and words[0]}
    for name in ("input", "rows", "output"):
        del facts[name]
    return facts | {"prompt": plan[plan.index("system turn:") :]}


def test_messages_for_machines_name_the_file(night: Night) -> None:
    write(night.input / "a.parquet")
    write(night.input / "b.parquet").write_bytes(b"x")
    assert night.run("--log-format", "json") == 65
    messages = [json.loads(line) for line in night.stderr.splitlines()]
    (error,) = [message for message in messages if message["level"] == "error"]
    assert (error["input"], error["exit_code"]) == (str(night.input / "b.parquet"), 65)
    assert messages[-1]["message"] == "done"
    assert messages[-1]["summary"]["files"] == {"done": 1, "skipped": 0, "failed": 1}


def test_the_model_is_loaded_once(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        write(night.input / f"{i}.parquet")
    loads: list[str] = []
    load = pipeline.engine.load.load_model

    def counted(name: str, **how: Any) -> Any:
        loads.append(name)
        return load(name, **how)

    monkeypatch.setattr(pipeline.engine.load, "load_model", counted)
    assert night.run() == 0
    assert len(loads) == 1


def test_files_are_not_kept_open_while_others_are_at_work(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few descriptors that all files at once would not fit."""
    import resource

    for i in range(80):
        write(night.input / f"{i}.parquet", 1)
    assert night.run("--limit", 1) == 0  # whatever opens once is open now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 40, hard))
    try:
        assert night.run("--overwrite") == 0, night.stderr
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert night.counts == (80, 0, 0)
