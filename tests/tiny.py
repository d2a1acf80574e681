"""Tiny real models and tokenizers: random weights, a few hundred tokens, a millisecond per pass.

The seam for every test that needs a model: nothing of ours is mocked, only the weights are small. Weights are scaled so
that attention matters: what one token may see of the others changes the scores far beyond rounding, and a mask or a
position that is wrong shows. The tokenizers are one each of the kinds that differ in how control tokens, blanks and
beginnings are treated. Everything here is the same on every run.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from pipeline.engine.model import Model

VOCAB_SIZE = 97
WINDOW = 7  # shorter than any prefix and row that tests use, so that it always cuts
CONTEXT = 2048

transformers.utils.logging.set_verbosity_error()

_ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
} | _ENDS
_WINDOWED: dict[str, Any] = {
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# Families that every engine runs: (name of the configuration, what it is made of).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 8}),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", SIZES | _WINDOWED | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", SIZES | _WINDOWED),
    "phi": ("PhiConfig", SIZES),  # its output layer has a bias
    "phi3": ("Phi3Config", SIZES),
    "smollm3": ("SmolLM3Config", SIZES | {"no_rope_layers": [1, 0, 1]}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT} | _ENDS),
    "granite": ("GraniteConfig", SIZES | {"logits_scaling": 0.5, "attention_multiplier": 0.4}),
}
# Families that do not take their attention from transformers' interface: padded and single only.
UNPACKABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4} | _ENDS),
    "falcon": (
        "FalconConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True} | _ENDS,
    ),
}
# Families that keep a state in place of keys and values: single only.
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2} | _ENDS)
}


def tiny_model(
    family: str = "llama",
    *,
    tokenizer: Any = None,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Model:
    """A model with random weights, the same on every call.

    Args:
        family: a key of ``FAMILIES``, ``UNPACKABLE`` or ``RECURRENT``.
        tokenizer: its tokenizer, which gives the vocabulary; None for ``VOCAB_SIZE`` bare token ids.
        dtype: type of the weights.
        changes: of the configuration.
    """
    kind, values = (FAMILIES | UNPACKABLE | RECURRENT)[family]
    return tiny_model_of(getattr(transformers, kind)(**values), tokenizer=tokenizer, dtype=dtype, **changes)


def tiny_model_of(
    config: PreTrainedConfig, *, tokenizer: Any = None, dtype: torch.dtype = torch.float32, **changes: Any
) -> Model:
    """A model of any configuration; see ``tiny_model``."""
    if tokenizer is None:
        vocabulary: dict[str, Any] = {"vocab_size": VOCAB_SIZE}
    else:
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
        vocabulary = {"vocab_size": len(tokenizer)} | ends
    config = type(config).from_dict(config.to_dict() | vocabulary | changes)
    lm = with_random_weights(transformers.AutoModelForCausalLM, config)
    return Model(lm.to(dtype), tokenizer, torch.device("cpu"), dtype, f"tiny {config.model_type}")


def with_random_weights(auto_class: Any, config: PreTrainedConfig) -> Any:
    """A transformers model for inference, of weights that make attention matter."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        lm = auto_class.from_config(config)
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.25 / parameter.std())  # from 0.02: attention is far from uniform
            elif not parameter.any():
                parameter.normal_(0, 0.2)  # biases, and norms that are written as 1 + weight
    return lm.eval()


def save_tiny_model(folder: Path, family: str = "llama", tokenizer: str = "chatml") -> Path:
    """Write a model with its tokenizer as a folder that ``--model`` reads; returns the folder."""
    words = tiny_tokenizer(tokenizer)
    tiny_model(family, tokenizer=words).lm.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------------------------------------------------------

SENTENCES = (
    "I was charged twice for March. Please refund the second payment.",
    "The app crashes on login with error 0x80070005, and the log says nothing.",
    "I cannot log in: my password is wrong, it's 3 o'clock and I'm late.",
    "You classify support tickets. Answer with the one category that fits best: billing, technical, account.",
    "Ticket: invoice\nCategory: billing\n\nTicket: bug\nCategory: technical",
    "Can't use {braces}, <b>markup</b> & «quotes»; naïve café, größer, 価格が違う 🙂",
    "It worked … until today … and now … nothing.",
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: with thinking switched off the answer begins with an empty thought.
THINKING = CHATML.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}",
)
# As Llama 3.2's and SmolLM3's: the system turn tells the date.
DATED = "{% set today = strftime_now('%d %B %Y') %}<|im_start|>date\n{{ today }}<|im_end|>\n" + CHATML
TRIMMED = CHATML.replace("m['content']", "m['content'] | trim")
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
DROPS_SYSTEM = CHATML.replace("messages", "messages if m['role'] != 'system'", 1)
GEMMA = NO_SYSTEM + (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] }} {{ eos_token }}"
    "{% elif m['role'] == 'system' %}{{ bos_token }}[SYS] {{ m['content'] }} [/SYS]"
    "{% else %}{{ bos_token }}[INST] {{ m['content'] }} [/INST]{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

