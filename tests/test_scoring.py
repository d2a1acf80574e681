from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.continuations import build_tree
from pipeline.errors import UsageError
from pipeline.scoring import (
    ClassScorer,
    TreeScorer,
    choose_scorer,
    label_logprobs,
    label_prior,
    log_softmax,
    probabilities,
    yes_no_scorer,
)

EOT = 2
TREE = build_tree([[5, EOT], [5, 6, EOT], [8, EOT]])
NO_PRIOR = np.zeros(3)

logprobs_of = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats(-60, 0)).map(log_softmax)


def decide(logprobs, prior):
    """The most probable label of each row and its probability; -1 and NaN for rows that have none."""
    probability = probabilities(logprobs, prior, multi=False)
    failed = np.isnan(probability).any(axis=1)
    label = np.where(failed[:, None], 0.0, probability).argmax(axis=1)
    return SimpleNamespace(label=np.where(failed, -1, label), score=probability[np.arange(len(label)), label])


# ------------------------------------------------------------------------------------------------ which tree


@pytest.mark.parametrize(
    "continuations",
    [[[5, EOT], [6, EOT]], [[5, EOT], [6, 7, EOT]], [[5, 8, EOT], [5, 7, EOT]], [[5, EOT], [5, 7, EOT]]],
)
def test_auto_is_constrained(continuations):
    scorer = choose_scorer("auto", ["a", "b"], continuations)
    assert scorer == choose_scorer("constrained", ["a", "b"], continuations)
    assert scorer.name == "constrained"
    assert scorer.readout == build_tree(continuations, "siblings")


def test_labels_of_one_token_each_cost_no_token():
    tree = choose_scorer("auto", ["a", "b"], [[5, EOT], [6, EOT]]).readout
    assert (tree.n_nodes, tree.normaliser) == (0, "siblings")


def test_a_mode_that_is_asked_for_is_taken():
    one_token, longer = [[5, EOT], [6, EOT]], [[5, 7, EOT], [6, 7, EOT]]
    assert choose_scorer("sequence", ["a", "b"], one_token).readout == build_tree(one_token)
    assert choose_scorer("first-token", ["a", "b"], longer).readout.edges == ((0, 5), (0, 6))


def test_first_tokens_that_are_shared_are_refused_and_auto_does_not_need_them():
    continuations = [[5, EOT], [5, 6, EOT]]
    with pytest.raises(UsageError, match="'bill' and 'billing'"):
        choose_scorer("first-token", ["bill", "billing"], continuations)
    assert choose_scorer("auto", ["bill", "billing"], continuations).readout.n_nodes == 1


@pytest.mark.parametrize("scoring", ["auto", "sequence", "constrained", "first-token"])
def test_labels_that_are_the_same_tokens_are_refused_in_every_mode(scoring):
    with pytest.raises(UsageError):
        choose_scorer(scoring, ["a", "b", "c"], [[5, EOT], [6, EOT], [5, EOT]])


def test_auto_does_not_blame_first_token_scoring_which_nobody_asked_for():
    """Two labels of one and the same token: the way out is another name, not another mode of scoring."""
    with pytest.raises(UsageError) as caught:
        choose_scorer("auto", ["价", "格"], [[5, EOT], [5, EOT]])
    assert "--scoring" not in caught.value.hint


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
def test_calibration_makes_texts_without_content_even_on_average(content_free):
    """The geometric mean of the calibrated odds between any two labels is 1."""
    calibrated = np.log(probabilities(content_free, label_prior(content_free), multi=False))
    mean = calibrated.mean(axis=0)
    np.testing.assert_allclose(mean, mean[0], atol=1e-6)


@given(logprobs_of.map(lambda logprobs: logprobs[:1]))
def test_calibration_makes_one_text_without_content_uniform(content_free):
    decision = decide(content_free, label_prior(content_free))
    assert decision.score == pytest.approx(1 / 3)


