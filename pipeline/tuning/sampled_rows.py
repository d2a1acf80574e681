"""The chosen rows as a table: all columns of the input, then an empty one for the truth and what the model thinks."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import InputError, UsageError
from pipeline.parquet.location import Location
from pipeline.tuning.draw import Drawn
from pipeline.tuning.rows import open_table

ROW, LABEL, SCORE = "sample_row", "sample_label", "sample_score"


def check_sample(schema: pa.Schema, truth_column: str, *, as_csv: bool, multi: bool) -> list[str]:
    """Check that rows of an input can be written with the added columns.

    Returns:
        Names of the columns that CSV has no form for, which are to be left out.

    Raises:
        InputError: the input has a column of that name.
        UsageError: the truth would be lists, which CSV has no form for, or its column has the name of another.
    """
    if truth_column in (ROW, LABEL, SCORE, ""):
        raise UsageError(f"--truth-column {truth_column!r} is no name for it", "give it another")
    for name in (truth_column, ROW, LABEL, SCORE):
        if name in schema.names:
            hint = (
                "give the empty column another name by --truth-column right for instance"
                if name == truth_column
                else "rename it"
            )
            raise InputError(f"the input already has a column {name!r}", hint)
    if not as_csv:
        return []
    if multi:
        raise UsageError("a row may have several labels, and CSV holds no lists", "write Parquet: -o rows.parquet")
    return [field.name for field in schema if _has_no_csv_form(field.type)]


def take_rows(source: Location, rows: NDArray[np.int64]) -> pa.Table:
    """Some rows of a table, in the order asked for; it is read once more."""
    ascending = np.sort(rows)
    parts, first_row = [], 0
    with open_table(source) as table:
        for batch in table.batches:
            start, end = np.searchsorted(ascending, [first_row, first_row + batch.num_rows])
            if end > start:
                parts.append(batch.take(pa.array(ascending[start:end] - first_row)))
            first_row += batch.num_rows
        found = pa.Table.from_batches(parts, schema=table.schema)
    return found.take(pa.array(np.searchsorted(ascending, rows)))


def added_columns(table: pa.Table, rows: NDArray[np.int64], drawn: Drawn, truth_column: str, multi: bool) -> pa.Table:
    """The table with the truth, empty, the number of each row in the input, and the answer and its score."""
    truth_type = pa.list_(pa.string()) if multi else pa.string()
    added = {
        truth_column: pa.nulls(len(rows), truth_type),
        ROW: pa.array(rows),
        LABEL: drawn.decision.labels,
        SCORE: drawn.decision.scores,
    }
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


def encoded(table: pa.Table, *, as_csv: bool) -> bytes:
    """The bytes of the file."""
    sink = pa.BufferOutputStream()
    if as_csv:
        plain = [pa.string() if pa.types.is_string_view(field.type) else field.type for field in table.schema]
        plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in plain]
        schema = pa.schema([field.with_type(kind) for field, kind in zip(table.schema, plain, strict=True)])
        pyarrow.csv.write_csv(table.cast(schema), sink)
    else:
        pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _has_no_csv_form(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.types.is_nested(kind) or binary or isinstance(kind, pa.BaseExtensionType)
