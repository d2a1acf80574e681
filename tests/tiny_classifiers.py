"""Tiny real models with a head for classes, as ``tests.tiny`` makes causal ones, and a tokenizer for encoders."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pipeline.engine.model import Model
from tests.tiny import CONTEXT, FAMILIES, SENTENCES, SIZES, UNPACKABLE, VOCAB_SIZE, tiny_tokenizer, with_random_weights

CLASSES = ("complaint", "question", "praise")
ENCODER_SIZES: dict[str, Any] = {
    key: SIZES[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "pad_token_id")
}
# A head on the last token of a causal model.
DECODERS = {family: FAMILIES[family] for family in ("llama", "qwen2", "qwen3", "mistral", "gemma3", "phi3", "gpt2")}
# The same without transformers' attention interface.
UNPACKABLE_DECODERS = {"bloom": UNPACKABLE["bloom"]}
# Tokens see those behind them.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", ENCODER_SIZES | {"max_position_embeddings": 512}),
    "distilbert": ("DistilBertConfig", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "pad_token_id": 0}),
    # positions are counted from behind the padding's, by which tokens are not padding
    "roberta": ("RobertaConfig", ENCODER_SIZES | {"max_position_embeddings": 514, "pad_token_id": 1}),
    "modernbert": (
        "ModernBertConfig",
        ENCODER_SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2, "max_position_embeddings": CONTEXT},
    ),
}
CLASSIFIERS = DECODERS | UNPACKABLE_DECODERS | ENCODERS


def tiny_classifier(family: str, *, tokenizer: Any = None, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    """A model with a head for ``CLASSES`` and random weights, the same on every call.

    Args:
        family: a key of ``CLASSIFIERS``.
        tokenizer: its tokenizer, which gives the vocabulary; None for ``VOCAB_SIZE`` bare token ids.
        dtype: type of the weights.
        changes: of the configuration.
    """
    kind, values = CLASSIFIERS[family]
    vocabulary = {"vocab_size": VOCAB_SIZE if tokenizer is None else len(tokenizer)}
    config = getattr(transformers, kind)(
        **{**values, "id2label": dict(enumerate(CLASSES)), "label2id": {}, **vocabulary, **changes}
    )
    lm = with_random_weights(transformers.AutoModelForSequenceClassification, config).to(dtype)
    multi_label = config.problem_type == "multi_label_classification"
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    return Model(lm, tokenizer, torch.device("cpu"), dtype, f"tiny {family}", names, multi_label)


def save_tiny_classifier(folder: Path, family: str, **changes: Any) -> Path:
    """Write a classifier with its tokenizer as a folder that ``--model`` reads; returns the folder."""
    words = encoder_tokenizer() if family in ENCODERS else tiny_tokenizer("without-template")
    tiny_classifier(family, tokenizer=words, **changes).lm.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def encoder_tokenizer() -> PreTrainedTokenizerFast:
    """As BERT's: word pieces of lower-case text, between [CLS] and [SEP]."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )
