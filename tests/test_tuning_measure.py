import numpy as np
import pytest

from pipeline.tuning.measure import Duel, quality


def one_of(labels: list[int], n_labels: int = 3) -> np.ndarray:
    return np.eye(n_labels, dtype=bool)[labels]


def test_accuracy_and_macro_f1_are_those_of_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    truth, answers = rng.integers(0, 4, 100), rng.integers(0, 3, 100)
    found = quality(one_of(answers, 5), one_of(truth, 5))
    assert found.accuracy == (truth == answers).mean()
    assert found.macro_f1 == pytest.approx(f1_score(truth, answers, average="macro"))


def test_a_row_of_several_labels_is_right_when_all_are():
    truth = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    answers = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    found = quality(answers, truth)
    assert (found.n_right, found.macro_f1) == (2, pytest.approx((1 + 2 / 3) / 2))


def test_two_ways_are_compared_on_the_rows_where_they_differ():
    first = np.array([True] * 10 + [False] * 2 + [True] * 30)
    second = np.array([False] * 10 + [True] * 2 + [True] * 30)
    duel = Duel(first, second)
    assert (duel.n, duel.first, duel.second, duel.first_wins) == (42, 40, 32, True)
    assert duel.p_value == Duel(second, first).p_value == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert not Duel(second, first).first_wins


def test_ways_that_never_differ_are_equally_good():
    same = np.ones(4, dtype=bool)
    assert Duel(same, same).p_value == 1.0 and not Duel(same, same).first_wins
