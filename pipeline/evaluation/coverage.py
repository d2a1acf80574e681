"""What leaving out the rows with low scores does to accuracy: the curve, and the ``--min-score`` for points on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVELS = (1.0, 0.9, 0.8, 0.7, 0.5)
MAX_CURVE_POINTS = 200
ROUNDING = 1e-9
THRESHOLD_STEPS = 10_000  # thresholds have four digits


@dataclass(frozen=True, slots=True)
class CoveragePoint:
    """What a threshold of the score gives.

    Attributes:
        threshold: rows with at least this score keep their label.
        n: such rows.
        coverage: their share of all rows with a truth.
        accuracy: share of them that are right.
    """

    threshold: float
    n: int
    coverage: float
    accuracy: float


def coverage_curve(correct: NDArray[np.bool_], score: NDArray[np.float64], n_rows: int) -> list[CoveragePoint]:
    """Points from few rows with high scores to all rows with a score; rows that tie come and go together.

    Args:
        correct: (n,) whether a label is right.
        score: (n,) its score.
        n_rows: rows that coverage is a share of; at least n.
    """
    thresholds, n_kept, n_right = _steps(correct, score)
    picked = np.unique(np.linspace(0, len(thresholds) - 1, min(MAX_CURVE_POINTS, len(thresholds))).astype(int))
    return [
        CoveragePoint(float(thresholds[i]), int(n_kept[i]), float(n_kept[i] / n_rows), float(n_right[i] / n_kept[i]))
        for i in picked
    ]


def points_at(
    correct: NDArray[np.bool_], score: NDArray[np.float64], n_rows: int, levels: Sequence[float] = LEVELS
) -> list[CoveragePoint]:
    """The highest threshold of four digits for each share of rows that is to keep its label.

    Levels that rows without a score put out of reach are left out, as are those that keep the rows of the one before;
    100 % stands for all rows with a score.
    """
    thresholds, n_kept, n_right = _steps(correct, score)
    points: list[CoveragePoint] = []
    for level in levels if len(score) else ():
        n_wanted = level * n_rows - ROUNDING
        if level < 1 and n_wanted > len(score):
            continue
        first = int(np.argmax(n_kept >= min(n_wanted, len(score))))
        # rounded down, or the row that it comes from would be left out
        threshold = float(np.floor(thresholds[first] * THRESHOLD_STEPS) / THRESHOLD_STEPS) if level < 1 else 0.0
        last = int(np.searchsorted(-thresholds, -threshold, side="right")) - 1
        n = int(n_kept[last])
        if not points or points[-1].n != n:
            points.append(CoveragePoint(threshold, n, n / n_rows, float(n_right[last] / n)))
    return points


def _steps(
    correct: NDArray[np.bool_], score: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.intp]]:
    """Distinct scores, highest first; for each the rows with at least that score, and how many of them are right."""
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else np.zeros(0, np.intp)
    return ordered[ends], ends + 1, np.cumsum(correct[order], dtype=np.intp)[ends]
