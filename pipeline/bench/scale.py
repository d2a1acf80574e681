"""Whether a row costs the same in small files and in large ones: ``python -m pipeline.bench.scale``.

The whole stage, each run in a process of its own: over 1,000, 10,000 and 100,000 short rows with no model and with a
tiny one, and the same again with all scores known (copy, digest and look-up). Then over long-tailed tickets with a real
model: the share of the time in which the model had no work. Results go to stdout, progress to stderr; the last line of
stdout is JSON.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bench.command import Parser, check_output, run, tell_json
from pipeline.bench.workload import load_workload, short_tickets
from pipeline.errors import PipelineError

SIZES = (1_000, 10_000, 100_000)
HEADING = (
    f"{'engine':8}{'rows':>9}{'seconds':>10}{'rows/s':>10}{'us/row':>10}{'peak MiB':>10}{'outside model':>15}"
    f"{'rows/s, all known':>19}"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements and return the exit code."""
    parser = Parser(prog="python -m pipeline.bench.scale", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--sizes", nargs="*", type=int, default=SIZES, metavar="N", help="rows of the files of short texts (default: "
        f"{' '.join(map(str, SIZES))})",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=200, help="tickets for the real model, 0 for none (default 200)")
    parser.add_argument("--workload", default="mixed", choices=("mixed", "seed"), help="which tickets")
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a GGUF file or a hub name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    options = parser.parse_args(argv)
    if options.rows < 0 or min(options.sizes, default=1) < 1:
        parser.error("--rows and --sizes: no negative numbers, and no empty files")
    return run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    """Measure and tell.

    Raises:
        OutputError: the file cannot be written.
        PipelineError: a run failed; the others have been told.
    """
    check_output("--json", options.json)
    tickets = load_workload(options.workload, options.rows, tokenizer=None).texts if options.rows else []
    print(HEADING)
    runs: list[Mapping[str, Any] | int] = []
    for n_rows in options.sizes:
        runs += [run_stage(short_tickets(n_rows), engine, options.model) for engine in ("null", "tiny")]
    if tickets:
        runs.append(run_stage(tickets, "model", options.model))
    codes = [run for run in runs if isinstance(run, int)]
    tell_json({"model": options.model, "runs": [run for run in runs if not isinstance(run, int)]}, options.json)
    if codes:
        failed = PipelineError(f"{len(codes)} of {len(runs)} runs failed", "what each of them says stands above")
        failed.exit_code = max(codes)
        raise failed


def run_stage(texts: Sequence[str], engine: str, model: str) -> Mapping[str, Any] | int:
    """What one run of the stage took; its exit code if it failed, which it says itself on stderr.

    Args:
        texts: of the rows.
        engine: of ``stage_run``.
        model: the model, or whose tokenizer is taken.
    """
    print(f"{engine}: {len(texts):,} rows", file=sys.stderr, flush=True)
    with TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), Path(folder) / "in.parquet")
        command = [sys.executable, "-m", "pipeline.bench.stage_run", folder, f"--engine={engine}", f"--model={model}"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        return max(ended.returncode, 1)  # one that a signal ended has a negative code
    took: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(
        f"{engine:8}{took['rows']:9}{took['seconds']:10.2f}{took['rows_per_s']:10,.0f}{took['us_per_row']:10.1f}"
        f"{took['peak_mib']:10.0f}{took['outside_model_share']:15.1%}{took['known_rows_per_s']:19,.0f}",
        flush=True,
    )
    return {"asked": engine, **took}


if __name__ == "__main__":
    sys.exit(main())
