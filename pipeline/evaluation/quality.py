"""Everything an evaluation says of labelled rows, as plain numbers: what the text, JSON and HTML reports show.

Accuracy is the share of rows whose labels are exactly the true ones; an abstained row is wrong. Macro-F1 is the mean
over the labels that occur in the truth: one that is only predicted lowers the precision of no label, and is listed.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, precision_recall_fscore_support

from pipeline.evaluation.confusion import (
    Cells,
    Counts,
    cells_of_matrix,
    cells_of_sets,
    confusion_matrix,
    macro_f1_bounds,
)
from pipeline.evaluation.coverage import CoveragePoint, coverage_curve, points_at
from pipeline.evaluation.metrics import ScoreBin, accuracy_interval, expected_calibration_error, score_bins
from pipeline.evaluation.rows import LabelledRows

MIN_ROWS_OF_INTERVAL = 10
MIN_SUPPORT_OF_INTERVAL = 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure with its 95 % interval; None where there are too few rows for one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class LabelQuality:
    """One label.

    Attributes:
        label: its name.
        precision: share of the rows it is given to that have it; 0 if there are none.
        recall: share of the rows that have it to which it is given; 0 if there are none.
        f1: harmonic mean of both.
        support: rows that have it.
        predicted: rows it is given to.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True, slots=True)
class ScoreQuality:
    """What the scores are worth.

    Attributes:
        n: rows with a label and a score.
        expected_calibration_error: see ``metrics``.
        bins: of it.
        levels: thresholds for some coverages.
        curve: coverage and accuracy for all thresholds, thinned out.
    """

    n: int
    expected_calibration_error: float
    bins: tuple[ScoreBin, ...]
    levels: tuple[CoveragePoint, ...]
    curve: tuple[CoveragePoint, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the labels of a table are.

    Attributes:
        n_read: rows of the input.
        n: rows with a truth, which all measures are about.
        n_answered: rows of them with a prediction.
        accuracy: share of the n rows that are right; with several labels a row: whose labels are all right.
        accuracy_answered: the same among the answered rows; None if there are none.
        macro_f1: mean F1 over the labels that occur in the truth.
        weighted_f1: the same, weighted by their rows.
        micro_f1: F1 of all (row, label) pairs together; with several labels a row only.
        hamming_loss: share of the (row, label) pairs that are wrong; with several labels a row only.
        majority_label: the most frequent true label; with one label a row only.
        majority_accuracy: what giving it to every row would get right.
        labels: each label that is true or predicted somewhere.
        confusion: (true label, predicted label or None, rows) for each pair that occurs, the most rows first; with
            one label a row only.
        statuses: rows of each status, if a column tells.
        scores: what the scores are worth, if a column has them.
        notes: what a reader should know, in sentences.
    """

    n_read: int
    n: int
    n_answered: int
    accuracy: Estimate
    accuracy_answered: Estimate | None
    macro_f1: Estimate
    weighted_f1: float
    micro_f1: float | None
    hamming_loss: float | None
    majority_label: str | None
    majority_accuracy: float | None
    labels: tuple[LabelQuality, ...]
    confusion: tuple[tuple[str, str | None, int], ...]
    statuses: dict[str, int]
    scores: ScoreQuality | None
    notes: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether a row may have several labels."""
        return self.hamming_loss is not None

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)


def measure(rows: LabelledRows) -> Quality:
    """Compare the predictions of rows with their truth; at least one row has a truth."""
    n_labels = len(rows.labels)
    truth: NDArray[Any]
    predicted: NDArray[Any]
    if rows.several:
        truth, predicted = rows.truth.sets(n_labels), rows.predicted.sets(n_labels)
        right = (truth == predicted).all(axis=1) & rows.predicted.given
        cells, matrix = cells_of_sets(truth, predicted), None
        support, n_predicted = truth.sum(axis=0), predicted.sum(axis=0)
    else:
        truth, predicted = rows.truth.codes(), rows.predicted.codes()
        right = truth == predicted
        matrix = confusion_matrix(truth, predicted, n_labels)
        cells = cells_of_matrix(matrix)
        support, n_predicted = matrix.sum(axis=1)[:-1], matrix.sum(axis=0)[:-1]
    occurring = np.flatnonzero(support)
    n, n_answered = len(right), int(rows.predicted.given.sum())
    n_right = int(right.sum())
    return Quality(
        n_read=rows.n_read,
        n=n,
        n_answered=n_answered,
        accuracy=_share(n_right, n),
        accuracy_answered=_share(n_right, n_answered) if n_answered else None,
        macro_f1=_macro_f1(truth, predicted, cells, occurring, enough=_enough(n, support[occurring])),
        weighted_f1=_f1(truth, predicted, occurring, "weighted"),
        micro_f1=_f1(truth, predicted, np.arange(n_labels), "micro") if rows.several else None,
        hamming_loss=float((truth != predicted).sum() / max(1, truth.size)) if rows.several else None,
        majority_label=None if rows.several else rows.labels[int(support.argmax())],
        majority_accuracy=None if rows.several else float(support.max() / n),
        labels=_per_label(rows.labels, truth, predicted, support, n_predicted),
        confusion=() if matrix is None else _confusion(matrix, rows.labels),
        statuses=dict(rows.statuses.most_common()),
        scores=None if rows.score is None else _scores(right, rows.score, rows.predicted.given),
        notes=tuple(_notes(rows.labels, support, n_predicted, n_answered)),
    )


