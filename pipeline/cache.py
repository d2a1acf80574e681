"""The command line for files of ``--cache``: ``python -m pipeline.cache info|prune PATH``."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipeline.command.entry import run_command
from pipeline.command.flags import count
from pipeline.command.logs import write_stdout
from pipeline.errors import InputMissingError
from pipeline.label_store import LabelStore, today

log = logging.getLogger("pipeline.cache")  # __name__ is "__main__" here

PROGRAM = "python -m pipeline.cache"
HELP = "The file of --cache keeps the scores of texts for later runs: look into it, or make it smaller."

CachePath = Annotated[Path, typer.Argument(metavar="PATH", help="The file.", show_default=False)]
Days = Annotated[
    int, typer.Option("--older-than", metavar="DAYS", parser=count, help="Remove what was scored longer ago.")
]


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """What a store holds of one task.

    Attributes:
        fingerprint: of all that decides its scores.
        description: of model and labels, for people.
        n_texts: texts with scores.
        first_day: when the oldest of them was scored, in days since 1970; None if there is none.
        last_used: when a run last used the task, likewise.
    """

    fingerprint: str
    description: str
    n_texts: int
    first_day: int | None
    last_used: int


def info(path: CachePath) -> None:
    """Show for each task how many texts have scores, from when, and when they were last used."""
    with _existing(path) as store:
        tasks = tasks_in(store)
        n_bytes = path.stat().st_size
    n_texts = sum(task.n_texts for task in tasks)
    lines = [f"{n_texts:,} texts in {n_bytes / (1 << 20):,.1f} MiB", *(_line(task) for task in tasks)]
    write_stdout("\n".join(lines) + "\n")


def prune(path: CachePath, older_than: Days) -> None:
    """Remove old scores, and give their space back; needs room for a copy, and runs that use the file wait for it."""
    before = path.stat().st_size if path.exists() else 0
    with _existing(path) as store:
        n_removed = remove_before(max(0, today() - older_than), store)
    freed = max(0, before - path.stat().st_size) / (1 << 20)
    write_stdout(f"{n_removed:,} texts removed, {freed:,.1f} MiB freed\n")


def tasks_in(store: LabelStore) -> list[TaskEntry]:
    """What a store holds, the task used last first."""
    statement = (
        "SELECT fingerprint, description, coalesce(n_texts, 0), first_day, last_used FROM task LEFT JOIN "
        "(SELECT task, count(*) AS n_texts, min(day) AS first_day FROM score GROUP BY task) ON task = id "
        "ORDER BY last_used DESC, id DESC"
    )
    return [TaskEntry(*row) for row in store.attempt(lambda: store.query(statement))]


def remove_before(day: int, store: LabelStore) -> int:
    """Remove the scores of earlier days than one (in days since 1970) and give back their space; returns how many."""

    def remove() -> int:
        with store.transaction() as connection:
            n_removed = connection.execute("DELETE FROM score WHERE day < ?", (day,)).rowcount
            connection.execute("DELETE FROM task WHERE id NOT IN (SELECT task FROM score)")
        store.query("VACUUM")
        store.query("PRAGMA wal_checkpoint(TRUNCATE)")
        return n_removed

    return store.attempt(remove)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; None for those of the process.

    Returns:
        The exit code.
    """
    return run_command([info, prune], PROGRAM, argv, description=HELP)


def _existing(path: Path) -> LabelStore:
    if not path.exists():
        raise InputMissingError(f"cache {str(path)!r} does not exist", "check the path")
    return LabelStore(path, shared=True)


def _line(task: TaskEntry) -> str:
    since = "never" if task.first_day is None else _date(task.first_day)
    return (
        f"{task.fingerprint[:12]}  {task.n_texts:>12,} texts since {since}, last used {_date(task.last_used)}: "
        f"{task.description}"
    )


def _date(day: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(days=day)).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
