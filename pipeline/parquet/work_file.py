"""A file that appears under its name only when it is complete.

It is written as ``.NAME.partial`` beside its target, made durable, then renamed over the target in one step. Until
then the target, old or absent, stays as it is. A lock on the work file keeps two runs from writing one target; what a
killed run left behind is discarded by the next one. Some network file systems grant a lock twice: then the later
run's file is the one that counts, and the earlier run touches it no more. Knows nothing of what is written. Targets in
object stores are the business of ``upload``.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import OutputError, StorageError
from pipeline.parquet.failures import Failure, credentials_hint, failure_of, reason_of
from pipeline.parquet.location import Location

STREAM_BYTES = 1 << 20


class WorkFile:
    """The unfinished form of one output file.

    A target that is a symbolic link stays one: the file it points to is replaced. A replaced file keeps its
    permissions, a new one gets those of the umask.

    Args:
        location: the target.
        overwrite: whether an existing file may be replaced.
        forbidden: a file that is read meanwhile and must not be written.

    Attributes:
        location: the target.
        stream: write here, and do not close it.

    Raises:
        OutputError: the target cannot be created, exists, is ``forbidden``, or is being written by another run.
    """

    def __init__(self, location: Location, *, overwrite: bool, forbidden: Location) -> None:
        self.location = location
        self._overwrite = overwrite
        self._target = location.scratch
        self._work = self._target.with_name(f".{self._target.name}.partial")
        try:
            if self._is_written(forbidden):
                raise OutputError(f"output {location.name!r} is the input", "write to another file")
            replaced = self._check_target()
            self.stream = self._open()
            if replaced is not None:  # who may not read the old file may not read the new one's rows meanwhile
                with suppress(OSError):  # it is done again, and its failure told, at the end
                    os.fchmod(self.stream.fileno(), stat.S_IMODE(replaced.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
        except BlockingIOError as error:
            raise self._is_written_by_another() from error
        except OSError as error:
            raise self._refusal(error) from error

    def commit(self) -> None:
        """Make the written bytes durable and put them in place of the target.

        Raises:
            StorageError: the device failed or is full, or the upload failed; the target is as before.
            OutputError: the target came into being meanwhile and may not be overwritten, or another run writes it.
        """
        with storage_errors(self.location):
            self.stream.flush()
            if not self._is_ours():
                raise self._is_written_by_another()
            self._publish()

    def discard(self) -> None:
        """Remove the unfinished file, if it was not committed; never fails."""
        if self.stream.closed:
            return
        with suppress(OSError):
            if self._is_ours():
                self._work.unlink()
        with suppress(OSError):
            self.stream.close()

    def _is_ours(self) -> bool:
        """Whether what has the work file's name is what is written here."""
        return os.path.samestat(os.fstat(self.stream.fileno()), self._work.stat())

    def _is_written(self, forbidden: Location) -> bool:
        """Whether a file is one of those that would be written, under whatever name."""
        places = (self._target, self._work)
        return forbidden.is_local and any(place.exists() and place.samefile(forbidden.local) for place in places)

    def _check_target(self) -> os.stat_result | None:
        """The state of the file that will be replaced, if there is one."""
        try:
            found = self._target.stat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode):
            raise self._is_a_folder()
        if not stat.S_ISREG(found.st_mode):
            raise OutputError(f"output {self.location.name!r} is not a regular file", "name a regular file")
        if not self._overwrite:
            raise self._exists_already()
        return found

    def _open(self) -> BinaryIO:
        return os.fdopen(_open_locked(self._work), "wb", buffering=STREAM_BYTES)

    def _publish(self) -> None:
        replaced = self._check_target()
        if replaced is not None:
            os.fchmod(self.stream.fileno(), stat.S_IMODE(replaced.st_mode))
        os.fsync(self.stream.fileno())
        os.replace(self._work, self._target)
        self.stream.close()
        _sync_folder(self._target.parent)

    def _refusal(self, error: OSError) -> OutputError:
        """Why the file could not be begun."""
        if isinstance(error, FileNotFoundError):
            folder = str(self._target.parent)
            return OutputError(
                f"output {self.location.name!r} cannot be created: there is no folder {folder!r}",
                "create the folder first",
            )
        return OutputError(
            f"output {self.location.name!r} cannot be created: {error.strerror}", "write to another folder"
        )

    def _is_written_by_another(self) -> OutputError:
        return OutputError(
            f"another run is writing output {self.location.name!r}", "wait for its end, or write to another file"
        )

    def _is_a_folder(self) -> OutputError:
        return OutputError(f"output {self.location.name!r} is a folder", "name a file in it")

    def _exists_already(self) -> OutputError:
        return OutputError(f"output {self.location.name!r} exists already", "replace it with --overwrite")


@contextmanager
def storage_errors(location: Location, doing: str = "writing") -> Iterator[None]:
    """Turn a failing device or store, wherever it shows while an output is written, into a ``StorageError``."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{doing} output {location.name!r} failed: {reason_of(error)}", _storage_hint(location, doing, error)
        ) from error


def _storage_hint(location: Location, doing: str, error: OSError) -> str:
    if location.is_local:
        return "make room on the device, then run the same command again"
    if doing == "writing":
        folder = str(location.scratch.parent)
        return f"make room for {folder!r} or move it by XDG_CACHE_HOME, then run the same command again"
    if failure_of(location, error) == Failure.DENIED:
        return credentials_hint(location)
    return "run the same command again"


def _open_locked(work: Path) -> int:
    """A descriptor of a new, locked file that has this name and no other."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            descriptor, is_new = os.open(work, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                descriptor, is_new = os.open(work, flags), False
            except FileNotFoundError:
                continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_named = work.exists() and os.path.samestat(os.fstat(descriptor), work.stat())
            if is_named and is_new:
                return descriptor
            if is_named:  # left by a killed run
                work.unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another run renamed or removed it between open and lock, or it was just unlinked


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise
    finally:
        os.close(descriptor)
