"""What is reported of a contest: items a second, ratio to ours round by round, agreement with the reference."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.peers.contest import Contestant
from tests.peers.engines import OURS, REFERENCE, Peer


def figures_of(contestants: Sequence[Contestant]) -> list[dict[str, Any]]:
    """A dictionary for each engine that took part, ready for JSON."""
    by_name = {one.peer.name: one for one in contestants if one.failure is None}
    return [_figures(one, by_name.get(OURS), by_name.get(REFERENCE)) for one in contestants]


def _figures(one: Contestant, ours: Contestant | None, reference: Contestant | None) -> dict[str, Any]:
    about = {"engine": one.peer.name, "precision": one.peer.precision, "setting": one.setting}
    if one.failure is not None:
        return {**about, "failure": one.failure}
    speeds = [len(turn["labels"]) / turn["seconds"] for turn in one.turns]
    cpu_seconds = [turn["cpu_seconds"] / len(turn["labels"]) for turn in one.turns]
    ratios, agreement, largest = None, None, None
    if ours is not None:
        ratios = [theirs["seconds"] / turn["seconds"] for theirs, turn in zip(ours.turns, one.turns, strict=True)]
    if reference is not None:
        labels, expected = (np.concatenate([turn["labels"] for turn in who.turns]) for who in (one, reference))
        agreement = float((labels == expected).mean())
        if one.turns[0]["logits"] is not None:
            logits, right = (np.concatenate([turn["logits"] for turn in who.turns]) for who in (one, reference))
            largest = float(np.abs(logits - right).max())
    return {
        **about,
        "items_per_s": statistics.median(speeds),
        "items_per_s_by_round": speeds,
        "ratio_to_ours": None if ratios is None else statistics.median(ratios),
        "ratio_to_ours_by_round": ratios,
        "cpu_s_per_item": statistics.median(cpu_seconds),
        "agreement": agreement,
        "largest_logit_difference": largest,
        "peak_mb": one.peak_mb,
    }


def table(figures: Sequence[dict[str, Any]], not_installed: Sequence[Peer]) -> Iterator[str]:
    """Lines for people."""
    yield (
        f"{'engine':20}{'precision':>10}{'items/s':>9}{'min-max':>14}{'x ours':>8}{'CPU s/item':>12}{'agree':>8}"
        f"{'max diff':>10}{'peak MB':>9}  setting"
    )
    for row in figures:
        start = f"{row['engine']:20}{row['precision']:>10}"
        if "failure" in row:
            yield f"{start}  failed: {row['failure']}"
            continue
        speeds = row["items_per_s_by_round"]
        yield (
            f"{start}{row['items_per_s']:9.2f}{f'{min(speeds):.2f}-{max(speeds):.2f}':>14}"
            f"{_or_dash(row['ratio_to_ours'], '.2f'):>8}{row['cpu_s_per_item']:12.3f}"
            f"{_or_dash(row['agreement'], '.1%'):>8}{_or_dash(row['largest_logit_difference'], '.1e'):>10}"
            f"{row['peak_mb']:9.0f}  {row['setting']}"
        )
    for peer in not_installed:
        yield f"{peer.name:20}{peer.precision:>10}  not installed: pip install {' '.join(peer.missing)}"


def label_counts(contestants: Sequence[Contestant]) -> list[int] | None:
    """How often the reference gave each label: agreement says little where nearly all are the same."""
    for one in contestants:
        if one.peer.name == REFERENCE and one.failure is None:
            return np.bincount(np.concatenate([turn["labels"] for turn in one.turns])).tolist()
    return None


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
