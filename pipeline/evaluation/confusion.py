"""Which label was given for which: counts of pairs, and what resampling rows does to measures made of them.

Rows with the same truth and prediction are one *cell* with a count. Resampling n rows with replacement is then one
multinomial draw over the cells, so that 1000 resamples cost the same for a thousand rows as for a million. Rows may
have one label or several; a cell knows for each label whether it is true, and whether it is predicted.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

N_RESAMPLES = 1000
SEED = 0
LEVEL = 0.95
MAX_DRAWN = 1 << 22  # counts in memory at once

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cells:
    """Distinct (truth, prediction) pairs, K of them, over L labels.

    Attributes:
        n_rows: (K,) rows of each.
        truth: (K, L) sparse, 1 where a label is true.
        predicted: (K, L) sparse, 1 where a label is predicted.
    """

    n_rows: Counts
    truth: Any
    predicted: Any


def codes_of(values: Sequence[Hashable], labels: Sequence[Hashable]) -> NDArray[np.intp]:
    """(n,) position of each value in ``labels``; those that are none of them, None too, are -1."""
    places = {label: place for place, label in enumerate(labels)}
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    return np.fromiter((places.get(value, -1) for value in plain), np.intp, len(values))


def confusion_matrix(truth: NDArray[np.intp], predicted: NDArray[np.intp], n_labels: int) -> Counts:
    """(L + 1, L + 1) rows by their true label (first axis) and their predicted one; the last of each is none of them.

    Args:
        truth: (n,) codes, -1 for none of the labels.
        predicted: (n,) likewise.
        n_labels: L.
    """
    size = n_labels + 1
    flat = np.bincount((truth % size) * size + predicted % size, minlength=size * size)
    return flat.astype(np.int64, copy=False).reshape(size, size)


def cells_of_matrix(matrix: Counts) -> Cells:
    """The cells of a matrix of ``confusion_matrix``."""
    n_labels = len(matrix) - 1
    truth, predicted = np.nonzero(matrix)
    return Cells(matrix[truth, predicted], _one_hot(truth, n_labels), _one_hot(predicted, n_labels))


def cells_of_sets(truth: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> Cells:
    """The cells of rows with any number of labels each.

    Args:
        truth: (n, L).
        predicted: (n, L).
    """
    patterns, n_rows = np.unique(np.packbits(np.hstack([truth, predicted]), axis=1), axis=0, return_counts=True)
    both = np.unpackbits(patterns, axis=1, count=2 * truth.shape[1])
    return Cells(n_rows, csr_matrix(both[:, : truth.shape[1]]), csr_matrix(both[:, truth.shape[1] :]))


def macro_f1_of(n_rows: NDArray[Any], cells: Cells) -> NDArray[np.float64]:
    """(B,) mean F1 over the labels that occur, for B ways to count the rows of each cell.

    Args:
        n_rows: (B, K).
        cells: K of them.
    """
    hit = _per_label(n_rows, cells.truth.multiply(cells.predicted))
    occurs = _per_label(n_rows, cells.truth) + _per_label(n_rows, cells.predicted)
    f1 = 2 * hit / np.maximum(occurs, 1)
    n_occurring = (occurs > 0).sum(axis=1)
    mean: NDArray[np.float64] = f1.sum(axis=1) / np.maximum(n_occurring, 1)
    return mean


def macro_f1_bounds(cells: Cells, *, n_resamples: int = N_RESAMPLES, seed: int = SEED) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean F1 (Efron 1979), rows resampled; the same in every run.

    A label that no row of a resample has or is given does not count in it.
    """
    n = int(cells.n_rows.sum())
    if not n:
        return 0.0, 0.0
    rng = np.random.default_rng(seed)
    n_at_once = max(1, MAX_DRAWN // len(cells.n_rows))
    drawn = [
        macro_f1_of(rng.multinomial(n, cells.n_rows / n, min(n_at_once, n_resamples - done)), cells)
        for done in range(0, n_resamples, n_at_once)
    ]
    return percentile_bounds(np.concatenate(drawn))


def percentile_bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _one_hot(codes: NDArray[np.intp], n_labels: int) -> Any:
    """(K, L) sparse; codes from ``n_labels`` on have no column."""
    known = np.flatnonzero(codes < n_labels)
    return csr_matrix((np.ones(len(known)), (known, codes[known])), shape=(len(codes), n_labels))


def _per_label(n_rows: NDArray[Any], marked: Any) -> NDArray[np.float64]:
    """(B, L) rows of the marked cells."""
    counted: NDArray[np.float64] = (marked.T.astype(np.float64) @ n_rows.T.astype(np.float64)).T
    return counted
