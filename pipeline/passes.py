"""Texts through an engine, pass by pass: buckets, longest first; a pass that runs out of memory is split.

Knows nothing of labels, of stores and of where the texts come from.
"""

import logging
from collections.abc import Iterator

import numpy as np
import polars as pl
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from numpy.typing import NDArray

from pipeline.buckets import Bucket, cut_buckets
from pipeline.engine.select import Engine
from pipeline.stats import RunStats

log = logging.getLogger(__name__)


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
    for bucket in cut_buckets(texts, max_batch_tokens=max_batch_tokens, extra_tokens=n_nodes):
        raw = score_bucket(engine, bucket, stats)
        # in the padding of its neighbours, which has no weight, a row that is not finite is not nothing
        poisoned = np.flatnonzero(~np.isfinite(raw).all(axis=1)).tolist() if len(bucket.rows) > 1 else []
        for place in poisoned:
            raw[place] = score_bucket(engine, bucket.alone(place), stats)[0]
        stats.buckets += 1
        stats.texts += len(bucket.rows)
        stats.fed_tokens += len(bucket.token_ids) + len(bucket.rows) * n_nodes
        stats.padded_tokens += bucket.padded_tokens + len(bucket.rows) * n_nodes
        yield bucket.rows, raw


def score_bucket(engine: Engine, bucket: Bucket, stats: RunStats) -> NDArray[np.float32]:
    """What the engine reads of a bucket, (R, K); one that does not fit in memory is split until it does.

    Raises:
        RuntimeError: a single row does not fit.
    """
    try:
        return engine.score(bucket)
    except (RuntimeError, MemoryError) as error:
        if len(bucket.rows) == 1 or not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
            raise
        if not stats.splits:
            log.warning(
                "out of memory in a pass of %d rows: such passes are split; a smaller --max-batch-tokens avoids it",
                len(bucket.rows),
            )
        stats.splits += 1
    # outside the handler, so that the failed pass's tensors are free
    clear_device_cache(garbage_collection=True)
    return np.concatenate([score_bucket(engine, half, stats) for half in bucket.split()])
