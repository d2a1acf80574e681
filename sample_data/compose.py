"""Writes one invented support ticket: from a situation of the sentence bank to a draft.

Promises: within one ticket no sentence repeats; a short ticket says what it is about, a long one tells its history; the
truth of a ticket is the file its situation stands in, never a guess. Knows nothing of Arrow, nor of other tickets.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from sample_data.bank import TRUTHS, Situation, draw_facts, fill, load_bank, pick, shuffled

MAX_OVERSHOOT = 9  # words; a sentence may end a little later than aimed at, a longer piece is left out
OWN_PARAGRAPH = ("persona", "evidence", "history")
SHORTHAND = {"please": "pls", "because": "bc", "something": "smth", "though": "tho", "before": "b4", "and": "&"}

Rng = np.random.Generator
Common = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Channel:
    """A way in, its share of the tickets, and how long they are meant to be: long-tailed, as in real exports."""

    name: str
    share: float
    median_words: int
    spread: float  # standard deviation of the logarithm of the words
    most_words: int


CHANNELS = (
    Channel("email", 0.40, 97, 0.88, 372),
    Channel("web", 0.25, 82, 0.88, 366),
    Channel("chat", 0.23, 40, 0.55, 110),
    Channel("phone", 0.12, 34, 0.35, 70),
)


@dataclass(frozen=True, slots=True)
class Draft:
    """One ticket before it becomes a row. `sentences` are the bank's own, slots not filled, so one can count them."""

    subject: str | None
    body: str | None
    truth: str | None
    channel: str
    customer_id: int
    created_at: datetime
    facts: dict[str, str]
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that are used together or not at all, and the part of a ticket they belong to."""

    part: str
    lines: tuple[str, ...]

    @property
    def n_words(self) -> int:
        """Words before slots are filled; close enough for aiming at a length."""
        return sum(len(line.split()) for line in self.lines)


def compose(rng: Rng, situation: Situation, customer_id: int, created_at: datetime, *, plain_subject: bool) -> Draft:
    """Return one ticket about `situation`; `plain_subject` asks for a subject that says what the ticket is about."""
    common = load_bank()[1]
    way_in = CHANNELS[int(np.searchsorted(np.cumsum([channel.share for channel in CHANNELS[:-1]]), rng.random()))]
    channel, n_words = way_in.name, draw_length(rng, way_in)
    if channel == "phone":
        body, sentences = write_phone_note(rng, situation, common, n_words)
    elif channel == "chat":
        body, sentences = write_chat(rng, situation, common, n_words)
    else:
        body, sentences = write_letter(rng, situation, common, channel == "email", n_words)
    subject = pick(rng, situation.subjects) if plain_subject else write_subject(rng, situation, common, channel)
    facts = draw_facts(rng, customer_id, created_at)
    return Draft(
        subject=subject and fill(subject, facts),
        body=fill(body, facts),
        truth=situation.truth,
        channel=channel,
        customer_id=customer_id,
        created_at=created_at,
        facts=facts,
        sentences=tuple(sentences),
    )


def draw_length(rng: Rng, channel: Channel) -> int:
    """Return the number of words to aim at."""
    n_words = int(channel.median_words * np.exp(channel.spread * rng.standard_normal()))
    return n_words if n_words <= channel.most_words else int(rng.integers(channel.median_words, channel.most_words))


def choose_pieces(rng: Rng, situation: Situation, common: Common, is_casual: bool, n_words: int) -> list[Piece]:
    """Return pieces of about `n_words` in total, taken from a queue that has the most telling ones in front."""
    truth = situation.truth
    queue = shuffled(rng, [Piece(part, (line,)) for part in ("detail", "tried") for line in getattr(situation, part)])
    asks = [Piece("ask", (line,)) for line in shuffled(rng, situation.ask)]
    queue.insert(int(rng.integers(3)), asks[0])
    queue.insert(int(rng.integers(4, len(queue))), asks[1])
    if situation.evidence and rng.random() < 0.6:
        queue.insert(int(rng.integers(1, 5)), Piece("evidence", (pick(rng, situation.evidence).strip("\n"),)))
    if not situation.bare:
        if rng.random() < 0.3:
            other = pick(rng, [t for t in TRUTHS if t != truth])
            queue.insert(int(rng.integers(1, 4)), Piece("aside", (pick(rng, common["aside"][other]),)))
        history = pick(rng, [group["lines"] for group in common["history"] if group.get("truth", truth) == truth])
        persona = pick(rng, common["persona"])["lines"]
        impacts = [pick(rng, common["impact"]["any"]), *shuffled(rng, common["impact"][truth])[:2]]
        n_lines = len(history) if n_words > 200 else int(rng.integers(2, len(history) + 1))
        general = shuffled(rng, [
            Piece("history", tuple(history[:n_lines])),
            Piece("persona", tuple(persona[: int(rng.integers(1, len(persona) + 1))])),
            Piece("agent", (pick(rng, common["agent"]["openers"]), pick(rng, common["agent"][truth]))),
            *(Piece("impact", (line,)) for line in impacts),
        ])  # fmt: skip
        queue.insert(int(rng.integers(3, 6)), general.pop())  # one early on, not only long tickets are to have them
        queue += general
    queue.append(asks[2])

    chosen = [Piece("open", (pick(rng, [line for line in situation.open if line[0].islower() == is_casual]),))]
    left = n_words - chosen[0].n_words
    for piece in queue:
        if 0 < left >= piece.n_words - MAX_OVERSHOOT:
            chosen.append(piece)
            left -= piece.n_words
    return chosen


def lay_out(rng: Rng, situation: Situation, pieces: list[Piece], n_words: int) -> list[list[str]]:
    """Return paragraphs of lines: the parts as people tell things, the lines of a part in the bank's order."""
    rank = {line: i for i, line in enumerate(situation.detail + situation.tried + situation.ask)}
    order = ["open", "detail", "evidence", "tried", "history", "impact", "aside", "ask"]
    if rng.random() < 0.4:
        order[3], order[4] = order[4], order[3]
    if rng.random() < 0.2:
        order.insert(1, order.pop())  # the wish first, the reasons after it
    order.insert(int(rng.random() < 0.5), "persona")
    paragraphs: list[list[str]] = []
    previous = ""
    for part in order:
        lines = [line for piece in pieces if piece.part == part for line in piece.lines]
        if not lines:
            continue
        if part not in OWN_PARAGRAPH:
            lines.sort(key=lambda line: rank.get(line, 0))
        is_apart = part in OWN_PARAGRAPH or previous in OWN_PARAGRAPH
        is_log = "evidence" in (part, previous)
        if not paragraphs or is_log or (is_apart and n_words > 60) or (n_words > 110 and rng.random() < 0.4):
            paragraphs.append([])
        paragraphs[-1] += lines
        previous = part
    return paragraphs


