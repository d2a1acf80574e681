"""What a tuning found, in words and a table: counts and labels, never a word of a row."""

from collections.abc import Iterator, Sequence

from pipeline.tuning.enough import labels_with_few
from pipeline.tuning.fit import FitReport
from pipeline.tuning.measure import SIGNIFICANT, Duel, Quality
from pipeline.tuning.rows import DistinctTexts
from pipeline.tuning.search import Part, Result, agreement

ENOUGH_TEXTS = 4  # of a label
ENOUGH_HELD_OUT = 30  # below, an interval is wider than 30 points
MAX_LISTED = 10


def texts_line(found: DistinctTexts, n_tune: int, n_held_out: int) -> str:
    """What there is to learn from."""
    line = (
        f"{len(found.texts):,} labelled texts in {found.n_rows:,} rows: {n_tune:,} to tune on, {n_held_out:,} held out"
    )
    if found.n_left_out:
        line += f"; {found.n_left_out:,} rows without label or text left out"
    if found.n_conflicts:
        line += f"; {found.n_conflicts:,} texts left out since their rows do not agree"
    return line


def warnings(found: DistinctTexts, labels: Sequence[str], held_out: Part) -> Iterator[str]:
    """Where there is too little to trust what follows."""
    few = labels_with_few(found.truth, labels, ENOUGH_TEXTS)
    if few:
        shown = ", ".join(f"{label!r} {n_texts}" for label, n_texts in few[:MAX_LISTED])
        more = f" and {len(few) - MAX_LISTED} more labels" if len(few) > MAX_LISTED else ""
        yield f"too few labelled texts (below {ENOUGH_TEXTS} of a label): {shown}{more}"
    if len(held_out.texts) < ENOUGH_HELD_OUT:
        yield (
            f"only {len(held_out.texts)} texts are held out: too few to tell good from bad; read the "
            "intervals, or label more rows"
        )


def table(results: Sequence[Result]) -> str:
    """A line for each way to answer; there is at least one."""
    width = max(len("variant"), *(len(result.name) for result in results))
    head = (
        f"{'variant'.ljust(width)}  {'tune':>6}  {'held-out [95 % interval]':>24}  {'macro-F1':>8}  {'tokens/row':>10}"
    )
    return "\n".join([head, *(_line(result, width) for result in results)])


def orders_line(results: Sequence[Result]) -> str:
    """How much the order of the labels matters; empty if no other order was tried."""
    other = [result for result in results if ", labels in order " in result.name]
    names = {result.name: result for result in results}
    shares = []
    for result in other:
        base, _, calibration = result.name.rpartition(" / ")
        own = names.get(f"{base.rpartition(', labels in order ')[0]} / {calibration}")
        if own is not None:
            shares.append((calibration, agreement(result, own)))
    if not shares:
        return ""
    by_calibration = {
        calibration: min(share for name, share in shares if name == calibration) for calibration, _ in shares
    }
    told = ", ".join(f"{calibration} {share:.1%}" for calibration, share in by_calibration.items())
    return f"same answers with the labels in another order: {told}"


def head_line(report: FitReport) -> str:
    """How the head was fitted."""
    strengths = " ".join(f"{strength:g}" for strength in sorted(set(report.strengths)))
    line = f"head: fitted on {report.n_rows:,} texts, strength {strengths or 'none'}"
    if report.constant:
        line += f"; always answered alike, for want of examples: {', '.join(map(repr, report.constant[:MAX_LISTED]))}"
    return line


def rows_line(results: Sequence[Result]) -> str:
    """On how many texts each was tried, if it were not the same for all; empty otherwise."""
    tried = {(result.tune.n_rows, result.held_out.n_rows) for result in results}
    if len(tried) < 2:
        return ""
    kinds = [("prompts", results[0]), ("the head", results[-1])]
    told = [f"{name} {result.tune.n_rows:,} and {result.held_out.n_rows:,}" for name, result in kinds]
    return f"texts of the two parts: {', '.join(told)}; below they are compared on the same ones"


def choice_lines(tune: Duel, held_out: Duel) -> Iterator[str]:
    """Which of the best prompt and the head is kept and why, and whether the held-out part confirms it.

    Args:
        tune: the head, on texts that it had not seen, against the prompt: by this one is kept.
        held_out: the same on held-out texts; without any, nothing is said of them.
    """
    head_kept = tune.first_wins
    facts = f"right on {tune.first:,} of {tune.n:,} tune texts it had not seen"
    if head_kept:
        yield f"head kept: {facts}, the best prompt on {tune.second:,}"
    else:
        yield f"prompt kept: right on {tune.second:,} of {tune.n:,} tune texts; the head is {facts}"
    if not held_out.n:
        return
    facts = (
        f"on {held_out.n:,} held-out texts the head is right on {held_out.first:,}, the best prompt on "
        f"{held_out.second:,} (p = {held_out.p_value:.2g})"
    )
    if held_out.first_wins == head_kept and held_out.p_value < SIGNIFICANT:
        yield f"{facts}: the {'head' if head_kept else 'prompt'} is better"
    elif not head_kept:
        yield f"{facts}: " + (
            "they do not confirm this; label more rows" if held_out.first_wins else "the head is no better"
        )
    elif held_out.first_wins:
        yield f"{facts}: the head seems better, but too few to confirm it; label more rows"
    else:
        yield f"{facts}: they do not confirm that the head is better; label more rows"


def _line(result: Result, width: int) -> str:
    return (
        f"{result.name.ljust(width)}  {_share(result.tune):>6}  {_interval(result.held_out):>24}  "
        f"{_f1(result.held_out):>8}  {result.tokens:>10.1f}"
    )


def _share(quality: Quality) -> str:
    return f"{quality.accuracy:.1%}" if quality.n_rows else "-"


def _interval(quality: Quality) -> str:
    low, high = quality.interval
    return f"{quality.accuracy:.1%} [{low:.1%}, {high:.1%}]" if quality.n_rows else "-"


def _f1(quality: Quality) -> str:
    return f"{quality.macro_f1:.3f}" if quality.n_rows else "-"
