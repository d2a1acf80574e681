"""The stage with a label store: nothing is scored twice, and the labels are those of a stage without one."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import pipeline.stage
from pipeline.buckets import Bucket
from pipeline.build import build_stage
from pipeline.cache import tasks_in
from pipeline.errors import GateError
from pipeline.label_store import LabelStore
from pipeline.parquet.buffers import buffers
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.stored_scores import StoredScores
from tests.test_stage import ALL_COLUMNS, WORDS, Faulty, run, task, tickets
from tests.tiny import tiny_model, tiny_tokenizer

MEMORY = Path(":memory:")
LETTERS = (("a", ""), ("b", ""), ("c", ""))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))


@pytest.fixture(scope="module")
def stage(model: Any) -> Stage:
    return build_stage(task(), model, ALL_COLUMNS)


def with_store(stage: Stage, store: LabelStore) -> Stage:
    scores = StoredScores(store, stage.score_fingerprint, len(stage.task.labels), "test")
    return dataclasses.replace(stage, store=scores)


def counted(stage: Stage, table: pa.Table, buffer_rows: int = 8192) -> tuple[pa.Table, RunStats]:
    stats = RunStats()
    return run(stage, table, buffer_rows=buffer_rows, stats=stats), stats


def assert_same(out: pa.Table, expected: pa.Table) -> None:
    """Equal but for the rounding of passes of other sizes."""
    assert out["label"].to_pylist() == expected["label"].to_pylist()
    assert out["status"].to_pylist() == expected["status"].to_pylist()
    np.testing.assert_allclose(np.array(out["score"]), np.array(expected["score"]), atol=1e-5)


@pytest.mark.parametrize("buffer_rows", [1, 7, 1000])
def test_a_text_is_scored_once_in_the_whole_file(stage: Stage, buffer_rows: int) -> None:
    """Also when it comes again in the very next buffer, which is read before this one is scored."""
    texts = tickets(20)
    table = pa.table({"text": [*texts, *texts[::-1], *texts]})
    with LabelStore(MEMORY, shared=True) as store:
        out, stats = counted(with_store(stage, store), table, buffer_rows)
    expected, _ = counted(stage, table)
    assert_same(out, expected)
    assert stats.texts == len(set(texts))


def test_a_second_run_scores_nothing_and_gives_the_same_to_the_last_bit(stage: Stage) -> None:
    table = pa.table({"text": [*tickets(30), None, " ".join(WORDS * 300)]})
    with LabelStore(MEMORY, shared=True) as store:
        first, stats = counted(with_store(stage, store), table)
        second, again = counted(with_store(stage, store), table)
    assert (stats.texts, stats.known_texts) == (31, 0)
    assert (again.texts, again.known_texts, again.buckets, again.fed_tokens) == (0, 31, 0, 0)
    assert second.equals(first)
    assert "truncated" in first["status"].to_pylist()
    assert again.statuses == stats.statuses


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fail_at=st.integers(0, 12), buffer_rows=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_run_that_ends_at_any_pass_keeps_the_passes_before(
    stage: Stage, fail_at: int, buffer_rows: int, seed: int
) -> None:
    table = pa.table({"text": tickets(25, seed)})
    passes: list[int] = []

    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(passes) == fail_at:
            raise KeyboardInterrupt
        passes.append(len(bucket.rows))
        return scores

    with LabelStore(MEMORY, shared=True) as store:
        sound = with_store(stage, store)
        try:
            counted(dataclasses.replace(sound, engine=Faulty(stage.engine, fault)), table, buffer_rows)
        except KeyboardInterrupt:
            assert len(passes) == fail_at
        out, stats = counted(sound, table, buffer_rows)
    assert stats.texts == len(set(table["text"].to_pylist())) - sum(passes)
    expected, _ = counted(stage, table)
    assert_same(out, expected)


def test_scores_of_a_long_buffer_are_kept_now_and_then(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of 8,192 rows takes a small model on a CPU an hour."""
    monkeypatch.setattr(pipeline.stage, "KEEP_SECONDS", 0.0)
    with LabelStore(MEMORY, shared=True) as store:
        kept = []

        def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
            kept.append(sum(entry.n_texts for entry in tasks_in(store)))
            return scores

        watched = dataclasses.replace(with_store(stage, store), engine=Faulty(stage.engine, fault))
        counted(watched, pa.table({"text": tickets(40)}))
    assert len(kept) > 3
    assert kept == sorted(set(kept)), "each pass finds the scores of the one before kept"


