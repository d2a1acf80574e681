"""The stage: a stream of Arrow tables in, the same stream with label columns out, row for row.

One buffer is read, tokenized, labelled and emitted whole, so order costs nothing and memory has one owner. While the
model works on one buffer, the next is read and tokenized on a second thread, through a one-slot queue.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from numpy.typing import NDArray

from pipeline.added_columns import STATUSES, added_columns, added_fields, status_codes
from pipeline.buckets import Bucket, cut_buckets
from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model
from pipeline.engine.select import Engine, choose_engine
from pipeline.errors import GateError
from pipeline.fingerprint import fingerprint
from pipeline.prefetch import prefetch
from pipeline.prompt import PROBES, PromptEncoder, build_encoder
from pipeline.scoring import CONTENT_FREE, Decision, choose_tree, contextual_prior, decide, label_logprobs
from pipeline.settings import DEFAULT_MAX_TOKENS, Settings
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.text import split_by_text_bytes, text_frame

log = logging.getLogger(__name__)

# Padded tokens of one pass. On a CPU larger activations fall out of its caches; a GPU is only filled by more.
MAX_BATCH_TOKENS_CPU = 1024
MAX_BATCH_TOKENS_ACCELERATOR = 16384
# Bytes of Arrow memory in a buffer, all columns together; up to three buffers exist at once.
MAX_BUFFER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A buffer on its way to the model.

    Attributes:
        table: the input rows, n of them.
        first_row: number of the first in the whole input.
        rows: (n,) frame ``row``, ``blank``, ``invalid_text``, ``text_id``: which of ``texts``, null where blank.
        texts: the buffer's distinct texts as ``PromptEncoder.encode`` leaves them; ``row`` is where each first stood.
    """

    table: pa.Table
    first_row: int
    rows: pl.DataFrame
    texts: pl.DataFrame


Observe = Callable[[Prepared, NDArray[np.float32]], None]


@dataclass(frozen=True)
class Stage:
    """A task bound to a model: everything that decides a label, ready to run.

    Attributes:
        task: what to ask, its text columns known.
        settings: output columns, limits, sizes.
        encoder: text to token ids.
        tree: the label continuations.
        engine: token ids to edge scores.
        prior: (labels,) log-probabilities that calibration divides out; zeros for none.
        max_batch_tokens: most padded tokens of one pass.
        fingerprint: hash of all that decides a label.
    """

    task: Task
    settings: Settings
    encoder: PromptEncoder
    tree: ContinuationTree
    engine: Engine
    prior: NDArray[np.float64]
    max_batch_tokens: int
    fingerprint: str

    def run(
        self, buffers: Iterable[pa.Table], stats: RunStats, *, observe: Observe | None = None
    ) -> Generator[pa.Table, None, None]:
        """Label a stream of buffers.

        Args:
            buffers: consecutive rows with the task's columns.
            stats: counts are added to it as the stream flows.
            observe: is shown every buffer with the edge scores of its distinct texts.

        Yields:
            Each buffer's rows, in order, with the columns of ``added_fields`` behind their own. Closing this generator
            ends the second thread.

        Raises:
            GateError: a text is over-long and ``overlong`` is ``fail``.
        """
        with closing(prefetch(self._prepare_all(buffers, stats))) as prepared_buffers:
            for prepared in prepared_buffers:
                with stats.phase("model"):
                    edge_scores = self._score(prepared, stats)
                if observe is not None:
                    observe(prepared, edge_scores)
                yield self._label(prepared, edge_scores, stats)

    def score_texts(self, texts: pl.DataFrame, stats: RunStats) -> NDArray[np.float32]:
        """Edge scores (n, E) of n encoded texts, in their order.

        Args:
            texts: as ``PromptEncoder.encode`` leaves them.
            stats: counts are added to it.
        """
        scores = np.full((len(texts), len(self.tree.edges)), np.nan, dtype=np.float32)
        n_nodes = self.tree.n_nodes
        for bucket in cut_buckets(texts, max_batch_tokens=self.max_batch_tokens, extra_tokens=n_nodes):
            scores[bucket.rows] = score_bucket(self.engine, bucket)
            stats.buckets += 1
            stats.texts += len(bucket.rows)
            stats.fed_tokens += len(bucket.token_ids) + len(bucket.rows) * n_nodes
            stats.padded_tokens += bucket.padded_tokens + len(bucket.rows) * n_nodes
        return scores

    def _prepare_all(self, buffers: Iterable[pa.Table], stats: RunStats) -> Iterator[Prepared]:
        """Read and tokenize; runs on the prefetch thread."""
        source, first_row = iter(buffers), 0
        while True:
            with stats.phase("read"):
                table = next(source, None)
            if table is None:
                return
            for part in split_by_text_bytes(table, self.task, MAX_BUFFER_BYTES):
                with stats.phase("tokenize"):
                    prepared = self._prepare(part, first_row)
                yield prepared
                first_row += part.num_rows

    def _prepare(self, table: pa.Table, first_row: int) -> Prepared:
        """The distinct texts of a buffer, tokenized: identical texts go through the model once."""
        rows = text_frame({name: table.column(name) for name in self.task.columns}, self.task)
        texts = rows.filter(~pl.col("blank")).unique("text", keep="first", maintain_order=True).select("row", "text")
        ids = texts.select("text").with_row_index("text_id")
        rows = rows.join(ids, on="text", how="left", maintain_order="left").drop("text")
        texts = self.encoder.encode(texts).drop("text")
        if self.settings.overlong == "fail" and texts["truncated"].any():
            row = first_row + int(texts.filter("truncated")["row"].min())  # type: ignore[arg-type]
            raise GateError(
                f"row {row}: its prompt is longer than --max-tokens {self.encoder.max_tokens}, and --overlong is fail",
                "use --overlong truncate or null, or a larger --max-tokens",
            )
        return Prepared(table, first_row, rows, texts)

    def _score(self, prepared: Prepared, stats: RunStats) -> NDArray[np.float32]:
        """Edge scores (n, E) of a buffer's texts; NaN for over-long ones that get no label."""
        texts = prepared.texts
        wanted = np.full(len(texts), True) if self.settings.overlong != "null" else ~texts["truncated"].to_numpy()
        scored = texts.filter(wanted)
        stats.begin_buffer(prepared.table.num_rows, int(scored["n_tokens"].sum()) + len(scored) * self.tree.n_nodes)
        scores = np.full((len(texts), len(self.tree.edges)), np.nan, dtype=np.float32)
        scores[wanted] = self.score_texts(scored, stats)
        return scores

    def _label(self, prepared: Prepared, edge_scores: NDArray[np.float32], stats: RunStats) -> pa.Table:
        """Put the added columns behind a buffer's own."""
        by_text = decide(label_logprobs(edge_scores, self.tree), self.prior)
        # a last entry for blank rows, which have no text
        blank = prepared.rows["blank"].to_numpy()
        text_id = prepared.rows["text_id"].fill_null(len(by_text.label)).to_numpy()
        decision = Decision(np.append(by_text.label, -1)[text_id], np.append(by_text.score, np.nan)[text_id])
        statuses = status_codes(
            decision,
            blank=blank,
            invalid_text=prepared.rows["invalid_text"].to_numpy(),
            truncated=np.append(prepared.texts["truncated"].to_numpy(), False)[text_id],
            settings=self.settings,
        )
        columns = added_columns(decision, statuses, self.task.label_names, self.settings)
        stats.end_buffer()
        stats.labels.update({value["values"]: value["counts"] for value in columns[0].value_counts().to_pylist()})
        stats.statuses.update(STATUSES[code] for code in statuses)
        table = prepared.table
        for field, column in zip(added_fields(self.settings), columns, strict=True):
            table = table.append_column(field, column)
        return table


