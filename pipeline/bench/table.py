"""The benchmark's figures as tables for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def ceiling_lines(ceilings: Mapping[str, float]) -> Iterator[str]:
    """What the machine can do, before anything is compared with it."""
    yield f"matrix multiplication at this model's layer shapes: {ceilings['matmul_gflops']:.0f} GFLOP/s"
    yield f"memory copy: {ceilings['copy_gb_per_s']:.1f} GB/s"


def workload_lines(workload: Mapping[str, Any]) -> Iterator[str]:
    """What a workload is, and what surrounds the model on it."""
    decided = ", ".join(f"{label} {share:.0%}" for label, share in workload["decisions"].items())
    right = "" if workload["accuracy"] is None else f"; {workload['accuracy']:.0%} right"
    yield (
        f"{workload['workload']}: {workload['rows']} rows, {workload['prompt_tokens_per_row']:.1f} tokens a prompt, "
        f"{workload['prefix_tokens']} of them the shared prefix; {workload['shared_share']:.1%} of the others in "
        "beginnings that rows have in common"
    )
    yield f"decisions of the reference: {decided}{right}"
    yield (
        f"tokenizer alone {workload['tokenizer_texts_per_s']:,.0f} texts/s, "
        f"{workload['tokenizer_tokens_per_s']:,.0f} tokens/s; "
        f"Parquet copy alone {workload['parquet_rows_per_s']:,.0f} rows/s"
    )
    low, high = workload["ceiling_gflops_spread"]
    yield f"matrix multiplication between the turns: {workload['ceiling_gflops']:.0f} GFLOP/s ({low:.0f} to {high:.0f})"


def path_lines(paths: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line per path; items/s and ratio with their smallest and largest."""
    yield (
        f"{'path':32}{'items/s':>9}{'from..to':>15}{'x':>7}{'from..to':>14}{'useful tok/s':>14}"
        f"{'tokens':>9}{'a row':>8}{'padding':>9}{'ceiling':>9}{'peak MiB':>10}{'agree':>8}{'max diff':>10}"
    )
    for row in paths:
        peak = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        largest = "-" if row["largest_difference"] is None else f"{row['largest_difference']:.1e}"
        failed = f"  {row['not_finite']} rows without finite scores" if row["not_finite"] else ""
        yield (
            f"{row['path']:32}{row['items_per_s']:9.2f}{_range(row['items_per_s_spread']):>15}"
            f"{row['speedup']:7.2f}{_range(row['speedup_spread']):>14}{row['useful_tokens_per_s']:14.0f}"
            f"{row['computed_tokens']:9}{row['computed_tokens_per_row']:8.1f}{row['padding_share']:9.1%}"
            f"{row['ceiling_share']:9.0%}{peak:>10}{row['agreement']:8.1%}{largest:>10}{failed}"
        )


def share_lines(shares: Mapping[str, float], path: str) -> Iterator[str]:
    """Where a row's time goes."""
    yield f"where time goes ({path}): " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items())


def label_count_lines(figures: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> Iterator[str]:
    """A line per number of labels and way to compare them, then the most against the fewest."""
    yield (
        f"{'labels':>6} {'scoring':12}{'items/s':>9}{'from..to':>15}{'prefix':>8}"
        f"{'label tokens/row':>18}{'fed tokens/row':>16}"
    )
    for row in figures:
        yield (
            f"{row['labels']:6} {row['scoring']:12}{row['items_per_s']:9.2f}{_range(row['items_per_s_spread']):>15}"
            f"{row['prefix_tokens']:8}{row['label_tokens_per_row']:18}{row['fed_tokens_per_row']:16.1f}"
        )
    fewest, most = figures[0]["labels"], figures[-1]["labels"]
    parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    yield f"items/s with {most} labels over items/s with {fewest}: {parts}"


def _range(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.2f}..{bounds[1]:.2f}"
