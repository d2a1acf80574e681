"""A language model in memory, and what every engine asks of it: prefix states, final states, edge scores."""

import copy
import hashlib
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache

from pipeline.continuations import Normaliser

# Entries of a configuration that say where it came from and not what it computes.
_NOT_THE_MODEL = ("_name_or_path", "architectures", "transformers_version", "dtype", "use_cache")


@dataclass(frozen=True)
class Model:
    """A loaded language model: a causal one, or one with a head for classes.

    Attributes:
        lm: the transformers model, in eval mode, on ``device``.
        tokenizer: its tokenizer.
        device: where it runs.
        dtype: type of its weights.
        name: what the user asked for, for messages.
        class_names: what the head's classes are called, in order; None for a model without such a head.
        multi_label: whether the head gives each class a yes or no of its own.
    """

    lm: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    name: str
    class_names: tuple[str, ...] | None = None
    multi_label: bool = False

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only those before them, so that a prefix can be shared and a row is read at its end.

        Classifiers on top of a causal model call the matrix that reads the last token ``score``; encoders have none.
        """
        return self.class_names is None or isinstance(getattr(self.lm, "score", None), nn.Linear)

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt, 2048 if the model does not say.

        Beyond its original context a model with long rope scales the angles of a whole pass by its longest row, so that
        a row's scores would depend on its company.
        """
        rope = getattr(self._config, "rope_parameters", None) or {}
        original = rope.get("original_max_position_embeddings")
        places = int(original or getattr(self._config, "max_position_embeddings", None) or 2048)
        # RoBERTa and its kin count positions from behind the padding's
        table = getattr(getattr(self.lm.base_model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        if padding is not None:
            places -= padding + 1
        if self.class_names is None:
            return places
        # what a classifier was trained on; a tokenizer that does not know says something astronomical
        return min(places, getattr(self.tokenizer, "model_max_length", places))

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


def copy_sharing_weights(lm: Any) -> Any:
    """A copy of a transformers model with modules and a configuration of its own, and the very same weights."""
    weights = [*lm.parameters(), *lm.buffers()]
    return copy.deepcopy(lm, {id(tensor): tensor for tensor in weights})


@torch.inference_mode()
def prefix_states(model: Model, prefix_ids: tuple[int, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys and values of the shared prefix, per layer, each (1, kv heads, P, head dim); with an empty prefix P is 0.

    A plain ``DynamicCache()``: one built from a sliding-window config would drop early positions.
    """
    cache: Any = DynamicCache()
    # an empty prefix still needs tensors of the right shape and type, so one token is run and cut off
    token_ids = torch.tensor([prefix_ids or (0,)], device=model.device)
    model.lm.base_model(input_ids=token_ids, cache=cache, use_cache=True)
    n_prefix = len(prefix_ids)
    return tuple((layer.keys[:, :, :n_prefix], layer.values[:, :, :n_prefix]) for layer in cache.layers)


def final_states(model: Model, **inputs: Any) -> Tensor:
    """(B, N, H) hidden states behind the model's last norm; its output matrix takes no part.

    Args:
        model: the loaded model.
        inputs: of its pass over (B, N) tokens.

    Raises:
        ValueError: the model gives no such states.
    """
    states = getattr(model.lm.base_model(**inputs), "last_hidden_state", None)
    if not isinstance(states, Tensor):
        raise ValueError(f"{type(model.lm).__name__} does not give its final hidden states")
    return states


def edge_scores(logits: Tensor, edges: Sequence[tuple[int, int]], normaliser: Normaliser) -> NDArray[np.float32]:
    """A tree's edge scores from the logits at its nodes.

    Args:
        logits: (R, 1 + T, V), node 0 being the end of the prompt.
        edges: the wanted (node, column of the logits) pairs, E long.
        normaliser: whether they are wanted as log-probabilities over all V, or as they are.

    Returns:
        (R, E) float32.
    """
    nodes, columns = torch.tensor(edges, device=logits.device).T
    scores = logits[:, nodes, columns].float()
    if normaliser == "vocabulary":
        scores = scores - logits.float().logsumexp(dim=-1)[:, nodes]
    return scores.cpu().numpy()


def class_logits(model: Model, last: Tensor) -> NDArray[np.float32]:
    """What ``ClassLogits`` reads, (R, classes) float32, of a causal model's states (R, H) at the rows' last tokens."""
    logits: Tensor = model.lm.score(last)
    return logits.float().cpu().numpy()


def joined_states(last: Tensor, mean: Tensor) -> NDArray[np.float32]:
    """What ``HiddenStates`` reads, (R, 2 * H) float32, of rows' last states (R, H) and mean states (R, H)."""
    return torch.cat([last.float(), mean.float()], dim=-1).cpu().numpy()
