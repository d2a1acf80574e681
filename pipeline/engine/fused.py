"""The fused engine: packed buckets through our own code for Llama-shaped models, for CPUs.

What it saves against the packed engine, whose passes run transformers' modules: queries, keys and values come from one
product; products are added to the residual stream as they are computed; a pass works in a few buffers instead of fresh
memory for every step; attention never sees padding; and the last layer works only on the tokens that are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.decoder import Layer, build_decoder, is_llama_shaped
from pipeline.engine.label_head import label_head
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.model import Model, class_logits, edge_scores, joined_states, prefix_states
from pipeline.engine.workers import n_workers
from pipeline.readout import ClassLogits, HiddenStates, Readout

# Queries of a row that meet its keys at once: the later ones skip nothing, the earlier ones need not see all keys.
MAX_QUERIES = 128


@dataclass(frozen=True)
class Run:
    """Neighbouring rows of a bucket with the same number of tokens: a rectangle without padding.

    Attributes:
        start: their first packed token.
        n_rows: R
        n_tokens: S packed tokens of each row, its own and the tree's nodes.
        n_prefix: P
        position_ids: (S,) positions of a row's tokens in its prompt.
        tree_sees: (S, S) which of a row's tokens may see which by order and by the tree.
    """

    start: int
    n_rows: int
    n_tokens: int
    n_prefix: int
    position_ids: Tensor
    tree_sees: Tensor

    @property
    def tokens(self) -> slice:
        """Their packed tokens."""
        return slice(self.start, self.start + self.n_rows * self.n_tokens)

    @cached_property
    def masks(self) -> dict[int | None, Tensor]:
        """Masks already built, by window."""
        return {}

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """(S, P + S): 0 where a token may see another, else minus infinity."""
        if window not in self.masks:
            sees = torch.cat([self.tree_sees.new_ones(self.n_tokens, self.n_prefix), self.tree_sees], dim=1)
            if window is not None:
                keys = torch.cat([torch.arange(self.n_prefix), self.position_ids])
                sees = sees & (self.position_ids[:, None] - keys < window)
            self.masks[window] = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, float("-inf"))
        return self.masks[window]


class FusedEngine:
    """Reads buckets in packed passes of its own code.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        readout: what to read of a row.

    Raises:
        ValueError: the model is not Llama-shaped, or does not compute in float32 on a CPU.
    """

    name = "fused"

    def __init__(self, model: Model, prefix_ids: tuple[int, ...], readout: Readout) -> None:
        if reason := why_not_fused(model):
            raise ValueError(reason)
        self.workers = n_workers(model.device)
        self._model, self._readout = model, readout
        self._decoder = build_decoder(model)
        # (P, kv heads, head dim) keys and values of each layer
        self._prefix = tuple(
            (keys[0].transpose(0, 1), values[0].transpose(0, 1)) for keys, values in prefix_states(model, prefix_ids)
        )
        self._head = label_head(model, readout) if isinstance(readout, ContinuationTree) else None

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """What the readout says of a bucket's R rows, (R, K)."""
        readout, layout = self._readout, pack(bucket, self._readout, self._model.device)
        if isinstance(readout, HiddenStates):
            states = self._final_states(layout, bucket.n_tokens, None)  # (N, H)
            return joined_states(states[layout.read_at], layout.mean_of_own(states))
        states = self._final_states(layout, bucket.n_tokens, 1 + readout.n_nodes)  # (R * (1 + T), H)
        if isinstance(readout, ClassLogits):
            return class_logits(self._model, states)
        assert self._head is not None
        logits = self._head.matrix(states)
        return edge_scores(logits.view(layout.n_rows, -1, logits.shape[-1]), self._head.edges, readout.normaliser)

    def _final_states(self, layout: PackedLayout, n_tokens: NDArray[np.int64], n_read: int | None) -> Tensor:
        """States behind the last norm: (R * n_read, H) of the last ``n_read`` tokens of each row, (N, H) for None."""
        decoder = self._decoder
        states = F.embedding(layout.token_ids[0], decoder.embedding)  # (N, H)
        angles = decoder.angles(layout.position_ids[0])
        runs = [*_runs(layout, n_tokens + self._readout.n_nodes)]
        first, last = decoder.layers[0], len(decoder.layers) - 1
        qkv = states.new_empty(len(states), len(first.qkv.weight))
        attended = states.new_empty(len(states), decoder.n_heads, decoder.head_dim)
        gate = states.new_empty(len(states), len(first.gate.weight))
        up = torch.empty_like(gate)
        for number, layer in enumerate(decoder.layers):
            queries, keys, values = decoder.queries_keys_values(layer, states, qkv, angles)
            n_queries = n_read if number == last else None
            for run in runs:
                self._attend(number, layer, run, queries, keys, values, attended, n_queries)
            if n_queries is not None:
                states, attended = states[layout.read_at], attended[layout.read_at]
                gate, up = gate[: len(states)], up[: len(states)]
            layer.output.add_to(states, attended.flatten(1))
            layer.add_mlp(states, gate, up)
        return decoder.final_norm(states)

    def _attend(
        self, number: int, layer: Layer, run: Run, queries: Tensor, keys: Tensor, values: Tensor, attended: Tensor,
        n_queries: int | None,
    ) -> None:  # fmt: skip
        """Attention of a run's rows over the prefix and themselves, written to ``attended`` (N, heads, head dim).

        Args:
            number: of the layer.
            layer: itself.
            run: the rows.
            queries: (N, heads, head dim) of the bucket; ``keys`` and ``values`` (N, kv heads, head dim).
            keys: see there.
            values: see there.
            attended: is filled in.
            n_queries: only each row's last so many tokens are wanted; None for all.
        """

        def by_row(states: Tensor) -> Tensor:  # (N, heads, D) -> (R, heads, S, D)
            return states[run.tokens].view(run.n_rows, run.n_tokens, *states.shape[1:]).transpose(1, 2)

        def with_prefix(prefix: Tensor, states: Tensor) -> Tensor:  # (R, kv heads, P + S, D)
            before = prefix[: run.n_prefix].transpose(0, 1).expand(run.n_rows, -1, -1, -1)
            return torch.cat([before, by_row(states)], dim=2)

        prefix_keys, prefix_values = self._prefix[number]
        mask = run.mask(layer.window, queries.dtype)
        all_queries, all_keys, all_values = (
            by_row(queries),
            with_prefix(prefix_keys, keys),
            with_prefix(prefix_values, values),
        )
        target = attended[run.tokens].view(run.n_rows, run.n_tokens, *attended.shape[1:])
        own = run.n_tokens - self._readout.n_nodes  # up to here no token sees those behind it
        start = 0 if n_queries is None else run.n_tokens - n_queries
        while start < run.n_tokens:
            end = start + MAX_QUERIES if start + MAX_QUERIES < own else run.n_tokens
            seen = run.n_prefix + end
            part = F.scaled_dot_product_attention(
                all_queries[:, :, start:end],
                all_keys[:, :, :seen],
                all_values[:, :, :seen],
                mask[start:end, :seen],
                scale=layer.scaling,
                enable_gqa=self._decoder.n_heads != self._decoder.n_kv_heads,
            )
            target[:, start:end] = part.transpose(1, 2)
            start = end


def why_not_fused(model: Model) -> str | None:
    """Why this engine is not for a model, None if it is."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it is for float32 on a CPU, not {str(model.dtype).removeprefix('torch.')} on {model.device}"
    if not is_llama_shaped(model):
        return f"the layers of {type(model.lm.base_model).__name__} are not known"
    return None


def _runs(layout: PackedLayout, n_packed: NDArray[np.int64]) -> Iterator[Run]:
    """Neighbouring rows of the same length, ``n_packed`` (R,) packed tokens each."""
    ends = np.cumsum(n_packed)
    firsts = np.flatnonzero(np.diff(n_packed, prepend=-1))
    for first, after in zip(firsts, [*firsts[1:], len(n_packed)], strict=True):
        n_tokens = int(n_packed[first])
        start = int(ends[first]) - n_tokens
        yield Run(
            start=start,
            n_rows=int(after - first),
            n_tokens=n_tokens,
            n_prefix=layout.n_prefix,
            position_ids=layout.position_ids[0, start : start + n_tokens],
            tree_sees=layout.tree_sees[-n_tokens:, -n_tokens:],
        )
