"""What else a task might ask: other prompts, other ways to compare labels, other orders of them.

Every variant is a task like the one it is made from, with the same labels. Knows nothing of models and scores.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from pipeline.task import Calibration, Scoring, Task

MAX_EXAMPLES = 10  # labels; one example of each
MAX_EXAMPLE_CHARS = 400
N_ORDERS = 2
CALIBRATIONS = get_args(Calibration)
PREFILLED_ANSWER = "Category:"


@dataclass(frozen=True, slots=True)
class Variant:
    """A task to try.

    Attributes:
        name: what differs, for people.
        task: without calibration, which costs no pass and is tried with each.
    """

    name: str
    task: Task


def prompt_variants(task: Task, examples: Sequence[tuple[str, str]]) -> list[Variant]:
    """The task as it is, then with one thing of its prompt changed at a time.

    Args:
        task: to begin with.
        examples: (text, label) for few-shot turns; empty for none.
    """
    task = replace(task, calibration="none")
    variants = [Variant("as given", task)]
    prompts = task.system + task.user
    has_descriptions = any(description for _, description in task.labels)
    if has_descriptions and "{descriptions}" in prompts:
        variants.append(Variant("without descriptions", _in_prompts(task, "{descriptions}", "{labels}")))
    if has_descriptions and "{labels}" in prompts and "{descriptions}" not in prompts:
        variants.append(Variant("with descriptions", _in_prompts(task, "{labels}", "{descriptions}")))
    if "{labels}" not in prompts and "{descriptions}" not in prompts:
        kinds = ("labels", "descriptions") if has_descriptions else ("labels",)
        lead = "Labels" if task.multi else "Answer with exactly one of"
        for kind in kinds:
            listing = f"{task.system} {lead}: {{{kind}}}.".strip()
            variants.append(Variant(f"{kind} listed", replace(task, system=listing)))
    elif (unlisted := _without_lists(task)) is not None:
        variants.append(Variant("labels not listed", unlisted))
    if not task.answer:
        variants.append(Variant(f"answer begins {PREFILLED_ANSWER!r}", replace(task, answer=PREFILLED_ANSWER)))
    if examples and not task.examples:
        variants.append(Variant("one example per label", replace(task, examples=tuple(examples))))
    return variants


def scoring_variants(best: Variant) -> list[Variant]:
    """The best prompt with the other ways to compare labels; with several labels a row there is only one way."""
    if best.task.multi:
        return []
    others = [scoring for scoring in get_args(Scoring) if scoring not in (best.task.scoring, "auto", "first-token")]
    return [Variant(f"{best.name}, {other}", replace(best.task, scoring=other)) for other in others]


def order_variants(best: Variant, seed: int) -> list[Variant]:
    """The best variant with its labels in other orders."""
    rng = np.random.default_rng(seed)
    orders: dict[tuple[int, ...], None] = {tuple(range(len(best.task.labels))): None}
    for _ in range(10 * N_ORDERS):  # with two labels there is one other order only
        if len(orders) <= N_ORDERS:
            orders[tuple(rng.permutation(len(best.task.labels)).tolist())] = None
    return [
        Variant(
            f"{best.name}, labels in order {number}",
            replace(best.task, labels=tuple(best.task.labels[place] for place in order)),
        )
        for number, order in enumerate(orders)
        if number
    ]


def choose_examples(texts: Sequence[str], labels: Sequence[Sequence[str]], task: Task) -> list[int]:
    """Which texts are to be the examples: for each label one of middling length; empty if that cannot be.

    Args:
        texts: to choose from.
        labels: of each text.
        task: with several labels a row, with very many labels, or with examples of its own, it gets none.
    """
    if task.multi or task.examples or len(task.labels) > MAX_EXAMPLES:
        return []
    middle = float(np.median([len(text) for text in texts])) if texts else 0.0
    chosen = []
    for label in task.label_names:
        own = [place for place, names in enumerate(labels) if label in names and len(texts[place]) <= MAX_EXAMPLE_CHARS]
        if not own:
            return []
        chosen.append(min(own, key=lambda place: abs(len(texts[place]) - middle)))
    return chosen


def _without_lists(task: Task) -> Task | None:
    """The task without the sentences of its system turn that list labels; None if they are listed elsewhere."""
    if "{labels}" in task.user or "{descriptions}" in task.user:
        return None
    sentences = re.split(r"(?<=[.!?:])\s+", task.system)
    kept = [sentence for sentence in sentences if "{labels}" not in sentence and "{descriptions}" not in sentence]
    # what led to the list says nothing without it
    return replace(task, system=" ".join(sentence for sentence in kept if not sentence.endswith(":")))


def _in_prompts(task: Task, old: str, new: str) -> Task:
    return replace(task, system=task.system.replace(old, new), user=task.user.replace(old, new))
