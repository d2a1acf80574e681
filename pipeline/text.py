"""From Arrow columns to the text to label, as a polars frame.

Row i of the frame is row i of the columns. No row is lost, and no input makes polars panic: bytes that are not UTF-8
are decoded here with U+FFFD in their place, and only in the rows that have them. All work is done on columns. Knows
nothing of prompts and tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InputError
from pipeline.task import Task
from pipeline.template import split_template

# What str.strip() leaves: polars' \s is Unicode White_Space, Python adds the separators U+001C to U+001F.
_NOT_BLANK = r"[^\s\x1c-\x1f]"

# Well-formed UTF-8, byte by byte (Unicode Standard, table 3-7); Arrow matches binary columns as Latin-1.
_UTF8 = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def is_text(dtype: pa.DataType) -> bool:
    """Whether a column of this type can be text: strings, plain or dictionary-encoded, or nothing but nulls."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_kind(dtype) for is_kind in kinds)


def text_frame(columns: Mapping[str, pa.Array | pa.ChunkedArray], task: Task) -> pl.DataFrame:
    """The text of every row.

    Several columns are joined by a blank line, null and blank ones left out; in a template, null is the empty string.
    Text is otherwise unaltered. Blank is what ``str.strip`` leaves nothing of; zero-width characters are not blank.

    Args:
        columns: n values each, of at least the columns of the task, which must name some.
        task: with its text columns bound to the input.

    Returns:
        (n, 4) frame: ``row`` UInt32 from 0; ``text`` String, never null; ``blank`` Boolean: every column is null or
        blank, and then the text is empty; ``invalid_text`` Boolean: some bytes were not UTF-8 and were replaced.

    Raises:
        InputError: a column does not hold strings.
    """
    decoded = [_decode_column(columns[name], name) for name in task.columns]
    frame = pl.DataFrame(
        # Numbered, since pl.col would read a column called "*" or "^a$" as a pattern.
        {f"text{i}": part["text"] for i, part in enumerate(decoded)}
        | {f"invalid{i}": part["invalid"] for i, part in enumerate(decoded)}
    )
    parts = [pl.col(f"text{i}") for i in range(len(decoded))]
    filled = [part.str.contains(_NOT_BLANK).fill_null(False) for part in parts]
    blank = ~pl.any_horizontal(filled)
    return frame.select(
        row=pl.int_range(pl.len(), dtype=pl.UInt32),
        text=pl.when(blank).then(pl.lit("")).otherwise(_compose(task, parts, filled)),
        blank=blank,
        invalid_text=pl.any_horizontal(f"invalid{i}" for i in range(len(decoded))),
    )


def split_by_text_bytes(table: pa.Table, task: Task, max_bytes: int) -> Iterator[pa.Table]:
    """Slices of a table, in order, whose composed texts take about ``max_bytes`` each.

    Joining columns writes every row's text out, also where a dictionary holds a long one once for thousands of rows.
    The text of a single column is not copied, and its table not sliced.
    """
    n_parts = 1
    if task.template is not None or len(task.columns) > 1:
        chunks = (chunk for name in task.columns for chunk in table.column(name).chunks)
        n_parts = max(1, math.ceil(sum(map(_written_bytes, chunks)) / max_bytes))
    n_rows = max(1, math.ceil(table.num_rows / n_parts))
    for start in range(0, table.num_rows, n_rows):
        yield table.slice(start, n_rows)


def _written_bytes(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary.cast(pa.large_binary()))
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    return int(array.nbytes)


def cut_middle_chars(frame: pl.DataFrame, max_chars: int) -> pl.DataFrame:
    """Cut texts of more than ``max_chars`` characters in the middle, so that tokenizing one of megabytes stays cheap.

    Args:
        frame: with a column ``text``.
        max_chars: how many characters (code points) of a text are kept, at least 2: one half from its head, one from
            its tail, joined by " … ".

    Returns:
        The frame with the cut ``text`` and a Boolean column ``cut``.
    """
    assert max_chars >= 2
    frame = frame.with_columns(cut=pl.col("text").str.len_chars() > max_chars)
    if not frame["cut"].any():
        return frame
    head, tail = pl.col("text").str.head(max_chars - max_chars // 2), pl.col("text").str.tail(max_chars // 2)
    shortened = pl.concat_str([head, pl.lit(" … "), tail])
    return frame.with_columns(text=pl.when("cut").then(shortened).otherwise("text"))


def _compose(task: Task, parts: Sequence[pl.Expr], filled: Sequence[pl.Expr]) -> pl.Expr:
    """The text of rows with some part filled; ``parts`` and ``filled`` have one expression per column of the task."""
    if task.template is not None:
        by_name = dict(zip(task.columns, parts, strict=True))
        pieces: list[pl.Expr] = []
        for literal, name in split_template(task.template, "text"):
            pieces.append(pl.lit(literal))
            if name is not None:
                pieces.append(by_name[name].fill_null(""))
        return pl.concat_str(pieces)
    if len(parts) == 1:
        return parts[0]  # not copied, as it would be by concat_str
    kept = [pl.when(is_filled).then(part) for part, is_filled in zip(parts, filled, strict=True)]
    return pl.concat_str(kept, separator="\n\n", ignore_nulls=True)


def _decode_column(column: pa.Array | pa.ChunkedArray, name: str) -> pl.DataFrame:
    """(n,) strings of any Arrow layout → (n, 2) frame: ``text`` String, null where null; ``invalid`` Boolean."""
    if not is_text(column.type):
        hint = "choose another with --text-column NAME"
        raise InputError(f"text column {name!r} is of type {column.type}, not string", hint)
    chunks: Sequence[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pl.concat([_decode(chunk) for chunk in chunks or [pa.nulls(0)]])


def _decode(array: pa.Array) -> pl.DataFrame:
    if pa.types.is_dictionary(array.type):
        # Only the values in use: a batch of few rows may carry a dictionary of millions. Strings are gathered as views.
        used = array.indices.dictionary_encode()
        values = _decode(array.dictionary.cast(pa.large_binary()).take(used.dictionary))
        at = pl.Series(used.indices)
        return pl.DataFrame(
            {"text": values["text"].gather(at), "invalid": values["invalid"].gather(at).fill_null(False)}
        )
    raw = array.cast(pa.large_binary())  # as bytes: polars panics on a string that is not UTF-8
    try:
        return pl.DataFrame({"text": pl.Series(raw).cast(pl.String)}).with_columns(invalid=pl.lit(False))
    except pl.exceptions.ComputeError:
        return _decode_damaged(raw)


def _decode_damaged(raw: pa.LargeBinaryArray) -> pl.DataFrame:
    """As ``_decode``, for an array that holds bytes which are not UTF-8."""
    data = pl.Series(raw)
    invalid = ~pl.Series(pc.match_substring_regex(raw, _UTF8)).fill_null(True)
    at = invalid.arg_true()
    replaced = [value.decode(errors="replace").encode() for value in data.gather(at)]
    return pl.DataFrame({"text": data.scatter(at, replaced).cast(pl.String), "invalid": invalid})
