"""A disk that fills up at any moment: told in one line, nothing half-written, and the next run goes on.

Each run is the whole command line. Where the user of the tests may mount, the disk is one of a few MiB in memory; and
everywhere it is a limit to the size of files, which fails in the same places with another error.
"""

import errno
import io
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.parquet import work_file
from pipeline.parquet.work_file import WorkFile
from tests.test_folders import Night, night

__all__ = ["night"]

KIB, MIB = 1 << 10, 1 << 20
N_TEXTS, BUFFER_ROWS = 60, 10
TEXTS = [f"Ticket {i}: the invoice of May shows the wrong sum" for i in range(N_TEXTS)]
FLAGS = ("--buffer-rows", BUFFER_ROWS, "--progress", "none")


class Disk:
    """A small disk.

    Attributes:
        folder: what is in it.
    """

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self.folder = folder
        self._n_bytes = n_bytes

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The block in which it may be full."""
        yield

    def grow(self) -> None:
        """From here on there is room."""
        raise NotImplementedError


class MountedDisk(Disk):
    def __init__(self, folder: Path, n_bytes: int) -> None:
        super().__init__(folder, n_bytes)
        mount("-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder)

    def grow(self) -> None:
        mount("-o", f"remount,size={64 * MIB}", self.folder)

    def unmount(self) -> None:
        subprocess.run(["umount", self.folder], check=True)


class LimitedDisk(Disk):
    @contextmanager
    def in_use(self) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._n_bytes, hard))  # Python ignores the signal
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def set_limit(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes

    def grow(self) -> None:
        self.set_limit(64 * MIB)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


@cache
def may_mount() -> bool:
    if os.geteuid() or not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", folder], check=True)
    return True


@pytest.fixture(params=["limited", "mounted"] if may_mount() else ["limited"])
def disk_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes a disk of so many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    disks: list[MountedDisk] = []

    def make(n_bytes: int) -> Disk:
        if request.param == "limited":
            return LimitedDisk(folder, n_bytes)
        disks.append(MountedDisk(folder, n_bytes))
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


@dataclass
class Case:
    """Runs of one command, and what they must leave."""

    night: Night
    disk: Disk
    flags: tuple[object, ...] = FLAGS

    def run(self) -> int:
        with self.disk.in_use():
            return self.night.run(*self.flags)

    def assert_full(self, *words: str) -> None:
        """One line that says so, and a hint; no traceback."""
        assert self.run() == 74, self.night.stderr
        assert len(self.night.errors) == 1, self.night.stderr
        assert self.night.last_line.startswith("hint: make room"), self.night.stderr
        assert "Traceback" not in self.night.stderr and "internal" not in self.night.stderr
        for word in words:
            assert word in self.night.errors[0]

    def assert_finished(self, expected: list[str], *also: str) -> None:
        assert self.run() == 0, self.night.stderr
        assert labels_of(self.night.output) == expected
        assert pq.read_table(self.night.output).drop_columns("label").equals(pq.read_table(self.night.input))
        assert names_in(self.night.output.parent) == sorted([self.night.output.name, *also])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_kept(folder: Path, *also: str) -> None:
    """Nothing but the scores; SQLite may have had no room to move them from its log into the file itself."""
    found = names_in(folder)
    assert ".out.parquet.scores" in found
    assert set(found) - {".out.parquet.scores-wal"} == {".out.parquet.scores", *also}


def labels_of(path: Path) -> list[str]:
    labels: list[str] = pq.read_table(path)["label"].to_pylist()
    return labels


def prepare(night: Night, folder: Path, n_bytes: int = 4 * MIB, **writing: Any) -> list[str]:
    """Write an input with a payload of that size, to be labelled into a folder; returns the right labels."""
    blobs = [os.urandom(n_bytes // N_TEXTS) for _ in TEXTS]
    # a dictionary keeps the row groups apart, so that the output is written bit by bit
    names = pa.array(["x"] * N_TEXTS).dictionary_encode()
    table = pa.table({"text": TEXTS, "blob": pa.array(blobs, pa.binary()), "name": names})
    pq.write_table(table, night.input, row_group_size=10, compression="none", **writing)
    assert night.run(*FLAGS, "--no-cache", output=folder / "undisturbed") == 0
    labels = labels_of(folder / "undisturbed")
    (folder / "undisturbed").unlink()
    night.output = folder / "disk" / "out.parquet"
    return labels


def test_an_output_that_does_not_fit_is_no_output_and_the_next_run_scores_only_the_rest(
    disk_of: Any, night: Night, tmp_path: Path
) -> None:
    expected = prepare(night, tmp_path)
    case = Case(night, disk_of(2 * MIB))
    case.assert_full("writing output")
    first = night.metrics["texts"]
    assert 0 < first < N_TEXTS
    assert_kept(case.disk.folder)
    case.assert_full("writing output")  # nothing was gained, and nothing lost
    second = night.metrics["texts"]
    filler = fill(case.disk, 0)
    case.assert_full()  # where the store's log has no room either, it is told of the store
    filler.unlink(missing_ok=True)
    case.disk.grow()
    case.assert_finished(expected)
    assert first + second + night.metrics["texts"] <= N_TEXTS + BUFFER_ROWS


def test_an_old_output_stays_when_the_new_one_does_not_fit(disk_of: Any, night: Night, tmp_path: Path) -> None:
    expected = prepare(night, tmp_path)
    case = Case(night, disk_of(2 * MIB), (*FLAGS, "--overwrite"))
    night.output.write_bytes(b"old" * KIB)
    case.assert_full("writing output")
    assert night.output.read_bytes() == b"old" * KIB
    assert_kept(case.disk.folder, "out.parquet")
    case.disk.grow()
    case.assert_finished(expected)


@pytest.mark.parametrize("n_kib", [0, 4, 8, 16, 20, 32, 48])
def test_a_disk_too_small_for_the_journal_is_told_and_the_next_run_goes_on(
    n_kib: int, disk_of: Any, night: Night, tmp_path: Path
) -> None:
    """From no room at all, on which not even an empty store fits, to room for some of the scores."""
    expected = prepare(night, tmp_path, 10 * KIB)
    case = Case(night, disk_of(MIB))
    filler = fill(case.disk, n_kib * KIB)
    case.assert_full("the store of scores")
    left = set(names_in(case.disk.folder)) - {"filler"}
    assert left <= {".out.parquet.scores", ".out.parquet.scores-wal"}
    assert night.metrics["texts"] or not left, "a store without scores is of no use"
    filler.unlink(missing_ok=True)
    case.disk.grow()
    case.assert_finished(expected)


def fill(disk: Disk, n_bytes: int) -> Path:
    """Leave so much room; returns the file to remove for more."""
    filler = disk.folder / "filler"
    if isinstance(disk, LimitedDisk):
        disk.set_limit(max(n_bytes, 4 * KIB))  # the metrics, elsewhere, need some
        return filler
    free = os.statvfs(disk.folder)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - n_bytes))
    return filler


@pytest.mark.parametrize("n_kib", [0, 8, 20, 32, 48])
def test_a_cache_on_a_full_disk_is_told_and_loses_nothing_that_it_had(
    n_kib: int, disk_of: Any, night: Night, tmp_path: Path
) -> None:
    expected = prepare(night, tmp_path, 10 * KIB)
    disk = disk_of(MIB)
    night.output = tmp_path / "out" / "out.parquet"
    night.output.parent.mkdir()
    case = Case(night, disk, (*FLAGS, "--overwrite", "--cache", disk.folder / "cache.db"))
    night.output.write_bytes(b"old")
    filler = fill(disk, n_kib * KIB)
    case.assert_full("--cache")
    n_first = night.metrics["texts"]
    assert night.output.read_bytes() == b"old"
    assert names_in(night.output.parent) == ["out.parquet"]
    filler.unlink(missing_ok=True)
    disk.grow()
    case.assert_finished(expected)
    assert n_first + night.metrics["texts"] <= N_TEXTS + BUFFER_ROWS
    assert case.run() == 0
    assert night.metrics["texts"] == 0


def test_a_folder_that_does_not_fit_keeps_its_finished_files_and_scores(
    disk_of: Any, night: Night, tmp_path: Path
) -> None:
    expected = prepare(night, tmp_path)
    disk = disk_of(2 * MIB)
    small = pq.read_table(night.input).drop_columns("blob")
    night.input.rename(tmp_path / "big")
    night.input.mkdir()
    pq.write_table(small.slice(0, BUFFER_ROWS), night.input / "1.parquet")
    (tmp_path / "big").rename(night.input / "2.parquet")
    night.output = disk.folder / "out"
    case = Case(night, disk)
    case.assert_full("writing output", "2.parquet")
    n_first = night.metrics["texts"]
    first = (night.output / "1.parquet").stat()
    kept = {".parquet_classify.json", ".parquet_classify.scores", "1.parquet"}
    assert set(names_in(night.output)) - {".parquet_classify.scores-wal"} == kept
    disk.grow()
    assert case.run() == 0, night.stderr
    assert night.counts == (1, 1, 0)
    assert (night.output / "1.parquet").stat() == first
    assert labels_of(night.output / "2.parquet") == expected
    assert names_in(night.output) == [".parquet_classify.json", "1.parquet", "2.parquet"]
    assert n_first + night.metrics["texts"] <= N_TEXTS + BUFFER_ROWS


class FaultyFile(io.FileIO):
    """A file on a disk that is full from the n-th write on, or just then."""

    n_writes = 0
    full_at: int | None = None
    stays_full = True

    def write(self, data: Any) -> int:
        type(self).n_writes += 1
        n, full_at = type(self).n_writes, type(self).full_at
        if full_at is not None and (n == full_at or (n > full_at and self.stays_full)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("stays_full", [True, False])
def test_no_write_of_the_output_may_fail_unseen(
    stays_full: bool, night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(night, tmp_path, 600 * KIB)
    night.output = tmp_path / "out" / "out.parquet"
    night.output.parent.mkdir()

    def open_faulty(file: WorkFile) -> BinaryIO:
        return io.BufferedWriter(FaultyFile(work_file._open_locked(file._work), "wb"), 16 * KIB)

    monkeypatch.setattr(WorkFile, "_open", open_faulty)
    monkeypatch.setattr(FaultyFile, "stays_full", stays_full)
    monkeypatch.setattr(FaultyFile, "full_at", None)
    monkeypatch.setattr(FaultyFile, "n_writes", 0)
    case = Case(night, Disk(tmp_path, 0), (*FLAGS, "--overwrite"))
    case.assert_finished(expected)
    n_writes = FaultyFile.n_writes
    assert n_writes > 10
    old = night.output.read_bytes()
    for full_at in (1, 2, 3, n_writes // 2, n_writes - 2, n_writes - 1, n_writes):
        monkeypatch.setattr(FaultyFile, "full_at", full_at)
        monkeypatch.setattr(FaultyFile, "n_writes", 0)
        case.assert_full("writing output", "No space left on device")
        n_first = night.metrics["texts"]
        assert night.output.read_bytes() == old
        assert names_in(night.output.parent) == [".out.parquet.scores", "out.parquet"]
        monkeypatch.setattr(FaultyFile, "full_at", None)
        case.assert_finished(expected)
        assert n_first + night.metrics["texts"] <= N_TEXTS + BUFFER_ROWS
