"""The reference path: one row, alone, unpadded, no cache, one label chain at a time.

Slow, and right by construction.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model, edge_scores


class SingleEngine:
    """Scores rows one at a time; what every other engine must agree with.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        tree: the continuations to score.
    """

    name = "single"

    def __init__(self, model: Model, prefix_ids: tuple[int, ...], tree: ContinuationTree) -> None:
        self._model = model
        self._prefix_ids = np.asarray(prefix_ids, dtype=np.int64)
        self._tree = tree

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """Edge scores (R, E) of a bucket."""
        prefix = self._prefix_ids[: bucket.n_shared]
        rows = np.split(bucket.token_ids, np.cumsum(bucket.n_tokens)[:-1])
        return np.concatenate([self._score_prompt(np.concatenate([prefix, row])) for row in rows])

    def _score_prompt(self, prompt: NDArray[np.int64]) -> NDArray[np.float32]:
        """Edge scores (1, E) of one whole prompt."""
        node_logits: dict[int, torch.Tensor] = {}
        for path in self._tree.paths:
            fed = [self._tree.token_ids[node - 1] for node in path]
            tokens = torch.from_numpy(np.concatenate([prompt, np.asarray(fed, dtype=np.int64)]))
            logits = self._model.lm(
                input_ids=tokens[None].to(self._model.device), use_cache=False, logits_to_keep=1 + len(path)
            ).logits[0]
            node_logits.update(zip((0, *path), logits, strict=True))
        ordered = torch.stack([node_logits[node] for node in range(1 + self._tree.n_nodes)])
        return edge_scores(ordered[None], self._tree)
