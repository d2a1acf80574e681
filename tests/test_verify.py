"""Re-scoring a sample: which texts, what counts as the same, as a tie, as wrong."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.build import build_stage
from pipeline.engine.packed import PackedEngine
from pipeline.engine.select import TOLERANCE
from pipeline.errors import GateError
from pipeline.parquet.buffers import buffers
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task_file import task_from_toml
from pipeline.verify import Sample, Verdict, compare, judge
from tests.tiny import tiny_model, tiny_tokenizer

TASK = task_from_toml('text = ["text"]\nsystem = ""\n[labels]\nred = ""\ngreen = ""\nblue = ""\n', "test")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(tokenizer=tiny_tokenizer("unk-is-control"))


@pytest.fixture(scope="module")
def stage(model: Any) -> Stage:
    return build_stage(TASK, model, Settings(max_tokens=120))


def observed(stage: Stage, texts: list[str | None], n_wanted: int, buffer_rows: int = 16) -> Sample:
    sample = Sample(n_wanted, len(texts), stage)
    table = pa.table({"text": pa.array(texts, pa.string())})
    batches = buffers(table.to_batches(), buffer_rows, 1 << 30)
    assert sum(labelled.num_rows for labelled in stage.run(batches, RunStats(), observers=[sample.observe])) == len(
        texts
    )
    return sample


def numbered(n_rows: int) -> list[str | None]:
    return [f"row {i}" for i in range(n_rows)]


@pytest.mark.parametrize("buffer_rows", [1, 7, 1000])
@pytest.mark.parametrize(("n_rows", "n_wanted"), [(100, 10), (100, 100), (100, 1), (97, 13)])
def test_a_sample_is_spread_evenly_whatever_the_buffers(
    n_rows: int, n_wanted: int, buffer_rows: int, stage: Stage
) -> None:
    rows = observed(stage, numbered(n_rows), n_wanted, buffer_rows).rows
    assert rows == [(2 * i + 1) * n_rows // (2 * n_wanted) for i in range(n_wanted)]


def test_a_sample_holds_the_texts_of_its_rows(stage: Stage) -> None:
    sample = observed(stage, numbered(50), 5)
    for row, bucket in zip(sample.rows, sample.buckets, strict=True):
        text = stage.encoder.backend.decode(bucket.token_ids.tolist(), skip_special_tokens=False)
        assert f"row {row}<" in text


def test_blank_and_repeated_texts_give_way_to_the_next(stage: Stage) -> None:
    texts: list[str | None] = [None, " ", "a", "a", "b", "a", "b", None, "c", "c"]
    for buffer_rows in (1, 2, 3, 10):
        rows = observed(stage, texts, 3, buffer_rows).rows
        assert sorted(texts[row] or "" for row in rows) == ["a", "b", "c"]


def test_places_left_over_are_filled_from_later_buffers(stage: Stage) -> None:
    texts = [None] * 50 + numbered(50)
    assert observed(stage, texts, 10).rows == [50, 51, 52, 53, 54, 55, 65, 75, 85, 95]


def test_a_buffer_that_ends_in_blanks_is_searched_from_its_start(stage: Stage) -> None:
    assert observed(stage, [*numbered(5), *[None] * 5], 1, buffer_rows=10).rows == [0]


def test_more_texts_than_there_are_is_all_there_are(stage: Stage) -> None:
    assert sorted(observed(stage, ["x", "y", "x", None], 10).rows) == [0, 1]
    assert observed(stage, [None, None], 10).rows == []
    assert observed(stage, [], 10).rows == []


def test_texts_left_out_as_overlong_are_passed_over(stage: Stage) -> None:
    texts: list[str | None] = ["long " * 200, "short"]
    leaves_out = dataclasses.replace(stage, settings=dataclasses.replace(stage.settings, overlong="null"))
    assert observed(leaves_out, texts, 2).rows == [1]
    assert observed(stage, texts, 2).rows == [0, 1]


def test_a_sound_engine_passes(stage: Stage, model: Any) -> None:
    verdict = judge(observed(stage, numbered(40), 20), model)
    assert (verdict.n_texts, verdict.n_same, verdict.wrong_rows) == (20, 20, ())
    assert verdict.largest_difference < 1e-4
    verdict.check(20)


class Swapped(PackedEngine):
    """Mixes up the rows of a bucket."""

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        return super().score(bucket)[::-1]


class Reversed(PackedEngine):
    """Prefers what it should prefer least."""

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        return -super().score(bucket)


@pytest.mark.parametrize("kind", [Swapped, Reversed])
def test_a_wrong_engine_fails_with_the_rows(kind: type[PackedEngine], stage: Stage, model: Any) -> None:
    wrong = dataclasses.replace(stage, engine=kind(model, stage.encoder.prefix_ids, stage.scorer.readout))
    texts = [f"row {i} {'refund ' * (i % 9)}" for i in range(60)]
    verdict = judge(observed(wrong, texts, 60, buffer_rows=60), model)
    assert verdict.largest_difference > TOLERANCE[torch.float32]
    with pytest.raises(GateError, match=r"--verify 60: \d+ of 60 texts get another label .* \(rows \d+, ") as error:
        verdict.check(60)
    assert "--engine single" in error.value.hint


def test_a_wrong_calibration_fails(stage: Stage, model: Any) -> None:
    """The prior is measured by the run's engine, so the reference path must measure its own."""
    sound = observed(stage, numbered(20), 5)
    usual = int(np.argmax(sound.scores[0] - stage.prior))
    judge(sound, model).check(5)
    skewed = dataclasses.replace(stage, prior=np.where(np.arange(3) == (usual + 1) % 3, -50.0, 0.0))
    with pytest.raises(GateError):
        judge(observed(skewed, numbered(20), 5), model).check(5)


