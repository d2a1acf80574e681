"""What the benchmark labels, the same on every machine.

``mixed``: long-tailed invented tickets, no text twice, truths equally often, under the built-in task, whose decisions
are about equally often, too. ``short``: the same of one line. Both are written by the generator of the sample tickets,
which a checkout has and an installed package has not. ``seed``: long-tailed tickets of random words under the
one-sentence prompt that anyone would write first, which nearly always gives one and the same label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.task import Task
from pipeline.task_file import builtin_task

WORKLOADS = ("mixed", "seed", "short")
DEFAULT_WORKLOADS = ("mixed", "seed")
FEW_TOKENS, MANY_TOKENS = 10, 20  # of a short text

WORDS = (
    "account access after again agent already amount annual another app appears asked attached bank before billing "
    "blank branch browser button called cancelled card change charged chat check clear closed code colleague confirm "
    "contract copy credit customer dashboard data date deadline delivered device discount download double email error "
    "every export failed file finance fix form freezes help history import install invoice issue keeps last late "
    "laptop link list loading locked login manager message minutes mobile month morning name network never new notice "
    "number office old open order page paid password payment people permission phone please portal price problem "
    "profile question receipt refund remove renew report request reset restart role save screen seat send server "
    "shows sign since slow start still stopped subscription support switch team tell today total try twice update "
    "upgrade upload user version wait warning week when window works wrong year yesterday"
)
TOPICS = ("bank transfer", "card delivery", "card payment", "cash withdrawal", "refund", "sign in", "top up")
TROUBLES = (
    "charged twice", "declined", "fee", "limit", "not recognised", "not working", "pending", "reverted", "too late",
    "wrong amount", "wrong rate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts, and what is asked of them.

    Attributes:
        name: one of ``WORKLOADS``.
        texts: n of them.
        truths: (n,) the label that each should get; None where nobody knows.
        task: scores them.
    """

    name: str
    texts: Sequence[str]
    truths: Sequence[str] | None
    task: Task


def load_workload(name: str, n_rows: int, tokenizer: Any) -> Workload:
    """The first ``n_rows`` texts of a workload.

    Args:
        name: one of ``WORKLOADS``.
        n_rows: how many.
        tokenizer: of the model, by which a short text is short.

    Raises:
        UsageError: it is not a workload, or its texts are written by a generator that is not here.
    """
    if name == "seed":
        return Workload(name, seed_tickets(n_rows), None, seed_task())
    if name not in WORKLOADS:
        raise UsageError(f"--workload {name!r}: there is no such workload", f"there are {', '.join(WORKLOADS)}")
    try:
        from sample_data.workload import mixed_texts, one_line_texts
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--workload {name}: its texts are written by sample_data, which an installed package lacks",
            "run from the folder of a checkout, or use --workload seed",
        ) from error

    def is_short(text: str) -> bool:
        return FEW_TOKENS <= len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= MANY_TOKENS

    written = mixed_texts(n_rows) if name == "mixed" else one_line_texts(n_rows, fits=is_short)
    return Workload(name, [text for text, _ in written], [truth for _, truth in written], builtin_task())


def seed_tickets(n_rows: int, seed: int = 0) -> list[str]:
    """Long-tailed tickets: words ~ clip(lognormal(log 60, 0.9), 12, 400)."""
    rng = np.random.default_rng(seed)
    n_words = np.clip(rng.lognormal(np.log(60), 0.9, n_rows), 12, 400).astype(int)
    words = np.array(WORDS.split())
    return [" ".join(rng.choice(words, n)) for n in n_words]


def short_tickets(n_rows: int, seed: int = 0) -> list[str]:
    """Tickets of 8 to 24 words, where the tokens of labels weigh most."""
    rng = np.random.default_rng(seed)
    words = np.array(WORDS.split())
    return [" ".join(rng.choice(words, n)) for n in rng.integers(8, 25, n_rows)]


def many_labels(n_labels: int) -> tuple[str, ...]:
    """Up to 77 labels of several words, many of which begin alike, as those of real lists do."""
    names = [f"{topic} {trouble}" for topic in TOPICS for trouble in TROUBLES]
    return tuple(names[:: len(names) // n_labels][:n_labels])


def seed_task() -> Task:
    """The one-sentence prompt that anyone would write first, scored in one pass per row."""
    return Task(
        name="seed",
        text=("text",),
        template=None,
        labels=(("billing", ""), ("technical", ""), ("account", "")),
        system="You classify support tickets. Answer with exactly one of: {labels}.",
        user="Ticket: {text}\nCategory:",
        answer="",
        scoring="first-token",
        calibration="none",
    )
