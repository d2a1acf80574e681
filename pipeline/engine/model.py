"""A causal language model in memory, and the two things every engine asks of it: prefix states and edge scores."""

import hashlib
import inspect
import json
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from pipeline.continuations import ContinuationTree

# Entries of a configuration that say where it came from and not what it computes.
_NOT_THE_MODEL = ("_name_or_path", "architectures", "transformers_version", "dtype", "use_cache")


@dataclass(frozen=True)
class Model:
    """A loaded causal language model.

    Attributes:
        lm: the transformers model, in eval mode, on ``device``.
        tokenizer: its tokenizer.
        device: where it runs.
        dtype: type of its weights.
        name: what the user asked for, for messages.
    """

    lm: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    name: str

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt, 2048 if the model does not say.

        Beyond its original context a model with long rope scales the angles of a whole pass by its longest row, so that
        a row's scores would depend on its company.
        """
        rope = getattr(self._config, "rope_parameters", None) or {}
        original = rope.get("original_max_position_embeddings")
        return int(original or getattr(self._config, "max_position_embeddings", None) or 2048)

    @property
    def _config(self) -> Any:
        return self.lm.config.get_text_config(decoder=True)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over configuration, weights (names, types, shapes, values), and code that came with the model."""
        config = self._config.to_dict()
        for key in _NOT_THE_MODEL:
            config.pop(key, None)
        digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
        for name, weights in self.lm.state_dict().items():
            digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}".encode())
            digest.update(weights.contiguous().flatten().view(torch.uint8).cpu().numpy())
        module = sys.modules[type(self.lm).__module__]
        if module.__name__.startswith("transformers_modules."):  # came with the model, by --trust-remote-code
            digest.update(inspect.getsource(module).encode())
        return digest.hexdigest()

    @cached_property
    def has_sliding_window(self) -> bool:
        """Whether any layer sees only the most recent tokens."""
        layer_types = getattr(self._config, "layer_types", None)
        if layer_types is not None:
            return any(kind != "full_attention" for kind in layer_types)
        return getattr(self._config, "sliding_window", None) is not None

    @cached_property
    def layer_windows(self) -> tuple[int | None, ...]:
        """How many of the most recent tokens each layer sees, None for all.

        Raises:
            ValueError: a layer is of another kind than full or sliding attention.
        """
        kinds = getattr(self._config, "layer_types", None)
        kinds = kinds or ["sliding_attention"] * self._config.num_hidden_layers
        if others := {*kinds} - {"full_attention", "sliding_attention"}:
            raise ValueError(f"layers of kind {', '.join(sorted(others))}")
        window = getattr(self._config, "sliding_window", None) or None
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@torch.inference_mode()
def prefix_states(model: Model, prefix_ids: tuple[int, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys and values of the shared prefix, per layer, each (1, kv heads, P, head dim); with an empty prefix P is 0.

    A plain ``DynamicCache()``: one built from a sliding-window config would drop early positions.
    """
    cache: Any = DynamicCache()
    # an empty prefix still needs tensors of the right shape and type, so one token is run and cut off
    token_ids = torch.tensor([prefix_ids or (0,)], device=model.device)
    model.lm(input_ids=token_ids, cache=cache, use_cache=True, logits_to_keep=1)
    n_prefix = len(prefix_ids)
    return tuple((layer.keys[:, :, :n_prefix], layer.values[:, :, :n_prefix]) for layer in cache.layers)


def edge_scores(logits: Tensor, tree: ContinuationTree) -> NDArray[np.float32]:
    """The tree's edge scores from the logits at its nodes.

    Args:
        logits: (R, 1 + T, V), node 0 being the end of the prompt.
        tree: says which (node, token) pairs are wanted, and whether as log-probabilities.

    Returns:
        (R, E) float32.
    """
    nodes, tokens = torch.tensor(tree.edges, device=logits.device).T
    logits = logits.float()
    scores = logits[:, nodes, tokens]
    if tree.normaliser == "vocabulary":
        scores = scores - logits.logsumexp(dim=-1)[:, nodes]
    return scores.cpu().numpy()
