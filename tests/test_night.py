"""A night that breaks loses nothing: killed, stopped, out of luck with its data, and told to run again."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from pipeline.classify import main
from pipeline.command.flags import row_limit
from pipeline.engine.packed import PackedEngine

ROOT = Path(__file__).parents[1]
WORDS = ("refund", "invoice", "crash", "login", "the", "a", "my", "account", "error", "when", "was", "twice", "screen")
BUFFER_ROWS = 40


def tickets(n_rows: int, seed: int = 0) -> list[str]:
    """Distinct tickets."""
    chance = random.Random(seed)
    return [f"{i}: {' '.join(chance.choices(WORDS, k=chance.randint(1, 60)))}" for i in range(n_rows)]


def write(path: Path, texts: list[str | None], **how: Any) -> Path:
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, **how)
    return path


class Night:
    """The command line with a tiny model: in this process, or in one of its own to be killed."""

    def __init__(self, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.metrics_path = folder, folder / "metrics.json"
        self.model, self._capsys = model, capsys
        self.stderr = ""

    def arguments(self, source: Path, output: Path, *flags: object) -> list[str]:
        common = ("--model", self.model, "--buffer-rows", BUFFER_ROWS, "--score-column", "score", "--progress", "none")
        return [str(word) for word in (source, output, *common, "--metrics", self.metrics_path, *flags)]

    def run(self, source: Path, output: Path, *flags: object) -> int:
        self.metrics_path.unlink(missing_ok=True)
        exit_code = main(self.arguments(source, output, *flags))
        self.stderr = self._capsys.readouterr().err
        return exit_code

    @contextlib.contextmanager
    def started(self, source: Path, output: Path, *flags: object) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "pipeline.classify", *self.arguments(source, output, *flags)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            yield process

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads(self.metrics_path.read_text())
        return metrics

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path != self.metrics_path)


@pytest.fixture
def night(tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Night:
    return Night(tmp_path, tiny_model_folder, capsys)


def assert_same(output: Path, expected: Path) -> None:
    """Every row in its place with its label; scores but for the rounding of passes of other sizes."""
    ours, theirs = pq.read_table(output), pq.read_table(expected)
    assert ours.drop_columns("score").equals(theirs.drop_columns("score"))
    np.testing.assert_allclose(np.array(ours["score"], float), np.array(theirs["score"], float), atol=1e-5)


# --- interrupted ------------------------------------------------------------------------------------------------------

N_ROWS = 2000
N_WORKERS = 2
MOST_PASSES = 5  # of a run before it is killed, so that a fast machine does not finish in between


def run_doomed(arguments: list[str], signum: int, seconds: float, log: str) -> None:
    """A run, in a process of its own, that gets a signal at some moment after its first pass."""
    import pipeline.stage

    torch.set_num_threads(N_WORKERS)
    score_bucket, passes = pipeline.passes.score_bucket, itertools.count(1)

    def counted(engine: Any, bucket: Any) -> Any:
        with open(log, "a") as file:
            file.write(f"{len(bucket.rows)}\n")
        n_passes = next(passes)
        if n_passes == 1:
            threading.Timer(seconds, os.kill, (os.getpid(), signum)).start()
        if n_passes > MOST_PASSES:
            os.kill(os.getpid(), signum)
        return score_bucket(engine, bucket)

    pipeline.passes.score_bucket = counted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # as a process ends, without waiting for the timer
    os._exit(main(arguments))


@pytest.fixture(scope="module")
def processes() -> Any:
    """Starts processes within milliseconds: from one that has imported everything, and used nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_night", "pipeline.build", "pipeline.engine.load", "pipeline.verify"])
    return context


