"""Fitting a linear head: standardised features, L2-regularised logistic regression, calibrated probabilities.

How strongly to regularise is chosen by cross-validation on the log loss. The same left-out rows then give one
temperature that makes probabilities honest (Guo et al. 2017, "On Calibration of Modern Neural Networks"). At last the
regression is fitted on all rows. Standardisation and temperature are folded into the weights, so that a head is one
matrix. With several labels a row, each label is a regression of its own. Needs scikit-learn.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.head import LinearHead
from pipeline.scoring import log_softmax
from pipeline.tuning.enough import MIN_TEXTS, check_enough_texts
from pipeline.tuning.split import Truth, deal

STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0, 10.0)
# With many rows one part left out says as much as five in turn, and a finer grid says nothing.
MANY_ROWS = 4000
STRENGTHS_OF_MANY = (1e-4, 1e-3, 1e-2, 1e-1)
MAX_FOLDS = 5
TEMPERATURES = np.exp(np.linspace(np.log(0.1), np.log(10.0), 201))
MAX_ITERATIONS = 500
INSTALL = "pip install -c constraints.txt -e '.[tune]'"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitReport:
    """How a head was fitted.

    Attributes:
        n_rows: it was fitted on.
        strengths: inverse strength of regularisation that was chosen, one, or one for each label that was fitted.
        temperatures: likewise.
        constant: labels that are always answered the same, since nearly all rows have them or nearly none.
        left_out_rows: (k,) row numbers that were left out while a regression answered them: nearly all, or a fifth.
        left_out_logits: (k, labels) their calibrated logits.
    """

    n_rows: int
    strengths: tuple[float, ...]
    temperatures: tuple[float, ...]
    constant: tuple[str, ...]
    left_out_rows: NDArray[np.int64]
    left_out_logits: Floats

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """What a head's file says about it."""
        return (
            ("method", "standardised, L2 logistic regression, temperature"),
            ("rows", str(self.n_rows)),
            ("strengths", " ".join(f"{strength:g}" for strength in self.strengths)),
            ("temperatures", " ".join(f"{temperature:.3g}" for temperature in self.temperatures)),
        )


