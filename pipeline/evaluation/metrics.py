"""Measures of labels against the truth, and how sure they are; pure functions, for any caller.

Labels are compared exactly. A row whose prediction is None, or no label of the list, is answered wrongly. Every
interval is a 95 % one, and the same in every run. Knows nothing of files, models or tasks.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import f1_score

from pipeline.evaluation.confusion import (
    LEVEL,
    N_RESAMPLES,
    SEED,
    cells_of_matrix,
    codes_of,
    confusion_matrix,
    macro_f1_bounds,
)

N_BINS = 15


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """Rows whose scores lie in one range.

    Attributes:
        low: start of the range.
        high: its end, which belongs to it.
        n: rows.
        score: their mean score; 0 without rows.
        accuracy: share of them that are right; 0 without rows.
    """

    low: float
    high: float
    n: int
    score: float
    accuracy: float


def accuracy_interval(n_right: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): right for few rows and near 0 and 1; (0, 1) for no rows."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, shrunk = n_right / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrunk
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / shrunk
    # at the ends the formula is exact, its rounding is not
    return (0.0 if n_right == 0 else centre - half), (1.0 if n_right == n else centre + half)


def macro_f1(truth: Sequence[Hashable], predicted: Sequence[Hashable], labels: Sequence[Hashable]) -> float:
    """Mean F1 over labels; one without any row, true or predicted, counts as 0.

    Args:
        truth: (n,) labels.
        predicted: (n,) labels, or None.
        labels: that the mean is over; those of the truth, as a rule.
    """
    true, given = codes_of(truth, labels), codes_of(predicted, labels)
    return float(f1_score(true, given, labels=np.arange(len(labels)), average="macro", zero_division=0))


def macro_f1_interval(
    truth: Sequence[Hashable], predicted: Sequence[Hashable], labels: Sequence[Hashable], *,
    n_resamples: int = N_RESAMPLES, seed: int = SEED,
) -> tuple[float, float]:  # fmt: skip
    """95 % interval of ``macro_f1``: percentile bootstrap over rows, see ``confusion.macro_f1_bounds``."""
    matrix = confusion_matrix(codes_of(truth, labels), codes_of(predicted, labels), len(labels))
    return macro_f1_bounds(cells_of_matrix(matrix), n_resamples=n_resamples, seed=seed)


def expected_calibration_error(correct: ArrayLike, score: ArrayLike, n_bins: int = N_BINS) -> float:
    """How far scores are from shares of right labels: the mean distance over bins of equal width (Guo et al. 2017).

    Args:
        correct: (n,) whether a label is right.
        score: (n,) its probability, within 0 and 1.
        n_bins: the source uses 15.

    Returns:
        Within 0 and 1, 0 for no rows.
    """
    bins = score_bins(correct, score, n_bins)
    return sum(part.n * abs(part.accuracy - part.score) for part in bins) / max(1, sum(part.n for part in bins))


def score_bins(correct: ArrayLike, score: ArrayLike, n_bins: int = N_BINS) -> list[ScoreBin]:
    """The bins of ``expected_calibration_error``, from low scores to high ones."""
    right, scores = np.asarray(correct, np.float64), np.asarray(score, np.float64)
    edges = np.linspace(0, 1, n_bins + 1)
    place: NDArray[np.intp] = np.clip(np.searchsorted(edges, scores, side="left") - 1, 0, n_bins - 1)
    n = np.bincount(place, minlength=n_bins)
    mean_score, accuracy = (
        np.bincount(place, weights, minlength=n_bins) / np.maximum(n, 1) for weights in (scores, right)
    )
    return [
        ScoreBin(float(edges[i]), float(edges[i + 1]), int(n[i]), float(mean_score[i]), float(accuracy[i]))
        for i in range(n_bins)
    ]
