"""This project: the stage's own passes with the engine that ``auto`` chooses, as ``classify`` runs them.

int8 is ``--quantize int8``.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.bench.workload import load_workload
from pipeline.buckets import length_window
from pipeline.build import build_stage
from pipeline.engine.load import load_model
from pipeline.passes import run_passes
from pipeline.settings import Settings
from pipeline.stats import RunStats
from tests.peers.work import Prompt, Question


class Ours:
    def __init__(self, model_folder: Path, question: Question, precision: str) -> None:
        model = load_model(str(model_folder), device="cpu", dtype="float32")
        task = load_workload(question.workload, 1, model.tokenizer).task
        settings = Settings(quantize="int8" if precision == "int8" else "none")
        self._stage = build_stage(task, model, settings)
        self._question = question
        engine = self._stage.engine
        self.setting = f"{engine.name}, {engine.workers} workers, {self._stage.max_batch_tokens} tokens a pass"

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        n_prefix = len(self._question.prefix_ids)
        frame = pl.DataFrame({"token_ids": [prompt[n_prefix:] for prompt in prompts]})
        frame = frame.with_columns(n_tokens=pl.col("token_ids").list.len(), n_shared=pl.lit(n_prefix))
        frame = frame.with_columns(length_window=length_window(pl.col("n_tokens")))
        logits = np.empty((len(prompts), len(self._question.label_ids)), np.float32)
        budget = self._stage.max_batch_tokens
        for rows, raw in run_passes(self._stage.engine, frame, RunStats(), max_batch_tokens=budget, n_nodes=0):
            logits[rows] = raw
        return self._question.decide(logits), logits


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> Ours:
    return Ours(model_folder, question, precision)
