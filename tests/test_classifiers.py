"""Models with a head for classes: fused = packed = padded = single = plain transformers, for decoders and encoders."""

import logging
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pipeline.buckets import cut_buckets
from pipeline.classes import class_scorer
from pipeline.continuations import build_tree
from pipeline.engine.load import load_model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import choose_engine
from pipeline.engine.single import SingleEngine
from pipeline.errors import ModelError
from pipeline.passes import run_passes
from pipeline.plain_prompt import build_classifier_encoder
from pipeline.readout import ClassLogits, HiddenStates
from pipeline.scoring import probabilities
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
    own_tokens,
    pick,
    reference,
)
from tests.tiny import SENTENCES, WINDOW, save_tiny_model
from tests.tiny_classifiers import (
    CLASSES,
    CLASSIFIERS,
    DECODERS,
    ENCODERS,
    UNPACKABLE_DECODERS,
    save_tiny_classifier,
    tiny_classifier,
)

LOGITS = ClassLogits()
PROBE = bucket_of([14, 6, 2], 12)
MULTI_LABEL = "multi_label_classification"

cached_classifier = cache(tiny_classifier)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_the_reference_path_is_what_plain_transformers_says(family):
    model, bucket = cached_classifier(family), bucket_of([9, 3, 1], 12)
    read = reference(model, LOGITS, bucket)
    assert read.shape == (3, len(CLASSES))
    for row, own in enumerate(own_tokens(bucket)):
        with torch.no_grad():
            plain = model.lm(torch.tensor([[*PREFIX, *own]])).logits[0].numpy()
        assert_same(read[row], plain, f"{family}, row {row}")


@pytest.mark.parametrize("n_shared", N_SHARED)
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_every_engine_agrees_with_one_row_at_a_time(family, n_shared):
    model, bucket = cached_classifier(family), bucket_of(N_TOKENS, n_shared)
    expected = reference(model, LOGITS, bucket)
    for build in fast_engines(family) if family in DECODERS else [PaddedEngine]:
        assert_same(build(model, PREFIX, LOGITS).score(bucket), expected, f"{build.name} {family}")


@settings(max_examples=20)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "gemma3", "gpt2", "roberta", "modernbert"]),
    n_tokens=st.lists(st.integers(1, 3 * WINDOW), min_size=1, max_size=5),
    n_shared=st.integers(0, len(PREFIX)),
    seed=st.integers(0, 1000),
)
def test_engines_agree_whatever_the_lengths(family, n_tokens, n_shared, seed):
    model, bucket = cached_classifier(family), bucket_of(n_tokens, n_shared, seed)
    expected = reference(model, LOGITS, bucket)
    for build in fast_engines(family) if family in DECODERS else [PaddedEngine]:
        assert_same(build(model, PREFIX, LOGITS).score(bucket), expected, f"{build.name} {family}")


@pytest.mark.parametrize("family", ["qwen2", "bert"])
def test_a_rows_logits_do_not_depend_on_its_company(family):
    engine = choose_engine("auto", cached_classifier(family), PREFIX, LOGITS, PROBE)
    bucket = bucket_of(N_TOKENS, 12)
    order = np.random.default_rng(2).permutation(len(N_TOKENS))
    apart = np.concatenate([engine.score(pick(bucket, group.tolist())) for group in np.split(order, [1, 4])])
    assert_same(apart, engine.score(bucket)[order], f"{engine.name} {family}")


@pytest.mark.parametrize(
    ("families", "name", "n_warnings"),
    [
        (LLAMA_SHAPED, "fused", 0),
        ({*DECODERS} - {*LLAMA_SHAPED}, "packed", 0),
        (UNPACKABLE_DECODERS, "padded", 1),
        (ENCODERS, "padded", 0),
    ],
    ids=["llama-shaped", "other decoders", "unpackable", "encoders"],
)
def test_auto_takes_the_fastest_engine_that_fits(families, name, n_warnings, caplog):
    """That an encoder cannot be packed is no news, and no warning."""
    for family in families:
        assert choose_engine("auto", cached_classifier(family), PREFIX, LOGITS, PROBE).name == name
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == n_warnings


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_half_precision_passes_the_check_at_start_up(family, dtype, caplog):
    engine = choose_engine("auto", tiny_classifier(family, dtype=dtype), PREFIX, LOGITS, PROBE)
    assert engine.name == ("packed" if family in DECODERS else "padded")
    assert caplog.records == []


def test_the_packed_engine_refuses_an_encoder():
    with pytest.raises(ValueError, match="not causal"):
        PackedEngine(cached_classifier("bert"), (), LOGITS)
    with pytest.raises(ModelError, match="the packed engine does not fit"):
        choose_engine("packed", cached_classifier("bert"), (), LOGITS, bucket_of([9, 4], 0))


def test_an_encoder_gives_nothing_but_its_classes():
    with pytest.raises(ValueError, match="nothing but its classes"):
        PaddedEngine(cached_classifier("bert"), (), HiddenStates())
    with pytest.raises(ModelError, match="cannot be run"):
        choose_engine("auto", cached_classifier("bert"), (), build_tree([[5, 2], [6, 2]]), bucket_of([9, 4], 0))


