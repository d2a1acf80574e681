"""From what an engine read to scores per label, and from scores to a decision: calibration, thresholds.

With one label a row, a score is the label's log-probability among the labels. With any number of labels (``multi``)
each label is asked on its own, and its score is the log-odds of yes. Pure numpy on one row of numbers per text. Knows
nothing of models and of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.continuations import ContinuationTree, build_tree, first_token_tree
from pipeline.errors import UsageError, quoted
from pipeline.readout import ClassLogits, Readout

# Texts without content: what a model answers to them is its prejudice (Zhao et al. 2021, "Calibrate Before Use").
CONTENT_FREE = ("N/A", "", "[MASK]")


class Scorer(Protocol):
    """Makes scores of what an engine reads."""

    @property
    def readout(self) -> Readout:
        """What the engine is to read."""

    @property
    def name(self) -> str:
        """How labels are compared, for reports."""

    def identity(self) -> Any:
        """All that decides its scores beside the model and the prompt, ready for JSON."""

    def scores(self, raw: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, labels) scores from (n, K) numbers of an engine; rows with non-finite numbers are all NaN."""


@dataclass(frozen=True, slots=True)
class TreeScorer:
    """Compares the labels' continuations.

    Attributes:
        readout: their tree; with ``multi`` it holds two continuations for each label, yes and no.
        name: first-token, constrained or sequence.
        multi: whether each label is asked on its own.
    """

    readout: ContinuationTree
    name: str
    multi: bool = False

    def identity(self) -> Any:
        """The tree, and whether it is read in pairs."""
        tree = self.readout
        return [tree.token_ids, tree.edges, tree.label_edges, tree.normaliser, self.multi]

    def scores(self, raw: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, labels) scores from (n, E) edge scores."""
        by_continuation = label_logprobs(raw, self.readout)
        if self.multi:
            return by_continuation[:, 0::2] - by_continuation[:, 1::2]
        return by_continuation


@dataclass(frozen=True, slots=True)
class ClassScorer:
    """Takes the logits of a model that has a head of its own.

    Attributes:
        order: (labels,) which of the model's classes each label is.
        multi: whether each class is a yes or no of its own.
    """

    order: tuple[int, ...]
    multi: bool = False
    name = "classifier"
    readout = ClassLogits()

    def identity(self) -> Any:
        """Which classes are the labels."""
        return ["classifier", self.order, self.multi]

    def scores(self, raw: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, labels) scores from (n, classes) logits."""
        return class_scores(raw[:, list(self.order)].astype(np.float64), multi=self.multi)


def choose_scorer(scoring: str, labels: Sequence[str], continuations: Sequence[Sequence[int]]) -> TreeScorer:
    """How labels are compared in a scoring mode; ``auto`` is constrained (docs/label-quality.md has the figures).

    Raises:
        UsageError: the labels cannot be told apart this way.
    """
    names: dict[tuple[int, ...], str] = {}
    for label, continuation in zip(labels, continuations, strict=True):
        if (other := names.setdefault(tuple(continuation), label)) != label:
            names_shown = " and ".join(quoted(other, label))
            raise UsageError(f"labels {names_shown} are the same tokens to this model", "rename one of them")
    if scoring == "first-token":
        return TreeScorer(first_token_tree(labels, continuations), scoring)
    if scoring == "sequence":
        return TreeScorer(build_tree(continuations, "vocabulary"), scoring)
    return TreeScorer(build_tree(continuations, "siblings"), "constrained")


def yes_no_scorer(labels: Sequence[str], answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> TreeScorer:
    """Each label as a question of its own, answered by yes or no.

    Args:
        labels: names, for the message.
        answers: per label the tokens of its question with yes and with no behind it.

    Raises:
        UsageError: two labels have the same question, or yes and no are the same tokens.
    """
    continuations = [tuple(answer) for pair in answers for answer in pair]
    owners: dict[tuple[int, ...], str] = {}
    for place, continuation in enumerate(continuations):
        label = labels[place // 2]
        if (other := owners.get(continuation)) is not None:
            labels_shown = " and ".join(quoted(other, label))
            what = "yes and no are" if other == label else f"the questions for labels {labels_shown} are"
            raise UsageError(f"{what} the same tokens to this model", "let the key 'question' hold {label}")
        owners[continuation] = label
    return TreeScorer(build_tree(continuations, "siblings"), "yes-no", multi=True)


def label_logprobs(edge_scores: NDArray[np.float32], tree: ContinuationTree) -> NDArray[np.float64]:
    """Log-probability of each label among the labels.

    Args:
        edge_scores: (n, E) of an engine.
        tree: the tree they belong to.

    Returns:
        (n, labels); rows with non-finite scores are all NaN.
    """
    finite = np.all(np.isfinite(edge_scores), axis=1, keepdims=True)
    edges = np.where(finite, edge_scores, 0.0).astype(np.float64)
    if tree.normaliser == "siblings":
        sizes = np.diff(tree.siblings, append=len(tree.edges))
        edges = edges - np.repeat(np.logaddexp.reduceat(edges, tree.siblings, axis=1), sizes, axis=1)
    return np.where(finite, log_softmax(edges @ tree.label_matrix), np.nan)


def class_scores(logits: NDArray[np.float64], *, multi: bool) -> NDArray[np.float64]:
    """(n, labels) scores from (n, labels) logits of a head: with ``multi`` they are log-odds already."""
    finite = np.all(np.isfinite(logits), axis=1, keepdims=True)
    safe = np.where(finite, logits, 0.0)
    return np.where(finite, safe if multi else log_softmax(safe), np.nan)


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, labels) scores to log-probabilities over the labels."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def label_prior(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(labels,) what the labels score on average over n texts: to be taken off the scores of a row.

    Over texts without content it is the prior of contextual calibration (Zhao et al. 2021, "Calibrate Before Use"),
    over texts of the input that of batch calibration (Zhou et al. 2023, "Batch Calibration"). Both average
    probabilities; the mean of their logarithms gave better labels (docs/log.md). Texts without finite scores are left
    out; if none has any, the prior is NaN, and no row gets a label. Without texts it is zeros.

    Args:
        scores: (n, labels) of a ``Scorer``.
    """
    finite = scores[np.isfinite(scores).all(axis=1)]
    if not len(finite):
        return np.full(scores.shape[1], np.nan if len(scores) else 0.0)
    prior: NDArray[np.float64] = finite.mean(axis=0)
    return prior


def probabilities(scores: NDArray[np.float64], prior: NDArray[np.float64], *, multi: bool) -> NDArray[np.float64]:
    """(n, labels) probability of each label once the prior is divided out; rows with a score not finite are NaN.

    Args:
        scores: (n, labels) of a ``Scorer``.
        prior: (labels,) of ``label_prior``; zeros for none.
        multi: whether labels do not exclude each other.
    """
    unprejudiced = scores - prior
    failed = ~np.all(np.isfinite(unprejudiced), axis=1, keepdims=True)
    safe = np.where(failed, 0.0, unprejudiced)
    return np.where(failed, np.nan, np.exp(-np.logaddexp(0.0, -safe) if multi else log_softmax(safe)))