def write_letter(rng: Rng, situation: Situation, common: Common, is_email: bool, n_words: int) -> tuple[str, list[str]]:
    """Return the body of an e-mail or web form, slots not filled, and the sentences in it."""
    is_casual = rng.random() < (0.08 if is_email else 0.25)
    tone = ("casual_openers", "casual_closers") if is_casual else ("greetings", "closings")
    names = [line for line in common["signatures"] if not is_casual or len(line.split()) < 3]
    greeting = [pick(rng, common[tone[0]])] if rng.random() < (0.8 if is_email else 0.3) else []
    closing = [pick(rng, common[tone[1]])] if n_words > 20 and rng.random() < (0.6 if is_email else 0.35) else []
    signature = [pick(rng, names)] if rng.random() < (0.85 if is_email else 0.25) else []
    footer = [pick(rng, common["footers"])] if is_email and n_words > 40 and rng.random() < 0.12 else []
    frame = Piece("frame", (*greeting, *closing, *signature, *footer))

    pieces = choose_pieces(rng, situation, common, is_casual, n_words - frame.n_words)
    paragraphs = lay_out(rng, situation, pieces, n_words)
    typo_rate = 0.2 if is_casual else 0.04
    told = [join_sentences([type_out(rng, line, is_casual, typo_rate) for line in lines]) for lines in paragraphs]
    end = ("\n" if n_words < 50 else "\n\n").join([*closing, *signature])
    agent = [piece.lines for piece in pieces if piece.part == "agent"]
    quoted = [f"{head}\n" + "\n".join(f"> {line}".rstrip() for line in answer.split("\n")) for head, answer in agent]
    body = "\n\n".join(part for part in (*greeting, *told, end, *quoted, *footer) if part)
    return body, [*frame.lines, *(line for lines in (*paragraphs, *agent) for line in lines)]


