"""What the machine can do at best: the model's own matrix multiplications, with nothing in between."""

import time

import torch

from pipeline.engine.model import Model

N_TOKENS = 1024
SECONDS = 2.0


def linear_shapes(model: Model) -> list[tuple[int, int]]:
    """(out, in) of each linear layer that every token passes; the output matrix is not one of them."""
    head = model.lm.get_output_embeddings()
    linears = (module for module in model.lm.modules() if isinstance(module, torch.nn.Linear))
    return [(linear.out_features, linear.in_features) for linear in linears if linear is not head]


def flop_per_token(model: Model) -> int:
    """Floating-point operations of the linear layers for one token."""
    return sum(2 * n_out * n_in for n_out, n_in in linear_shapes(model))


@torch.inference_mode()
def matmul_flops(model: Model) -> float:
    """FLOP per second of one token's share of the linear layers, ``N_TOKENS`` at once, each shape at its best."""
    shapes = linear_shapes(model)
    best = {shape: _best_seconds(shape, model) for shape in set(shapes)}
    return N_TOKENS * flop_per_token(model) / sum(best[shape] for shape in shapes)


def _best_seconds(shape: tuple[int, int], model: Model) -> float:
    inputs, weight = (
        torch.randn(size, dtype=model.dtype, device=model.device) for size in ((N_TOKENS, shape[1]), shape)
    )
    best, end = float("inf"), time.perf_counter() + SECONDS / len(set(linear_shapes(model)))
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.nn.functional.linear(inputs, weight)
        if inputs.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
