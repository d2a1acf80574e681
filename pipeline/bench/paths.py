"""The ways to label the workload, from what anyone would write first to the packed engine, and their figures."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.bench.workload import seed_task, seed_tickets
from pipeline.buckets import Bucket, cut_buckets
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import Engine
from pipeline.engine.single import SingleEngine
from pipeline.prompt import build_encoder
from pipeline.scoring import choose_scorer

BATCH_ROWS = 32  # what a plain loop over batches would take
N_TURNS = 10


@dataclass
class Path:
    """One way to label the workload, and what it took.

    Attributes:
        name: for the table.
        engine: scores the buckets.
        buckets: its passes, in order.
        scores: (n, labels) first-token logits, filled as it goes.
        computed_tokens: tokens that go through the linear layers, padding included where the engine pads.
        useful_tokens: tokens of the rows' whole prompts, the same for every path.
        seconds: wall-clock time so far.
    """

    name: str
    engine: Engine
    buckets: Sequence[Bucket]
    scores: NDArray[np.float32]
    computed_tokens: int
    useful_tokens: int
    seconds: float = field(default=0.0)

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that is padding."""
        own = sum(len(bucket.token_ids) for bucket in self.buckets)
        padded = sum(bucket.padded_tokens for bucket in self.buckets)
        return (padded - own) / self.computed_tokens if self.engine.name == "padded" else 0.0

    def run_turn(self, turn: int) -> None:
        """Score the buckets of one of ``N_TURNS`` turns against the clock."""
        first, last = (len(self.buckets) * i // N_TURNS for i in (turn, turn + 1))
        start = time.perf_counter()
        for bucket in self.buckets[first:last]:
            self.scores[bucket.rows] = self.engine.score(bucket)
        self.seconds += time.perf_counter() - start

    def figures(self, reference: "Path", flop_per_token: float, ceiling_flops: float) -> dict[str, Any]:
        """What is reported; ``speedup``, ``agreement`` and ``largest_difference`` are to the reference path."""
        return {
            "path": self.name,
            "items_per_s": len(self.scores) / self.seconds,
            "speedup": reference.seconds / self.seconds,
            "useful_tokens_per_s": self.useful_tokens / self.seconds,
            "computed_tokens": self.computed_tokens,
            "padding_share": self.padding_share,
            "ceiling_share": self.computed_tokens * flop_per_token / ceiling_flops / self.seconds,
            "agreement": float((self.scores.argmax(axis=1) == reference.scores.argmax(axis=1)).mean()),
            "largest_difference": float(np.abs(self.scores - reference.scores).max()),
        }


def build_paths(model: Model, n_rows: int, max_batch_tokens: int) -> list[Path]:
    """The paths over ``n_rows`` seed tickets, the reference first."""
    task = seed_task()
    labels = task.label_names
    encoder = build_encoder(task, model.tokenizer, max_tokens=min(2048, model.max_context))
    tree = choose_scorer(task.scoring, labels, encoder.continuations(labels, task.answer)).readout
    frame = encoder.encode(pl.DataFrame({"text": seed_tickets(n_rows)}))
    n_tokens = frame["n_tokens"].to_numpy().astype(np.int64)
    n_prefix = len(encoder.prefix_ids)

    arriving, by_length = np.arange(n_rows), np.argsort(-n_tokens, kind="stable")
    buckets = list(cut_buckets(frame, max_batch_tokens=max_batch_tokens))
    context = (model, encoder.prefix_ids, tree)
    unshared, shared = PaddedEngine(*context, share_prefix=False), PaddedEngine(*context)

    def path(name: str, engine: Engine, batches: Iterable[Bucket], *, shares_prefix: bool = False) -> Path:
        batches = list(batches)
        own = sum(b.padded_tokens if engine.name == "padded" else len(b.token_ids) for b in batches)
        computed = own + (n_prefix if shares_prefix else n_prefix * n_rows)
        useful = int(n_tokens.sum()) + n_prefix * n_rows
        return Path(name, engine, batches, np.zeros((n_rows, len(labels)), np.float32), computed, useful)

    return [
        path("one at a time", SingleEngine(*context), batches_of(1, frame, arriving)),
        path("batches of 32, arriving order", unshared, batches_of(BATCH_ROWS, frame, arriving)),
        path("batches of 32, sorted", unshared, batches_of(BATCH_ROWS, frame, by_length)),
        path("padded buckets", unshared, buckets),
        path("padded buckets + shared prefix", shared, buckets, shares_prefix=True),
        path("packed + shared prefix", PackedEngine(*context), buckets, shares_prefix=True),
    ]


def batches_of(n_rows: int, frame: pl.DataFrame, order: NDArray[np.int64]) -> Iterator[Bucket]:
    """Batches of so many rows in the given order, whatever their lengths."""
    n_shared = int(frame["n_shared"].min())  # type: ignore[arg-type]
    for start in range(0, len(order), n_rows):
        rows = order[start : start + n_rows]
        own = [frame["token_ids"][int(row)].to_numpy().astype(np.int64) for row in rows]
        yield Bucket(rows, np.concatenate(own), np.array([len(ids) for ids in own]), n_shared)


def run_in_turns(paths: Sequence[Path], say: Callable[[str], None]) -> None:
    """Give each path a tenth of its passes in turn, so that a slow minute of the machine hits them all alike."""
    for path in paths:
        path.engine.score(path.buckets[-1])  # warm-up
    for turn in range(N_TURNS):
        for path in paths:
            path.run_turn(turn)
        say(f"turn {turn + 1} of {N_TURNS}")
