"""The padded engine: left padding, attention mask, explicit positions, last-position scores only.

The fallback for causal models that do not take their attention from transformers' interface. A bucket is one padded
pass; labels of more than one token are then fed as short continuations of the cached rows, one chain of the tree at a
time.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model, edge_scores, prefix_states


class PaddedEngine:
    """Scores buckets in left-padded passes.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        tree: the continuations to score.
        share_prefix: whether the prefix is computed once, or with every row. Sliding-window models measure distance in
            places of the padded row, which padding between prefix and row would falsify, so they never share.
    """

    name = "padded"

    def __init__(
        self, model: Model, prefix_ids: tuple[int, ...], tree: ContinuationTree, *, share_prefix: bool = True
    ) -> None:
        self._model = model
        self._prefix_ids = np.asarray(prefix_ids, dtype=np.int64)
        self._tree = tree
        self._prefix = prefix_states(model, prefix_ids) if share_prefix and not model.has_sliding_window else ()

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """Edge scores (R, E) of a bucket."""
        lm, device = self._model.lm, self._model.device
        n_rows, longest = len(bucket.n_tokens), int(bucket.n_tokens.max())
        rectangle = np.zeros((n_rows, longest), dtype=np.int64)
        is_token = np.arange(longest) >= longest - bucket.n_tokens[:, None]
        rectangle[is_token] = bucket.token_ids

        # 1. the prefix: cached states in front, or its tokens within each row
        cache = DynamicCache()
        if self._prefix and bucket.n_shared:
            for layer, (key, value) in enumerate(self._prefix):
                cache.update(_shared(key, bucket), _shared(value, bucket), layer)
            mask = np.concatenate([np.ones((n_rows, bucket.n_shared), dtype=np.bool_), is_token], axis=1)
        else:
            rectangle, mask = _prepend(self._prefix_ids[: bucket.n_shared], rectangle, is_token)
        n_fed = rectangle.shape[1]

        # 2. one pass over all rows; only the last place of each is read
        attention_mask = torch.from_numpy(mask).long().to(device)
        position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -n_fed:]
        n_nodes = self._tree.n_nodes
        output = lm(
            input_ids=torch.from_numpy(rectangle).to(device),
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=n_nodes > 0,
            logits_to_keep=1,
        )
        node_logits = [output.logits[:, -1]] + [output.logits[:, -1]] * n_nodes

        # 3. each chain of the tree behind the cached rows, which are then cut back
        for path in self._tree.paths if n_nodes else ():
            fed = torch.tensor([self._tree.token_ids[node - 1] for node in path], device=device).expand(n_rows, -1)
            steps = torch.arange(1, len(path) + 1, device=device)
            logits = lm(
                input_ids=fed,
                attention_mask=torch.cat([attention_mask, torch.ones_like(fed)], dim=1),
                position_ids=position_ids[:, -1:] + steps,
                cache=cache,
                use_cache=True,
            ).logits
            cache.crop(-len(path))
            for step, node in enumerate(path):
                node_logits[node] = logits[:, step]
        return edge_scores(torch.stack(node_logits, dim=1), self._tree)


def _shared(states: Tensor, bucket: Bucket) -> Tensor:
    """(1, H, P, D) prefix states for every row of a bucket: (R, H, n_shared, D)."""
    return states[:, :, : bucket.n_shared].expand(len(bucket.rows), -1, -1, -1)


def _prepend(
    prefix: NDArray[np.int64], rectangle: NDArray[np.int64], is_token: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Put the prefix's tokens directly before each row's own, behind the padding."""
    n_rows, n_prefix = len(rectangle), len(prefix)
    n_tokens = is_token.sum(axis=1)
    width = rectangle.shape[1] + n_prefix
    mask = np.arange(width) >= width - n_tokens[:, None] - n_prefix
    wide = np.zeros((n_rows, width), dtype=np.int64)
    wide[:, n_prefix:] = rectangle
    starts = width - n_tokens - n_prefix
    wide[np.arange(n_rows)[:, None], starts[:, None] + np.arange(n_prefix)] = prefix
    return wide, mask
