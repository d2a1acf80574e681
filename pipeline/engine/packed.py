"""The packed engine: a bucket is one row without padding, behind a prefix computed once.

One pass gives all edge scores of all rows: every row is followed by the fed nodes of the continuation tree, and only
the hidden states that are read meet the output matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.attention import PackedContext, register
from pipeline.engine.layout import pack
from pipeline.engine.model import Model, edge_scores, prefix_states


class PackedEngine:
    """Scores buckets in packed passes.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        tree: the continuations to score.

    Raises:
        ValueError: the model does not take its attention from transformers' attention interface.
    """

    name = "packed"

    def __init__(self, model: Model, prefix_ids: tuple[int, ...], tree: ContinuationTree) -> None:
        if not model.lm._can_set_attn_implementation():
            raise ValueError(f"{type(model.lm).__name__} does not use the attention interface")
        self._model = model
        self._tree = tree
        self._prefix = prefix_states(model, prefix_ids)
        self._head = _label_head(model, tree)

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """Edge scores (R, E) of a bucket."""
        layout = pack(bucket, self._tree, self._model.device)
        with _packed_attention(self._model.lm), _output_head(self._model.lm, self._head):
            logits = self._model.lm(
                input_ids=layout.token_ids,
                position_ids=layout.position_ids,
                use_cache=False,
                logits_to_keep=layout.read_at,
                packed=PackedContext(layout, self._prefix, self._model.layer_windows),
            ).logits[0]  # (R * (1 + T), V or E)
        logits = logits.view(layout.n_rows, -1, logits.shape[-1])
        if self._head is not None:
            scores: NDArray[np.float32] = logits[:, 0].float().cpu().numpy()
            return scores
        return edge_scores(logits, self._tree)


def _label_head(model: Model, tree: ContinuationTree) -> nn.Linear | None:
    """The output matrix's rows for the labels' first tokens, where no normaliser is needed; None where it is."""
    full = model.lm.get_output_embeddings()
    if tree.normaliser == "vocabulary" or tree.n_nodes or not isinstance(full, nn.Linear):
        return None
    tokens = torch.tensor([token for _, token in tree.edges], device=full.weight.device)
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
