"""Fair turns: what takes part measures the same rows, one after the other, again and again.

A machine that others use is fast now and slow in a minute. So the rows are dealt into groups alike, every path labels a
group as a whole job before the next group begins, and paths are compared within a turn. Medians over the turns are
reported, with the smallest and largest value. Knows nothing of models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

N_TURNS = 6


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of what the turns gave."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(float(median(values)), float(min(values)), float(max(values)))


def deal(lengths: NDArray[np.int64], n_turns: int) -> list[NDArray[np.int64]]:
    """Deal rows into groups of the same distribution of lengths.

    Args:
        lengths: (n,) of the rows, n at least ``n_turns``.
        n_turns: how many groups.

    Returns:
        The rows of each group, in ascending order; every row is in one of them.
    """
    by_length = np.argsort(-lengths, kind="stable")
    return [np.sort(by_length[turn::n_turns]) for turn in range(n_turns)]


class Timed(Protocol):
    """What takes turns."""

    def warm_up(self) -> None:
        """Do a little of the work off the clock."""

    def run_turn(self, turn: int) -> None:
        """Do the job of a turn, and note how long it took."""


def run_in_turns(
    paths: Sequence[Timed], n_turns: int, before_turn: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Let every path do the job of turn 0, then of turn 1, and so on.

    Args:
        paths: that take turns.
        n_turns: how many.
        before_turn: is called at the beginning of each.
        say: told of each turn that is over.
    """
    for path in paths:
        path.warm_up()
    for turn in range(n_turns):
        before_turn()
        for path in paths:
            path.run_turn(turn)
        say(f"turn {turn + 1} of {n_turns}")
