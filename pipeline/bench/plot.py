"""The benchmark's picture: items/s by path, and where the time of the fastest goes. Drawn without pyplot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.errors import OutputError

# Told apart with any colour vision (Okabe and Ito 2008).
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#666666"
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "parquet-classify", "font.family": "sans-serif", "font.size": 9}


def draw(file: Path, workload: Mapping[str, Any], about: str) -> None:
    """Draw a workload's figures.

    Args:
        file: written as its suffix says.
        workload: one of the benchmark's JSON.
        about: machine and model, for the caption.

    Raises:
        OutputError: the file cannot be written.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.2), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        _draw_paths(left, workload)
        _draw_shares(right, workload)
        figure.suptitle(f"{workload['rows']} {workload['workload']} rows; {about}", fontsize=9, color=GREY)
        try:
            figure.savefig(file, dpi=150)
        except OSError as error:
            raise OutputError(
                f"--plot {str(file)!r} cannot be written: {error.strerror}", "name another file"
            ) from None


def _draw_paths(axes: Axes, workload: Mapping[str, Any]) -> None:
    paths = workload["paths"]
    items, places = [path["items_per_s"] for path in paths], range(len(paths))
    below = [path["items_per_s"] - path["items_per_s_spread"][0] for path in paths]
    above = [path["items_per_s_spread"][1] - path["items_per_s"] for path in paths]
    axes.barh(places, items, color=BLUE, xerr=[below, above], error_kw={"ecolor": GREY, "capsize": 2})
    ceilings = [path["items_per_s"] / path["ceiling_share"] for path in paths]
    axes.plot(ceilings, places, "|", color=ORANGE, markersize=14, markeredgewidth=2,
              label="if its matrix multiplications were all it did")  # fmt: skip
    limit = 1.08 * max(*ceilings, *(path["items_per_s_spread"][1] for path in paths))
    for place, path in zip(places, paths, strict=True):
        is_long = path["items_per_s"] > 0.25 * limit
        at, colour = (0, "white") if is_long else (path["items_per_s_spread"][1], "black")
        axes.text(at, place, f"  {path['items_per_s']:.1f} ({path['speedup']:.2f}x)", va="center", color=colour)
    axes.set_yticks(places, [path["path"] for path in paths])
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    axes.set_xlabel("items/s: median of the turns, smallest and largest")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    _plain(axes)


def _draw_shares(axes: Axes, workload: Mapping[str, Any]) -> None:
    shares = workload["time_shares"] or {}
    axes.barh(range(len(shares)), [100 * share for share in shares.values()], color=BLUE)
    for place, share in enumerate(shares.values()):
        axes.text(100 * share, place, f" {share:.1%}", va="center")
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.set_xlabel(f"% of a row's time, {workload['time_shares_of'] or 'not measured'}")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.7)
    axes.set_axisbelow(True)
