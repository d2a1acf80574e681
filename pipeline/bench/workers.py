"""Whether workers cost throughput: ``python -m pipeline.bench.workers``.

The same rows are labelled in turns by this process, on all cores, and by workers on Ray that share the cores. Both
label units by the code that a run on Ray uses, with the model loaded before the clock starts. The units of a turn have
texts of the same lengths, so that no worker waits for another at its end. Results go to stdout, progress to stderr;
the last line of stdout is JSON.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bench.command import Parser, check_output, check_ray, run, tell_json
from pipeline.bench.turns import deal, spread
from pipeline.bench.workload import load_workload
from pipeline.command.checked_file import CheckedFile
from pipeline.command.manifest import existing_state
from pipeline.command.options import Options, parse
from pipeline.distributed.plan import plan_units
from pipeline.distributed.unit import Done, Job, Unit
from pipeline.errors import UsageError
from pipeline.parquet.location import locate
from pipeline.version import installed_version

if TYPE_CHECKING:
    from pipeline.distributed.pool import Pool
    from pipeline.distributed.worker import UnitWorker


@dataclass(frozen=True, slots=True)
class Turn:
    """Rows that both label.

    Attributes:
        whole: one unit with all of them.
        units: the same rows, several units for each worker.
    """

    whole: Unit
    units: list[Unit]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement and return the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify
    parser = Parser(prog="python -m pipeline.bench.workers", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=480, metavar="N", help="of all turns (default %(default)s)")
    parser.add_argument("--turns", type=int, default=4, metavar="N", help="(default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Ray actors (default %(default)s)")
    parser.add_argument("--units", type=int, default=2, metavar="N", help="of a worker and turn (default %(default)s)")
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a GGUF file or a hub name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    options = parser.parse_args(argv)
    if min(options.turns, options.workers, options.units) < 1:
        parser.error("--turns, --workers and --units: at least 1")
    if options.rows < options.turns * options.workers * options.units:
        parser.error("--rows: at least one for each unit of each turn")
    return run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    check_ray()
    check_output("--json", options.json)
    from pipeline.distributed.cluster import LOCAL, connected, worker_environment
    from pipeline.distributed.pool import Pool, PoolSize
    from pipeline.distributed.worker import UnitWorker

    n_cores = os.cpu_count() or 1
    size = PoolSize(options.workers, options.workers, cpus=max(1, n_cores // options.workers), gpus=0)
    machine = f"{platform.machine()}, {n_cores} CPUs"
    print(f"machine: {machine}; {options.workers} workers of {size.cpus:g} cores against one process on all")
    with TemporaryDirectory(prefix="parquet-classify-") as folder, connected(LOCAL, lambda: None):
        job, turns = _turns(Path(folder), options)
        here = UnitWorker(job)
        if (failure := here.load()) is not None:
            raise failure
        with Pool((UnitWorker, (job,)), size, worker_environment(size)) as pool:
            figures = _take_turns(here, pool, turns)
    ratio = figures["ratio"]
    for way in ("process", "workers"):
        median, low, high = figures[f"{way}_rows_per_s"]
        print(f"{way:12}{median:8.2f} rows/s ({low:.2f} to {high:.2f})")
    print(f"{'ratio':12}{ratio[0]:8.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})")
    print(f"{'start':12}{figures['start_seconds']:8.1f} s until all workers had done a unit")
    print(f"{'labels':12}{figures['n_equal']:8,} of {figures['n_rows']:,} equal")
    tell_json({"machine": machine, "workers": options.workers, "cpus_per_worker": size.cpus, **figures}, options.json)


def _take_turns(here: "UnitWorker", pool: "Pool", turns: Sequence[Turn]) -> dict[str, Any]:
    """What the turns took; the units of the first are done once before, off the clock."""
    here.work(turns[0].units[0])
    turns[0].units[0].part.local.unlink()
    begun = time.perf_counter()
    _labels(_work_on(pool, turns[0].units))
    started = time.perf_counter() - begun
    alone: list[float] = []
    together: list[float] = []
    n_equal = n_rows = 0
    for number, turn in enumerate(turns, 1):
        print(f"turn {number} of {len(turns)}", file=sys.stderr, flush=True)
        for unit in turn.units:
            unit.part.local.unlink(missing_ok=True)  # it would not be made again
        begun = time.perf_counter()
        expected = _labels([(turn.whole, here.work(turn.whole))])
        alone.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        found = _labels(_work_on(pool, turn.units))
        together.append(time.perf_counter() - begun)
        n_rows += len(expected)
        n_equal += sum(one == other for one, other in zip(expected, found, strict=True))
    sizes = [turn.whole.rows.n_rows for turn in turns]

    def of_turns(values: list[float]) -> list[float]:
        found = spread(values)
        return [found.median, found.low, found.high]

    return {
        "process_rows_per_s": of_turns([n / took for n, took in zip(sizes, alone, strict=True)]),
        "workers_rows_per_s": of_turns([n / took for n, took in zip(sizes, together, strict=True)]),
        "ratio": of_turns([one / other for one, other in zip(alone, together, strict=True)]),
        "start_seconds": started,
        "n_rows": n_rows,
        "n_equal": n_equal,
    }


def _work_on(pool: "Pool", units: list[Unit]) -> list[tuple[Unit, Any]]:
    done = list(pool.run(units, lambda: None))
    return sorted(done, key=lambda one: one[0].rows.first_row)


def _labels(done: Sequence[tuple[Unit, Any]]) -> list[str | None]:
    """Of the parts of units, in order.

    Raises:
        PipelineError: a unit failed.
    """
    labels: list[str | None] = []
    for unit, outcome in done:
        if not isinstance(outcome, Done):
            raise getattr(outcome, "error", None) or UsageError("every worker died that had a unit", "use fewer")
        labels += pq.read_table(unit.part.local, columns=["label"]).column(0).to_pylist()
    return labels


def _turns(folder: Path, options: argparse.Namespace) -> tuple[Job, list[Turn]]:
    """A file for each turn, and what workers are told."""
    texts = load_workload("mixed", options.rows, tokenizer=None).texts
    lengths = np.array([len(text) for text in texts])
    flags = parse([str(folder), str(folder / "out"), "--model", options.model, "--text-column", "text", "--ray"])
    assert flags is not None
    task = flags.build_task()
    job = Job(flags, flags.build_settings(), task, installed_version(), os.getcwd())
    n_units, turns = options.workers * options.units, []
    for number, rows in enumerate(deal(lengths, options.turns)):
        path = folder / f"{number}.parquet"
        with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
            for group in deal(lengths[rows], n_units):
                writer.write_table(pa.table({"text": [texts[row] for row in rows[group]]}))
        groups = tuple(pq.read_metadata(path).row_group(i).num_rows for i in range(n_units))
        place = locate(str(path))
        file = CheckedFile("", place, place, task, sum(groups), groups, existing_state(place), None, None)
        whole, units = (
            _planned(file, folder / f"{number}-by-{unit_rows}", replace(flags, unit_rows=unit_rows))
            for unit_rows in (options.rows, 1)
        )
        turns.append(Turn(whole[0], units))
    return job, turns


def _planned(file: CheckedFile, parts: Path, options: Options) -> list[Unit]:
    parts.mkdir()
    return plan_units([file], locate(str(parts)), options)[file.name]


if __name__ == "__main__":
    sys.exit(main())