def test_calibration_divides_the_models_favourite_out():
    favourite = np.log([[0.8, 0.1, 0.1]])
    # a little less of the favourite than without content, a little more of the last
    decision = decide(np.log([[0.7, 0.1, 0.2]]), label_prior(favourite))
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
    prior = label_prior(content_free)
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


@pytest.mark.parametrize("scoring", ["auto", "first-token", "constrained", "sequence"])
def test_labels_that_are_the_same_tokens_are_both_named(scoring):
    with pytest.raises(UsageError, match="labels '价' and '格' are the same tokens"):
        choose_scorer(scoring, ["bill", "价", "格"], [[9, 2], [5, 6, 2], [5, 6, 2]])


@pytest.mark.parametrize("scoring", ["auto", "first-token", "constrained", "sequence"])
def test_labels_that_look_alike_are_told_apart(scoring):
    with pytest.raises(UsageError, match=r"labels 'caf\\xe9' and 'cafe\\u0301' are the same tokens"):
        choose_scorer(scoring, ["bill", "caf\u00e9", "cafe\u0301"], [[9, 2], [5, 6, 2], [5, 6, 2]])
    with pytest.raises(UsageError, match=r"the questions for labels 'caf\\xe9' and 'cafe\\u0301' are the same"):
        yes_no_scorer(["caf\u00e9", "cafe\u0301"], [[[5, 2], [6, 2]], [[5, 2], [6, 2]]])


# ------------------------------------------------------------------------------------------------ constrained decoding


@given(
    st.lists(st.lists(st.integers(3, 6), max_size=4).map(lambda own: (*own, EOT)), min_size=2, max_size=7, unique=True),
    st.integers(0, 2**32 - 1),
)
def test_constrained_scores_are_what_decoding_over_the_allowed_tokens_would_give(continuations, seed):
    """Step by step, as a decoder with a grammar goes: the allowed tokens compete, a forced one is certain."""
    rng = np.random.default_rng(seed)
    logits = {}  # of any token behind any beginning

    def logit(beginning, token):
        return logits.setdefault((beginning, token), float(np.float32(rng.normal(0, 3))))

    naive = []
    for own in continuations:
        score = 0.0
        for depth, token in enumerate(own):
            allowed = {other[depth] for other in continuations if other[:depth] == own[:depth] and len(other) > depth}
            rivals = [logit(own[:depth], rival) for rival in sorted(allowed)]
            score += logit(own[:depth], token) - np.logaddexp.reduce(rivals)
        naive.append(score)
    scorer = choose_scorer("constrained", [str(own) for own in continuations], continuations)
    tree = scorer.readout
    chains = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True), start=1):
        chains[node] = (*chains[parent], token)
    raw = np.array([[logit(chains[node], token) for node, token in tree.edges]], dtype=np.float32)
    difference = np.abs(scorer.scores(raw)[0] - naive).max()
    assert difference < 1e-5, f"largest difference {difference:.2g} over {continuations}"
    assert np.exp(naive).sum() == pytest.approx(1)


def test_constrained_scoring_feeds_only_what_leads_to_a_decision():
    continuations = [[5, 6, 7, 8, EOT], [5, 6, 9, 8, EOT], [4, 6, 7, 8, EOT]]
    tree = choose_scorer("constrained", ["a", "b", "c"], continuations).readout
    assert tree.token_ids == (5, 6)
    assert tree.edges == ((0, 5), (0, 4), (2, 7), (2, 9))


def test_constrained_and_first_token_scores_are_the_same_where_no_first_token_is_shared():
    continuations = [[5, 6, EOT], [7, EOT], [8, 9, 9, EOT]]
    constrained = choose_scorer("constrained", ["a", "b", "c"], continuations)
    first = choose_scorer("first-token", ["a", "b", "c"], continuations)
    raw = np.array([[0.3, -2.0, 1.0]], dtype=np.float32)
    assert constrained.readout.n_nodes == 0
    np.testing.assert_allclose(constrained.scores(raw), first.scores(raw), atol=1e-12)


