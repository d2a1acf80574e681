"""Whether a path holds a Parquet file that can be read, and in one line why not.

Knows the first and last bytes of files and the exceptions of pyarrow; reads no rows.
"""

import os
import stat
from pathlib import Path

import pyarrow as pa

from pipeline.errors import InputError, InputMissingError, PipelineError, StorageError

READ_ERRORS = (pa.ArrowException, OSError, ValueError)  # damaged names are a UnicodeDecodeError
EXPORT_AGAIN = "restore the file or export it again"

FOREIGN_FORMATS = (
    (b"\x1f\x8b", "gzip"),
    (b"ARROW1", "an Arrow IPC file"),
    (b"\xff\xff\xff\xff", "an Arrow IPC stream"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"SQLite format 3", "an SQLite database"),
)


def check_magic_bytes(path: Path) -> None:
    """Check that a path is a regular file which begins and ends as Parquet files do.

    Raises:
        InputMissingError: there is no such file.
        InputError: it is something else; the message says what, where that is easily told.
        StorageError: the device failed.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"input {str(path)!r} is a folder; folders are not supported yet", "give one Parquet file")
        if not stat.S_ISREG(mode):
            raise InputError(f"input {str(path)!r} is not a regular file", "write it to a file first")
        with path.open("rb") as file:
            head = file.read(512)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4))
            tail = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputMissingError(f"input {str(path)!r} does not exist", "check the path") from error
    except PermissionError as error:
        raise InputError(f"input {str(path)!r} may not be read: {error.strerror}", "check its permissions") from error
    except OSError as error:
        raise read_error(path, error, "cannot be read") from error
    _check_ends(path, head, tail)


def _check_ends(path: Path, head: bytes, tail: bytes) -> None:
    if not head:
        raise InputError(f"input {str(path)!r} is empty (0 bytes), not a Parquet file", EXPORT_AGAIN)
    if b"PARE" in (head[:4], tail):
        raise _encrypted(path)
    if head[:4] != b"PAR1":
        looks = _describe(head)
        raise InputError(
            f"input {str(path)!r} is not a Parquet file" + (f": it looks like {looks}" if looks else ""),
            "convert it to Parquet first",
        )
    if tail != b"PAR1":
        raise InputError(f"input {str(path)!r} is truncated: its end, the Parquet footer, is missing", EXPORT_AGAIN)


def _describe(head: bytes) -> str:
    for magic, name in FOREIGN_FORMATS:
        if head.startswith(magic):
            return name
    text = head.decode("utf-8-sig", errors="ignore")
    if not text or not all(char.isprintable() or char.isspace() for char in text):
        return ""
    if text.lstrip()[:1] in ("{", "["):
        return "JSON"
    return "CSV" if any(mark in text.splitlines()[0] for mark in ",;\t|") else "plain text"


def read_error(path: Path, error: Exception, problem: str) -> PipelineError:
    """The error to raise for one of ``READ_ERRORS``: ``problem`` says what failed, in words that follow the path."""
    reason = " ".join(str(error).split())
    if getattr(error, "errno", None):
        return StorageError(f"reading {str(path)!r} failed: {reason}", "check the device, then run again")
    if "decrypt" in reason:
        return _encrypted(path)
    return InputError(f"input {str(path)!r} {problem}: {reason}", EXPORT_AGAIN)


def _encrypted(path: Path) -> InputError:
    return InputError(
        f"input {str(path)!r} is encrypted, which is not supported",
        "decrypt it first, with the keys it was written with",
    )
