"""CTranslate2: whole prompts in small batches of like length, the output matrix cut to the labels' rows.

``generate_batch`` could keep the prefix, but asked for logits it takes prompts of a batch token by token from where the
shortest ends. ``forward_batch`` reads them at once, leaves padding out of the linear layers, and knows no prefix.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.peers.engines import longest_first, n_cores, on_all_cores
from tests.peers.work import Prompt, Question

BATCH_TOKENS = 1024


class CTranslate2Batches:
    def __init__(self, folder: Path, question: Question, precision: str) -> None:
        import ctranslate2

        self._generator = ctranslate2.Generator(
            str(folder / "model"), device="cpu", compute_type=precision, inter_threads=n_cores(), intra_threads=1
        )
        self._question = question
        self.setting = f"head cut, {n_cores()} workers, {BATCH_TOKENS} tokens a batch"

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        logits = np.empty((len(prompts), len(self._question.label_ids)), np.float32)

        def score(rows: Sequence[int]) -> None:
            output = self._generator.forward_batch([list(prompts[row]) for row in rows])
            by_position = np.array(output)  # (R, longest, L)
            for place, row in enumerate(rows):
                logits[row] = by_position[place, len(prompts[row]) - 1]

        on_all_cores(score, batches(prompts))
        return self._question.decide(logits), logits


def batches(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Rows by length, longest first, so many that they fill ``BATCH_TOKENS``."""
    batches: list[list[int]] = []
    for row in longest_first(prompts):
        if batches and len(prompts[batches[-1][0]]) * (len(batches[-1]) + 1) <= BATCH_TOKENS:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def convert(model_folder: Path, folder: Path, question: Question, precision: str) -> None:
    from ctranslate2.converters import TransformersConverter

    spec = TransformersConverter(str(model_folder))._load()
    spec.decoder.projection.weight = spec.decoder.projection.weight.detach()[list(question.label_ids)].clone()
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    (folder / "model").mkdir()
    spec.save(str(folder / "model"))


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> CTranslate2Batches:
    return CTranslate2Batches(folder, question, precision)
