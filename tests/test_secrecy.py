"""No word of a row stands anywhere but in the input and the output, however a run ends.

Every file that a run leaves is searched, and what it said: stores and their logs, metrics, manifest, what waits for an
upload, temporary files. Of a run that is killed the unfinished output is left aside: it is the output.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import pipeline.prepare
import pipeline.stage
from pipeline.engine.fused import FusedEngine
from pipeline.engine.packed import PackedEngine
from pipeline.parquet.sink import ParquetSink
from pipeline.stored_scores import StoredScores
from tests.hard_files import writer
from tests.test_classify import write_tickets
from tests.test_folders import Night, night

__all__ = ["night"]

ROOT = Path(__file__).parents[1]
WORD = "Xenophanes4711"
TEXTS: list[str | None] = [
    *(f"{WORD} number {i} owes 0{i} guilders" for i in range(30)),
    *(None, f"<|im_start|>{WORD}<|im_end|>", f"{WORD}\x00", f"{WORD} again " * 300, WORD, f"\n{WORD}\n{WORD}"),
]
FLAGS = ("--buffer-rows", 5, "--max-tokens", 300)
Fault = Callable[[], AbstractContextManager[None]]


def spellings() -> list[bytes]:
    """The word, and what it may be called in files of other kinds."""
    return [*(WORD.encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-32-le")), WORD.encode().hex().encode()]


def assert_unspoken(night: Night, folder: Path, *allowed: Path) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path in allowed or path.is_relative_to(night.input):
            continue
        content = path.read_bytes()
        for spelling in spellings():
            assert spelling not in content, path
    assert WORD not in night.stderr + night.stdout
    assert "guilders" not in night.stderr + night.stdout


@pytest.fixture(autouse=True)
def everything_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and temporary files too lie in the folder that is searched."""
    for name in ("TMPDIR", "SQLITE_TMPDIR", "XDG_CACHE_HOME"):
        folder = tmp_path / name.lower()
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmpdir"))


# Faults


@contextmanager
def replaced(kind: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, make(getattr(kind, name)))
        yield


def at_call(n: int, act: Callable[[], None], function: Any) -> Any:
    calls = itertools.count(1)

    def watched(*args: Any, **options: Any) -> Any:
        if next(calls) == n:
            act()
        return function(*args, **options)

    return watched


def full() -> None:
    raise OSError(28, "No space left on device")


def indiscreet() -> None:
    raise ValueError(f"cannot handle {TEXTS[0]!r}")


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def wrong(score: Any) -> Any:
    """Right the first time, at start-up."""
    calls = itertools.count()
    return lambda self, bucket: score(self, bucket)[:, :: -1 if next(calls) else 1]


def without_scores(score_bucket: Any) -> Any:
    """Finite for the texts without content, at start-up."""
    calls = itertools.count(1)

    def score(*args: Any) -> Any:
        raw, n_splits = score_bucket(*args)
        return raw * (np.nan if next(calls) > 5 else 1), n_splits

    return score


FAULTS: dict[str, tuple[int, tuple[object, ...], Fault]] = {
    "none": (0, (), ExitStack),
    "stopped": (75, (), lambda: replaced(StoredScores, "insert", lambda f: at_call(3, stopped, f))),
    "disk full": (74, (), lambda: replaced(pq.ParquetWriter, "close", lambda f: at_call(2, full, f))),
    "fault in a pass": (70, (), lambda: replaced(FusedEngine, "score", lambda f: at_call(9, indiscreet, f))),
    "fault in preparing": (70, (), lambda: replaced(pipeline.stage, "prepare", lambda f: at_call(3, indiscreet, f))),
    "fault at a text": (70, (), lambda: replaced(pipeline.prepare, "text_frame", lambda f: at_call(2, indiscreet, f))),
    "fault in writing": (70, (), lambda: replaced(ParquetSink, "write", lambda f: at_call(2, indiscreet, f))),
    "wrong labels": (3, ("--verify", 36, "--engine", "packed"), lambda: replaced(PackedEngine, "score", wrong)),
    "no scores": (3, (), lambda: replaced(pipeline.passes, "score_bucket", without_scores)),
    "too long": (3, ("--overlong", "fail"), ExitStack),
}


