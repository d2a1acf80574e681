from dataclasses import replace

import pyarrow as pa
import pytest

from pipeline.errors import InputError
from pipeline.task import Task
from pipeline.task_file import builtin_task
from pipeline.text_columns import bind_text_columns, find_text_columns


def fields(*names: str, no_text: tuple[str, ...] = ("id",)) -> pa.Schema:
    return pa.schema([(name, pa.int64() if name in no_text else pa.string()) for name in names])


def task_over(*columns: str) -> Task:
    return builtin_task().with_overrides(text_columns=columns)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("id", "text"), ("text",)),
        (("Ticket", "author"), ("Ticket",)),
        (("DESCRIPTION",), ("DESCRIPTION",)),
        (("message", "title"), ("message",)),
        (("body", "id"), ("body",)),
        (("body", "subject"), ("subject", "body")),
        (("Subject", "Body"), ("Subject", "Body")),
        (("subject", "text"), ("text",)),
    ],
)
def test_the_text_column_is_found_by_name(names, found):
    assert find_text_columns(fields(*names)) == found


def test_columns_without_strings_are_no_candidates():
    assert find_text_columns(fields("text", "body", no_text=("text",))) == ("body",)
    assert find_text_columns(fields("subject", "body", no_text=("subject",))) == ("body",)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (("text", "body"), "'text', 'body'"),
        (("text", "Text"), "'text', 'Text'"),
        (("text", "text"), "'text', 'text'"),
        (("subject", "Subject", "body"), "'subject', 'Subject', 'body'"),
    ],
)
def test_several_candidates_are_refused_and_listed(names, listed):
    with pytest.raises(InputError) as caught:
        find_text_columns(fields(*names))
    assert str(caught.value) == f"several columns may be the text: {listed}"
    assert "--text-column" in caught.value.hint


def test_without_a_candidate_the_columns_of_strings_are_listed():
    with pytest.raises(InputError, match=r"; columns of strings: 'subject', 'note'$") as caught:
        find_text_columns(fields("id", "subject", "note"))
    assert "--text-column" in caught.value.hint


@pytest.mark.parametrize(("names", "listed"), [((), ""), (("id", "text"), "'id', 'text'")])
def test_without_any_column_of_strings_the_message_says_so(names, listed):
    with pytest.raises(InputError, match=f"; no column holds strings; columns: {listed}$"):
        find_text_columns(fields(*names, no_text=("id", "text")))


def test_a_wide_input_is_listed_in_part():
    with pytest.raises(InputError, match=r"'c19' and 480 more$"):
        find_text_columns(fields(*(f"c{i}" for i in range(500))))


def test_binding_finds_the_columns_of_a_task_without_any():
    assert bind_text_columns(builtin_task(), fields("id", "body", "subject")).text == ("subject", "body")


def test_binding_leaves_a_task_with_good_columns_as_it_is():
    task = task_over("note", "text")
    assert bind_text_columns(task, fields("text", "id", "note", "body")) is task


@pytest.mark.parametrize(
    ("column", "message", "hint"),
    [
        (
            "nott",
            "text column 'nott' is not in the input; columns of strings: 'note', 'two', 'two'",
            "did you mean 'note'",
        ),
        (
            "zzz",
            "text column 'zzz' is not in the input; columns of strings: ",
            "name the text column with --text-column",
        ),
        ("Note", "text column 'Note' is not in the input; ", "did you mean 'note'?"),
        ("two", "text column 'two' stands 2 times in the input", "rename all but one"),
        (
            "id",
            "text column 'id' holds int64, not strings; columns of strings: ",
            "name the text column with --text-column",
        ),
    ],
)
def test_a_named_column_that_is_missing_repeated_or_no_text_is_refused(column, message, hint):
    with pytest.raises(InputError) as caught:
        bind_text_columns(task_over("note", column), fields("id", "note", "two", "two"))
    assert str(caught.value).startswith(message)
    assert caught.value.hint.startswith(hint)


def test_a_found_name_that_a_column_of_numbers_bears_too_is_refused():
    """Columns are read by name: a string column `text` beside a number column `text` could not be told apart."""
    with pytest.raises(InputError, match="'text' stands 2 times"):
        bind_text_columns(builtin_task(), pa.schema([("text", pa.string()), ("text", pa.int64())]))


def test_the_columns_of_a_template_are_checked_too():
    task = replace(builtin_task(), template="{note} {nope}")
    with pytest.raises(InputError, match="text column 'nope' is not in the input"):
        bind_text_columns(task, fields("note"))


def test_a_name_with_dots_is_the_column_of_that_name_not_a_field():
    schema = pa.schema([("a", pa.struct([("b", pa.string())])), ("a.b", pa.string())])
    assert bind_text_columns(task_over("a.b"), schema).columns == ("a.b",)


def test_a_field_of_a_struct_is_said_not_to_be_supported():
    schema = pa.schema([("ticket", pa.struct([("text", pa.string())])), ("note", pa.string())])
    with pytest.raises(InputError, match="inside column 'ticket', which is not supported; columns of strings: 'note'"):
        bind_text_columns(task_over("ticket.text"), schema)


def test_a_column_name_with_a_newline_does_not_break_the_line():
    with pytest.raises(InputError, match=r"'new\\nline'$"):
        find_text_columns(pa.schema([("new\nline", pa.string())]))


@pytest.mark.parametrize(
    "type_",
    [pa.int64(), pa.binary(), pa.struct([("text", pa.string())]), pa.dictionary(pa.int8(), pa.int64())],
    ids=str,
)
def test_a_column_of_another_type_is_refused_with_its_type(type_):
    with pytest.raises(InputError) as caught:
        bind_text_columns(task_over("text"), pa.schema([("text", type_)]))
    assert f"holds {type_}, not strings" in str(caught.value)
