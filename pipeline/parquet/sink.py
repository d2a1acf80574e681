"""Writes the rows of one input file, with added columns, as one Parquet file: all or nothing.

The schema is fixed before the first row: the input's, then the added columns. What ``FileLayout`` holds of the input's
physical form is kept. Row groups hold a bounded number of rows and bytes, so memory does not grow with the file.
Knows nothing of labels.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError
from pipeline.parquet.buffers import Grouper, type_parts
from pipeline.parquet.file_layout import FileLayout
from pipeline.parquet.location import Location
from pipeline.parquet.upload import UploadedFile
from pipeline.parquet.work_file import WorkFile, storage_errors

MIN_ROW_GROUP_ROWS = 128 << 10
MAX_ROW_GROUP_ROWS = 1 << 20
MAX_ROW_GROUP_BYTES = 64 << 20
# Rows after which a page may end; after the default 1024 a page of long texts is a gigabyte. The writer holds a page
# several times over, so where rows are long each may end one; where they are short, that makes writing slower.
PAGE_CHECK_ROWS = 16
LONG_ROW_BYTES = 256 << 10

SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
SPARK_TYPES = {pa.string(): "string", pa.float32(): "float", pa.float64(): "double"}


class ParquetSink:
    """A Parquet file being written; a context manager that discards it unless it was committed.

    Args:
        location: the output; see ``WorkFile`` for links and permissions, ``UploadedFile`` for object stores.
        layout: of the input that the rows come from.
        added_fields: columns that every written batch has after those of the input.
        overwrite: whether an existing output may be replaced.

    Attributes:
        schema: what every written batch must have.

    Raises:
        InputError: the input has a column that can be read but not written.
        OutputError: the output cannot be created, exists, is the input, or is being written by another run.
        StorageError: the device failed or is full.
    """

    def __init__(
        self,
        location: Location,
        layout: FileLayout,
        added_fields: Sequence[pa.Field],
        *,
        overwrite: bool = False,
    ) -> None:
        check_writable(layout.schema)
        self.schema = output_schema(layout.schema, added_fields)
        self._location = location
        biggest_group = max(layout.row_group_rows, default=0)
        self._grouper = Grouper(min(MAX_ROW_GROUP_ROWS, max(MIN_ROW_GROUP_ROWS, biggest_group)), MAX_ROW_GROUP_BYTES)
        self._group_ends = deque(layout.row_group_ends)
        self._n_rows = 0
        options = writer_options(layout, self.schema)
        kind = WorkFile if location.is_local else UploadedFile
        self._work_file = kind(location, overwrite=overwrite, forbidden=layout.location)
        self._writer = pq.ParquetWriter(self._work_file.stream, self.schema, **options)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows after those written so far.

        Raises:
            StorageError: the device failed or is full.
        """
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            while batch.num_rows:
                n_rows = min(batch.num_rows, self._group_ends[0] - self._n_rows) if self._group_ends else batch.num_rows
                self._write_groups(self._grouper.add(batch.slice(0, n_rows)))
                self._n_rows += n_rows
                batch = batch.slice(n_rows)
                if self._group_ends and self._n_rows == self._group_ends[0]:
                    self._group_ends.popleft()
                    self._write_groups(self._grouper.flush())

    def commit(self, metadata: Mapping[bytes, bytes] | None = None) -> None:
        """Write what is held and let the output appear under its name.

        Args:
            metadata: entries for the file's footer, which is written only now; the schema's metadata stays as it is.

        Raises:
            StorageError: the device failed or is full, or the upload failed; an old output is as before.
            OutputError: an output came into being meanwhile and may not be overwritten.
        """
        self._write_groups(self._grouper.flush())
        with storage_errors(self._location):
            if metadata:
                self._writer.add_key_value_metadata(metadata)
            self._writer.close()
        self._work_file.commit()

    def abort(self) -> None:
        """Leave no trace of the output, unless it was committed; never fails."""
        self._writer.is_open = False  # or it would write a footer when it is garbage-collected
        self._work_file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def _write_groups(self, groups: Iterator[pa.Table]) -> None:
        with storage_errors(self._location):
            for group in groups:
                self._writer.write_table(group, row_group_size=group.num_rows)


def check_writable(schema: pa.Schema) -> None:
    """Check that all columns can be written, whatever their values.

    Raises:
        InputError: one cannot. pyarrow 26 fails at some nulls around nested string views ("Slicing not implemented").
    """
    for field in schema:
        _, *nested = type_parts(field.type)
        if any(pa.types.is_string_view(part) or pa.types.is_binary_view(part) for part in nested):
            raise InputError(
                f"column {field.name!r} of the input is {field.type}, and nested views cannot be written",
                "store that column with plain strings first",
            )


def output_schema(schema: pa.Schema, added_fields: Sequence[pa.Field]) -> pa.Schema:
    """The input's schema with fields added.

    Spark believes its own copy of the schema in the metadata and would not see columns that are missing from it, so
    that copy is extended; where it cannot be, it is left out, and Spark derives it from the file.
    """
    kept = dict(schema.metadata or {})
    if SPARK_SCHEMA_KEY in kept:
        kept.update(_extended_spark_schema(kept.pop(SPARK_SCHEMA_KEY), added_fields))
    return pa.schema([*schema, *added_fields], metadata=kept or None)


def writer_options(layout: FileLayout, schema: pa.Schema) -> dict[str, Any]:
    """Options of ``pq.ParquetWriter`` that keep the layout of an input.

    Args:
        layout: of the input.
        schema: of the output; columns beyond those of the input get its main codec.
    """
    options: dict[str, Any] = {
        "use_deprecated_int96_timestamps": layout.int96,
        "use_compliant_nested_type": False,  # keeps the names of list items, whatever they are
    }
    # Written empty, the schema shows what version 1.0 cannot hold, and by which paths the writer knows the leaves.
    empty = _write_empty(schema, version=layout.format_version, **options)
    leaves = [empty.schema.column(i).path for i in range(empty.metadata.num_columns)]
    codecs = [*layout.codecs, *[layout.main_codec] * (len(leaves) - len(layout.codecs))]
    return options | {
        "version": layout.format_version if empty.schema_arrow.types == schema.types else "2.6",
        "compression": dict(zip(leaves, codecs, strict=True)),
        "sorting_columns": layout.sorting_columns or None,
        "write_page_index": layout.page_index,
        "write_batch_size": PAGE_CHECK_ROWS if layout.row_bytes < LONG_ROW_BYTES else 1,
        "write_page_checksum": True,  # without one, a damaged page may read back as other values
    }


def _write_empty(schema: pa.Schema, **options: Any) -> pq.ParquetFile:
    stream = pa.BufferOutputStream()
    pq.ParquetWriter(stream, schema, **options).close()
    return pq.ParquetFile(pa.BufferReader(stream.getvalue()))


def _extended_spark_schema(text: bytes, added_fields: Sequence[pa.Field]) -> dict[bytes, bytes]:
    try:
        struct = json.loads(text)
        struct["fields"] += [
            {"name": field.name, "type": _spark_type(field.type), "nullable": field.nullable, "metadata": {}}
            for field in added_fields
        ]
    except (ValueError, TypeError, KeyError):
        return {}
    return {SPARK_SCHEMA_KEY: json.dumps(struct, separators=(",", ":")).encode()}


def _spark_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    return SPARK_TYPES[kind]
