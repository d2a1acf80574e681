"""Length windows and buckets: which rows go through the model together.

A *length window* is a range of suffix lengths whose ends differ by at most ``WINDOW_RATIO``; rows of one window padded
to the longest of them waste at most that share. A *bucket* is what one forward pass takes: rows of one window, at most
``max_batch_tokens`` padded tokens. Stragglers (a window with too few rows to be worth a pass of its own) join the next
shorter window. Longest first: a memory problem shows in the first pass, not at four in the morning.

Pure functions of the lengths: the same buffer always gives the same buckets. Knows nothing of models.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

WINDOW_RATIO = 1.1
# A bucket below this share of the token budget takes rows of the next window along, since a pass has a fixed cost.
MIN_FILL = 0.25


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of one forward pass.

    Attributes:
        rows: index of each row in the frame the bucket was cut from, (R,).
        token_ids: the rows' own tokens, one row after the other, (sum of n_tokens,).
        n_tokens: length of each row's own tokens, (R,), all at least 1.
        n_shared: how many tokens of the shared prefix stand before every row of the bucket.
    """

    rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    n_tokens: NDArray[np.int64]
    n_shared: int

    @property
    def padded_tokens(self) -> int:
        """Tokens of the (rows x longest) rectangle."""
        return len(self.n_tokens) * int(self.n_tokens.max())

    def alone(self, place: int) -> "Bucket":
        """One of its rows, as a bucket."""
        end = int(self.n_tokens[: place + 1].sum())
        own = slice(end - int(self.n_tokens[place]), end)
        return Bucket(
            self.rows[place : place + 1], self.token_ids[own], self.n_tokens[place : place + 1], self.n_shared
        )

    def split(self) -> tuple["Bucket", "Bucket"]:
        """Two halves, for when the whole does not fit in memory; the bucket must have at least two rows."""
        half = len(self.rows) // 2
        cut = int(self.n_tokens[:half].sum())
        return (
            Bucket(self.rows[:half], self.token_ids[:cut], self.n_tokens[:half], self.n_shared),
            Bucket(self.rows[half:], self.token_ids[cut:], self.n_tokens[half:], self.n_shared),
        )


def length_window(n_tokens: pl.Expr) -> pl.Expr:
    """The window number of each length: short lengths have windows of their own, then windows grow by the ratio."""
    exact_below = round(1 / (WINDOW_RATIO - 1))
    beyond = (n_tokens / exact_below).log(WINDOW_RATIO).floor() + exact_below
    return pl.when(n_tokens < exact_below).then(n_tokens.cast(pl.Float64)).otherwise(beyond).cast(pl.Int32)


def plan_buckets(
    n_tokens: NDArray[np.int64],
    windows: NDArray[np.int64],
    *,
    max_batch_tokens: int,
    extra_tokens: int = 0,
) -> Iterator[NDArray[np.int64]]:
    """Cut rows into buckets, longest first.

    Args:
        n_tokens: tokens of each row, (n,).
        windows: length window of each row, (n,); must grow with ``n_tokens``.
        max_batch_tokens: most padded tokens in a bucket; a single row longer than that is a bucket of its own.
        extra_tokens: tokens that scoring adds behind every row, counted in the budget.

    Yields:
        Indices of the rows of one bucket, longest row first. Every index comes exactly once.
    """
    order = np.argsort(-n_tokens, kind="stable")
    start = 0
    while start < len(order):
        longest = int(n_tokens[order[start]]) + extra_tokens
        end = min(len(order), start + max(1, max_batch_tokens // longest))
        enough = min(end, start + max(1, math.ceil(MIN_FILL * max_batch_tokens / longest)))
        # rows of the first row's window, and of the next ones only until the bucket is worth a pass
        in_window = start + int(np.searchsorted(-windows[order[start:end]], -windows[order[start]], side="right"))
        end = max(in_window, enough)
        yield order[start:end]
        start = end


def cut_buckets(frame: pl.DataFrame, *, max_batch_tokens: int, extra_tokens: int = 0) -> Iterator[Bucket]:
    """Cut a frame with columns ``token_ids``, ``n_tokens``, ``length_window``, ``n_shared`` into buckets.

    Rows that share more of the prefix come first; each bucket holds rows of one ``n_shared``.
    """
    if frame.is_empty():
        return
    n_tokens = frame["n_tokens"].to_numpy().astype(np.int64)
    windows = frame["length_window"].to_numpy().astype(np.int64)
    n_shared = frame["n_shared"].to_numpy()
    ends = np.cumsum(n_tokens)
    flat = frame["token_ids"].explode(empty_as_null=False).to_numpy()
    for shared in np.unique(n_shared)[::-1]:
        members = np.flatnonzero(n_shared == shared)
        for picked in plan_buckets(
            n_tokens[members], windows[members], max_batch_tokens=max_batch_tokens, extra_tokens=extra_tokens
        ):
            rows = members[picked]
            token_ids = np.concatenate([flat[ends[row] - n_tokens[row] : ends[row]] for row in rows])
            yield Bucket(rows, token_ids.astype(np.int64), n_tokens[rows], int(shared))
