"""What one worker labels at a time: a range of neighbouring row groups of one file. Knows nothing of Ray."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.agreement import Agreement
from pipeline.command.checked_file import CheckedFile
from pipeline.command.options import Options
from pipeline.errors import PipelineError
from pipeline.parquet.location import Location
from pipeline.settings import Settings
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.verify import Verdict


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker of a run is told.

    Attributes:
        options: of the command line.
        settings: made of them.
        task: its text columns may still be unknown.
        version: of this package where the run was started.
        folder: where it was started, which relative paths start from.
        inputs: the files, each with the task bound to it: a quantized model is compared on the same texts everywhere.
    """

    options: Options
    settings: Settings
    task: Task
    version: str
    folder: str
    inputs: Sequence[tuple[Location, Task]] = ()


@dataclass(frozen=True, slots=True)
class RowRange:
    """Neighbouring row groups of a file.

    Attributes:
        first_group: number of the first.
        end_group: number behind the last.
        first_row: of the file.
        n_rows: that are to be labelled.
    """

    first_group: int
    end_group: int
    first_row: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of one file, and where they go.

    Attributes:
        file: that they are read from, without its ``group_rows``.
        rows: which.
        part: where they are written, labelled.
        n_verify: how many of their texts are scored again.
    """

    file: CheckedFile
    rows: RowRange
    part: Location
    n_verify: int

    def __str__(self) -> str:
        return f"row groups {self.rows.first_group} to {self.rows.end_group - 1} of {self.file.input.name!r}"


@dataclass(frozen=True, slots=True)
class Done:
    """A unit whose part is there.

    Attributes:
        facts: what decided the labels (``run_facts``).
        recipe: of the file (``recipe_of``).
        stats: counts of this unit.
        verdict: of ``--verify``, its rows numbered within the file; None for none.
        agreement: of the worker's quantized model with float32; None where nothing is quantized.
        was_there: whether an earlier run had made it.
        warnings: what the worker would have said.
        loaded: facts of the worker, whatever the file.
    """

    facts: dict[str, Any]
    recipe: str
    stats: RunStats
    verdict: Verdict | None = None
    agreement: Agreement | None = None
    was_there: bool = False
    warnings: tuple[str, ...] = ()
    loaded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole file was labelled by an earlier run, in the way that is asked for now.

    Attributes:
        facts: what decided the labels.
        loaded: facts of the worker, whatever the file.
    """

    facts: dict[str, Any]
    loaded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A unit that could not be labelled.

    Attributes:
        error: why.
        again: whether another attempt may succeed.
        loaded: facts of the worker, whatever the file.
    """

    error: PipelineError
    again: bool = False
    loaded: Mapping[str, Any] = field(default_factory=dict)


Outcome = Done | Finished | Failed


class Warnings(logging.Handler):
    """Keeps what is said while the block runs, so that whoever started the run can say it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        self.messages.append(record.getMessage())

    def __enter__(self) -> "Warnings":
        logging.getLogger("pipeline").addHandler(self)
        return self

    def __exit__(self, *of_block: object) -> None:
        logging.getLogger("pipeline").removeHandler(self)
