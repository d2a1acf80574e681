"""What a unit costs beside its rows: ``python -m pipeline.bench.units``.

A Ray of this machine's own, the pool of a run on Ray, and the units that a file of as many row groups is cut into; but
its workers load nothing and label nothing. So what is left is what the driver needs to deal a unit out and to take it
back. Results go to stdout, progress to stderr; the last line of stdout is JSON.
"""

import argparse
import os
import pickle
import platform
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.bench.command import Parser, check_output, check_ray, run, tell_json
from pipeline.command.checked_file import CheckedFile
from pipeline.command.manifest import FileState
from pipeline.command.options import Options
from pipeline.distributed.plan import plan_units
from pipeline.distributed.unit import Done, Outcome, Unit
from pipeline.errors import PipelineError
from pipeline.parquet.location import locate
from pipeline.stats import RunStats
from pipeline.task_file import builtin_task

if TYPE_CHECKING:
    from pipeline.distributed.pool import Pool

SHARES = (0.1, 0.5, 1.0)  # of the units, after which memory is looked at


class IdleWorker:
    """Has done every unit at once."""

    def load(self) -> PipelineError | None:
        """Nothing is to be loaded."""
        return None

    def work(self, unit: Unit) -> Outcome:
        """Say that the unit is done."""
        return Done({}, "", RunStats(rows=unit.rows.n_rows))

    @staticmethod
    def may_try_again(outcome: Any) -> bool:
        """None fails."""
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement and return the exit code."""
    parser = Parser(prog="python -m pipeline.bench.units", description=__doc__.split("\n")[0])
    parser.add_argument("--units", type=int, default=10_000, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Ray actors (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    options = parser.parse_args(argv)
    if min(options.units, options.workers) < 1:
        parser.error("--units and --workers: at least 1")
    return run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    check_ray()
    check_output("--json", options.json)
    from pipeline.distributed.cluster import LOCAL, connected, worker_environment
    from pipeline.distributed.pool import Pool, PoolSize

    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    print(f"machine: {machine}; {options.units:,} units, {options.workers} workers")
    units = units_of_one_file(options.units)
    print("starting Ray", file=sys.stderr, flush=True)
    size = PoolSize(options.workers, options.workers, cpus=0, gpus=0)  # they all find a place, on any machine
    with connected(LOCAL, lambda: None), Pool((IdleWorker, ()), size, worker_environment(size)) as pool:
        took = run_units(pool, units)
    summary = {"machine": machine, "units": len(units), "workers": options.workers, **took}
    summary["bytes_per_unit"] = len(pickle.dumps(units[-1]))
    print(f"bytes of a pickled unit      {summary['bytes_per_unit']:12,}")
    print(f"s until the first is done    {took['start_seconds']:12.2f}")
    print(f"s for the others             {took['seconds']:12.2f}")
    print(f"us a unit                    {took['us_per_unit']:12.0f}")
    for share, mib in took["resident_mib"].items():
        print(f"MiB of the driver at {share:>5}   {mib:12.0f}")
    tell_json(summary, options.json)


def units_of_one_file(n_units: int) -> list[Unit]:
    """What a file of as many row groups is cut into; there is no such file, and nobody reads it."""
    state = FileState(size=1, mtime_ns=1)
    options = Options()
    groups = (options.unit_rows,) * n_units
    place, output = locate("in.parquet"), locate("out.parquet")
    file = CheckedFile("in.parquet", place, output, builtin_task(), sum(groups), groups, state, None, None)
    return plan_units([file], locate("parts"), options)[file.name]


def run_units(pool: "Pool", units: Sequence[Unit]) -> dict[str, Any]:
    """What the units of a pool took.

    Args:
        pool: whose workers are not ready yet.
        units: for it.
    """
    looks = {max(1, round(share * len(units))): f"{share:.0%}" for share in SHARES}
    resident: dict[str, float] = {}
    begun = first = time.perf_counter()
    for n_done, _ in enumerate(pool.run(units, lambda: None), 1):
        if n_done == 1:
            first = time.perf_counter()
        if n_done in looks:
            resident[looks[n_done]] = resident_mib()
    seconds = time.perf_counter() - first
    return {
        "start_seconds": first - begun,
        "seconds": seconds,
        "us_per_unit": 1e6 * seconds / max(1, len(units) - 1),
        "resident_mib": resident,
    }


def resident_mib() -> float:
    """The memory that this process has now; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
