"""The columns that a run adds: label, score, status. Their fields are fixed before the first row is seen."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.decision import Decision
from pipeline.settings import Settings
from pipeline.task import Task

# In order of precedence: the first that holds for a row is its status. `ok` holds for every row.
STATUSES = ("blank", "overlong", "failed", "low_score", "invalid_text", "truncated", "ok")


def added_fields(task: Task, settings: Settings) -> list[pa.Field]:
    """The fields put behind the input's."""
    label, score = pa.string(), pa.float32()
    if task.multi:
        label, score = pa.list_(label), pa.list_(score)
    fields = [pa.field(settings.label_column, label)]
    if settings.score_column is not None:
        fields.append(pa.field(settings.score_column, score))
    if settings.status_column is not None:
        fields.append(pa.field(settings.status_column, pa.string(), nullable=False))
    return fields


def status_codes(
    decision: Decision, text_id: NDArray[np.int64], *, blank: NDArray[np.bool_], invalid_text: NDArray[np.bool_],
    truncated: NDArray[np.bool_], settings: Settings,
) -> NDArray[np.intp]:  # fmt: skip
    """(n,) index into ``STATUSES`` of each of n rows with m texts.

    Args:
        decision: for the m texts.
        text_id: (n,) which text each row has; m for blank rows.
        blank: (n,) rows without text.
        invalid_text: (n,) rows whose bytes were not UTF-8.
        truncated: (m,) texts whose prompt was longer than the limit.
        settings: limits.
    """

    def of_rows(by_text: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.append(by_text, False)[text_id]

    holds = (
        blank,
        of_rows(truncated) & (settings.overlong == "null"),
        of_rows(decision.failed),
        of_rows(decision.low_score),
        invalid_text,
        of_rows(truncated),
        np.ones_like(blank),
    )
    codes: NDArray[np.intp] = np.argmax(np.stack(holds), axis=0)
    return codes


def added_columns(
    decision: Decision, text_id: NDArray[np.int64], statuses: NDArray[np.intp], settings: Settings
) -> list[pa.Array]:
    """The arrays of ``added_fields`` for n rows.

    Args:
        decision: for the m texts.
        text_id: (n,) as in ``status_codes``.
        statuses: (n,) from ``status_codes``.
        settings: which columns.
    """
    unscored = statuses < STATUSES.index("low_score")
    at = pa.array(np.where(unscored, 0, text_id), mask=unscored)
    columns = [decision.labels.take(at)]
    if settings.score_column is not None:
        columns.append(decision.scores.take(at))
    if settings.status_column is not None:
        columns.append(pa.array(STATUSES).take(pa.array(statuses)))
    return columns


def count_labels(labels: pa.Array) -> tuple[dict[str | None, int], int]:
    """How many rows have each label (None: null), and how many have an empty list of labels."""
    counts: dict[str | None, int] = {}
    n_unlabelled = 0
    if pa.types.is_list(labels.type):
        if labels.null_count:
            counts[None] = labels.null_count
        n_unlabelled = pc.sum(pc.equal(pc.list_value_length(labels), 0)).as_py() or 0
        labels = labels.flatten()
    counts |= {value["values"]: value["counts"] for value in labels.value_counts().to_pylist()}
    return counts, n_unlabelled
