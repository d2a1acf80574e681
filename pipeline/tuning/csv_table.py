"""A CSV file, as people save it, as a table of strings: in UTF-8, with a comma, a semicolon or a tab between values.

A value that is empty is null. Nothing is guessed beyond the separator, which the header tells: a row of another length,
or a quote that does not end, is a fault of the file. Messages name lines, and quote nothing of them.
"""

import csv
import io
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.errors import InputError

SUFFIXES = (".csv", ".tsv")
SEPARATORS = ",;\t"
BATCH_ROWS = 8192
SAVE_AGAIN = "save it as UTF-8 CSV, or give a Parquet file"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_csv(content: bytes, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns of a file, and its rows as batches.

    Args:
        content: of the file, which is checked whole before this returns.
        name: of the file, for messages.

    Raises:
        InputError: it is empty, in another encoding, or no table.
    """
    text = _decoded(content, name)
    if not text.strip():
        raise InputError(f"input {name!r} is empty", "give a CSV file with a line of column names, or a Parquet file")
    before = csv.field_size_limit(len(text) + 1)  # the library's own limit is shorter than some texts
    try:
        records = list(_records(text, name))
    finally:
        csv.field_size_limit(before)
    (_, header), *rows = records
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"line {line:,} of input {name!r} has {len(row):,} values, and its header has {len(header):,} columns",
                f"put quotes around values with the separator in them; {SAVE_AGAIN}",
            )
    names = [column or f"column_{place}" for place, column in enumerate(header, 1)]
    for place, column in enumerate(names):
        if column in names[:place]:
            first = names.index(column) + 1
            raise InputError(
                f"columns {first:,} and {place + 1:,} of input {name!r} have the same name", "rename one of them"
            )
    schema = pa.schema([(column, pa.large_string()) for column in names])
    return schema, _batches([row for _, row in rows], schema)


def _batches(rows: Sequence[Sequence[str]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), BATCH_ROWS):
        values = zip(*rows[start : start + BATCH_ROWS], strict=True)
        yield pa.record_batch([pa.array([value or None for value in own], pa.large_string()) for own in values], schema)


def _decoded(content: bytes, name: str) -> str:
    if content.startswith(_UTF16) or b"\x00" in content:
        raise InputError(f"input {name!r} is not UTF-8; it looks like UTF-16", SAVE_AGAIN)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # of what comes after a mark at its beginning
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"input {name!r} is not UTF-8: line {line:,} has a byte that is no part of it", SAVE_AGAIN
        ) from None


def _records(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each record that is not blank, with the line that it begins on."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    line = 1
    try:
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        is_open = "end of data" in str(error)
        fault = "begins a quote that does not end" if is_open else "has something behind a quote that ended"
        raise InputError(
            f"line {line:,} of input {name!r} {fault}", f"double the quotes within values; {SAVE_AGAIN}"
        ) from None


def _separator(text: str) -> str:
    """What stands most often in the header, outside quotes; a comma where nothing does."""
    counts, is_quoted = dict.fromkeys(SEPARATORS, 0), False
    for char in text.lstrip("\r\n"):
        if char == '"':
            is_quoted = not is_quoted
        elif not is_quoted and char in "\r\n":
            break
        elif not is_quoted and char in counts:
            counts[char] += 1
    return max(counts, key=lambda char: counts[char])