@pytest.mark.parametrize(
    ("signum", "n_times", "exit_code"),
    [(signal.SIGKILL, 50, -signal.SIGKILL), (signal.SIGTERM, 10, 75), (signal.SIGINT, 10, 130)],
)
def test_a_run_that_is_ended_again_and_again_gives_the_labels_of_one_that_is_not(
    signum: signal.Signals, n_times: int, exit_code: int, night: Night, processes: Any
) -> None:
    """And what was scored is not scored again: at most a buffer is lost each time, when it is told to stop nothing."""
    path, output, log = write(night.folder / "in.parquet", tickets(N_ROWS)), night.folder / "out.parquet", "passes"
    flags = ("--calibration", "none")
    chance = random.Random(int(signum))
    for _ in range(n_times):
        arguments = night.arguments(path, output, *flags)
        process = processes.Process(
            target=run_doomed, args=(arguments, signum, chance.uniform(0, 0.5), str(night.folder / log))
        )
        process.start()
        process.join(120)
        assert process.exitcode == exit_code
        assert not output.exists()
    assert night.run(path, output, *flags) == 0, night.stderr
    assert night.names() == ["in.parquet", "out.parquet", log]
    n_doomed = sum(map(int, (night.folder / log).read_text().split()))
    n_twice = n_doomed + night.metrics["texts"] - N_ROWS
    assert night.run(path, night.folder / "calm.parquet", *flags, "--no-cache") == 0
    assert_same(output, night.folder / "calm.parquet")
    assert n_doomed > 5 * n_times, "the runs that ended did work, too"
    # told to stop, it loses the passes that its workers are at
    assert 0 <= n_twice <= n_times * (BUFFER_ROWS if signum == signal.SIGKILL else BUFFER_ROWS // 2)


def test_two_runs_cannot_write_one_output(night: Night) -> None:
    """The second is refused while the first lives; what a killed one leaves behind is no lock."""
    path, output = write(night.folder / "in.parquet", tickets(N_ROWS)), night.folder / "out.parquet"
    with night.started(path, output) as first:
        wait_for(night.folder / ".out.parquet.scores")
        assert night.run(path, output) == 73
        assert "another run is writing output" in night.stderr
        first.kill()
    assert ".out.parquet.partial" in night.names()
    assert night.run(path, output, "--limit", 20) == 0
    assert night.names() == ["in.parquet", "out.parquet"]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} after a minute"
        time.sleep(0.02)


# --- duplicates and caches --------------------------------------------------------------------------------------------


def test_of_a_file_with_60_percent_duplicates_40_percent_go_to_the_model(night: Night) -> None:
    texts = tickets(400)
    rows = [*texts, *random.Random(1).choices(texts, k=600)]
    random.Random(2).shuffle(rows)
    path = write(night.folder / "in.parquet", rows)
    assert night.run(path, night.folder / "out.parquet") == 0
    assert night.metrics["rows"] == 1000
    assert night.metrics["texts"] == 400
    assert night.run(path, night.folder / "alone.parquet", "--no-cache") == 0
    assert night.metrics["texts"] > 400
    assert_same(night.folder / "out.parquet", night.folder / "alone.parquet")


def test_a_cache_serves_the_next_night_and_other_tasks_have_their_own_part(night: Night) -> None:
    first, second = tickets(100), tickets(150)
    cache = ("--cache", night.folder / "cache.db")
    assert night.run(write(night.folder / "1.parquet", first), night.folder / "o1.parquet", *cache) == 0
    assert (night.metrics["texts"], night.metrics["known_texts"]) == (100, 0)
    path = write(night.folder / "2.parquet", second)
    assert night.run(path, night.folder / "o2.parquet", *cache) == 0
    assert (night.metrics["texts"], night.metrics["known_texts"]) == (50, 100)
    assert night.run(path, night.folder / "o3.parquet", *cache, "--labels", "red,green") == 0
    assert (night.metrics["texts"], night.metrics["known_texts"]) == (150, 0)
    assert night.run(path, night.folder / "o4.parquet", *cache) == 0
    assert night.metrics["texts"] == 0
    assert_same(night.folder / "o4.parquet", night.folder / "o2.parquet")
    assert night.run(path, night.folder / "o5.parquet", "--no-cache") == 0
    assert_same(night.folder / "o5.parquet", night.folder / "o2.parquet")
    outputs = [f"o{i}.parquet" for i in range(1, 6)]
    assert night.names() == ["1.parquet", "2.parquet", "cache.db", *outputs], "and no journals"


