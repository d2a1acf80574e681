"""Attention over a packed bucket, plugged into transformers' attention interface.

The model runs on one packed row without padding; only here is the row spread into a (rows x slots) rectangle,
attention computed, and the result gathered back. The prefix's keys and values stand in front of every row's keys. No
model code is replaced: transformers hands its attention layers' queries, keys and values to the function registered
here, and passes the ``packed`` keyword of the model call through.

The idea of packing rows without padding is that of FlashAttention's variable-length interface (Dao et al., 2022); the
tree-shaped mask is that of tree attention in SpecInfer (Miao et al., 2023) and Medusa (Cai et al., 2024).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from pipeline.engine.layout import PackedLayout

IMPLEMENTATION = "packed_bucket"


@dataclass(frozen=True)
class PackedContext:
    """What the attention layers of one packed pass need beside their own queries, keys and values.

    Attributes:
        layout: where each token stands.
        prefix: per layer the prefix's keys and values, each (1, kv heads, at least P, head dim).
        windows: per layer how many of the most recent tokens it sees, None for all.
        masks: masks already built, by window.
    """

    layout: PackedLayout
    prefix: tuple[tuple[Tensor, Tensor], ...]
    windows: tuple[int | None, ...]
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, sliding_window: int | None) -> Tensor:
        """The layout's mask for this window, built once per pass."""
        if sliding_window is not None and self.layout.max_position < sliding_window:
            sliding_window = None
        if sliding_window not in self.masks:
            self.masks[sliding_window] = self.layout.mask(sliding_window)
        return self.masks[sliding_window]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedContext,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention of every row of a packed bucket over the prefix and itself.

    Args:
        module: the attention layer; its ``layer_idx`` picks the prefix's keys and values.
        query: (1, heads, N, head dim)
        key: (1, kv heads, N, head dim)
        value: (1, kv heads, N, head dim)
        attention_mask: ignored; the mask follows from ``packed``.
        packed: the bucket.
        scaling: factor on the scores; None for 1/sqrt(head dim).
        sliding_window: see ``PackedLayout.mask``.
        softcap: scores are squashed to softcap * tanh(scores / softcap) (Gemma 2).
        unused: what other implementations need.

    Returns:
        (1, N, heads, head dim), and None in place of the attention weights.

    Raises:
        ValueError: the layer's window is not the one of the configuration.
    """
    layout, layer = packed.layout, int(module.layer_idx)  # type: ignore[arg-type]
    # some models put their window only into the mask, which is not asked here: they must not be taken for windowless
    if sliding_window != packed.windows[layer]:
        raise ValueError(f"layer {layer} has window {packed.windows[layer]} but its attention gets {sliding_window}")
    prefix_key, prefix_value = packed.prefix[layer]
    rows, slots, n_prefix = layout.n_rows, layout.n_slots, layout.n_prefix

    def spread(states: Tensor) -> Tensor:  # (1, H, N, D) -> (R, H, S, D)
        packed_row = states[0].transpose(0, 1)  # (N, H, D)
        if not layout.is_dense:
            packed_row = packed_row.index_select(0, layout.token_of_slot)
        return packed_row.reshape(rows, slots, *packed_row.shape[1:]).transpose(1, 2)

    def with_prefix(prefix: Tensor, states: Tensor) -> Tensor:  # (R, H, P + S, D)
        return torch.cat([prefix[:, :, :n_prefix].expand(rows, -1, -1, -1), spread(states)], dim=2)

    queries, keys, values = spread(query), with_prefix(prefix_key, key), with_prefix(prefix_value, value)
    mask = packed.mask(sliding_window)
    if softcap is None:
        grouped = queries.shape[1] != keys.shape[1]
        attended = F.scaled_dot_product_attention(queries, keys, values, mask, scale=scaling, enable_gqa=grouped)
    else:
        attended = _softcapped(queries, keys, values, mask, scaling, softcap)
    attended = attended.transpose(1, 2).reshape(rows * slots, *attended.shape[1:2], attended.shape[-1])
    if not layout.is_dense:
        attended = attended.index_select(0, layout.slot_of_token)
    return attended[None], None


def _softcapped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None, softcap: float
) -> Tensor:
    """Plain attention with capped scores, which no fused kernel offers on every device."""
    groups = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.tanh(queries @ keys.transpose(2, 3) * scale / softcap) * softcap
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1, dtype=torch.float32)
    return weights.to(values.dtype) @ values


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The mask is built from the layout, not by transformers."""


def register() -> str:
    """Make the implementation known to transformers (again is harmless) and return its name."""
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
    return IMPLEMENTATION
