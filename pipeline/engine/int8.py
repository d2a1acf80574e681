"""Products in int8: the fused engine with a smaller number format where a model notices it least.

What is in int8 is the gate and up matrices of each MLP, half of a pass's products. The rest stays as it is: with the
down matrices, too, one label in twelve was another one (docs/log.md). Weights have a scale for each output channel,
states one for each token, so that what a token becomes does not depend on its company (per-token dynamic quantization,
ZeroQuant, Yao et al. 2022). Before that, channels whose states are large hand some of their size over to the weights
(SmoothQuant, Xiao et al. 2022), by powers of two, which are exact.

Promises: the float engine and the model's weights are not touched; the same numbers on every machine, as far as its
float arithmetic gives them, since states take 7 bits: with 8, sums of two products saturate on CPUs without VNNI.
The products are oneDNN's. Knows nothing of labels: whether the result is good enough is for ``pipeline.agreement``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.buckets import Bucket
from pipeline.engine.decoder import Layer, Linear, Norm
from pipeline.engine.fused import FusedEngine, why_not_fused
from pipeline.engine.model import Model

STATE_LEVELS = 63  # each side of zero: 7 bits
STATE_ZERO = 64
WEIGHT_LEVELS = 127
# How much of the differences between channels goes to the weights; .65 and .5 gave fewer equal labels (docs/log.md).
SMOOTHING = 0.8
# Channels count as no smaller than this share of the largest one: what was silent on a few texts may be loud on others.
SMALLEST_SHARE = 1e-3
TINY = 1e-30

# Texts of different kinds, to see which channels are large.
SMOOTHING_TEXTS = (
    "I was charged twice for my order in March and would like one of the payments back.",
    "The app closes by itself as soon as I open the settings page. Phone: Pixel 7, version 4.2.1.",
    "How do I change the e-mail address of my account?",
    "WHERE IS MY PARCEL??? It was to be here on Monday!!!",
    "Dear team,\n\nthank you for the quick help yesterday, everything works again.\n\nKind regards,\nM. Okafor",
    "Error 0x80070005: access denied\n  at Loader.open(Loader.cs:118)\n  at Main.run(Main.cs:27)",
    "The committee met on 14 June 2021 to discuss the budget, which had grown by 3.5 % over the year before.",
    "A quiet film with two fine actors; the last half hour drags, but the ending makes up for it.",
    "ok",
    "Bonjour, je n'arrive plus à me connecter depuis la mise à jour. Merci d'avance.",
    "id=4711; status=open; priority=high; tags=refund,shipping; amount=129.90 EUR",
    "She said that the river had been higher in her mother's day, and that nobody had believed it then either.",
)


class TokenLevels(NamedTuple):
    """States as small whole numbers.

    Attributes:
        levels: (N, in) uint8, ``STATE_ZERO`` standing for 0.
        size: (N, 1) float32: of one step.
    """

    levels: Tensor
    size: Tensor


@dataclass(frozen=True, slots=True)
class Int8Norm:
    """An RMS norm whose result is given in levels, a scale for each token."""

    norm: Norm

    def __call__(self, states: Tensor) -> TokenLevels:
        """Normalise states (N, in); a token that is not finite stays so by its size."""
        normed = self.norm(states)
        size = normed.abs().amax(dim=1, keepdim=True).clamp_(min=TINY).div_(STATE_LEVELS)
        return TokenLevels(normed.div_(size).round_().add_(STATE_ZERO).to(torch.uint8), size)


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """A linear layer in int8.

    Attributes:
        packed: the weights' levels, as oneDNN wants them.
        sizes: (out,) float32: of one step of each output channel's weights.
        zeros: (out,) int32: the levels that stand for 0, all 0.
        bias: (out,) or None.
    """

    packed: Tensor
    sizes: Tensor
    zeros: Tensor
    bias: Tensor | None

    @property
    def n_outputs(self) -> int:
        """How many numbers it gives a token."""
        return len(self.sizes)

    def into(self, out: Tensor, inputs: TokenLevels) -> Tensor:
        """Write (N, out) for inputs (N, in)."""
        levels, size = inputs
        product = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, STATE_ZERO, self.packed, self.sizes, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )  # fmt: skip
        torch.mul(product, size, out=out)
        return out if self.bias is None else out.add_(self.bias)


class _Watched:
    """A norm that remembers ``largest``, (size,): the largest absolute value of each channel it gave."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.largest = torch.zeros_like(norm.weight)

    def __call__(self, states: Tensor) -> Tensor:
        normed = self.norm(states)
        torch.maximum(self.largest, normed.abs().amax(dim=0), out=self.largest)
        return normed


@torch.inference_mode()
def quantized(engine: FusedEngine, probes: Iterable[Bucket]) -> FusedEngine:
    """An engine like a float one, with half of its products in int8; the prefix's keys and values are the float ones.

    Args:
        engine: as it was built.
        probes: ``SMOOTHING_TEXTS`` as the engine's prompt has them.
    """
    watched = [_Watched(_float_norm(layer)) for layer in engine.layers]
    pairs = [*zip(engine.layers, watched, strict=True)]
    watching = engine.with_layers([replace(layer, mlp_norm=norm) for layer, norm in pairs])
    for bucket in probes:
        watching.score(bucket)
    return engine.with_layers([int8_layer(layer, norm.largest) for layer, norm in pairs])


def int8_layer(layer: Layer, largest: Tensor) -> Layer:
    """A layer with its gate and up matrices in int8.

    Args:
        layer: in float.
        largest: (H,) the largest absolute values of the channels that its MLP's norm gives.
    """
    norm, gate, up = _float_norm(layer), layer.gate, layer.up
    assert isinstance(gate, Linear) and isinstance(up, Linear), "quantized already"
    factors = smoothing_factors(largest, torch.cat([gate.weight, up.weight]))
    return replace(
        layer,
        mlp_norm=Int8Norm(replace(norm, weight=norm.weight / factors)),
        gate=int8_linear(gate.weight * factors, gate.bias),
        up=int8_linear(up.weight * factors, up.bias),
    )


def _float_norm(layer: Layer) -> Norm:
    assert isinstance(layer.mlp_norm, Norm), "quantized already"
    return layer.mlp_norm


def int8_linear(weight: Tensor, bias: Tensor | None) -> Int8Linear:
    """A linear layer of weights (out, in), rounded to levels."""
    sizes = weight.abs().amax(dim=1).clamp_(min=TINY).div_(WEIGHT_LEVELS)
    levels = (weight / sizes[:, None]).round_().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(levels, None)
    return Int8Linear(packed, sizes, torch.zeros(len(sizes), dtype=torch.int32), bias)


def smoothing_factors(largest: Tensor, weight: Tensor) -> Tensor:
    """(in,) powers of two by which states are divided and weights multiplied.

    Args:
        largest: (in,) absolute values of the states' channels.
        weight: (out, in) of all matrices that the states meet.
    """
    factors = _shares(largest) ** SMOOTHING / _shares(weight.abs().amax(dim=0)) ** (1 - SMOOTHING)
    return factors.log2().round().exp2()


def _shares(sizes: Tensor) -> Tensor:
    """Sizes as shares of the largest; what all have in common, each token's own scale takes up."""
    return (sizes / sizes.max().clamp(min=TINY)).clamp(min=SMALLEST_SHARE)


def why_not_int8(model: Model) -> str | None:
    """Why a model cannot be run in int8, None if it can."""
    if reason := why_not_fused(model):
        return reason
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return None if has_onednn else "this build of torch has no oneDNN"
