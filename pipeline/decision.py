"""From the probabilities of labels to what a row gets: a label or a list of them, its score, and whether it was sure.

With one label a row: the most probable one, ties to the label that comes first; a row that is not sure enough gets the
default label. With any number: every label that reaches its threshold. Knows nothing of rows and of where the
probabilities come from.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.task import Task


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for n texts.

    Attributes:
        labels: (n,) string, with ``multi`` list<string> in the order of the task; null where no label could be given.
        scores: (n,) float32 probability of the most probable label, with ``multi`` a list<float32> beside ``labels``.
        failed: (n,) whether the probabilities are not finite.
        low_score: (n,) whether the label is the default one, since none was probable enough.
    """

    labels: pa.Array
    scores: pa.Array
    failed: NDArray[np.bool_]
    low_score: NDArray[np.bool_]


def decide(probability: NDArray[np.float64], task: Task) -> Decision:
    """Decide on n texts.

    Args:
        probability: (n, labels), NaN rows for failed ones.
        task: labels, their order, and limits.
    """
    failed = np.asarray(np.isnan(probability).any(axis=1))
    return _decide_many(probability, failed, task) if task.multi else _decide_one(probability, failed, task)


def _decide_one(probability: NDArray[np.float64], failed: NDArray[np.bool_], task: Task) -> Decision:
    safe = np.where(failed[:, None], 0.0, probability)
    label = safe.argmax(axis=1)
    second, first = np.partition(safe, -2, axis=1)[:, -2:].T
    low_score = ~failed & ((first < task.min_score) | (first - second < task.min_margin))
    names = pa.array([*task.label_names, task.default_label], pa.string())
    picked = np.where(low_score, len(task.labels), label)
    return Decision(
        labels=names.take(pa.array(picked, mask=failed)),
        scores=pa.array(first.astype(np.float32), mask=failed),
        failed=failed,
        low_score=low_score,
    )


def _decide_many(probability: NDArray[np.float64], failed: NDArray[np.bool_], task: Task) -> Decision:
    given = probability >= np.array(task.label_thresholds)  # NaN reaches none
    _, label = np.nonzero(given)
    ends = pa.array(np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32))
    none = pa.array(failed)

    def lists(values: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(ends, values, mask=none)

    return Decision(
        labels=lists(pa.array(task.label_names, pa.string()).take(pa.array(label))),
        scores=lists(pa.array(probability[given].astype(np.float32))),
        failed=failed,
        low_score=np.zeros_like(failed),
    )
