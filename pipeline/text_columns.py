"""Which columns of an input hold the text: those the task names, checked, or else one found by its name.

Sees an input as plain (name, holds text) pairs in column order; names may repeat. Knows nothing of Arrow.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from pipeline.errors import InputError
from pipeline.task import Task

TEXT_COLUMN_NAMES = ("text", "ticket", "body", "description", "message")
MAX_LISTED_COLUMNS = 20

_HINT = "name the text column with --text-column NAME; repeat the flag to join several"


def bind_text_columns(task: Task, fields: Sequence[tuple[str, bool]]) -> Task:
    """The task with text columns that stand in the input once each and hold text.

    Args:
        task: with text columns or a template, or without: then they are found by name.
        fields: (name, holds text) of every column of the input.

    Raises:
        InputError: a column is missing, repeated or holds no text, or none can be found by name.
    """
    if not task.columns:
        task = task.with_overrides(text_columns=find_text_columns(fields))
    for column in task.columns:
        holds_text = [is_text for name, is_text in fields if name == column]
        if not holds_text:
            near = get_close_matches(column, [name for name, _ in fields], n=1)
            hint = f"did you mean {near[0]!r}?" if near else _HINT
            raise InputError(f"text column {column!r} is not in the input; {_listed(fields)}", hint)
        if len(holds_text) > 1:
            raise InputError(
                f"text column {column!r} stands {len(holds_text)} times in the input", "rename all but one"
            )
        if not holds_text[0]:
            raise InputError(f"text column {column!r} does not hold strings; {_listed(fields)}", _HINT)
    return task


def find_text_columns(fields: Sequence[tuple[str, bool]]) -> tuple[str, ...]:
    """The text column by its name, in any case: one of ``TEXT_COLUMN_NAMES``; a ``subject`` is put before a ``body``.

    Args:
        fields: (name, holds text) of every column of the input.

    Raises:
        InputError: no column that holds text has such a name, or several have.
    """

    def called(*wanted: str) -> list[str]:
        return [name for name, is_text in fields if is_text and name.casefold() in wanted]

    found = called(*TEXT_COLUMN_NAMES)
    if not found:
        raise InputError(f"no text column is called {' or '.join(TEXT_COLUMN_NAMES)}; {_listed(fields)}", _HINT)
    subjects = called("subject") if found == called("body") else []
    if len(found) > 1 or len(subjects) > 1:
        raise InputError(f"several columns may be the text: {_quoted([*subjects, *found])}", _HINT)
    return (*subjects, *found)


def _listed(fields: Sequence[tuple[str, bool]]) -> str:
    texts = [name for name, is_text in fields if is_text]
    if texts:
        return f"columns of strings: {_quoted(texts)}"
    return f"no column holds strings; columns: {_quoted([name for name, _ in fields])}"


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return ", ".join(map(repr, names[:MAX_LISTED_COLUMNS])) + more
