import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.continuations import build_tree
from pipeline.errors import UsageError
from pipeline.scoring import choose_tree, contextual_prior, decide, label_logprobs, log_softmax

EOT = 2
TREE = build_tree([[5, EOT], [5, 6, EOT], [8, EOT]])
NO_PRIOR = np.zeros(3)

logprobs_of = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats(-60, 0)).map(log_softmax)


# ------------------------------------------------------------------------------------------------ which tree


def test_auto_compares_first_tokens_when_every_label_is_one_token():
    tree = choose_tree("auto", ["a", "b"], [[5, EOT], [6, EOT]])
    assert (tree.n_nodes, tree.normaliser) == (0, "siblings")


@pytest.mark.parametrize("continuations", [[[5, EOT], [6, 7, EOT]], [[5, 8, EOT], [6, 7, EOT]]])
def test_auto_scores_whole_labels_when_any_is_longer(continuations):
    """A first token alone may stand for a quite different word."""
    tree = choose_tree("auto", ["a", "b"], continuations)
    assert tree == build_tree(continuations)
    assert tree.normaliser == "vocabulary"


def test_a_mode_that_is_asked_for_is_taken():
    one_token, longer = [[5, EOT], [6, EOT]], [[5, 7, EOT], [6, 7, EOT]]
    assert choose_tree("sequence", ["a", "b"], one_token) == build_tree(one_token)
    assert choose_tree("first-token", ["a", "b"], longer).edges == ((0, 5), (0, 6))


def test_first_tokens_that_are_shared_are_refused_and_auto_does_not_need_them():
    continuations = [[5, EOT], [5, 6, EOT]]
    with pytest.raises(UsageError, match="'bill' and 'billing'"):
        choose_tree("first-token", ["bill", "billing"], continuations)
    assert choose_tree("auto", ["bill", "billing"], continuations) == build_tree(continuations)


@pytest.mark.parametrize("scoring", ["auto", "sequence", "first-token"])
def test_labels_that_are_the_same_tokens_are_refused_in_every_mode(scoring):
    with pytest.raises(UsageError):
        choose_tree(scoring, ["a", "b", "c"], [[5, EOT], [6, EOT], [5, EOT]])


def test_auto_does_not_blame_first_token_scoring_which_nobody_asked_for():
    """Two labels of one and the same token: the way out is another name, not another mode of scoring."""
    with pytest.raises(UsageError) as caught:
        choose_tree("auto", ["价", "格"], [[5, EOT], [5, EOT]])
    assert "--scoring sequence" not in caught.value.hint


# ------------------------------------------------------------------------------------------------ label scores


