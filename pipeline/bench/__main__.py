"""Measure every path over the same long-tailed tickets, in one process: ``python -m pipeline.bench``.

First the machine's matrix-multiply ceiling at the model's own layer shapes, then six ways to label the same rows. What
is compared is one pass per row (first-token scores), model load and tokenizing outside the clock. Then what 3, 10 and
77 labels of several words cost on short tickets. Results go to stdout, progress to stderr; the last line of stdout is
JSON.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.errors import PipelineError

MIN_ROWS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify
    parser = argparse.ArgumentParser(prog="python -m pipeline.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=600, help="how many tickets, at least 20 (default %(default)s)")
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a GGUF file or a hub name")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--max-batch-tokens", type=int, default=1024, help="padded tokens of a bucket (default 1024)")
    options = parser.parse_args(argv)
    if options.rows < MIN_ROWS:
        parser.error(f"--rows {options.rows}: at least {MIN_ROWS}")
    try:
        measure(options)
    except PipelineError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(options: argparse.Namespace) -> None:
    """Load the model, run all paths and print what they took."""
    import torch

    from pipeline.bench.ceiling import N_TOKENS, flop_per_token, matmul_flops
    from pipeline.bench.label_counts import build_label_paths
    from pipeline.bench.paths import build_paths, run_in_turns
    from pipeline.engine.load import load_model

    model = load_model(options.model, device=options.device, dtype=options.dtype)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}, {model.dtype}"
    print(
        f"machine: {machine}; model: {model.name}; {options.rows} tickets, {options.max_batch_tokens} tokens a bucket"
    )
    before = matmul_flops(model)
    paths = build_paths(model, options.rows, options.max_batch_tokens)
    run_in_turns(paths, lambda line: print(line, file=sys.stderr))
    ceiling = max(before, matmul_flops(model))
    print(f"ceiling: {ceiling / 1e9:.0f} GFLOP/s in this model's matrix multiplications, {N_TOKENS} tokens at once")
    figures = [path.figures(paths[0], flop_per_token(model), ceiling) for path in paths]
    print_table(figures)

    n_short = max(MIN_ROWS, options.rows // 5)
    label_paths = build_label_paths(model, n_short, options.max_batch_tokens)
    run_in_turns(label_paths, lambda line: print(f"label counts: {line}", file=sys.stderr))
    label_counts = [path.figures() for path in label_paths]
    print(f"label counts: {n_short} short tickets, packed + shared prefix")
    print_label_counts(label_counts)
    about = {"rows": options.rows, "model": model.name, "machine": machine, "ceiling_gflops": ceiling / 1e9}
    print(json.dumps({**about, "paths": figures, "label_rows": n_short, "label_counts": label_counts}))


def print_table(figures: Sequence[dict[str, Any]]) -> None:
    """A line per path, for people."""
    print(f"{'path':32}{'items/s':>9}{'x':>7}{'tokens/s':>10}{'padding':>9}{'ceiling':>9}{'agree':>8}{'max diff':>10}")
    for row in figures:
        print(
            f"{row['path']:32}{row['items_per_s']:9.2f}{row['speedup']:7.2f}{row['useful_tokens_per_s']:10.0f}"
            f"{row['padding_share']:9.1%}{row['ceiling_share']:9.0%}{row['agreement']:8.1%}"
            f"{row['largest_difference']:10.1e}"
        )


def print_label_counts(figures: Sequence[dict[str, Any]]) -> None:
    """A line per number of labels and way to compare them, for people."""
    print(f"{'labels':>6} {'scoring':12}{'items/s':>9}{'prefix':>8}{'label tokens/row':>18}{'fed tokens/row':>16}")
    for row in figures:
        print(
            f"{row['labels']:6} {row['scoring']:12}{row['items_per_s']:9.2f}{row['prefix_tokens']:8}"
            f"{row['label_tokens_per_row']:18}{row['fed_tokens_per_row']:16.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