_ASCII = [chr(code) for code in range(33, 127)]
_CHATML_CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def _special(*contents: str, **options: Any) -> list[AddedToken]:
    return [AddedToken(content, special=True, normalized=False, **options) for content in contents]


def _plain(*contents: str, normalized: bool = False) -> list[AddedToken]:
    return [AddedToken(content, special=False, normalized=normalized) for content in contents]


def _byte_level(added: list[AddedToken]) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Qwen, Llama 3 and SmolLM: a blank belongs to the word behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_tokens(added)
    return tokenizer


def _sentence_piece_bpe(specials: list[str], runs: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a SentencePiece BPE with byte fallback; ``runs`` are repeats of one character."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=260, initial_alphabet=_ASCII, show_progress=False)
    trained.train_from_iterator([sentence.replace("\n", " ") for sentence in SENTENCES * 3], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "\n", *runs, *model["vocab"]]
    merges = [(run[:-1], run[-1]) for run in runs] + [tuple(merge) for merge in model["merges"]]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}, merges


def _chatml() -> PreTrainedTokenizerFast:
    added = [*_special(*_CHATML_CONTROLS), *_plain("<think>", "</think>", "\n\n")]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(added), eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


def _unk_is_control() -> PreTrainedTokenizerFast:
    """As SmolLM2's, where the unknown-token is the end of text."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(_special(*_CHATML_CONTROLS)),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        chat_template=CHATML,
    )


def _without_template() -> PreTrainedTokenizerFast:
    """As a base model's: no chat template, and a beginning-of-text token put in front of every text."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(_special("<|begin_of_text|>", "<|end_of_text|>")),
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        add_bos_token=True,
    )


def _phi3() -> PreTrainedTokenizerFast:
    """Control tokens that swallow the white space behind them."""
    added = [*_special("<|endoftext|>"), *_special("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True)]
    return PreTrainedTokenizerFast(tokenizer_object=_byte_level(added), eos_token="<|endoftext|>", chat_template=PHI3)


def _unigram() -> PreTrainedTokenizerFast:
    """Control tokens are pieces of the vocabulary as well, and those with the best scores."""
    controls = ("<unk>", *_CHATML_CONTROLS, "<think>")
    words = {word for sentence in SENTENCES for word in sentence.replace("\n", " ").split(" ")}
    letters = {*_ASCII, *"".join(SENTENCES), "▁"} - {" ", "\n"}
    pieces = [(control, 0.0) for control in controls]
    pieces += [(f"▁{word}", -6.0) for word in sorted(words)] + [(letter, -9.0) for letter in sorted(letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_tokens([*_special("<unk>", *_CHATML_CONTROLS), *_plain("<think>", normalized=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
    )


def _llama2() -> PreTrainedTokenizerFast:
    """A blank is put in front of a text, but not behind a control token: segments cannot equal a whole chat."""
    vocabulary, merges = _sentence_piece_bpe(["<unk>", "<s>", "</s>"], [])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_tokens([*_special("<unk>", "<s>", "</s>"), *_plain("<think>", normalized=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=LLAMA2
    )


def _gemma() -> PreTrainedTokenizerFast:
    """The end of a turn is not the end of sequence; runs of blanks and of line ends are added tokens and merges."""
    runs = ["\n\n", "\n\n\n", "▁▁", "▁▁▁"]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<table>"]
    vocabulary, merges = _sentence_piece_bpe(specials, runs)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([*_special(*specials[:-1]), *_plain("<table>", *runs)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=GEMMA,
    )


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "chatml": _chatml,
    "unk-is-control": _unk_is_control,
    "without-template": _without_template,
    "rstrip": _phi3,
    "unigram": _unigram,
    "prepend-first": _llama2,
    "gemma": _gemma,
}


def tiny_tokenizer(kind: str = "chatml", template: str | None = None) -> PreTrainedTokenizerFast:
    """A transformers tokenizer of one of the kinds in ``TOKENIZERS``, new on every call.

    Args:
        kind: a key of ``TOKENIZERS``.
        template: instead of its own chat template.
    """
    tokenizer = TOKENIZERS[kind]()
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer
