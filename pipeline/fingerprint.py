"""Hashes of all that decides an answer, so that two answers may be compared, kept or thrown away."""

import hashlib
import json
from typing import Any

from pipeline.continuations import ContinuationTree
from pipeline.prompt import PromptEncoder
from pipeline.task import Task

# Raise it when the same inputs give other scores than before.
METHOD_VERSION = 2


def score_fingerprint(task: Task, encoder: PromptEncoder, tree: ContinuationTree, model_digest: str) -> str:
    """Hex digest of what decides a text's scores: weights and their dtype, tokenizer, prompts, labels, scoring.

    The engine, batch sizes and output columns are left out: they change no label. So are calibration and thresholds,
    which are applied to the scores afterwards.

    Args:
        task: the labels.
        encoder: the prompt as tokens, and the tokenizer.
        tree: the continuations and how they are scored.
        model_digest: of the model's configuration and weights, which covers their dtype.
    """
    return _digest(
        {
            "method": METHOD_VERSION,
            "model": model_digest,
            "tokenizer": hashlib.sha256(encoder.plain.to_str().encode()).hexdigest(),
            "prompt": [encoder.chat.head, encoder.chat.left, encoder.chat.right, encoder.chat.tail],
            "prefix_ids": encoder.prefix_ids,
            "tail_ids": encoder.tail_ids,
            "exact": encoder.exact,
            "max_tokens": encoder.max_tokens,
            "labels": task.label_names,
            "edges": [tree.token_ids, tree.edges, tree.label_edges, tree.normaliser],
        }
    )


def label_fingerprint(score_fingerprint: str, task: Task) -> str:
    """Hex digest of what decides a text's label: its scores, and the calibration."""
    return _digest({"scores": score_fingerprint, "calibration": task.calibration})


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
