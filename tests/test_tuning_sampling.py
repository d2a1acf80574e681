import numpy as np
import pytest

from pipeline.tuning.sampling import uncertainty, worth_labelling


def groups(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of texts in groups, and the group of each."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), 12)) * 10
    return (centres[group] + rng.normal(size=(len(group), 12)) * 0.1).astype(np.float32), group


def test_uncertain_is_what_has_two_likely_labels():
    probability = np.array([[0.9, 0.05, 0.05], [0.5, 0.49, 0.01], [0.4, 0.3, 0.3], [np.nan] * 3])
    assert uncertainty(probability, multi=False) == pytest.approx([0.15, 0.99, 0.9, 1.0])


def test_with_several_labels_uncertain_is_what_has_one_near_one_half():
    assert uncertainty(np.array([[0.99, 0.01], [0.99, 0.45]]), multi=True) == pytest.approx([0.02, 0.9])


def test_every_group_of_texts_is_asked_about_however_small():
    features, group = groups([200, 100, 50, 3, 1])
    chosen = worth_labelling(features, np.linspace(1, 0, len(features)), 5, seed=0)
    assert sorted(group[chosen]) == [0, 1, 2, 3, 4]


def test_of_each_group_the_most_uncertain_text_is_taken_and_these_come_first():
    features, group = groups([30, 30, 30])
    unsure = np.random.default_rng(1).random(90)
    chosen = worth_labelling(features, unsure, 3, seed=0)
    assert sorted(chosen) == sorted(max(np.flatnonzero(group == g), key=lambda row: unsure[row]) for g in range(3))
    assert (np.diff(unsure[chosen]) <= 0).all()


def test_a_choice_depends_on_the_seed_alone():
    features = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    unsure = np.random.default_rng(1).random(300)
    first, again = (worth_labelling(features, unsure, 20, seed=4).tolist() for _ in range(2))
    assert first == again and len(set(first)) == 20


@pytest.mark.parametrize("n_texts", [5, 10, 50])
def test_texts_that_are_all_alike_are_chosen_by_uncertainty(n_texts):
    unsure = np.arange(10) / 10
    chosen = worth_labelling(np.ones((10, 4), np.float32), unsure, n_texts, seed=0)
    assert chosen.tolist() == list(range(9, -1, -1))[:n_texts]


def test_states_that_are_not_finite_do_no_harm():
    features, _ = groups([20, 20])
    features[3] = np.nan
    assert len(worth_labelling(features, np.ones(40), 4, seed=0)) == 4
