"""Labelled texts dealt into parts, each with its share of every label; the same on every run with one seed.

Truth is an (n, labels) array of booleans, whatever the mode: with one label a row, each row has one true value. A text
stands in it once, so no part knows a text of another.
"""

import numpy as np
from numpy.typing import NDArray

Truth = NDArray[np.bool_]

# A head needs two texts of a label to learn from, one to leave out and one to keep; fewer are never held out.
MIN_TUNE_TEXTS = 2


def strata(truth: Truth) -> NDArray[np.int64]:
    """(n,) the rarest label of each row, the number of labels for rows that have none.

    With several labels a row this keeps rare labels evenly spread, which need it most (the idea of Sechidis et al.
    2011, "On the Stratification of Multi-Label Data", in a single step).
    """
    n_rows, n_labels = truth.shape
    rarity = np.where(truth, truth.sum(axis=0), n_rows + 1)
    rarest: NDArray[np.int64] = np.where(truth.any(axis=1), rarity.argmin(axis=1), n_labels)
    return rarest


def deal(groups: NDArray[np.int64], n_parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(n,) a part for each row: shuffled within its group, then dealt in turn, on from where the last group ended."""
    part = np.empty(len(groups), dtype=np.int64)
    start = 0
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        part[rows] = (start + np.arange(len(rows))) % n_parts
        start += len(rows)
    return part


def split(truth: Truth, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into a part to tune on and a part to judge by.

    Args:
        truth: (n, labels).
        share: of each label's rows that is held out, rounded; at least two are kept to tune on where there are two.
        seed: of the shuffle.

    Returns:
        Row numbers of the tune part and of the held-out part, ascending.
    """
    rng = np.random.default_rng(seed)
    groups, held_out = strata(truth), np.zeros(len(truth), dtype=bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        n_out = min(round(share * len(rows)), max(0, len(rows) - MIN_TUNE_TEXTS))
        held_out[rows[:n_out]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def draw(truth: Truth, rows: NDArray[np.int64], n_rows: int, seed: int) -> NDArray[np.int64]:
    """At most ``n_rows`` of some rows, with every label's share as it is in them (rounded), ascending."""
    if len(rows) <= n_rows:
        return rows
    groups, rng = strata(truth)[rows], np.random.default_rng(seed)
    # a row's rank among its group, as a share of it: the lowest ones of all groups are an even sample
    rank = np.empty(len(rows))
    for group in np.unique(groups):
        places = rng.permutation(np.flatnonzero(groups == group))
        rank[places] = (np.arange(len(places)) + rng.random()) / len(places)
    return np.sort(rows[np.argsort(rank, kind="stable")[:n_rows]])
