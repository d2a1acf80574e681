"""From edge scores to labels: joint log-probabilities, contextual calibration, the decision.

Pure numpy on one row of numbers per text. Knows nothing of models and of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.continuations import ContinuationTree, build_tree, first_token_tree
from pipeline.errors import UsageError

# Texts without content: what a model answers to them is its prejudice (Zhao et al. 2021, "Calibrate Before Use").
CONTENT_FREE = ("N/A", "", "[MASK]")


def choose_tree(scoring: str, labels: Sequence[str], continuations: Sequence[Sequence[int]]) -> ContinuationTree:
    """The tree for a scoring mode.

    ``auto`` compares first tokens only when every label is one token and no two are the same: a first token alone may
    stand for a quite different word. Continuations end with the end-of-turn token, so one token means a length of two.

    Raises:
        UsageError: the labels cannot be told apart this way.
    """
    names: dict[tuple[int, ...], str] = {}
    for label, continuation in zip(labels, continuations, strict=True):
        if (other := names.setdefault(tuple(continuation), label)) != label:
            raise UsageError(f"labels {other!r} and {label!r} are the same tokens to this model", "rename one of them")
    if scoring == "auto":
        first_tokens = {continuation[0] for continuation in continuations}
        one_token = all(len(continuation) == 2 for continuation in continuations) and len(first_tokens) == len(labels)
        scoring = "first-token" if one_token else "sequence"
    return first_token_tree(labels, continuations) if scoring == "first-token" else build_tree(continuations)


def label_logprobs(edge_scores: NDArray[np.float32], tree: ContinuationTree) -> NDArray[np.float64]:
    """Log-probability of each label among the labels.

    Args:
        edge_scores: (n, E) of an engine.
        tree: the tree they belong to.

    Returns:
        (n, labels); rows with non-finite scores are all NaN.
    """
    finite = np.all(np.isfinite(edge_scores), axis=1, keepdims=True)
    joint = np.where(finite, edge_scores, 0.0).astype(np.float64) @ tree.label_matrix
    return np.where(finite, log_softmax(joint), np.nan)


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, labels) scores to log-probabilities over the labels."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def contextual_prior(content_free_logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """(labels,) log of the mean label distribution on content-free texts (Zhao et al. 2021)."""
    n_texts = len(content_free_logprobs)
    prior: NDArray[np.float64] = np.logaddexp.reduce(content_free_logprobs, axis=0) - np.log(n_texts)
    return prior


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for n rows.

    Attributes:
        label: (n,) index of the label, -1 where the scores are not finite.
        score: (n,) its probability after calibration, NaN likewise.
    """

    label: NDArray[np.int64]
    score: NDArray[np.float64]


def decide(logprobs: NDArray[np.float64], prior: NDArray[np.float64]) -> Decision:
    """Divide the prior out and take the most probable label; ties go to the label that comes first.

    Args:
        logprobs: (n, labels), NaN rows for failed ones.
        prior: (labels,) log-probabilities; zeros for none.
    """
    unprejudiced = logprobs - prior
    failed = ~np.all(np.isfinite(unprejudiced), axis=1)
    calibrated = log_softmax(np.where(failed[:, None], 0.0, unprejudiced))
    label = calibrated.argmax(axis=1)
    score = np.exp(calibrated[np.arange(len(label)), label])
    return Decision(np.where(failed, -1, label), np.where(failed, np.nan, score))
