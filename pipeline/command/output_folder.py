"""The output folder of a run over many files: one run at a time writes there, and leaves no empty folders behind.

The lock is that of an open file, so that a run that crashes leaves none. Knows nothing of Parquet.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import OutputError
from pipeline.parquet.location import Location

LOCK_NAME = ".parquet_classify.lock"


def notes_folder(folder: Location) -> Path:
    """Where what belongs to an unfinished output folder is kept: in it, or for one in a store on this machine."""
    return folder.local if folder.is_local else folder.scratch.parent


@contextmanager
def locked_folder(folder: Location) -> Iterator[None]:
    """Create a folder if need be, and keep other runs out of it while the block runs.

    Raises:
        OutputError: it cannot be created, or another run writes there.
    """
    lock = notes_folder(folder) / LOCK_NAME
    is_new = not lock.parent.exists()
    try:
        lock.parent.mkdir(parents=not folder.is_local, exist_ok=True)
        descriptor = _open_locked(lock)
    except BlockingIOError as error:
        raise OutputError(
            f"another run is writing into output {folder.name!r}", "wait for its end, or write to another folder"
        ) from error
    except OSError as error:
        raise OutputError(
            f"output {folder.name!r} cannot be written to: {error.strerror}", "write to another folder"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)
        if is_new or not folder.is_local:
            with suppress(OSError):  # something was written
                lock.parent.rmdir()


@contextmanager
def folder_of(file: Location, above: Location) -> Iterator[None]:
    """Create the folders that a file will stand in; those left empty when the block ends are removed.

    Args:
        file: the output.
        above: the output folder.

    Raises:
        OutputError: they cannot be created.
    """
    if not file.is_local:  # an object store has no folders
        yield
        return
    parent = file.local.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"output {file.name!r} cannot be created: {error.strerror}: {str(error.filename)!r}",
            "write to another folder",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            while parent != above.local:
                parent.rmdir()
                parent = parent.parent


def check_file_place(file: Location) -> None:
    """Check that a file can be put where it shall be, without leaving anything there.

    Raises:
        OutputError: it cannot.
    """
    if not file.is_local:
        return
    if file.local.is_dir():
        raise OutputError(f"output {file.name!r} is a folder", "remove it, or write to another folder")
    if file.local.exists() and not file.local.is_file():
        raise OutputError(f"output {file.name!r} is not a regular file", "write to another folder")
    above = next(folder for folder in file.local.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise OutputError(f"output {file.name!r} cannot be created: {str(above)!r} is no folder", "remove it")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(
            f"output {file.name!r} cannot be created: {str(above)!r} may not be written to", "check its permissions"
        )


def _open_locked(path: Path) -> int:
    """A descriptor of a locked file that has this name."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another run removed it between open and lock
