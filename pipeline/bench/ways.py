"""The ways to label a workload, from what anyone would write first to the fastest engine there is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.fused import FusedEngine
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import Engine
from pipeline.engine.single import SingleEngine
from pipeline.errors import UsageError
from pipeline.passes import run_passes
from pipeline.stats import RunStats

BATCH_ROWS = 32  # what a plain loop over batches would take

Raw = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Job:
    """Rows to label, all at once.

    Attributes:
        engine: reads them.
        frame: (n,) encoded rows.
        stats: tokens are added to it, as ``run_passes`` does.
        max_batch_tokens: most tokens of a bucket.
        n_nodes: tokens fed behind each row.
    """

    engine: Engine
    frame: pl.DataFrame
    stats: RunStats
    max_batch_tokens: int
    n_nodes: int

    def in_batches(self, order: NDArray[np.int64], n_rows: int) -> Iterator[Raw]:
        """Batches of so many rows in the given order, one after the other: a plain loop."""
        for start in range(0, len(order), n_rows):
            rows = order[start : start + n_rows]
            own = [self.frame["token_ids"][int(row)].to_numpy().astype(np.int64) for row in rows]
            bucket = Bucket(rows, np.concatenate(own), np.array([len(ids) for ids in own]), n_shared=0)
            raw = self.engine.score(bucket)
            self.stats.fed_tokens += len(bucket.token_ids) + len(rows) * self.n_nodes
            self.stats.padded_tokens += bucket.padded_tokens + len(rows) * self.n_nodes
            yield rows, raw


@dataclass(frozen=True, slots=True)
class Way:
    """A way to label.

    Attributes:
        name: for the table and for ``--paths``.
        build: makes its engine of a model, a prefix and what is read; a ValueError says that the model does not fit.
        passes: does a job; gives which rows each pass held, and what was read of them.
        shares_prefix: whether the prompt's beginning is computed once, or with every row.
        quantized: whether the engine is then put in int8.
    """

    name: str
    build: Callable[[Model, tuple[int, ...], ContinuationTree], Engine]
    passes: Callable[[Job], Iterator[Raw]]
    shares_prefix: bool = False
    quantized: bool = False


def one_by_one(job: Job) -> Iterator[Raw]:
    """Every row alone, in arriving order."""
    return job.in_batches(np.arange(len(job.frame)), 1)


def arriving(job: Job) -> Iterator[Raw]:
    """Batches of 32 in arriving order, whatever their lengths."""
    return job.in_batches(np.arange(len(job.frame)), BATCH_ROWS)


def by_length(job: Job) -> Iterator[Raw]:
    """Batches of 32, longest first."""
    lengths = job.frame["n_tokens"].to_numpy().astype(np.int64)
    return job.in_batches(np.argsort(-lengths, kind="stable"), BATCH_ROWS)


def bucketed(job: Job) -> Iterator[Raw]:
    """Buckets, as the stage cuts them, on as many workers as the engine has."""
    return run_passes(job.engine, job.frame, job.stats, max_batch_tokens=job.max_batch_tokens, n_nodes=job.n_nodes)


# The reference first, the fastest last. An engine of another kind or precision is one more line.
WAYS = (
    Way("one at a time", SingleEngine, one_by_one),
    Way("batches of 32, arriving order", PaddedEngine, arriving),
    Way("batches of 32, sorted", PaddedEngine, by_length),
    Way("padded buckets", PaddedEngine, bucketed),
    Way("padded buckets + shared prefix", PaddedEngine, bucketed, shares_prefix=True),
    Way("packed + shared prefix", PackedEngine, bucketed, shares_prefix=True),
    Way("fused + shared prefix", FusedEngine, bucketed, shares_prefix=True),
    Way("fused + shared prefix, int8", FusedEngine, bucketed, shares_prefix=True, quantized=True),
)


def choose_ways(patterns: Sequence[str]) -> tuple[Way, ...]:
    """The ways whose names match any of some patterns (``*`` and ``?``), the reference always among them.

    Raises:
        UsageError: a pattern matches none.
    """
    names = [way.name for way in WAYS]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"--paths {pattern!r}: there is no such path", f"there are: {'; '.join(names)}")
    return tuple(way for way in WAYS if way is WAYS[0] or any(fnmatchcase(way.name, pattern) for pattern in patterns))