def test_a_decoder_without_a_padding_token_is_read_at_its_last_token():
    """transformers refuses to run two such rows at once."""
    model, bucket = tiny_classifier("llama", pad_token_id=None), bucket_of(N_TOKENS, 12)
    for build in fast_engines("llama"):
        assert_same(build(model, PREFIX, LOGITS).score(bucket), reference(model, LOGITS, bucket), build.name)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_oracle_notices_padding_that_an_encoder_sees(family, monkeypatch):
    model, bucket = tiny_classifier(family), bucket_of(N_TOKENS, 0)
    expected, forward = reference(model, LOGITS, bucket), model.lm.forward
    monkeypatch.setattr(model.lm, "forward", lambda input_ids, attention_mask: forward(input_ids=input_ids))
    assert largest(PaddedEngine(model, (), LOGITS).score(bucket), expected) > WRONG


# ------------------------------------------------------------------------------------------------ loading


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "roberta"])
def test_a_folder_with_a_head_for_classes_loads_as_such(family, tmp_path):
    loaded = load_model(str(save_tiny_classifier(tmp_path / family, family)), device="cpu")
    assert loaded.class_names == CLASSES
    assert not loaded.multi_label
    assert loaded.is_causal == (family in DECODERS)
    made = tiny_classifier(family, tokenizer=loaded.tokenizer)
    bucket = bucket_of([9, 4], 0)
    assert_same(SingleEngine(loaded, (), LOGITS).score(bucket), SingleEngine(made, (), LOGITS).score(bucket), family)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "roberta", "modernbert"])
def test_a_text_has_the_probabilities_of_transformers_own_pipeline(family, tmp_path):
    model = load_model(str(save_tiny_classifier(tmp_path / family, family)), device="cpu")
    task, scorer = class_scorer(builtin_task(), model.class_names or (), model.multi_label)
    encoder = build_classifier_encoder(model.tokenizer, max_tokens=200, causal=model.is_causal)
    texts = [*SENTENCES, "x"]
    frame = encoder.encode(pl.DataFrame({"text": texts}))
    (probe, *_) = cut_buckets(frame[:3], max_batch_tokens=1 << 20)
    engine = choose_engine("auto", model, encoder.prefix_ids, scorer.readout, probe)
    pipe = transformers.pipeline("text-classification", model=model.lm, tokenizer=model.tokenizer, top_k=None)
    for rows, raw in run_passes(engine, frame, RunStats(), max_batch_tokens=256, n_nodes=0):
        ours = probabilities(scorer.scores(raw), np.zeros(len(CLASSES)), multi=False)
        for row, own in zip(rows, ours, strict=True):
            (answers,) = pipe([texts[row]])
            by_name = {answer["label"]: answer["score"] for answer in answers}
            expected = [by_name[label] for label in task.label_names]
            assert np.abs(own - expected).max() < EXACT, f"{family}: {texts[row]!r}"


def test_a_causal_language_model_has_no_classes(tiny_model_folder):
    loaded = load_model(str(tiny_model_folder), device="cpu")
    assert loaded.class_names is None
    assert loaded.is_causal


def test_a_model_for_several_labels_a_row_says_so(tmp_path):
    folder = save_tiny_classifier(tmp_path / "many", "bert", problem_type=MULTI_LABEL)
    assert load_model(str(folder), device="cpu").multi_label


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {0: "score"}}, "gives one number for a text"),
        ({"problem_type": "regression"}, "gives 3 numbers for a text"),
        ({"id2label": {0: "a", 1: "b", 2: "a"}}, "two classes with the name 'a'"),
    ],
)
def test_a_model_without_classes_to_choose_from_is_refused(changes, message, tmp_path):
    folder = save_tiny_classifier(tmp_path / "model", "bert", **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(folder), device="cpu")
    assert repr(str(folder)) in str(caught.value)
    assert caught.value.hint


def test_a_head_that_the_checkpoint_lacks_is_not_made_up(tmp_path):
    """transformers fills weights that are missing with random numbers, and only warns."""
    folder = save_tiny_classifier(tmp_path / "model", "bert")
    weights = load_file(folder / "model.safetensors")
    save_file({name: weights[name] for name in weights if "classifier" not in name}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"has no weights for classifier\.bias, classifier\.weight"):
        load_model(str(folder), device="cpu")


def test_a_causal_checkpoint_without_an_output_matrix_is_refused(tmp_path):
    """A base model saved without it was given a random one, and labelled every row with that."""
    folder = save_tiny_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"has no weights for lm_head\.weight"):
        load_model(str(folder), device="cpu")


def test_the_digest_covers_the_head_and_the_names_of_its_classes():
    model, other = tiny_classifier("llama"), tiny_classifier("llama")
    assert model.digest == other.digest
    other = tiny_classifier("llama")
    other.lm.score.weight.data[0, 0] += 1
    assert model.digest != other.digest
    assert model.digest != tiny_classifier("llama", id2label={0: "a", 1: "b", 2: "c"}).digest


@pytest.mark.parametrize(("family", "context"), [("bert", 512), ("roberta", 512), ("distilbert", 512), ("llama", 2048)])
def test_the_context_is_what_the_model_has_places_for(family, context):
    """RoBERTa has a table of 514 places, and its first token stands in the third."""
    model = cached_classifier(family)
    assert model.max_context == context
    longest = bucket_of([model.max_context], 0)
    assert np.isfinite(SingleEngine(model, (), LOGITS).score(longest)).all()
    if family != "llama":  # turns by angles, which do not end
        with pytest.raises((IndexError, RuntimeError)):
            SingleEngine(model, (), LOGITS).score(bucket_of([model.max_context + 1], 0))


def test_a_tokenizer_that_knows_a_smaller_limit_is_believed(tmp_path):
    folder = save_tiny_classifier(tmp_path / "bert", "bert", max_position_embeddings=600)
    assert load_model(str(folder), device="cpu").max_context == 512
