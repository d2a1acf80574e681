"""What more labels cost: items/s and tokens fed per row for 3, 10 and 77 labels, by how labels are compared.

Short tickets, packed engine, shared prefix: the rows' own tokens are few, so those of the labels weigh most. A head
reads the same pass without label tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from pipeline.bench.paths import N_TURNS
from pipeline.bench.workload import many_labels, seed_task, short_tickets
from pipeline.buckets import Bucket, cut_buckets
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.select import Engine
from pipeline.prompt import PromptEncoder, build_encoder
from pipeline.readout import HiddenStates, Readout
from pipeline.scoring import choose_scorer
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
        engine: reads the buckets.
        buckets: its passes, in order.
        n_nodes: label tokens fed behind each row's own.
        seconds: wall-clock time so far.
    """

    name: str
    n_labels: int
    n_prefix: int
    engine: Engine
    buckets: Sequence[Bucket]
    n_nodes: int
    seconds: float = field(default=0.0)

    def run_turn(self, turn: int) -> None:
        """Read the buckets of one of ``N_TURNS`` turns against the clock."""
        first, last = (len(self.buckets) * i // N_TURNS for i in (turn, turn + 1))
        start = time.perf_counter()
        for bucket in self.buckets[first:last]:
            self.engine.score(bucket)
        self.seconds += time.perf_counter() - start

    def figures(self) -> dict[str, Any]:
        """What is reported."""
        n_rows = sum(len(bucket.rows) for bucket in self.buckets)
        own = sum(len(bucket.token_ids) for bucket in self.buckets)
        return {
            "labels": self.n_labels,
            "scoring": self.name,
            "items_per_s": n_rows / self.seconds,
            "prefix_tokens": self.n_prefix,
            "label_tokens_per_row": self.n_nodes,
            "fed_tokens_per_row": own / n_rows + self.n_nodes,
        }


def build_label_paths(model: Model, n_rows: int, max_batch_tokens: int) -> list[LabelPath]:
    """The ways for each number of labels, over the same short tickets."""
    paths = []
    for n_labels in LABEL_COUNTS:
        labels = many_labels(n_labels)
        task = replace(seed_task(), labels=tuple((label, "") for label in labels))
        encoder = build_encoder(task, model.tokenizer, max_tokens=min(2048, model.max_context))
        continuations = encoder.continuations(labels, task.answer)
        for scoring in SCORINGS:
            tree = choose_scorer(scoring, labels, continuations).readout
            paths.append(_path(scoring, n_labels, model, encoder, tree, n_rows, max_batch_tokens))
        paths.append(_path("head", n_labels, model, encoder, HiddenStates(), n_rows, max_batch_tokens))
    return paths


def _path(
    name: str,
    n_labels: int,
    model: Model,
    encoder: PromptEncoder,
    readout: Readout,
    n_rows: int,
    max_batch_tokens: int,
) -> LabelPath:
    texts = encoder.encode(pl.DataFrame({"text": short_tickets(n_rows)}))
    buckets = list(cut_buckets(texts, max_batch_tokens=max_batch_tokens, extra_tokens=readout.n_nodes))
    # in the order of lengths the turns would not be alike
    order = np.random.default_rng(0).permutation(len(buckets))
    n_prefix = len(encoder.prefix_ids)
    engine = PackedEngine(model, encoder.prefix_ids, readout)
    return LabelPath(name, n_labels, n_prefix, engine, [buckets[place] for place in order], readout.n_nodes)
