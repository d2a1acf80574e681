import itertools
from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.task import Task
from pipeline.task_file import builtin_task
from pipeline.text import cut_middle_chars, is_text, split_by_text_bytes, text_frame

BYTES_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
STRING = pa.string()
FRAME = {"row": pl.UInt32, "text": pl.String, "blank": pl.Boolean, "invalid_text": pl.Boolean}


def task_over(*columns: str) -> Task:
    return builtin_task().with_overrides(text_columns=columns)


def strings(values: Sequence[bytes | None], dtype: pa.DataType = STRING) -> pa.Array:
    """A string array of these bytes, which need not be UTF-8 (pa.array would refuse them)."""
    data = pa.array(values, BYTES_OF[dtype])
    return pa.Array.from_buffers(dtype, len(data), data.buffers())


def dictionary(values: Sequence[bytes | None], dtype: pa.DataType = STRING) -> pa.DictionaryArray:
    """A dictionary array: every other null stands in the dictionary, the others in the indices."""
    distinct = [*dict.fromkeys(values), b"unused \xff", None]
    at = [None if value is None and row % 2 else distinct.index(value) for row, value in enumerate(values)]
    return pa.DictionaryArray.from_arrays(pa.array(at, pa.int16()), strings(distinct, dtype))


def rows(column: pa.Array | pa.ChunkedArray) -> list[tuple[str, bool, bool]]:
    """(text, blank, invalid_text) of every row of one column."""
    return text_frame({"x": column}, task_over("x")).drop("row").rows()


cells = (
    st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | st.sampled_from([b"", b" \n", b"\x1c"])
)


@st.composite
def columns(draw: st.DrawFn, n_rows: int) -> tuple[list[bytes | None], pa.Array | pa.ChunkedArray]:
    """Values of one column, and the same as slices of arrays, in one chunk or many, of any type that is text."""
    values = draw(st.lists(cells, min_size=n_rows, max_size=n_rows))
    make, dtype = draw(st.sampled_from([strings, dictionary])), draw(st.sampled_from(list(BYTES_OF)))
    borders = [0, *sorted(draw(st.lists(st.integers(0, n_rows), max_size=2))), n_rows]
    chunks = [
        make([b"\xfe before", *values[start:end], b"after"], dtype).slice(1, end - start)
        for start, end in itertools.pairwise(borders)
    ]
    return values, chunks[0] if len(chunks) == 1 else pa.chunked_array(chunks)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[bytes | None]], dict[str, pa.Array | pa.ChunkedArray]]:
    n_rows = draw(st.integers(0, 6))
    drawn = draw(st.lists(columns(n_rows), min_size=1, max_size=3))
    return [values for values, _ in drawn], dict(zip(["*", "^b.*$", "c"], (array for _, array in drawn), strict=False))


def reference_rows(
    values: list[list[bytes | None]], template: Sequence[str] | None
) -> list[tuple[int, str, bool, bool]]:
    """What text_frame promises, one row at a time; a template is given as the literals around its columns."""
    expected = []
    for row, parts in enumerate(zip(*values, strict=True)):
        texts = [None if part is None else part.decode(errors="replace") for part in parts]
        filled = [text for text in texts if text is not None and text.strip()]
        invalid = any(part is not None and text.encode() != part for part, text in zip(parts, texts, strict=True))
        if not filled:
            text = ""
        elif template is None:
            text = "\n\n".join(filled)
        else:
            text = template[0] + "".join((t or "") + after for t, after in zip(texts, template[1:], strict=True))
        expected.append((row, text, not filled, invalid))
    return expected


@settings(deadline=None)
@given(tables())
def test_joined_columns_agree_with_one_row_at_a_time(table):
    values, arrays = table
    frame = text_frame(arrays, task_over(*arrays))
    assert frame.schema == FRAME
    assert frame.rows() == reference_rows(values, None)


@settings(deadline=None)
@given(tables())
def test_a_template_agrees_with_one_row_at_a_time(table):
    values, arrays = table
    literals = ["{S}: ", *["|\n"] * (len(arrays) - 1), " end"]
    names = [*("{" + name + "}" for name in arrays), ""]
    template = "".join(
        before.replace("{", "{{").replace("}", "}}") + name for before, name in zip(literals, names, strict=True)
    )
    frame = text_frame(arrays, replace(builtin_task(), template=template))
    assert frame.schema == FRAME
    assert frame.rows() == reference_rows(values, literals)


def test_text_is_left_as_it_stands_within_a_join():
    frame = text_frame({"a": pa.array([" s \n", None, "x"]), "b": pa.array(["\tb", " b", " "])}, task_over("a", "b"))
    assert frame["text"].to_list() == [" s \n\n\n\tb", " b", "x"]


def test_a_column_named_twice_in_a_template_is_filled_twice():
    task = replace(builtin_task(), template="{a}-{b}-{a}")
    assert text_frame({"a": pa.array(["1"]), "b": pa.array(["2"])}, task)["text"].to_list() == ["1-2-1"]


def test_columns_that_the_task_does_not_name_are_not_looked_at():
    frame = text_frame({"n": pa.array([1, 2, 3]), "x": pa.array(["t"])}, task_over("x"))
    assert frame.rows() == [(0, "t", False, False)]


def test_every_white_space_character_of_python_is_blank_and_no_other():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    blank = [is_blank for _, is_blank, _ in rows(pa.array(characters))]
    assert blank == [character.isspace() for character in characters]


def test_hard_text_is_kept():
    texts = ["a\x00b", "\u0301", "👩\u200d💻", "x" * 1_000_000, "\x00", "\ufeff"]
    assert rows(pa.array(texts)) == [(text, False, False) for text in texts]


