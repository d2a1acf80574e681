"""All engines give the same numbers: fused = packed = padded = single, whatever the rows, their company, the model.

The reference path itself is held against a few lines of plain transformers. The tests at the end break the packed
engine on purpose, to show that these comparisons would notice; ``test_fused`` does so with the fused one.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.build import build_stage
from pipeline.continuations import build_tree, first_token_tree
from pipeline.engine import attention, packed
from pipeline.engine.fused import FusedEngine
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.load import load_model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import ENGINES, TOLERANCE, Build, choose_engine
from pipeline.engine.single import SingleEngine
from pipeline.engine.workers import default_threads_kept, use_one_thread
from pipeline.errors import ModelError
from pipeline.readout import HiddenStates, Readout
from pipeline.settings import Settings
from pipeline.stats import RunStats
from pipeline.task_file import builtin_task
from tests.engines import (
    EXACT,
    LLAMA_SHAPED,
    N_SHARED,
    N_TOKENS,
    PREFIX,
    WRONG,
    assert_same,
    bucket_of,
    fast_engines,
    largest,
    pick,
    reference,
)
from tests.tiny import (
    FAMILIES,
    RECURRENT,
    SIZES,
    UNPACKABLE,
    WINDOW,
    tiny_model,
    tiny_model_of,
    tiny_tokenizer,
)

EOT = 2
CONTINUATIONS = [[5, 6, EOT], [5, EOT], [5, 6, 7, EOT], [8, 9, 5, EOT], [10, EOT]]
TREES = {
    "sequence": build_tree(CONTINUATIONS),
    "constrained": build_tree(CONTINUATIONS, "siblings"),
    "first-token": first_token_tree(["a", "b", "c"], [[5, EOT], [8, EOT], [10, EOT]]),
}
# What an engine is asked for: edge scores of every kind of tree, or the states of a row.
READOUTS: dict[str, Readout] = {**TREES, "hidden": HiddenStates()}

cached_model = cache(tiny_model)


# ------------------------------------------------------------------------------------------------ the same numbers


@pytest.mark.parametrize("family", [*FAMILIES, *UNPACKABLE, *RECURRENT])
def test_the_reference_path_is_what_plain_transformers_says(family):
    model, tree, bucket = cached_model(family), TREES["sequence"], bucket_of([9, 3], 12)
    by_label = reference(model, tree, bucket) @ tree.label_matrix
    for row, own in enumerate(np.split(bucket.token_ids, [9])):
        for label, continuation in enumerate(CONTINUATIONS):
            with torch.no_grad():
                logits = model.lm(torch.tensor([[*PREFIX, *own, *continuation]]), use_cache=False).logits[0]
            logprobs = logits.log_softmax(-1)[-len(continuation) - 1 : -1]
            naive = float(logprobs[range(len(continuation)), continuation].sum())
            difference = abs(naive - by_label[row, label])
            assert difference < EXACT, f"{family}, row {row}, label {label}: difference {difference:.2g}"


@pytest.mark.parametrize("n_shared", N_SHARED)
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_agrees_with_one_row_at_a_time(family, readout, n_shared):
    model, bucket = cached_model(family), bucket_of(N_TOKENS, n_shared)
    expected = reference(model, READOUTS[readout], bucket)
    for build in fast_engines(family):
        scores = build(model, PREFIX, READOUTS[readout]).score(bucket)
        assert_same(scores, expected, f"{build.name} {family}")


@pytest.mark.parametrize("n_shared", N_SHARED)
@pytest.mark.parametrize("family", UNPACKABLE)
def test_padded_agrees_on_families_that_cannot_be_packed(family, n_shared):
    model, bucket = cached_model(family), bucket_of(N_TOKENS, n_shared)
    for readout in READOUTS.values():
        scores = PaddedEngine(model, PREFIX, readout).score(bucket)
        assert_same(scores, reference(model, readout, bucket), f"padded {family}")


@settings(max_examples=25)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt2"]),
    readout=st.sampled_from(list(READOUTS)),
    n_tokens=st.lists(st.integers(1, 3 * WINDOW), min_size=1, max_size=5),
    n_shared=st.integers(0, len(PREFIX)),
    seed=st.integers(0, 1000),
)
def test_engines_agree_whatever_the_lengths(family, readout, n_tokens, n_shared, seed):
    model, bucket = cached_model(family), bucket_of(n_tokens, n_shared, seed)
    expected = reference(model, READOUTS[readout], bucket)
    for build in fast_engines(family):
        scores = build(model, PREFIX, READOUTS[readout]).score(bucket)
        assert_same(scores, expected, f"{build.name} {family}")


@settings(max_examples=15)
@given(
    continuations=st.lists(
        st.lists(st.integers(3, 5), min_size=1, max_size=4).map(lambda own: (*own, EOT)),
        min_size=2,
        max_size=6,
        unique=True,
    )
)
def test_the_tree_gives_what_each_label_alone_gives(continuations):
    model, bucket, tree = cached_model("llama"), bucket_of([9, 4, 1], 12), build_tree(continuations)
    alone = [reference(model, build_tree([own]), bucket).sum(axis=1) for own in continuations]
    for build in (*fast_engines("llama"), SingleEngine):
        by_label = build(model, PREFIX, tree).score(bucket) @ tree.label_matrix
        difference = np.abs(by_label - np.stack(alone, axis=1)).max()
        assert difference < EXACT, f"{build.name}, {continuations}: largest difference {difference:.2g}"


@pytest.mark.parametrize(
    ("family", "build"), [(family, build) for family in ("llama", "gemma3") for build in fast_engines(family)]
)
@pytest.mark.parametrize("readout", READOUTS)
def test_a_rows_scores_do_not_depend_on_its_company(family, readout, build):
    model, bucket = cached_model(family), bucket_of(N_TOKENS, 12)
    engine = build(model, PREFIX, READOUTS[readout])
    together = engine.score(bucket)
    rng = np.random.default_rng(2)
    for _ in range(4):
        order = rng.permutation(len(N_TOKENS))
        groups = np.split(order, np.sort(rng.choice(range(1, len(N_TOKENS)), 2, replace=False)))
        apart = np.concatenate([engine.score(pick(bucket, group.tolist())) for group in groups])
        assert_same(apart, together[order], f"{build.name} {family} in groups {[group.tolist() for group in groups]}")


@pytest.mark.parametrize("build", fast_engines("qwen3"))
def test_the_halves_of_a_bucket_score_as_the_whole(build):
    """Running out of memory splits a bucket and goes on."""
    engine, bucket = build(cached_model("qwen3"), PREFIX, TREES["sequence"]), bucket_of(N_TOKENS, 12)
    halves = np.concatenate([engine.score(half) for half in bucket.split()])
    assert_same(halves, engine.score(bucket), f"{build.name} in halves")


@pytest.mark.parametrize(
    ("family", "build"), [(family, build) for family in FAMILIES for build in fast_engines(family)]
)
def test_a_shared_prefix_gives_what_the_same_tokens_within_each_row_give(family, build):
    model, tree = cached_model(family), TREES["sequence"]
    shared = bucket_of([9, 9, 4], 12)
    own = np.split(shared.token_ids, [9, 18])
    whole = Bucket(shared.rows, np.concatenate([[*PREFIX, *row] for row in own]), shared.n_tokens + len(PREFIX), 0)
    scores = build(model, PREFIX, tree).score(shared)
    assert_same(scores, build(model, (), tree).score(whole), f"{build.name} {family}, prefix and no prefix")


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("n_shared", N_SHARED)
def test_the_padded_engine_gives_the_same_with_and_without_sharing_the_prefix(n_shared, readout):
    model, bucket, wanted = cached_model("llama"), bucket_of(N_TOKENS, n_shared), READOUTS[readout]
    scores = PaddedEngine(model, PREFIX, wanted, share_prefix=False).score(bucket)
    assert_same(scores, PaddedEngine(model, PREFIX, wanted).score(bucket), "sharing the prefix")


@pytest.mark.parametrize("n_tokens", [[6, 6, 6], [1], [1, 1, 1, 1], [40]])
def test_equally_long_rows_need_no_gathering_and_score_the_same(n_tokens):
    model, bucket = cached_model("gemma3"), bucket_of(n_tokens, 12)
    for readout in READOUTS.values():
        assert pack(bucket, readout, model.device).is_dense
        assert_same(PackedEngine(model, PREFIX, readout).score(bucket), reference(model, readout, bucket), "dense")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_half_precision_agrees_within_the_tolerance_of_the_start_up_check(family, dtype):
    model, tree, bucket = tiny_model(family, dtype=dtype), TREES["sequence"], bucket_of(N_TOKENS, 12)
    difference = largest(PackedEngine(model, PREFIX, tree).score(bucket), reference(model, tree, bucket))
    assert 0 < difference < TOLERANCE[dtype], f"{family}, {dtype}: largest difference {difference:.2g}"


# ------------------------------------------------------------------------------------------------ the model as it was


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2", "phi"])
def test_a_model_is_left_as_it_was(family, readout):
    model, bucket = tiny_model(family), bucket_of(N_TOKENS, 12)
    before = reference(model, READOUTS[readout], bucket)
    attention_before, head = model.lm.config._attn_implementation, model.lm.get_output_embeddings()
    weights = {name: tensor.clone() for name, tensor in model.lm.state_dict().items()}
    for build in fast_engines(family):
        build(model, PREFIX, READOUTS[readout]).score(bucket)
        assert model.lm.config._attn_implementation == attention_before != attention.IMPLEMENTATION
        assert model.lm.get_output_embeddings() is head
        after = model.lm.state_dict()
        assert list(after) == list(weights)
        assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())
    np.testing.assert_array_equal(reference(model, READOUTS[readout], bucket), before)


@pytest.mark.parametrize("build", fast_engines("llama"))
def test_an_engine_goes_on_after_a_pass_that_failed(build, monkeypatch):
    """Running out of memory in the middle of a pass must leave nothing behind."""
    model, tree, bucket = tiny_model("llama"), TREES["constrained"], bucket_of(N_TOKENS, 12)
    engine, expected = build(model, PREFIX, tree), reference(model, tree, bucket)

    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as tight:
        tight.setattr(torch.nn.functional, "scaled_dot_product_attention", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            engine.score(bucket)
    assert_same(engine.score(bucket), expected, "after a failed pass")
    assert_same(reference(model, tree, bucket), expected, "the model after a failed pass")


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_engines_share_one_set_of_weights(family):
    """With a set each, a model would take twice its memory, or three times."""
    model = tiny_model(family)

    def storages() -> dict[int, int]:
        held = [parameter.untyped_storage() for parameter in model.lm.parameters()]
        return {storage.data_ptr(): storage.nbytes() for storage in held}

    n_bytes, digest = sum(storages().values()), replace(model).digest
    built = [build(model, PREFIX, TREES["sequence"]) for build in (*fast_engines(family), *fast_engines(family))]
    held, parameters = storages(), {*map(id, model.lm.parameters())}
    assert sum(held.values()) == n_bytes
    assert replace(model).digest == digest
    for engine in built:
        if isinstance(engine, PackedEngine):
            assert {*map(id, engine._model.lm.parameters())} == parameters
        if isinstance(engine, FusedEngine):
            decoder = engine._decoder
            tensors = [decoder.embedding, *(layer.qkv.weight for layer in decoder.layers), decoder.layers[0].up.weight]
            assert {tensor.untyped_storage().data_ptr() for tensor in tensors} <= {*held}
    bucket = bucket_of(N_TOKENS, 12)
    for engine in built:
        assert_same(engine.score(bucket), reference(model, TREES["sequence"], bucket), f"{engine.name}, all built")


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("build", fast_engines("llama"))
def test_buckets_scored_at_once_give_exactly_what_they_give_one_by_one(build, readout):
    engine = build(cached_model("llama"), PREFIX, READOUTS[readout])
    lengths = [[40], [31, 30, 30], [18] * 5, N_TOKENS, [9, 4, 4], [1, 1]]
    buckets = [bucket_of(n_tokens, n_shared, seed) for n_shared in N_SHARED for seed, n_tokens in enumerate(lengths)]
    with ThreadPoolExecutor(1, initializer=use_one_thread) as one, default_threads_kept():
        expected = [*one.map(engine.score, buckets)]
    with ThreadPoolExecutor(4, initializer=use_one_thread) as several, default_threads_kept():
        for scores, right in zip(several.map(engine.score, buckets * 4), expected * 4, strict=True):
            np.testing.assert_array_equal(scores, right)


def test_a_model_folder_loads_as_the_model_that_was_saved(tiny_model_folder):
    loaded, bucket = load_model(str(tiny_model_folder), device="cpu"), bucket_of(N_TOKENS, 12)
    made = tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))
    assert loaded.tokenizer.chat_template == made.tokenizer.chat_template
    assert loaded.tokenizer.added_tokens_decoder == made.tokenizer.added_tokens_decoder
    assert (loaded.device, loaded.dtype) == (made.device, made.dtype)
    assert_same(reference(loaded, TREES["sequence"], bucket), reference(made, TREES["sequence"], bucket), "loaded")


# ------------------------------------------------------------------------------------------------ choosing an engine

PROBE = bucket_of([14, 6, 2], 12)


def off_by(error: float, build: Build) -> Build:
    """An engine with one edge of one row off by so much."""

    class Wrong(build):
        def score(self, bucket: Bucket) -> NDArray[np.float32]:
            scores = super().score(bucket).copy()
            scores[-1, -1] += error
            return scores

    return Wrong


# A family, the engine that ``auto`` takes for it, and the next one.
CHOICES = [("llama", "fused", "packed"), ("gemma3", "packed", "padded")]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_takes_the_fastest_engine_of_every_family(family, caplog):
    engine = choose_engine("auto", cached_model(family), PREFIX, TREES["sequence"], PROBE)
    assert engine.name == ("fused" if family in LLAMA_SHAPED else "packed")
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_auto_packs_a_llama_in_half_precision(dtype, caplog):
    assert choose_engine("auto", tiny_model("llama", dtype=dtype), PREFIX, TREES["sequence"], PROBE).name == "packed"
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("kind", ["fused", "packed", "padded", "single"])
def test_the_engine_asked_for_is_the_engine_given(kind):
    assert choose_engine(kind, cached_model("llama"), PREFIX, TREES["sequence"], PROBE).name == kind


@pytest.mark.parametrize("family", UNPACKABLE)
def test_the_packed_engine_refuses_models_without_the_attention_interface(family):
    with pytest.raises(ValueError, match="attention interface"):
        PackedEngine(cached_model(family), PREFIX, TREES["sequence"])


@pytest.mark.parametrize(
    ("family", "falls_back_to", "n_warnings"), [("bloom", "padded", 1), ("falcon", "padded", 1), ("mamba", "single", 2)]
)
def test_auto_falls_back_with_a_warning(family, falls_back_to, n_warnings, caplog):
    model = cached_model(family)
    engine = choose_engine("auto", model, PREFIX, TREES["sequence"], PROBE)
    assert engine.name == falls_back_to
    warnings = warnings_of(caplog)
    assert len(warnings) == n_warnings
    assert "packed" in warnings[0]
    assert all(model.name in warning for warning in warnings)
    assert_same(engine.score(PROBE), reference(model, TREES["sequence"], PROBE), family)


@pytest.mark.parametrize(
    ("family", "kind"), [("bloom", "packed"), ("falcon", "packed"), ("mamba", "packed"), ("mamba", "padded")]
)
def test_an_engine_asked_for_by_name_that_does_not_fit_is_an_error_with_the_way_out(family, kind):
    with pytest.raises(ModelError, match=f"the {kind} engine") as caught:
        choose_engine(kind, cached_model(family), PREFIX, TREES["sequence"], PROBE)
    assert repr(cached_model(family).name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--engine auto" in caught.value.hint


@pytest.mark.parametrize("error", [0.01, float("nan")])
@pytest.mark.parametrize(("family", "first", "second"), CHOICES)
def test_an_engine_that_is_wrong_in_one_number_is_rejected(family, first, second, error, monkeypatch, caplog):
    monkeypatch.setitem(ENGINES, first, off_by(error, ENGINES[first]))
    model = cached_model(family)
    assert choose_engine("auto", model, PREFIX, TREES["sequence"], PROBE).name == second
    assert len(warnings_of(caplog)) == 1
    with pytest.raises(ModelError, match="reference path"):
        choose_engine(first, model, PREFIX, TREES["sequence"], PROBE)


@pytest.mark.parametrize("error", [AssertionError, TypeError, IndexError, RuntimeError])
@pytest.mark.parametrize(("family", "first", "second"), CHOICES)
def test_an_engine_that_fails_is_passed_over_whatever_it_raises(family, first, second, error, monkeypatch):
    """Model code raises whatever it likes: XLM's raises AssertionError when its rows are padded."""

    class FailingEngine(ENGINES[first]):
        def score(self, bucket: Bucket) -> NDArray[np.float32]:
            raise error("not with this model")

    monkeypatch.setitem(ENGINES, first, FailingEngine)
    assert choose_engine("auto", cached_model(family), PREFIX, TREES["sequence"], PROBE).name == second