def check_installed() -> None:
    """Check that a head can be fitted here.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        raise UsageError("fitting a head needs scikit-learn, which is not installed", INSTALL) from None


def fit_head(
    features: NDArray[np.float32], truth: Truth, labels: Sequence[str], *, multi: bool, fitted_for: str, seed: int = 0
) -> tuple[LinearHead, FitReport]:
    """Fit a head.

    Args:
        features: (n, F), finite.
        truth: (n, labels); without ``multi`` one of each row is true.
        labels: names.
        multi: whether a row may have several labels, or none.
        fitted_for: digest of the model and prompt that the features are of.
        seed: of the dealing into folds; everything else is fixed.

    Returns:
        The head, which depends on nothing but the arguments, and how it was fitted.

    Raises:
        UsageError: scikit-learn is not installed.
        InputError: without ``multi`` a label has fewer than two rows.
    """
    check_installed()
    exact = features.astype(np.float64)
    rng = np.random.default_rng(seed)
    if multi:
        weights, bias, report = _fit_each(exact, truth, labels, rng)
    else:
        check_enough_texts(truth, labels)
        fitted = _fit_classes(exact, truth.argmax(axis=1), len(labels), rng)
        weights, bias = fitted.weights, fitted.bias
        report = FitReport(
            len(truth), (fitted.strength,), (fitted.temperature,), (), fitted.left_out_rows, fitted.left_out_logits
        )
    head = LinearHead(
        np.ascontiguousarray(weights, dtype=np.float32),
        bias.astype(np.float32),
        tuple(labels),
        multi,
        fitted_for,
        report.notes,
    )
    return head, report


@dataclass(frozen=True, slots=True)
class _Fitted:
    """One regression: (classes, F) weights and (classes,) bias, with standardisation and temperature folded in."""

    weights: Floats
    bias: Floats
    strength: float
    temperature: float
    left_out_rows: NDArray[np.int64]
    left_out_logits: Floats


def _fit_each(
    features: Floats, truth: Truth, labels: Sequence[str], rng: np.random.Generator
) -> tuple[Floats, Floats, FitReport]:
    """Each label on its own, as yes against no: logits are log-odds of yes."""
    n_rows, n_labels = truth.shape
    weights, bias = np.zeros((n_labels, features.shape[1])), np.zeros(n_labels)
    left_out = np.zeros((n_rows, n_labels))
    was_left_out = np.ones(n_rows, dtype=bool)
    strengths, temperatures, constant = [], [], []
    for column, label in enumerate(labels):
        yes = truth[:, column].astype(np.int64)
        n_yes = int(yes.sum())
        if min(n_yes, n_rows - n_yes) < MIN_TEXTS:
            bias[column] = np.log((n_yes + 1) / (n_rows - n_yes + 1))  # its share, with one row more of each
            left_out[:, column] = bias[column]
            constant.append(label)
            continue
        fitted = _fit_classes(features, yes, 2, rng)
        weights[column], bias[column] = fitted.weights[1] - fitted.weights[0], fitted.bias[1] - fitted.bias[0]
        rows = fitted.left_out_rows
        left_out[rows, column] = fitted.left_out_logits[:, 1] - fitted.left_out_logits[:, 0]
        was_left_out &= np.isin(np.arange(n_rows), rows)
        strengths.append(fitted.strength)
        temperatures.append(fitted.temperature)
    rows = np.flatnonzero(was_left_out)
    return (
        weights,
        bias,
        FitReport(n_rows, tuple(strengths), tuple(temperatures), tuple(constant), rows, left_out[rows]),
    )


def _fit_classes(features: Floats, y: NDArray[np.int64], n_classes: int, rng: np.random.Generator) -> _Fitted:
    """Choose the strength, then the temperature, on rows left out; then fit on all."""
    # 1. which rows are left out together
    many = len(y) > MANY_ROWS
    n_folds = MAX_FOLDS if many else min(MAX_FOLDS, int(np.bincount(y).min()))
    fold = deal(y, n_folds, rng)
    strengths = STRENGTHS_OF_MANY if many else STRENGTHS
    left_out = [np.flatnonzero(fold == number) for number in range(1 if many else n_folds)]

    # 2. logits of the rows left out, by the others, at every strength
    logits = np.concatenate(
        [
            np.stack([_logits(features[rows], *fitted) for fitted in _paths(features, y, rows, n_classes, strengths)])
            for rows in left_out
        ],
        axis=1,
    )  # (strengths, k, classes)
    rows = np.concatenate(left_out)
    losses = [_log_loss(at_strength, y[rows], 0.0) for at_strength in logits]
    best = int(np.argmin(losses))

    # 3. a temperature for these logits; targets are smoothed as by Platt (1999), or the few rows of a separable set
    #    would ask for certainty
    smoothing = 1 / (len(rows) + 2)
    by_temperature = [_log_loss(logits[best] / temperature, y[rows], smoothing) for temperature in TEMPERATURES]
    temperature = float(TEMPERATURES[int(np.argmin(by_temperature))])

    # 4. all rows
    *_, (weights, bias) = _paths(features, y, np.array([], dtype=np.int64), n_classes, strengths[: best + 1])
    return _Fitted(
        weights / temperature, bias / temperature, strengths[best], temperature, rows, logits[best] / temperature
    )


def _paths(
    features: Floats, y: NDArray[np.int64], left_out: NDArray[np.int64], n_classes: int, strengths: Sequence[float]
) -> list[tuple[Floats, Floats]]:
    """Weights and bias for features as they are, without some rows, at every strength.

    Each fit begins where the last, stronger regularised one ended: that is several times faster.
    """
    regression = _regression()
    kept = np.setdiff1d(np.arange(len(y)), left_out)
    mean, deviation = features[kept].mean(axis=0), features[kept].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    standardised = (features[kept] - mean) / deviation
    fitted = []
    for strength in strengths:
        regression.set_params(C=strength)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where it stops before the optimum, that is one more regularisation
            regression.fit(standardised, y[kept])
        coefficients, intercept = regression.coef_, regression.intercept_
        if n_classes == 2:  # one function, for the second class
            coefficients, intercept = (
                np.stack([-coefficients[0], coefficients[0]]) / 2,
                np.array([-0.5, 0.5]) * intercept,
            )
        weights = coefficients / deviation
        fitted.append((weights, intercept - weights @ mean))
    return fitted


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="lbfgs", max_iter=MAX_ITERATIONS, warm_start=True)


def _logits(features: Floats, weights: Floats, bias: Floats) -> Floats:
    logits: Floats = features @ weights.T + bias
    return logits


def _log_loss(logits: Floats, y: NDArray[np.int64], smoothing: float) -> float:
    """Mean cross entropy, with a little of the target spread over the other classes."""
    logprobs = log_softmax(logits)
    true = logprobs[np.arange(len(y)), y]
    others = (logprobs.sum(axis=1) - true) / (logits.shape[1] - 1)
    return float(-((1 - smoothing) * true + smoothing * others).mean())
