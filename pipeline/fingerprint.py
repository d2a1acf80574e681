"""Hashes of all that decides an answer, so that two answers may be compared, kept or thrown away."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pipeline.prompt import PromptEncoder
from pipeline.scoring import Scorer
from pipeline.settings import Quantize
from pipeline.task import Task

# Raise it when the same inputs give other scores than before.
METHOD_VERSION = 3
# Likewise, of what is quantized.
QUANTIZE_VERSION = 1


def prompt_fingerprint(encoder: PromptEncoder, model_digest: str) -> str:
    """Hex digest of what decides what the model makes of a text: weights and their dtype, tokenizer, prompt.

    Args:
        encoder: the prompt as tokens, and the tokenizer.
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
        }
    )


def score_fingerprint(
    prompt_fingerprint: str, task: Task, encoder: PromptEncoder, scorer: Scorer, quantize: Quantize = "none"
) -> str:
    """Hex digest of what decides a text's scores: model and prompt, the limit on tokens, labels, scoring, quantization.

    The engine, batch sizes and output columns are left out: they change no label. So are calibration and thresholds,
    which are applied to the scores afterwards.
    """
    return _digest(
        {
            "prompt": prompt_fingerprint,
            "max_tokens": encoder.max_tokens,
            "labels": task.label_names,
            "scoring": scorer.identity(),
            **({} if quantize == "none" else {"quantize": [quantize, QUANTIZE_VERSION]}),
        }
    )


def label_fingerprint(score_fingerprint: str, task: Task, texts: Iterable[str] = ()) -> str:
    """Hex digest of what decides a text's label: its scores, and the calibration.

    Args:
        score_fingerprint: of the scores.
        task: which calibration.
        texts: that batch calibration measures.
    """
    sample = hashlib.sha256()
    for text in texts:
        sample.update(hashlib.sha256(text.encode()).digest())
    return _digest({"scores": score_fingerprint, "calibration": [task.calibration, sample.hexdigest()]})


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