def test_two_processes_share_one_cache_on_overlapping_inputs(night: Night) -> None:
    texts, cache = tickets(900), ("--cache", night.folder / "cache.db")
    runs = [
        night.started(write(night.folder / f"{i}.parquet", part), night.folder / f"o{i}.parquet", *cache)
        for i, part in enumerate((texts[:600], texts[300:][::-1]))
    ]
    with runs[0] as first, runs[1] as second:
        errors = [process.communicate(timeout=120)[1] for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0], errors
    assert "lock" not in "".join(errors)
    for i in range(2):
        assert night.run(night.folder / f"{i}.parquet", night.folder / f"calm{i}.parquet", "--no-cache") == 0
        assert_same(night.folder / f"o{i}.parquet", night.folder / f"calm{i}.parquet")


@pytest.mark.parametrize("place", ["in.parquet", "text.db", "."])
def test_a_cache_that_is_something_else_is_refused_before_the_model_loads(night: Night, place: str) -> None:
    path = write(night.folder / "in.parquet", tickets(10))
    (night.folder / "text.db").write_text("not a database, but somebody's notes\n" * 50)
    before = (night.folder / "text.db").read_bytes()
    exit_code = night.run(path, night.folder / "out.parquet", "--cache", night.folder / place)
    assert exit_code == {"in.parquet": 2, "text.db": 65, ".": 73}[place]
    assert "loading model" not in night.stderr
    assert night.stderr.splitlines()[-1].startswith("hint: ")
    assert (night.folder / "text.db").read_bytes() == before
    assert night.names() == ["in.parquet", "text.db"]


def test_a_damaged_journal_is_moved_aside_and_the_run_goes_on(night: Night) -> None:
    path, output = write(night.folder / "in.parquet", tickets(100)), night.folder / "out.parquet"
    (night.folder / ".out.parquet.scores").write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert night.run(path, output) == 0
    assert "warning: the store of scores" in night.stderr
    assert night.names() == [".out.parquet.scores.damaged", "in.parquet", "out.parquet"]


def test_scores_that_proved_wrong_are_not_used_by_the_next_run(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """--verify failed, the hint said --engine single, and that run would have found the same wrong scores."""
    path, output = write(night.folder / "in.parquet", tickets(60)), night.folder / "out.parquet"
    cache = ("--cache", night.folder / "cache.db")
    score = PackedEngine.score
    monkeypatch.setattr(
        PackedEngine, "score", lambda self, bucket: score(self, bucket)[:: -1 if len(bucket.rows) > 3 else 1]
    )
    for how in ((), cache):
        assert night.run(path, output, *how, "--verify", 60, "--engine", "packed") == 3
        assert night.run(path, output, *how, "--verify", 60, "--engine", "single") == 0, night.stderr
        assert night.metrics["texts"] == 60
        output.unlink()


# --- faults in the data -----------------------------------------------------------------------------------------------


def corrupt_page(path: Path, group: int, column: int) -> None:
    """Flip bytes in the middle of a column chunk's only page."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    start = chunk.data_page_offset
    content = bytearray(path.read_bytes())
    middle = start + chunk.total_compressed_size // 2
    content[middle : middle + 40] = bytes(255 - byte for byte in content[middle : middle + 40])
    path.write_bytes(content)


def test_a_corrupt_page_is_named_and_what_was_scored_before_it_is_kept(night: Night) -> None:
    texts = tickets(300)
    how = {"row_group_size": 100, "use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
    path, output = write(night.folder / "in.parquet", texts, **how), night.folder / "out.parquet"
    sound = path.read_bytes()
    corrupt_page(path, 2, 1)
    assert night.run(path, output) == 65
    error = night.stderr.splitlines()[-2]
    assert str(path) in error and "row group 2" in error and "'text'" in error
    assert night.names() == [".out.parquet.scores", "in.parquet"]
    path.write_bytes(sound)
    assert night.run(path, output) == 0
    assert night.metrics["known_texts"] >= 200 - BUFFER_ROWS
    assert night.metrics["texts"] + night.metrics["known_texts"] == 300


def some_nan(folder: Path, model: Path) -> Path:
    """A model whose scores are not finite for texts with one of the tokenizer's tokens."""
    lm = transformers.AutoModelForCausalLM.from_pretrained(model)
    words = transformers.AutoTokenizer.from_pretrained(model)
    (token,) = words.encode("%", add_special_tokens=False)
    with torch.no_grad():
        lm.get_input_embeddings().weight[token] = torch.nan
    lm.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("allowed", "exit_code"),
    [(None, 3), ("0", 3), ("4", 3), ("5", 0), ("100%", 0), ("12.5%", 0), ("12.4%", 3)],
)
def test_max_failed_decides_between_going_on_and_an_end(
    night: Night, tiny_model_folder: Path, allowed: str | None, exit_code: int
) -> None:
    texts = tickets(40)
    for row in (3, 11, 12, 30, 39):
        texts[row] += " 100 % wrong"
    path, output = write(night.folder / "in.parquet", texts), night.folder / "out.parquet"
    night.model = some_nan(night.folder / "model", tiny_model_folder)
    flags = ["--status-column", "status", *([] if allowed is None else ["--max-failed", allowed])]
    assert night.run(path, output, *flags) == exit_code, night.stderr
    if exit_code == 0:
        out = pl.read_parquet(output)
        failed = out.filter(pl.col("status") == "failed")
        assert failed["id"].to_list() == [3, 11, 12, 30, 39]
        assert failed["label"].null_count() == failed["score"].null_count() == 5
        assert out.filter(pl.col("status") == "ok")["label"].null_count() == 0
        assert night.metrics["status_rows"]["failed"] == 5
    else:
        error, hint = night.stderr.splitlines()[-2:]
        assert "5 of 40 rows have no finite scores" in error and "3, 11, 12, 30, 39" in error
        assert f"--max-failed {allowed or 0} " in error and "--max-failed" in hint
        assert not output.exists()
        assert ".out.parquet.scores" in night.names(), "the other 35 are kept"


