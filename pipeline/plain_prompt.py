"""The prompt of a model with a head for classes: a row's bare text between the tokenizer's own special tokens.

There is no chat and nothing is asked: such a model was trained on texts alone. Rows are data here too: no text can
reach a special token.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
from tokenizers import Tokenizer

from pipeline.chat import Chat, control_token_ids, plain_tokenizer
from pipeline.errors import ModelError
from pipeline.prompt import PROBES, PromptEncoder

NO_ANSWER = -1  # no token ends an answer, where none is given
ANY_LENGTH = 1 << 20  # of the texts that the tokenizer is tried on


def build_classifier_encoder(tokenizer: Any, *, max_tokens: int, causal: bool) -> PromptEncoder:
    """Encode texts as a classifier was trained on them.

    Args:
        tokenizer: a transformers fast tokenizer.
        max_tokens: most tokens of a whole prompt, special tokens included.
        causal: whether tokens see only those before them, so that the special tokens in front can be shared, and
            padding that the tokenizer puts at the end of a text is not read.

    Raises:
        UsageError: the limit leaves no room for text.
        ModelError: the tokenizer gives texts other tokens than these rules say.
    """
    before, after = _special_tokens(tokenizer)
    while causal and after and after[-1] == tokenizer.pad_token_id:
        after = after[:-1]
    added = {token: added.content for token, added in tokenizer.added_tokens_decoder.items()}
    control = {token: added[token] for token in control_token_ids(tokenizer)}
    unknown = () if tokenizer.unk_token is None else (tokenizer.unk_token,)
    # a copy: the tokenizer's own may cut or fill up what it encodes
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    encoder = PromptEncoder(
        chat=Chat(
            head="".join(tokenizer.convert_ids_to_tokens(before)),
            left="",
            right="",
            tail="".join(tokenizer.convert_ids_to_tokens(after)),
            bos_ids=(),
            end_of_turn=NO_ANSWER,
        ),
        prefix_ids=before if causal else (),
        head_ids=before,
        tail_ids=after,
        max_tokens=ANY_LENGTH,
        exact=True,
        backend=backend,
        plain=plain_tokenizer(tokenizer),
        control=control,
        spellings=(*control.values(), *unknown),
        empty_ids=() if before or after else _filler(tokenizer),
    )
    for text, prompt in zip(PROBES, _prompts(encoder, PROBES), strict=True):
        whole = tokenizer(text, add_special_tokens=True)["input_ids"]
        if prompt != whole[: len(prompt)] or {*whole[len(prompt) :]} - {tokenizer.pad_token_id}:
            raise ModelError(
                "the model's tokenizer gives a text other tokens once it recognises no special tokens",
                "use a model with a plain tokenizer",
            )
    return encoder.limited(max_tokens)


def _prompts(encoder: PromptEncoder, texts: Sequence[str]) -> list[list[int]]:
    """Whole prompts' tokens."""
    encoded = encoder.encode(pl.DataFrame({"text": texts}))
    shared = [list(encoder.prefix_ids[:n_shared]) for n_shared in encoded["n_shared"]]
    return [before + own for before, own in zip(shared, encoded["token_ids"].to_list(), strict=True)]


def _special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer puts before and behind every text."""
    whole = tuple(tokenizer("x", add_special_tokens=True)["input_ids"])
    own = tuple(tokenizer("x", add_special_tokens=False)["input_ids"])
    for start in range(len(whole) - len(own) + 1):
        if whole[start : start + len(own)] == own:
            return whole[:start], whole[start + len(own) :]
    raise ModelError("the model's tokenizer changes a text's tokens beside adding some", "use another model")


def _filler(tokenizer: Any) -> tuple[int, ...]:
    """A token for texts without any, where no special token stands beside them: a model cannot read nothing."""
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, 0)
    return (next(token for token in ends if token is not None),)