def write_chat(rng: Rng, situation: Situation, common: Common, n_words: int) -> tuple[str, list[str]]:
    """Return what someone typed into the chat window, slots not filled, and the sentences in it."""
    is_casual = rng.random() < 0.85
    opener = [pick(rng, common["chat_openers"])] if rng.random() < 0.5 else []
    filler = [pick(rng, common["chat_fillers"])] if n_words > 25 and not situation.bare and rng.random() < 0.6 else []
    closer = [pick(rng, common["chat_closers"])] if rng.random() < 0.5 else []
    left = n_words - Piece("frame", (*opener, *filler, *closer)).n_words
    pieces = [p for p in choose_pieces(rng, situation, common, is_casual, left) if p.part not in ("agent", "persona")]
    told = [line for lines in lay_out(rng, situation, pieces, n_words) for line in lines]
    lines = [*opener, *told[:1], *filler, *told[1:], *closer]
    typed = [type_out(rng, line, is_casual, 0.1) for line in lines]
    one_message = rng.random() < 0.25 and not any("\n" in line for line in typed)
    return join_sentences(typed) if one_message else "\n".join(line.removesuffix(".") for line in typed), lines


def write_phone_note(rng: Rng, situation: Situation, common: Common, n_words: int) -> tuple[str, list[str]]:
    """Return an agent's note of a call, slots not filled, and the sentences in it."""
    opener = [pick(rng, common["phone_openers"])] if rng.random() < 0.7 else []
    notes = situation.phone[: 2 if n_words > 22 else 1]
    closers = shuffled(rng, common["phone_closers"])[: int(rng.integers(3))]
    lines = [*opener, *notes, *closers]
    return pick(rng, (" ", " ", "\n", "\n- ", " // ")).join(lines), lines


def write_subject(rng: Rng, situation: Situation, common: Common, channel: str) -> str | None:
    """Return a subject with slots: mostly to the point, sometimes vague, sometimes none (chats seldom have one)."""
    missing = {"chat": 0.35, "phone": 0.1}.get(channel, 0.01)
    draw = rng.random()
    if draw < missing:
        return pick(rng, (None, None, ""))
    if draw < missing + 0.12 and channel != "phone":
        subjects: list[str] = common["vague_subjects"]
        return pick(rng, subjects)
    subject = pick(rng, situation.subjects)
    if channel == "email" and rng.random() < 0.15:
        prefixes: list[str] = common["subject_prefixes"]
        return pick(rng, prefixes) + subject
    return subject.lower() if channel == "chat" and rng.random() < 0.6 else subject


def type_out(rng: Rng, line: str, is_casual: bool, typo_rate: float) -> str:
    """Return `line` as its writer types it: perhaps with a typo, and if casual in lower case with some shorthand."""
    if "\n" in line:  # a log or the like, which was pasted and not typed
        return line
    if rng.random() < typo_rate:
        line = misspell(rng, line)
    if is_casual:
        line = line.lower()
        if rng.random() < 0.4:
            line = line.replace("'", "")
        if rng.random() < 0.2:
            line = " ".join(SHORTHAND.get(word, word) for word in line.split(" "))
    return line


def misspell(rng: Rng, line: str) -> str:
    """Swap, drop or double a letter inside one longer word in lower case; slots and addresses stay as they are."""
    words = list(re.finditer(r"(?<![\w{@./'-])[a-z]{5,}(?![\w}@/'-])", line))
    if not words:
        return line
    start, end = pick(rng, words).span()
    at = int(rng.integers(start + 1, end - 2))
    typed = pick(rng, (line[at + 1] + line[at], line[at + 1], line[at] * 2 + line[at + 1]))
    return line[:at] + typed + line[at + 2 :]


def join_sentences(lines: list[str]) -> str:
    """Join lines by spaces, with a full stop where one would run into the next."""
    return " ".join(line + "." * (line[-1].isalnum() and line is not lines[-1]) for line in lines)
