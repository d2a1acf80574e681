"""Hidden states and trees of siblings, held against a few lines of plain transformers; the oracle compares engines."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree, build_tree
from pipeline.engine import packed
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import TOLERANCE, choose_engine
from pipeline.engine.single import SingleEngine
from pipeline.errors import ModelError
from pipeline.readout import HiddenStates
from pipeline.scoring import TreeScorer, yes_no_scorer
from tests.engines import (
    EXACT,
    N_TOKENS,
    PREFIX,
    WRONG,
    assert_same,
    bucket_of,
    fast_engines,
    largest,
    own_tokens,
    reference,
)
from tests.tiny import FAMILIES, RECURRENT, UNPACKABLE, VOCAB_SIZE, WINDOW, tiny_model

EOT = 2
ENGINES = [*fast_engines("llama"), SingleEngine]
HIDDEN = HiddenStates()

# ------------------------------------------------------------------------------------------------ hidden states


@pytest.mark.parametrize("family", [*FAMILIES, *UNPACKABLE, *RECURRENT])
def test_hidden_states_are_those_of_plain_transformers(family):
    model, bucket = tiny_model(family), bucket_of([9, 3, 1], 12)
    read = reference(model, HIDDEN, bucket)
    for row, own in enumerate(own_tokens(bucket)):
        with torch.no_grad():
            plain = model.lm(torch.tensor([[*PREFIX, *own]]), output_hidden_states=True, use_cache=False)
        states = plain.hidden_states[-1][0]
        expected = torch.cat([states[-1], states[len(PREFIX) :].mean(dim=0)]).numpy()
        assert_same(read[row], expected, f"{family}, row {row}")


@pytest.mark.parametrize("build", ENGINES)
def test_the_last_tokens_state_is_the_one_that_the_output_matrix_reads(build):
    model, bucket = tiny_model("llama"), bucket_of(N_TOKENS, 12)
    last = build(model, PREFIX, HIDDEN).score(bucket)[:, : model.lm.config.hidden_size]
    for row, own in enumerate(own_tokens(bucket)):
        with torch.no_grad():
            logits = model.lm(torch.tensor([[*PREFIX, *own]])).logits[0, -1]
            assert_same(model.lm.lm_head(torch.from_numpy(last[row])).numpy(), logits.numpy(), build.name)


@pytest.mark.parametrize("build", ENGINES)
def test_hidden_states_cost_no_output_matrix(build):
    model, calls = tiny_model("llama"), []
    model.lm.lm_head.register_forward_hook(lambda *_: calls.append(1))
    build(model, PREFIX, HIDDEN).score(bucket_of(N_TOKENS, 12))
    assert calls == []


@pytest.mark.parametrize("build", ENGINES)
def test_a_row_that_is_not_a_number_leaves_the_others_as_they_are(build):
    """A mean that is a product with a matrix of zeros and ones makes NaN of every row: zero times NaN is NaN.

    Not so the first row of a pass, whose first token fills its neighbours' padding: ``run_passes`` scores them again.
    """
    model, bucket = tiny_model("llama"), bucket_of([9, 9, 4], 12)
    bucket = replace(bucket, token_ids=np.where(bucket.token_ids == 50, 51, bucket.token_ids))
    clean = build(model, PREFIX, HIDDEN).score(bucket)
    bucket.token_ids[12] = 50
    model.lm.model.embed_tokens.weight.data[50] = float("nan")
    read = build(model, PREFIX, HIDDEN).score(bucket)
    assert np.isnan(read[1]).all()
    assert_same(read[[0, 2]], clean[[0, 2]], build.name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1, 1000])
def test_half_precision_is_judged_by_the_size_of_the_states(scale, dtype):
    """Hidden states of some models are in the hundreds, where a difference of one is rounding."""
    model, probe = tiny_model("llama", dtype=dtype), bucket_of([14, 6, 2], 12)
    model.lm.model.norm.weight.data *= scale
    assert largest(PackedEngine(model, PREFIX, HIDDEN).score(probe), reference(model, HIDDEN, probe)) > 0
    assert choose_engine("packed", model, PREFIX, HIDDEN, probe).name == "packed"


@pytest.mark.parametrize("build", [PackedEngine, PaddedEngine])
def test_means_of_half_precision_are_summed_in_float32(build):
    """Two thousand states of bfloat16, summed up in bfloat16, lose all but the first few hundred."""
    model, bucket = tiny_model("llama", dtype=torch.bfloat16), bucket_of([1500], 12)
    difference = largest(build(model, PREFIX, HIDDEN).score(bucket)[:, 32:], reference(model, HIDDEN, bucket)[:, 32:])
    assert difference < TOLERANCE[torch.bfloat16] / 50, f"{build.name}: largest difference {difference:.2g}"


def test_a_model_that_keeps_its_states_to_itself_is_refused():
    model = tiny_model("llama")
    model.lm.base_model_prefix = "nothing"
    with pytest.raises(ModelError, match="does not give its final hidden states"):
        choose_engine("auto", model, PREFIX, HIDDEN, bucket_of([14, 6], 12))


# ------------------------------------------------------------------------------------------------ trees of siblings


def decoded(model: Model, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
    """Log-probability with which decoding constrained to the continuations gives each of them, step by step."""
    follow: dict[tuple[int, ...], set[int]] = {}
    for own in continuations:
        for depth, token in enumerate(own):
            follow.setdefault(tuple(own[:depth]), set()).add(token)
    logprobs: dict[tuple[tuple[int, ...], int], float] = {}
    for start, allowed in follow.items():
        tokens = sorted(allowed)
        with torch.no_grad():
            logits = model.lm(torch.tensor([[*prompt, *start]]), use_cache=False).logits[0, -1, tokens]
        steps = logits.double().log_softmax(-1).tolist()
        logprobs |= {(start, token): step for token, step in zip(tokens, steps, strict=True)}
    return [sum(logprobs[tuple(own[:depth]), token] for depth, token in enumerate(own)) for own in continuations]


def random_labels(n_labels: int, seed: int) -> list[list[int]]:
    """Labels of one to five tokens that share beginnings, and some of which begin others."""
    rng, labels = np.random.default_rng(seed), [[5]]
    while len(labels) < n_labels:
        begun = labels[rng.integers(len(labels))]
        label = [*begun[: rng.integers(0, len(begun) + 1)], *rng.integers(3, 30, rng.integers(1, 3)).tolist()][:5]
        if label not in labels:
            labels.append(label)
    return [[*label, EOT] for label in labels]


LABELS = {
    "nested": [[5, EOT], [5, 6, EOT], [5, 6, 7, EOT], [8, 9, EOT], [8, 9, 5, 6, EOT], [10, EOT]],
    "long ends": [[5, 6, 7, 8, EOT], [9, 10, 11, EOT], [9, 12, 13, 14, 15, EOT]],
    "77": random_labels(77, 0),
}


@pytest.mark.parametrize("family", ["llama", "gemma2", "phi", "granite", "gpt2"])
@pytest.mark.parametrize("labels", LABELS)
def test_every_engine_gives_labels_as_constrained_decoding_does(labels, family):
    model, bucket, continuations = tiny_model(family), bucket_of([9, 3], 12), LABELS[labels]
    scorer = TreeScorer(build_tree(continuations, "siblings"), "constrained")
    expected = np.array([decoded(model, [*PREFIX, *own], continuations) for own in own_tokens(bucket)])
    for build in (*fast_engines(family), SingleEngine):
        difference = np.abs(scorer.scores(build(model, PREFIX, scorer.readout).score(bucket)) - expected).max()
        assert difference < EXACT, f"{build.name} {family}: largest difference {difference:.2g}"


@settings(max_examples=15)
@given(
    family=st.sampled_from(["llama", "mistral", "gemma3"]),
    continuations=st.lists(
        st.lists(st.integers(3, 6), min_size=1, max_size=4).map(lambda own: [*own, EOT]),
        min_size=2,
        max_size=7,
        unique_by=tuple,
    ),
    n_tokens=st.lists(st.integers(1, 2 * WINDOW), min_size=1, max_size=3),
    n_shared=st.integers(0, len(PREFIX)),
)
def test_siblings_of_any_labels_are_compared_as_in_constrained_decoding(family, continuations, n_tokens, n_shared):
    model, bucket = tiny_model(family), bucket_of(n_tokens, n_shared)
    scorer = TreeScorer(build_tree(continuations, "siblings"), "constrained")
    prompts = [[*PREFIX[:n_shared], *own] for own in own_tokens(bucket)]
    expected = np.array([decoded(model, prompt, continuations) for prompt in prompts])
    for build in (*fast_engines(family), SingleEngine):
        difference = np.abs(scorer.scores(build(model, PREFIX, scorer.readout).score(bucket)) - expected).max()
        assert difference < EXACT, f"{build.name} {family}: largest difference {difference:.2g}"


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_every_engine_gives_the_odds_of_yes_of_each_label_alone(family):
    """With several labels a row, the questions share a beginning, and one of them begins another."""
    model, bucket = tiny_model(family), bucket_of([9, 3, 1], 12)
    yes, no, questions = [20, EOT], [21, EOT], [[5, 6, 9], [5, 7, 9], [5, 7, 9, 9], [8, 9]]
    scorer = yes_no_scorer(list("abcd"), [([*question, *yes], [*question, *no]) for question in questions])
    expected = [
        [np.subtract(*decoded(model, [*PREFIX, *own, *question], [yes, no])) for question in questions]
        for own in own_tokens(bucket)
    ]
    for build in (*fast_engines(family), SingleEngine):
        difference = np.abs(scorer.scores(build(model, PREFIX, scorer.readout).score(bucket)) - expected).max()
        assert difference < EXACT, f"{build.name} {family}: largest difference {difference:.2g}"


@pytest.mark.parametrize("family", ["llama", "phi", "gemma2", "gpt2"])
def test_siblings_need_the_labels_rows_of_the_output_matrix_only(family):
    model, calls = tiny_model(family), []
    tree, bucket = build_tree(LABELS["nested"], "siblings"), bucket_of(N_TOKENS, 12)
    expected = reference(model, tree, bucket)
    # before the engines are built, whose copies of the model have the hook as well
    model.lm.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    for build in (build for build in fast_engines(family) if build is not PaddedEngine):
        assert_same(build(model, PREFIX, tree).score(bucket), expected, f"{build.name} {family}")
    assert tree.n_nodes
    assert calls == []


# ------------------------------------------------------------------------------------------------ would it be noticed?


def first_row_owns_all(layout: PackedLayout) -> PackedLayout:
    return replace(layout, row_of_own=torch.zeros_like(layout.row_of_own))


def owners_are_one_token_late(layout: PackedLayout) -> PackedLayout:
    return replace(layout, row_of_own=torch.roll(layout.row_of_own, 1))


def lengths_count_the_prefix(layout: PackedLayout) -> PackedLayout:
    return replace(layout, n_own=layout.n_own + layout.n_prefix)


def read_one_token_early(layout: PackedLayout) -> PackedLayout:
    return replace(layout, read_at=(layout.read_at - 1).clamp(min=0))


@pytest.mark.parametrize(
    "change",
    [first_row_owns_all, owners_are_one_token_late, lengths_count_the_prefix, read_one_token_early],
    ids=lambda change: change.__name__,
)
def test_the_oracle_notices_wrong_places_of_states(change: Callable[[PackedLayout], PackedLayout], monkeypatch):
    model, bucket = tiny_model("llama"), bucket_of(N_TOKENS, 12)
    monkeypatch.setattr(packed, "pack", lambda *args: change(pack(*args)))
    difference = largest(PackedEngine(model, PREFIX, HIDDEN).score(bucket), reference(model, HIDDEN, bucket))
    assert difference > WRONG, f"{change.__name__} makes a difference of {difference:.2g} only"


def test_the_oracle_notices_a_mean_that_takes_the_prefix_along():
    model, bucket = tiny_model("llama"), bucket_of(N_TOKENS, 12)
    whole = np.concatenate([[*PREFIX, *own] for own in own_tokens(bucket)])
    wrong = Bucket(bucket.rows, whole, bucket.n_tokens + len(PREFIX), 0)
    difference = np.abs(reference(model, HIDDEN, wrong) - reference(model, HIDDEN, bucket))
    assert difference[:, :32].max() < EXACT
    assert difference[:, 32:].max(axis=1).min() > WRONG


def test_nodes_are_no_rows_own():
    tree, bucket = build_tree(LABELS["nested"]), bucket_of([4, 2], 12)
    layout = pack(bucket, tree, torch.device("cpu"))
    states = torch.arange(layout.token_ids.shape[1], dtype=torch.float32)[:, None]
    means: NDArray[np.float32] = layout.mean_of_own(states).numpy()
    np.testing.assert_allclose(means[:, 0], [1.5, 4 + tree.n_nodes + 0.5])


def test_tokens_behind_the_last_decision_are_not_fed():
    tree: ContinuationTree = build_tree(LABELS["77"], "siblings")
    whole = build_tree(LABELS["77"])
    assert 0 < tree.n_nodes < whole.n_nodes / 2, f"{tree.n_nodes} of {whole.n_nodes}"
    assert max(token for _, token in tree.edges) < VOCAB_SIZE
