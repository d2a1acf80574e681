"""Which columns of an input hold the text: those the task names, checked, or else one found by its name.

Names are exact and top-level. pyarrow's own selection by name also matches struct fields, takes every duplicate and
ignores what is missing, so names are looked up here.
"""

from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa

from pipeline.errors import InputError
from pipeline.task import Task
from pipeline.text import is_text

TEXT_COLUMN_NAMES = ("text", "ticket", "body", "description", "message")
MAX_LISTED_COLUMNS = 20

_HINT = "name the text column with --text-column NAME; repeat the flag to join several"


def bind_text_columns(task: Task, schema: pa.Schema) -> Task:
    """The task with text columns that stand in the input once each and hold text.

    Args:
        task: with text columns or a template, or without: then they are found by name.
        schema: of the input.

    Raises:
        InputError: a column is missing, nested, repeated or holds no text, or none can be found by name.
    """
    if not task.columns:
        task = task.with_overrides(text_columns=find_text_columns(schema))
    for column in task.columns:
        types = [field.type for field in schema if field.name == column]
        if not types:
            raise _missing(column, schema)
        if len(types) > 1:
            raise InputError(f"text column {column!r} stands {len(types)} times in the input", "rename all but one")
        if not is_text(types[0]):
            raise InputError(f"text column {column!r} holds {types[0]}, not strings; {_listed(schema)}", _HINT)
    return task


def find_text_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The text column by its name, in any case: one of ``TEXT_COLUMN_NAMES``; a ``subject`` is put before a ``body``.

    Raises:
        InputError: no column that holds text has such a name, or several have.
    """

    def called(*wanted: str) -> list[str]:
        return [name for name in _text_names(schema) if name.casefold() in wanted]

    found = called(*TEXT_COLUMN_NAMES)
    if not found:
        raise InputError(f"no text column is called {' or '.join(TEXT_COLUMN_NAMES)}; {_listed(schema)}", _HINT)
    subjects = called("subject") if found == called("body") else []
    if len(found) > 1 or len(subjects) > 1:
        raise InputError(f"several columns may be the text: {_quoted([*subjects, *found])}", _HINT)
    return (*subjects, *found)


def _missing(column: str, schema: pa.Schema) -> InputError:
    parent = column.partition(".")[0]
    if any(field.name == parent and field.type.num_fields for field in schema):
        problem = f"text column {column!r} would be a field inside column {parent!r}, which is not supported"
    else:
        problem = f"text column {column!r} is not in the input"
    near = get_close_matches(column, schema.names, n=1)
    return InputError(f"{problem}; {_listed(schema)}", f"did you mean {near[0]!r}?" if near else _HINT)


def _text_names(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if is_text(field.type)]


def _listed(schema: pa.Schema) -> str:
    if names := _text_names(schema):
        return f"columns of strings: {_quoted(names)}"
    return f"no column holds strings; columns: {_quoted(schema.names)}"


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return ", ".join(map(repr, names[:MAX_LISTED_COLUMNS])) + more
