"""From a row's text to its token ids: prompt segments, tokenization, lengths, middle-cut truncation.

A prompt is four pieces: head (everything up to the last control token before the text), left and right (fixed words
around the text) and tail (from the first control token after it). Head and tail are encoded once, control tokens
recognised. ``left + text + right`` is encoded per row by a tokenizer that knows no control tokens, so that no row can
reach one: rows are data, never instructions.

For texts without control tokens this equals encoding the whole chat at once; probe texts check that at start-up, and a
tokenizer that breaks it is fed whole chats (except for texts that spell a control token).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.buckets import length_window
from pipeline.chat import Chat, answer_ids, continuation_ids, control_token_ids, plain_tokenizer, render_chat
from pipeline.errors import UsageError
from pipeline.task import Task
from pipeline.text import cut_middle_chars

ELLIPSIS = " … "
# Texts beyond this many characters per allowed token are cut before they are tokenized; English has four to five.
MAX_CHARS_PER_TOKEN = 16
MIN_TEXT_TOKENS = 16
# Token ids pass through Python lists on their way to Arrow, and the tokenizer keeps a hundred bytes of each token.
ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20  # of text, beyond which there are fewer rows
# Beginnings that could merge with the words before the text, and endings that could merge with those after it.
PROBES = (
    "I was charged twice for March.",
    "naïve café, 価格が違う, 🙂👩‍💻",
    "1) error 0x80070005\n\n\tat line 12;  two  spaces",
    '"quoted" <b>markup</b> & {braces}',
    "'s",
    ".",
    "x",
)


@dataclass(frozen=True)
class PromptEncoder:
    """Turns texts into token ids behind a shared prefix.

    Attributes:
        chat: the rendered chat.
        prefix_ids: tokens common to every prompt, computed once by the engine.
        head_ids: tokens of the head, which no text can change: they end at a control token.
        tail_ids: tokens that end every prompt.
        max_tokens: most tokens of a whole prompt, prefix and tail included.
        exact: whether segments agreed with whole-chat encoding on all probe texts.
        backend: the tokenizer that recognises control tokens.
        plain: the tokenizer that does not.
        control: id and text of every token that no row may contain.
        spellings: texts that the backend may take for one added token, those of ``control`` among them.
        empty_ids: stand for a text without tokens, for prompts that have none of their own.
    """

    chat: Chat
    prefix_ids: tuple[int, ...]
    head_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]
    max_tokens: int
    exact: bool
    backend: Tokenizer
    plain: Tokenizer
    control: Mapping[int, str]
    spellings: tuple[str, ...]
    empty_ids: tuple[int, ...] = ()

    @property
    def n_head(self) -> int:
        """How many of the prefix's tokens no text can change."""
        return min(len(self.head_ids), len(self.prefix_ids))

    @property
    def max_chars(self) -> int:
        """Texts longer than this many characters are cut before they are tokenized."""
        return self.max_tokens * MAX_CHARS_PER_TOKEN

    def continuations(self, labels: Sequence[str], answer: str) -> list[tuple[int, ...]]:
        """Per label the tokens of its answer behind the task's ``answer``, end of turn included."""
        return [continuation_ids(label, self.chat, answer, self.plain) for label in labels]

    def yes_no(self, task: Task) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Per label the tokens of its question with yes, and with no, behind the task's ``answer``; no end of turn."""
        return [
            (answer_ids(yes, task.answer, self.plain), answer_ids(no, task.answer, self.plain))
            for yes, no in task.yes_no()
        ]

    def limited(self, max_tokens: int, *, context: str | None = None) -> "PromptEncoder":
        """The same with another limit.

        Args:
            max_tokens: most tokens of a whole prompt.
            context: what sets this limit, if it is the model and not the flag; for the message.

        Raises:
            UsageError: the prompt alone leaves no room for text.
        """
        n_fixed = len(self._encode_prompts(pl.Series([""]))[0])
        least = n_fixed + MIN_TEXT_TOKENS
        if least > max_tokens:
            hint = f"give at least --max-tokens {least}, or shorten the task's prompt"
            if context is not None:
                hint = "shorten the task's prompt and labels, or use a model with a longer context"
            raise UsageError(
                f"{context or f'--max-tokens {max_tokens}'} leaves no room for text: "
                f"the prompt without it takes {n_fixed} tokens",
                hint,
            )
        return replace(self, max_tokens=max_tokens)

    def encode(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Tokenize the ``text`` column of a frame.

        Returns:
            The frame with text stripped of outer white space and, if over-long, cut in the middle, and with columns
            ``token_ids`` (List of Int32: the row's tokens behind the shared prefix), ``n_shared`` (prefix tokens in
            front of them), ``n_tokens`` and ``length_window`` of ``token_ids``, and ``truncated``.
        """
        frame = cut_middle_chars(frame.with_columns(pl.col("text").str.strip_chars()), self.max_chars)
        frame = frame.rename({"cut": "truncated"}).with_columns(token_ids=self._prompt_ids())
        overlong = frame.select(pl.col("token_ids").list.len() > self.max_tokens).to_series()
        if overlong.any():
            frame = self._truncate(frame, overlong)
        frame = frame.with_columns(n_shared=self._n_shared())
        frame = frame.with_columns(token_ids=pl.col("token_ids").list.slice("n_shared"))
        frame = frame.with_columns(n_tokens=pl.col("token_ids").list.len())
        return frame.with_columns(length_window=length_window(pl.col("n_tokens")))

    def _truncate(self, frame: pl.DataFrame, overlong: pl.Series) -> pl.DataFrame:
        """Cut over-long texts and tokenize those again."""
        frame = frame.with_row_index("place")
        long = frame.filter(overlong)
        fitted = pl.Series([self._fit(text) for text in long["text"]], dtype=pl.String)
        long = long.with_columns(text=fitted, truncated=True).with_columns(token_ids=self._prompt_ids())
        return pl.concat([frame.filter(~overlong), long]).sort("place").drop("place")

    def _prompt_ids(self) -> pl.Expr:
        """Whole prompts' token ids, by the batch encoder, which uses every core."""
        return pl.col("text").map_batches(self._encode_prompts, return_dtype=pl.List(pl.Int32))

    def _n_shared(self) -> pl.Expr:
        """How much of the shared prefix each prompt really begins with: a text may merge with the words before it."""
        n_shared = pl.lit(0)
        for length in sorted({self.n_head, len(self.prefix_ids)}):
            begins = pl.col("token_ids").list.head(length) == pl.lit(list(self.prefix_ids[:length]), pl.List(pl.Int32))
            longer = pl.col("token_ids").list.len() > length
            n_shared = pl.when(begins & longer).then(length).otherwise(n_shared)
        return n_shared.cast(pl.UInt32)

    def _encode_prompts(self, texts: pl.Series) -> pl.Series:
        """(n,) texts to (n,) lists of whole prompts' token ids."""
        longest = texts.str.len_bytes().max() or 1
        n_rows = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // int(longest)))  # type: ignore[arg-type]
        parts = [self._encode_some(texts.slice(start, n_rows)) for start in range(0, len(texts), n_rows)]
        return pl.concat(parts) if parts else _list_series([])

    def _encode_some(self, texts: pl.Series) -> pl.Series:
        if self.exact:
            return _list_series(self._segments(texts))
        wholes = self.backend.encode_batch_fast([self.chat.whole(text) for text in texts], add_special_tokens=False)
        rows = [[*self.chat.bos_ids, *encoding.ids] for encoding in wholes]
        # a row whose text spells a control token, or completes one that the words around it begin, goes in segments
        harmless = self._controls(self.backend.encode(self.chat.whole(""), add_special_tokens=False).ids)
        reaches = [self._controls(encoding.ids) != harmless for encoding in wholes]
        in_segments = texts.str.contains_any(list(self.spellings)) | pl.Series(reaches, dtype=pl.Boolean)
        for place, row in zip(in_segments.arg_true(), self._segments(texts.filter(in_segments)), strict=True):
            rows[place] = row
        return _list_series(rows)

    def _controls(self, token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token in self.control]

    def _segments(self, texts: pl.Series) -> list[list[int]]:
        """Head, then left + text + right with control tokens not recognised, then tail."""
        middles = [self.chat.left + text + self.chat.right for text in texts]
        encoded = self.plain.encode_batch_fast(middles, add_special_tokens=False)
        prompts = [[*self.head_ids, *self._uncontrolled(encoding.ids), *self.tail_ids] for encoding in encoded]
        return [prompt or [*self.empty_ids] for prompt in prompts]

    def _uncontrolled(self, token_ids: list[int]) -> list[int]:
        """The last line of defence: a vocabulary may hold a control token as an ordinary piece (Unigram models do)."""
        if self.control.keys().isdisjoint(token_ids):
            return token_ids
        return [token for token in token_ids if token not in self.control]

    def _fit(self, text: str) -> str:
        """Cut a text in the middle, between characters, until its prompt is within ``max_tokens``."""
        offsets = self.plain.encode(text, add_special_tokens=False).offsets
        room = self.max_tokens - len(self._encode_prompts(pl.Series([ELLIPSIS]))[0])
        while room >= 2:
            head_end, tail_start = offsets[room - room // 2 - 1][1], offsets[len(offsets) - room // 2][0]
            cut = text[:head_end] + ELLIPSIS + text[tail_start:]
            excess = len(self._encode_prompts(pl.Series([cut]))[0]) - self.max_tokens
            if excess <= 0:
                return cut
            room -= excess
        return ELLIPSIS.strip()


def build_encoder(task: Task, tokenizer: Any, *, max_tokens: int) -> PromptEncoder:
    """Render, cut and encode the task's prompt for a tokenizer.

    Args:
        task: the prompts.
        tokenizer: a transformers fast tokenizer.
        max_tokens: most tokens of a whole prompt.

    Raises:
        UsageError: the prompt alone leaves no room for text.
        ModelError: the tokenizer or its chat template cannot be used.
    """
    chat = render_chat(task, tokenizer)
    # a copy: the tokenizer's own may cut or fill up what it encodes
    backend, plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), plain_tokenizer(tokenizer)
    backend.no_truncation()
    backend.no_padding()
    added = {token: added.content for token, added in tokenizer.added_tokens_decoder.items()}
    control = {token: added[token] for token in control_token_ids(tokenizer)}
    unknown = () if tokenizer.unk_token is None else (tokenizer.unk_token,)
    head_ids = (*chat.bos_ids, *backend.encode(chat.head, add_special_tokens=False).ids)
    encoder = PromptEncoder(
        chat=chat,
        prefix_ids=head_ids,
        head_ids=head_ids,
        tail_ids=tuple(backend.encode(chat.tail, add_special_tokens=False).ids),
        max_tokens=max_tokens,
        exact=True,
        backend=backend,
        plain=plain,
        control=control,
        spellings=(*control.values(), *unknown),
    )
    # 1. do segments agree with whole chats?
    probes = pl.Series([*PROBES, ""])
    segmented, whole = encoder._encode_prompts(probes), replace(encoder, exact=False)._encode_prompts(probes)
    encoder = replace(encoder, exact=segmented.to_list() == whole.to_list())

    # 2. the prefix grows by the fixed words that all texts leave as they are
    prompts = (segmented if encoder.exact else whole).to_list()[: len(PROBES)]
    prefix_ids = _common_prefix(prompts)
    # at least one token must be the row's own, and it must come before the tail
    shortest = min(map(len, prompts)) - len(encoder.tail_ids) - 1
    encoder = replace(encoder, prefix_ids=prefix_ids[:shortest])
    return encoder.limited(max_tokens)


def _common_prefix(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
    return tuple(column[0] for column in columns)


def _list_series(rows: Sequence[Sequence[int]]) -> pl.Series:
    """(n,) lists of token ids, without a Python object per token in polars' hands."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    return pl.Series(pa.LargeListArray.from_arrays(offsets, values))