@given(arrays(np.float32, (4, len(TREE.edges)), elements=st.floats(-50, 0, width=32)))
def test_label_logprobs_are_the_normalised_sums_of_each_labels_edges(edge_scores):
    edge_of = {edge: place for place, edge in enumerate(TREE.edges)}
    chains = [[(0, 5), (1, EOT)], [(0, 5), (1, 6), (2, EOT)], [(0, 8), (3, EOT)]]
    for scores, logprobs in zip(edge_scores.astype(np.float64), label_logprobs(edge_scores, TREE), strict=True):
        joint = [sum(scores[edge_of[edge]] for edge in chain) for chain in chains]
        naive = np.array(joint) - np.logaddexp.reduce(joint)
        difference = np.abs(logprobs - naive).max()
        assert difference < 1e-9, f"largest difference {difference:.2g}"
        assert np.exp(logprobs).sum() == pytest.approx(1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_one_score_that_is_not_finite_fails_alone(bad):
    edge_scores = np.zeros((3, len(TREE.edges)), dtype=np.float32)
    edge_scores[1, 2] = bad
    logprobs = label_logprobs(edge_scores, TREE)
    assert np.isnan(logprobs).all(axis=1).tolist() == [False, True, False]
    np.testing.assert_array_equal(logprobs[0], logprobs[2])
    decision = decide(logprobs, NO_PRIOR)
    assert decision.label[1] == -1
    assert np.isnan(decision.score[1])
    assert (decision.label[[0, 2]] >= 0).all()
    assert np.isfinite(decision.score[[0, 2]]).all()


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_scores_neither_overflow_nor_warn(size):
    edge_scores = np.array([[-size] * len(TREE.edges), [size] * len(TREE.edges)], dtype=np.float32)
    assert np.isfinite(label_logprobs(edge_scores, TREE)).all()


@given(logprobs_of, st.floats(-1000, 1000))
def test_a_constant_on_all_labels_changes_nothing(logprobs, constant):
    """Why first-token scoring needs no normaliser over the vocabulary."""
    difference = np.abs(log_softmax(logprobs + constant) - logprobs).max()
    assert difference < 1e-9, f"largest difference {difference:.2g}"


# ------------------------------------------------------------------------------------------------ calibration


def test_without_calibration_the_score_is_the_labels_probability():
    decision = decide(np.log([[0.2, 0.5, 0.3]]), NO_PRIOR)
    assert decision.label.tolist() == [1]
    assert decision.score.tolist() == pytest.approx([0.5])


@given(logprobs_of)
def test_calibration_makes_texts_without_content_uniform_on_average(content_free):
    prior = contextual_prior(content_free)
    mean = np.exp(content_free - prior).mean(axis=0)
    np.testing.assert_allclose(mean, 1, atol=1e-9)


@given(logprobs_of.map(lambda logprobs: logprobs[:1]))
def test_calibration_makes_one_text_without_content_uniform(content_free):
    decision = decide(content_free, contextual_prior(content_free))
    assert decision.score == pytest.approx(1 / 3)


def test_calibration_divides_the_models_favourite_out():
    favourite = np.log([[0.8, 0.1, 0.1]])
    # a little less of the favourite than without content, a little more of the last
    decision = decide(np.log([[0.7, 0.1, 0.2]]), contextual_prior(favourite))
    assert decision.label.tolist() == [2]
    expected = 2 / (0.7 / 0.8 + 1 + 2)
    assert decision.score.tolist() == pytest.approx([expected])


@given(logprobs_of)
def test_a_uniform_prior_changes_nothing(logprobs):
    uniform, none = decide(logprobs, np.full(3, -np.log(3))), decide(logprobs, NO_PRIOR)
    np.testing.assert_allclose(uniform.score, none.score, atol=1e-12)


def test_a_label_that_no_content_free_text_would_ever_get_does_not_warn_nor_fail_all_rows():
    """The probability of a long label may be too small for a float; its logarithm is not."""
    content_free = log_softmax(np.array([[0.0, -1.0, -900.0]]))
    prior = contextual_prior(content_free)
    np.testing.assert_allclose(prior, content_free[0])
    assert decide(content_free, prior).score == pytest.approx(1 / 3)


def test_a_prior_that_is_not_finite_gives_no_row_a_label():
    """A model that fails on the content-free texts made every row the first label, with a score of NaN."""
    decision = decide(np.log([[0.2, 0.5, 0.3]]), np.full(3, np.nan))
    assert decision.label.tolist() == [-1]
    assert np.isnan(decision.score).all()


# ------------------------------------------------------------------------------------------------ the decision


@pytest.mark.parametrize(
    ("logprobs", "label"), [([-1.0, -1.0, -1.0], 0), ([-2.0, -1.0, -1.0], 1), ([-1.0, -2.0, -1.0], 0)]
)
def test_ties_go_to_the_label_that_comes_first(logprobs, label):
    decision = decide(log_softmax(np.array([logprobs])), NO_PRIOR)
    assert decision.label.tolist() == [label]


@given(logprobs_of)
def test_the_label_is_the_most_probable_and_its_score_is_its_probability(logprobs):
    decision = decide(logprobs, NO_PRIOR)
    for row, label, score in zip(logprobs, decision.label, decision.score, strict=True):
        assert row[label] >= row.max() - 1e-12
        assert score == pytest.approx(np.exp(row[label]))
        assert 1 / 3 - 1e-9 <= score <= 1 + 1e-9


def test_no_rows_make_no_decisions():
    edge_scores = np.zeros((0, len(TREE.edges)), dtype=np.float32)
    decision = decide(label_logprobs(edge_scores, TREE), NO_PRIOR)
    assert decision.label.shape == decision.score.shape == (0,)


@pytest.mark.parametrize("scoring", ["auto", "first-token", "sequence"])
def test_labels_that_are_the_same_tokens_are_both_named(scoring):
    with pytest.raises(UsageError, match="labels 'caf\u00e9' and 'cafe\u0301' are the same tokens"):
        choose_tree(scoring, ["bill", "caf\u00e9", "cafe\u0301"], [[9, 2], [5, 6, 2], [5, 6, 2]])
