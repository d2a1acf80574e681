"""Distinct texts out of a table, with their labels if they have some: a uniform sample of bounded size, in one pass.

Texts are told apart and chosen by a keyed digest: the sample is the texts with the smallest ones, so it is the same
whatever the order of rows, and all rows with one text fall together. Tables are Parquet files, or CSV files as people
make them when they label rows by hand.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import InputError, InputMissingError
from pipeline.parquet.input_file import READ_ERRORS, read_error
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource
from pipeline.task import Task
from pipeline.text import is_text, text_frame
from pipeline.tuning.csv_table import SUFFIXES, read_csv
from pipeline.tuning.split import Truth

MAX_LISTED_ROWS = 5
MAX_LISTED_LABELS = 20


@dataclass(frozen=True, slots=True)
class Table:
    """An open table: its schema, and its rows as batches, to be read once."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class DistinctTexts:
    """n texts and the row in which each first stands, in the order of rows.

    Attributes:
        texts: not blank.
        rows: (n,) row numbers.
        truth: (n, labels); (n, 0) if labels were not asked for.
        n_rows: rows read that were not blank and, where labels were asked for, had one.
        n_left_out: rows that were blank, or without labels.
        n_conflicts: texts that were left out since their rows do not have the same labels.
    """

    texts: tuple[str, ...]
    rows: NDArray[np.int64]
    truth: Truth
    n_rows: int
    n_left_out: int
    n_conflicts: int


@contextmanager
def open_table(location: Location) -> Iterator[Table]:
    """Open a Parquet file, or a CSV file by its name; every column of a CSV file holds strings.

    Raises:
        InputMissingError: there is nothing.
        InputError: it cannot be read.
    """
    if not location.name.lower().endswith(SUFFIXES):
        with ParquetSource(location) as source:
            yield Table(source.schema, source.batches())
        return
    if location.is_local and location.local.is_dir():
        raise InputError(f"input {location.name!r} is a folder", "give one file")
    try:
        with location.open() as file:
            content = file.read()
    except FileNotFoundError as error:
        raise InputMissingError(f"input {location.name!r} does not exist", "check the path") from error
    except READ_ERRORS as error:
        raise read_error(location, error, "cannot be read") from error
    yield Table(*read_csv(content, location.name))


def distinct_texts(
    table: Table, task: Task, *, max_texts: int, seed: int, truth_column: str | None = None
) -> DistinctTexts:
    """Read a table to its end and keep a sample of its distinct texts.

    Args:
        table: fresh.
        task: with its text columns bound to the table.
        max_texts: most texts that are kept.
        seed: of the sample.
        truth_column: column of labels, whose null rows are left out; None: all rows, and no labels.

    Raises:
        InputError: there is no such column, or it holds something else than labels of the task.
    """
    labels = {label: place for place, label in enumerate(task.label_names)}
    if truth_column is not None:
        check_truth_column(table.schema, truth_column, multi=task.multi)
    sample = _Sample(max_texts, seed)
    n_rows = n_left_out = first_row = 0
    unknown = _Unknown(task)
    for batch in table.batches:
        frame = text_frame({name: batch.column(name) for name in task.columns}, task)
        answers = [frozenset[str]()] * len(frame) if truth_column is None else _answers(batch.column(truth_column))
        rows = zip(frame["text"].to_list(), frame["blank"].to_list(), answers, strict=True)
        for row, (text, blank, answer) in enumerate(rows, first_row):
            if blank or answer is None:
                n_left_out += 1
                continue
            n_rows += 1
            if strange := answer - labels.keys():
                unknown.add(row, strange)
            sample.add(text, row, answer)
        first_row += batch.num_rows
    if unknown.n_rows:
        raise unknown.error(truth_column)
    kept = sorted(sample.kept.values(), key=lambda entry: entry.row)
    agreed = [entry for entry in kept if len(entry.answers) == 1]
    truth = np.zeros((len(agreed), len(labels) if truth_column is not None else 0), dtype=bool)
    for place, entry in enumerate(agreed):
        truth[place, [labels[name] for name in next(iter(entry.answers))]] = True
    return DistinctTexts(
        texts=tuple(entry.text for entry in agreed),
        rows=np.array([entry.row for entry in agreed], dtype=np.int64),
        truth=truth,
        n_rows=n_rows,
        n_left_out=n_left_out,
        n_conflicts=len(kept) - len(agreed),
    )


