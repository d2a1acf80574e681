"""Measure what makes labels trustworthy, step by step: ``python -m pipeline.bench.label_quality DATA_FOLDER``.

For each subset of two public data sets, a table of accuracy and macro-F1 with 95 % intervals: from the prompt that
anyone would write first to a head fitted on a few labelled rows. The tables are Markdown, on stdout; progress is on
stderr.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.command import Parser, check_output, run
from pipeline.bench.quality_data import SUBSETS, load_subset
from pipeline.errors import OutputError

# A head on all rows to train on is of interest where prompts are weakest: with many labels.
MANY_LABELS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements and return the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify
    parser = Parser(prog="python -m pipeline.bench.label_quality", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DATA_FOLDER", help="holds the Parquet files of both data sets")
    parser.add_argument("--rows", type=int, default=300, help="most rows to test on, of a subset (default %(default)s)")
    parser.add_argument("--subset", nargs="+", default=SUBSETS, choices=SUBSETS, help="default: all")
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a GGUF file or a hub name")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args(argv)
    if options.rows < 1:
        parser.error(f"--rows {options.rows}: at least 1")
    return run(lambda: measure(options))


def measure(options: argparse.Namespace) -> None:
    """Load the model, measure every subset, and print a table of each as soon as it is known."""
    check_output("--json", options.json)
    import torch

    from pipeline.engine.load import load_model

    subsets = [load_subset(options.folder, name, options.rows) for name in options.subset]
    model = load_model(options.model, device=options.device, dtype="auto")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}, {model.dtype}"
    print(f"Model {model.name}; machine: {machine}.")
    figures = []
    for subset in subsets:
        figures.append(measure_subset(subset, model))
        print("\n".join(["", *table(figures[-1])]), flush=True)
        if options.json is not None:
            _write(options.json, {"model": model.name, "machine": machine, "subsets": figures})


def measure_subset(subset: Any, model: Any) -> dict[str, Any]:
    """All figures of a subset, ready for JSON."""
    from pipeline.bench.quality_steps import Measuring

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    measuring = Measuring(subset, model, say)
    many = len(subset.task.labels) > MANY_LABELS
    steps = [*measuring.prompt_steps(), *measuring.head_steps(all_rows=many)]
    return {
        "subset": subset.name,
        "labels": len(subset.task.labels),
        "rows": len(subset.test),
        "steps": [asdict(step) for step in steps],
        "order_changes": measuring.order_changes(listed=False),
        "order_changes_listed": measuring.order_changes(listed=True),
    }


def table(figures: dict[str, Any]) -> Iterator[str]:
    """The lines of a subset's Markdown table, and what the order of its labels does."""
    n_rows = figures["rows"]
    yield f"### {figures['subset']}: {figures['labels']} labels, {n_rows} rows"
    yield ""
    yield "| step | accuracy | macro-F1 | most given label | tokens fed a row | items/s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for step in figures["steps"]:
        yield (
            f"| {step['name']} | {_with_bounds(step['accuracy'])} | {_with_bounds(step['macro_f1'])} "
            f"| {step['n_favourite'] / n_rows:.0%} | {step['fed_per_row']:.1f} | {step['items_per_s']:.1f} |"
        )
    yield ""
    default, listed = (_changes(figures[key]) for key in ("order_changes", "order_changes_listed"))
    yield (
        f"Labels in another order, {len(figures['order_changes'])} times: of the default task's decisions change "
        f"{default}; where the prompt lists the labels, {listed}."
    )


def _changes(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.1%} on average, {max(shares):.1%} at most"


def _with_bounds(measured: Sequence[float]) -> str:
    value, low, high = measured
    return f"{value:.3f} ({low:.2f} to {high:.2f})"


def _write(path: Path, figures: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--json {str(path)!r} cannot be written: {error.strerror}", "name another file") from None


if __name__ == "__main__":
    sys.exit(main())
