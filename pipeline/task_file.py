"""From a TOML task file to a ``Task``: a file overrides the built-in task key by key.

Every fault of a file is a ``UsageError`` that names the file, the key, the value and what is allowed. The built-in task
is such a file too, ``tasks/tickets.toml``; it sets every key.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from pipeline.errors import UsageError
from pipeline.task import Task

MAX_TASK_FILE_BYTES = 1 << 20

_STRING_KEYS = ("system", "user", "answer", "scoring", "calibration")
_KEYS = ("text", *_STRING_KEYS, "labels")


@cache
def builtin_task() -> Task:
    """The task that is asked when no file is given: three labels for support tickets."""
    table = tomllib.loads(files("pipeline").joinpath("tasks/tickets.toml").read_text(encoding="utf-8"))
    return Task(name="tickets", **_fields(table))


def load_task(path: str | Path) -> Task:
    """Read a task file over the built-in task; the task is named for the file.

    Raises:
        UsageError: the file cannot be read, is not TOML in UTF-8, or holds a key or value that is not allowed.
    """
    where = f"task file {str(path)!r}"
    return replace(task_from_toml(_read(Path(path), where), where), name=Path(path).stem)


def task_from_toml(toml: str, where: str) -> Task:
    """Read TOML text over the built-in task.

    Args:
        toml: content of a task file.
        where: what to call it in messages and as the name of the task.

    Raises:
        UsageError: the text is not TOML, or holds a key or value that is not allowed.
    """
    try:
        return replace(builtin_task(), name=where, **_fields(tomllib.loads(toml)))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}", error.hint) from None


def _read(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TASK_FILE_BYTES + 1)  # never more: it may be a table of many gigabytes
    except FileNotFoundError:
        hint = f"a file to start from: {files('pipeline').joinpath('tasks/tickets.toml')}"
        raise UsageError(f"{where} does not exist", hint) from None
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    if content.startswith(b"PAR1"):
        raise UsageError(f"{where} is a Parquet file", "the input stands first: INPUT OUTPUT --task FILE.toml")
    if len(content) > MAX_TASK_FILE_BYTES:
        raise UsageError(f"{where} is larger than {MAX_TASK_FILE_BYTES} bytes, the most a task file may have")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = content[error.start : error.start + 1]
        raise UsageError(f"{where} is not UTF-8: {bad!r} at byte {error.start}", "save it as UTF-8") from None


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Task`` that a parsed file sets, with values of the right type."""
    for key in table:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1, cutoff=0.0)[0]
            raise UsageError(f"unknown key {key!r}; the nearest known key is {near!r}", f"known: {', '.join(_KEYS)}")
    fields: dict[str, Any] = {}
    if "text" in table:
        fields |= _text_fields(table["text"])
    for key in _STRING_KEYS:
        if key in table:
            fields[key] = _string(table[key], key)
    if "labels" in table:
        fields["labels"] = _labels(table["labels"], table)
    return fields


def _text_fields(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": (), "template": value}
    if isinstance(value, list) and all(isinstance(column, str) for column in value):
        return {"text": tuple(value), "template": None}
    raise UsageError(f"text: {short_repr(value)} is neither an array of column names nor a template string")


def _labels(value: object, table: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        hint = 'write a line [labels], and below it one line per label: billing = "payments, invoices"'
        raise UsageError(f"labels: {short_repr(value)} is not a table of label = description", hint)
    for name in value:
        # In TOML a key written below [labels] belongs to that table: a setting would silently become a label.
        if name in _KEYS and name not in table:
            hint = f"move {name!r} above the line [labels]; if it is a label, set the key {name!r} too, above that line"
            raise UsageError(f"labels: {name!r} is a key of the task file", hint)
    return tuple((name, _string(description, f"labels.{name}")) for name, description in value.items())


def _string(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{place}: {short_repr(value)} is not a string", 'write it in quotes: "…"')
    return value
