"""A buffer's way to the model: its distinct texts, which of them have known scores, the tokens of the others.

Two steps, each of which runs ahead of the next on a thread of its own. Knows nothing of models and labels.
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
class Texts:
    """A buffer of n rows with m distinct texts.

    Attributes:
        table: the input rows.
        first_row: number of the first in the whole input.
        rows: (n,) frame ``row``, ``blank``, ``invalid_text``, ``text_id``: which of the texts, null where blank.
        texts: (m,) frame ``text_id``, ``row``: in which each first stands, ``text``.
        keys: (m, 2) digests of the texts; (m, 0) without a store.
    """

    table: pa.Table
    first_row: int
    rows: pl.DataFrame
    texts: pl.DataFrame
    keys: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A buffer of n rows with m distinct texts, ready to be scored.

    Attributes:
        table: the input rows.
        first_row: number of the first in the whole input.
        rows: (n,) frame as in ``Texts``.
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


def find_texts(table: pa.Table, first_row: int, task: Task, store: StoredScores | None) -> Texts:
    """Find the distinct texts of a buffer.

    Args:
        table: the rows.
        first_row: number of the first in the whole input.
        task: with its text columns bound to the input.
        store: that they will be looked up in; None for none.
    """
    rows = text_frame({name: table.column(name) for name in task.columns}, task)
    texts = rows.filter(~pl.col("blank")).unique("text", keep="first", maintain_order=True)
    texts = texts.with_row_index("text_id").select("text_id", "row", "text")
    rows = rows.join(texts.select("text_id", "text"), on="text", how="left", maintain_order="left").drop("text")
    keys = np.empty((len(texts), 0), dtype=np.uint64) if store is None else store.keys(texts["text"])
    return Texts(table, first_row, rows, texts, keys)


def prepare(
    found: Texts, n_labels: int, encoder: PromptEncoder, overlong: Overlong, store: StoredScores | None
) -> Prepared:
    """Look up a buffer's texts, and tokenize those that are not known.

    Args:
        found: the texts.
        n_labels: scores of a text.
        encoder: text to token ids.
        overlong: what becomes of texts with too long prompts.
        store: known scores; None for none.

    Raises:
        GateError: a text is over-long and ``overlong`` is ``fail``.
        CacheError: a shared store is damaged.
        StorageError: the store cannot be read.
    """
    n_texts = len(found.texts)
    scores, truncated = np.full((n_texts, n_labels), np.nan, dtype=np.float32), np.full(n_texts, False)
    if store is not None:
        scores, truncated = store.lookup(found.keys)
    unknown = found.texts.filter(pl.Series(np.isnan(scores).any(axis=1)))
    unscored = encoder.encode(unknown.select("text_id", "text")).drop("text")
    truncated[unscored["text_id"].to_numpy()] = unscored["truncated"].to_numpy()
    first_rows = found.texts["row"].to_numpy().astype(np.int64)
    if overlong == "fail" and truncated.any():
        raise GateError(
            f"row {found.first_row + first_rows[truncated].min()}: its prompt is longer than --max-tokens "
            f"{encoder.max_tokens}, and --overlong is fail",
            "use --overlong truncate or null, or a larger --max-tokens",
        )
    if overlong == "null":
        unscored = unscored.filter(~pl.col("truncated"))
    return Prepared(found.table, found.first_row, found.rows, first_rows, truncated, found.keys, scores, unscored)
