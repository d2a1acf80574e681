"""The fused engine against the reference path: configurations, lengths, windows, and faults put in on purpose.

What it has in common with other engines is in ``test_engine_oracle``, ``test_readout`` and ``test_classifiers``.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.continuations import build_tree
from pipeline.engine import decoder, fused
from pipeline.engine.fused import MAX_QUERIES, FusedEngine, Run
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.model import Model
from pipeline.engine.select import choose_engine
from pipeline.errors import ModelError
from pipeline.readout import ClassLogits, HiddenStates, Readout
from tests.engines import (
    EXACT,
    LLAMA_SHAPED,
    N_SHARED,
    N_TOKENS,
    PREFIX,
    WRONG,
    assert_same,
    bucket_of,
    largest,
    reference,
)
from tests.tiny import FAMILIES, WINDOW, tiny_model
from tests.tiny_classifiers import tiny_classifier

EOT = 2
TREE = build_tree([[5, 6, EOT], [5, EOT], [5, 6, 7, EOT], [8, 9, 5, EOT], [10, EOT]])
READOUTS: dict[str, Readout] = {
    "sequence": TREE,
    "constrained": build_tree(TREE.continuations, "siblings"),
    "hidden": HiddenStates(),
    "classes": ClassLogits(),
}
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
SOME_WINDOWS: dict[str, Any] = {
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}
# Configurations that change what a layer computes: family, and changes of its tiny model.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rope of Llama 3": (
        "llama",
        {"rope_parameters": ROPE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    ),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "yarn": ("qwen3", {"rope_parameters": ROPE | {"rope_type": "yarn"}}),
    "long rope": (
        "llama",
        {
            "rope_parameters": ROPE
            | {"rope_type": "longrope", "original_max_position_embeddings": 64}
            | {"short_factor": [1.0, 2.0, 1.5, 1.0], "long_factor": [4.0] * 4}
        },
    ),
    "another theta": ("mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "biases of Llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "biases of Qwen3": ("qwen3", {"attention_bias": True}),
    "tied output matrix": ("llama", {"tie_word_embeddings": True}),
    "own output matrix": ("qwen2", {"tie_word_embeddings": False}),
    "wide heads": ("llama", {"head_dim": 12}),
    "narrow heads": ("mistral", {"head_dim": 6}),
    "wide heads with norms": ("qwen3", {"head_dim": 16}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "as many key heads": ("qwen2", {"num_key_value_heads": 4}),
    "another activation": ("llama", {"hidden_act": "gelu"}),
    "another epsilon": ("qwen3", {"rms_norm_eps": 0.3}),
    "one layer": ("llama", {"num_hidden_layers": 1}),
    "no window": ("mistral", {"sliding_window": None}),
    "some windows of Qwen2": ("qwen2", SOME_WINDOWS | {"sliding_window": WINDOW}),
    "some windows of Qwen3": ("qwen3", SOME_WINDOWS | {"sliding_window": WINDOW}),
}

cached_model = cache(tiny_model)


def model_for(family: str, readout: Readout) -> Model:
    return tiny_classifier(family) if isinstance(readout, ClassLogits) else cached_model(family)


def assert_fused(model: Model, readout: Readout, n_tokens: list[int], n_shared: int, what: str, seed: int = 0) -> None:
    bucket = bucket_of(n_tokens, n_shared, seed)
    assert_same(FusedEngine(model, PREFIX, readout).score(bucket), reference(model, readout, bucket), what)


# ------------------------------------------------------------------------------------------------ configurations


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_agrees_whatever_the_configuration(variant: str) -> None:
    family, changes = VARIANTS[variant]
    model = tiny_model(family, **changes)
    for n_shared in N_SHARED[:2]:
        for name in ("sequence", "hidden"):
            assert_fused(model, READOUTS[name], N_TOKENS, n_shared, f"{variant}, {name}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_of_these_configurations_is_another_model(variant: str) -> None:
    """A change that transformers ignored would show nothing."""
    family, changes = VARIANTS[variant]
    changed, usual = tiny_model(family, **changes), cached_model(family)
    if variant == "own output matrix":
        assert changed.lm.lm_head.weight is not changed.lm.model.embed_tokens.weight
        return
    bucket = bucket_of([31], 12)
    assert np.abs(reference(changed, TREE, bucket) - reference(usual, TREE, bucket)).max() > WRONG


# ------------------------------------------------------------------------------------------------ lengths


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_rows_longer_than_the_queries_that_meet_their_keys_at_once(family: str, readout: str) -> None:
    """On both sides of every seam; with label nodes the last queries are more."""
    n_tokens = [2 * MAX_QUERIES + 1, 2 * MAX_QUERIES, 2 * MAX_QUERIES, MAX_QUERIES + 1, MAX_QUERIES, MAX_QUERIES - 1, 5]
    assert_fused(model_for(family, READOUTS[readout]), READOUTS[readout], n_tokens, 12, f"{family}, {readout}")


@pytest.mark.parametrize("n_shared", N_SHARED)
@pytest.mark.parametrize("n_tokens", [[6, 6, 6], [1], [1, 1, 1, 1], [40], [9, 9, 4, 4, 4, 1], [300, 300], [4, 9, 9, 4]])
def test_equally_long_rows_are_one_rectangle(n_tokens: list[int], n_shared: int) -> None:
    for name in ("constrained", "hidden"):
        assert_fused(cached_model("mistral"), READOUTS[name], n_tokens, n_shared, f"{n_tokens}, {name}")


@settings(max_examples=40)
@given(
    family=st.sampled_from(LLAMA_SHAPED),
    readout=st.sampled_from(["sequence", "constrained", "hidden"]),
    max_queries=st.sampled_from([1, 2, 3, 8, MAX_QUERIES]),
    n_tokens=st.lists(st.one_of(st.integers(1, 3 * WINDOW), st.sampled_from([8, 16, 17])), min_size=1, max_size=5),
    n_shared=st.integers(0, len(PREFIX)),
    seed=st.integers(0, 1000),
)
def test_it_agrees_whatever_the_lengths(
    family: str, readout: str, max_queries: int, n_tokens: list[int], n_shared: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "MAX_QUERIES", max_queries)
        assert_fused(cached_model(family), READOUTS[readout], n_tokens, n_shared, f"{family}, {readout}", seed)


@pytest.mark.parametrize("window", [1, 2, 12, MAX_QUERIES, 1000])
@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_window_may_be_shorter_or_longer_than_rows_and_seams(family: str, window: int) -> None:
    changes = {} if family == "mistral" else SOME_WINDOWS
    model = tiny_model(family, sliding_window=window, **changes)
    for name in ("sequence", "hidden"):
        assert_fused(model, READOUTS[name], [150, 30, 30, 13, 1], 12, f"window {window}, {name}")


def test_runs_are_neighbours_of_one_length() -> None:
    bucket = bucket_of([5, 5, 3, 5], 12)
    layout = pack(bucket, TREE, torch.device("cpu"))
    runs = [*fused._runs(layout, bucket.n_tokens + TREE.n_nodes)]
    n_nodes = TREE.n_nodes
    assert [(run.n_rows, run.n_tokens) for run in runs] == [(2, 5 + n_nodes), (1, 3 + n_nodes), (1, 5 + n_nodes)]
    tokens = np.concatenate([np.arange(run.tokens.start, run.tokens.stop) for run in runs])
    assert tokens.tolist() == [*range(layout.token_ids.shape[1])]


@pytest.mark.parametrize("readout", ["sequence", "hidden"])
@pytest.mark.parametrize("place", [0, 40, 140])
def test_a_row_that_is_not_a_number_stays_alone(place: int, readout: str) -> None:
    """Wherever its fault is, among rows as long as itself and others."""
    model, bucket = tiny_model("llama"), bucket_of([150, 150, 150, 9], 12)
    bucket = replace(bucket, token_ids=np.where(bucket.token_ids == 50, 51, bucket.token_ids))
    engine = FusedEngine(model, PREFIX, READOUTS[readout])
    clean = engine.score(bucket)
    bucket.token_ids[150 + place] = 50
    with torch.no_grad():
        model.lm.model.embed_tokens.weight[50] = torch.nan
    read = engine.score(bucket)
    assert np.isnan(read[1]).all()
    np.testing.assert_array_equal(read[[0, 2, 3]], clean[[0, 2, 3]])


def test_a_bucket_is_not_changed_by_being_scored() -> None:
    bucket, engine = bucket_of(N_TOKENS, 12), FusedEngine(cached_model("qwen3"), PREFIX, TREE)
    before = bucket.token_ids.copy()
    first = engine.score(bucket)
    np.testing.assert_array_equal(bucket.token_ids, before)
    np.testing.assert_array_equal(engine.score(bucket), first)


# ------------------------------------------------------------------------------------------------ which models


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LLAMA_SHAPED])
def test_other_models_are_refused(family: str) -> None:
    with pytest.raises(ValueError, match="are not known"):
        FusedEngine(cached_model(family), PREFIX, TREE)
    with pytest.raises(ModelError, match="the fused engine does not fit") as error:
        choose_engine("fused", cached_model(family), PREFIX, TREE, bucket_of([14, 6, 2], 12))
    assert "--engine auto" in error.value.hint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"float32 on a CPU, not {str(dtype).removeprefix('torch.')} on cpu"):
        FusedEngine(tiny_model("llama", dtype=dtype), PREFIX, TREE)


# ------------------------------------------------------------------------------------------------ would it be noticed?

Change = Callable[[FusedEngine], None]


def difference_with(monkeypatch: pytest.MonkeyPatch, family: str, **replaced: Any) -> float:
    """How far the engine is off with functions of its module replaced."""
    for name, value in replaced.items():
        monkeypatch.setattr(fused, name, value)
    model, bucket = cached_model(family), bucket_of(N_TOKENS, 12)
    return largest(FusedEngine(model, PREFIX, TREE).score(bucket), reference(model, TREE, bucket))


def plain_causal(layout: PackedLayout) -> PackedLayout:
    return replace(layout, tree_sees=torch.ones_like(layout.tree_sees).tril())


def everything_is_seen(layout: PackedLayout) -> PackedLayout:
    return replace(layout, tree_sees=torch.ones_like(layout.tree_sees))


def positions_one_late(layout: PackedLayout) -> PackedLayout:
    return replace(layout, position_ids=layout.position_ids + 1)


def nodes_in_a_line(layout: PackedLayout) -> PackedLayout:
    """Positions as if the fed nodes stood one behind the other."""
    positions, ends = layout.position_ids.clone(), np.cumsum(np.array(N_TOKENS) + TREE.n_nodes)
    for end, own in zip(ends, N_TOKENS, strict=True):
        positions[0, end - TREE.n_nodes : end] = 12 + own + torch.arange(TREE.n_nodes)
    return replace(layout, position_ids=positions)


def prefix_lacks_its_last_token(layout: PackedLayout) -> PackedLayout:
    return replace(layout, n_prefix=layout.n_prefix - 1)


def read_one_token_early(layout: PackedLayout) -> PackedLayout:
    return replace(layout, read_at=(layout.read_at - 1).clamp(min=0))


@pytest.mark.parametrize(
    "change",
    [
        plain_causal,
        everything_is_seen,
        positions_one_late,
        nodes_in_a_line,
        prefix_lacks_its_last_token,
        read_one_token_early,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_the_oracle_notices_a_wrong_layout(
    family: str, change: Callable[[PackedLayout], PackedLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference_with(monkeypatch, family) < EXACT
    difference = difference_with(monkeypatch, family, pack=lambda *args: change(pack(*args)))
    assert difference > WRONG, f"{family}: {change.__name__} makes a difference of {difference:.2g} only"


@pytest.mark.parametrize("wider", [1, -1, None], ids=["one wider", "one narrower", "none"])
def test_the_oracle_notices_another_window(wider: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Run.mask

    def other(run: Run, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        return mask(run, None if wider is None or window is None else window + wider, dtype)

    monkeypatch.setattr(Run, "mask", other)
    difference = difference_with(monkeypatch, "mistral")
    assert difference > WRONG, f"it differs by {difference:.2g} only"


def unturned(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Leave the heads as they are."""


