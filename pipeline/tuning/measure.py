"""How good answers are on labelled rows, and how sure one may be of it.

Answers and truth are (n, labels) arrays of booleans, with one label a row and with several: an answer is right when the
row has exactly these labels.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from pipeline.evaluation.metrics import accuracy_interval

SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Quality:
    """How good answers are.

    Attributes:
        n_rows: compared.
        n_right: rows with exactly the right labels.
        macro_f1: mean over the labels that occur in truth or answers of the harmonic mean of precision and recall.
    """

    n_rows: int
    n_right: int
    macro_f1: float

    @property
    def accuracy(self) -> float:
        """Share of the rows that are right; NaN for no rows."""
        return self.n_right / self.n_rows if self.n_rows else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson 1927), which holds for few rows and at both ends."""
        return accuracy_interval(self.n_right, self.n_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Duel:
    """Two ways to answer, compared on the same rows.

    Attributes:
        first_right: (n,) whether the first has a row right.
        second_right: (n,) the same for the second.
    """

    first_right: NDArray[np.bool_]
    second_right: NDArray[np.bool_]

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.first_right)

    @property
    def first(self) -> int:
        """Rows that the first has right."""
        return int(self.first_right.sum())

    @property
    def second(self) -> int:
        """Rows that the second has right."""
        return int(self.second_right.sum())

    @property
    def first_wins(self) -> bool:
        """Whether the first has more right, by chance or not; see ``p_value``."""
        return self.first > self.second

    @property
    def p_value(self) -> float:
        """Of both being equally good, two-sided: the exact test of McNemar (1947) on the rows where they differ."""
        gained = int((self.first_right & ~self.second_right).sum())
        n_uneven = gained + int((self.second_right & ~self.first_right).sum())
        return float(binomtest(gained, n_uneven).pvalue) if n_uneven else 1.0


def right_rows(answers: NDArray[np.bool_], truth: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) whether each row has exactly its labels."""
    right: NDArray[np.bool_] = (answers == truth).all(axis=1)
    return right


def quality(answers: NDArray[np.bool_], truth: NDArray[np.bool_]) -> Quality:
    """Compare answers with the truth."""
    hits, given, wanted = (answers & truth).sum(axis=0), answers.sum(axis=0), truth.sum(axis=0)
    seen = (given + wanted) > 0
    f1 = 2 * hits[seen] / (given + wanted)[seen]
    return Quality(len(truth), int(right_rows(answers, truth).sum()), float(f1.mean()) if len(f1) else math.nan)