# ------------------------------------------------------------------------------------------------ several labels a row

YES, NO = 90, 91
QUESTIONS = [([5, 7, YES], [5, 7, NO]), ([5, 8, YES], [5, 8, NO]), ([6, YES], [6, NO])]


def test_each_label_scores_the_log_odds_of_yes_behind_its_own_question():
    scorer = yes_no_scorer(["a", "b", "c"], QUESTIONS)
    tree = scorer.readout
    assert tree.token_ids == (5, 7, 8, 6)
    logit = {edge: place * 0.5 for place, edge in enumerate(tree.edges)}
    raw = np.array([list(logit.values())], dtype=np.float32)
    odds = [logit[node, YES] - logit[node, NO] for node in (2, 3, 4)]
    np.testing.assert_allclose(scorer.scores(raw)[0], odds, atol=1e-6)


def test_what_the_model_thinks_of_the_questions_themselves_does_not_matter():
    scorer = yes_no_scorer(["a", "b", "c"], QUESTIONS)
    raw = np.zeros((1, len(scorer.readout.edges)), dtype=np.float32)
    raw[0, scorer.readout.edges.index((0, 6))] = 40.0
    np.testing.assert_allclose(scorer.scores(raw), 0.0, atol=1e-12)


def test_questions_and_answers_that_are_the_same_tokens_are_refused():
    with pytest.raises(UsageError, match="questions for labels 'a' and 'b'"):
        yes_no_scorer(["a", "b"], [([5, YES], [5, NO]), ([5, YES], [5, NO])])
    with pytest.raises(UsageError, match="yes and no"):
        yes_no_scorer(["a", "b"], [([5, YES], [5, YES]), ([6, YES], [6, NO])])


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats(-30, 30)))
def test_the_prior_of_several_labels_makes_the_mean_odds_even(scores):
    prior = label_prior(scores)
    np.testing.assert_allclose((scores - prior).mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(probabilities(prior[None], prior, multi=True), 0.5)


def test_huge_odds_neither_overflow_nor_warn():
    scores = np.array([[-1e4, 0.0, 1e4]])
    assert probabilities(scores, NO_PRIOR, multi=True).tolist() == [[0.0, 0.5, 1.0]]
    assert np.isfinite(label_prior(scores)).all()


def test_texts_without_finite_scores_are_left_out_of_the_prior():
    scores = np.log([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2]])
    spoiled = np.vstack([scores, np.full(3, np.nan)])
    np.testing.assert_array_equal(label_prior(spoiled), label_prior(scores))
    assert np.isnan(label_prior(spoiled[2:])).all()
    assert label_prior(scores[:0]).tolist() == [0, 0, 0]


def test_a_classifiers_logits_are_taken_in_the_order_of_the_labels():
    raw = np.array([[1.0, 3.0, 2.0], [np.nan, 0.0, 0.0]], dtype=np.float32)
    scores = ClassScorer((2, 0, 1)).scores(raw)
    np.testing.assert_allclose(scores[0], log_softmax(np.array([[2.0, 1.0, 3.0]]))[0])
    assert np.isnan(scores[1]).all()
    assert ClassScorer((2, 0, 1), multi=True).scores(raw)[0].tolist() == [2.0, 1.0, 3.0]


def test_scorers_that_score_otherwise_have_other_identities():
    labels, continuations = ["a", "b"], [[5, 6, EOT], [5, 7, EOT]]
    scorers = [
        choose_scorer("sequence", labels, continuations),
        choose_scorer("constrained", labels, continuations),
        TreeScorer(build_tree(continuations, "siblings"), "yes-no", multi=True),
        ClassScorer((0, 1)),
        ClassScorer((1, 0)),
        ClassScorer((0, 1), multi=True),
    ]
    assert len({repr(scorer.identity()) for scorer in scorers}) == len(scorers)
