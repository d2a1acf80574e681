"""From a ``Task`` to the text of a task file that reads back as the same task.

The comments are those of ``tasks/tickets.toml``: every paragraph there explains the key or the table in it, and its
comment stands here over the value of the task. A table that a task has no use for is an example in a comment.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w

from pipeline.errors import UsageError
from pipeline.task import Task
from pipeline.task_file import builtin_toml

_KEY = re.compile(r"^(\w+) = ", re.MULTILINE)
_TABLE = re.compile(r"^(?:# )?\[+(\w+)\]+$", re.MULTILINE)


def task_to_toml(task: Task, folder: Path | None = None) -> str:
    """The task file of a task.

    Args:
        task: any but its name is written.
        folder: where the file will be; a head in this folder is then written relative to it.

    Raises:
        UsageError: a value cannot be written in UTF-8, such as a column whose name is not text.
    """
    settings, tables = _settings(task, folder), _tables(task)
    _, *paragraphs = builtin_toml("tickets").strip().split("\n\n")
    parts = [f"# Task {task.name!r}, for: python -m pipeline.classify in.parquet out.parquet --task THIS-FILE.toml"]
    for paragraph in paragraphs:
        comment = "\n".join(takewhile(lambda line: line.startswith("#"), paragraph.splitlines()))
        table = _TABLE.search(paragraph)
        if table is None:
            keys = _KEY.findall(paragraph)
            parts.append("\n".join([comment, *(_line(key, settings[key]) for key in keys)]))
        elif table[1] in tables:
            parts.append(comment.partition("\n#\n")[0] + "\n" + tables[table[1]])
        else:  # as an example, which does not count
            shown = paragraph.removeprefix(comment).strip("\n").splitlines()
            parts.append("\n".join([comment, *(["#"] if shown else []), *(f"# {line}" for line in shown)]))
    toml = "\n\n".join(parts) + "\n"
    try:
        toml.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{toml[error.start]!r} in the task cannot be written in UTF-8") from None
    return toml


def _settings(task: Task, folder: Path | None) -> dict[str, Any]:
    return {
        "text": list(task.text) if task.template is None else task.template,
        "system": task.system,
        "user": task.user,
        "answer": task.answer,
        "scoring": task.scoring,
        "calibration": task.calibration,
        "mode": task.mode,
        "question": task.question,
        "yes": task.yes,
        "no": task.no,
        "min_score": float(task.min_score),
        "min_margin": float(task.min_margin),
        "default_label": task.default_label or "",
        "head": "" if task.head is None else str(_seen_from(folder, task.head)),
    }


def _tables(task: Task) -> dict[str, str]:
    """The tables that are not empty."""
    tables = {"labels": _table("labels", dict(task.labels))}
    if task.answers:
        tables["answers"] = _table("answers", dict(task.answers))
    if task.thresholds:
        tables["thresholds"] = _table("thresholds", {name: float(value) for name, value in task.thresholds})
    if task.examples:
        examples = (_line("text", text) + "\n" + _line("label", label) for text, label in task.examples)
        tables["examples"] = "\n\n".join(f"[[examples]]\n{example}" for example in examples)
    return tables


def _table(name: str, entries: Mapping[str, Any]) -> str:
    return f"[{name}]\n{tomli_w.dumps(entries)}".rstrip("\n")


def _line(key: str, value: Any) -> str:
    # Between three quotes a carriage return before a line feed would be lost.
    readable = isinstance(value, str) and "\r" not in value
    return tomli_w.dumps({key: value}, multiline_strings=readable).rstrip("\n")


def _seen_from(folder: Path | None, path: Path) -> Path:
    path = path.absolute()
    if folder is not None and path.is_relative_to(folder.absolute()):
        return path.relative_to(folder.absolute())
    return path
