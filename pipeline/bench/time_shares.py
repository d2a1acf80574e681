"""Where a row's time goes: linear layers, attention, the rest of the model, tokenizing, reading and writing.

The parts of the model are shares of the time that torch's profiler sees in a few buckets, one after the other on one
thread or device, times the seconds that a row took in the benchmark. Profiling makes small steps look a little larger
than they are.
"""

from itertools import islice

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.bench.around import Around
from pipeline.bench.paths import Path
from pipeline.buckets import cut_buckets

N_BUCKETS = 6
# What operators are called that do the work, by the beginning of their names; all others are "other model work".
LINEAR = ("aten::mm", "aten::addmm", "aten::linear", "mkl", "onednn")
ATTENTION = ("aten::_scaled_dot_product", "aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_flash", "aten::_eff")


def time_shares(path: Path, seconds_per_row: float, around: Around) -> dict[str, float]:
    """Share of each part in the seconds of a row, all of them together 1.

    Args:
        path: whose buckets are profiled.
        seconds_per_row: that the model takes.
        around: rates of what is not the model, which in the stage runs beside it.
    """
    model = _shares_in_model(path)
    seconds = {part: share * seconds_per_row for part, share in model.items()}
    seconds |= {"tokenizing": 1 / around.texts_per_s, "reading and writing": 1 / around.rows_per_s}
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items()}


@torch.inference_mode()
def _shares_in_model(path: Path) -> dict[str, float]:
    bound, n_nodes = path.bound, path.bound.scorer.readout.n_nodes
    frame = bound.behind_prefix if path.way.shares_prefix else bound.whole
    on_cuda = path.bound.model.device.type == "cuda"
    buckets = [*cut_buckets(frame, max_batch_tokens=path.max_batch_tokens, extra_tokens=n_nodes)]
    if path.engine.workers > 1:
        torch.set_num_threads(1)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_cuda
    with profile(activities=activities) as profiled:
        for bucket in islice(buckets, 0, None, max(1, len(buckets) // N_BUCKETS)):
            path.engine.score(bucket)
    torch.set_num_threads(path.n_threads)
    seconds = {"linear layers": 0.0, "attention": 0.0, "other model work": 0.0}
    for event in profiled.key_averages():
        part = next(
            (
                part
                for part, names in (("linear layers", LINEAR), ("attention", ATTENTION))
                if event.key.startswith(names)
            ),
            "other model work",
        )
        seconds[part] += event.self_device_time_total if on_cuda else event.self_cpu_time_total
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items()}