def test_nothing_scored_in_another_way_is_used(stage: Stage, model: Any) -> None:
    """Another task, prompt, limit, model or dtype; calibration and thresholds use the same scores."""
    table = pa.table({"text": tickets(10)})
    other_weights = tiny_model("llama", tokenizer=tiny_tokenizer("chatml"))
    with torch.no_grad():
        other_weights.lm.get_input_embeddings().weight[5, 0] += 1e-3
    half = tiny_model("llama", tokenizer=tiny_tokenizer("chatml"), dtype=torch.bfloat16)
    others = {
        "labels": build_stage(task(labels=(("billing", ""), ("bill", ""), ("tech", ""))), model, ALL_COLUMNS),
        "label order": build_stage(task(labels=tuple(reversed(task().labels))), model, ALL_COLUMNS),
        "system": build_stage(task(system="Sort this: {labels}."), model, ALL_COLUMNS),
        "user": build_stage(task(user="Mail: {text}"), model, ALL_COLUMNS),
        "answer": build_stage(task(answer="Label:"), model, ALL_COLUMNS),
        "scoring": build_stage(
            task(scoring="first-token", labels=(("a", ""), ("b", ""), ("c", ""))), model, ALL_COLUMNS
        ),
        "limit": build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=200)),
        "weights": build_stage(task(), other_weights, ALL_COLUMNS),
        "dtype": build_stage(task(), half, ALL_COLUMNS),
        "family": build_stage(task(), tiny_model("qwen2", tokenizer=tiny_tokenizer("chatml")), ALL_COLUMNS),
    }
    same = {
        "calibration": build_stage(task(calibration="none"), model, ALL_COLUMNS),
        "engine": build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, engine="single")),
        "minimum": build_stage(task(min_score=0.9, default_label="x"), model, ALL_COLUMNS),
    }
    with LabelStore(MEMORY, shared=True) as store:
        counted(with_store(stage, store), table)
        for what, other in others.items():
            _, stats = counted(with_store(other, store), table)
            assert (stats.texts, stats.known_texts) == (10, 0), what
        for what, other in same.items():
            out, stats = counted(with_store(other, store), table)
            assert (stats.texts, stats.known_texts) == (0, 10), what
            assert out["label"].to_pylist() == counted(other, table)[0]["label"].to_pylist(), what


def test_texts_that_failed_are_tried_again(stage: Stage) -> None:
    def fault(bucket: Bucket, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full_like(scores, np.nan)

    table = pa.table({"text": ["refund", "a crash"]})
    with LabelStore(MEMORY, shared=True) as store:
        sound = with_store(stage, store)
        out, _ = counted(dataclasses.replace(sound, engine=Faulty(stage.engine, fault)), table)
        assert out["status"].to_pylist() == ["failed", "failed"]
        out, stats = counted(sound, table)
        assert (out["status"].to_pylist(), stats.texts) == (["ok", "ok"], 2)


@pytest.mark.parametrize("overlong", ["null", "fail"])
def test_an_overlong_text_that_was_scored_cut_is_still_overlong(model: Any, overlong: Any) -> None:
    table = pa.table({"text": ["refund", " ".join(WORDS * 30)]})
    cuts, refuses = (
        build_stage(task(), model, dataclasses.replace(ALL_COLUMNS, max_tokens=120, overlong=how))
        for how in ("truncate", overlong)
    )
    with LabelStore(MEMORY, shared=True) as store:
        counted(with_store(cuts, store), table)
        if overlong == "fail":
            with pytest.raises(GateError, match=r"row 1: .*--max-tokens 120"):
                counted(with_store(refuses, store), table)
        else:
            out, _ = counted(with_store(refuses, store), table)
            assert out["status"].to_pylist() == ["ok", "overlong"]
            assert out["label"].to_pylist()[1] is None


def test_a_stage_that_is_dropped_midway_leaves_no_thread_at_the_store(stage: Stage) -> None:
    batches = pa.table({"text": tickets(50)}).to_batches()
    with LabelStore(MEMORY, shared=True) as store:
        tables = with_store(stage, store).run(buffers(batches, 5, 1 << 30), RunStats())
        next(tables)
        tables.close()
        assert "prefetch" not in [thread.name for thread in threading.enumerate()]
