"""The packed engine: a bucket is one row without padding, behind a prefix computed once.

One pass gives what is read of all rows. With a continuation tree every row is followed by the fed nodes of the tree,
and only the hidden states that are read meet the output matrix, or as much of it as the labels need. Other readouts
need no output matrix at all.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.attention import PackedContext, register
from pipeline.engine.label_head import label_head
from pipeline.engine.layout import PackedLayout, pack
from pipeline.engine.model import (
    Model,
    class_logits,
    copy_sharing_weights,
    edge_scores,
    final_states,
    joined_states,
    prefix_states,
)
from pipeline.engine.workers import n_workers
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
        self.workers = n_workers(model.device)
        self._readout = readout
        self._prefix = prefix_states(model, prefix_ids)
        # a copy of its own, so that nothing has to be set and set back around a pass while others run theirs
        self._model = replace(model, lm=copy_sharing_weights(model.lm))
        self._model.lm.set_attn_implementation(register())
        self._head = label_head(model, readout) if isinstance(readout, ContinuationTree) else None
        if self._head is not None and self._head.matrix is not model.lm.get_output_embeddings():
            # in place of the model's own, so that its scaling and capping of logits still apply
            self._model.lm.set_output_embeddings(self._head.matrix)

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
        if isinstance(self._readout, ContinuationTree):
            return self._edge_scores(self._readout, layout, inputs)
        states = final_states(model, **inputs)[0]  # (N, H)
        last = states[layout.read_at]  # (R, H)
        if isinstance(self._readout, ClassLogits):
            return class_logits(model, last)
        return joined_states(last, layout.mean_of_own(states))

    def _edge_scores(self, tree: ContinuationTree, layout: PackedLayout, inputs: dict[str, Any]) -> NDArray[np.float32]:
        """(R, E) scores of the tree's edges."""
        assert self._head is not None
        logits = self._model.lm(**inputs, logits_to_keep=layout.read_at).logits[0]  # (R * (1 + T), V or fewer)
        return edge_scores(logits.view(layout.n_rows, -1, logits.shape[-1]), self._head.edges, tree.normaliser)
