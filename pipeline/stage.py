"""The stage: a stream of Arrow tables in, the same stream with label columns out, row for row.

One buffer is read, tokenized, labelled and emitted whole, so order costs nothing and memory has one owner. While the
model works on one buffer, the next is looked up and tokenized on a second thread, and the one after it read on a third,
through one-slot queues.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.added_columns import STATUSES, added_columns, added_fields, count_labels, status_codes
from pipeline.decision import decide
from pipeline.engine.select import Engine
from pipeline.passes import run_passes
from pipeline.prefetch import prefetch
from pipeline.prepare import Prepared, Texts, find_texts, prepare
from pipeline.prompt import PromptEncoder
from pipeline.scoring import Scorer, probabilities
from pipeline.settings import Overlong, Settings
from pipeline.stats import RunStats
from pipeline.stored_scores import StoredScores
from pipeline.task import Task
from pipeline.text import split_by_text_bytes, text_frame

# Bytes of Arrow memory in a buffer, all columns together; up to five buffers exist at once.
MAX_BUFFER_BYTES = 16 << 20
# A large buffer can take a slow model an hour: its scores are kept this often, not only at its end.
KEEP_SECONDS = 10.0
MAX_LISTED = 10


Observe = Callable[[Prepared], None]


@dataclass(frozen=True)
class Stage:
    """A task bound to a model: everything that decides a label, ready to run.

    Attributes:
        task: what to ask, its text columns known.
        settings: output columns, limits, sizes.
        encoder: text to token ids.
        scorer: makes scores of what the engine reads.
        engine: token ids to what the scorer needs.
        prior: (labels,) what calibration divides out, in the unit of scores; zeros for none.
        max_batch_tokens: most padded tokens of one pass.
        prompt_fingerprint: hash of all that decides what the model makes of a text.
        score_fingerprint: hash of all that decides a text's scores.
        fingerprint: hash of all that decides its label.
        store: scores that are known already, and where new ones are kept; None for none.
    """

    task: Task
    settings: Settings
    encoder: PromptEncoder
    scorer: Scorer
    engine: Engine
    prior: NDArray[np.float64]
    max_batch_tokens: int
    prompt_fingerprint: str
    score_fingerprint: str
    fingerprint: str
    store: StoredScores | None = None

    def run(
        self, buffers: Iterable[pa.Table], stats: RunStats, *, observers: Sequence[Observe] = ()
    ) -> Generator[pa.Table, None, None]:
        """Label a stream of buffers.

        Args:
            buffers: consecutive rows with the task's columns.
            stats: counts are added to it as the stream flows.
            observers: are shown every buffer when its texts are scored.

        Yields:
            Each buffer's rows, in order, with the columns of ``added_fields`` behind their own. Closing this generator
            ends the other threads. However it ends, the store has the scores of all passes before the first one that
            was not finished.

        Raises:
            GateError: a text is over-long and ``overlong`` is ``fail``.
            CacheError: a shared store is damaged.
            StorageError: the store cannot be read or written.
        """
        with (
            closing(prefetch(self._find_texts(buffers, stats))) as found_texts,
            closing(prefetch(self._prepare(found_texts, stats))) as prepared_buffers,
        ):
            for prepared in prepared_buffers:
                with stats.phase("model"):
                    self._score(prepared, stats)
                for observe in observers:
                    observe(prepared)
                yield self._label(prepared, stats)

    def score_texts(self, texts: pl.DataFrame, stats: RunStats) -> NDArray[np.float32]:
        """Scores (n, labels) of n encoded texts, in their order; the store is not asked.

        Args:
            texts: as ``PromptEncoder.encode`` leaves them.
            stats: counts are added to it.
        """
        scores = np.full((len(texts), len(self.task.labels)), np.nan, dtype=np.float32)
        for rows, fresh in self._score_buckets(texts, stats):
            scores[rows] = fresh
        return scores

    def score_kept(self, texts: pl.Series, stats: RunStats) -> NDArray[np.float32]:
        """Scores (n, labels) of n distinct texts, NaN for none; known ones are looked up, the others kept.

        Args:
            texts: not blank.
            stats: counts of what the model did are added to it.
        """
        task = replace(self.task, text=(texts.name,), template=None)
        found = find_texts(texts.to_frame().to_arrow(), 0, task, self.store)
        # a text that is too long to get a label has no say; one that ends the run does so in its own row
        overlong: Overlong = "null" if self.settings.overlong == "null" else "truncate"
        prepared = prepare(found, len(self.task.labels), self.encoder, overlong, self.store)
        self._score(prepared, counts := RunStats())
        stats.add_passes(counts)
        return prepared.scores

    def encode_row(self, table: pa.Table, row: int) -> pl.DataFrame:
        """The prompt of one row, as ``PromptEncoder.encode`` leaves it."""
        one = table.slice(row, 1)
        return self.encoder.encode(text_frame({name: one.column(name) for name in self.task.columns}, self.task))

    def _score_buckets(
        self, texts: pl.DataFrame, stats: RunStats
    ) -> Generator[tuple[NDArray[np.int64], NDArray[np.float32]], None, None]:
        """Pass by pass, which of the texts it held, and their scores; closing it ends the engine's threads."""
        passes = run_passes(
            self.engine,
            texts,
            stats,
            max_batch_tokens=self.max_batch_tokens,
            n_nodes=self.scorer.readout.n_nodes,
        )
        for rows, raw in passes:
            yield rows, self.scorer.scores(raw).astype(np.float32)

    def _find_texts(self, buffers: Iterable[pa.Table], stats: RunStats) -> Iterator[Texts]:
        """Read; runs two steps ahead of the model."""
        source, first_row = iter(buffers), 0
        while True:
            with stats.phase("read"):
                table = next(source, None)
            if table is None:
                return
            for part in split_by_text_bytes(table, self.task, MAX_BUFFER_BYTES):
                with stats.phase("read"):
                    found = find_texts(part, first_row, self.task, self.store)
                yield found
                first_row += part.num_rows

    def _prepare(self, found_texts: Iterable[Texts], stats: RunStats) -> Iterator[Prepared]:
        """Look up and tokenize; runs one step ahead of the model."""
        for found in found_texts:
            with stats.phase("tokenize"):
                prepared = prepare(found, len(self.task.labels), self.encoder, self.settings.overlong, self.store)
            yield prepared

    def _score(self, prepared: Prepared, stats: RunStats) -> None:
        """Fill in the scores of a buffer's texts that have none, and keep them."""
        unscored = self._still_unscored(prepared)
        stats.known_texts += int(np.isfinite(prepared.scores).all(axis=1).sum())
        n_nodes = self.scorer.readout.n_nodes
        stats.begin_buffer(prepared.table.num_rows, int(unscored["n_tokens"].sum()) + len(unscored) * n_nodes)
        text_ids = unscored["text_id"].to_numpy()
        fresh: list[NDArray[np.int64]] = []
        kept_at = time.monotonic()
        try:
            with closing(self._score_buckets(unscored, stats)) as passes:
                for rows, scores in passes:
                    prepared.scores[text_ids[rows]] = scores
                    fresh.append(text_ids[rows])
                    if time.monotonic() - kept_at > KEEP_SECONDS:
                        self._keep(prepared, fresh)
                        fresh, kept_at = [], time.monotonic()
        finally:
            self._keep(prepared, fresh)

    def _still_unscored(self, prepared: Prepared) -> pl.DataFrame:
        """The texts to score; since they were looked up, the buffer before or another process may have scored some."""
        if self.store is None or prepared.unscored.is_empty():
            return prepared.unscored
        text_ids = prepared.unscored["text_id"].to_numpy()
        prepared.scores[text_ids], _ = self.store.lookup(prepared.keys[text_ids])
        return prepared.unscored.filter(pl.Series(np.isnan(prepared.scores[text_ids]).any(axis=1)))

    def _keep(self, prepared: Prepared, text_ids: Sequence[NDArray[np.int64]]) -> None:
        if self.store is not None and text_ids:
            fresh = np.concatenate(text_ids)
            self.store.insert(prepared.keys[fresh], prepared.scores[fresh], prepared.truncated[fresh])

    def _label(self, prepared: Prepared, stats: RunStats) -> pa.Table:
        """Put the added columns behind a buffer's own."""
        scores = prepared.scores.astype(np.float64)
        decision = decide(probabilities(scores, self.prior, multi=self.task.multi), self.task)
        # a last entry for blank rows, which have no text
        text_id = prepared.rows["text_id"].fill_null(len(scores)).to_numpy().astype(np.int64)
        statuses = status_codes(
            decision,
            text_id,
            blank=prepared.rows["blank"].to_numpy(),
            invalid_text=prepared.rows["invalid_text"].to_numpy(),
            truncated=prepared.truncated,
            settings=self.settings,
        )
        columns = added_columns(decision, text_id, statuses, self.settings)
        stats.end_buffer()
        labels, n_unlabelled = count_labels(columns[0])
        stats.labels.update(labels)
        stats.unlabelled += n_unlabelled
        counts = np.bincount(statuses, minlength=len(STATUSES)).tolist()
        stats.statuses.update({status: n_rows for status, n_rows in zip(STATUSES, counts, strict=True) if n_rows})
        if failed := np.flatnonzero(statuses == STATUSES.index("failed"))[:MAX_LISTED].tolist():
            stats.failed_rows = [prepared.first_row + row for row in failed]
        table = prepared.table
        for field, column in zip(added_fields(self.task, self.settings), columns, strict=True):
            table = table.append_column(field, column)
        return table
