"""Models next to nothing, so that what is not the model shows: a tiny Llama of random weights, and no model at all."""

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.engine.embedded import embedded_model
from pipeline.engine.load import WAYS_OUT
from pipeline.engine.model import Model
from pipeline.errors import ModelError


def tiny_model(name: str) -> Model:
    """Two layers of 32 numbers a token, the same on every call, with the tokenizer of another model.

    Args:
        name: of that model: ``embedded``, or a folder.

    Raises:
        ModelError: there is no such model, or the embedded one is not installed.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(embedded_model()) if name == "embedded" else name)
    except (OSError, ValueError) as error:  # whatever is not a folder is taken for a name on the hub
        reason = " ".join(str(error).split())
        raise ModelError(f"cannot load the tokenizer of model {name!r}: {reason[:300]}", WAYS_OUT) from error
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = transformers.LlamaForCausalLM(config)
    return Model(lm.eval(), tokenizer, torch.device("cpu"), torch.float32, "tiny Llama")


class NullEngine:
    """Reads nothing: the score of every edge is zero.

    Args:
        tree: whose edges are scored.
    """

    name = "null"
    workers = 1

    def __init__(self, tree: ContinuationTree) -> None:
        self._n_edges = len(tree.edges)

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        """(R, E) zeros for a bucket of R rows."""
        return np.zeros((len(bucket.rows), self._n_edges), dtype=np.float32)
