"""The columns that an evaluation compares, out of one or more Parquet files; no other column is read.

Labels are strings, or lists of strings where a row may have several. Rows without a truth (null) are left out and
counted. A row without a prediction (null, or status ``low_score``) is *abstained*.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource
from pipeline.text import is_text

READ_ROWS = 8192
MAX_LISTED_COLUMNS = 20
LOW_SCORE = "low_score"


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what; the score and the status may be missing."""

    truth: str
    prediction: str
    score: str | None = None
    status: str | None = None

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(name for name in self.flags().values() if name is not None))

    def flags(self) -> dict[str, str | None]:
        """The flag that names each."""
        return {
            "--truth": self.truth,
            "--prediction": self.prediction,
            "--score": self.score,
            "--status": self.status,
        }


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
        InputError: it is no Parquet file, has not these columns, or they hold something else than they should; or no
            row has a truth.
        ReadError: the device or the network failed.
    """
    reading = _Reading()
    for location in locations:
        with ParquetSource(location, max_rows=READ_ROWS) as source:
            reading.several |= _check_columns(source.schema, columns, location)
            for batch in source.batches(columns.names):
                reading.add(batch, columns, location)
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
            self.truth.append(self._marks(kept(columns.truth), counts))
            self.predicted.append(self._marks(kept(columns.prediction), answered))
        except UnicodeDecodeError as error:
            raise InputError(f"input {location.name!r} holds labels that are not UTF-8", "export it again") from error
        if columns.score is not None:
            self.score.append(_scores(batch.column(columns.score).filter(known), columns.score, location))
        self.n_rows += len(counts)

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

    def _marks(self, array: pa.Array, counts: NDArray[np.bool_]) -> Marks:
        """The labels of a batch, without those of rows that do not count."""
        given = array.is_valid().to_numpy(zero_copy_only=False) & counts
        row = np.arange(len(array))
        if _is_list(array.type):
            row, array = pc.list_parent_indices(array).to_numpy(), pc.list_flatten(array)
        there = array.is_valid().to_numpy(zero_copy_only=False) & counts[row]
        coded = array.filter(pa.array(there)).dictionary_encode()
        place = [self.known.setdefault(label, len(self.known)) for label in coded.dictionary.to_pylist()]
        return Marks(self.n_rows + row[there], np.array(place, np.intp)[coded.indices.to_numpy()], given)


def _plain(array: pa.Array) -> pa.Array:
    """Strings or lists of strings in the one form of each that all functions know."""
    return array.cast(pa.large_list(pa.large_string()) if _is_list(array.type) else pa.large_string())


def _joined(parts: Sequence[Marks], place: NDArray[np.intp]) -> Marks:
    none = np.zeros(0, np.intp)
    return Marks(
        np.concatenate([none, *(part.row for part in parts)]),
        place[np.concatenate([none, *(part.label for part in parts)])],
        np.concatenate([np.zeros(0, bool), *(part.given for part in parts)]),
    )


def _check_columns(schema: pa.Schema, columns: Columns, location: Location) -> bool:
    """Whether a row may have several labels; fails if a column is not what it should be."""
    for flag, name in columns.flags().items():
        if name is None:
            continue
        types = [field.type for field in schema if field.name == name]
        if not types:
            raise _missing(flag, name, schema, location)
        if len(types) > 1:
            raise InputError(
                f"column {name!r} stands {len(types)} times in input {location.name!r}", "rename all but one"
            )
        wanted, fits = _WANTED[flag]
        if not fits(types[0]):
            raise InputError(
                f"{flag} {name!r} holds {types[0]} in input {location.name!r}, not {wanted}",
                f"name another column by {flag} COLUMN, or cast this one",
            )
    return any(_is_list(schema.field(name).type) for name in (columns.truth, columns.prediction))


def _missing(flag: str, name: str, schema: pa.Schema, location: Location) -> InputError:
    more = f" and {len(schema.names) - MAX_LISTED_COLUMNS} more" if len(schema.names) > MAX_LISTED_COLUMNS else ""
    listed = ", ".join(map(repr, schema.names[:MAX_LISTED_COLUMNS])) + more
    near = get_close_matches(name, schema.names, n=1)
    return InputError(
        f"{flag} {name!r} is not in input {location.name!r}; columns: {listed}",
        f"did you mean {near[0]!r}?" if near else f"name one of them by {flag} COLUMN",
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


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _is_label(type_: pa.DataType) -> bool:
    return is_text(type_.value_type if _is_list(type_) else type_)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_) or pa.types.is_integer(type_) or pa.types.is_decimal(type_))


_WANTED = {
    "--truth": ("strings or lists of strings", _is_label),
    "--prediction": ("strings or lists of strings", _is_label),
    "--score": ("numbers", _is_number),
    "--status": ("strings", is_text),
}
