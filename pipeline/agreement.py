"""How often a quantized engine decides as the float engine does, on some texts of the input, each calibrated by itself.

The share is a balanced one: the mean, over the labels that float gives, of the share of their texts that have the same
label again. A rare label so counts as much as a frequent one, of which a broken model gets many right by giving
nothing else. Labels with few texts are taken together. Knows nothing of where the texts come from.
"""

import logging
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.build import contextual_prior
from pipeline.decision import decide
from pipeline.errors import GateError, UsageError
from pipeline.passes import read_texts
from pipeline.readout import HiddenStates
from pipeline.scoring import label_prior, probabilities
from pipeline.stage import Stage
from pipeline.stats import RunStats

log = logging.getLogger(__name__)

# How many texts of the input are compared, and how many if those do not agree enough: a model that
# changes 3 labels in 100 changes 4 or more of 64 one time in eight.
N_TEXTS = 64
N_TEXTS_IN_DOUBT = 256
# Labels with fewer of the texts than this are one group.
MIN_GROUP = 5


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a quantized engine compares with float32.

    Attributes:
        n_texts: texts decided by both.
        n_same: of them, those decided in the same way.
        balanced: see ``balanced_agreement``, 0 to 1.
        n_decisions: how many different ones float32 made.
        largest_difference: of any logit that labels are read from, in any text; with a fitted head, of any label's
            log-probability. Infinite where only one of the two is finite.
    """

    n_texts: int
    n_same: int
    balanced: float
    n_decisions: int
    largest_difference: float

    def __str__(self) -> str:
        return (
            f"int8 agrees with float32 on {_percent(self.balanced)} of {self.n_texts} texts (balanced), "
            f"largest logit difference {self.largest_difference:.2f}"
        )

    def check(self, least: float) -> None:
        """Refuse too little of it.

        Args:
            least: 0 to 1.

        Raises:
            GateError: it is less.
        """
        if self.balanced < least:
            raise GateError(
                f"--quantize int8: {self}; --min-agreement asks for {least * 100:g} %",
                "use --quantize none, or accept it with a smaller --min-agreement",
            )

    def tell(self) -> None:
        """Say how it went."""
        log.info("%s", self, extra={"fields": {"agreement": asdict(self)}})
        if self.n_decisions == 1:
            log.warning("float32 gives all %d texts one label: their agreement tells little", self.n_texts)


def measure_agreement(stage: Stage, texts: Sequence[str]) -> Agreement:
    """Decide texts by a stage's engine and by the float engine it was made from.

    Calibration is each engine's own; batch calibration is measured on these texts.

    Args:
        stage: quantized.
        texts: distinct and not blank, such as the input holds.

    Raises:
        UsageError: the stage is not quantized, or there are no texts.
    """
    if not texts:
        raise UsageError("there are no texts to measure the agreement on", "give some of those to label")
    if stage.unquantized is None:
        raise UsageError("nothing is quantized, so there is no agreement to measure", "use --quantize int8")
    ours, scores, decided = _decided(stage, texts)
    exact, exact_scores, expected = _decided(replace(stage, engine=stage.unquantized), texts)
    if isinstance(stage.scorer.readout, HiddenStates):
        ours, exact = scores, exact_scores
    finite, also_finite = np.isfinite(ours).all(axis=1), np.isfinite(exact).all(axis=1)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - exact).max(axis=1)
    difference = np.where(finite & also_finite, difference, np.where(finite == also_finite, 0.0, np.inf))
    return Agreement(
        n_texts=len(texts),
        n_same=sum(one == other for one, other in zip(expected, decided, strict=True)),
        balanced=balanced_agreement(expected, decided),
        n_decisions=len({*expected}),
        largest_difference=float(difference.max()),
    )


def balanced_agreement(expected: Sequence[Hashable], given: Sequence[Hashable]) -> float:
    """The mean, over what is expected, of the share of it that is given, 0 to 1.

    All that is expected of fewer than ``MIN_GROUP`` texts is one group, together with the next larger one if that
    still makes fewer.

    Args:
        expected: one decision for each text.
        given: likewise.
    """
    n_same = Counter(one for one, other in zip(expected, given, strict=True) if one == other)
    by_size = sorted(Counter(expected).items(), key=lambda item: item[1])
    n_rare, n_rare_same, shares = 0, 0, []
    for decision, n_texts in by_size:
        if n_texts < MIN_GROUP or 0 < n_rare < MIN_GROUP:
            n_rare, n_rare_same = n_rare + n_texts, n_rare_same + n_same[decision]
        else:
            shares.append(n_same[decision] / n_texts)
    return float(np.mean([*shares, *([n_rare_same / n_rare] if n_rare else [])]))


def _decided(stage: Stage, texts: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Hashable]]:
    """What the engine reads of n texts (n, K), the scores made of it (n, labels), and the decisions."""
    encoded = stage.encoder.encode(pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}))
    n_nodes = stage.scorer.readout.n_nodes
    raw = read_texts(stage.engine, encoded, RunStats(), max_batch_tokens=stage.max_batch_tokens, n_nodes=n_nodes)
    scores = stage.scorer.scores(raw)
    prior = np.zeros(scores.shape[1])
    if stage.task.calibration == "contextual":
        prior = contextual_prior(stage)
    if stage.task.calibration == "batch":
        prior = label_prior(scores)
    labels = decide(probabilities(scores, prior, multi=stage.task.multi), stage.task).labels.to_pylist()
    return raw.astype(np.float64), scores, [tuple(label) if isinstance(label, list) else label for label in labels]


def _percent(share: float) -> str:
    """Rounded down, so that what is too little does not look like enough."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f} %"
