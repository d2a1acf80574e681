"""Reads the sentence bank in `sentences/` and fills its slots.

Promises: a value for every slot of the bank; who a customer is depends on the customer's id alone; what is said to have
happened lies before the ticket's date. Knows nothing of how sentences become a ticket.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

TRUTHS = ("billing", "technical", "account")
PLANS = {"Starter": 7, "Team": 11, "Business": 19, "Enterprise": 29}  # price of one seat for a month
DOLLARS, EUROS = ("${:,.2f}", "{:,.2f} USD", "${:,.0f}"), ("€{:,.2f}", "{:,.2f} EUR", "{:,.0f} euros")
SLOT = re.compile(r"\{(\w+)\}")
CUSTOMER_SLOTS = ("first", "surname", "company", "home", "role")


@dataclass(frozen=True, slots=True)
class Situation:
    """One concrete reason to write; the head of `sentences/billing.toml` says what the parts mean."""

    truth: str
    name: str
    subjects: tuple[str, ...]
    open: tuple[str, ...]
    detail: tuple[str, ...]
    tried: tuple[str, ...]
    ask: tuple[str, ...]
    phone: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    bare: bool = False


@cache
def load_bank() -> tuple[dict[str, tuple[Situation, ...]], dict[str, Any]]:
    """Return the situations of each truth, and what all tickets share. An unknown part is a `TypeError`."""
    folder = Path(__file__).parent / "sentences"
    bank = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in folder.glob("*.toml")}

    def frozen(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}

    situations = {t: tuple(Situation(truth=t, **frozen(entry)) for entry in bank[t]["situation"]) for t in TRUTHS}
    return situations, bank["common"]


def pick(rng: np.random.Generator, items: Sequence[T]) -> T:
    """Return one of `items`, each as likely as any other."""
    return items[int(rng.integers(len(items)))]


def shuffled(rng: np.random.Generator, items: Sequence[T]) -> list[T]:
    """Return all of `items` in a random order."""
    return [items[i] for i in rng.permutation(len(items))]


def deck(rng: np.random.Generator, items: Sequence[T]) -> Iterator[T]:
    """Yield `items` for ever, reshuffled each time round, so that none is used much more than the others."""
    while True:
        yield from shuffled(rng, items)


def draw_facts(rng: np.random.Generator, customer_id: int, created_at: datetime) -> dict[str, str]:
    """Return a value for every slot of the bank, and `price`, the amount of `{amount}` as a plain number."""
    slots = load_bank()[1]["slots"]
    customer = np.random.default_rng(customer_id)
    facts: dict[str, str] = {slot: pick(customer if slot in CUSTOMER_SLOTS else rng, slots[slot]) for slot in slots}

    # 1. The customer.
    facts["home"], facts["country"] = facts["home"].split("|")
    facts["name"] = f"{facts['first']} {facts['surname']}"
    facts["domain"] = re.sub(r"[^a-z]", "", facts["company"].lower()) + ".example"
    facts["email"] = f"{facts['first']}.{facts['surname']}@{facts['domain']}".lower()
    facts["email_upper"] = facts["email"].upper()
    facts["email2"] = f"{facts['surname']}{customer.integers(10, 99)}@mail.example".lower()
    facts["phone"] = f"555-01{customer.integers(10, 99)}"
    tier, seats = int(customer.integers(3)), int(customer.integers(4, 70))
    facts["plan"], facts["plan2"] = list(PLANS)[tier], list(PLANS)[tier + 1]
    facts["seats"], facts["seats2"] = str(seats), str(seats + int(rng.integers(3, 16)))

    # 2. Money.
    price, fee = PLANS[facts["plan"]] * seats, int(rng.integers(9, 28))
    is_overseas = facts["country"] in ("United States", "Canada", "Australia")
    style = pick(rng, DOLLARS if is_overseas else EUROS)
    money = {"amount": price, "amount_low": fee, "amount_old": price * 0.85, "amount2": price * 12, "double": price * 2}
    facts |= {slot: style.format(value) for slot, value in money.items()} | {"price": f"{price}.00"}

    # 3. Dates, written the same way throughout a ticket.
    day = pick(rng, ("{d:%B} {d.day}", "{d.day} {d:%B}", "{d.day} {d:%b}", "{d:%Y-%m-%d}", "{d:%d.%m.%y}"))
    past = created_at - timedelta(days=int(rng.integers(3, 15)))
    facts["date"], facts["date_iso"] = day.format(d=past), f"{past:%Y-%m-%d}"
    facts["date2"] = day.format(d=created_at - timedelta(days=int(rng.integers(26, 70))))
    facts["date_ahead"] = day.format(d=created_at + timedelta(days=int(rng.integers(6, 25))))
    month = created_at.replace(day=1) - timedelta(days=1)
    facts["month"], facts["month2"] = f"{month:%B}", f"{month.replace(day=1) - timedelta(days=1):%B}"

    # 4. Numbers of all kinds.
    facts["n"], facts["days"] = str(rng.integers(6, 49)), str(rng.integers(8, 25))
    facts["invoice"] = f"INV-{past:%y%m}-{rng.integers(1000, 9999)}"
    facts["case"], facts["card"] = f"#{rng.integers(20_000, 90_000)}", f"{rng.integers(1000, 9999)}"
    facts["code"], facts["version"] = f"E{rng.integers(1000, 9999)}", f"5.{rng.integers(1, 9)}.{rng.integers(0, 4)}"
    facts["case_hex"], facts["pid"] = f"{rng.integers(2**31):08x}", str(rng.integers(10_000, 32_768))
    return facts


def fill(text: str, facts: dict[str, str]) -> str:
    """Put facts into slots. A slot without a fact is a mistake in the bank, hence a `KeyError`."""
    return SLOT.sub(lambda match: facts[match[1]], text)
