"""Where a task and settings meet the schema of an input: which columns hold the text, and which are added."""

import pyarrow as pa

from pipeline.added_columns import added_fields
from pipeline.errors import InputError, UsageError
from pipeline.settings import Settings
from pipeline.task import Task
from pipeline.text_columns import bind_text_columns


def bind_schema(task: Task, settings: Settings, schema: pa.Schema) -> tuple[Task, list[pa.Field]]:
    """The task with its text columns found in an input, and the fields to put behind those of the input.

    Raises:
        InputError: a text column is missing, repeated or holds no text, none can be found by name, or the input has an
            added column already.
        UsageError: two added columns have one name.
    """
    task = bind_text_columns(task, schema)
    _check_new_columns(settings, schema)
    return task, added_fields(task, settings)


def _check_new_columns(settings: Settings, schema: pa.Schema) -> None:
    names = {
        "--label-column": settings.label_column,
        "--score-column": settings.score_column,
        "--status-column": settings.status_column,
    }
    seen: dict[str, str] = {}
    for flag, name in names.items():
        if name is None:
            continue
        if name in seen:
            raise UsageError(f"{seen[name]} and {flag} are both {name!r}", "give them different names")
        if name in schema.names:
            raise InputError(
                f"the input already has a column {name!r}", f"give the added one another name: {flag} NAME"
            )
        seen[name] = flag