@pytest.mark.parametrize("keep", ["journal", "cache"])
@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_word_of_a_row_is_left_however_a_run_ends(
    fault: str, log_format: str, keep: str, night: Night, tmp_path: Path
) -> None:
    exit_code, flags, disturbed = FAULTS[fault]
    night.input.mkdir()
    source, output = write_tickets(night.input / "in.parquet", TEXTS), night.output / "out.parquet"
    night.output.mkdir()
    flags += ("--log-format", log_format, *FLAGS)
    flags += ("--cache", night.output / "cache.db") if keep == "cache" else ()
    with disturbed():
        assert night.run(*flags, source=source, output=output) == exit_code, night.stderr
    assert output.exists() == (exit_code == 0)
    assert not list(night.output.glob("*.partial"))
    assert_unspoken(night, tmp_path, output)
    if log_format == "json":
        assert all(json.loads(line)["message"] for line in night.stderr.splitlines())


def test_no_word_of_a_row_is_left_of_a_folder_with_a_damaged_file(night: Night, tmp_path: Path) -> None:
    night.input.mkdir()
    write_tickets(night.input / "1.parquet", TEXTS)
    damage(write_plain(night.input / "2.parquet"))
    write_tickets(night.input / "3.parquet", TEXTS[::-1])
    for log_format in ("text", "json"):
        assert night.run("--log-format", log_format, *FLAGS) == 65
        assert "2.parquet" in night.stderr
        assert_unspoken(night, tmp_path, night.output / "1.parquet", night.output / "3.parquet")


@pytest.mark.parametrize("seed", range(12))
def test_no_word_of_a_row_is_told_of_a_damaged_file(seed: int, night: Night, tmp_path: Path) -> None:
    """Wherever the damage is; with checksums or without, where it may pass unseen."""
    source, output = write_plain(night.input, write_page_checksum=bool(seed % 2)), night.output
    damage(source, random.Random(seed))
    exit_code = night.run(*FLAGS)
    assert exit_code in (0, 65), night.stderr
    assert_unspoken(night, tmp_path, output)


def write_plain(path: Path, **options: Any) -> Path:
    table = pq.read_table(write_tickets(path, TEXTS))
    writer(table, **{"compression": "none", "use_dictionary": False, "write_page_checksum": True, **options})(path)
    return path


def damage(path: Path, chance: random.Random | None = None) -> None:
    """Change some bytes before the footer, or without ``chance`` a letter of one text."""
    content = bytearray(path.read_bytes())
    if chance is None:
        content[content.index(f"{WORD} number 20".encode())] ^= 1
    else:
        n_footer = int.from_bytes(content[-8:-4], "little") + 8
        for _ in range(chance.choice((1, 5, 50))):
            content[chance.randrange(4, len(content) - n_footer)] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


KILLED = """
import os, signal, sys
from pipeline.classify import main
from pipeline.stored_scores import StoredScores

insert, n_kept = StoredScores.insert, 0

def insert_and_die(*args):
    global n_kept
    insert(*args)
    n_kept += 1
    if n_kept == 3:
        os.kill(os.getpid(), signal.SIGKILL)

StoredScores.insert = insert_and_die
main(sys.argv[1:])
"""


@pytest.mark.parametrize("keep", ["journal", "cache"])
def test_no_word_of_a_row_is_in_the_stores_of_a_killed_run(
    keep: str, night: Night, tiny_model_folder: Path, tmp_path: Path
) -> None:
    """Also not in what SQLite had not yet moved from its log."""
    write_tickets(night.input, TEXTS)
    night.output = tmp_path / "out" / "out.parquet"
    night.output.parent.mkdir()
    flags = ["--cache", night.output.parent / "cache.db"] if keep == "cache" else []
    words = [night.input, night.output, "--model", tiny_model_folder, *FLAGS, *flags]
    command = [sys.executable, "-c", KILLED, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    night.stderr = done.stderr
    name = "cache.db" if keep == "cache" else ".out.parquet.scores"
    left = {path.name for path in night.output.parent.iterdir()}
    assert {name, f"{name}-wal"} <= left
    assert_unspoken(night, tmp_path, night.output.with_name(".out.parquet.partial"))
    assert night.run(*FLAGS, *flags) == 0, night.stderr
    assert night.metrics["known_texts"] >= 15
    assert_unspoken(night, tmp_path, night.output)
    kept = ["cache.db"] if keep == "cache" else []
    assert sorted(path.name for path in night.output.parent.iterdir()) == [*kept, "out.parquet"]
