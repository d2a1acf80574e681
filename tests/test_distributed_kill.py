"""Whole runs on Ray that are stopped and killed: no row is lost, and what was finished is not done again.

The cluster outlives the runs, as a real one does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.cluster_utils import Cluster

from pipeline.classify import main
from tests.hard_files import ticket_texts

ROOT = Path(__file__).parents[1]
N_UNITS = 40
UNIT_ROWS = 8
N_STOPS = 1  # each costs a start of a cluster's workers; a change of how runs end is worth 10 once
N_WORKER_KILLS = 1
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGKILL: -signal.SIGKILL}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20})
    yield cluster
    cluster.shutdown()


def write(path: Path) -> Path:
    texts = [f"{text} {row}" for row, text in enumerate(ticket_texts(N_UNITS * UNIT_ROWS))]
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=UNIT_ROWS)
    return path


def states(parts: Path) -> dict[str, tuple[int, int]]:
    """By which a part is known, for each that is finished."""
    found = {path.name: path.stat() for path in parts.glob("rows-*.parquet")}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in found.items()}


def workers_of(cluster: Cluster) -> list[int]:
    """Processes of workers that are ready or loading."""
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title, state = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
            except OSError:  # it is gone
                continue
            if title.startswith(b"ray::UnitWorker") and int(state.rpartition(")")[2].split()[1]) == raylet:
                found.append(int(folder.name))
    return found


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.02)


def test_a_run_that_is_stopped_and_killed_and_whose_workers_are_killed_gives_the_file_of_a_calm_one(
    cluster: Cluster, tiny_model_folder: Path, tmp_path: Path
) -> None:
    path, calm, output, metrics = (tmp_path / name for name in ("in.parquet", "calm.parquet", "out.parquet", "metrics"))
    parts = tmp_path / ".out.parquet.parts"
    flags = ["--model", str(tiny_model_folder), "--text-column", "text", "--max-tokens", "300", "--progress", "none"]
    flags += ["--score-column", "score", "--status-column", "status", "--metrics", str(metrics)]
    assert main([str(write(path)), str(calm), *flags]) == 0
    n_texts = json.loads(metrics.read_text())["texts"]
    on_ray = ["--ray", cluster.address, "--workers", "2", "--cpus-per-worker", "1", "--unit-rows", str(UNIT_ROWS)]
    arguments = [str(path), str(output), *flags, *on_ray]

    kept: dict[str, tuple[int, int]] = {}
    for signum in (signal.SIGTERM, signal.SIGKILL) * N_STOPS:
        command = [sys.executable, "-m", "pipeline.classify", *arguments]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            n_wanted = len(kept) + max(1, N_UNITS // 8 // N_STOPS)
            wait_until(lambda n_wanted=n_wanted: len(states(parts)) >= n_wanted or process.poll() is not None)
            process.send_signal(signum)
            assert process.wait(60) == EXIT_CODES[signum], process.stderr.read()
        assert not output.exists()
        assert kept.items() <= states(parts).items(), "what was finished is not made again"
        if signum == signal.SIGTERM:
            assert not (tmp_path / ".out.parquet.partial").exists()
            wait_until(lambda: not workers_of(cluster))
        kept = states(parts)

    def kill_workers() -> None:
        for number in range(N_WORKER_KILLS):
            n_wanted = len(kept) + 2 + number * (N_UNITS - len(kept) - 4) // N_WORKER_KILLS
            wait_until(lambda n_wanted=n_wanted: len(states(parts)) >= n_wanted and bool(workers_of(cluster)))
            os.kill(workers_of(cluster)[number % len(workers_of(cluster))], signal.SIGKILL)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    n_kept = len(states(parts))
    assert main(arguments) == 0
    killer.join()
    ours, theirs = pq.read_table(output), pq.read_table(calm)
    assert ours.drop_columns("score").equals(theirs.drop_columns("score"))
    np.testing.assert_allclose(ours["score"].to_numpy(), theirs["score"].to_numpy(), atol=1e-5)
    assert n_texts - json.loads(metrics.read_text())["texts"] >= n_kept * UNIT_ROWS / 2
    assert not parts.exists()
