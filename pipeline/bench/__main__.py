"""Measure every path over the same rows, in one process, in turns: ``python -m pipeline.bench``.

First what the machine can do at best: matrix multiplications at the model's own layer shapes, memory copies, and on
each workload the tokenizer alone and a Parquet copy alone. Then the ways to label the same rows, one pass per row, in
turns over groups of rows that are alike (``turns``); what 3, 10 and 77 labels cost on short tickets; and where the time
of the fastest way goes. Results go to stdout, progress to stderr; the last line of stdout is JSON.

Torch runs as it comes: no thread setting is made for the whole process, since the baseline is what anyone would get.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.bench.command import Parser, check_output, run, tell_json
from pipeline.bench.turns import N_TURNS
from pipeline.bench.workload import DEFAULT_WORKLOADS, WORKLOADS
from pipeline.errors import UsageError

MIN_ROWS = 20
PICTURES = (".png", ".svg")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = Parser(prog="python -m pipeline.bench", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--workload", action="append", metavar="NAME",
        help=f"{', '.join(WORKLOADS)}; several with commas (default {','.join(DEFAULT_WORKLOADS)}; headline: mixed)",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=600, help="how many of each, at least 20 (default %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=N_TURNS, help="groups the rows are dealt into (default %(default)s)"
    )
    parser.add_argument(
        "--paths", action="append", metavar="NAME",
        help="only these, * and ? allowed, several with commas; the reference always runs (default: all)",
    )  # fmt: skip
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a GGUF file or a hub name")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--max-batch-tokens", type=int, help="tokens of a bucket (default: as the stage chooses)")
    parser.add_argument("--label-rows", type=int, help="rows for 3, 10 and 77 labels, 0 for none (default: rows / 5)")
    parser.add_argument(
        "--memory", action=argparse.BooleanOptionalAction, default=True,
        help="also run each path in a process of its own on a few rows, for its peak memory",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the headline figures as .png or .svg")
    options = parser.parse_args(argv)
    options.workload = _listed(options.workload) or list(DEFAULT_WORKLOADS)
    options.paths = _listed(options.paths) or ["*"]
    if options.rows < MIN_ROWS:
        parser.error(f"--rows {options.rows}: at least {MIN_ROWS}")
    if not 1 <= options.turns <= options.rows // 2:
        parser.error(f"--turns {options.turns}: from 1 to half of --rows {options.rows}")
    if options.label_rows is None:
        options.label_rows = max(MIN_ROWS, options.rows // 5)
    if options.label_rows < 0:
        parser.error(f"--label-rows {options.label_rows}: at least 0")
    if options.max_batch_tokens is not None and options.max_batch_tokens < 1:
        parser.error(f"--max-batch-tokens {options.max_batch_tokens}: at least 1")
    return run(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    """Measure and tell; what cannot be written is refused before anything is measured."""
    check_output("--json", options.json)
    check_output("--plot", options.plot)
    if options.plot is not None:
        if options.plot.suffix not in PICTURES:
            raise UsageError(f"--plot {str(options.plot)!r}: must end in {' or '.join(PICTURES)}")
        try:
            from pipeline.bench.plot import draw
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--plot needs {(error.name or '').partition('.')[0]!r}, which is not installed",
                "pip install -c constraints.txt -e '.[report]'",
            ) from error
    from pipeline.bench.measure import measure

    summary = measure(options)
    tell_json(summary, options.json)
    if options.plot is not None:
        draw(options.plot, summary["workloads"][summary["headline"]], f"{summary['model']}, {summary['machine']}")


def _listed(values: Sequence[str] | None) -> list[str]:
    """Values that may each be several with commas between, once each."""
    return list(dict.fromkeys(part.strip() for value in values or () for part in value.split(",") if part.strip()))


if __name__ == "__main__":
    sys.exit(main())
