"""Makes `sample_data/tickets.parquet`: invented support tickets of a fictional company, with the true label of each.

Promises: no text is of a real person; the same row count and seed give the same table; more rows are more tickets, not
the same ones again. Fixed are shares, not counts: 4 % exact duplicates under another id, 1 % null and 1 % blank bodies
(every other one without a subject too, and then without a truth), the three truths equally often.
The column types are chosen to be awkward to copy. `truth` is for measuring only, no prompt may contain it.

Usage: python -m sample_data.make_tickets [--rows N] [--seed N] [--output FILE]
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sample_data.bank import TRUTHS, deck, draw_facts, fill, load_bank, pick, shuffled
from sample_data.compose import Draft, compose

N_ROWS = 640
SEED = 20260105
ROWS_PER_GROUP = 160
OUTPUT = Path(__file__).parent / "tickets.parquet"

START, PERIOD = datetime(2026, 1, 5, tzinfo=UTC), timedelta(days=84)
SHARES = {"duplicate": 0.04, "null": 0.01, "blank": 0.01, "special": 0.04}  # of the rows; all others are ordinary
BLANKS = ("", "  ", "\n", " \t ")
PRIORITIES = {"low": 0.2, "normal": 0.5, "high": 0.2, "urgent": 0.1}  # in this order
ATTACHMENTS = {
    "billing": ("{invoice}.pdf", "statement_{month}.pdf", "screenshot {date_iso}.png"),
    "technical": ("console.log", "screenshot {date_iso}.png", "recording.mp4", "{bigfile}"),
    "account": ("screenshot {date_iso}.png", "IMG_{pid}.jpg", "letter.pdf"),
}

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"description": "ticket number, ascending"}),
        pa.field("subject", pa.string()),
        pa.field("body", pa.string(), metadata={"description": "text as received", "format": "plain"}),
        pa.field("created_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("priority", pa.dictionary(pa.int8(), pa.string(), ordered=True)),
        pa.field("channel", pa.dictionary(pa.int32(), pa.string())),
        pa.field("customer_id", pa.int32()),
        pa.field("contact", pa.struct([("name", pa.string()), ("country", pa.string())])),
        pa.field("attachments", pa.list_(pa.field("element", pa.string()))),  # the name Parquet gives to list items
        pa.field("satisfaction", pa.float32(), metadata={"description": "1 to 5, null when not rated"}),
        pa.field("amount_due", pa.decimal128(10, 2), metadata={"description": "in the customer's currency"}),
        pa.field("is_premium", pa.bool_()),
        pa.field("truth", pa.string(), metadata={"description": "true label, for measuring only"}),
    ],
    metadata={"origin": "sample_data/make_tickets.py", "content": "invented tickets of the fictional company Fernwick"},
)
PRIORITY = SCHEMA.get_field_index("priority")


def make_tickets(n_rows: int, seed: int) -> pa.Table:
    """Return a table of `n_rows` tickets in order of time, with `SCHEMA`."""
    rng = np.random.default_rng((seed, 1))  # not the generator of the texts: a new column leaves them as they are
    rows = [{"id": 100_003 + 3 * i, **make_row(rng, draft)} for i, draft in enumerate(make_drafts(n_rows, seed))]
    codes = pa.array([row.pop("priority") for row in rows], pa.int8())
    priority = pa.DictionaryArray.from_arrays(codes, pa.array(list(PRIORITIES)), ordered=True)
    table = pa.Table.from_pylist(rows, SCHEMA.remove(PRIORITY))
    return table.add_column(PRIORITY, SCHEMA.field(PRIORITY), priority)


def make_drafts(n_rows: int, seed: int) -> Iterator[Draft]:
    """Yield `n_rows` drafts. No two have the same text, unless one is there to be a duplicate or has no text."""
    rng = np.random.default_rng(seed)
    situations, common = load_bank()
    truths, decks = deck(rng, TRUTHS), {truth: deck(rng, situations[truth]) for truth in TRUTHS}
    specials = shuffled(rng, common["special"])
    recent: list[Draft] = []
    seen: set[tuple[str | None, str | None]] = set()
    n_blank = 0
    for i, kind in enumerate(draw_kinds(rng, n_rows, len(specials))):
        created_at = START + PERIOD * ((i + rng.random()) / n_rows)
        customer_id = 5000 + int(rng.integers(1 + n_rows // 2))
        if kind == "duplicate":
            yield replace(pick(rng, recent), created_at=created_at)
            continue
        if kind == "special":
            special, facts = specials.pop(), draw_facts(rng, customer_id, created_at)
            draft = Draft(**special, customer_id=customer_id, created_at=created_at, facts=facts)
        else:
            situation = next(decks[next(truths)])
            draft = compose(rng, situation, customer_id, created_at, plain_subject=kind != "ordinary")
            while (draft.subject, draft.body) in seen:
                draft = compose(rng, situation, customer_id, created_at, plain_subject=kind != "ordinary")
        if kind in ("null", "blank"):
            draft = replace(draft, body=None if kind == "null" else pick(rng, BLANKS))
            if n_blank % 2:  # no subject either: nobody could tell what this one is about
                draft = replace(draft, subject=pick(rng, (None, *BLANKS)), truth=None)
            n_blank += 1
        else:
            recent = [*recent[-4:], draft]
        seen.add((draft.subject, draft.body))
        yield draft


def draw_kinds(rng: np.random.Generator, n_rows: int, most_specials: int) -> list[str]:
    """Return the kind of each row. The first few are ordinary, so that a duplicate has something to repeat."""
    kinds = ["ordinary"] * n_rows
    places = iter(rng.permutation(np.arange(min(8, n_rows), n_rows)))
    for kind, share in SHARES.items():
        count = round(share * n_rows)
        for _, place in zip(range(min(count, most_specials) if kind == "special" else count), places, strict=False):
            kinds[place] = kind
    return kinds


def make_row(rng: np.random.Generator, draft: Draft) -> dict[str, Any]:
    """Return a value for every column but `id`; of `priority` its code, as its order lies in the codes."""
    facts = draft.facts
    names = ATTACHMENTS[draft.truth or "account"]
    n_files = int(rng.choice(4, p=(0.65, 0.22, 0.1, 0.03)))
    is_owing = rng.random() < (0.6 if draft.truth == "billing" else 0.1)
    is_urgent = "URGENT" in (draft.subject or "")
    return {
        "subject": draft.subject,
        "body": draft.body,
        "created_at": draft.created_at,
        "priority": 3 if is_urgent else int(rng.choice(4, p=list(PRIORITIES.values()))),
        "channel": draft.channel,
        "customer_id": draft.customer_id,
        "contact": {"name": facts["name"], "country": facts["country"]} if rng.random() < 0.95 else None,
        "attachments": [fill(name, facts) for name in shuffled(rng, names)[:n_files]] if rng.random() < 0.95 else None,
        "satisfaction": float(rng.integers(2, 11)) / 2 if rng.random() < 0.35 else None,
        "amount_due": Decimal(facts["price"]) if is_owing else None,
        "is_premium": facts["plan"] == "Business",
        "truth": draft.truth,
    }


def write_tickets(table: pa.Table, path: Path) -> None:
    """Write `table` as several row groups, compressed, with page checksums."""
    pq.write_table(
        table, path, row_group_size=ROWS_PER_GROUP, compression="zstd", compression_level=12, write_page_checksum=True
    )


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description="Make a Parquet file of invented support tickets.")
    parser.add_argument("--rows", type=int, default=N_ROWS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    write_tickets(make_tickets(options.rows, options.seed), options.output)


if __name__ == "__main__":
    main()
