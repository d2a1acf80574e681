"""The report for a browser: one file that needs nothing else, and holds no text of any row.

Pictures are images within the file, on white, so that they read on a light page and on a dark one. Everything that
comes from the data is escaped.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from pipeline.evaluation.pictures import MAX_MAP_LABELS, confusion_map, coverage_diagram, reliability_diagram
from pipeline.evaluation.quality import Quality
from pipeline.evaluation.text import MAX_CONFUSIONS, interval, percent, shown

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem 1.2rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; }
td.meaning, figcaption, .small { opacity: .75; }
figure { margin: 1rem 0; } .scroll { overflow-x: auto; } .side { display: flex; flex-wrap: wrap; gap: 1rem; }
img { background: white; border-radius: 4px; max-width: none; } .side img { max-width: 100%; }
.note { border-left: 4px solid #d55e00; padding-left: .8rem; }
"""


def html_report(quality: Quality, *, inputs: Sequence[str], truth: str, prediction: str) -> str:
    """The page.

    Args:
        quality: what it shows.
        inputs: names of the files.
        truth: the column with the true labels.
        prediction: the column with the predicted ones.
    """
    title = f"How good are the labels of {', '.join(inputs)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="small">Column {_code(prediction)} against the truth in {_code(truth)}, '
        f"{quality.n:,} rows of {quality.n_read:,}. Intervals are 95 % ones.</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in quality.notes),
        _measures(quality),
        *_score_part(quality),
        *_confusion_part(quality),
        _label_part(quality),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _measures(quality: Quality) -> str:
    rows = [
        ("accuracy", percent(quality.accuracy.value), interval(quality.accuracy)),
        ("macro-F1", percent(quality.macro_f1.value), f"{interval(quality.macro_f1)}; every label counts the same"),
        ("weighted F1", percent(quality.weighted_f1), "labels count by their rows"),
    ]
    if quality.n_answered < quality.n and quality.accuracy_answered is not None:
        answered, n_none = quality.accuracy_answered, quality.n - quality.n_answered
        rows.insert(1, ("accuracy of answered rows", percent(answered.value),
                        f"{interval(answered)}; {n_none:,} rows have no label, which is wrong above"))  # fmt: skip
    if quality.micro_f1 is not None and quality.hamming_loss is not None:
        rows.append(("micro-F1", percent(quality.micro_f1), "every label of a row counts the same"))
        rows.append(("Hamming loss", percent(quality.hamming_loss), "of all yes/no decisions are wrong"))
    if quality.majority_accuracy is not None:
        rows.append(("baseline", percent(quality.majority_accuracy), f"always {shown(quality.majority_label)}"))
    cells = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{number}</td>'
        f'<td class="meaning">{escape(meaning)}</td></tr>'
        for name, number, meaning in rows
    )
    return f"<table>\n{cells}\n</table>"


def _score_part(quality: Quality) -> Iterable[str]:
    scores = quality.scores
    if scores is None or not scores.n:
        return
    yield "<h2>What the scores are worth</h2>"
    yield (
        f"<p>Expected calibration error: {percent(scores.expected_calibration_error)}, over {len(scores.bins)} ranges "
        f"of scores and {scores.n:,} rows.</p>"
    )
    reliability = _figure(
        reliability_diagram(scores),
        "Reliability diagram: accuracy of the rows in each range of scores.",
        "Bars below the line: scores promise too much. Bars above it: too little.",
    )
    coverage = _figure(
        coverage_diagram(quality),
        "Accuracy of the rows that keep their label, against their share.",
        "What --min-score gives: fewer rows with a label, more of them right.",
    )
    yield f'<div class="side">{reliability}{coverage}</div>'
    yield _table(
        ("--min-score", "rows kept", "accuracy"),
        [(f"{point.threshold:.4f}", percent(point.coverage), percent(point.accuracy)) for point in scores.levels],
    )


def _confusion_part(quality: Quality) -> Iterable[str]:
    if not quality.confusion:
        return
    yield "<h2>Which labels are taken for which</h2>"
    n_more = len(quality.labels) - MAX_MAP_LABELS
    more = f" The {n_more:,} labels with the fewest wrong rows are left out." if n_more > 0 else ""
    yield (
        '<div class="scroll">'
        + _figure(
            confusion_map(quality),
            "Heat map of the confusion matrix.",
            f"Rows by their true label (down) and their predicted label (across).{more}",
        )
        + "</div>"
    )
    wrong = [pair for pair in quality.confusion if pair[0] != pair[1]]
    if wrong:
        yield _table(
            ("rows", "truth", "predicted"),
            [(f"{n_rows:,}", shown(truth), shown(predicted)) for truth, predicted, n_rows in wrong[:MAX_CONFUSIONS]],
            numbers={0},
        )


def _label_part(quality: Quality) -> str:
    rows = [
        (
            shown(label.label),
            percent(label.precision) if label.predicted else "–",  # noqa: RUF001
            percent(label.recall) if label.support else "–",  # noqa: RUF001
            percent(label.f1),
            f"{label.support:,}",
            f"{label.predicted:,}",
        )
        for label in quality.labels
    ]
    return "<h2>Label by label</h2>\n" + _table(("label", "precision", "recall", "F1", "rows", "predicted"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int] | None = None) -> str:
    """A table; all columns but the first hold numbers, unless said otherwise."""

    def cell(tag: str, place: int, text: str) -> str:
        is_number = place > 0 if numbers is None else place in numbers
        kind = ' class="number"' if is_number else ""
        return f"<{tag}{kind}>{escape(text)}</{tag.split()[0]}>"

    head = "".join(cell('th scope="col"', place, heading) for place, heading in enumerate(headings))
    body = "\n".join(
        "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _figure(svg: str, description: str, caption: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<figure><img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _code(name: str) -> str:
    return f"<code>{escape(name)}</code>"
