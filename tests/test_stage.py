"""The stage on tiny random models: every row once, in order, with the label it would get alone."""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.build import build_stage
from pipeline.engine.single import SingleEngine
from pipeline.errors import GateError, UsageError
from pipeline.parquet.buffers import buffers
from pipeline.passes import score_bucket
from pipeline.scoring import CONTENT_FREE, probabilities
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.task_file import task_from_toml
from tests.tiny import tiny_model, tiny_tokenizer

TASK = """
text = ["text"]
system = "Classify: {labels}."
user = "Ticket: {text}"
answer = "It is"
calibration = "contextual"
[labels]
billing = ""
bill = ""
technical = ""
"""
ALL_COLUMNS = Settings(score_column="score", status_column="status", max_batch_tokens=200)
WORDS = ("refund", "invoice", "crash", "login", "the", "a", "my", "account", "error", "when", "was", "twice", "screen")


def task(**changes: Any) -> Task:
    return dataclasses.replace(task_from_toml(TASK, "test"), **changes)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))


@pytest.fixture(scope="module")
def stage(model: Any) -> Stage:
    return build_stage(task(), model, ALL_COLUMNS)


def tickets(n_rows: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, int(n))) for n in rng.integers(1, 40, n_rows)]


def run(stage: Stage, table: pa.Table, *, buffer_rows: int = 8192, stats: RunStats | None = None) -> pa.Table:
    stats = RunStats() if stats is None else stats
    labelled = list(stage.run(buffers(table.to_batches(), buffer_rows, 1 << 30), stats))
    return pa.concat_tables(labelled)


def alone(stage: Stage, model: Any, text: str) -> tuple[str, float]:
    """Label and score of one text, alone, on the reference path."""
    encoded = stage.encoder.encode(pl.DataFrame({"text": [text]}))
    own = encoded["token_ids"][0].to_numpy().astype(np.int64)
    bucket = Bucket(np.array([0]), own, np.array([len(own)]), int(encoded["n_shared"][0]))
    raw = SingleEngine(model, stage.encoder.prefix_ids, stage.scorer.readout).score(bucket)
    (probability,) = probabilities(stage.scorer.scores(raw), stage.prior, multi=False)
    return stage.task.label_names[int(probability.argmax())], float(probability.max())


def test_every_row_gets_the_label_it_would_get_alone_in_its_own_place(stage: Stage, model: Any) -> None:
    texts = tickets(60)
    out = run(stage, pa.table({"id": range(60), "text": texts}))
    assert out["id"].to_pylist() == list(range(60))
    assert out["text"].to_pylist() == texts
    expected = [alone(stage, model, text) for text in texts]
    assert out["label"].to_pylist() == [label for label, _ in expected]
    difference = np.abs(np.array(out["score"]) - [score for _, score in expected]).max()
    assert difference < 1e-4, f"largest difference of a score: {difference}"
    assert len(set(out["label"].to_pylist())) > 1, "a test on one label alone shows nothing"


@settings(max_examples=15)
@given(buffer_rows=st.integers(1, 50), max_batch_tokens=st.sampled_from([1, 60, 200, 5000]), seed=st.integers(0, 9))
def test_neither_buffer_nor_bucket_sizes_change_anything(
    stage: Stage, buffer_rows: int, max_batch_tokens: int, seed: int
) -> None:
    table = pa.table({"text": [*tickets(40, seed), None, "", *tickets(5, seed)]})
    expected = run(stage, table)
    resized = dataclasses.replace(stage, max_batch_tokens=max_batch_tokens)
    out = run(resized, table, buffer_rows=buffer_rows)
    assert out["label"].equals(expected["label"]) or out["label"].to_pylist() == expected["label"].to_pylist()
    assert out["status"].to_pylist() == expected["status"].to_pylist()
    scores, reference = out["score"].to_pandas().to_numpy(), expected["score"].to_pandas().to_numpy()
    np.testing.assert_allclose(scores, reference, atol=1e-4)


def test_blank_rows_get_null_and_never_reach_the_model(stage: Stage) -> None:
    stats = RunStats()
    out = run(stage, pa.table({"text": [None, "", " \n\t", "refund please"]}), stats=stats)
    assert out["label"].to_pylist()[:3] == [None, None, None]
    assert out["score"].to_pylist()[:3] == [None, None, None]
    assert out["status"].to_pylist() == ["blank", "blank", "blank", "ok"]
    assert stats.texts == 1
    assert stats.labels[None] == 3
    assert stats.statuses == {"blank": 3, "ok": 1}


def test_a_buffer_of_blank_rows_only_is_fine(stage: Stage) -> None:
    out = run(stage, pa.table({"text": pa.array([None, None], pa.string())}))
    assert out["status"].to_pylist() == ["blank", "blank"]


def test_no_buffers_give_no_output(stage: Stage) -> None:
    assert list(stage.run([], RunStats())) == []


