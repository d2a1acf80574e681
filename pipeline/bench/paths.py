"""The ways to label a workload, against the clock, and their figures.

Each takes turns over the same rows (see ``turns``): cutting them into passes and the passes themselves are on the
clock; loading the model, tokenizing, calibration and the shared prefix are not. The first path, one row at a time with
torch as it comes, is the reference that all others are compared with.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipeline.bench.bound import Bound
from pipeline.bench.ceiling import flop_of_last_rest, flop_per_token
from pipeline.bench.turns import deal, spread
from pipeline.bench.ways import WAYS, Job, Way
from pipeline.build import in_int8
from pipeline.engine.fused import FusedEngine
from pipeline.engine.int8 import why_not_int8
from pipeline.engine.select import Engine
from pipeline.stats import RunStats

WARM_UP_ROWS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """What a path did in a turn.

    Attributes:
        rows: so many.
        seconds: wall-clock time.
        computed_tokens: that went through the linear layers, padding included where the engine pads.
        padding: so many of them.
        flop: floating-point operations of the linear layers.
    """

    rows: int
    seconds: float
    computed_tokens: int
    padding: int
    flop: float


@dataclass
class Path:
    """A way to label one workload, and what it took.

    Attributes:
        way: itself.
        engine: reads the rows.
        bound: the workload.
        groups: the rows of each turn.
        max_batch_tokens: most tokens of a bucket.
        n_threads: of torch, in the thread that calls.
        raw: (n, E) edge scores, filled as it goes.
        prior: (labels,) what calibration takes off the scores.
        turns: what it did so far.
    """

    way: Way
    engine: Engine
    bound: Bound
    groups: Sequence[NDArray[np.int64]]
    max_batch_tokens: int
    n_threads: int
    raw: NDArray[np.float32]
    prior: NDArray[np.float64]
    turns: list[Turn] = field(default_factory=list)

    def warm_up(self) -> None:
        """Read a few rows."""
        for _ in self.way.passes(self._job(self._frame(self.groups[0][:WARM_UP_ROWS]), RunStats())):
            pass

    def run_turn(self, turn: int) -> None:
        """Label the rows of a turn as a whole job."""
        rows, stats = self.groups[turn], RunStats()
        job = self._job(self._frame(rows), stats)
        start = time.perf_counter()
        for places, raw in self.way.passes(job):
            self.raw[rows[places]] = raw
        self.turns.append(self._turn(len(rows), time.perf_counter() - start, stats))

    def _frame(self, rows: NDArray[np.int64]) -> pl.DataFrame:
        return (self.bound.behind_prefix if self.way.shares_prefix else self.bound.whole)[rows]

    def _job(self, frame: pl.DataFrame, stats: RunStats) -> Job:
        # the path before may have left the process with another number
        torch.set_num_threads(self.n_threads)
        return Job(self.engine, frame, stats, self.max_batch_tokens, self.bound.scorer.readout.n_nodes)

    def _turn(self, n_rows: int, seconds: float, stats: RunStats) -> Turn:
        tree, model, name = self.bound.scorer.readout, self.bound.model, self.engine.name
        # padded and single feed each chain of the tree by itself, and single the prompt with each
        chains = n_rows * (sum(map(len, tree.paths)) - tree.n_nodes)
        prompts = stats.fed_tokens - n_rows * tree.n_nodes
        computed = {
            "single": stats.fed_tokens + chains + prompts * (len(tree.paths) - 1),
            "padded": stats.padded_tokens + chains,
        }.get(name, stats.fed_tokens)
        flop = float(computed * flop_per_token(model))
        if name == "fused":
            flop -= (computed - n_rows * (1 + tree.n_nodes)) * flop_of_last_rest(model)
        padding = stats.padded_tokens - stats.fed_tokens if name == "padded" else 0
        return Turn(n_rows, seconds, computed, padding, flop)


def build_paths(
    ways: Sequence[Way], bound: Bound, n_turns: int, max_batch_tokens: int, say: Callable[[str], None]
) -> list[Path]:
    """Paths over a workload; a way that does not fit the model is told and left out.

    Args:
        ways: the reference first.
        bound: the workload.
        n_turns: that its rows are dealt into.
        max_batch_tokens: most tokens of a bucket.
        say: told what is left out.
    """
    groups, tree, n_rows = deal(bound.n_tokens, n_turns), bound.scorer.readout, len(bound.whole)
    paths = []
    for way in ways:
        raw = np.full((n_rows, len(tree.edges)), np.nan, np.float32)
        try:
            engine, prior = _engine(way, bound), bound.prior
            if way.quantized:
                prior = bound.prior_by(engine)
            path = Path(way, engine, bound, groups, max_batch_tokens, torch.get_num_threads(), raw, prior)
            path.warm_up()
        except Exception as error:  # models raise whatever they like when they do not take what an engine gives them
            if way is WAYS[0]:  # nothing can be compared
                raise
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            say(f"left out: {way.name}: {reason}")
            continue
        paths.append(path)
    return paths


def _engine(way: Way, bound: Bound) -> Engine:
    encoder, tree = bound.encoder, bound.scorer.readout
    engine = way.build(bound.model, encoder.prefix_ids if way.shares_prefix else (), tree)
    if way.quantized and isinstance(engine, FusedEngine):
        if reason := why_not_int8(bound.model):
            raise ValueError(reason)
        return in_int8(engine, encoder, tree)
    return engine


def figures(path: Path, reference: Path, ceilings: Sequence[float], peak_mib: float | None) -> dict[str, Any]:
    """What is reported of a path: medians over the turns, and from the smallest to the largest in ``…_spread``.

    Args:
        path: that has had all its turns.
        reference: another, or itself.
        ceilings: FLOP per second that the machine reached in each turn.
        peak_mib: of a process of its own; None if that was not measured.

    A row without finite scores gets no label; ``agreement`` counts it where both get the same or both get none, and
    ``not_finite`` says how many there are.
    """
    bound, turns = path.bound, path.turns
    n_rows, computed = sum(turn.rows for turn in turns), sum(turn.computed_tokens for turn in turns)
    useful = [int(bound.n_tokens[rows].sum()) for rows in path.groups]
    by_turn = {
        "items_per_s": [turn.rows / turn.seconds for turn in turns],
        "speedup": [its.seconds / turn.seconds for its, turn in zip(reference.turns, turns, strict=True)],
        "useful_tokens_per_s": [n / turn.seconds for n, turn in zip(useful, turns, strict=True)],
        "ceiling_share": [turn.flop / flops / turn.seconds for flops, turn in zip(ceilings, turns, strict=True)],
    }
    spreads = {name: spread(values) for name, values in by_turn.items()}
    return {
        "path": path.way.name,
        **{name: value.median for name, value in spreads.items()},
        **{f"{name}_spread": [value.low, value.high] for name, value in spreads.items()},
        "computed_tokens": computed,
        "computed_tokens_per_row": computed / n_rows,
        "padding_share": sum(turn.padding for turn in turns) / computed,
        "peak_mib": peak_mib,
        "not_finite": int((~np.isfinite(path.raw).all(axis=1)).sum()),
        "agreement": float((bound.decisions(path.raw, path.prior) == bound.decisions(reference.raw)).mean()),
        "largest_difference": _largest_difference(path.raw, reference.raw),
    }


def _largest_difference(raw: NDArray[np.float32], expected: NDArray[np.float32]) -> float | None:
    """Of rows that both have finite scores for; None if there is none."""
    finite = np.isfinite(raw).all(axis=1) & np.isfinite(expected).all(axis=1)
    return float(np.abs(raw[finite] - expected[finite]).max()) if finite.any() else None