def check_truth_column(schema: pa.Schema, name: str, *, multi: bool) -> None:
    """Check that a column can hold labels.

    Raises:
        InputError: it is missing, stands there twice, or is of another type.
    """
    types = [field.type for field in schema if field.name == name]
    if len(types) != 1:
        problem = "is not in the input" if not types else f"stands {len(types)} times in the input"
        near = [] if types else get_close_matches(name, schema.names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name the column with the right labels"
        raise InputError(f"--truth {name!r} {problem}", hint)
    is_list = pa.types.is_list(types[0]) or pa.types.is_large_list(types[0])
    if is_list and is_text(types[0].value_type):
        if not multi:
            raise InputError(
                f"--truth {name!r} holds lists of labels, and the task gives one label a row",
                'set mode = "multi" in the task file',
            )
    elif not is_text(types[0]):
        raise InputError(f"--truth {name!r} holds {types[0]}, not labels", "name a column of strings")


@dataclass(slots=True)
class _Entry:
    text: str
    row: int
    answers: set[frozenset[str]]


class _Sample:
    """The texts with the smallest digests: whether a text is kept depends on no other row that has it."""

    def __init__(self, max_texts: int, seed: int) -> None:
        self.kept: dict[bytes, _Entry] = {}
        self._max_texts = max_texts
        self._key = seed.to_bytes(8, "little", signed=True)
        self._largest_first: list[int] = []  # a heap of negated digests

    def add(self, text: str, row: int, answer: frozenset[str]) -> None:
        digest = hashlib.blake2b(text.encode(), digest_size=16, key=self._key).digest()
        if (entry := self.kept.get(digest)) is not None:
            entry.answers.add(answer)
            return
        number = -int.from_bytes(digest)
        if len(self.kept) < self._max_texts:
            heapq.heappush(self._largest_first, number)
        elif number < self._largest_first[0]:
            return
        else:  # what goes never comes back: the largest one only gets smaller
            gone = heapq.heappushpop(self._largest_first, number)
            del self.kept[(-gone).to_bytes(16)]
        self.kept[digest] = _Entry(text, row, {answer})


def _answers(column: pa.Array) -> list[frozenset[str] | None]:
    """The labels of each row; None for null."""
    values = column.to_pylist()
    return [None if value is None else _answer(value) for value in values]


def _answer(value: str | Sequence[str | None]) -> frozenset[str]:
    return frozenset((value,)) if isinstance(value, str) else frozenset(name for name in value if name is not None)


class _Unknown:
    """Values that are no labels of the task; told by their number: if the wrong column was named, they are texts."""

    def __init__(self, task: Task) -> None:
        self.n_rows = 0
        self._task = task
        self._alike = {_folded(label) for label in task.label_names}
        self._first_rows: list[int] = []
        self._n_alike = 0  # rows whose values differ from a label only by blanks or case

    def add(self, row: int, values: Set[str]) -> None:
        self.n_rows += 1
        self._n_alike += all(_folded(value) in self._alike for value in values)
        if len(self._first_rows) < MAX_LISTED_ROWS:
            self._first_rows.append(row)

    def error(self, column: str | None) -> InputError:
        names = self._task.label_names
        rows = ", ".join(map(str, self._first_rows)) + (", …" if self.n_rows > len(self._first_rows) else "")
        several = "row" if self.n_rows == 1 else "rows"
        fault = f"--truth {column!r} holds values that are not labels of the task in {self.n_rows:,} {several}"
        fault += f" (from 0: {several} {rows})"
        if self._n_alike:
            which = "all" if self._n_alike == self.n_rows else f"{self._n_alike:,}"
            fault += f"; {which} of them differ from a label only by blanks or by upper and lower case"
        shown = ", ".join(map(repr, names[:MAX_LISTED_LABELS])) + (", …" if len(names) > MAX_LISTED_LABELS else "")
        return InputError(fault, f"its labels are {shown}, and are compared exactly")


def _folded(label: str) -> str:
    return "".join(label.split()).casefold()