@pytest.mark.parametrize(("family", "first", "second"), CHOICES)
def test_an_engine_that_rounds_differently_is_accepted(family, first, second, monkeypatch):
    rounds = off_by(1e-5, ENGINES[first])
    monkeypatch.setitem(ENGINES, first, rounds)
    assert isinstance(choose_engine("auto", cached_model(family), PREFIX, TREES["sequence"], PROBE), rounds)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("MistralConfig", {"sliding_window": 32}),
        ("MistralConfig", {"sliding_window": 32, "layer_types": ["full_attention"] * 3}),
        ("LlamaConfig", {"sliding_window": 32}),
        ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}),
        ("Qwen3Config", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2, "head_dim": 8}),
        ("Gemma3TextConfig", {"sliding_window": 32, "head_dim": 8}),
        ("PhimoeConfig", {"sliding_window": 32, "num_local_experts": 2}),
        (
            "Qwen2MoeConfig",
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 9, "num_experts_per_tok": 1},
        ),
        ("Llama4TextConfig", {"attention_chunk_size": 32, "num_local_experts": 2, "head_dim": 8}),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    ],
    ids=["mistral", "mistral-full", "llama", "qwen2", "qwen3", "gemma3", "phimoe", "qwen2-moe", "llama4", "lfm2"],
)
def test_the_engine_chosen_on_short_rows_is_right_on_long_ones(config, changes):
    """Phimoe and Qwen2Moe give their window, Llama 4 its chunks, to the mask and not to the attention function.

    Llama has no window, nor Mistral kinds of layers, even where the configuration says so. Rows of the start-up check
    are shorter and agree; longer ones were wrong, without a word.
    """
    model = tiny_model_of(getattr(transformers, config)(**SIZES | changes))
    tree, long_rows = TREES["sequence"], bucket_of([70, 41, 20], 12)
    engine = choose_engine("auto", model, PREFIX, tree, bucket_of([9, 4, 2], 12))
    assert_same(engine.score(long_rows), reference(model, tree, long_rows), f"{config}, {engine.name}")