def turned_back(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    ROTATE(heads, cosines, -sines)


def turned_too_far(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """The values of the first head along with the keys: one head too many."""
    ROTATE(heads.as_strided((len(heads), heads.shape[1] + 1, heads.shape[2]), heads.stride()), cosines, sines)


ROTATE = decoder._rotate


@pytest.mark.parametrize("rotate", [unturned, turned_back, turned_too_far], ids=lambda rotate: rotate.__name__)
@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_the_oracle_notices_heads_that_are_turned_otherwise(
    family: str, rotate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "_rotate", rotate)
    difference = difference_with(monkeypatch, family)
    assert difference > WRONG, f"{family}: {rotate.__name__} makes a difference of {difference:.2g} only"


@pytest.mark.parametrize("change", ["layers swapped", "keys for values", "one token early"])
def test_the_oracle_notices_a_wrong_prefix(change: str) -> None:
    model, bucket = cached_model("llama"), bucket_of(N_TOKENS, 9)
    engine = FusedEngine(model, PREFIX, TREE)
    engine._prefix = {
        "layers swapped": engine._prefix[::-1],
        "keys for values": tuple((values, keys) for keys, values in engine._prefix),
        "one token early": tuple((keys.roll(1, 0), values.roll(1, 0)) for keys, values in engine._prefix),
    }[change]
    assert largest(engine.score(bucket), reference(model, TREE, bucket)) > WRONG


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("qwen3", {"query_norm": None}),
        ("llama", {"scaling": 1.0}),
        ("llama", {"activation": torch.nn.ReLU()}),
        ("mistral", {"window": WINDOW + 1}),
    ],
    ids=["norms", "scaling", "activation", "window"],
)
def test_the_oracle_notices_a_part_of_a_layer_that_is_another(family: str, part: dict[str, Any]) -> None:
    assert off_with(cached_model(family), lambda layer: replace(layer, **part)) > WRONG


