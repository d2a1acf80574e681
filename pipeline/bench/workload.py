"""What the benchmark labels: long-tailed tickets that are the same on every machine, under a one-sentence prompt."""

import numpy as np

from pipeline.task import Task

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
