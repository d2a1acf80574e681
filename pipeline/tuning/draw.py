"""A pool of texts through the model, and which of them are worth labelling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.build import build_stage, hidden_states
from pipeline.decision import Decision, decide
from pipeline.engine.model import Model
from pipeline.scoring import label_prior, probabilities
from pipeline.settings import Settings
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.tuning.sampling import uncertainty, worth_labelling


@dataclass(frozen=True, slots=True)
class Drawn:
    """The texts that were chosen.

    Attributes:
        places: (k,) of them in the pool, the most uncertain first.
        decision: what the task answers for them now.
    """

    places: NDArray[np.int64]
    decision: Decision


def draw(task: Task, settings: Settings, model: Model, texts: Sequence[str], number: int, seed: int) -> Drawn:
    """Choose texts of a pool.

    Args:
        task: what is asked of them; uncertainty is that of its answers.
        settings: limits and sizes.
        model: that answers.
        texts: the pool, which batch calibration measures too.
        number: of texts wanted.
        seed: of the clusters.

    Raises:
        UsageError: the task does not go with the model.
    """
    stage = build_stage(task, model, settings)
    encoded = stage.encoder.encode(pl.DataFrame({"text": texts}, schema={"text": pl.String}))
    scores = stage.score_texts(encoded, RunStats()).astype(np.float64)
    prior = label_prior(scores) if stage.task.calibration == "batch" else stage.prior
    probability = probabilities(scores, prior, multi=task.multi)
    if model.class_names is None:
        states = hidden_states(replace(task, head=None, calibration="none"), model, settings, texts)
    else:  # engines read classes of such models only; texts are as different as their scores then
        states = scores.astype(np.float32)
    places = worth_labelling(states, uncertainty(probability, multi=task.multi), number, seed)
    return Drawn(places, decide(probability[places], task))
