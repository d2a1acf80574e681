"""The columns that a run adds: label, score, status. Their fields are fixed before the first row is seen."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.scoring import Decision
from pipeline.settings import Settings

# In order of precedence: the first that holds for a row is its status. `ok` holds for every row.
STATUSES = ("blank", "overlong", "failed", "low_score", "invalid_text", "truncated", "ok")


def added_fields(settings: Settings) -> list[pa.Field]:
    """The fields put behind the input's."""
    fields = [pa.field(settings.label_column, pa.string())]
    if settings.score_column is not None:
        fields.append(pa.field(settings.score_column, pa.float32()))
    if settings.status_column is not None:
        fields.append(pa.field(settings.status_column, pa.string(), nullable=False))
    return fields


def status_codes(
    decision: Decision, *, blank: NDArray[np.bool_], invalid_text: NDArray[np.bool_], truncated: NDArray[np.bool_],
    settings: Settings,
) -> NDArray[np.intp]:  # fmt: skip
    """(n,) index into ``STATUSES`` of each row.

    Args:
        decision: for n rows; blank rows may hold anything.
        blank: (n,) rows without text.
        invalid_text: (n,) rows whose bytes were not UTF-8.
        truncated: (n,) rows whose prompt was longer than the limit.
        settings: limits.
    """
    holds = (
        blank,
        truncated & (settings.overlong == "null"),
        decision.label < 0,
        decision.score < settings.min_score,
        invalid_text,
        truncated,
        np.ones_like(blank),
    )
    codes: NDArray[np.intp] = np.argmax(np.stack(holds), axis=0)
    return codes


def added_columns(
    decision: Decision, statuses: NDArray[np.intp], label_names: Sequence[str], settings: Settings
) -> list[pa.Array]:
    """The arrays of ``added_fields`` for n rows.

    Args:
        decision: for n rows.
        statuses: (n,) from ``status_codes``.
        label_names: in label order.
        settings: which columns, and the label of rows with a low score.
    """
    unscored = statuses < STATUSES.index("low_score")
    low_score = statuses == STATUSES.index("low_score")
    names = pa.array([*label_names, settings.default_label], pa.string())
    picked = np.where(low_score, len(label_names), decision.label)
    columns = [names.take(pa.array(picked, mask=unscored))]
    if settings.score_column is not None:
        columns.append(pa.array(decision.score.astype(np.float32), mask=unscored))
    if settings.status_column is not None:
        columns.append(pa.array(STATUSES).take(pa.array(statuses)))
    return columns
