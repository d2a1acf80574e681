"""Whether a place holds a Parquet file that can be read, and in one line why not.

Knows the first and last bytes of files and the exceptions of pyarrow; reads no rows.
"""

import os
import stat

import pyarrow as pa
import pyarrow.fs

from pipeline.errors import InputError, InputMissingError, PipelineError, ReadError
from pipeline.parquet.failures import Failure, credentials_hint, failure_of, reason_of
from pipeline.parquet.location import Location

READ_ERRORS = (pa.ArrowException, OSError, ValueError)  # damaged names are a UnicodeDecodeError
EXPORT_AGAIN = "restore the file or export it again"
HEAD_BYTES = 512
TAIL_BYTES = 4

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


def check_magic_bytes(location: Location) -> None:
    """Check that a place holds a regular file which begins and ends as Parquet files do.

    Raises:
        InputMissingError: there is no such file.
        InputError: it is something else, or may not be read; the message says what, where that is easily told.
        ReadError: the device or the network failed.
    """
    head, tail = _local_ends(location) if location.is_local else _remote_ends(location)
    _check_ends(location, head, tail)


def _local_ends(location: Location) -> tuple[bytes, bytes]:
    """The first and last bytes of a file on this machine."""
    path = location.local
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _folder(location)
        if not stat.S_ISREG(mode):
            raise InputError(f"input {location.name!r} is not a regular file", "write it to a file first")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return head, file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing(location) from error
    except PermissionError as error:
        raise _denied(location, str(error.strerror)) from error
    except OSError as error:
        raise read_error(location, error, "cannot be read") from error


def _remote_ends(location: Location) -> tuple[bytes, bytes]:
    """The first and last bytes of an object in a store."""
    try:
        found = location.info().type
        if found == pa.fs.FileType.Directory:
            raise _folder(location)
        if found == pa.fs.FileType.NotFound:
            raise _missing(location)
        with location.open() as file:
            head = file.read(HEAD_BYTES)
            file.seek(max(0, file.size() - TAIL_BYTES))
            return head, file.read()
    except READ_ERRORS as error:
        raise read_error(location, error, "cannot be read") from error


def _check_ends(location: Location, head: bytes, tail: bytes) -> None:
    if not head:
        raise InputError(f"input {location.name!r} is empty (0 bytes), not a Parquet file", EXPORT_AGAIN)
    if b"PARE" in (head[:4], tail):
        raise _encrypted(location)
    if head[:4] != b"PAR1":
        looks = _describe(head)
        raise InputError(
            f"input {location.name!r} is not a Parquet file" + (f": it looks like {looks}" if looks else ""),
            "convert it to Parquet first",
        )
    if tail != b"PAR1":
        raise InputError(f"input {location.name!r} is truncated: its end, the Parquet footer, is missing", EXPORT_AGAIN)


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


def read_error(location: Location, error: Exception, problem: str) -> PipelineError:
    """The error to raise for one of ``READ_ERRORS``: ``problem`` says what failed, in words that follow the name."""
    reason = " ".join(str(error).split()) if location.is_local else reason_of(error)
    match failure_of(location, error):
        case Failure.UNREACHABLE:
            hint = "check the device, then run again" if location.is_local else "run the same command again"
            return ReadError(f"reading {location.name!r} failed: {reason}", hint)
        case Failure.MISSING:
            return _missing(location)
        case Failure.DENIED:
            return _denied(location, reason)
    if "decrypt" in reason:
        return _encrypted(location)
    return InputError(f"input {location.name!r} {problem}: {reason}", EXPORT_AGAIN)


def _folder(location: Location) -> InputError:
    return InputError(f"input {location.name!r} is a folder; folders are not supported yet", "give one Parquet file")


def _missing(location: Location) -> InputMissingError:
    hint = "check the path" if location.is_local else "check the bucket and the key"
    return InputMissingError(f"input {location.name!r} does not exist", hint)


def _denied(location: Location, reason: str) -> InputError:
    return InputError(f"input {location.name!r} may not be read: {reason}", credentials_hint(location))


def _encrypted(location: Location) -> InputError:
    return InputError(
        f"input {location.name!r} is encrypted, which is not supported",
        "decrypt it first, with the keys it was written with",
    )
