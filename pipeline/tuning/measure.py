"""How good answers are on labelled rows, and how sure one may be of it.

Answers and truth are (n, labels) arrays of booleans, with one label a row and with several: an answer is right when the
row has exactly these labels.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054
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
        return wilson(self.n_right, self.n_rows)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two ways to answer, compared on the same rows.

    Attributes:
        gained: rows that only the first has right.
        lost: rows that only the second has right.
    """

    gained: int
    lost: int

    @property
    def p_value(self) -> float:
        """Of both being equally good, two-sided: the exact test of McNemar (1947) on the rows where they differ."""
        n, k = self.gained + self.lost, min(self.gained, self.lost)
        # logarithms of the binomial coefficients: as whole numbers they have thousands of digits
        terms = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1)]
        return min(1.0, 2 * math.fsum(math.exp(term - n * math.log(2)) for term in terms))

    @property
    def is_better(self) -> bool:
        """Whether the first is better by more than chance."""
        return self.gained > self.lost and self.p_value < SIGNIFICANT

    @property
    def is_worse(self) -> bool:
        """Whether the second is better by more than chance."""
        return self.gained < self.lost and self.p_value < SIGNIFICANT


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


def compare(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Paired:
    """Compare two ways by (n,) which rows each has right."""
    return Paired(int((first & ~second).sum()), int((second & ~first).sum()))


def wilson(n_right: int, n_rows: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927, "Probable Inference"); (0, 1) for no rows."""
    if not n_rows:
        return 0.0, 1.0
    share, z2 = n_right / n_rows, Z_95**2
    middle = share + z2 / (2 * n_rows)
    spread = Z_95 * math.sqrt(share * (1 - share) / n_rows + z2 / (4 * n_rows**2))
    low, high = (middle - spread) / (1 + z2 / n_rows), (middle + spread) / (1 + z2 / n_rows)
    return max(0.0, low), min(1.0, high)
