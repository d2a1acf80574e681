"""The same work on other engines, interleaved with ours: ``python -m tests.peers``. See README.md beside this file.

Results go to stdout, progress to stderr. Not a test: nothing of it is collected by pytest.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.bench.workload import WORKLOADS
from pipeline.engine.embedded import embedded_model
from tests.peers.contest import command, run_contest
from tests.peers.engines import PEERS, n_cores
from tests.peers.figures import figures_of, label_counts, table
from tests.peers.work import load_work

VERSIONS = ("torch", "transformers", "onnxruntime", "openvino", "openvino-genai", "ctranslate2", "nncf")


def main() -> int:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=300, help="rows that each engine labels (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns to do it in (default %(default)s)")
    parser.add_argument("--engines", default=",".join(names), help="some of %(default)s")
    parser.add_argument("--workload", default="mixed", choices=WORKLOADS)
    parser.add_argument("--model", type=Path, help="a transformers folder (default: the embedded model)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep converted models and logs there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no engine is left behind
    chosen = options.engines.split(",")
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"--engines {unknown[0]!r}: there are {', '.join(names)}")
    if not 1 <= options.rounds <= options.rows:
        parser.error(f"--rounds {options.rounds}: at least 1, and at most as many as --rows")
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
        contest(options, chosen, options.work)
        return 0
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        contest(options, chosen, Path(folder))
    return 0


def contest(options: argparse.Namespace, chosen: list[str], folder: Path) -> None:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    model, work = options.model or embedded_model(), folder / "work.json"
    sizes = [str(options.rows), str(options.rounds)]
    subprocess.run(command("work", options.workload, str(model), *sizes, str(work)), check=True)
    deals = load_work(work).deals[1:]
    peers = [peer for peer in PEERS if peer.name in chosen]
    taking_part = [peer for peer in peers if not peer.missing]

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    contestants = run_contest(taking_part, model, work, folder, options.rounds, say)
    figures = figures_of(contestants)
    about = {
        "machine": f"{platform.machine()}, {n_cores()} cores",
        "versions": {name: found for name in VERSIONS if (found := _version(name)) is not None},
        "workload": options.workload,
        "rows": sum(map(len, deals)),
        "rounds": options.rounds,
        "prompt_tokens": sum(len(prompt) for deal in deals for prompt in deal),
        "prefix_tokens": len(load_work(work).question.prefix_ids),
        "labels_of_reference": label_counts(contestants),
    }
    for key, value in about.items():
        print(f"{key.replace('_', ' ')}: {value}")
    print("\n".join(table(figures, [peer for peer in peers if peer.missing])))
    if options.json is not None:
        options.json.write_text(json.dumps({**about, "engines": figures}, indent=2) + "\n", encoding="utf-8")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
