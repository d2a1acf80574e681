"""The columns that an evaluation compares, out of one or more Parquet files; no other column is read.

Labels are strings, or lists of strings where a row may have several. Rows without a truth (null) are left out and
counted. A row without a prediction (null, or status ``low_score``) is *abstained*. A column that holds texts and no
labels is refused, since a report names every label: see ``distinct``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.evaluation.columns import Columns, check_columns, is_list
from pipeline.evaluation.distinct import check_are_labels, check_not_too_many
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource

READ_ROWS = 8192
LOW_SCORE = "low_score"


@dataclass(frozen=True, slots=True)
class Marks:
    """The labels of n rows, as pairs of a row and a label.

    Attributes:
        row: (m,) of each pair, ascending.
        label: (m,) of each pair, as a place in ``LabelledRows.labels``.
        given: (n,) whether a row has labels at all: an empty list is given, a null is not.
    """

    row: NDArray[np.intp]
    label: NDArray[np.intp]
    given: NDArray[np.bool_]

    def codes(self) -> NDArray[np.intp]:
        """(n,) the label of each row, -1 for none; for rows with at most one label."""
        codes = np.full(len(self.given), -1, np.intp)
        codes[self.row] = self.label
        return codes

    def sets(self, n_labels: int) -> NDArray[np.bool_]:
        """(n, labels) whether a row has a label."""
        sets = np.zeros((len(self.given), n_labels), bool)
        sets[self.row, self.label] = True
        return sets


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """What was read.

    Attributes:
        n_read: rows of the files; those with a truth are the n rows of the other attributes.
        labels: all that are true or predicted somewhere, sorted.
        several: whether a row may have several labels.
        truth: of each row.
        predicted: of each row.
        score: (n,) of the prediction, NaN where it is unknown; None without such a column.
        statuses: rows of each status; empty without such a column.
    """

    n_read: int
    labels: tuple[str, ...]
    several: bool
    truth: Marks
    predicted: Marks
    score: NDArray[np.float64] | None
    statuses: Counter[str]


def read_rows(locations: Sequence[Location], columns: Columns) -> LabelledRows:
    """Read the columns of all files, one file after the other.

    Raises:
        InputMissingError: a file does not exist.
        InputError: it is no Parquet file, has not these columns, or they hold something else than they should, texts
            for instance; or no row has a truth.
        ReadError: the device or the network failed.
    """
    reading = _Reading()
    for location in locations:
        with ParquetSource(location, max_rows=READ_ROWS) as source:
            reading.several |= check_columns(source.schema, columns, location)
            for batch in source.batches(columns.names):
                reading.add(batch, columns, location)
    check_are_labels(reading.truth_seen, reading.predicted_seen, reading.n_rows, columns.truth, columns.prediction)
    rows = reading.finish(with_score=columns.score is not None)
    if not len(rows.truth.given):
        raise InputError(
            f"no row has a truth: column {columns.truth!r} holds nothing but nulls, in {rows.n_read:,} rows",
            "name the column with the right labels by --truth COLUMN",
        )
    return rows


@dataclass(slots=True)
class _Reading:
    """What was read so far; labels have numbers in the order they were met."""

    n_read: int = 0
    n_rows: int = 0
    several: bool = False
    known: dict[str, int] = field(default_factory=dict)
    truth_seen: set[str] = field(default_factory=set)
    predicted_seen: set[str] = field(default_factory=set)
    truth: list[Marks] = field(default_factory=list)
    predicted: list[Marks] = field(default_factory=list)
    score: list[NDArray[np.float64]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, batch: pa.RecordBatch, columns: Columns, location: Location) -> None:
        self.n_read += batch.num_rows
        known = batch.column(columns.truth).is_valid()

        def kept(name: str) -> pa.Array:
            return _plain(batch.column(name)).filter(known)

        counts = np.ones(len(kept(columns.truth)), bool)
        answered = counts
        if columns.status is not None:
            statuses = kept(columns.status).to_pylist()
            self.statuses.update(status for status in statuses if status is not None)
            answered = np.array([status != LOW_SCORE for status in statuses], bool)
        try:
            self.truth.append(self._marks(kept(columns.truth), counts, self.truth_seen))
            self.predicted.append(self._marks(kept(columns.prediction), answered, self.predicted_seen))
        except UnicodeDecodeError as error:
            raise InputError(f"input {location.name!r} holds labels that are not UTF-8", "export it again") from error
        if columns.score is not None:
            self.score.append(_scores(batch.column(columns.score).filter(known), columns.score, location))
        self.n_rows += len(counts)
        check_not_too_many(self.truth_seen, self.n_rows, "--truth", columns.truth)
        check_not_too_many(self.predicted_seen, self.n_rows, "--prediction", columns.prediction)

    def finish(self, *, with_score: bool) -> LabelledRows:
        labels = tuple(sorted(self.known))
        place = np.zeros(len(labels), np.intp)
        place[[self.known[label] for label in labels]] = np.arange(len(labels))
        return LabelledRows(
            n_read=self.n_read,
            labels=labels,
            several=self.several,
            truth=_joined(self.truth, place),
            predicted=_joined(self.predicted, place),
            score=np.concatenate([np.zeros(0), *self.score]) if with_score else None,
            statuses=self.statuses,
        )

    def _marks(self, array: pa.Array, counts: NDArray[np.bool_], seen: set[str]) -> Marks:
        """The labels of a batch, without those of rows that do not count; they are added to those seen."""
        given = array.is_valid().to_numpy(zero_copy_only=False) & counts
        row = np.arange(len(array))
        if is_list(array.type):
            row, array = pc.list_parent_indices(array).to_numpy(), pc.list_flatten(array)
        there = array.is_valid().to_numpy(zero_copy_only=False) & counts[row]
        coded = array.filter(pa.array(there)).dictionary_encode()
        labels = coded.dictionary.to_pylist()
        seen.update(labels)
        place = [self.known.setdefault(label, len(self.known)) for label in labels]
        return Marks(self.n_rows + row[there], np.array(place, np.intp)[coded.indices.to_numpy()], given)


def _plain(array: pa.Array) -> pa.Array:
    """Strings or lists of strings in the one form of each that all functions know."""
    return array.cast(pa.large_list(pa.large_string()) if is_list(array.type) else pa.large_string())


def _joined(parts: Sequence[Marks], place: NDArray[np.intp]) -> Marks:
    none = np.zeros(0, np.intp)
    return Marks(
        np.concatenate([none, *(part.row for part in parts)]),
        place[np.concatenate([none, *(part.label for part in parts)])],
        np.concatenate([np.zeros(0, bool), *(part.given for part in parts)]),
    )


def _scores(array: pa.Array, name: str, location: Location) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    outside = scores[(scores < 0) | (scores > 1)]  # NaN is neither
    if len(outside):
        raise InputError(
            f"--score {name!r} holds {outside[0]:g} in input {location.name!r}, not probabilities from 0 to 1",
            "name the column that --score-column of the labelling added",
        )
    return scores