@pytest.mark.parametrize("dtype", list(BYTES_OF))
@pytest.mark.parametrize("make", [strings, dictionary])
def test_bytes_that_are_not_utf8_are_replaced_in_their_rows_only(make, dtype):
    """Parquet readers let such bytes through, and polars panics on them (past any `except Exception`)."""
    values = [
        b"good",
        b"caf\xe9 au lait",
        None,
        "café".encode(),
        b"\xed\xa0\x80",
        b"cut \xf0\x9f\x98",
        b"cut \xf0\x9f\x98",
    ]
    assert rows(make(values, dtype)) == [
        ("good", False, False),
        ("caf\ufffd au lait", False, True),
        ("", True, False),
        ("café", False, False),
        ("\ufffd\ufffd\ufffd", False, True),
        ("cut \ufffd", False, True),
        ("cut \ufffd", False, True),
    ]


def test_every_border_of_utf8_is_drawn_where_python_draws_it():
    borders = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
    firsts = [borders, borders, borders, b"\xf0\xf1\xf3\xf4\xf5"]
    values = [
        b"x" + bytes(sequence)
        for n_bytes, first in enumerate(firsts, start=1)
        for sequence in itertools.product(first, *[borders] * (n_bytes - 1))
    ]
    texts = [value.decode(errors="replace") for value in values]
    expected = [(text, False, text.encode() != value) for text, value in zip(texts, values, strict=True)]
    assert rows(strings(values)) == expected


def test_a_bad_value_of_a_dictionary_marks_every_row_that_uses_it_and_none_when_unused():
    values = strings([b"good", b"\xff", None])
    used = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1, 2, None], pa.int8()), values)
    assert [invalid for _, _, invalid in rows(used)] == [True, False, True, False, False]
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 2, None], pa.int8()), values)
    assert rows(unused) == [("good", False, False), ("", True, False), ("", True, False)]


def test_chunks_with_different_dictionaries_are_read_each_with_its_own():
    column = pa.chunked_array([dictionary([b"a", b"b"]), dictionary([b"c", b"a", None])])
    assert [text for text, _, _ in rows(column)] == ["a", "b", "c", "a", ""]


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(2),
        pa.nulls(2, pa.string()),
        pa.nulls(2, pa.dictionary(pa.int8(), pa.large_string())),
        pa.nulls(2, pa.dictionary(pa.int8(), pa.null())),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_nulls_are_blank(column):
    assert rows(column) == [("", True, False), ("", True, False)]


@pytest.mark.parametrize("dtype", [pa.string(), pa.string_view(), pa.null(), pa.dictionary(pa.int32(), pa.string())])
def test_no_rows_give_an_empty_frame_of_the_same_schema(dtype):
    for column in (pa.nulls(0, dtype), pa.chunked_array([], dtype)):
        frame = text_frame({"x": column}, task_over("x"))
        assert (frame.height, frame.schema) == (0, FRAME)


@pytest.mark.parametrize(
    "dtype", [pa.int64(), pa.binary(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.int64())]
)
def test_a_column_that_holds_no_strings_is_refused(dtype):
    assert not is_text(dtype)
    with pytest.raises(InputError) as caught:
        rows(pa.nulls(1, dtype))
    assert str(caught.value) == f"text column 'x' is of type {dtype}, not string"


def cut(texts: list[str], max_chars: int) -> list[tuple[str, bool]]:
    return cut_middle_chars(pl.DataFrame({"text": texts}, schema={"text": pl.String}), max_chars).rows()


def test_a_long_text_keeps_its_first_and_last_half():
    assert cut(["abcdefgh", "abcde", "", "äöüßéè"], 5) == [
        ("abc … gh", True),
        ("abcde", False),
        ("", False),
        ("äöü … éè", True),
    ]


def test_when_no_text_is_long_no_text_changes():
    assert cut(["ab", ""], 2) == [("ab", False), ("", False)]
    assert cut([], 2) == []


def test_other_columns_are_kept_by_the_cut():
    frame = cut_middle_chars(pl.DataFrame({"row": [7], "text": ["abcdef"]}), 2)
    assert frame.to_dicts() == [{"row": 7, "text": "a … f", "cut": True}]


@settings(deadline=None)
@given(st.lists(st.text(max_size=12)), st.integers(2, 10))
def test_the_cut_agrees_with_one_text_at_a_time(texts, max_chars):
    tail = max_chars // 2
    expected = [
        (text[: max_chars - tail] + " … " + text[-tail:], True) if len(text) > max_chars else (text, False)
        for text in texts
    ]
    assert cut(texts, max_chars) == expected


def test_texts_joined_from_a_dictionary_of_long_ones_are_made_in_bounded_parts():
    """8,192 rows of a 1 MB text that a dictionary holds once took 8 GB when a subject was put before it."""
    body = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["x" * 1000]))
    table = pa.table({"subject": [f"s{i}" for i in range(100)], "body": body})
    task = builtin_task().with_overrides(text_columns=["subject", "body"])
    parts = list(split_by_text_bytes(table, task, max_bytes=20_000))
    assert [part.num_rows for part in parts] == [17] * 5 + [15]
    assert pa.concat_tables(parts).equals(table)
    alone = builtin_task().with_overrides(text_columns=["body"])
    assert [part.num_rows for part in split_by_text_bytes(table, alone, max_bytes=20_000)] == [100]


def test_parts_have_at_least_a_row_each():
    table = pa.table({"a": ["x" * 50, None], "b": ["y" * 50, "z"]})
    task = builtin_task().with_overrides(text_columns=["a", "b"])
    assert [part.num_rows for part in split_by_text_bytes(table, task, max_bytes=1)] == [1, 1]
    assert list(split_by_text_bytes(table.slice(0, 0), task, max_bytes=1)) == []
