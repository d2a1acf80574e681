"""Whether half precision pays on this CPU. Many have no arithmetic for it, and emulate it many times slower."""

import time

import torch

SIZE = 512


def slowdown(dtype: torch.dtype) -> float:
    """How many times longer a matrix product takes in ``dtype`` than in float32, on this CPU; some 20 ms."""
    return _seconds(dtype) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    left, right = torch.ones(SIZE, SIZE, dtype=dtype), torch.ones(SIZE, SIZE, dtype=dtype)
    seconds = []
    for _ in range(4):  # the first one sets things up; of the others the one least disturbed
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
