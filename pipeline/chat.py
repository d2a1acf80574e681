"""The chat around a row: rendering the template once, and cutting it where no text can reach.

Knows the tokenizer and the task, and nothing of rows.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from tokenizers import Encoding, Tokenizer

from pipeline.errors import ModelError, UsageError
from pipeline.task import Task, spaced

# Private-use characters: they stand in no template and in no task, and no template trims them.
SENTINEL = "\ue000\ue001\ue002"
# What templates that print a date (Llama 3, SmolLM3) take for today: one text has the same label on any day.
TODAY = datetime(2025, 1, 1)
_DATE_CALL = re.compile(r"""\bstrftime_now\(\s*(['"])(.*?)\1\s*\)""")


@dataclass(frozen=True, slots=True)
class Chat:
    """A rendered chat with one row's text taken out.

    Attributes:
        head: up to the last control token before the text; may be empty.
        left: fixed words between head and text.
        right: fixed words between text and tail.
        tail: from the first control token after the text, with the start of the answer; may be empty.
        bos_ids: tokens that stand before ``head`` and are in no text (models without a chat template).
        end_of_turn: the token that ends an answer.
    """

    head: str
    left: str
    right: str
    tail: str
    bos_ids: tuple[int, ...]
    end_of_turn: int

    def whole(self, text: str) -> str:
        """The whole chat with a text put in."""
        return self.head + self.left + text + self.right + self.tail


def render_chat(task: Task, tokenizer: Any) -> Chat:
    """Render the task's chat once and cut it around the text.

    Args:
        task: gives the messages, its examples among them, and the start of the answer.
        tokenizer: a transformers fast tokenizer.

    Raises:
        ModelError: the chat template does not carry user messages and examples verbatim.
        UsageError: an example spells a control token, or the task has a character of ``SENTINEL``.
    """
    _check_sentinel(task)
    if tokenizer.chat_template is None:
        return _plain_chat(task, tokenizer)
    controls = control_token_ids(tokenizer)
    backend = tokenizer.backend_tokenizer
    _check_controls_of_examples(task, backend, controls)
    messages = _messages(task, tokenizer)
    rendered = _apply(tokenizer, messages, add_generation_prompt=True) + task.answer
    _check_examples(task, rendered)
    before, after = _cut_at_sentinel(rendered)
    head_end = max((end for token, (_, end) in _tokens(backend, before) if token in controls), default=0)
    tail_start = min((start for token, (start, _) in _tokens(backend, after) if token in controls), default=len(after))
    return Chat(
        head=before[:head_end],
        left=before[head_end:],
        right=after[:tail_start],
        tail=after[tail_start:],
        bos_ids=(),
        end_of_turn=_end_of_turn(tokenizer, messages, controls),
    )


def control_token_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of all added tokens that are more than white space: none of them may come from a row's text.

    Special or not: `<think>` and `<tool_call>` of Qwen3 steer a model and are not marked special. The unknown-token is
    left out, since a text may rightly contain characters that a tokenizer does not know.
    """
    added = tokenizer.added_tokens_decoder
    return frozenset(
        token_id
        for token_id, token in added.items()
        if (token.special or not _is_white_space(token.content)) and token_id != tokenizer.unk_token_id
    )


def _is_white_space(text: str) -> bool:
    """Whether a token is a run of blanks, which SentencePiece writes as ▁."""
    return not text.replace("▁", " ").strip()


def plain_tokenizer(tokenizer: Any) -> Tokenizer:
    """A backend tokenizer like the given one that recognises no control tokens: their text is plain characters.

    Control tokens are marked special and special tokens are not looked for. They stay in the vocabulary, since taking
    one out could give its id to another added token.
    """
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    controls = control_token_ids(tokenizer)
    for token in definition["added_tokens"]:
        token["special"] = token["special"] or token["id"] in controls
    definition["post_processor"] = None
    plain = Tokenizer.from_str(json.dumps(definition))
    plain.encode_special_tokens = True
    plain.no_truncation()
    plain.no_padding()
    return plain


def continuation_ids(label: str, chat: Chat, answer: str, plain: Tokenizer) -> tuple[int, ...]:
    """Tokens of a label as the model would answer it behind ``answer``, end of turn included."""
    return (*answer_ids(label, answer, plain), chat.end_of_turn)


def answer_ids(text: str, answer: str, plain: Tokenizer) -> tuple[int, ...]:
    """Tokens of a text as the model would go on with it behind ``answer``, the start of its turn.

    The text is encoded on its own, with a leading space when a prefilled answer stands before it. It is encoded behind
    one neutral character, whose tokens are then taken off, since some tokenizers (SentencePiece with a dummy prefix)
    add a space of their own at the start of a text but not within it.
    """
    anchor = ":" if answer.strip() else "\n"
    behind = spaced(answer, text)
    anchor_ids = plain.encode(anchor, add_special_tokens=False).ids
    anchored = plain.encode(anchor + behind, add_special_tokens=False).ids
    if anchored[: len(anchor_ids)] == anchor_ids and len(anchored) > len(anchor_ids):
        return tuple(anchored[len(anchor_ids) :])
    return tuple(plain.encode(behind, add_special_tokens=False).ids)


def _messages(task: Task, tokenizer: Any) -> list[dict[str, str]]:
    """System turn, a user and an answer turn per example, and the row's user turn.

    For templates that refuse or drop a system role its text stands at the beginning of the first user turn.
    """
    system = task.system_message()
    contents = [turn for example in task.example_turns() for turn in example] + [task.user_message(SENTINEL)]
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    if not system:
        return turns
    with_system = [{"role": "system", "content": system}, *turns]
    with contextlib.suppress(ModelError):
        if system.strip() in _apply(tokenizer, with_system, add_generation_prompt=True):
            return with_system
    return [{"role": "user", "content": f"{system}\n\n{contents[0]}"}, *turns[1:]]


def _check_sentinel(task: Task) -> None:
    """Refuse what would pass for the place of a row's text."""
    parts = {"system": task.system_message(), "user": task.user_message(""), "answer": task.answer}
    parts["examples"] = "".join(chain.from_iterable(task.example_turns()))
    for key, part in parts.items():
        if found := {*part} & {*SENTINEL}:
            hint = "take this private-use character out of the task, also of its labels and descriptions"
            raise UsageError(f"{key}: {min(found)!r} stands in it, which marks the place of a text here", hint)


def _check_controls_of_examples(task: Task, backend: Tokenizer, controls: frozenset[int]) -> None:
    """Examples come from rows as a rule, and are part of what is encoded with control tokens recognised.

    What an example spells may begin in the words around it, so whole turns are looked at.
    """

    def spelt(turn: str) -> Counter[int]:
        return Counter(token for token, _ in _tokens(backend, turn) if token in controls)

    around = spelt(task.user_message(SENTINEL)), spelt(task.answer + spaced(task.answer, SENTINEL))
    for turns in task.example_turns():
        for what, turn, own in zip(("text", "label"), turns, around, strict=True):
            for token in spelt(turn) - own:
                control = backend.id_to_token(token)
                hint = "take that out of the example"
                raise UsageError(f"examples: a {what} spells {control!r}, a control token of this model", hint)


def _check_examples(task: Task, rendered: str) -> None:
    """Refuse a template that leaves out turns of the past, or tells them otherwise."""
    for turns in task.example_turns():
        if not all(turn.strip() in rendered for turn in turns):
            raise ModelError(
                "the model's chat template does not carry the task's examples as they stand",
                "leave out the examples, or use a model with a plain chat template",
            )


def _apply(tokenizer: Any, messages: Sequence[dict[str, str]], **options: Any) -> str:
    # Qwen3 and SmolLM3 answer at once, not after a thought, with this switch; other templates do not know it
    options |= {"tokenize": False, "enable_thinking": False, "chat_template": _dated(tokenizer)}
    try:
        return str(tokenizer.apply_chat_template(list(messages), **options))
    except Exception as error:  # a template raises whatever it likes
        reason = " ".join(str(error).split())
        raise ModelError(f"the model's chat template fails: {reason[:300]}", "use another model") from error


def _dated(tokenizer: Any) -> str:
    """The chat template with ``TODAY`` written out where it asks for the date."""
    template: str = tokenizer.get_chat_template()
    return re.sub(_DATE_CALL, lambda call: f"{call[1]}{TODAY.strftime(call[2])}{call[1]}", template)


def _cut_at_sentinel(rendered: str) -> tuple[str, str]:
    before, *rest = rendered.split(SENTINEL)
    if len(rest) != 1:
        raise ModelError(
            f"the model's chat template puts the text into the prompt {len(rest)} times, not once",
            "use a model with a plain chat template",
        )
    return before, rest[0]


def _tokens(backend: Tokenizer, text: str) -> list[tuple[int, tuple[int, int]]]:
    """(token id, (start, end) characters) of a text, control tokens recognised."""
    encoding: Encoding = backend.encode(text, add_special_tokens=False)
    return list(zip(encoding.ids, encoding.offsets, strict=True))


def _end_of_turn(tokenizer: Any, messages: Sequence[dict[str, str]], controls: frozenset[int]) -> int:
    """The control token that follows an answer in the chat template, else the tokenizer's end of sequence.

    Some models end a turn with a token of its own (Gemma's `<end_of_turn>`) that is not their end of sequence.
    """
    turns = [*({**turn, "content": turn["content"].replace(SENTINEL, "x")} for turn in messages)]
    rendered = _apply(tokenizer, [*turns, {"role": "assistant", "content": SENTINEL}])
    after = rendered.rpartition(SENTINEL)[2]
    tokens = _tokens(tokenizer.backend_tokenizer, after)
    if tokens and tokens[0][0] in controls and not after[: tokens[0][1][0]].strip():
        return tokens[0][0]
    return _eos(tokenizer)


def _eos(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise ModelError("the model's tokenizer has no end-of-sequence token", "use a causal language model")
    return int(tokenizer.eos_token_id)


def _plain_chat(task: Task, tokenizer: Any) -> Chat:
    """For models without a chat template: system text, examples and user text, each answer on a new line."""
    system = task.system_message()
    examples = [f"{user}\n{answer}" for user, answer in task.example_turns()]
    row = f"{task.user_message(SENTINEL)}\n{task.answer}"
    before, after = _cut_at_sentinel("\n\n".join([*([system] if system else []), *examples, row]))
    with_special = tokenizer("x", add_special_tokens=True)["input_ids"]
    without = tokenizer("x", add_special_tokens=False)["input_ids"]
    n_bos = next((i for i in range(len(with_special)) if with_special[i : i + len(without)] == without), 0)
    return Chat("", before, after, "", tuple(with_special[:n_bos]), _eos(tokenizer))