@pytest.mark.parametrize("engine", ["fused", "packed", "padded", "single"])
def test_the_longest_prompt_and_the_longest_label_fit_the_models_context_together(engine):
    """A prompt as long as the context left no position for the label behind it, and GPT-2 failed midway."""
    family, limit = ("llama", "max_position_embeddings") if engine == "fused" else ("gpt2", "n_positions")
    model = tiny_model(family, tokenizer=tiny_tokenizer("chatml"), **{limit: 256})
    task = replace(builtin_task(), scoring="sequence", labels=(("a longer label", ""), ("a", "")), answers=())
    stage = build_stage(task, model, Settings(engine=engine))
    texts = stage.encoder.encode(pl.DataFrame({"text": ["x" * n + "\tx" * 200 for n in range(4)]}))
    assert texts["truncated"].all()
    assert np.isfinite(stage.score_texts(texts, RunStats())).all()


LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LONG_ROPE["original_max_position_embeddings"] = 32


def test_prompts_are_kept_to_the_lengths_whose_angles_do_not_depend_on_other_rows():
    """Phi-3-128k turns all rows of a pass by other angles when one is longer than it was first trained for."""
    model = tiny_model("phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=32)
    tree, bucket = TREES["sequence"], bucket_of([min(70, model.max_context - 16), 9], 12)
    scores = PackedEngine(model, PREFIX, tree).score(bucket)
    assert_same(scores, reference(model, tree, bucket), f"rows of up to {bucket.n_tokens.max()} tokens")


# ------------------------------------------------------------------------------------------------ would it be noticed?


def wrong_by(monkeypatch: pytest.MonkeyPatch, family: str, change: object) -> float:
    """How far a packed engine is off whose layouts are changed."""
    monkeypatch.setattr(packed, "pack", lambda *args: change(pack(*args)))
    model, tree, bucket = cached_model(family), TREES["sequence"], bucket_of(N_TOKENS, 12)
    return largest(PackedEngine(model, PREFIX, tree).score(bucket), reference(model, tree, bucket))


def plain_causal(layout: PackedLayout) -> PackedLayout:
    return replace(layout, tree_sees=torch.ones_like(layout.tree_sees).tril())


def positions_one_late(layout: PackedLayout) -> PackedLayout:
    return replace(layout, position_ids=layout.position_ids + 1)


def nodes_in_a_line(layout: PackedLayout) -> PackedLayout:
    """Positions as if the fed nodes stood one behind the other."""
    n_nodes, rows = TREES["sequence"].n_nodes, np.cumsum(np.array(N_TOKENS) + TREES["sequence"].n_nodes)
    positions = layout.position_ids.clone()
    for end, own in zip(rows, N_TOKENS, strict=True):
        positions[0, end - n_nodes : end] = 12 + own + torch.arange(n_nodes)
    return replace(layout, position_ids=positions)


def padding_is_seen(layout: PackedLayout) -> PackedLayout:
    return replace(layout, n_pad=torch.zeros_like(layout.n_pad))


def prefix_lacks_its_last_token(layout: PackedLayout) -> PackedLayout:
    return replace(layout, n_prefix=layout.n_prefix - 1)


@pytest.mark.parametrize(
    "change",
    [plain_causal, positions_one_late, nodes_in_a_line, padding_is_seen, prefix_lacks_its_last_token],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_the_oracle_notices_a_wrong_layout(family, change, monkeypatch):
    assert wrong_by(monkeypatch, family, lambda layout: layout) < EXACT
    difference = wrong_by(monkeypatch, family, change)
    assert difference > WRONG, f"{family}: {change.__name__} makes a difference of {difference:.2g} only"


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_the_oracle_notices_a_sliding_window_that_is_ignored(family, monkeypatch):
    mask = attention.PackedContext.mask
    monkeypatch.setattr(attention.PackedContext, "mask", lambda context, sliding_window: mask(context, None))
    difference = wrong_by(monkeypatch, family, lambda layout: layout)
    assert difference > WRONG, f"{family}: without its window it differs by {difference:.2g} only"


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_the_oracle_notices_a_sliding_window_that_is_one_too_wide(family, monkeypatch):
    mask = attention.PackedContext.mask

    def wider(context: attention.PackedContext, sliding_window: int | None) -> torch.Tensor:
        return mask(context, sliding_window and sliding_window + 1)

    monkeypatch.setattr(attention.PackedContext, "mask", wider)
    difference = wrong_by(monkeypatch, family, lambda layout: layout)
    assert difference > WRONG, f"{family}: with a wider window it differs by {difference:.2g} only"


@pytest.mark.parametrize(("family", "argument"), [("gemma2", "softcap"), ("granite", "scaling")])
def test_the_oracle_notices_an_argument_of_attention_that_is_ignored(family, argument, monkeypatch):
    attend = attention.packed_attention
    monkeypatch.setattr(
        attention, "packed_attention", lambda *args, **options: attend(*args, **options | {argument: None})
    )
    difference = wrong_by(monkeypatch, family, lambda layout: layout)
    monkeypatch.undo()
    attention.register()
    assert difference > WRONG, f"{family}: without {argument} it differs by {difference:.2g} only"


def test_the_check_at_start_up_does_not_grow_with_the_labels():
    """With 200 labels of several tokens it ran the reference path 600 times, and a tiny model took a minute to load."""
    model = tiny_model("llama")
    passes = []
    model.lm.register_forward_hook(lambda *_: passes.append(1))
    tree = build_tree([[first, second, EOT] for first in range(5, 15) for second in range(5, 15)])
    assert choose_engine("auto", model, PREFIX, tree, PROBE).name == "fused"
    assert len(passes) <= 12 * len(PROBE.rows), f"{len(passes)} passes for {len(tree.label_edges)} labels"
