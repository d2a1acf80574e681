"""The first distinct texts of an input: what batch calibration measures the model's favourites on.

Which texts these are depends on the input alone, so that a run that is begun anew, with other buffers or on another
day, has the same prior. Bounded in rows, texts and characters. Knows nothing of models.
"""

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from pipeline.task import Task
from pipeline.text import split_by_text_bytes, text_frame

N_TEXTS = 256
# Fewer of them say more about themselves than about the model.
FEW_TEXTS = 30
MAX_CHARS = 4 << 20
MAX_ROWS = 1 << 16
MAX_PART_BYTES = 16 << 20


class FirstTexts:
    """Collects texts in the order of the rows, until it has enough.

    Args:
        n_texts: how many are enough.
    """

    def __init__(self, n_texts: int = N_TEXTS) -> None:
        self._n_texts = n_texts
        self._texts: dict[str, None] = {}
        self._n_chars = 0
        self._n_rows = 0

    @property
    def texts(self) -> list[str]:
        """Those collected, in the order of their rows."""
        return list(self._texts)

    @property
    def is_full(self) -> bool:
        """Whether no more are needed."""
        return len(self._texts) == self._n_texts or self._n_chars >= MAX_CHARS or self._n_rows == MAX_ROWS

    def add(self, tables: Iterable[pa.Table], task: Task) -> None:
        """Take from a stream of rows what is needed, and read no further.

        Args:
            tables: consecutive rows.
            task: with its text columns bound to them.
        """
        if self.is_full:
            return
        for table in tables:
            table = table.slice(0, MAX_ROWS - self._n_rows)
            for part in split_by_text_bytes(table, task, MAX_PART_BYTES):
                rows = text_frame({name: part.column(name) for name in task.columns}, task)
                for text in rows.filter(~pl.col("blank"))["text"].unique(maintain_order=True):
                    if text not in self._texts:
                        self._texts[text] = None
                        self._n_chars += len(text)
                    if self.is_full:
                        return
            self._n_rows += table.num_rows
            if self.is_full:
                return
