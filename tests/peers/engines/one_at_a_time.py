"""transformers, one prompt at a time, unpadded, no cache, output matrix at the last position only: the reference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from tests.peers.engines import n_cores
from tests.peers.work import Prompt, Question


class OneAtATime:
    def __init__(self, model_folder: Path, question: Question) -> None:
        torch.set_num_threads(n_cores())
        self._lm = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        self._question = question
        self.setting = f"one at a time, {n_cores()} threads, {self._lm.config._attn_implementation}"

    @torch.inference_mode()
    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        label_ids = list(self._question.label_ids)
        logits = np.stack(
            [
                self._lm(input_ids=torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[0, -1, label_ids]
                for prompt in prompts
            ]
        )
        return self._question.decide(logits), logits


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> OneAtATime:
    return OneAtATime(model_folder, question)
