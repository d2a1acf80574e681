"""Pictures of an evaluation as SVG: confusion heat map, reliability diagram, accuracy against coverage.

Drawn without pyplot, so that nothing outlives a call. Names of labels are plain text: no mark-up in them is read.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from pipeline.evaluation.metrics import accuracy_interval
from pipeline.evaluation.quality import Quality, ScoreQuality

MAX_MAP_LABELS = 100
MAX_NAME = 50  # characters
MAX_LARGE_LABELS = 20  # with more, cells are small, and names stand on all sides
# Told apart with any colour vision (Okabe and Ito 2008).
BLUE, SKY, ORANGE, GREY = "#0072b2", "#56b4e9", "#d55e00", "#666666"
NO_LABEL = "(none)"
Floats = NDArray[np.float64]
# Text stays text, in the reader's own font; ids are the same in every run.
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "parquet-classify", "font.family": "sans-serif", "font.size": 9}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def confusion_map(quality: Quality) -> str:
    """Rows by true (down) and predicted label (across); the colour is the share of the true label's rows.

    Of more than ``MAX_MAP_LABELS`` labels, those in most of the wrong rows.
    """
    names = _mapped_labels(quality)
    down = [name for name in names if _support(quality)[name]]
    across: list[str | None] = [*names]
    if any(predicted is None for _, predicted, _ in quality.confusion):
        across.append(None)
    counts = np.zeros((len(down), len(across)))
    rows, columns = {name: i for i, name in enumerate(down)}, {name: i for i, name in enumerate(across)}
    for truth, predicted, n_rows in quality.confusion:
        if truth in rows and predicted in columns:
            counts[rows[truth], columns[predicted]] = n_rows
    shares = counts / np.array([_support(quality)[name] for name in down])[:, None]
    return _drawn(lambda figure: _draw_map(figure, counts, shares, down, across), _map_inches(down, across))


def reliability_diagram(scores: ScoreQuality) -> str:
    """Accuracy of the rows in each range of scores, and how many rows there are in it."""
    return _drawn(lambda figure: _draw_reliability(figure, scores), (5.2, 5.2))


def coverage_diagram(quality: Quality) -> str:
    """Accuracy of the rows that keep their label, against their share; needs scores."""
    return _drawn(lambda figure: _draw_coverage(figure, quality), (5.2, 5.2))


def _drawn(draw: Callable[[Figure], None], inches: tuple[float, float]) -> str:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's font is another one
        figure = Figure(figsize=inches, layout="constrained", facecolor="white")
        draw(figure)
        svg = io.StringIO()
        FigureCanvasSVG(figure).print_figure(svg, format="svg", facecolor="white", metadata=NO_METADATA)
    return svg.getvalue()


def _map_inches(down: Sequence[str], across: Sequence[str | None]) -> tuple[float, float]:
    cell, character, sides = (0.24, 0.055, 2) if len(across) > MAX_LARGE_LABELS else (0.5, 0.075, 1)
    margin = 0.6 + sides * character * max(len(_short(name)) for name in across)
    return cell * len(across) + margin, cell * len(down) + margin


def _draw_map(
    figure: Figure, counts: Floats, shares: Floats, down: Sequence[str], across: Sequence[str | None]
) -> None:
    is_large = len(across) > MAX_LARGE_LABELS
    size = 7 if is_large else 9
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.set_xticks(range(len(across)), map(_short, across), rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(down)), map(_short, down), fontsize=size, parse_math=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("predicted", labelpad=8, fontweight="bold")
    axes.set_ylabel("truth", labelpad=8, fontweight="bold")
    axes.set_xticks(np.arange(len(across) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(down) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="both", length=0, labelbottom=is_large, labelright=is_large)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row, column in np.argwhere(counts):
        colour = "white" if shares[row, column] > 0.7 else "black"
        text = f"{counts[row, column]:.0f}"
        axes.text(
            column, row, text, ha="center", va="center", color=colour, fontsize=size if len(text) < 4 else size - 2
        )


def _draw_reliability(figure: Figure, scores: ScoreQuality) -> None:
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = [part for part in scores.bins if part.n]
    centres = [(part.low + part.high) / 2 for part in filled]
    width = 0.9 * (scores.bins[0].high - scores.bins[0].low)
    top.bar(centres, [part.accuracy for part in filled], width, color=SKY, label="accuracy of the rows in a range")
    bounds = [accuracy_interval(round(part.accuracy * part.n), part.n) for part in filled]
    distances = [[part.accuracy - low for part, (low, _) in zip(filled, bounds, strict=True)],
                 [high - part.accuracy for part, (_, high) in zip(filled, bounds, strict=True)]]  # fmt: skip
    top.errorbar(centres, [part.accuracy for part in filled], distances, fmt="none", ecolor=ORANGE, capsize=2,
                 label="95 % interval")  # fmt: skip
    top.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="scores that are right")
    top.set_ylim(0, 1.02)
    top.set_ylabel("accuracy")
    top.yaxis.set_major_formatter(PercentFormatter(1))
    top.legend(loc="upper left", frameon=False)
    bottom.bar(centres, [part.n for part in filled], width, color=GREY)
    bottom.set_ylabel("rows")
    bottom.set_xlabel("score")
    bottom.set_xlim(0, 1)
    _plain(top, bottom)


def _draw_coverage(figure: Figure, quality: Quality) -> None:
    assert quality.scores is not None
    axes = figure.add_subplot()
    curve = quality.scores.curve
    coverage = [point.coverage for point in curve]
    bounds = [accuracy_interval(round(point.accuracy * point.n), point.n) for point in curve]
    low, high = zip(*bounds, strict=True)
    axes.fill_between(coverage, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(coverage, [point.accuracy for point in curve], color=BLUE)
    for point in quality.scores.levels:
        axes.plot(point.coverage, point.accuracy, "o", color=ORANGE, markersize=5)
        axes.annotate(f"{point.threshold:.2f}", (point.coverage, point.accuracy), xytext=(0, 9),
                      textcoords="offset points", ha="center")  # fmt: skip
    if quality.majority_accuracy is not None:
        axes.axhline(quality.majority_accuracy, linestyle="--", color=GREY, linewidth=1)
        below = quality.majority_accuracy > 0.1
        axes.annotate("always the most frequent label", (1, quality.majority_accuracy), xytext=(0, -4 if below else 4),
                      textcoords="offset points", color=GREY, ha="right", va="top" if below else "bottom")  # fmt: skip
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("rows that keep their label (numbers at the points: --min-score)")
    axes.set_ylabel("accuracy of these rows")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    _plain(axes)


def _plain(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.7)
        axes.set_axisbelow(True)


def _mapped_labels(quality: Quality) -> list[str]:
    names = [label.label for label in quality.labels]
    if len(names) <= MAX_MAP_LABELS:
        return names
    n_wrong = dict.fromkeys(names, 0)
    for truth, predicted, n_rows in quality.confusion:
        for name in {truth, predicted} - {None} if truth != predicted else ():
            n_wrong[str(name)] += n_rows
    return sorted(sorted(names, key=lambda name: -n_wrong[name])[:MAX_MAP_LABELS])


def _support(quality: Quality) -> dict[str, int]:
    return {label.label: label.support for label in quality.labels}


def _short(name: str | None) -> str:
    if name is None:
        return NO_LABEL
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    return shown if len(shown) <= MAX_NAME else f"{shown[: MAX_NAME - 1]}…"
