"""The reference path: one row, alone, unpadded, no cache, one label chain at a time, a class head as it comes.

Slow, and right by construction.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model, edge_scores, final_states, joined_states
from pipeline.readout import HiddenStates, Readout


class SingleEngine:
    """Reads rows one at a time; what every other engine must agree with.

    Args:
        model: the loaded model.
        prefix_ids: tokens that stand before every row.
        readout: what to read of a row.
    """

    name = "single"
    workers = 1

    def __init__(self, model: Model, prefix_ids: tuple[int, ...], readout: Readout) -> None:
        self._model = model
        self._prefix_ids = np.asarray(prefix_ids, dtype=np.int64)
        self._readout = readout

    @torch.inference_mode()
    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """What the readout says of a bucket's R rows, (R, K)."""
        prefix = self._prefix_ids[: bucket.n_shared]
        rows = np.split(bucket.token_ids, np.cumsum(bucket.n_tokens)[:-1])
        return np.concatenate([self._read(np.concatenate([prefix, row]), len(row)) for row in rows])

    def _read(self, prompt: NDArray[np.int64], n_own: int) -> NDArray[np.float32]:
        """(1, K) of one whole prompt, which ends with the row's own tokens."""
        if isinstance(self._readout, ContinuationTree):
            return self._edge_scores(prompt, self._readout)
        token_ids = torch.from_numpy(prompt)[None].to(self._model.device)
        if isinstance(self._readout, HiddenStates):
            states = final_states(self._model, input_ids=token_ids, use_cache=False)
            return joined_states(states[:, -1], states[:, -n_own:].float().mean(dim=1))
        logits: torch.Tensor = self._model.lm(input_ids=token_ids).logits
        return logits.float().cpu().numpy()

    def _edge_scores(self, prompt: NDArray[np.int64], tree: ContinuationTree) -> NDArray[np.float32]:
        """(1, E) scores of the tree's edges."""
        node_logits: dict[int, torch.Tensor] = {}
        for path in tree.paths:
            fed = [tree.token_ids[node - 1] for node in path]
            tokens = torch.from_numpy(np.concatenate([prompt, np.asarray(fed, dtype=np.int64)]))
            logits = self._model.lm(
                input_ids=tokens[None].to(self._model.device), use_cache=False, logits_to_keep=1 + len(path)
            ).logits[0]
            node_logits.update(zip((0, *path), logits, strict=True))
        ordered = torch.stack([node_logits[node] for node in range(1 + tree.n_nodes)])
        return edge_scores(ordered[None], tree.edges, tree.normaliser)
