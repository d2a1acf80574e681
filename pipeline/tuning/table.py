"""What a tuning found, in words and a table: counts and labels, never a word of a row."""

from collections.abc import Iterator, Sequence

from pipeline.tuning.fit import FitReport, labels_with_few
from pipeline.tuning.measure import Quality, compare, right_rows
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
    """A line for each way to answer."""
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


def verdict(head: Result, prompt: Result, head_truth: Part, prompt_truth: Part) -> str:
    """The head against the best prompt, on held-out texts that both answered.

    Args:
        head: its answers are for ``head_truth``.
        prompt: its answers are for ``prompt_truth``.
        head_truth: the whole held-out part.
        prompt_truth: the texts of it that prompts were tried on.
    """
    places = {text: place for place, text in enumerate(head_truth.texts)}
    rows = [places[text] for text in prompt_truth.texts]
    paired = compare(
        right_rows(head.held_out_answers[rows], prompt_truth.truth),
        right_rows(prompt.held_out_answers, prompt_truth.truth),
    )
    facts = (
        f"on {len(rows):,} held-out texts the head alone is right {paired.gained} times, the best prompt alone "
        f"{paired.lost} times (p = {paired.p_value:.2g})"
    )
    if paired.is_better:
        return f"{facts}: the head is better"
    if paired.is_worse:
        return f"{facts}: the head is worse than the prompt"
    if paired.gained > paired.lost:
        return f"{facts}: the head seems better, but so few texts cannot tell"
    return f"{facts}: the head is no better than the prompt"


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