def _share(n_right: int, n: int) -> Estimate:
    return Estimate(n_right / n, *accuracy_interval(n_right, n))


def _f1(truth: NDArray[Any], predicted: NDArray[Any], labels: NDArray[np.intp], average: str) -> float:
    if not len(labels):
        return 0.0
    return float(f1_score(truth, predicted, labels=labels, average=average, zero_division=0))


def _enough(n: int, support: Counts) -> bool:
    """Whether resampled rows tell anything: a label of one row is in a resample or is not, whatever the labels are."""
    return n >= MIN_ROWS_OF_INTERVAL and bool((support >= MIN_SUPPORT_OF_INTERVAL).all())


def _macro_f1(
    truth: NDArray[Any], predicted: NDArray[Any], cells: Cells, occurring: NDArray[np.intp], *, enough: bool
) -> Estimate:
    value = _f1(truth, predicted, occurring, "macro")
    if not enough:
        return Estimate(value, None, None)
    own = Cells(cells.n_rows, cells.truth[:, occurring], cells.predicted[:, occurring])
    return Estimate(value, *macro_f1_bounds(own))


def _per_label(
    names: tuple[str, ...],
    truth: NDArray[Any],
    predicted: NDArray[Any],
    support: Counts,
    n_predicted: Counts,
) -> tuple[LabelQuality, ...]:
    if not names:
        return ()
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, labels=np.arange(len(names)), zero_division=0
    )
    return tuple(
        LabelQuality(name, float(precision[i]), float(recall[i]), float(f1[i]), int(support[i]), int(n_predicted[i]))
        for i, name in enumerate(names)
    )


def _confusion(matrix: NDArray[np.int64], names: tuple[str, ...]) -> tuple[tuple[str, str | None, int], ...]:
    shown = (*names, None)
    pairs = [(names[i], shown[j], int(matrix[i, j])) for i, j in np.argwhere(matrix[:-1])]
    return tuple(sorted(pairs, key=lambda pair: -pair[2]))


def _scores(right: NDArray[np.bool_], score: NDArray[np.float64], answered: NDArray[np.bool_]) -> ScoreQuality:
    known = answered & ~np.isnan(score)
    correct, own = right[known], score[known]
    return ScoreQuality(
        n=len(own),
        expected_calibration_error=expected_calibration_error(correct, own),
        bins=tuple(score_bins(correct, own)),
        levels=tuple(points_at(correct, own, len(right))),
        curve=tuple(coverage_curve(correct, own, len(right))),
    )


def _notes(names: tuple[str, ...], support: Counts, n_predicted: Counts, n_answered: int) -> list[str]:
    """What looks like a mistake in the columns rather than in the labels."""
    if not n_answered:
        return ["no row has a predicted label"]
    never_true = [name for i, name in enumerate(names) if not support[i]]
    never_predicted = [name for i, name in enumerate(names) if not n_predicted[i]]
    alike = {_folded(name): name for name in never_predicted}
    pairs = [(alike[_folded(name)], name) for name in never_true if _folded(name) in alike]
    notes = []
    if len(never_true) + len(never_predicted) == len(names):
        notes.append("no label occurs both in the truth and in the predictions")
    if pairs:
        true, predicted = pairs[0]
        more = f", and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        notes.append(
            f"labels are compared exactly: {true!r} in the truth and {predicted!r} in the predictions{more} "
            "differ only in case, spaces, hyphens or underscores"
        )
    return notes


def _folded(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
