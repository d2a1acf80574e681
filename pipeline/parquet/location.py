"""Where a file or a folder is: on this machine or in an object store, behind one interface.

A place is a path or a URI. ``s3://``, ``gs://``, ``abfss://`` and ``file://`` are opened by pyarrow, whose query
parameters (``?endpoint_override=…``) are part of the URI; any other scheme by whatever fsspec has installed for it.
Credentials come from where each provider's own tools look for them. Knows nothing of Parquet.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.fs

from pipeline.cache_folder import cache_folder
from pipeline.errors import StorageError, UsageError
from pipeline.parquet.uri import encoded, is_uri, public_name

PYARROW_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
MAX_SCRATCH_NAME = 50  # characters; keys may be longer than the names of files


@dataclass(frozen=True, slots=True)
class Location:
    """A place that may or may not hold something.

    Attributes:
        name: how messages call it: as it was given, without passwords and query.
        filesystem: that it lies on.
        path: of it, on that file system.
    """

    name: str
    filesystem: pa.fs.FileSystem
    path: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        return isinstance(self.filesystem, pa.fs.LocalFileSystem)

    @property
    def local(self) -> Path:
        """Its path, for places on this machine."""
        assert self.is_local
        return Path(self.path)

    @property
    def scratch(self) -> Path:
        """The local path beside which unfinished output for this place lives; the same in every run.

        For a place on this machine it is the place itself, links resolved, so that finishing is a rename.
        """
        if self.is_local:
            return Path(os.path.realpath(self.local))
        digest = hashlib.sha256(os.fsencode(self.name.rstrip("/"))).hexdigest()
        return cache_folder() / "uploads" / digest[:16] / PurePosixPath(self.path).name[-MAX_SCRATCH_NAME:]

    def info(self) -> pa.fs.FileInfo:
        """What is there: type, size, mtime_ns.

        Raises:
            OSError: the file system cannot tell; see ``failures``.
        """
        return self.filesystem.get_file_info(self.path)

    def open(self) -> pa.NativeFile:
        """The file there, for reading at any position; the caller closes it.

        Raises:
            OSError: it cannot be opened; see ``failures``.
        """
        if self.is_local:
            return pa.OSFile(self.path)  # memory stays flat: measured with this one
        return self.filesystem.open_input_file(self.path)

    def child(self, relative: str) -> "Location":
        """A place below this folder; ``relative`` has ``/`` between its parts."""
        base, path = self.name.rstrip("/"), self.path.rstrip("/")
        return Location(f"{base}/{relative}", self.filesystem, f"{path}/{relative}")


def locate(text: str) -> Location:
    """The place that a path or URI names; whether something is there is not looked up.

    Raises:
        UsageError: the scheme is unknown, or the URI is malformed.
        StorageError: the file system cannot even be set up, for instance without a network.
    """
    if not is_uri(text):
        return _local(text)
    name = public_name(text)
    try:
        filesystem, path = _opened(text)
    except (pa.ArrowException, ImportError, TypeError, ValueError) as error:
        # "from None": the error and its traceback may quote the whole URI, with a password.
        raise UsageError(f"{name!r} cannot be opened: {_reason(error, text)}", _hint(text, error)) from None
    except OSError as error:
        raise StorageError(f"{name!r} cannot be opened: {_reason(error, text)}", "run the same command again") from None
    if isinstance(filesystem, pa.fs.LocalFileSystem):
        return _local(path)
    return Location(name, filesystem, path)


def _local(path: str) -> Location:
    path = str(Path(path))
    return Location(path, pa.fs.LocalFileSystem(), path)


def _opened(text: str) -> tuple[pa.fs.FileSystem, str]:
    uri = encoded(text)
    if uri.partition("://")[0] not in PYARROW_SCHEMES:
        return _opened_by_fsspec(text)
    try:
        filesystem, path = pa.fs.FileSystem.from_uri(uri)
    except OSError:
        if not uri.startswith("s3://"):
            raise
        # The bucket's region could not be looked up: the store is unreachable, or it has no such bucket, or does not
        # say. With any region given nothing is looked up, and whoever uses the place meets the same trouble and knows
        # whether it is an input or an output.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        filesystem, path = pa.fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}region={region}")
    return _without_background_writes(filesystem, uri), path


def _without_background_writes(filesystem: pa.fs.FileSystem, uri: str) -> pa.fs.FileSystem:
    """The same file system with memory that stays flat.

    By default S3 uploads queue their parts without a bound: 500 MB to a slow store took 547 MiB of memory, without
    the queue 16 MiB. The setting has no query parameter; this is how pyarrow itself copies a file system to another
    process. It forgets ``tls_verify_certificates``, so file systems with that are left as they are.
    """
    if not isinstance(filesystem, pa.fs.S3FileSystem) or "tls_verify_certificates" in uri:
        return filesystem
    rebuild, (options,) = filesystem.__reduce__()
    return rebuild({**options, "background_writes": False})


def _opened_by_fsspec(text: str) -> tuple[pa.fs.FileSystem, str]:
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    filesystem, path = url_to_fs(text)
    if isinstance(filesystem, LocalFileSystem):
        return pa.fs.LocalFileSystem(), path
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(filesystem)), path


def _reason(error: Exception, text: str) -> str:
    reason = str(error)
    for uri in (text, encoded(text)):
        reason = reason.replace(uri, public_name(text))
    return " ".join(reason.split())


def _hint(text: str, error: Exception) -> str:
    if isinstance(error, ImportError):
        return "install what fsspec needs for this scheme"
    if "?" in text:
        return "a ? begins the options of a URI, such as ?endpoint_override=HOST:PORT; in a name write it as %3F"
    return "use s3://BUCKET/KEY, gs://BUCKET/KEY, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY, or a path"
