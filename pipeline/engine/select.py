"""Choosing an engine by checking it: whatever is fast must first agree with the reference path on a few rows."""

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree, part_of_tree
from pipeline.engine.fused import FusedEngine, why_not_fused
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.single import SingleEngine
from pipeline.errors import ModelError
from pipeline.readout import HiddenStates, Readout

log = logging.getLogger(__name__)

# Largest difference of an edge score or logit that is rounding and not a fault. Hidden states are in the hundreds in
# some models, so theirs is relative to the largest of them.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
# The reference path runs once per label and probe row: with hundreds of labels the check would outlast the run.
MAX_CHECKED_LABELS = 8


class Engine(Protocol):
    """Reads the rows of a bucket; all engines give the same numbers, up to rounding.

    Attributes:
        name: what ``--engine`` calls it.
        workers: how many threads may call ``score`` at once; each of several must ``use_one_thread``.
    """

    name: str
    workers: int

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """What the readout says of a bucket's R rows, (R, K)."""
        ...


Build = Callable[[Model, tuple[int, ...], Readout], Engine]
ENGINES: dict[str, Build] = {
    "fused": FusedEngine,
    "packed": PackedEngine,
    "padded": PaddedEngine,
    "single": SingleEngine,
}


def choose_engine(kind: str, model: Model, prefix_ids: tuple[int, ...], readout: Readout, probe: Bucket) -> Engine:
    """The engine asked for, or with ``auto`` the fastest that agrees with the reference path on the probe rows.

    Args:
        kind: ``auto``, ``fused``, ``packed``, ``padded`` or ``single``.
        model: the loaded model.
        prefix_ids: tokens common to every prompt.
        readout: what is read of a row.
        probe: a few rows of different lengths.

    Raises:
        ModelError: the model cannot be run at all, or the engine asked for does not agree with the reference path.
    """
    checked = part_of_tree(readout, MAX_CHECKED_LABELS) if isinstance(readout, ContinuationTree) else readout
    try:
        expected = SingleEngine(model, prefix_ids, checked).score(probe)
    except Exception as error:  # models raise whatever they like
        raise ModelError(f"model {model.name!r} cannot be run: {_reason(error)}", "use another model") from error
    if kind == "single":  # checked only for running at all
        return SingleEngine(model, prefix_ids, readout)
    scale = max(1.0, float(np.abs(expected).max())) if isinstance(readout, HiddenStates) else 1.0
    fast = _candidates(model)
    for name in fast if kind == "auto" else (kind,):
        try:
            difference = float(np.abs(ENGINES[name](model, prefix_ids, checked).score(probe) - expected).max())
            fault = f"what it reads differs by {difference:.2g} from the reference path"
        except Exception as error:  # models raise whatever they like when they do not take what an engine gives them
            difference, fault = np.inf, _reason(error)
        if difference <= TOLERANCE[model.dtype] * scale:
            return ENGINES[name](model, prefix_ids, readout)
        if kind != "auto":
            hint = "use --engine auto, which falls back to an engine that agrees"
            raise ModelError(f"the {name} engine does not fit model {model.name!r}: {fault}", hint)
        log.warning("the %s engine does not fit model %r, trying a slower one: %s", name, model.name, fault)
    return SingleEngine(model, prefix_ids, readout)


def _candidates(model: Model) -> tuple[str, ...]:
    """The engines made for such a model, fastest first."""
    if not model.is_causal:
        return ("padded",)
    return ("packed", "padded") if why_not_fused(model) else ("fused", "packed", "padded")


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
