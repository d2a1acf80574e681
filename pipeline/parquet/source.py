"""One Parquet file as a stream of record batches, with memory that does not grow with the file.

Every row comes out once, in order, with the types and metadata the file declares. What cannot be read is an error
that names the file and, inside it, the row group and the column. Batches are small (about ``max_bytes`` decoded, at
most a few hundred rows); ``buffers.buffers`` makes larger ones. The reader must still hold one page and one dictionary
per column at a time, as large as the file's writer made them. Knows nothing of labels, and folders are another stage's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, PipelineError
from pipeline.parquet.buffers import dictionary_bytes, share_dictionaries
from pipeline.parquet.failures import failure_of
from pipeline.parquet.file_layout import FileLayout, read_layout
from pipeline.parquet.input_file import EXPORT_AGAIN, READ_ERRORS, check_magic_bytes, read_error
from pipeline.parquet.location import Location

MAX_READ_ROWS = 256  # 8192 rows are read no faster; with one long text each they would be gigabytes
MAX_READ_BYTES = 4 << 20
FIRST_READ_ROWS = 16
MAX_SHORT_READ_ROWS = 8192  # where rows are known to be short
FILE_STREAM_BYTES = 64 << 20  # read-ahead of all columns together
MIN_COLUMN_STREAM_BYTES = 16 << 10
MAX_COLUMN_STREAM_BYTES = 1 << 20


class ParquetSource:
    """An open Parquet file; a context manager.

    INT96 timestamps (Spark 2, Impala) are read as ``timestamp[ns]``. If any lies outside the years 1677 to 2262, where
    nanoseconds wrap silently to wrong dates, all of the file's are read as ``timestamp[us]``, which drops what they
    hold below a microsecond. To know, opening reads the INT96 columns once.

    Args:
        location: of a regular file or an object, which is read piece by piece.
        max_rows: rows of a batch; may be exceeded where batches carry large dictionaries.
        max_bytes: bytes of Arrow memory a batch should have. Sizes adapt to the rows seen so far, so that a batch
            where rows suddenly get longer may be larger.
        limit: read only the first rows.
        row_groups: read only these, which are neighbours; None for all.

    Attributes:
        location: what it was opened from.
        schema: the Arrow schema of every batch, with all metadata.
        num_rows: rows that will be read.
        metadata: the file's footer.
        layout: what an output should keep of the file beside rows and schema.

    Raises:
        InputMissingError: there is no such file.
        InputError: it is not a readable Parquet file, or encrypted.
        ReadError: the device or the network failed.
    """

    def __init__(
        self,
        location: Location,
        *,
        max_rows: int = MAX_READ_ROWS,
        max_bytes: int = MAX_READ_BYTES,
        limit: int | None = None,
        row_groups: range | None = None,
    ) -> None:
        check_magic_bytes(location)
        self.location = location
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._file = _open_parquet(location, int96_unit="ns")
        int96_leaves = [leaf for leaf in range(self._n_leaves) if self._leaf(leaf).physical_type == "INT96"]
        ns_timestamps = not int96_leaves or self._fits_nanoseconds(int96_leaves)
        if not ns_timestamps:
            self.close()
            self._file = _open_parquet(location, int96_unit="us")
        self._check_footer()
        # What was decoded to check the file is free again, but the allocator would keep it while a model is loaded.
        pa.default_memory_pool().release_unused()
        self.metadata: pq.FileMetaData = self._file.metadata
        self.layout: FileLayout = read_layout(location, self._file, ns_timestamps=ns_timestamps)
        self.schema: pa.Schema = self.layout.schema
        self._groups = range(self.metadata.num_row_groups) if row_groups is None else row_groups
        group_rows = tuple(self.layout.row_group_rows[group] for group in self._groups)
        if row_groups is not None:
            self.layout = replace(self.layout, row_group_rows=group_rows)
        self.num_rows: int = sum(group_rows) if limit is None else min(limit, sum(group_rows))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in order; each call starts anew.

        Args:
            columns: names of those to read, as pyarrow selects them (``text_columns`` says what is special about
                that); None for all, in the order of the schema.

        Raises:
            InputError: a page is damaged.
            ReadError: the device or the network failed.
        """
        pace = ReadPace(self._max_rows, self._max_bytes)
        batch: pa.RecordBatch | None = None
        n_rows_left = self.num_rows
        for group in self._groups:
            if not n_rows_left:
                return
            for read_batch in self._group_batches(group, pace, columns):
                batch = share_dictionaries(read_batch.slice(0, n_rows_left), earlier=batch)
                n_rows_left -= batch.num_rows
                yield batch
                if not n_rows_left:
                    break

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def _n_leaves(self) -> int:
        return int(self._file.metadata.num_columns)

    def _leaf(self, leaf: int) -> pq.ColumnSchema:
        return self._file.schema.column(leaf)

    def _group_batches(self, group: int, pace: "ReadPace", columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        stored = self._file.metadata.row_group(group)
        pace.enter(stored.total_byte_size / max(1, stored.num_rows))
        n_rows = 0
        read_batches = self._file.iter_batches(batch_size=pace.n_rows, row_groups=[group], columns=columns)
        for batch in self._guarded(read_batches, group):
            n_rows += batch.num_rows
            pace.see(batch)
            self._file.reader.set_batch_size(pace.n_rows)  # holds for the next batch of the running iterator
            yield batch
        if n_rows != stored.num_rows:
            raise self._miscounted(f"row group {group} holds {n_rows} rows, the footer says {stored.num_rows}")

    def _fits_nanoseconds(self, leaves: list[int]) -> bool:
        """Whether all INT96 timestamps lie within the range of ``timestamp[ns]``."""
        wide_file = _open_parquet(self.location, int96_unit="us")
        for group in range(self._file.metadata.num_row_groups):
            wide, narrow = (
                self._guarded(file.reader.iter_batches(MAX_SHORT_READ_ROWS, [group], leaves), group)
                for file in (wide_file, self._file)
            )
            if not all(_can_cast(batch, other.schema) for batch, other in zip(wide, narrow, strict=True)):
                return False
        return True

    def _check_footer(self) -> None:
        """Count rows, and read one: what cannot be read at all fails here, and ``read_layout`` depends on it."""
        metadata = self._file.metadata
        n_rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        if n_rows != metadata.num_rows:
            raise self._miscounted(f"its row groups have {n_rows} rows, the footer says {metadata.num_rows}")
        if metadata.num_row_groups:
            next(self._guarded(self._file.iter_batches(batch_size=1, row_groups=[0]), 0), None)

    def _guarded(self, batches: Iterator[pa.RecordBatch], group: int) -> Iterator[pa.RecordBatch]:
        """The same batches; what pyarrow raises becomes an error that names the row group."""
        while True:
            try:
                batch = next(batches, None)
            except READ_ERRORS as error:
                raise self._unreadable(error, group) from error
            if batch is None:
                return
            yield batch

    def _miscounted(self, contradiction: str) -> InputError:
        return InputError(f"input {self.location.name!r} is damaged: {contradiction}", EXPORT_AGAIN)

    def _unreadable(self, error: Exception, group: int) -> PipelineError:
        place = f"row group {group}"
        if failure_of(self.location, error) is None and (leaf := self._damaged_leaf(group)) is not None:
            place += f", column {self._leaf(leaf).path!r}"
        return read_error(self.location, error, f"cannot be read at {place}")

    def _damaged_leaf(self, group: int) -> int | None:
        """The first leaf column of a row group that cannot be read by itself."""
        for leaf in range(self._n_leaves):
            try:
                for _ in self._file.reader.iter_batches(FIRST_READ_ROWS, [group], [leaf]):
                    pass
            except READ_ERRORS:
                return leaf
        return None


@dataclass(slots=True)
class ReadPace:
    """How many rows to read next, so that they decode to about ``max_bytes``.

    Starts small and at most doubles, because a footer tells the stored size only, and dictionaries hide the rest.

    Attributes:
        max_rows: the bound where rows are short.
        max_bytes: of a batch, without its dictionaries.
        n_rows: rows to read next.
        seen_row_bytes: the most bytes a row had lately, as decoded.
        stored_row_bytes: average bytes of a row in the current row group, as stored; long rows may be yet to come.
    """

    max_rows: int
    max_bytes: int
    n_rows: int = FIRST_READ_ROWS
    seen_row_bytes: float = 0.0
    stored_row_bytes: float = 1.0

    @property
    def row_bytes(self) -> float:
        """Bytes to expect of one row."""
        return max(self.seen_row_bytes, self.stored_row_bytes)

    def enter(self, stored_row_bytes: float) -> None:
        """A row group begins, whose rows have this many bytes on average as stored."""
        self.stored_row_bytes = max(1.0, stored_row_bytes)
        self._fit(min(self.n_rows, self.max_rows))

    def see(self, batch: pa.RecordBatch) -> None:
        """A batch was read."""
        n_dictionary_bytes = sum(dictionary_bytes(batch).values())
        n_row_bytes = batch.nbytes - n_dictionary_bytes
        self.seen_row_bytes = max(n_row_bytes / max(1, batch.num_rows), 0.9 * self.seen_row_bytes)
        # Each batch comes with its own copy of the dictionaries: read as many bytes of rows for it.
        worthwhile = min(MAX_SHORT_READ_ROWS, n_dictionary_bytes / self.row_bytes)
        self._fit(min(2 * self.n_rows, max(self.max_rows, worthwhile)))

    def _fit(self, n_rows: float) -> None:
        self.n_rows = max(1, int(min(n_rows, self.max_bytes / self.row_bytes)))


def _open_parquet(location: Location, int96_unit: str) -> pq.ParquetFile:
    try:
        handle = location.open()
        metadata = pq.read_metadata(handle)
        stream_bytes = FILE_STREAM_BYTES // max(1, metadata.num_columns)
        file = pq.ParquetFile(
            handle,
            metadata=metadata,
            # By default all of the file's columns are read ahead, and memory grows with the file.
            pre_buffer=False,
            buffer_size=min(MAX_COLUMN_STREAM_BYTES, max(MIN_COLUMN_STREAM_BYTES, stream_bytes)),
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=int96_unit,
        )
        _ = file.schema_arrow.names, [file.schema.column(i).path for i in range(metadata.num_columns)]  # decodes them
        return file
    except READ_ERRORS as error:
        raise read_error(location, error, "has a damaged footer") from error


def _can_cast(batch: pa.RecordBatch, schema: pa.Schema) -> bool:
    try:
        batch.cast(schema)
    except pa.ArrowInvalid:
        return False
    return True
