"""A buffer's way to the model: its distinct texts, which of them have known scores, the tokens of the others.

Runs ahead of the model on a thread of its own. Knows nothing of models and labels.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import GateError
from pipeline.prompt import PromptEncoder
from pipeline.settings import Overlong
from pipeline.stored_scores import StoredScores
from pipeline.task import Task
from pipeline.text import text_frame


@dataclass(frozen=True, slots=True)
class Prepared:
    """A buffer of n rows with m distinct texts.

    Attributes:
        table: the input rows.
        first_row: number of the first in the whole input.
        rows: (n,) frame ``row``, ``blank``, ``invalid_text``, ``text_id``: which of the texts, null where blank.
        first_rows: (m,) row in which each text first stands.
        truncated: (m,) whether its prompt is longer than the limit.
        keys: (m, 2) its digests; (m, 0) without a store.
        scores: (m, labels) log-probabilities, filled in by the stage where they are not known; NaN for none.
        unscored: the texts that are to be scored, as ``PromptEncoder.encode`` leaves them, with their ``text_id``.
    """

    table: pa.Table
    first_row: int
    rows: pl.DataFrame
    first_rows: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    keys: NDArray[np.uint64]
    scores: NDArray[np.float32]
    unscored: pl.DataFrame


def prepare(
    table: pa.Table,
    first_row: int,
    task: Task,
    encoder: PromptEncoder,
    overlong: Overlong,
    store: StoredScores | None,
) -> Prepared:
    """Find the distinct texts of a buffer, look them up, and tokenize those that are not known.

    Args:
        table: the rows.
        first_row: number of the first in the whole input.
        task: with its text columns bound to the input.
        encoder: text to token ids.
        overlong: what becomes of texts with too long prompts.
        store: known scores; None for none.

    Raises:
        GateError: a text is over-long and ``overlong`` is ``fail``.
        InputError: a shared store is damaged.
        StorageError: the store cannot be read.
    """
    # 1. identical texts are one
    rows = text_frame({name: table.column(name) for name in task.columns}, task)
    texts = rows.filter(~pl.col("blank")).unique("text", keep="first", maintain_order=True).select("row", "text")
    texts = texts.with_row_index("text_id")
    rows = rows.join(texts.select("text_id", "text"), on="text", how="left", maintain_order="left").drop("text")

    # 2. what is known of them
    n_scores = len(task.labels)
    keys = np.empty((len(texts), 0), dtype=np.uint64)
    scores = np.full((len(texts), n_scores), np.nan, dtype=np.float32)
    truncated = np.full(len(texts), False)
    if store is not None:
        keys = store.keys(texts["text"])
        scores, truncated = store.lookup(keys)

    # 3. tokens of the others
    unscored = texts.filter(pl.Series(np.isnan(scores).any(axis=1))).select("text_id", "text")
    unscored = encoder.encode(unscored).drop("text")
    truncated[unscored["text_id"].to_numpy()] = unscored["truncated"].to_numpy()
    if overlong == "null":
        unscored = unscored.filter(~pl.col("truncated"))
    first_rows = texts["row"].to_numpy().astype(np.int64)
    if overlong == "fail" and truncated.any():
        raise GateError(
            f"row {first_row + first_rows[truncated].min()}: its prompt is longer than --max-tokens "
            f"{encoder.max_tokens}, and --overlong is fail",
            "use --overlong truncate or null, or a larger --max-tokens",
        )
    return Prepared(table, first_row, rows, first_rows, truncated, keys, scores, unscored)
