"""Peak memory of one path, in a process of its own: ``python -m pipeline.bench.memory``, which the benchmark starts.

In one process paths would hide behind each other: memory that one was given and gave back is there for the next, and
the high-water mark is that of the hungriest so far. A process loads the model, starts a new high-water mark (on Linux;
elsewhere loading counts, too), and labels a few rows: what it takes then is the model, what an engine keeps beside it,
and the largest pass. The last line of its output is the peak in MiB. On CUDA it is the device's memory that counts.
"""

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import PipelineError

ROWS = 64  # two batches of 32; strided over the lengths of 600, so that long ones are among them


def peak_of_path(arguments: Sequence[str]) -> float | None:
    """MiB at the peak of a process with these arguments, None if it failed, which it says itself on stderr.

    Args:
        arguments: of ``main``.
    """
    command = [sys.executable, "-m", "pipeline.bench.memory", *arguments]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return float(run.stdout.splitlines()[-1]) if run.returncode == 0 else None


def main(argv: Sequence[str] | None = None) -> int:
    """Label a few rows by one path, print the peak in MiB, and return the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify; nothing is timed here
    parser = argparse.ArgumentParser(prog="python -m pipeline.bench.memory", description=__doc__.split("\n")[0])
    for flag in ("workload", "path", "model", "device", "dtype"):
        parser.add_argument(f"--{flag}", required=True)
    for flag in ("rows", "max-batch-tokens"):
        parser.add_argument(f"--{flag}", type=int, required=True)
    options = parser.parse_args(argv)
    try:
        print(_measure(options))
    except (PipelineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


def _measure(options: argparse.Namespace) -> float:
    import torch

    from pipeline.bench.bound import bind
    from pipeline.bench.paths import build_paths
    from pipeline.bench.ways import choose_ways
    from pipeline.bench.workload import load_workload
    from pipeline.command.report import peak_rss_mib
    from pipeline.engine.load import load_model

    model = load_model(options.model, device=options.device, dtype=options.dtype)
    bound = bind(load_workload(options.workload, options.rows, model.tokenizer), model)
    way = choose_ways([options.path])[-1]
    n_turns = max(1, options.rows // ROWS)
    (path,) = build_paths([way], bound, n_turns, options.max_batch_tokens, lambda line: print(line, file=sys.stderr))
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        path.run_turn(0)
        return torch.cuda.max_memory_allocated() / (1 << 20)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
    path.run_turn(0)
    return peak_rss_mib()


if __name__ == "__main__":
    sys.exit(main())
