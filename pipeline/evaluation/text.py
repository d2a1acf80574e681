"""The report for a terminal: the measures and what they mean, a table of labels, the worst confusions, thresholds."""

import io
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.evaluation.quality import Estimate, Quality

MAX_MATRIX_LABELS = 10
MAX_CONFUSIONS = 10
NO_LABEL = "(none)"
PLAIN_COLUMNS = 120


def text_report(quality: Quality, *, columns: int | None, styled: bool) -> str:
    """The lines of the report.

    Args:
        quality: what it shows.
        columns: width of the terminal; None for whatever the report needs.
        styled: whether bold and dim text is wanted.
    """
    lines = io.StringIO()
    longest = max((cell_len(shown(label.label)) for label in quality.labels), default=0)
    width = columns or max(PLAIN_COLUMNS, 60 + MAX_MATRIX_LABELS * longest)
    console = Console(file=lines, force_terminal=styled, width=width, highlight=False, emoji=False, markup=False)
    for part in _parts(quality):
        console.print(part)
    return "\n".join(line.rstrip() for line in lines.getvalue().splitlines()) + "\n"


def _parts(quality: Quality) -> Iterator[RenderableType]:
    yield _measures(quality)
    yield Text()
    yield _labels(quality)
    if quality.confusion:
        yield from _confusions(quality)
    if quality.scores is not None and quality.scores.n:
        yield Text()
        yield _levels(quality)


def _measures(quality: Quality) -> Table:
    table = _table("", "", "")
    table.show_header = False
    n_left_out = quality.n_read - quality.n
    n_abstained = quality.n - quality.n_answered
    left_out = f", {n_left_out:,} without are left out" if n_left_out else ""
    table.add_row("rows", f"{quality.n:,}", f"with a truth{left_out}")
    abstained = f", {n_abstained:,} without count as wrong" if n_abstained else ""
    table.add_row(
        "answered", percent(quality.n_answered / quality.n), f"{quality.n_answered:,} rows with a label{abstained}"
    )
    right = "all labels of a row right" if quality.several else "labels that are right"
    table.add_row("accuracy", percent(quality.accuracy.value), f"{interval(quality.accuracy)}; {right}")
    if quality.accuracy_answered is not None and n_abstained:
        answered = quality.accuracy_answered
        table.add_row("  of answered", percent(answered.value), interval(answered))
    macro = quality.macro_f1
    table.add_row("macro-F1", percent(macro.value), f"{interval(macro)}; every label counts the same")
    table.add_row("weighted F1", percent(quality.weighted_f1), "labels count by their rows")
    if quality.micro_f1 is not None and quality.hamming_loss is not None:
        table.add_row("micro-F1", percent(quality.micro_f1), "every label of a row counts the same")
        table.add_row("Hamming loss", percent(quality.hamming_loss), "of all yes/no decisions are wrong")
    if quality.majority_accuracy is not None:
        table.add_row("baseline", percent(quality.majority_accuracy), f"always {shown(quality.majority_label)}")
    if quality.scores is not None and quality.scores.n:
        error = quality.scores.expected_calibration_error
        table.add_row("calibration", percent(error), "expected calibration error: how far scores are from accuracy")
    for status, n_rows in quality.statuses.items():
        table.add_row("status", f"{n_rows:,}", shown(status))
    return table


def _labels(quality: Quality) -> Table:
    table = _table("label", "precision", "recall", "F1", "rows", "predicted")
    for label in quality.labels:
        table.add_row(
            shown(label.label),
            percent(label.precision) if label.predicted else "-",
            percent(label.recall) if label.support else "-",
            percent(label.f1),
            f"{label.support:,}",
            f"{label.predicted:,}",
        )
    return table


def _confusions(quality: Quality) -> Iterator[RenderableType]:
    wrong = [pair for pair in quality.confusion if pair[0] != pair[1]]
    if len(quality.labels) <= MAX_MATRIX_LABELS:
        yield Text()
        yield _matrix(quality)
    elif wrong:
        yield Text()
        table = _table("rows", "truth", "predicted", numbers=(0,))
        for truth, predicted, n_rows in wrong[:MAX_CONFUSIONS]:
            table.add_row(f"{n_rows:,}", shown(truth), shown(predicted))
        yield table
        if len(wrong) > MAX_CONFUSIONS:
            n_rows = sum(pair[2] for pair in wrong[MAX_CONFUSIONS:])
            yield Text(f"and {n_rows:,} rows in {len(wrong) - MAX_CONFUSIONS:,} other confusions", "dim")


def _matrix(quality: Quality) -> Table:
    counts = {(truth, predicted): n_rows for truth, predicted, n_rows in quality.confusion}
    columns: list[str | None] = [label.label for label in quality.labels]
    if quality.n_answered < quality.n:
        columns.append(None)
    table = _table("truth \\ predicted", *map(shown, columns))
    for label in quality.labels:
        if label.support:
            own = [counts.get((label.label, column), 0) for column in columns]
            table.add_row(shown(label.label), *(f"{n_rows:,}" if n_rows else "." for n_rows in own))
    return table


def _levels(quality: Quality) -> Table:
    assert quality.scores is not None
    table = _table("--min-score", "rows kept", "accuracy")
    for point in quality.scores.levels:
        table.add_row(f"{point.threshold:.4f}", percent(point.coverage), percent(point.accuracy))
    return table


def _table(*headings: str, numbers: Sequence[int] | None = None) -> Table:
    """A table without lines; all columns but the first hold numbers, unless said otherwise."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    is_measures = not any(headings)
    for place, heading in enumerate(headings):
        right = place == 1 if is_measures else place in numbers if numbers is not None else place > 0
        table.add_column(
            heading, justify="right" if right else "left", style="dim" if is_measures and place == 2 else ""
        )
    return table


def interval(estimate: Estimate) -> str:
    """The interval of a measure, for people."""
    if estimate.low is None or estimate.high is None:
        return "too few rows for an interval"
    return f"95 %: {percent(estimate.low)} to {percent(estimate.high)}"


def percent(share: float) -> str:
    """A share, for people."""
    return f"{100 * share:.1f} %"


def shown(label: str | None) -> str:
    """The name of a label, quoted where one would misread it."""
    if label is None:
        return NO_LABEL
    return label if label.isprintable() and label.strip() == label and label else repr(label)