@pytest.mark.parametrize("value", ["-1", "1.5", "101%", "%", "many", "0x3", ""])
def test_a_max_failed_that_is_no_number_is_refused(night: Night, value: str) -> None:
    path = write(night.folder / "in.parquet", tickets(1))
    assert night.run(path, night.folder / "out.parquet", "--max-failed", value) == 2
    assert f"--max-failed: {value!r} is neither" in night.stderr


def test_a_run_that_ends_before_anything_was_scored_leaves_nothing(night: Night) -> None:
    path = write(night.folder / "in.parquet", ["x" * 5000])
    assert night.run(path, night.folder / "out.parquet", "--overlong", "fail", "--max-tokens", 300) == 3
    assert night.names() == ["in.parquet"]


def test_cache_and_no_cache_exclude_each_other(night: Night) -> None:
    path = write(night.folder / "in.parquet", tickets(1))
    assert night.run(path, night.folder / "out.parquet", "--cache", night.folder / "c.db", "--no-cache") == 2
    assert "exclude each other" in night.stderr


# --- files that must not be mistaken for another's --------------------------------------------------------------------


def test_metrics_never_replace_anything_but_metrics(night: Night) -> None:
    """Of a folder, an input or an output would have been overwritten, with exit code 0."""
    for name in ("a", "b"):
        (night.folder / "in").mkdir(exist_ok=True)
        write(night.folder / "in" / f"{name}.parquet", tickets(5))
    before = (night.folder / "in" / "a.parquet").read_bytes()
    source, output = night.folder / "in", night.folder / "out"
    output.mkdir()
    night.metrics_path = source / "a.parquet"
    assert main(night.arguments(source, output)) == 73
    assert night.metrics_path.read_bytes() == before
    night.metrics_path = output / "b.parquet"  # which is yet to be
    assert main(night.arguments(source, output)) == 73
    assert pq.read_metadata(output / "b.parquet").num_rows == 5
    night.metrics_path = output / ".parquet_classify.json"
    assert main(night.arguments(source, output)) == 2
    night.metrics_path = night.folder / "metrics.json"
    for _ in range(2):
        assert main(night.arguments(source, output)) == 0
    assert night.metrics["files"] == {"done": 0, "skipped": 2, "failed": 0}


