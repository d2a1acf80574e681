"""What more labels cost: items/s and tokens fed per row for 3, 10 and 77 labels, by how labels are compared.

Short tickets, shared prefix, the fastest engine that fits: the rows' own tokens are few, so those of the labels weigh
most. A head reads the same pass without label tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from pipeline.bench.turns import deal, spread
from pipeline.bench.workload import many_labels, seed_task, short_tickets
from pipeline.engine.fused import FusedEngine
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import Engine
from pipeline.engine.single import SingleEngine
from pipeline.passes import read_texts, run_passes
from pipeline.prompt import PromptEncoder, build_encoder
from pipeline.readout import HiddenStates, Readout
from pipeline.scoring import choose_scorer
from pipeline.settings import DEFAULT_MAX_TOKENS
from pipeline.stats import RunStats
from pipeline.task import Scoring

LABEL_COUNTS = (3, 10, 77)
SCORINGS: tuple[Scoring, ...] = ("constrained", "sequence")


@dataclass
class LabelPath:
    """One way to compare so many labels, and what it took.

    Attributes:
        name: how labels are compared.
        n_labels: so many.
        n_prefix: tokens of the shared prefix, which names all labels and is computed once.
        engine: reads the rows.
        frames: the encoded rows of each turn.
        max_batch_tokens: most tokens of a bucket.
        n_nodes: label tokens fed behind each row's own.
        seconds: wall-clock time of each turn so far.
    """

    name: str
    n_labels: int
    n_prefix: int
    engine: Engine
    frames: Sequence[pl.DataFrame]
    max_batch_tokens: int
    n_nodes: int
    seconds: list[float] = field(default_factory=list)

    def warm_up(self) -> None:
        """Read two rows."""
        self._read(self.frames[0].head(2))

    def run_turn(self, turn: int) -> None:
        """Read the rows of a turn against the clock."""
        start = time.perf_counter()
        self._read(self.frames[turn])
        self.seconds.append(time.perf_counter() - start)

    def figures(self) -> dict[str, Any]:
        """What is reported."""
        n_rows = sum(map(len, self.frames))
        own = sum(int(frame["n_tokens"].sum()) for frame in self.frames)
        items = spread([len(frame) / seconds for frame, seconds in zip(self.frames, self.seconds, strict=True)])
        return {
            "labels": self.n_labels,
            "scoring": self.name,
            "engine": self.engine.name,
            "items_per_s": items.median,
            "items_per_s_spread": [items.low, items.high],
            "prefix_tokens": self.n_prefix,
            "label_tokens_per_row": self.n_nodes,
            "fed_tokens_per_row": own / n_rows + self.n_nodes,
        }

    def _read(self, frame: pl.DataFrame) -> None:
        budget = self.max_batch_tokens
        for _ in run_passes(self.engine, frame, RunStats(), max_batch_tokens=budget, n_nodes=self.n_nodes):
            pass


def build_label_paths(model: Model, n_rows: int, n_turns: int, max_batch_tokens: int) -> list[LabelPath]:
    """The ways for each number of labels, over the same short tickets."""
    paths = []
    for n_labels in LABEL_COUNTS:
        labels = many_labels(n_labels)
        task = replace(seed_task(), labels=tuple((label, "") for label in labels))
        encoder = build_encoder(task, model.tokenizer, max_tokens=min(DEFAULT_MAX_TOKENS, model.max_context))
        frame = encoder.encode(pl.DataFrame({"text": short_tickets(n_rows)}))
        frames = [frame[rows] for rows in deal(frame["n_tokens"].to_numpy().astype(np.int64), n_turns)]
        continuations = encoder.continuations(labels, task.answer)
        readouts: dict[str, Readout] = {
            scoring: choose_scorer(scoring, labels, continuations).readout for scoring in SCORINGS
        }
        for name, readout in (readouts | {"head": HiddenStates()}).items():
            engine = fastest_engine(model, encoder, readout, frame)
            n_prefix = len(encoder.prefix_ids)
            paths.append(LabelPath(name, n_labels, n_prefix, engine, frames, max_batch_tokens, readout.n_nodes))
    return paths


def ratio_of_most_to_fewest(paths: Sequence[LabelPath]) -> dict[str, float]:
    """Items/s with the most labels over items/s with the fewest, by how they are compared: medians over the turns."""
    seconds = {(path.name, path.n_labels): path.seconds for path in paths}
    fewest, *_, most = LABEL_COUNTS
    return {
        path.name: spread([few / many for few, many in zip(path.seconds, seconds[path.name, most], strict=True)]).median
        for path in paths
        if path.n_labels == fewest
    }


def fastest_engine(model: Model, encoder: PromptEncoder, readout: Readout, frame: pl.DataFrame) -> Engine:
    """The first engine that reads a row at all; whether it reads it right is told of the paths."""
    for build in (FusedEngine, PackedEngine, PaddedEngine):
        try:
            engine: Engine = build(model, encoder.prefix_ids, readout)
            read_texts(engine, frame.head(1), RunStats(), max_batch_tokens=1, n_nodes=readout.n_nodes)
        except Exception:  # models raise whatever they like when they do not take what an engine gives them
            continue
        return engine
    return SingleEngine(model, encoder.prefix_ids, readout)
