"""What an output file keeps of its input beside rows and schema: compression, version, sort order, row groups.

Encodings, compression levels, page sizes and Bloom filters cannot be read back and are chosen anew by the writer.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.parquet.buffers import has_dictionary
from pipeline.parquet.location import Location

DEFAULT_CODEC = "ZSTD"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The physical side of one Parquet file.

    Attributes:
        location: where the file is.
        schema: its Arrow schema with all metadata.
        row_group_rows: rows of each row group.
        row_bytes: stored bytes of a row, before compression: the average of the row group where it is largest.
        codecs: compression of each leaf column in the first row group, as ``ParquetWriter`` calls it; none are known
            when the file has no row group.
        format_version: ``1.0`` or ``2.6``.
        sorting_columns: the sort order that all row groups declare.
        page_index: whether there is a page index to skip pages by.
        int96: whether every timestamp is stored as INT96, within the range of ``timestamp[ns]``.
    """

    location: Location
    schema: pa.Schema
    row_group_rows: tuple[int, ...] = ()
    row_bytes: float = 0.0
    codecs: tuple[str, ...] = ()
    format_version: str = "2.6"
    sorting_columns: tuple[pq.SortingColumn, ...] = ()
    page_index: bool = False
    int96: bool = False

    @property
    def main_codec(self) -> str:
        """The compression of most leaf columns."""
        return Counter(self.codecs).most_common(1)[0][0] if self.codecs else DEFAULT_CODEC

    @property
    def row_group_ends(self) -> tuple[int, ...]:
        """Row numbers at which an output row group must end too.

        Only where merging two row groups would do harm: rows sorted in each need not be sorted across both, and
        two dictionaries together may not fit their index type, which makes a file that cannot be read.
        """
        if self.sorting_columns or any(has_dictionary(type_) for type_ in self.schema.types):
            return tuple(accumulate(n_rows for n_rows in self.row_group_rows if n_rows))
        return ()


def read_layout(location: Location, file: pq.ParquetFile, *, ns_timestamps: bool) -> FileLayout:
    """The layout of an open file.

    Only for files of which a first batch was read without error: with a damaged footer, pyarrow's metadata of a
    column chunk ends the whole process instead of raising.
    """
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    leaves = [file.schema.column(i) for i in range(metadata.num_columns)]
    chunks = [groups[0].column(i) for i in range(len(leaves))] if groups else []
    orders = {group.sorting_columns for group in groups}
    stored_as = {leaf.physical_type for leaf in leaves if _is_timestamp(leaf)}
    return FileLayout(
        location=location,
        schema=file.schema_arrow,
        row_group_rows=tuple(group.num_rows for group in groups),
        row_bytes=max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=0.0),
        codecs=tuple(chunk.compression.replace("UNCOMPRESSED", "NONE") for chunk in chunks),
        format_version=metadata.format_version,
        sorting_columns=orders.pop() if len(orders) == 1 else (),
        page_index=any(chunk.has_offset_index for chunk in chunks),
        int96=ns_timestamps and stored_as == {"INT96"},
    )


def _is_timestamp(leaf: pq.ColumnSchema) -> bool:
    return bool(leaf.physical_type == "INT96" or leaf.logical_type.type == "TIMESTAMP")
