"""The closing summary of a run, for people: headings, numbers in a column, what they mean."""

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.text import Text

from pipeline.command.progress import duration, percent
from pipeline.command.report import Report, peak_rss_mib
from pipeline.stats import WORKER_PHASES

MAX_LABELS = 20
BAR_COLUMNS = 16
STATUS_MEANINGS = {
    "blank": "no text, so no label",
    "overlong": "longer than --max-tokens, so no label",
    "failed": "no finite score, so no label",
    "low_score": "not probable enough for --min-score or --min-margin",
    "invalid_text": "bytes that are not UTF-8, read as U+FFFD",
    "truncated": "longer than --max-tokens, cut in the middle",
}
PHASE_MEANINGS = {
    "load": "loading and checking the model",
    "agreement": "comparing int8 with float32",
    "model": "model",
    "write": "writing",
    "verify": "checking against one text at a time",
    "read": "reading, beside the model",
    "tokenize": "looking up and tokenizing, beside the model",
}

Line = tuple[str, str, str]  # heading, number, meaning


def summary(report: Report, *, bars: bool) -> list[Text]:
    """The lines of the summary.

    Args:
        report: of a run that succeeded.
        bars: whether to draw each label's share.
    """
    stats = report.stats
    lines = [
        *_under("files", _files(report)),
        ("rows", f"{stats.rows:,}", f"{report.rows_per_second:,.1f} rows/s"),
        *_under("labels", _labels(report, bars)),
        *_under("not ok", _statuses(report)),
        *_under("texts", _texts(report)),
        ("tokens", f"{stats.fed_tokens:,}", _speed(report)),
        *_under("int8", _agreement(report)),
        *_under("verified", _verified(report)),
        ("memory", f"{peak_rss_mib():,.0f}", "MiB at most" + (", without the workers" if report.n_workers else "")),
        *_under("time", _phases(report)),
    ]
    width = [max(cell_len(line[column]) for line in lines) for column in range(2)]
    return [
        Text(heading.ljust(width[0]), "bold") + Text(f"  {number.rjust(width[1])}  ") + Text(meaning, "dim")
        for heading, number, meaning in lines
    ]


def _under(heading: str, lines: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Lines of which the first gets a heading."""
    for number, meaning in lines:
        yield heading, number, meaning
        heading = ""


def _files(report: Report) -> Iterator[tuple[str, str]]:
    if (files := report.files) is not None:
        yield f"{files['done']:,}", "labelled"
        if files["skipped"]:
            yield f"{files['skipped']:,}", "finished before, and skipped"
        if files["failed"]:
            yield f"{files['failed']:,}", "failed, see above"


def _texts(report: Report) -> Iterator[tuple[str, str]]:
    yield f"{report.stats.texts:,}", "scored, each once"
    if report.stats.calibration_texts:
        yield f"{report.stats.calibration_texts:,}", "scored to calibrate"
    if report.stats.known_texts:
        yield f"{report.stats.known_texts:,}", "known: repeats, or scored before"


def _labels(report: Report, bars: bool) -> Iterator[tuple[str, str]]:
    stats = report.stats
    if not stats.rows:
        return
    counts: dict[str | None, int] = dict.fromkeys(report.facts["labels"], 0) | stats.labels
    names = list(counts)
    if len(names) > MAX_LABELS:
        names = sorted(names, key=lambda name: -counts[name])[:MAX_LABELS]
    width = max(cell_len(_shown(name)) for name in names)
    for name in names:
        share = counts[name] / stats.rows
        bar = "█" * round(share * BAR_COLUMNS) if bars else ""
        padding = " " * (width - cell_len(_shown(name)))
        yield f"{counts[name]:,}", f"{percent(share):>7}  {_shown(name)}{padding}  {bar}".rstrip()
    if len(counts) > len(names):
        others = [counts[name] for name in counts.keys() - set(names)]
        yield f"{sum(others):,}", f"in {len(others):,} other labels"
    if stats.unlabelled:
        yield f"{stats.unlabelled:,}", f"{percent(stats.unlabelled / stats.rows):>7}  no label reaches its threshold"


def _statuses(report: Report) -> Iterator[tuple[str, str]]:
    for status, meaning in STATUS_MEANINGS.items():
        if n_rows := report.stats.statuses[status]:
            yield f"{n_rows:,}", f"{status}: {meaning}"


def _speed(report: Report) -> str:
    return f"{report.tokens_per_second:,.0f} tokens/s, padding {percent(report.stats.padding_share)}"


def _agreement(report: Report) -> Iterator[tuple[str, str]]:
    if (agreement := report.agreement) is not None:
        meaning = f"of {agreement.n_texts} texts decided as by float32 (balanced)"
        yield percent(agreement.balanced), f"{meaning}, logits within {agreement.largest_difference:.2g}"


def _verified(report: Report) -> Iterator[tuple[str, str]]:
    if (verdict := report.verdict) is not None:
        meaning = f"same label when scored alone, log-probabilities within {verdict.largest_difference:.1g}"
        yield f"{verdict.n_same:,}/{verdict.n_texts:,}", meaning


def _phases(report: Report) -> Iterator[tuple[str, str]]:
    for phase, meaning in PHASE_MEANINGS.items():
        if phase in report.stats.seconds:
            of_workers = report.n_workers and phase in WORKER_PHASES
            yield duration(report.stats.seconds[phase]), meaning + (", of all workers together" if of_workers else "")


def _shown(label: str | None) -> str:
    if label is None:
        return "(none)"
    return label if label.isprintable() else repr(label)
