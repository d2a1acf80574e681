"""Heads on made-up features: what can be learnt is learnt, and probabilities are honest."""

import sys

import numpy as np
import pytest

from pipeline.errors import InputError, UsageError
from pipeline.head import HeadScorer
from pipeline.scoring import log_softmax
from pipeline.tuning.enough import labels_with_few
from pipeline.tuning.fit import fit_head

LABELS = ("a", "b", "c")


def classes(n_rows: int, distance: float, *, seed: int = 0, n_features: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Features around a centre for each of three labels, with a scale and an offset as hidden states have them."""
    y = np.arange(n_rows) % 3
    centres = np.random.default_rng(99).normal(size=(3, n_features))
    noise = np.random.default_rng(seed).normal(size=(n_rows, n_features))
    scale = np.geomspace(0.01, 100, n_features)
    return ((distance * centres[y] + noise) * scale + 5 * scale).astype(np.float32), np.eye(3, dtype=bool)[y]


def predicted(head, features: np.ndarray) -> np.ndarray:
    return HeadScorer(head, tuple(range(len(head.labels)))).scores(features)


def test_four_rows_of_a_label_teach_what_is_far_apart():
    features, truth = classes(12, 2.0)
    head, report = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    unseen, answers = classes(300, 2.0, seed=1)
    assert (predicted(head, unseen).argmax(axis=1) == answers.argmax(axis=1)).mean() > 0.95
    assert (head.labels, head.fitted_for, head.multi, report.n_rows) == (LABELS, "f", False, 12)
    assert dict(head.notes)["rows"] == "12"


def test_a_head_is_the_same_on_every_run():
    features, truth = classes(60, 0.5)
    first, again = (fit_head(features, truth, LABELS, multi=False, fitted_for="f")[0].digest for _ in range(2))
    assert first == again


def test_probabilities_are_honest_where_labels_overlap():
    features, truth = classes(600, 0.25)
    head, _ = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    unseen, answers = classes(3000, 0.25, seed=1)
    probability = np.exp(predicted(head, unseen))
    right = probability.argmax(axis=1) == answers.argmax(axis=1)
    assert 0.5 < right.mean() < 0.95
    gap = abs(probability.max(axis=1).mean() - right.mean())
    assert gap < 0.05, gap


def test_labels_that_cannot_be_told_apart_get_even_probabilities():
    features, truth = classes(90, 0.0)
    head, _ = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    confidence = np.exp(predicted(head, classes(300, 0.0, seed=1)[0])).max(axis=1).mean()
    assert confidence < 0.5, confidence


def test_a_few_rows_that_are_easily_told_apart_do_not_make_it_certain():
    features, truth = classes(12, 5.0)
    head, _ = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert np.exp(predicted(head, features)).max() < 0.9999


def test_left_out_rows_are_answered_by_a_head_that_did_not_know_them():
    features, truth = classes(60, 0.0, n_features=200)
    head, report = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert sorted(report.left_out_rows.tolist()) == list(range(60))
    known = (predicted(head, features).argmax(axis=1) == truth.argmax(axis=1)).mean()
    unknown = (report.left_out_logits.argmax(axis=1) == truth[report.left_out_rows].argmax(axis=1)).mean()
    assert unknown < 0.55 < known


def test_with_many_rows_a_fifth_is_left_out():
    features, truth = classes(4200, 0.5, n_features=4)
    _, report = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert len(report.left_out_rows) == 840


def test_two_labels_are_a_regression_too():
    features, truth = classes(300, 0.5)
    keep = ~truth[:, 2]
    head, report = fit_head(features[keep], truth[keep][:, :2], ("a", "b"), multi=False, fitted_for="f")
    logits = head.logits(features[keep])
    assert ((logits[:, 1] > logits[:, 0]) == truth[keep][:, 1]).mean() > 0.9
    assert report.left_out_logits.shape == (200, 2)


def test_a_feature_that_never_changes_has_no_weight():
    features, truth = classes(30, 2.0)
    features[:, 3] = 7.0
    head, _ = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert not head.weights[:, 3].any() and np.isfinite(head.weights).all()


def test_a_label_with_one_row_is_refused():
    features, truth = classes(9, 1.0)
    truth[8] = [True, False, False]
    truth[5] = [True, False, False]
    with pytest.raises(InputError, match="label 'c' has 1 labelled text, and a head needs at least 2 of each label"):
        fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert labels_with_few(truth, LABELS) == [("c", 1)]


def test_any_number_of_labels_are_told_apart_each_on_its_own():
    rng = np.random.default_rng(0)
    truth = rng.random((200, 3)) < [0.5, 0.3, 0.1]
    features = (truth @ rng.normal(size=(3, 10)) * 2 + rng.normal(size=(200, 10))).astype(np.float32)
    head, report = fit_head(features, truth, LABELS, multi=True, fitted_for="f")
    log_odds = predicted(head, features)
    assert ((log_odds > 0) == truth).mean() > 0.95
    assert head.multi and len(report.strengths) == len(report.temperatures) == 3
    expected = 1 / (1 + np.exp(-report.left_out_logits))
    assert np.abs(expected.mean(axis=0) - truth.mean(axis=0)).max() < 0.05


def test_a_label_that_never_or_always_holds_gets_its_share():
    features, _ = classes(40, 1.0)
    truth = np.zeros((40, 3), dtype=bool)
    truth[:20, 0], truth[:, 1] = True, True
    head, report = fit_head(features, truth, LABELS, multi=True, fitted_for="f")
    assert report.constant == ("b", "c")
    assert not head.weights[1:].any()
    assert head.bias[1] == pytest.approx(np.log(41)) and head.bias[2] == pytest.approx(-np.log(41))


def test_log_probabilities_of_left_out_rows_are_better_than_guessing():
    features, truth = classes(90, 1.0)
    _, report = fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    y = truth[report.left_out_rows].argmax(axis=1)
    assert -log_softmax(report.left_out_logits)[np.arange(90), y].mean() < 0.3


def test_a_missing_scikit_learn_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    features, truth = classes(12, 1.0)
    with pytest.raises(UsageError, match="needs scikit-learn, which is not installed") as error:
        fit_head(features, truth, LABELS, multi=False, fitted_for="f")
    assert ".[tune]" in error.value.hint
