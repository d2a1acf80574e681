"""One hash of all that decides a label, so that two answers may be compared, kept or thrown away."""

import hashlib
import json

from pipeline.continuations import ContinuationTree
from pipeline.prompt import PromptEncoder
from pipeline.task import Task

# Raise it when the same inputs give other labels than before.
METHOD_VERSION = 1


def fingerprint(task: Task, encoder: PromptEncoder, tree: ContinuationTree, model_digest: str) -> str:
    """Hex digest of weights, tokenizer, prompts, labels, scoring, calibration and dtype.

    The engine, batch sizes and output columns are left out: they change no label.

    Args:
        task: labels and calibration.
        encoder: the prompt as tokens, and the tokenizer.
        tree: the continuations and how they are scored.
        model_digest: of the model's configuration and weights, which covers their dtype.
    """
    parts = {
        "method": METHOD_VERSION,
        "model": model_digest,
        "tokenizer": hashlib.sha256(encoder.plain.to_str().encode()).hexdigest(),
        "prompt": [encoder.chat.head, encoder.chat.left, encoder.chat.right, encoder.chat.tail],
        "prefix_ids": encoder.prefix_ids,
        "tail_ids": encoder.tail_ids,
        "exact": encoder.exact,
        "max_tokens": encoder.max_tokens,
        "labels": task.label_names,
        "edges": [tree.token_ids, tree.edges, tree.label_edges, tree.normalize],
        "calibration": task.calibration,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
