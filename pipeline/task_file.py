"""From a TOML task file to a ``Task``: a file overrides the built-in task key by key.

Every fault of a file is a ``UsageError`` that names the file, the key, the value and what is allowed. Built-in tasks
are such files too, ``tasks/NAME.toml``; ``tickets``, which all others override, sets every key.

A file that sets ``labels`` replaces all that speaks of labels: ``answers``, ``thresholds`` and ``examples`` of the task
below it are dropped, unless the file sets them. TOML has no null: where a ``Task`` may have None, a file has "".
"""

import os
import tomllib
from collections.abc import Collection, Mapping
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
BUILTIN = "builtin:"

_MULTI_KEYS = ("question", "yes", "no")
_STRING_KEYS = ("system", "user", "answer", "scoring", "calibration", "mode", *_MULTI_KEYS, "default_label", "head")
_NUMBER_KEYS = ("min_score", "min_margin")
_KEYS = ("text", *_STRING_KEYS, *_NUMBER_KEYS, "labels", "answers", "thresholds", "examples")


def builtin_names() -> tuple[str, ...]:
    """Names of the tasks that come with the program."""
    names = (file.name for file in files("pipeline").joinpath("tasks").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@cache
def builtin_task(name: str = "tickets") -> Task:
    """A task that comes with the program; ``tickets``, three labels for support tickets, when none is asked for.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in builtin_names():
        near = get_close_matches(name, builtin_names(), n=1, cutoff=0.0)[0]
        hint = f"there are {', '.join(BUILTIN + known for known in builtin_names())}"
        raise UsageError(f"task {BUILTIN + name!r} does not exist; the nearest is {BUILTIN + near!r}", hint)
    fields = _fields(tomllib.loads(builtin_toml(name)), Path())
    if name == "tickets":
        return Task(name=name, **fields, labels_given=False)
    return replace(builtin_task(), name=name, **fields, labels_given=True)


def builtin_toml(name: str) -> str:
    """The file of a built-in task."""
    return files("pipeline").joinpath(f"tasks/{name}.toml").read_text(encoding="utf-8")


def load_task(path: str | Path) -> Task:
    """Read a task file over the built-in task; the task is named for the file.

    Args:
        path: of the file; or ``builtin:NAME`` for a built-in task, which a file called so can be told from by ``./``.

    Raises:
        UsageError: the file cannot be read, is not TOML in UTF-8, or holds a key or value that is not allowed.
    """
    if isinstance(path, str) and path.startswith(BUILTIN):
        return replace(builtin_task(path.removeprefix(BUILTIN)), labels_given=True)
    where = f"task file {str(path)!r}"
    return replace(task_from_toml(_read(Path(path), where), where, Path(path).parent), name=Path(path).stem)


def task_from_toml(toml: str, where: str, folder: Path = Path()) -> Task:
    """Read TOML text over the built-in task.

    Args:
        toml: content of a task file.
        where: what to call it in messages and as the name of the task.
        folder: that of the file, from which its paths are taken; the task has them from the root.

    Raises:
        UsageError: the text is not TOML, or holds a key or value that is not allowed.
    """
    try:
        table = tomllib.loads(toml)
        return replace(builtin_task(), name=where, **_fields(table, folder), labels_given="labels" in table)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}", error.hint) from None


def _read(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TASK_FILE_BYTES + 1)  # never more: it may be a table of many gigabytes
    except FileNotFoundError:
        hint = "a file to start from is printed by: python -m pipeline.classify --print-task"
        if path.stem in builtin_names():
            hint = f"the built-in task of this name is --task {BUILTIN}{path.stem}"
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


def _fields(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
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
    for key in _NUMBER_KEYS:
        if key in table:
            fields[key] = _number(table[key], key)
    if fields.get("default_label") == "":
        fields["default_label"] = None
    if "head" in fields:
        fields["head"] = Path(os.path.abspath(folder / fields["head"])) if fields["head"] else None
    if "labels" in table:
        labels = _table(table, "labels", "description", 'billing = "payments, invoices"', may_be=())
        fields["labels"] = tuple((name, _string(value, f"labels.{name}")) for name, value in labels.items())
        fields |= {"answers": (), "thresholds": (), "examples": ()}
    names = table.get("labels", ())
    if "answers" in table:
        answers = _table(table, "answers", "answer", 'billing = "money"', may_be=names)
        fields["answers"] = tuple((name, _string(value, f"answers.{name}")) for name, value in answers.items())
    if "thresholds" in table:
        thresholds = _table(table, "thresholds", "threshold", "billing = 0.7", may_be=names)
        fields["thresholds"] = tuple((name, _number(value, f"thresholds.{name}")) for name, value in thresholds.items())
    if "examples" in table:
        fields["examples"] = _examples(table)
    return fields


def _text_fields(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": (), "template": value}
    if isinstance(value, list) and all(isinstance(column, str) for column in value):
        return {"text": tuple(value), "template": None}
    raise UsageError(f"text: {short_repr(value)} is neither an array of column names nor a template string")


def _table(table: Mapping[str, Any], key: str, of: str, line: str, *, may_be: Collection[str]) -> dict[str, Any]:
    """A table with one entry per label, such as ``line``; ``may_be`` are names that are labels for certain."""
    value = table[key]
    if not isinstance(value, dict):
        hint = f"write a line [{key}], and below it one line per label: {line}"
        raise UsageError(f"{key}: {short_repr(value)} is not a table of label = {of}", hint)
    for name, entry in value.items():
        if name not in may_be:
            _check_place(name, entry, key, table)
    return value


def _examples(table: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    examples = table["examples"]
    hint = 'write for each a line [[examples]], and below it text = "…" and label = "…"'
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise UsageError(f"examples: {short_repr(examples)} is not an array of tables", hint)
    for example in examples:
        for key, value in example.items():
            if key not in ("text", "label"):
                _check_place(key, value, "examples", table)
                raise UsageError(f"examples: unknown key {key!r}; known are 'text' and 'label'", hint)
        for key in ("text", "label"):
            if key not in example:
                raise UsageError(f"examples: {short_repr(example)} has no {key!r}", hint)
    return tuple(
        (_string(example["text"], "examples.text"), _string(example["label"], "examples.label")) for example in examples
    )


def _check_place(name: str, value: object, below: str, table: Mapping[str, Any]) -> None:
    """In TOML a key written below [labels] belongs to that table: a setting would silently become a label.

    Labels are often called yes and no; without mode "multi" these two, and the question, are no settings that matter.
    """
    keys = {*_KEYS} - ({*_MULTI_KEYS} if table.get("mode") != "multi" else set())
    if isinstance(value, str):  # other values cannot be the description of a label
        keys &= {"text", *_STRING_KEYS}
    if name in keys and name not in table:
        line = f"[[{below}]]" if below == "examples" else f"[{below}]"
        hint = f"move {name!r} above the line {line}"
        if below == "labels":
            hint += f"; if it is a label, set the key {name!r} too, above that line"
        raise UsageError(f"{below}: {name!r} is a key of the task file", hint)


def _string(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{place}: {short_repr(value)} is not a string", 'write it in quotes: "…"')
    return value


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{place}: {short_repr(value)} is not a number", "write it without quotes: 0.5")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{place}: {short_repr(value)} is too large a number") from None
