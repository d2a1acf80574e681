"""Texts through an engine, pass by pass: buckets, longest first; a pass that runs out of memory is split.

Knows nothing of labels, of stores and of where the texts come from.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import polars as pl
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from numpy.typing import NDArray

from pipeline.buckets import Bucket, cut_buckets
from pipeline.engine.select import Engine
from pipeline.engine.workers import default_threads_kept, use_one_thread
from pipeline.stats import RunStats

log = logging.getLogger(__name__)

# Smaller passes than this waste more than a worker without work does.
MIN_BATCH_TOKENS = 128
# With at least so many, the last pass of one worker is short next to what the others wait for.
PASSES_OF_A_WORKER = 8


def run_passes(
    engine: Engine, texts: pl.DataFrame, stats: RunStats, *, max_batch_tokens: int, n_nodes: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Score encoded texts.

    Args:
        engine: what it reads is given back.
        texts: as ``PromptEncoder.encode`` leaves them.
        stats: counts are added to it.
        max_batch_tokens: most padded tokens of one pass.
        n_nodes: tokens that are fed behind each text.

    Yields:
        Of each pass: which R of the texts it held, and the (R, K) numbers that the engine read of them.
    """
    if engine.workers > 1:  # a few texts are dealt out to all workers, too, and all end at about the same time
        n_tokens = int(texts["n_tokens"].sum()) + len(texts) * n_nodes
        share = n_tokens // (engine.workers * PASSES_OF_A_WORKER)
        max_batch_tokens = min(max_batch_tokens, max(MIN_BATCH_TOKENS, share))
    buckets = cut_buckets(texts, max_batch_tokens=max_batch_tokens, extra_tokens=n_nodes)
    for bucket, raw in score_in_order(engine, buckets, stats):
        stats.buckets += 1
        stats.texts += len(bucket.rows)
        stats.fed_tokens += len(bucket.token_ids) + len(bucket.rows) * n_nodes
        stats.padded_tokens += bucket.padded_tokens + len(bucket.rows) * n_nodes
        yield bucket.rows, raw


def read_texts(
    engine: Engine, texts: pl.DataFrame, stats: RunStats, *, max_batch_tokens: int, n_nodes: int
) -> NDArray[np.float32]:
    """The (n, K) numbers that the engine reads of n encoded texts, at least one; the arguments are ``run_passes``'."""
    read = None
    for rows, raw in run_passes(engine, texts, stats, max_batch_tokens=max_batch_tokens, n_nodes=n_nodes):
        read = np.empty((len(texts), raw.shape[1]), dtype=np.float32) if read is None else read
        read[rows] = raw
    assert read is not None, "no texts"
    return read


def score_in_order(
    engine: Engine, buckets: Iterable[Bucket], stats: RunStats
) -> Iterator[tuple[Bucket, NDArray[np.float32]]]:
    """Score buckets, as many at once as the engine allows.

    Args:
        engine: what it reads is given back.
        buckets: taken as they are needed.
        stats: splits are added to it.

    Yields:
        Each bucket, in order, and the (R, K) numbers that the engine read of its rows.

    Raises:
        RuntimeError: a single row does not fit in memory.
    """
    if engine.workers == 1:
        for bucket in buckets:
            yield bucket, _counted(score_rows(engine, bucket), stats)
        return
    waiting: deque[tuple[Bucket, Future[tuple[NDArray[np.float32], int]]]] = deque()
    with default_threads_kept(), ThreadPoolExecutor(engine.workers, initializer=use_one_thread) as pool:
        try:
            for bucket in buckets:
                waiting.append((bucket, pool.submit(score_rows, engine, bucket)))
                # one more than is worked on, so that no worker waits for the reader of the results
                if len(waiting) > 2 * engine.workers:
                    done, result = waiting.popleft()
                    yield done, _counted(result.result(), stats)
            while waiting:
                done, result = waiting.popleft()
                yield done, _counted(result.result(), stats)
        finally:
            for _, result in waiting:
                result.cancel()


def score_rows(engine: Engine, bucket: Bucket) -> tuple[NDArray[np.float32], int]:
    """What the engine reads of a bucket, (R, K), and how many times a pass was split to fit in memory.

    Raises:
        RuntimeError: a single row does not fit.
    """
    raw, n_splits = score_bucket(engine, bucket)
    # in the padding of its neighbours, which has no weight, a row that is not finite is not nothing
    poisoned = np.flatnonzero(~np.isfinite(raw).all(axis=1)).tolist() if len(bucket.rows) > 1 else []
    for place in poisoned:
        raw[place] = score_bucket(engine, bucket.alone(place))[0][0]
    return raw, n_splits


def score_bucket(engine: Engine, bucket: Bucket) -> tuple[NDArray[np.float32], int]:
    """What the engine reads of a bucket, (R, K), in one pass or in the splits, counted, that it takes to fit in memory.

    Raises:
        RuntimeError: a single row does not fit.
    """
    try:
        return engine.score(bucket), 0
    except (RuntimeError, MemoryError) as error:
        if len(bucket.rows) == 1 or not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
            raise
    # outside the handler, so that the failed pass's tensors are free
    clear_device_cache(garbage_collection=True)
    halves = [score_bucket(engine, half) for half in bucket.split()]
    return np.concatenate([raw for raw, _ in halves]), 1 + sum(n_splits for _, n_splits in halves)


def _counted(result: tuple[NDArray[np.float32], int], stats: RunStats) -> NDArray[np.float32]:
    raw, n_splits = result
    if n_splits and not stats.splits:
        log.warning(
            "out of memory in a pass of %d rows: such passes are split; a smaller --max-batch-tokens avoids it",
            len(raw),
        )
    stats.splits += n_splits
    return raw
