"""The parts of an unfinished output: where they lie, how they become one file, and how they go away."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.fs

from pipeline.distributed.unit import Unit
from pipeline.errors import InputError, InputMissingError, OutputError, ReadError
from pipeline.parquet.location import Location
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource

FOLDER_PARTS = ".parquet_classify.parts"


def parts_beside(output: Location) -> Location:
    """The folder of a single output's parts: beside it, on the file system or in the bucket that all machines see."""
    path = str(output.scratch) if output.is_local else output.path
    folder, _, name = path.rpartition("/")
    beside = f".{name}.parts"
    return Location(
        f"{output.name.rpartition('/')[0]}/{beside}".lstrip("/") if not output.is_local else f"{folder}/{beside}",
        output.filesystem,
        f"{folder}/{beside}",
    )


def assemble(units: Sequence[Unit], sink: ParquetSink, check: Callable[[], None]) -> None:
    """Write the rows of parts, in the order of the units, as one run on one machine would have.

    Args:
        units: of one file, in order.
        sink: of its output.
        check: called often; what it raises ends it.

    Raises:
        ReadError: a part is not what its worker wrote. It is removed, or the next run would find it again.
        StorageError: the output cannot be written.
    """
    for unit in units:
        with _removed_if_damaged(unit.part), ParquetSource(unit.part) as part:
            if part.num_rows != unit.rows.n_rows:
                raise InputError(f"it holds {part.num_rows:,} rows, and {unit.rows.n_rows:,} were written")
            for batch in part.batches():
                check()
                sink.write(_in_schema(batch, sink.schema))


@contextmanager
def folders_of(units: Sequence[Unit], parts: Location) -> Iterator[None]:
    """Create the folders of all parts; those that are empty when the block ends are removed.

    Args:
        units: whose parts they are for.
        parts: the folder above them all.

    Raises:
        OutputError: they cannot be created.
    """
    folders = list(dict.fromkeys(unit.part.local.parent for unit in units if unit.part.is_local))
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"the folder {str(error.filename)!r} for unfinished parts cannot be created: {error.strerror}",
            "write to another folder",
        ) from error
    try:
        yield
    finally:
        if parts.is_local:
            for name, _, _ in os.walk(parts.local, topdown=False):
                with suppress(OSError):  # not empty, or gone
                    os.rmdir(name)


def remove_parts(folder: Location) -> None:
    """Remove a folder of parts; never fails, since the output is there already."""
    try:
        folder.filesystem.delete_dir(folder.path)
    except (OSError, pa.ArrowException):
        return


@contextmanager
def _removed_if_damaged(part: Location) -> Iterator[None]:
    try:
        yield
    except (InputError, InputMissingError) as error:
        with suppress(OSError, pa.ArrowException):
            part.filesystem.delete_file(part.path)
        raise ReadError(
            f"part {part.name!r} is damaged or gone: {error}",
            "run the same command again: only this part is done again",
        ) from error


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows, where the file format gave a column back in another type than it was given."""
    if batch.schema.types != schema.types:
        batch = batch.cast(schema)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
