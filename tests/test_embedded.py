"""The embedded model on the sample tickets: the built-in task is worth its words, and batching changes no label."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from pipeline.buckets import cut_buckets
from pipeline.build import build_stage
from pipeline.engine.embedded import embedded_model
from pipeline.engine.load import load_model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.single import SingleEngine
from pipeline.scoring import probabilities
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task_file import builtin_task, load_task

SAMPLE = Path(__file__).parent.parent / "sample_data" / "tickets.parquet"
ONE_SENTENCE = SAMPLE.with_name("one_sentence.toml")
N_TICKETS = 100


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)  # one is for tiny models
    yield load_model("embedded")
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def tickets() -> pl.DataFrame:
    """Tickets spread over the sample, each a text and its truth."""
    sample = pl.read_parquet(SAMPLE).filter(pl.col("truth").is_not_null())
    text = pl.concat_str(["subject", "body"], separator="\n\n", ignore_nulls=True)
    return sample.select(text=text, truth="truth").gather_every(len(sample) // N_TICKETS).head(N_TICKETS)


def accuracy(stage: Stage, tickets: pl.DataFrame) -> float:
    scores = stage.score_texts(stage.encoder.encode(tickets.select("text")), RunStats())
    probability = probabilities(scores.astype(np.float64), stage.prior, multi=False)
    names = np.array(stage.task.label_names)
    return float((names[probability.argmax(axis=1)] == tickets["truth"].to_numpy()).mean())


def test_the_built_in_task_is_clearly_better_than_one_sentence(
    model: Any, tickets: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    built_in = accuracy(build_stage(builtin_task(), model, Settings(engine="fused")), tickets)
    naive = accuracy(build_stage(load_task(ONE_SENTENCE), model, Settings(engine="fused")), tickets)
    with capsys.disabled():
        print(f"\nsample tickets, {len(tickets)}: built-in task {built_in:.1%}, one sentence {naive:.1%} right")
    assert built_in >= naive + 0.15
    assert built_in >= 0.5


@pytest.mark.parametrize("scoring", ["first-token", "sequence"])
def test_every_engine_agrees_with_the_reference(model: Any, tickets: pl.DataFrame, scoring: Any) -> None:
    stage = build_stage(dataclasses.replace(builtin_task(), scoring=scoring), model, Settings())
    assert stage.engine.name == "fused"
    texts = stage.encoder.encode(tickets.select("text").sort(pl.col("text").str.len_bytes()).gather_every(19))
    context = (model, stage.encoder.prefix_ids, stage.scorer.readout)
    for bucket in cut_buckets(texts, max_batch_tokens=400, extra_tokens=stage.scorer.readout.n_nodes):
        expected = SingleEngine(*context).score(bucket)
        for engine in (stage.engine, PackedEngine(*context), PaddedEngine(*context)):
            difference = np.abs(engine.score(bucket) - expected).max()
            assert difference < 1e-3, f"{engine.name}, {len(bucket.rows)} rows: largest difference {difference}"


def test_it_is_converted_once_and_then_only_found(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded_model()
    monkeypatch.setattr("pipeline.engine.embedded._convert", lambda *_: pytest.fail("converted again"))
    assert embedded_model() == folder
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
