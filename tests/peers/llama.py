"""A Llama-shaped decoder in plain tensor operations, for engines that are given a graph.

What the work needs is built into the graph, so that no engine has to find it out: projections that read the same input
are one matrix, norm weights are folded into it, and the output matrix has only the rows of the labels' first tokens.
``PrefixedLlama`` also holds the shared prefix's keys and values as constants, and its last layer's queries and
feed-forward are for the last position alone.

Knows dense decoders without biases (Llama, SmolLM2, Mistral without a window); refuses others.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

MAX_POSITIONS = 2048


class Llama(nn.Module):
    """(B, N) tokens behind cached ones to (B, N, L) logits plus bias; keys and values come in and go out."""

    def __init__(self, lm: Any, label_ids: Sequence[int], bias: Sequence[float]) -> None:
        super().__init__()
        config = lm.config
        biases = [name for name, _ in lm.named_parameters() if name.endswith(".bias")]
        if config.model_type not in ("llama", "mistral") or biases or getattr(config, "sliding_window", None):
            raise SystemExit(f"{config.model_type}: only Llama decoders without biases can be given as a graph")
        self.n_heads, self.n_kv = config.num_attention_heads, config.num_key_value_heads
        self.head_size, self.eps = config.head_dim, config.rms_norm_eps
        self.embedding = _constant(lm.model.embed_tokens.weight)
        self.layers = nn.ModuleList(_Layer(layer) for layer in lm.model.layers)
        self.head = _constant((lm.lm_head.weight[list(label_ids)] * lm.model.norm.weight).T)  # (H, L)
        self.bias = _constant(torch.tensor(bias, dtype=torch.float32))
        cos, sin = lm.model.rotary_emb(self.embedding, torch.arange(MAX_POSITIONS)[None])
        self.cos, self.sin = _constant(cos[0]), _constant(sin[0])  # (MAX_POSITIONS, D)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, ...]:
        """Past: of each layer (B, KV, P, D) keys and values; (B, P + N) mask; out: logits, then keys and values."""
        hidden = self.embedding[input_ids]  # (B, N, H)
        cos, sin = self.cos[position_ids][:, None], self.sin[position_ids][:, None]  # (B, 1, N, D)
        n_new, n_all = input_ids.shape[1], attention_mask.shape[1]
        causal = torch.arange(n_all)[None] <= torch.arange(n_new)[:, None] + (n_all - n_new)  # (N, P + N)
        seen = causal[None, None] & (attention_mask > 0)[:, None, None]
        states = []
        for layer, (past_key, past_value) in zip(self.layers, past, strict=True):
            query, key, value = (self._normed(hidden) @ layer.qkv).split(layer.sizes, dim=2)
            query = self._rotated(self._heads(query, self.n_heads), cos, sin)
            key = torch.cat([past_key, self._rotated(self._heads(key, self.n_kv), cos, sin)], dim=2)
            value = torch.cat([past_value, self._heads(value, self.n_kv)], dim=2)
            states += [key, value]
            hidden = self._finished(layer, hidden, query, key, value, seen)
        return (self._normed(hidden) @ self.head + self.bias, *states)

    def _finished(self, layer: Any, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        """What a layer makes of its input once queries, keys and values are known."""
        mixed = scaled_dot_product_attention(query, self._repeated(key), self._repeated(value), attn_mask=seen)
        hidden = hidden + mixed.transpose(1, 2).flatten(2) @ layer.o
        gate, up = (self._normed(hidden) @ layer.gate_up).split(layer.inner, dim=2)
        return hidden + (silu(gate) * up) @ layer.down

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(dim=-1, keepdim=True) + self.eps)

    def _heads(self, states: Tensor, n_heads: int) -> Tensor:
        """(B, N, A * D) to (B, A, N, D)."""
        return states.unflatten(2, (n_heads, self.head_size)).transpose(1, 2)

    def _rotated(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = self.head_size // 2
        return states * cos + torch.cat([-states[..., half:], states[..., :half]], dim=-1) * sin

    def _repeated(self, states: Tensor) -> Tensor:
        """(B, KV, M, D) to (B, A, M, D)."""
        n_rows, n_kv, n_all, size = states.shape
        wide = states[:, :, None].expand(n_rows, n_kv, self.n_heads // n_kv, n_all, size)
        return wide.reshape(n_rows, self.n_heads, n_all, size)


class PrefixedLlama(Llama):
    """(1, N) tokens behind the prefix to (1, L) logits at the last position."""

    def __init__(self, lm: Any, prefix_ids: Sequence[int], label_ids: Sequence[int]) -> None:
        super().__init__(lm, label_ids, [0.0] * len(label_ids))
        self.n_prefix = len(prefix_ids)
        cache = lm(torch.tensor([list(prefix_ids)]), use_cache=True).past_key_values
        self.past = [(layer.keys.detach(), layer.values.detach()) for layer in cache.layers]  # (1, KV, P, D)

    def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
        n_new, n_all = input_ids.shape[1], input_ids.shape[1] + self.n_prefix
        hidden = self.embedding[input_ids]  # (1, N, H)
        cos, sin = self.cos[self.n_prefix : n_all], self.sin[self.n_prefix : n_all]  # (N, D)
        seen = torch.ones(n_new, n_all, dtype=torch.bool).tril(self.n_prefix)
        for number, layer in enumerate(self.layers):
            normed = self._normed(hidden)
            if number < len(self.layers) - 1:
                query, key, value = (normed @ layer.qkv).split(layer.sizes, dim=2)
                query = self._rotated(self._heads(query, self.n_heads), cos, sin)
            else:
                hidden, seen = hidden[:, -1:], seen[-1:]
                query = self._rotated(self._heads(normed[:, -1:] @ layer.q, self.n_heads), cos[-1:], sin[-1:])
                key, value = (normed @ layer.kv).split(layer.sizes[1:], dim=2)
            key = torch.cat([self.past[number][0], self._rotated(self._heads(key, self.n_kv), cos, sin)], dim=2)
            value = torch.cat([self.past[number][1], self._heads(value, self.n_kv)], dim=2)
            hidden = self._finished(layer, hidden, query, key, value, seen)
        return (self._normed(hidden) @ self.head)[:, -1]


class _Layer(nn.Module):
    """One layer's matrices, (in, out), norm weights folded in."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        q, k, v = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
        self.sizes, self.inner = [len(q), len(k), len(v)], len(mlp.gate_proj.weight)
        self.q, self.kv = _constant((q * before).T), _constant((torch.cat([k, v]) * before).T)
        self.qkv = _constant((torch.cat([q, k, v]) * before).T)
        self.o = _constant(attention.o_proj.weight.T)
        self.gate_up = _constant((torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * after).T)
        self.down = _constant(mlp.down_proj.weight.T)


def load(model_folder: Path) -> Any:
    """The transformers model, float32, for its weights."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


def _constant(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone().contiguous(), requires_grad=False)
