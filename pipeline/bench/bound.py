"""A workload bound to a model: encoded once for all paths, and what turns an engine's numbers into decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.bench.workload import Workload
from pipeline.buckets import cut_buckets, length_window
from pipeline.engine.model import Model
from pipeline.engine.select import Engine
from pipeline.engine.single import SingleEngine
from pipeline.prompt import PromptEncoder, build_encoder
from pipeline.scoring import CONTENT_FREE, TreeScorer, choose_scorer, label_prior
from pipeline.settings import DEFAULT_MAX_TOKENS

NONE = -1  # in place of a label


@dataclass(frozen=True, slots=True)
class Bound:
    """A workload of n rows, ready to be labelled.

    Attributes:
        workload: itself.
        model: that labels it.
        encoder: text to token ids.
        scorer: an engine's numbers to scores of labels.
        prior: (labels,) what calibration takes off the scores, by the reference engine; zeros for none.
        behind_prefix: (n,) frame as ``PromptEncoder.encode`` leaves it.
        whole: (n,) the same with the shared prefix among each row's own tokens.
    """

    workload: Workload
    model: Model
    encoder: PromptEncoder
    scorer: TreeScorer
    prior: NDArray[np.float64]
    behind_prefix: pl.DataFrame
    whole: pl.DataFrame

    @property
    def n_tokens(self) -> NDArray[np.int64]:
        """(n,) tokens of each row's whole prompt."""
        return self.whole["n_tokens"].to_numpy().astype(np.int64)

    def decisions(self, raw: NDArray[np.float32], prior: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """(n,) which label each row gets, -1 for none, from (n, E) edge scores and what calibration takes off them."""
        scores = self.scorer.scores(raw) - (self.prior if prior is None else prior)
        # as the stage decides: a row without finite scores gets no label
        return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), NONE)

    def prior_by(self, engine: Engine) -> NDArray[np.float64]:
        """(labels,) what calibration takes off the scores of an engine that shares the prefix and is less exact."""
        if self.workload.task.calibration == "none":
            return self.prior
        probes = cut_buckets(_encoded(CONTENT_FREE, self.encoder), max_batch_tokens=1 << 20)
        return label_prior(self.scorer.scores(np.concatenate([engine.score(probe) for probe in probes])))

    def shared_share(self) -> float:
        """Share of the rows' own tokens that stand in beginnings that several of them have in common."""
        rows = sorted(self.behind_prefix["token_ids"].to_list())
        shared = sum(_common(one, other) for one, other in pairwise(rows))
        return shared / sum(map(len, rows))


def bind(workload: Workload, model: Model) -> Bound:
    """Encode a workload for a model, and ask the reference engine for the prior.

    Raises:
        UsageError: the model has no room for the prompt, or takes two labels for the same tokens.
        ModelError: its tokenizer or chat template cannot be used.
    """
    task = workload.task
    encoder = build_encoder(task, model.tokenizer, max_tokens=min(DEFAULT_MAX_TOKENS, model.max_context))
    scorer = choose_scorer(task.scoring, task.label_names, encoder.continuations(task.label_answers, task.answer))
    prior = np.zeros(len(task.labels))
    if task.calibration == "contextual":
        (probe,) = cut_buckets(_whole(_encoded(CONTENT_FREE, encoder), encoder), max_batch_tokens=1 << 20)
        read = SingleEngine(model, (), scorer.readout).score(probe)
        prior = label_prior(scorer.scores(read))
    frame = _encoded(workload.texts, encoder)
    return Bound(workload, model, encoder, scorer, prior, frame, _whole(frame, encoder))


def _encoded(texts: Sequence[str], encoder: PromptEncoder) -> pl.DataFrame:
    return encoder.encode(pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}))


def _whole(frame: pl.DataFrame, encoder: PromptEncoder) -> pl.DataFrame:
    rows = zip(frame["n_shared"], frame["token_ids"].to_list(), strict=True)
    whole = pl.Series([[*encoder.prefix_ids[:n_shared], *own] for n_shared, own in rows], dtype=pl.List(pl.Int32))
    frame = frame.with_columns(token_ids=whole, n_tokens=whole.list.len(), n_shared=pl.lit(0, pl.UInt32))
    return frame.with_columns(length_window=length_window(pl.col("n_tokens")))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    for place, (token, its) in enumerate(zip(one, other, strict=False)):
        if token != its:
            return place
    return min(len(one), len(other))
