"""The file of scores: what is kept is found again, by whom it should be, and a damaged file is never believed."""

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import pipeline.label_store
from pipeline import cache
from pipeline.cache import tasks_in
from pipeline.errors import CacheError, OutputError, StorageError
from pipeline.label_store import LabelStore, StoreDamaged, today
from pipeline.stored_scores import StoredScores

FINGERPRINT, OTHER = "ab" * 32, "cd" * 32
N_SCORES = 3
PLANTED = "zebra crossing 4711"


def scores_in(store: LabelStore, fingerprint: str = FINGERPRINT, n_scores: int = N_SCORES) -> StoredScores:
    return StoredScores(store, fingerprint, n_scores, "tiny: a, b, c")


def texts_of(n_texts: int, name: str = PLANTED) -> pl.Series:
    return pl.Series([f"{name} {i}" for i in range(n_texts)], dtype=pl.String)


def numbers_of(n_texts: int) -> NDArray[np.float32]:
    return np.random.default_rng(n_texts).normal(size=(n_texts, N_SCORES)).astype(np.float32)


def fill(path: Path, n_texts: int = 100, *, fingerprint: str = FINGERPRINT, shared: bool = True) -> None:
    with LabelStore(path, shared=shared) as store:
        scores = scores_in(store, fingerprint)
        scores.insert(scores.keys(texts_of(n_texts)), numbers_of(n_texts), np.arange(n_texts) % 3 == 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scores.db"


@pytest.mark.parametrize("shared", [True, False])
def test_the_path_may_be_a_string(path: Path, shared: bool) -> None:
    fill(path, 3)
    with LabelStore(str(path), shared=shared) as store:
        assert store.path == path
        assert not store.is_empty()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("n_texts", [0, 1, 100, 9000])
def test_what_was_kept_is_found_by_the_next_run_and_nothing_else_is(path: Path, n_texts: int, shared: bool) -> None:
    fill(path, n_texts, shared=shared)
    with LabelStore(path, shared=shared) as store:
        scores = scores_in(store)
        texts = pl.concat([texts_of(50, "never seen"), texts_of(n_texts)])
        found, truncated = scores.lookup(scores.keys(texts))
        assert np.isnan(found[:50]).all() and not truncated[:50].any()
        assert np.array_equal(found[50:], numbers_of(n_texts))
        assert np.array_equal(truncated[50:], np.arange(n_texts) % 3 == 0)


@given(st.lists(st.text(max_size=8), max_size=30, unique=True), st.data())
def test_any_texts_in_any_order_get_their_own_scores(texts: list[str], data: st.DataObject) -> None:
    with LabelStore(Path(":memory:"), shared=True) as store:
        scores = scores_in(store)
        series = pl.Series(texts, dtype=pl.String)
        kept = sorted(data.draw(st.sets(st.sampled_from(range(len(texts))))) if texts else [])
        numbers = numbers_of(len(texts))
        scores.insert(scores.keys(series)[kept], numbers[kept], np.zeros(len(kept), bool))
        order = data.draw(st.permutations(range(len(texts))))
        found, _ = scores.lookup(scores.keys(series)[order])
        for place, text in enumerate(order):
            expected = numbers[text] if text in kept else np.full(N_SCORES, np.nan)
            assert np.array_equal(found[place], expected, equal_nan=True)


def test_the_same_text_under_another_fingerprint_is_not_found(path: Path) -> None:
    fill(path)
    with LabelStore(path, shared=True) as store:
        other = scores_in(store, OTHER)
        found, _ = other.lookup(other.keys(texts_of(100)))
        assert np.isnan(found).all()
        assert [(task.fingerprint, task.n_texts) for task in tasks_in(store)] == [(OTHER, 0), (FINGERPRINT, 100)]


def test_a_fingerprint_with_another_number_of_scores_is_damage(path: Path) -> None:
    fill(path)
    with LabelStore(path, shared=True) as store, pytest.raises(CacheError, match="3 scores where there must be 4"):
        scores_in(store, n_scores=4)


def test_scores_that_are_not_finite_are_not_kept(path: Path) -> None:
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        numbers = numbers_of(4)
        numbers[1, 2], numbers[2, 0] = np.nan, np.inf
        scores.insert(scores.keys(texts_of(4)), numbers, np.zeros(4, bool))
        found, _ = scores.lookup(scores.keys(texts_of(4)))
        assert np.isfinite(found).all(axis=1).tolist() == [True, False, False, True]


def test_scores_kept_twice_stay_as_they_were(path: Path) -> None:
    fill(path)
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        scores.insert(scores.keys(texts_of(100)), numbers_of(100) + 1, np.zeros(100, bool))
        found, _ = scores.lookup(scores.keys(texts_of(100)))
        assert np.array_equal(found, numbers_of(100))


def test_two_texts_whose_keys_collide_are_not_taken_for_each_other(path: Path) -> None:
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        keys = scores.keys(texts_of(2)).copy()
        keys[1, 0] = keys[0, 0]
        scores.insert(keys[:1], numbers_of(1), np.zeros(1, bool))
        found, _ = scores.lookup(keys)
        assert np.isfinite(found).all(axis=1).tolist() == [True, False]


def test_forgotten_scores_are_gone_and_those_of_other_tasks_stay(path: Path) -> None:
    fill(path)
    fill(path, fingerprint=OTHER)
    with LabelStore(path, shared=True) as store:
        scores_in(store).forget()
        assert {task.fingerprint: task.n_texts for task in tasks_in(store)} == {FINGERPRINT: 0, OTHER: 100}


def test_no_word_of_any_text_is_in_the_file(path: Path) -> None:
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        scores.insert(scores.keys(texts_of(100)), numbers_of(100), np.zeros(100, bool))
        everything = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert len(everything) > 4000
    for word in PLANTED.split():
        assert word.encode() not in everything


def test_closing_leaves_one_file_and_removing_none(path: Path) -> None:
    for shared in (True, False):
        fill(path, shared=shared)
        assert [file.name for file in path.parent.iterdir()] == ["scores.db"]
    LabelStore(path, shared=False).remove()
    assert list(path.parent.iterdir()) == []


def test_a_store_knows_whether_it_is_empty(path: Path) -> None:
    with LabelStore(path, shared=False) as store:
        scores = scores_in(store)
        assert store.is_empty()
        scores.insert(scores.keys(texts_of(1)), numbers_of(1), np.zeros(1, bool))
        assert not store.is_empty()


# --- files that are not what they should be ---------------------------------------------------------------------------


def text_file(path: Path) -> None:
    path.write_text("id,text\n1,hello\n" * 100)


def parquet_file(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(200) + b"PAR1")


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE score (key INTEGER PRIMARY KEY)")
    connection.close()


def newer_format(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def cut_short(path: Path) -> None:
    fill(path, 1000)
    os.truncate(path, path.stat().st_size // 2)


def without_tables(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE task")
    connection.close()


def changed_entry(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE score SET entry = substr(entry, 1, length(entry) - 1) || x'07'")
    connection.close()


DAMAGE = [text_file, parquet_file, foreign_database, newer_format, cut_short, without_tables, changed_entry]


def look_up_all(path: Path, *, shared: bool, n_texts: int = 1000) -> NDArray[np.float32]:
    with LabelStore(path, shared=shared) as store:
        scores = scores_in(store)
        return scores.lookup(scores.keys(texts_of(n_texts)))[0]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_shared_file_that_is_no_sound_store_is_refused_and_left_alone(
    path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    before = path.read_bytes()
    with pytest.raises(CacheError, match=r"--cache '.*scores.db' cannot be used: ") as error:
        look_up_all(path, shared=True)
    if damage in (text_file, parquet_file, foreign_database):
        assert path.read_bytes() == before
        assert "remove" not in error.value.hint, "it may be somebody's only copy"


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_journal_that_is_no_sound_store_is_moved_aside(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(path)
    assert np.isnan(look_up_all(path, shared=False)).all()
    assert path.with_name("scores.db.damaged").exists()
    assert "scores.db.damaged" in caplog.text
    fill(path, 1000, shared=False)
    assert np.array_equal(look_up_all(path, shared=False), numbers_of(1000))


def test_a_journal_that_is_found_damaged_midway_begins_anew(path: Path) -> None:
    with LabelStore(path, shared=False) as store:
        scores = scores_in(store)
        scores.insert(scores.keys(texts_of(10)), numbers_of(10), np.zeros(10, bool))
        with store.transaction() as connection:
            connection.execute("UPDATE score SET entry = x'00'")
        assert np.isnan(scores.lookup(scores.keys(texts_of(10)))[0]).all()
        scores.insert(scores.keys(texts_of(10)), numbers_of(10), np.zeros(10, bool))
        assert np.array_equal(scores.lookup(scores.keys(texts_of(10)))[0], numbers_of(10))


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bits_ever_give_wrong_scores(path: Path, seed: int) -> None:
    """Scores are right, missing, or the file is refused; what the disk made of them is never used."""
    fill(path, 1000)
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 20, 400))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    try:
        found = look_up_all(path, shared=True)
    except CacheError:
        return
    known = np.isfinite(found).all(axis=1)
    assert np.array_equal(found[known], numbers_of(1000)[known])


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("no/such/folder/scores.db", OutputError, "there is no folder '.*no/such/folder'"),
        (".", OutputError, "is not a regular file"),
        ("/dev/null", OutputError, "is not a regular file"),
    ],
)
def test_a_place_that_cannot_be_a_store_is_refused(
    tmp_path: Path, place: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LabelStore(tmp_path / place, shared=True)


# --- others at the same file ------------------------------------------------------------------------------------------


def fill_slowly(path: Path, offset: int, start: float, results: "multiprocessing.Queue[str]") -> None:
    time.sleep(max(0.0, start - time.time()))
    try:
        with LabelStore(path, shared=True) as store:
            scores = scores_in(store)
            for first in range(offset, offset + 300, 30):
                keys = scores.keys(texts_of(600))[first : first + 60]
                scores.insert(keys, numbers_of(600)[first : first + 60], np.zeros(len(keys), bool))
                scores.lookup(keys)
        results.put("")
    except BaseException as error:
        results.put(repr(error))


def test_processes_share_a_file_without_a_word(path: Path) -> None:
    """They even create it at the same moment."""
    context = multiprocessing.get_context("spawn")  # polars does not survive a fork
    results = context.Queue()
    start = time.time() + 4
    processes = [context.Process(target=fill_slowly, args=(path, i * 100, start, results)) for i in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=120) for _ in processes] == ["", "", ""]
    for process in processes:
        process.join()
    found = look_up_all(path, shared=True, n_texts=600)[:530]
    assert np.array_equal(found, numbers_of(600)[:530])


CREATED_TOGETHER = """
import sys, time
from pathlib import Path
from pipeline.label_store import LabelStore
print("ready", flush=True)
start = float(sys.stdin.readline())
for i in range(100):
    while time.time() < start + i * 0.03:
        pass
    LabelStore(Path(sys.argv[1]) / f"{i}.db", shared=True).close()
"""


def test_processes_that_create_a_file_at_the_same_moment_both_have_it(tmp_path: Path) -> None:
    """One asked for the program's mark before the other wrote it, and for tables after."""
    command = [sys.executable, "-c", CREATED_TOGETHER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        for process in (first, second):
            assert process.stdout.readline() == "ready\n"
        start = f"{time.time() + 0.3}\n"
        for process in (first, second):
            process.stdin.write(start)
            process.stdin.flush()
        errors = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert errors == ["", ""]


def test_a_file_that_stays_locked_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    monkeypatch.setattr(pipeline.label_store, "BUSY_SECONDS", 0.3)
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"locked by another process for 0\.3 s"):
            scores.insert(scores.keys(texts_of(101)), numbers_of(101), np.zeros(101, bool))
        other.close()


def test_a_signal_is_heard_while_the_file_is_locked(path: Path) -> None:
    """SQLite waits without hearing any: SIGTERM took effect after a minute."""
    fill(path)
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            scores.insert(scores.keys(texts_of(101)), numbers_of(101), np.zeros(101, bool))
        assert time.monotonic() - start < pipeline.label_store.BUSY_SECONDS / 2
        signal.signal(signal.SIGALRM, before)
        other.close()


def test_a_journal_left_by_a_kill_does_without_shared_memory(path: Path, tmp_path: Path) -> None:
    """A network folder has none; opened again, the write-ahead log was read before that was said."""
    script = (
        "import os, sys; from pathlib import Path; from tests.test_label_store import *; "
        "store = LabelStore(Path(sys.argv[1]), shared=False); scores = scores_in(store); "
        "scores.insert(scores.keys(texts_of(9)), numbers_of(9), np.zeros(9, bool)); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    assert path.with_name("scores.db-wal").exists()
    with LabelStore(path, shared=False) as store:
        assert not store.is_empty()
        assert sorted(file.name for file in tmp_path.iterdir()) == ["scores.db", "scores.db-wal"]


def test_a_signal_right_behind_the_beginning_of_a_transaction_leaves_none_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one could not begin, which passed for damage, and the journal was moved aside."""
    patiently = pipeline.label_store._patiently

    def interrupted(connection: sqlite3.Connection, statement: str, *how: object) -> None:
        patiently(connection, statement, *how)
        raise KeyboardInterrupt

    with LabelStore(path, shared=False) as store:
        scores = scores_in(store)
        with monkeypatch.context() as patch:
            patch.setattr(pipeline.label_store, "_patiently", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scores.insert(scores.keys(texts_of(9)), numbers_of(9), np.zeros(9, bool))
        scores.insert(scores.keys(texts_of(9)), numbers_of(9), np.zeros(9, bool))
    assert np.array_equal(look_up_all(path, shared=False, n_texts=9), numbers_of(9))
    assert [file.name for file in path.parent.iterdir()] == ["scores.db"]


def test_a_thread_that_comes_after_the_end_does_no_harm(path: Path) -> None:
    """After a second Ctrl-C one may still be at work: what it meets is no damage."""
    with LabelStore(path, shared=False) as store:
        scores = scores_in(store)
    with pytest.raises(AssertionError, match="the store is closed"):
        scores.lookup(scores.keys(texts_of(1)))
    assert [file.name for file in path.parent.iterdir()] == ["scores.db"]


def test_a_full_device_is_an_error_and_loses_nothing_that_was_kept(path: Path) -> None:
    fill(path, 500)
    with LabelStore(path, shared=False) as store:
        scores = scores_in(store)
        store.query("PRAGMA max_page_count = 30")
        with pytest.raises(StorageError, match="full"):
            scores.insert(scores.keys(texts_of(5000)), numbers_of(5000), np.zeros(5000, bool))
    found = look_up_all(path, shared=False, n_texts=5000)
    assert np.isfinite(found).all(axis=1).sum() == 500
    assert np.array_equal(found[:500], numbers_of(500))


KILLED = """
import sys
from pathlib import Path
import numpy as np
from tests.test_label_store import *
with LabelStore(Path(sys.argv[1]), shared=False) as store:
    scores = scores_in(store)
    keys, numbers = scores.keys(texts_of(50_000)), numbers_of(50_000)
    for first in range(0, 50_000, 50):
        some = slice(first, first + 50)
        scores.insert(keys[some], numbers[some], np.zeros(50, bool))
        print(first + 50, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_what_was_kept_survives_a_kill_at_any_moment(path: Path, seed: int) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split()]
    n_kept = told[-1] if told else 50
    found = look_up_all(path, shared=False, n_texts=50_000)
    assert np.array_equal(found[:n_kept], numbers_of(50_000)[:n_kept])
    assert np.isnan(found[n_kept + 50 :]).all()


# --- the command line -------------------------------------------------------------------------------------------------


def test_info_tells_what_is_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path, 1234)
    assert cache.main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "1,234 texts" in out and FINGERPRINT[:12] in out and "tiny: a, b, c" in out
    assert PLANTED not in out


def test_prune_removes_what_is_old_and_shrinks_the_file(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stored_scores.today", lambda: today() - 40)
    fill(path, 5000)
    monkeypatch.undo()
    with LabelStore(path, shared=True) as store:
        scores = scores_in(store, OTHER)
        scores.insert(scores.keys(texts_of(10)), numbers_of(10), np.zeros(10, bool))
    before = path.stat().st_size
    assert cache.main(["prune", str(path), "--older-than", "41"]) == 0
    assert "0 texts removed" in capsys.readouterr().out
    assert cache.main(["prune", str(path), "--older-than", "30"]) == 0
    assert "5,000 texts removed" in capsys.readouterr().out
    assert path.stat().st_size < before / 4
    with LabelStore(path, shared=True) as store:
        assert {task.fingerprint: task.n_texts for task in tasks_in(store)} == {OTHER: 10}


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["info", "nowhere.db"], 66),
        (["info", __file__], 65),
        (["prune", "nowhere.db", "--older-than", "3"], 66),
        (["prune", __file__, "--older-than", "0"], 2),
        (["prune", __file__], 2),
        (["shrink", __file__], 2),
    ],
)
def test_wrong_commands_are_one_line_and_a_hint(
    arguments: list[str], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache.main(arguments) == exit_code
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")


def test_damage_is_an_error_of_its_own() -> None:
    assert not issubclass(StoreDamaged, CacheError), "a journal's damage must not reach the user as one"


def test_a_store_without_a_name_keeps_scores_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    with LabelStore(None, shared=False) as store:
        scores = scores_in(store)
        keys = scores.keys(texts_of(3000))
        scores.insert(keys, numbers_of(3000), np.zeros(3000, bool))
        assert np.array_equal(scores.lookup(keys)[0], numbers_of(3000))
        assert not [*tmp_path.iterdir()]
    assert not [*tmp_path.iterdir()]