def verdict_of(ours: list[list[float]], alone: list[list[float]], tolerance: float = 0.01) -> Verdict:
    return compare(np.array(ours), np.array(alone), range(100, 100 + len(ours)), tolerance)


def test_a_near_tie_may_go_either_way() -> None:
    verdict = verdict_of([[-0.70, -0.69], [-0.1, -2.3]], [[-0.69, -0.70], [-0.1, -2.3]])
    assert (verdict.n_same, verdict.n_ties, verdict.wrong_rows) == (1, 1, ())
    assert verdict.largest_difference == pytest.approx(0.01)
    verdict.check(2)


def test_a_lead_of_twice_the_tolerance_is_the_last_tie() -> None:
    assert verdict_of([[0.0, 1.0]], [[-0.625, -0.75]], tolerance=0.0625).n_ties == 1
    assert verdict_of([[0.0, 1.0]], [[-0.625, -0.7501]], tolerance=0.0625).wrong_rows == (100,)


def test_large_differences_elsewhere_excuse_nothing() -> None:
    """A faulty engine is off by much where the labels happen to agree; that must not widen what counts as a tie."""
    verdict = verdict_of([[-0.1, -9.0], [-0.9, -0.5]], [[-0.1, -2.3], [-0.5, -0.9]])
    assert verdict.wrong_rows == (101,)


def test_a_score_that_only_one_path_gives_is_wrong() -> None:
    nan = [np.nan, np.nan]
    verdict = verdict_of([nan, nan, [-0.1, -2.0]], [nan, [-0.1, -2.0], nan])
    assert (verdict.n_same, verdict.n_ties, verdict.wrong_rows) == (1, 0, (101, 102))
    assert verdict.largest_difference == np.inf


def test_right_labels_with_large_differences_are_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    verdict_of([[-0.1, -2.0]], [[-0.2, -2.0]]).tell(1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "differ by up to 0.1 where rounding explains 0.01" in caplog.text


def test_many_wrong_rows_are_not_all_listed() -> None:
    verdict = verdict_of([[0.0, -1.0]] * 30, [[-1.0, 0.0]] * 30)
    with pytest.raises(GateError, match=r"30 of 30 .*rows 100, 101, .*, 109, …, counted from 0\)"):
        verdict.check(30)


def test_nothing_to_check_is_nothing_wrong() -> None:
    verdict = compare(np.empty((0, 3)), np.empty((0, 3)), [], 0.1)
    assert (verdict.n_texts, verdict.largest_difference) == (0, 0.0)
    verdict.check(5)
