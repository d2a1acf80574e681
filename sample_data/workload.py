"""Texts to measure on: invented tickets whose truths are equally often, without any text that comes twice.

Promises: the same texts on every machine; the first n of many are the n of few; of any three consecutive texts that
start at a multiple of three, one has each truth. What `make_tickets` adds to be awkward (duplicates, blanks, tickets
that try something) is left out: a measurement on it would measure the share of it.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import numpy as np

from sample_data.bank import TRUTHS, Situation, deck, draw_facts, fill, load_bank, pick
from sample_data.compose import compose
from sample_data.make_tickets import PERIOD, START

SEED = 20260401  # another one than that of the sample tickets, on which the built-in task was worded
MAX_TRIES = 1_000
Rng = np.random.Generator

FEW_WORDS, MANY_WORDS = 7, 13  # of a text in one line


class Text(NamedTuple):
    """What a customer wrote, and the label it should get."""

    text: str
    truth: str


def mixed_texts(n_rows: int, seed: int = SEED) -> list[Text]:
    """Long-tailed tickets, subject and body as the stage joins them: half of them under 70 words, some over 300."""
    rng = np.random.default_rng(seed)
    return [*islice(_distinct(_ticket_writer(rng), rng, lambda text: True), n_rows)]


def one_line_texts(n_rows: int, seed: int = SEED, fits: Callable[[str], bool] | None = None) -> list[Text]:
    """Short texts of one line, as people type into a search or chat box.

    Args:
        n_rows: how many.
        seed: of the draw.
        fits: which texts are wanted; None for those of 7 to 13 words.

    Raises:
        ValueError: of a thousand texts in a row none fits.
    """
    rng = np.random.default_rng(seed)
    return [*islice(_distinct(_line_writer(rng), rng, fits or _has_few_words), n_rows)]


def _has_few_words(text: str) -> bool:
    return FEW_WORDS <= len(text.split()) <= MANY_WORDS


def _distinct(write: Callable[[str], str], rng: Rng, is_wanted: Callable[[str], bool]) -> Iterator[Text]:
    """For each truth in turn the first text written that is wanted and was not there before."""
    seen: set[str] = set()
    for truth in deck(rng, TRUTHS):
        for _ in range(MAX_TRIES):
            text = write(truth)
            if text not in seen and is_wanted(text):
                break
        else:
            raise ValueError(f"of {MAX_TRIES} texts in a row none is wanted and new")
        seen.add(text)
        yield Text(text, truth)


def _decks(rng: Rng) -> dict[str, Iterator[Situation]]:
    """Of each truth its situations, each as often as the others."""
    situations = load_bank()[0]
    return {truth: deck(rng, situations[truth]) for truth in TRUTHS}


def _who_and_when(rng: Rng) -> tuple[int, datetime]:
    return 5000 + int(rng.integers(2000)), START + PERIOD * rng.random()


def _ticket_writer(rng: Rng) -> Callable[[str], str]:
    decks = _decks(rng)

    def write(truth: str) -> str:
        draft = compose(rng, next(decks[truth]), *_who_and_when(rng), plain_subject=False)
        subject, body = (draft.subject or "").strip(), draft.body or ""
        return f"{subject}\n\n{body}" if subject else body

    return write


def _line_writer(rng: Rng) -> Callable[[str], str]:
    decks = _decks(rng)

    def write(truth: str) -> str:
        situation = next(decks[truth])
        subject, ask = pick(rng, situation.subjects), pick(rng, situation.ask)
        line = pick(
            rng, (pick(rng, situation.open), subject, f"{subject}. {ask}", f"{subject} - {ask[0].lower() + ask[1:]}")
        )
        return fill(line, draw_facts(rng, *_who_and_when(rng)))

    return write
