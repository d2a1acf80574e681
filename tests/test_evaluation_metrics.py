import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_confusion_matrix
from sklearn.metrics import f1_score

from pipeline.evaluation.confusion import cells_of_sets, codes_of, confusion_matrix, macro_f1_bounds, macro_f1_of
from pipeline.evaluation.coverage import coverage_curve, points_at
from pipeline.evaluation.metrics import (
    accuracy_interval,
    expected_calibration_error,
    macro_f1,
    macro_f1_interval,
    score_bins,
)

LABELS = ["a", "b", "c"]
TRUTH = ["a", "a", "a", "b", "b", "c"]
PREDICTED = ["a", "a", "b", "b", None, "a"]


def random_labels(n: int, n_labels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_labels, n)
    return truth, np.where(rng.random(n) < 0.7, truth, rng.integers(0, n_labels, n))


def test_the_interval_of_a_share_is_that_of_wilson() -> None:
    assert accuracy_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Brown et al. 2001, by hand
    assert accuracy_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert accuracy_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert accuracy_interval(0, 0) == (0.0, 1.0)


def test_macro_f1_counts_every_label_the_same_and_no_answer_as_wrong() -> None:
    # a: 2 hits, 3 predicted, 3 true: 2/3; b: 1 hit, 2 predicted, 2 true: 1/2; c: 0
    assert macro_f1(TRUTH, PREDICTED, LABELS) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_macro_f1_is_that_of_scikit_learn() -> None:
    truth, predicted = random_labels(500, 7)
    expected = f1_score(truth, predicted, average="macro")
    assert macro_f1(truth.tolist(), predicted.tolist(), list(range(7))) == pytest.approx(expected)


def test_the_bootstrap_counts_cells_as_scikit_learn_counts_rows() -> None:
    truth, predicted = random_labels(500, 7)
    matrix = confusion_matrix(truth, predicted, 7)
    assert np.array_equal(matrix[:7, :7], sklearn_confusion_matrix(truth, predicted))
    sets, given = np.eye(7, dtype=bool)[truth], np.eye(7, dtype=bool)[predicted]
    cells = cells_of_sets(sets, given)
    assert cells.n_rows.sum() == 500 and len(cells.n_rows) == np.count_nonzero(matrix)
    assert macro_f1_of(cells.n_rows[None], cells)[0] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert macro_f1_bounds(cells) == pytest.approx(
        macro_f1_interval(truth.tolist(), predicted.tolist(), list(range(7))), abs=0.01
    )


def test_the_interval_of_macro_f1_is_that_of_resampled_rows() -> None:
    truth, predicted = random_labels(300, 4)
    rng = np.random.default_rng(1)
    picks = rng.integers(0, 300, (400, 300))
    resampled = [f1_score(truth[pick], predicted[pick], average="macro") for pick in picks]
    low, high = macro_f1_interval(truth.tolist(), predicted.tolist(), list(range(4)))
    assert (low, high) == pytest.approx(tuple(np.quantile(resampled, [0.025, 0.975])), abs=0.015)
    assert (low, high) == macro_f1_interval(truth.tolist(), predicted.tolist(), list(range(4)))
    assert low < macro_f1(truth.tolist(), predicted.tolist(), list(range(4))) < high


def test_labels_outside_the_list_are_wrong_answers_of_no_label() -> None:
    assert codes_of(["b", "x", None], ["a", "b"]).tolist() == [1, -1, -1]
    assert confusion_matrix(np.array([0, 1, -1]), np.array([0, -1, 1]), 2).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_calibration_error_is_the_mean_distance_of_accuracy_and_score() -> None:
    # two bins of two: (0.1, 0.3) with accuracy 0.5, (0.8, 1.0) with accuracy 1
    correct, score = [True, False, True, True], [0.1, 0.3, 0.8, 1.0]
    assert expected_calibration_error(correct, score, n_bins=2) == pytest.approx(0.5 * 0.3 + 0.5 * 0.1)
    assert [part.n for part in score_bins(correct, score, 2)] == [2, 2]
    assert expected_calibration_error([], []) == 0


def test_scores_at_the_edges_belong_to_the_bin_below_them() -> None:
    assert [part.n for part in score_bins([1, 1, 1, 1], [0.0, 0.5, 0.75, 1.0], 4)] == [1, 1, 1, 1]


def test_thresholds_keep_the_share_of_rows_they_promise() -> None:
    rng = np.random.default_rng(5)
    score = rng.random(1000)
    correct = rng.random(1000) < score
    for point, level in zip(points_at(correct, score, 1000), (1.0, 0.9, 0.8, 0.7, 0.5), strict=True):
        kept = score >= point.threshold
        assert point.n == kept.sum() and point.coverage == kept.mean()
        assert level <= point.coverage <= level + 0.01
        assert point.accuracy == correct[kept].mean()


def test_rows_that_tie_are_kept_together_and_levels_out_of_reach_are_left_out() -> None:
    correct, score = np.array([True, False, True, False]), np.array([0.9, 0.9, 0.9, 0.2])
    assert [(point.threshold, point.n) for point in points_at(correct, score, 5)] == [(0.0, 4), (0.9, 3)]
    assert [(point.n, point.accuracy) for point in coverage_curve(correct, score, 5)] == [
        (3, pytest.approx(2 / 3)),
        (4, 0.5),
    ]


def test_nothing_with_a_score_has_no_thresholds() -> None:
    nothing = np.zeros(0)
    assert points_at(nothing > 0, nothing, 3) == [] and coverage_curve(nothing > 0, nothing, 3) == []