def test_identical_texts_of_a_buffer_go_through_the_model_once(stage: Stage) -> None:
    stats = RunStats()
    out = run(stage, pa.table({"text": ["a crash", "refund", "a crash", "a crash"]}), stats=stats)
    assert stats.texts == 2
    assert stats.rows == 4
    labels = out["label"].to_pylist()
    assert labels[0] == labels[2] == labels[3]


def test_added_fields_are_typed_from_the_first_row_on(stage: Stage) -> None:
    out = run(stage, pa.table({"text": ["refund"]}))
    assert out.schema.field("label") == pa.field("label", pa.string())
    assert out.schema.field("score") == pa.field("score", pa.float32())
    assert out.schema.field("status") == pa.field("status", pa.string(), nullable=False)


def test_overlong_texts_are_cut_and_marked(model: Any) -> None:
    stage = build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=120))
    long = " ".join(WORDS * 30)
    out = run(stage, pa.table({"text": [long, "refund"]}))
    assert out["status"].to_pylist() == ["truncated", "ok"]
    assert out["label"].null_count == 0
    assert out["text"].to_pylist()[0] == long


def test_overlong_texts_get_null_when_asked(model: Any) -> None:
    stage = build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=120, overlong="null"))
    stats = RunStats()
    out = run(stage, pa.table({"text": ["refund", " ".join(WORDS * 30), "crash"]}), stats=stats)
    assert out["status"].to_pylist() == ["ok", "overlong", "ok"]
    assert out["label"].to_pylist()[1] is None
    assert stats.texts == 2


def test_an_overlong_text_ends_the_run_when_asked_and_says_which(model: Any) -> None:
    stage = build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=120, overlong="fail"))
    table = pa.table({"text": [*["refund"] * 5, " ".join(WORDS * 30)]})
    with pytest.raises(GateError, match=r"row 5: .*--max-tokens 120"):
        run(stage, table, buffer_rows=3)


def test_the_limit_is_for_the_whole_prompt(model: Any) -> None:
    with pytest.raises(UsageError, match="--max-tokens 20 leaves no room"):
        build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=20))


def test_rows_below_the_minimum_score_get_the_default_label(stage: Stage) -> None:
    table = pa.table({"text": tickets(30)})
    scores = run(stage, table)["score"].to_pylist()
    limit = sum(sorted(scores)[9:11]) / 2
    strict = dataclasses.replace(stage.task, min_score=limit, default_label="other")
    out = run(dataclasses.replace(stage, task=strict), table)
    low = [score < limit for score in scores]
    assert [status == "low_score" for status in out["status"].to_pylist()] == low
    assert [label == "other" for label in out["label"].to_pylist()] == low
    assert out["score"].to_pylist() == pytest.approx(scores), "the score stays, so that it can be looked at"
    no_default = dataclasses.replace(strict, default_label=None)
    out = run(dataclasses.replace(stage, task=no_default), table)
    assert [label is None for label in out["label"].to_pylist()] == low


def test_invalid_utf8_is_marked_and_the_bytes_stay(stage: Stage) -> None:
    raw = pa.array([b"refund \xff now", b"refund"], pa.binary()).cast(pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, raw.buffers())})
    out = run(stage, table)
    assert out["status"].to_pylist() == ["invalid_text", "ok"]
    assert out["text"].combine_chunks().buffers()[2].to_pybytes() == b"refund \xff nowrefund"


class Faulty:
    """A real engine whose scores or memory fail where told."""

    name = "faulty"

    def __init__(
        self, engine: Any, fault: Callable[[Bucket, NDArray[np.float32]], NDArray[np.float32]], workers: int = 1
    ) -> None:
        self._engine, self._fault, self.workers = engine, fault, workers

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        return self._fault(bucket, self._engine.score(bucket))


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_without_finite_scores_fail_alone(stage: Stage, workers: int) -> None:
    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        scores[bucket.rows == 1] = np.nan
        return scores

    broken = dataclasses.replace(stage, engine=Faulty(stage.engine, fault, workers))
    table = pa.table({"text": ["refund", "a crash", "login"]})
    out, healthy = run(broken, table), run(stage, table)
    assert out["status"].to_pylist() == ["ok", "failed", "ok"]
    assert out["label"].to_pylist()[1] is None
    assert out["label"].to_pylist()[::2] == healthy["label"].to_pylist()[::2]


