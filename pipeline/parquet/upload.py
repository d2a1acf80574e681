"""An output in an object store: written to a file on this machine, then uploaded whole.

Stores have no rename, and what is streamed to them appears when the stream is closed, which also happens when an
exception destroys it. So the rows go to a work file in the user's cache folder first, and from there to the store in
one call, at the end of which the object appears or does not.
"""

import logging
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa
import pyarrow.fs

from pipeline.errors import OutputError
from pipeline.parquet.failures import Failure, credentials_hint, failure_of, reason_of
from pipeline.parquet.location import Location
from pipeline.parquet.work_file import WorkFile, storage_errors

log = logging.getLogger(__name__)

WITH_CONTAINERS = ("s3", "gcs", "abfs")  # where the first part of a path is a bucket, which is not made here
READ_ONLY = ("http://", "https://")


class UploadedFile(WorkFile):
    """The unfinished form of one object; takes and raises what ``WorkFile`` does.

    What can be refused before any work is: a place that cannot be reached, a bucket that is not there, an object that
    is. Whether the credentials allow writing shows only when it is done.
    """

    def discard(self) -> None:
        """Remove the unfinished file and its folder; never fails."""
        super().discard()
        with suppress(OSError):  # not empty: others keep something beside it
            self._target.parent.rmdir()

    def _is_written(self, forbidden: Location) -> bool:
        same = (self.location.filesystem, self.location.path) == (forbidden.filesystem, forbidden.path)
        return same or super()._is_written(forbidden)

    def _check_target(self) -> None:
        location = self.location
        if location.name.startswith(READ_ONLY):
            raise OutputError(
                f"output {location.name!r} cannot be created: web servers are only read from",
                "write to an object store or to a file",
            )
        found = location.info().type
        if found == pa.fs.FileType.NotFound:
            check_container(location)
        elif found == pa.fs.FileType.Directory:
            raise self._is_a_folder()
        elif not self._overwrite:
            raise self._exists_already()

    def _open(self) -> BinaryIO:
        try:
            with suppress(FileNotFoundError):  # a run that ended just now removed the folder between two calls
                return self._open_in_folder()
            return self._open_in_folder()
        except BlockingIOError:
            raise
        except OSError as error:
            raise OutputError(
                f"output {self.location.name!r} cannot be kept in {str(self._target.parent)!r} until it is uploaded: "
                f"{error.strerror}",
                "set XDG_CACHE_HOME to a folder that can be written",
            ) from error

    def _open_in_folder(self) -> BinaryIO:
        self._target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return super()._open()

    def _publish(self) -> None:
        with storage_errors(self.location, "uploading"):
            self._check_target()
            upload(self._work, self.location)
        self.discard()

    def _refusal(self, error: OSError) -> OutputError:
        denied = failure_of(self.location, error) == Failure.DENIED
        return OutputError(
            f"output {self.location.name!r} cannot be created: {reason_of(error)}",
            credentials_hint(self.location) if denied else "check the endpoint and the network, then run again",
        )


def check_container(location: Location) -> None:
    """Check that the bucket that an object would be in is there; it is not made here.

    Raises:
        OutputError: it is not.
        OSError: it cannot be reached.
    """
    if location.filesystem.type_name not in WITH_CONTAINERS:
        return
    container = PurePosixPath(location.path).parts[0]
    if location.filesystem.get_file_info(container).type == pa.fs.FileType.NotFound:
        raise OutputError(
            f"output {location.name!r} cannot be created: there is no bucket {container!r}", "create the bucket first"
        )


def upload(file: Path, location: Location) -> None:
    """Copy a local file to a place in a store, and see that all of it arrived.

    Raises:
        OSError: it failed; an old object is as before.
    """
    n_bytes = file.stat().st_size
    log.info("uploading %.1f MB to %s", n_bytes / 1e6, location)
    try:
        # In C++ from end to end: an upload that fails is not finished by a destructor, as a Python stream's would be.
        pa.fs.copy_files(
            str(file),
            location.path,
            source_filesystem=pa.fs.LocalFileSystem(),
            destination_filesystem=location.filesystem,
        )
    except OSError:
        raise
    except Exception as error:  # whatever an fsspec package calls its own
        raise OSError(f"{type(error).__name__}: {error}") from error
    n_arrived = location.info().size
    if n_arrived != n_bytes:
        with suppress(OSError):
            location.filesystem.delete_file(location.path)
        raise OSError(f"{n_arrived} bytes arrived of {n_bytes}")
