"""CSV files as people save them; what is wrong with one is told by line and not quoted."""

import pyarrow as pa
import pytest

from pipeline.errors import InputError
from pipeline.tuning.csv_table import read_csv

SECRET = "Xenophanes"


def read(content: bytes) -> list[dict[str, str | None]]:
    schema, batches = read_csv(content, "x.csv")
    return pa.Table.from_batches(batches, schema).to_pylist()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_separators_and_ends_of_lines_are_those_that_programs_write(separator, newline, mark):
    lines = ["id{s}body{s}truth", '1{s}"a, b; c\t""d""{n}e"{s}bíll', "", "2{s}{s}"]
    content = mark + newline.join(lines).format(s=separator, n=newline).encode() + newline.encode()
    assert read(content) == [
        {"id": "1", "body": f'a, b; c\t"d"{newline}e', "truth": "bíll"},
        {"id": "2", "body": None, "truth": None},
    ]


def test_separators_within_quotes_do_not_count():
    assert read(b'"a;b;c","d"\n1,2\n') == [{"a;b;c": "1", "d": "2"}]


def test_a_column_without_a_name_gets_one_and_long_texts_are_no_fault():
    assert read(b",body\n0," + b"x" * 200_000) == [{"column_1": "0", "body": "x" * 200_000}]


def test_a_file_with_a_header_alone_has_no_rows():
    assert read(b"a,b\n") == []


def test_many_rows_come_in_their_order():
    content = "a\n" + "".join(f"{number}\n" for number in range(20_000))
    assert [row["a"] for row in read(content.encode())] == [str(number) for number in range(20_000)]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "input 'x.csv' is empty"),
        (b"\xef\xbb\xbf \n\n", "input 'x.csv' is empty"),
        (f"a,b\n1,{SECRET}\n".encode("utf-16"), "input 'x.csv' is not UTF-8; it looks like UTF-16"),
        (f"a,b\n1,{SECRET}\n".encode("utf-16-le"), "input 'x.csv' is not UTF-8; it looks like UTF-16"),
        (f"a,b\n1,{SECRET}\n2,caf\xe9\n".encode("cp1252"), "input 'x.csv' is not UTF-8: line 3 has a byte"),
        (f"a,b\n1,2\n3,{SECRET},5\n".encode(), "line 3 of input 'x.csv' has 3 values, and its header has 2 columns"),
        (f"a,b\n1,2\n\n{SECRET}\n".encode(), "line 4 of input 'x.csv' has 1 values, and its header has 2"),
        (f'a,b\n1,"x\ny"\n3,"{SECRET}\n4,5\n'.encode(), "line 4 of input 'x.csv' begins a quote that does not end"),
        (f'a,b\n1,"{SECRET}"x\n'.encode(), "line 2 of input 'x.csv' has something behind a quote that ended"),
        (b"a,b,a\n1,2,3\n", "columns 1 and 3 of input 'x.csv' have the same name"),
    ],
)
def test_what_is_wrong_is_told_by_line_and_not_quoted(content, fault):
    with pytest.raises(InputError) as error:
        read(content)
    assert str(error.value).startswith(fault) and SECRET not in str(error.value) + error.value.hint
    assert error.value.hint
