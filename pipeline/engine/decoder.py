"""The layers of a Llama-shaped model as plain matrices, ready for a pass over packed tokens.

Promises: the numbers of transformers' own modules up to rounding, and no second copy of any weight: query, key and
value matrices are laid behind each other once, and the model's own parameters become views of the joined one, so that
every other engine goes on with the same weights.

Knows the models whose layers are: RMS norm, rotary attention with grouped keys, RMS norm, gated MLP (Llama, Mistral,
Qwen2, Qwen3). Another model is refused; whether this code is right for one is checked against the reference path by
``choose_engine``, as for every engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.engine.model import Model

# Classes of transformers whose layers are computed here.
LLAMA_SHAPED = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer: ``weight`` (out, in), ``bias`` (out,) or None."""

    weight: Tensor
    bias: Tensor | None

    def into(self, out: Tensor, inputs: Tensor) -> Tensor:
        """Write (N, out) for inputs (N, in)."""
        if self.bias is None:
            return torch.mm(inputs, self.weight.t(), out=out)
        return torch.addmm(self.bias, inputs, self.weight.t(), out=out)

    def add_to(self, total: Tensor, inputs: Tensor) -> Tensor:
        """Add (N, out) for inputs (N, in) in place, as a residual connection does."""
        total.addmm_(inputs, self.weight.t())
        return total if self.bias is None else total.add_(self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm (Zhang & Sennrich 2019): ``weight`` (size,)."""

    weight: Tensor
    eps: float

    def __call__(self, states: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(states, (len(self.weight),), self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; ``qkv`` gives a token's queries, keys and values behind each other.

    Attributes:
        window: how many of the most recent tokens a token sees, None for all.
        scaling: factor on the attention scores.
        query_norm: over each head's queries, None for none (Qwen3 has one); ``key_norm`` likewise.
    """

    attention_norm: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    activation: nn.Module
    window: int | None
    scaling: float

    def add_mlp(self, states: Tensor, gate: Tensor, up: Tensor) -> None:
        """Add the MLP's output to states (N, H) in place; ``gate`` and ``up`` (N, intermediate) are overwritten."""
        inputs = self.mlp_norm(states)
        self.gate.into(gate, inputs)
        self.up.into(up, inputs)
        # in place, since fresh memory of this size costs as much as the activation itself
        activated = F.silu(gate, inplace=True) if isinstance(self.activation, nn.SiLU) else self.activation(gate)
        self.down.add_to(states, activated.mul_(up))


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers of a model.

    Attributes:
        embedding: (V, H)
        layers: in order.
        final_norm: behind the last layer.
        rotary: transformers' own module for the angles, which knows all kinds of scaling.
        n_heads: query heads.
        n_kv_heads: key and value heads.
        head_dim: size of each.
    """

    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Norm
    rotary: nn.Module
    n_heads: int
    n_kv_heads: int
    head_dim: int

    def angles(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (N, 1, head dim / 2), of positions (N,)."""
        cosines, sines = self.rotary(self.embedding, position_ids[None])
        half = self.head_dim // 2
        return cosines[0, :, None, :half], sines[0, :, None, :half]

    def queries_keys_values(
        self, layer: Layer, states: Tensor, qkv: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(N, heads, head dim) rotated queries and keys, and values, for states (N, H); all are views of ``qkv``."""
        layer.qkv.into(qkv, layer.attention_norm(states))
        heads = qkv.view(len(qkv), -1, self.head_dim)
        queries, rest = heads[:, : self.n_heads], heads[:, self.n_heads :]
        keys, values = rest[:, : self.n_kv_heads], rest[:, self.n_kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries.copy_(layer.query_norm(queries))
            keys.copy_(layer.key_norm(keys))
        _rotate(heads[:, : self.n_heads + self.n_kv_heads], *angles)
        return queries, keys, values


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> None:
    """Rotary position embedding (Su et al. 2021) in place: heads (N, n, head dim), angles (N, 1, head dim / 2)."""
    first, second = heads.chunk(2, dim=-1)
    first_turned = first * sines
    first.mul_(cosines).addcmul_(second, sines, value=-1)
    second.mul_(cosines).add_(first_turned)


def is_llama_shaped(model: Model) -> bool:
    """Whether the layers of a model are among those computed here."""
    base = type(model.lm.base_model)
    return base.__name__ in LLAMA_SHAPED and base.__module__.startswith("transformers.")


def build_decoder(model: Model) -> Decoder:
    """The layers of a loaded model that ``is_llama_shaped``."""
    base = model.lm.base_model
    attention = base.layers[0].self_attn
    config, head_dim = base.config, attention.head_dim
    return Decoder(
        embedding=base.embed_tokens.weight,
        layers=tuple(_layer(layer, _window(layer.self_attn)) for layer in base.layers),
        final_norm=_norm(base.norm),
        rotary=base.rotary_emb,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
    )


def _layer(layer: Any, window: int | None) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        output=_linear(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
        activation=mlp.act_fn,
        window=window,
        scaling=attention.scaling,
    )


def _window(attention: Any) -> int | None:
    """How many tokens a layer sees, as its own code has it: Llama's has no window, whatever the configuration says."""
    if type(attention).__name__ == "MistralAttention":
        window: int | None = attention.config.sliding_window
        return window
    return getattr(attention, "sliding_window", None)


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight, norm.variance_epsilon)


def _linear(linear: nn.Linear) -> Linear:
    return Linear(linear.weight, linear.bias)


def _joined(*linears: nn.Linear) -> Linear:
    """One layer that gives the outputs of several; their parameters become views of its own."""
    weight = _share([linear.weight for linear in linears])
    has_bias = linears[0].bias is not None  # transformers gives all three one or none
    return Linear(weight, _share([linear.bias for linear in linears]) if has_bias else None)


def _share(parts: Sequence[Tensor]) -> Tensor:
    """The parts behind each other, without a copy if they stand so already; each becomes a view of the whole."""
    first, sizes = parts[0], [len(part) for part in parts]
    end = first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            break
        end += part.nbytes
    else:
        if first.untyped_storage().nbytes() >= first.storage_offset() * first.element_size() + end - first.data_ptr():
            return first.detach().as_strided((sum(sizes), *first.shape[1:]), first.stride())
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, torch.split(whole, sizes), strict=True):
        part.data = view
    return whole
