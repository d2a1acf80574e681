"""The benchmark from loading the model to its figures; tables go to stdout as they are known, progress to stderr."""

import argparse
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from pipeline.bench.around import Around, measure_around
from pipeline.bench.bound import NONE, Bound, bind
from pipeline.bench.ceiling import copied_bytes_per_s, matmul_flops
from pipeline.bench.label_counts import build_label_paths, ratio_of_most_to_fewest
from pipeline.bench.memory import peak_of_path
from pipeline.bench.paths import Path, build_paths, figures
from pipeline.bench.table import ceiling_lines, label_count_lines, path_lines, share_lines, workload_lines
from pipeline.bench.time_shares import time_shares
from pipeline.bench.turns import run_in_turns, spread
from pipeline.bench.ways import Way, choose_ways
from pipeline.bench.workload import load_workload
from pipeline.engine.budget import default_batch_tokens
from pipeline.engine.load import load_model
from pipeline.engine.model import Model
from pipeline.settings import DEFAULT_MAX_TOKENS

HEADLINE = "mixed"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, ready for JSON.

    Args:
        options: of the command line.

    Raises:
        PipelineError: no model, no workload, or no such path.
    """
    ways = choose_ways(options.paths)
    model = load_model(options.model, device=options.device, dtype=options.dtype)
    options.max_batch_tokens = options.max_batch_tokens or default_batch_tokens(model, DEFAULT_MAX_TOKENS)
    workloads = [load_workload(name, options.rows, model.tokenizer) for name in options.workload]
    waiting = os.environ.get("OMP_WAIT_POLICY", "as it comes")
    machine = (
        f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}, "
        f"{str(model.dtype).removeprefix('torch.')}, OMP_WAIT_POLICY {waiting}"
    )
    _print(
        f"machine: {machine}; model: {model.name}; {options.max_batch_tokens} tokens a bucket, {options.turns} turns"
    )
    ceilings = {"matmul_gflops": matmul_flops(model) / 1e9, "copy_gb_per_s": copied_bytes_per_s(model) / 1e9}
    _print(*ceiling_lines(ceilings))
    measured = {}
    for workload in workloads:
        measured[workload.name] = _measure_workload(bind(workload, model), ways, options)
    return {
        "model": model.name,
        "machine": machine,
        "rows": options.rows,
        "turns": options.turns,
        "max_batch_tokens": options.max_batch_tokens,
        "ceilings": ceilings,
        "headline": HEADLINE if HEADLINE in measured else workloads[0].name,
        "workloads": measured,
        **(_measure_label_counts(model, options) if options.label_rows else {}),
    }


def _measure_workload(bound: Bound, ways: Sequence[Way], options: argparse.Namespace) -> dict[str, Any]:
    name = bound.workload.name
    around = measure_around(bound.workload, bound.encoder)
    paths = build_paths(ways, bound, options.turns, options.max_batch_tokens, _say)
    ceilings: list[float] = []
    run_in_turns(
        paths,
        options.turns,
        lambda: ceilings.append(matmul_flops(bound.model)),
        lambda line: _say(f"{name}: {line}"),
    )
    peaks = {path.way.name: _peak(path, options) if options.memory else None for path in paths}
    rows = [figures(path, paths[0], ceilings, peaks[path.way.name]) for path in paths]
    fastest = max(range(len(paths)), key=lambda place: (paths[place].way.shares_prefix, rows[place]["items_per_s"]))
    shares = time_shares(paths[fastest], 1 / rows[fastest]["items_per_s"], around)
    workload = {
        **_about(bound, around, paths[0]),
        "ceiling_gflops": spread(ceilings).median / 1e9,
        "ceiling_gflops_spread": [min(ceilings) / 1e9, max(ceilings) / 1e9],
        "paths": rows,
        "time_shares": shares,
        "time_shares_of": rows[fastest]["path"],
    }
    _print("", *workload_lines(workload), *path_lines(rows), *share_lines(shares, rows[fastest]["path"]))
    return workload


def _about(bound: Bound, around: Around, reference: Path) -> dict[str, Any]:
    """What a workload is, what the reference makes of it, and what surrounds the model."""
    workload, labels = bound.workload, bound.workload.task.label_names
    decided = [None if choice == NONE else labels[choice] for choice in bound.decisions(reference.raw)]
    accuracy = None
    if workload.truths is not None:
        accuracy = float(np.mean([label == truth for label, truth in zip(decided, workload.truths, strict=True)]))
    counts = Counter(decided)
    return {
        "workload": workload.name,
        "rows": len(workload.texts),
        "prompt_tokens_per_row": float(bound.n_tokens.mean()),
        "prefix_tokens": len(bound.encoder.prefix_ids),
        "shared_share": bound.shared_share(),
        "decisions": {label: counts[label] / len(decided) for label in labels},
        "accuracy": accuracy,
        "tokenizer_texts_per_s": around.texts_per_s,
        "tokenizer_tokens_per_s": around.tokens_per_s,
        "parquet_rows_per_s": around.rows_per_s,
    }


def _peak(path: Path, options: argparse.Namespace) -> float | None:
    name = path.bound.workload.name
    _say(f"{name}: peak memory of {path.way.name}")
    values = {
        "workload": name,
        "path": path.way.name,
        "model": options.model,
        "device": options.device,
        "dtype": options.dtype,
        "rows": options.rows,
        "max-batch-tokens": options.max_batch_tokens,
    }
    return peak_of_path([f"--{flag}={value}" for flag, value in values.items()])


def _measure_label_counts(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    n_turns = min(options.turns, options.label_rows)
    paths = build_label_paths(model, options.label_rows, n_turns, options.max_batch_tokens)
    run_in_turns(paths, n_turns, lambda: None, lambda line: _say(f"label counts: {line}"))
    rows, ratios = [path.figures() for path in paths], ratio_of_most_to_fewest(paths)
    _print("", f"label counts: {options.label_rows} short tickets", *label_count_lines(rows, ratios))
    return {"label_rows": options.label_rows, "label_counts": rows, "most_to_fewest_labels": ratios}


_print = partial(print, sep="\n", flush=True)
_say = partial(print, file=sys.stderr, flush=True)
