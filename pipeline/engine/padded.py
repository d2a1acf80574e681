"""The padded engine: left padding, attention mask, explicit positions, only what is read of a row.

The fallback for causal models that do not take their attention from transformers' interface, and the way for encoders.
A bucket is one padded pass; labels of more than one token are then fed as short continuations of the cached rows, one
chain of the tree at a time. Encoders see whole rows, padded on the right as they were in training.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model, class_logits, edge_scores, final_states, joined_states, prefix_states
from pipeline.engine.workers import n_workers
from pipeline.readout import ClassLogits, Readout


@dataclass(frozen=True, slots=True)
class _Rows:
    """The left-padded rows of a bucket, W places wide, behind M - W places that a cache holds.

    Attributes:
        input_ids: (R, W)
        attention_mask: (R, M)
        position_ids: (R, W)
        is_own: (R, W) bool: the rows' own tokens.
        cache: keys and values of the M - W places.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    is_own: Tensor
    cache: DynamicCache


class PaddedEngine:
    """Reads buckets in left-padded passes.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        readout: what to read of a row.
        share_prefix: whether the prefix is computed once, or with every row. Sliding-window models measure distance in
            places of the padded row, which padding between prefix and row would falsify, and an encoder's tokens see
            those behind them, so these never share.

    Raises:
        ValueError: an encoder is asked for more than its classes.
    """

    name = "padded"

    def __init__(
        self, model: Model, prefix_ids: tuple[int, ...], readout: Readout, *, share_prefix: bool = True
    ) -> None:
        if not (model.is_causal or isinstance(readout, ClassLogits)):
            raise ValueError(f"{type(model.lm).__name__} gives nothing but its classes")
        self.workers = n_workers(model.device)
        self._model = model
        self._prefix_ids = np.asarray(prefix_ids, dtype=np.int64)
        self._readout = readout
        shares = share_prefix and model.is_causal and not model.has_sliding_window
        self._prefix = prefix_states(model, prefix_ids) if shares else ()

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """What the readout says of a bucket's R rows, (R, K)."""
        if not self._model.is_causal:
            return self._encoder_logits(bucket)
        rows = self._rows(bucket)
        if isinstance(self._readout, ContinuationTree):
            return self._edge_scores(self._readout, rows)
        states = final_states(
            self._model,
            input_ids=rows.input_ids,
            attention_mask=rows.attention_mask,
            position_ids=rows.position_ids,
            cache=rows.cache,
            use_cache=False,
        )  # (R, W, H)
        if isinstance(self._readout, ClassLogits):
            return class_logits(self._model, states[:, -1])
        own = states.float().masked_fill(~rows.is_own[:, :, None], 0.0)
        return joined_states(states[:, -1], own.sum(dim=1) / rows.is_own.sum(dim=1, keepdim=True))

    def _rows(self, bucket: Bucket) -> _Rows:
        """Pad a bucket, with the prefix as cached states in front, or as tokens within each row."""
        device = self._model.device
        n_rows, longest = len(bucket.n_tokens), int(bucket.n_tokens.max())
        rectangle = np.zeros((n_rows, longest), dtype=np.int64)
        is_own = np.arange(longest) >= longest - bucket.n_tokens[:, None]
        rectangle[is_own] = bucket.token_ids

        cache = DynamicCache()
        if self._prefix and bucket.n_shared:
            for layer, (key, value) in enumerate(self._prefix):
                cache.update(_shared(key, bucket), _shared(value, bucket), layer)
            mask = np.concatenate([np.ones((n_rows, bucket.n_shared), dtype=np.bool_), is_own], axis=1)
        else:
            rectangle, mask = _prepend(self._prefix_ids[: bucket.n_shared], rectangle, is_own)
            is_own = np.concatenate([np.zeros((n_rows, bucket.n_shared), dtype=np.bool_), is_own], axis=1)
        attention_mask = torch.from_numpy(mask).long().to(device)
        return _Rows(
            input_ids=torch.from_numpy(rectangle).to(device),
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -rectangle.shape[1] :],
            is_own=torch.from_numpy(is_own).to(device),
            cache=cache,
        )

    def _edge_scores(self, tree: ContinuationTree, rows: _Rows) -> NDArray[np.float32]:
        """(R, E) scores of the tree's edges."""
        lm, device, n_rows, n_nodes = self._model.lm, self._model.device, len(rows.input_ids), tree.n_nodes
        # 1. one pass over all rows; only the last place of each is read
        output = lm(
            input_ids=rows.input_ids,
            attention_mask=rows.attention_mask,
            position_ids=rows.position_ids,
            cache=rows.cache,
            use_cache=n_nodes > 0,
            logits_to_keep=1,
        )
        node_logits = [output.logits[:, -1]] + [output.logits[:, -1]] * n_nodes

        # 2. each chain of the tree behind the cached rows, which are then cut back
        for path in tree.paths if n_nodes else ():
            fed = torch.tensor([tree.token_ids[node - 1] for node in path], device=device).expand(n_rows, -1)
            steps = torch.arange(1, len(path) + 1, device=device)
            logits = lm(
                input_ids=fed,
                attention_mask=torch.cat([rows.attention_mask, torch.ones_like(fed)], dim=1),
                position_ids=rows.position_ids[:, -1:] + steps,
                cache=rows.cache,
                use_cache=True,
            ).logits
            rows.cache.crop(-len(path))
            for step, node in enumerate(path):
                node_logits[node] = logits[:, step]
        return edge_scores(torch.stack(node_logits, dim=1), tree.edges, tree.normaliser)

    def _encoder_logits(self, bucket: Bucket) -> NDArray[np.float32]:
        """(R, classes) logits of whole rows, padded on the right."""
        lm, prefix = self._model.lm, self._prefix_ids[: bucket.n_shared]
        lengths = bucket.n_tokens + len(prefix)
        is_token = np.arange(lengths.max()) < lengths[:, None]
        # some models (RoBERTa) count positions by which tokens are not padding
        rectangle = np.full(is_token.shape, getattr(lm.config, "pad_token_id", None) or 0, dtype=np.int64)
        rectangle[:, : len(prefix)] = prefix
        is_own = is_token & (np.arange(lengths.max()) >= len(prefix))
        rectangle[is_own] = bucket.token_ids
        logits: Tensor = lm(
            input_ids=torch.from_numpy(rectangle).to(self._model.device),
            attention_mask=torch.from_numpy(is_token).long().to(self._model.device),
        ).logits
        return logits.float().cpu().numpy()


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