@pytest.mark.parametrize("name", [".out.parquet.partial", ".out.parquet.scores", ".parquet_classify.lock"])
def test_a_cache_is_none_of_the_programs_own_files(night: Night, name: str) -> None:
    path = write(night.folder / "in.parquet", tickets(5))
    assert night.run(path, night.folder / "out.parquet", "--cache", night.folder / name) == 2
    assert "a name of this program's own" in night.stderr


def test_a_cache_called_memory_is_a_file(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(night.folder / "in.parquet", tickets(5))
    monkeypatch.chdir(night.folder)
    assert night.run(path, night.folder / "out.parquet", "--cache", ":memory:") == 0
    assert ":memory:" in night.names()


def test_a_flag_wins_over_the_variable_of_its_opposite(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(night.folder / "in.parquet", tickets(5)), night.folder / "c.db"
    monkeypatch.setenv("PIPELINE_CACHE", str(cache))
    assert night.run(path, night.folder / "a.parquet", "--no-cache") == 0
    assert not cache.exists()
    assert night.run(path, night.folder / "b.parquet") == 0
    assert cache.exists()
    monkeypatch.delenv("PIPELINE_CACHE")
    monkeypatch.setenv("PIPELINE_NO_CACHE", "1")
    assert night.run(path, night.folder / "c.parquet", f"--cache={cache}") == 0
    assert night.metrics["known_texts"] == 5


def test_a_dry_run_finds_a_cache_and_metrics_that_cannot_be(night: Night) -> None:
    path, nowhere = write(night.folder / "in.parquet", tickets(5)), night.folder / "no" / "folder"
    assert night.run(path, night.folder / "out.parquet", "--dry-run", "--cache", nowhere) == 73
    assert night.run(path, night.folder / "out.parquet", "--dry-run", "--cache", path.with_name("c.db")) == 0
    night.metrics_path = nowhere
    assert night.run(path, night.folder / "out.parquet", "--dry-run") == 73
    assert night.names() == ["in.parquet"]


def test_a_journal_of_an_earlier_run_goes_with_the_run_that_does_without_it(night: Night) -> None:
    path, output = write(night.folder / "in.parquet", tickets(10)), night.folder / "out.parquet"
    for how in (("--no-cache",), ("--cache", night.folder / "c.db")):
        (night.folder / ".out.parquet.scores").write_bytes(b"left by a run that was killed")
        assert night.run(path, output, *how, "--overwrite") == 0
        assert ".out.parquet.scores" not in night.names()


def test_an_output_with_a_long_name_has_a_journal(night: Night) -> None:
    path, output = write(night.folder / "in.parquet", tickets(60)), night.folder / f"{'n' * 236}.parquet"
    assert night.run(path, output, "--limit", 5) == 0
    output.unlink()
    corrupt = write(night.folder / "in.parquet", tickets(60), row_group_size=50, use_dictionary=False)
    corrupt_page(corrupt, 1, 1)
    assert night.run(path, output) == 65
    assert [name for name in night.names() if name.endswith(".scores")]


def test_a_damaged_cache_ends_a_run_over_many_files_at_once(night: Night) -> None:
    cache = night.folder / "c.db"
    (night.folder / "in").mkdir()
    for name in ("a", "b", "c"):
        write(night.folder / "in" / f"{name}.parquet", tickets(20))
    assert night.run(night.folder / "in" / "a.parquet", night.folder / "a.parquet", "--cache", cache) == 0
    with contextlib.closing(sqlite3.connect(cache)) as connection:
        connection.execute("UPDATE score SET entry = substr(entry, 1, length(entry) - 1) || x'07'")
        connection.commit()
    assert night.run(night.folder / "in", night.folder / "out", "--cache", cache) == 65
    assert night.stderr.count("error: ") == 1


@pytest.mark.parametrize(("text", "num_rows", "expected"), [("0.57%", 10_000, 57), ("1.14%", 5000, 57), ("7", 3, 7)])
def test_a_share_of_the_rows_is_exact(text: str, num_rows: int, expected: int) -> None:
    assert row_limit(text).rows(num_rows) == expected
    assert str(row_limit(text)) == text
