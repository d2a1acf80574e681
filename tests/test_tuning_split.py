import numpy as np
import pytest

from pipeline.tuning.split import deal, draw, split, strata


def one_of(labels: list[int], n_labels: int = 3) -> np.ndarray:
    return np.eye(n_labels, dtype=bool)[labels]


def test_every_row_is_in_one_part_and_every_label_in_both():
    truth = one_of([0] * 50 + [1] * 20 + [2] * 10)
    tune, held_out = split(truth, 0.3, seed=0)
    assert sorted([*tune, *held_out]) == list(range(80))
    assert truth[held_out].sum(axis=0).tolist() == [15, 6, 3]


def test_two_rows_of_a_label_stay_to_tune_on():
    truth = one_of([0, 0, 0, 1, 1, 2])
    tune, held_out = split(truth, 0.9, seed=0)
    assert truth[tune].sum(axis=0).tolist() == [2, 2, 1]
    assert truth[held_out].sum(axis=0).tolist() == [1, 0, 0]


def test_a_split_depends_on_the_seed_alone():
    truth = one_of([0, 1, 2] * 30)
    first, again, other = (split(truth, 0.3, seed)[1].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_rows_of_several_labels_are_dealt_by_their_rarest_one():
    truth = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=bool)
    assert strata(truth).tolist() == [1, 0, 0, 3, 2, 1, 1]


@pytest.mark.parametrize("n_parts", [2, 3, 5])
def test_dealing_gives_every_part_its_share_of_every_group(n_parts):
    groups = np.array([0] * 11 + [1] * 7 + [2] * 5)
    part = deal(groups, n_parts, np.random.default_rng(0))
    for group in range(3):
        counts = np.bincount(part[groups == group], minlength=n_parts)
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(part, minlength=n_parts)
    assert sizes.max() - sizes.min() <= 1


def test_rows_drawn_keep_the_shares_of_labels():
    truth = one_of([0] * 600 + [1] * 300 + [2] * 100)
    rows = np.arange(0, 1000, 2)
    drawn = draw(truth, rows, 50, seed=3)
    assert set(drawn.tolist()) <= set(rows.tolist()) and len(set(drawn.tolist())) == 50
    assert np.abs(truth[drawn].sum(axis=0) - [30, 15, 5]).max() <= 1
    assert draw(truth, rows, 500, seed=3) is rows