@pytest.mark.parametrize("name", ["qkv", "output", "gate", "up", "down"])
def test_the_oracle_notices_a_bias_that_is_left_out(name: str) -> None:
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    assert off_with(model, lambda layer: layer) < EXACT
    assert off_with(model, lambda layer: replace(layer, **{name: replace(getattr(layer, name), bias=None)})) > WRONG


@pytest.mark.parametrize("shift", [1, -1])
def test_the_oracle_notices_a_seam_that_is_one_token_off(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later of a row's queries are seen to have other keys."""
    model, bucket = cached_model("llama"), bucket_of([2 * MAX_QUERIES + 9], 12)
    mask = Run.mask

    def moved(run: Run, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        moved = mask(run, window, dtype).clone()
        moved[MAX_QUERIES:] = moved[MAX_QUERIES:].roll(shift, 1)
        return moved

    monkeypatch.setattr(Run, "mask", moved)
    assert largest(FusedEngine(model, PREFIX, TREE).score(bucket), reference(model, TREE, bucket)) > WRONG


def off_with(model: Model, change: Callable[[Any], Any]) -> float:
    """How far the engine is off with its layers changed."""
    engine, bucket = FusedEngine(model, PREFIX, TREE), bucket_of(N_TOKENS, 12)
    engine._decoder = replace(engine._decoder, layers=tuple(map(change, engine._decoder.layers)))
    scores: NDArray[np.float32] = engine.score(bucket)
    return largest(scores, reference(model, TREE, bucket))