@pytest.mark.parametrize("engine", ["fused", "packed", "padded"])
def test_a_row_without_finite_scores_does_not_spoil_those_in_its_pass(model: Any, engine: Any) -> None:
    """Where a short row is padded with tokens of others, those have weight 0, and 0 times infinity is no number."""
    sick = tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))
    (token,) = sick.tokenizer.encode("%", add_special_tokens=False)
    with torch.no_grad():
        sick.lm.get_input_embeddings().weight[token] = torch.nan
    settings = dataclasses.replace(ALL_COLUMNS, engine=engine, max_batch_tokens=2000)
    table = pa.table({"text": [*tickets(20), "100%", *tickets(9, 1), "50% off, 100% sure"]})
    out, healthy = (run(build_stage(task(), which, settings), table) for which in (sick, model))
    assert [row for row, status in enumerate(out["status"].to_pylist()) if status == "failed"] == [20, 30]
    fine = [row for row in range(31) if row not in (20, 30)]
    assert out["label"].take(fine).to_pylist() == healthy["label"].take(fine).to_pylist()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pass_that_runs_out_of_memory_is_split_until_it_fits(
    stage: Stage, workers: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.passes.PASSES_OF_A_WORKER", 1)  # else three workers share the rows two by two
    largest = []

    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(bucket.rows) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        largest.append(len(bucket.rows))
        return scores

    table = pa.table({"text": tickets(30)})
    tight = dataclasses.replace(stage, engine=Faulty(stage.engine, fault, workers), max_batch_tokens=2000)
    with caplog.at_level(logging.WARNING):
        out = run(tight, table)
    assert max(largest) == 2
    assert out["label"].to_pylist() == run(stage, table)["label"].to_pylist()
    assert "--max-batch-tokens" in caplog.text


def test_one_row_that_does_not_fit_ends_the_run(stage: Stage) -> None:
    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        raise MemoryError

    with pytest.raises(MemoryError):
        score_bucket(Faulty(stage.engine, fault), Bucket(np.array([0]), np.array([5, 6]), np.array([2]), 0))


def test_other_errors_of_the_engine_are_not_taken_for_memory(stage: Stage) -> None:
    calls = []

    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        calls.append(bucket)
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        run(dataclasses.replace(stage, engine=Faulty(stage.engine, fault)), pa.table({"text": tickets(9)}))
    assert len(calls) == 1


def test_scores_that_cannot_be_kept_end_the_workers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while the error is at hand, whose traceback keeps the passes alive."""

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Stage, "_keep", full)
    monkeypatch.setattr("pipeline.stage.KEEP_SECONDS", -1)
    several = dataclasses.replace(stage, engine=Faulty(stage.engine, lambda _, scores: scores, workers=3))
    before = threading.active_count()
    with pytest.raises(OSError) as error:
        run(several, pa.table({"text": tickets(60)}))
    assert error.value.args == ("No space left on device",)
    assert threading.active_count() == before


def test_calibration_takes_the_favourite_label_down(model: Any) -> None:
    """On texts without content, calibrated labels are as probable as each other on average."""
    plain, calibrated = (build_stage(task(calibration=c), model, ALL_COLUMNS) for c in ("none", "contextual"))
    assert not plain.prior.any()
    assert np.ptp(calibrated.prior) > 0.01
    texts = calibrated.encoder.encode(pl.DataFrame({"text": CONTENT_FREE}))
    scores = calibrated.score_texts(texts, RunStats()).astype(np.float64)
    np.testing.assert_allclose((scores - calibrated.prior).mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("engine", ["fused", "packed", "padded", "single"])
def test_all_engines_give_the_same_output(model: Any, engine: Any) -> None:
    table = pa.table({"text": tickets(25)})
    expected = run(build_stage(task(), model, ALL_COLUMNS), table)
    out = run(build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, engine=engine)), table)
    assert out["label"].to_pylist() == expected["label"].to_pylist()
    np.testing.assert_allclose(np.array(out["score"]), np.array(expected["score"]), atol=1e-4)


def test_the_fingerprint_knows_all_that_decides_a_label(model: Any) -> None:
    base = build_stage(task(), model, ALL_COLUMNS).fingerprint
    assert (
        build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, engine="single", buffer_rows=5)).fingerprint == base
    )
    other_model = tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))
    with torch.no_grad():
        other_model.lm.get_input_embeddings().weight[5, 0] += 1e-3
    others = {
        "labels": build_stage(task(labels=(("billing", ""), ("technical", ""))), model, ALL_COLUMNS),
        "label order": build_stage(task(labels=tuple(reversed(task().labels))), model, ALL_COLUMNS),
        "system": build_stage(task(system="Sort this: {labels}."), model, ALL_COLUMNS),
        "user": build_stage(task(user="Mail: {text}"), model, ALL_COLUMNS),
        "answer": build_stage(task(answer="Label:"), model, ALL_COLUMNS),
        "calibration": build_stage(task(calibration="none"), model, ALL_COLUMNS),
        "limit": build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=100)),
        "weights": build_stage(task(), other_model, ALL_COLUMNS),
    }
    same = [what for what, stage in others.items() if stage.fingerprint == base]
    assert not same, f"these do not change the fingerprint: {same}"
    assert len({stage.fingerprint for stage in others.values()}) == len(others)