def build_stage(task: Task, model: Model, settings: Settings) -> Stage:
    """Bind a task to a model: encode the prompt, choose and check the engine, measure the calibration prior.

    Args:
        task: its text columns may still be unknown; a stage built from it can score but not run.
        model: a loaded model.
        settings: limits and sizes.

    Raises:
        UsageError: prompt, labels and limits do not go together for this model.
        ModelError: the model cannot be used.
    """
    max_tokens = settings.max_tokens or DEFAULT_MAX_TOKENS
    encoder = build_encoder(task, model.tokenizer, max_tokens=max_tokens)
    if not encoder.exact:
        log.warning("model %r: its tokenizer needs whole prompts; tokenizing is slower", model.name)
    tree = choose_tree(task.scoring, task.label_names, encoder.continuations(task.label_names, task.answer))
    # behind the longest prompt there must be room for the longest label
    n_label = max(tree.depths, default=0)
    if model.max_context - n_label < max_tokens:
        context = f"the context of model {model.name!r} ({model.max_context}, {n_label} of them for the longest label)"
        encoder = encoder.limited(model.max_context - n_label, context=context)
    probes = encoder.encode(pl.DataFrame({"text": PROBES[:3]}))
    budget = settings.max_batch_tokens or (
        MAX_BATCH_TOKENS_CPU if model.device.type == "cpu" else MAX_BATCH_TOKENS_ACCELERATOR
    )
    (probe, *_) = cut_buckets(probes, max_batch_tokens=1 << 20)
    stage = Stage(
        task=task,
        settings=settings,
        encoder=encoder,
        tree=tree,
        engine=choose_engine(settings.engine, model, encoder.prefix_ids, tree, probe),
        prior=np.zeros(len(task.labels)),
        max_batch_tokens=budget,
        fingerprint=fingerprint(task, encoder, tree, model.digest),
    )
    return replace(stage, prior=measure_prior(stage))


def measure_prior(stage: Stage) -> NDArray[np.float64]:
    """(labels,) log-probabilities for calibration to divide out, by the stage's engine; zeros for none."""
    if stage.task.calibration == "none":
        return np.zeros(len(stage.task.labels))
    texts = stage.encoder.encode(pl.DataFrame({"text": CONTENT_FREE}))
    return contextual_prior(label_logprobs(stage.score_texts(texts, RunStats()), stage.tree))


def score_bucket(engine: Engine, bucket: Bucket) -> NDArray[np.float32]:
    """Edge scores (R, E) of a bucket; one that does not fit in memory is split until it does.

    Raises:
        RuntimeError: a single row does not fit.
    """
    try:
        return engine.score(bucket)
    except (RuntimeError, MemoryError) as error:
        if len(bucket.rows) == 1 or not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
            raise
        log.warning("out of memory in a pass of %d rows: splitting it; see --max-batch-tokens", len(bucket.rows))
    # outside the handler, so that the failed pass's tensors are free
    clear_device_cache(garbage_collection=True)
    return np.concatenate([score_bucket(engine, half) for half in bucket.split()])
