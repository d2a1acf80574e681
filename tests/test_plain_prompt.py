"""Prompts of classifiers: bare texts between the tokenizer's own special tokens."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from pipeline.errors import ModelError, UsageError
from pipeline.plain_prompt import build_classifier_encoder
from pipeline.prompt import PROBES, PromptEncoder
from tests.tiny import tiny_tokenizer
from tests.tiny_classifiers import encoder_tokenizer

WORDPIECE = encoder_tokenizer()


def prompts(encoder: PromptEncoder, texts: list[str]) -> list[list[int]]:
    encoded = encoder.encode(pl.DataFrame({"text": texts}))
    shared = [list(encoder.prefix_ids[:n_shared]) for n_shared in encoded["n_shared"]]
    return [before + own for before, own in zip(shared, encoded["token_ids"].to_list(), strict=True)]


@pytest.mark.parametrize("kind", ["chatml", "unk-is-control", "without-template", "rstrip", "unigram", "prepend-first"])
def test_a_text_has_the_tokens_that_a_decoder_was_trained_on(kind):
    tokenizer = tiny_tokenizer(kind)
    encoder = build_classifier_encoder(tokenizer, max_tokens=400, causal=True)
    assert prompts(encoder, list(PROBES)) == [tokenizer(text)["input_ids"] for text in PROBES]


def test_a_text_has_the_tokens_that_an_encoder_was_trained_on():
    encoder = build_classifier_encoder(WORDPIECE, max_tokens=400, causal=False)
    assert prompts(encoder, list(PROBES)) == [WORDPIECE(text)["input_ids"] for text in PROBES]
    assert encoder.chat.whole("text") == "[CLS]text[SEP]"


def test_encoders_share_no_prefix_and_decoders_what_stands_before_the_text():
    """What an encoder makes of its first token depends on all the others."""
    frame = pl.DataFrame({"text": ["The app crashes.", "x"]})
    encoder = build_classifier_encoder(WORDPIECE, max_tokens=400, causal=False)
    assert encoder.prefix_ids == ()
    assert encoder.encode(frame)["n_shared"].to_list() == [0, 0]
    tokenizer = tiny_tokenizer("without-template")
    decoder = build_classifier_encoder(tokenizer, max_tokens=400, causal=True)
    assert decoder.prefix_ids == (tokenizer.bos_token_id,)
    assert decoder.encode(frame)["n_shared"].to_list() == [1, 1]


@given(text=st.text(max_size=30), control=st.sampled_from(["[CLS]", "[SEP]", "[PAD]", "[MASK]"]), at=st.integers(0, 30))
def test_no_text_reaches_a_special_token(text, control, at):
    encoder = build_classifier_encoder(WORDPIECE, max_tokens=400, causal=False)
    (first, *own, last), *_ = prompts(encoder, [text[:at] + control + text[at:]])
    assert (first, last) == (WORDPIECE.cls_token_id, WORDPIECE.sep_token_id)
    assert not {*own} & {*WORDPIECE.all_special_ids} - {WORDPIECE.unk_token_id}


@pytest.mark.parametrize(("kind", "causal"), [("chatml", True), ("without-template", True), ("wordpiece", False)])
def test_a_text_without_tokens_is_one_token_at_least(kind, causal):
    """Content-free texts are scored too, and a pass over nothing fails."""
    tokenizer = WORDPIECE if kind == "wordpiece" else tiny_tokenizer(kind)
    encoder = build_classifier_encoder(tokenizer, max_tokens=400, causal=causal)
    encoded = encoder.encode(pl.DataFrame({"text": ["", "\x00"]}))
    assert encoded["n_tokens"].min() >= 1
    (token, *_) = encoded["token_ids"][0].to_list()
    assert token in tokenizer.all_special_ids


def test_an_over_long_text_is_cut_in_the_middle_and_keeps_its_special_tokens():
    encoder = build_classifier_encoder(WORDPIECE, max_tokens=32, causal=False)
    encoded = encoder.encode(pl.DataFrame({"text": ["begin " + "refund " * 200 + " end", "short"]}))
    assert encoded["truncated"].to_list() == [True, False]
    token_ids = encoded["token_ids"][0].to_list()
    assert len(token_ids) <= 32
    assert (token_ids[0], token_ids[-1]) == (WORDPIECE.cls_token_id, WORDPIECE.sep_token_id)


def test_padding_that_a_tokenizer_puts_behind_a_text_is_left_out_for_decoders():
    """transformers reads the last token that is not padding, and end of text is padding to many decoders."""
    tokenizer = tiny_tokenizer("without-template")
    end = ("<|end_of_text|>", tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end_of_text|>", special_tokens=[end]
    )
    assert tokenizer("x")["input_ids"][-1] == tokenizer.eos_token_id
    kept = build_classifier_encoder(tokenizer, max_tokens=400, causal=True)
    assert kept.tail_ids == (tokenizer.eos_token_id,)
    tokenizer.pad_token = "<|end_of_text|>"
    assert build_classifier_encoder(tokenizer, max_tokens=400, causal=True).tail_ids == ()


def test_a_limit_without_room_for_text_is_refused():
    with pytest.raises(UsageError, match="--max-tokens 8 leaves no room for text"):
        build_classifier_encoder(WORDPIECE, max_tokens=8, causal=False)


def test_a_tokenizer_that_needs_its_special_tokens_within_a_text_is_refused():
    tokenizer = encoder_tokenizer()
    tokenizer.add_tokens(["charged"])  # an added word that is no special token, but as unreachable as one
    with pytest.raises(ModelError, match="gives a text other tokens"):
        build_classifier_encoder(tokenizer, max_tokens=400, causal=False)
