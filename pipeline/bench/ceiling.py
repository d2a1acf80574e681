"""What the machine can do at best: the model's own matrix multiplications, nothing in between, and memory copies."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from pipeline.engine.model import Model
from pipeline.engine.workers import default_threads_kept, use_one_thread

N_TOKENS = 1024
SECONDS = 0.5
COPIED_BYTES = 128 << 20  # more than any cache holds


def linear_shapes(model: Model) -> list[tuple[int, int]]:
    """(out, in) of each linear layer that every token passes; the output matrix is not one of them."""
    head = model.lm.get_output_embeddings()
    return _shapes(model.lm, but=(head,))


def flop_per_token(model: Model) -> int:
    """Floating-point operations of the linear layers for one token."""
    return _flop(linear_shapes(model))


def flop_of_last_rest(model: Model) -> int:
    """Of these, those of the last layer behind its queries, keys and values, for Llama-shaped models.

    An engine may spend them only on the tokens that are read.
    """
    layer = model.lm.base_model.layers[-1]
    attention = layer.self_attn
    return _flop(_shapes(layer, but=(attention.q_proj, attention.k_proj, attention.v_proj)))


@torch.inference_mode()
def matmul_flops(model: Model) -> float:
    """FLOP per second in one token's share of the linear layers, ``N_TOKENS`` at once, each shape at its best.

    On a CPU the better of two ways: all threads on one product, and each on a product of its own. Results go to memory
    that is there already, so that no page fault is counted. Takes about ``SECONDS``.
    """
    n_threads = torch.get_num_threads() if model.device.type == "cpu" else 1
    ways = 2 if n_threads > 1 else 1
    together = _token_flops(model, SECONDS / ways, lambda: None)
    if ways == 1:
        return together
    start = threading.Barrier(n_threads)

    def alone() -> float:
        use_one_thread()
        with torch.inference_mode():
            return _token_flops(model, SECONDS / ways, start.wait)

    with default_threads_kept(), ThreadPoolExecutor(n_threads) as pool:
        apart = sum(done.result() for done in [pool.submit(alone) for _ in range(n_threads)])
    return max(together, apart)


@torch.inference_mode()
def copied_bytes_per_s(model: Model) -> float:
    """Bytes copied per second, read and written once each, from memory to memory of the model's device, at best."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=model.device)
    target = torch.zeros_like(source)
    return COPIED_BYTES / _best_seconds(lambda: target.copy_(source), model, SECONDS)


def _token_flops(model: Model, seconds: float, ready: Callable[[], Any]) -> float:
    """FLOP per second of the calling thread, which says it is ready before each shape."""
    shapes = linear_shapes(model)
    best: dict[tuple[int, int], float] = {}
    for shape in dict.fromkeys(shapes):
        inputs, weight, out = (_random(size, model) for size in ((N_TOKENS, shape[1]), shape, (N_TOKENS, shape[0])))
        multiply = _product(inputs, weight, out)
        multiply()
        ready()
        best[shape] = _best_seconds(multiply, model, seconds / len(set(shapes)))
    return N_TOKENS * _flop(shapes) / sum(best[shape] for shape in shapes)


def _product(inputs: Tensor, weight: Tensor, out: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.mm(inputs, weight.t(), out=out)


def _best_seconds(work: Callable[[], Any], model: Model, seconds: float) -> float:
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        work()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _random(size: tuple[int, int], model: Model) -> Tensor:
    return torch.randn(size, dtype=model.dtype, device=model.device)


def _shapes(module: Any, but: tuple[Any, ...]) -> list[tuple[int, int]]:
    shapes = []
    for part in module.modules():
        if any(part is one for one in but):
            continue
        if isinstance(part, torch.nn.Linear):
            shapes.append((part.out_features, part.in_features))
        if isinstance(part, Conv1D):  # GPT-2's linear layers, whose weights lie the other way
            n_in, n_out = part.weight.shape
            shapes.append((n_out, n_in))
    return shapes


def _flop(shapes: list[tuple[int, int]]) -> int:
    return sum(2 * n_out * n_in for n_out, n_in in shapes)
