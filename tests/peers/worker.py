"""One engine's process: ``python -m tests.peers.worker STEP ...``, started by the harness.

Steps: ``work`` makes the work, ``convert`` makes an engine's model, ``serve`` builds an engine and labels the deals
that it is told to on stdin, a number a line. Answers are lines of JSON on what was stdout; whatever libraries print
goes to stderr. Imports no more than its engine needs, so that peak memory is the engine's own.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.peers.engines import PEERS
from tests.peers.work import load_work, make_work


def main() -> None:
    step, *arguments = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if step == "work":
        workload, model, n_rows, n_rounds, path = arguments
        make_work(workload, Path(model), int(n_rows), int(n_rounds)).save(Path(path))
        return
    name, model, work_path, folder = arguments
    (peer,) = (peer for peer in PEERS if peer.name == name)
    work = load_work(Path(work_path))
    if step == "convert":
        peer.load().convert(Path(model), Path(folder), work.question, peer.precision)
        return

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    engine = peer.load().build(Path(model), Path(folder), work.question, peer.precision)
    say({"setting": engine.setting})
    for line in sys.stdin:
        prompts = work.deals[int(line)]
        start, cpu_start = time.perf_counter(), time.process_time()
        labels, logits = engine.label(prompts)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        answer = {"labels": labels.tolist(), "logits": None if logits is None else logits.tolist()}
        say({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak_mb(), **answer})


def peak_mb() -> float:
    """The most memory that this process has held."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
