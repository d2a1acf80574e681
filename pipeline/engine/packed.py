"""The packed engine: a bucket is one row without padding, behind a prefix computed once.

One pass gives what is read of all rows. With a continuation tree every row is followed by the fed nodes of the tree,
and only the hidden states that are read meet the output matrix, or as much of it as the labels need. Other readouts
need no output matrix at all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.attention import PackedContext, register
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.model import Model, class_logits, edge_scores, final_states, joined_states, prefix_states
from pipeline.readout import ClassLogits, Readout


class PackedEngine:
    """Reads buckets in packed passes.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        readout: what to read of a row.

    Raises:
        ValueError: the model does not take its attention from transformers' attention interface, or its tokens see
            those behind them.
    """

    name = "packed"

    def __init__(self, model: Model, prefix_ids: tuple[int, ...], readout: Readout) -> None:
        if not model.is_causal:
            raise ValueError(f"{type(model.lm).__name__} is not causal")
        if not model.lm._can_set_attn_implementation():
            raise ValueError(f"{type(model.lm).__name__} does not use the attention interface")
        self._model = model
        self._readout = readout
        self._prefix = prefix_states(model, prefix_ids)
        self._head = _label_head(model, readout) if isinstance(readout, ContinuationTree) else None

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """What the readout says of a bucket's R rows, (R, K)."""
        model, layout = self._model, pack(bucket, self._readout, self._model.device)
        inputs = {
            "input_ids": layout.token_ids,
            "position_ids": layout.position_ids,
            "use_cache": False,
            "packed": PackedContext(layout, self._prefix, model.layer_windows),
        }
        with _packed_attention(model.lm):
            if isinstance(self._readout, ContinuationTree):
                return self._edge_scores(self._readout, layout, inputs)
            states = final_states(model, **inputs)[0]  # (N, H)
        last = states[layout.read_at]  # (R, H)
        if isinstance(self._readout, ClassLogits):
            return class_logits(model, last)
        return joined_states(last, layout.mean_of_own(states))

    def _edge_scores(self, tree: ContinuationTree, layout: PackedLayout, inputs: dict[str, Any]) -> NDArray[np.float32]:
        """(R, E) scores of the tree's edges."""
        with _output_head(self._model.lm, self._head):
            logits = self._model.lm(**inputs, logits_to_keep=layout.read_at).logits[0]  # (R * (1 + T), V or fewer)
        edges: Sequence[tuple[int, int]] = tree.edges
        if self._head is not None:
            column = {token: place for place, token in enumerate(_edge_tokens(tree))}
            edges = [(node, column[token]) for node, token in edges]
        return edge_scores(logits.view(layout.n_rows, -1, logits.shape[-1]), edges, tree.normaliser)


def _edge_tokens(tree: ContinuationTree) -> list[int]:
    """Every token that some edge of the tree leads to, once."""
    return list(dict.fromkeys(token for _, token in tree.edges))


def _label_head(model: Model, tree: ContinuationTree) -> nn.Linear | None:
    """The output matrix's rows for the tokens of the tree's edges, where no normaliser is needed; None where it is."""
    full = model.lm.get_output_embeddings()
    if tree.normaliser == "vocabulary" or not isinstance(full, nn.Linear):
        return None
    tokens = torch.tensor(_edge_tokens(tree), device=full.weight.device)
    head = nn.Linear(full.in_features, len(tokens), bias=full.bias is not None, device="meta")
    head.weight = nn.Parameter(full.weight[tokens], requires_grad=False)
    if full.bias is not None:
        head.bias = nn.Parameter(full.bias[tokens], requires_grad=False)
    return head


@contextmanager
def _packed_attention(lm: Any) -> Iterator[None]:
    """Run the model with packed attention, and give it back as it was."""
    before = lm.config._attn_implementation
    lm.set_attn_implementation(register())
    try:
        yield
    finally:
        lm.set_attn_implementation(before)


@contextmanager
def _output_head(lm: Any, head: nn.Linear | None) -> Iterator[None]:
    """Run the model with another output matrix, so that its own scaling and capping of logits still apply."""
    if head is None:
        yield
        return
    before = lm.get_output_embeddings()
    lm.set_output_embeddings(head)
    try:
        yield
    finally:
        lm.set_output_embeddings(before)
