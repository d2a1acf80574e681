"""Where a file or a folder is: on this machine or in an object store, behind one interface.

A place is a path or a URI. ``s3://``, ``gs://``, ``abfss://`` and ``file://`` are opened by pyarrow, whose query
parameters (``?endpoint_override=…``) are part of the URI; any other scheme by whatever fsspec has installed for it.
Credentials come from where each provider's own tools look for them. Knows nothing of Parquet.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs

from pipeline.errors import UsageError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


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

    def child(self, relative: str) -> "Location":
        """A place below this folder; ``relative`` has ``/`` between its parts."""
        base, path = self.name.rstrip("/"), self.path.rstrip("/")
        return Location(f"{base}/{relative}", self.filesystem, f"{path}/{relative}")


def is_uri(text: str) -> bool:
    """Whether a text is a URI, not a path."""
    return _URI.match(text) is not None


def locate(text: str) -> Location:
    """The place that a path or URI names; nothing is looked up there.

    Raises:
        UsageError: the scheme is unknown, or the URI is malformed.
    """
    if not is_uri(text):
        return Location(text, pa.fs.LocalFileSystem(), text)
    name = _without_secrets(text)
    try:
        filesystem, path = pa.fs.FileSystem.from_uri(text)
    except (pa.ArrowException, ValueError):
        filesystem, path = _from_fsspec(text, name)
    if isinstance(filesystem, pa.fs.LocalFileSystem):
        name = path
    return Location(name, filesystem, path)


def _from_fsspec(text: str, name: str) -> tuple[pa.fs.FileSystem, str]:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{name!r} cannot be opened: {reason}", "use s3://, gs://, abfss://, or install the scheme's fsspec package"
        ) from error
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(filesystem)), path


def _without_secrets(uri: str) -> str:
    """A URI without ``user:password@`` and query; an Azure container is a user without a password, and stays."""
    parts = urlsplit(uri)
    user, _, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{host if ':' in user else parts.netloc}{parts.path}"
