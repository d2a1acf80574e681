"""Buckets through an engine's workers: every one once, in order, a few at a time, and an end to all threads."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline import passes
from pipeline.buckets import Bucket, length_window
from pipeline.engine.fused import FusedEngine
from pipeline.passes import MIN_BATCH_TOKENS, run_passes, score_in_order
from pipeline.readout import HiddenStates
from pipeline.stats import RunStats
from tests.engines import PREFIX, assert_same, bucket_of, reference
from tests.tiny import VOCAB_SIZE, tiny_model

PATIENCE = 60  # seconds until a thread that waits for another takes the test for failed


class Sums:
    """An engine that reads of a row the sum of its token ids, and does what it is told to before."""

    name = "sums"

    def __init__(self, workers: int, before: Callable[[Bucket], object] = lambda bucket: None) -> None:
        self.workers, self._before = workers, before

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        self._before(bucket)
        return sums(bucket)


def sums(bucket: Bucket) -> NDArray[np.float32]:
    """(R, 1) sums of each row's token ids."""
    starts = np.cumsum(bucket.n_tokens) - bucket.n_tokens
    return np.add.reduceat(bucket.token_ids, starts)[:, None].astype(np.float32)


def numbered(n_buckets: int, n_rows: int = 2) -> list[Bucket]:
    """Buckets whose first row is their number."""
    made = [bucket_of([3] * n_rows, 0, seed) for seed in range(n_buckets)]
    return [Bucket(b.rows + number, b.token_ids, b.n_tokens, 0) for number, b in enumerate(made)]


def number(bucket: Bucket) -> int:
    return int(bucket.rows[0])


def numbers(results: Iterable[tuple[Bucket, NDArray[np.float32]]]) -> list[int]:
    """Of the buckets that came out, each with its own result."""
    found = []
    for bucket, raw in results:
        np.testing.assert_array_equal(raw, sums(bucket))
        found.append(number(bucket))
    return found


def waiting_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE), "nobody came"


# ------------------------------------------------------------------------------------------------ order


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("n_buckets", [0, 1, 2, 5, 40])
def test_buckets_come_out_in_order_with_their_own_results(workers: int, n_buckets: int) -> None:
    assert numbers(score_in_order(Sums(workers), numbered(n_buckets), RunStats())) == [*range(n_buckets)]


def test_a_slow_bucket_holds_up_those_behind_it_but_not_their_work() -> None:
    done = [threading.Event() for _ in range(9)]

    def first_of_three_is_last(bucket: Bucket) -> None:
        if number(bucket) % 3 == 0:
            waiting_for(done[number(bucket) + 2])
        done[number(bucket)].set()

    engine = Sums(3, first_of_three_is_last)
    assert numbers(score_in_order(engine, numbered(9), RunStats())) == [*range(9)]


@pytest.mark.parametrize("workers", [2, 3])
def test_as_many_buckets_are_worked_on_at_once_as_there_are_workers_and_never_more(workers: int) -> None:
    all_at_work, lock, now, most = threading.Barrier(workers, timeout=PATIENCE), threading.Lock(), 0, 0

    def counted(bucket: Bucket) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        all_at_work.wait()
        with lock:
            now -= 1

    assert len(numbers(score_in_order(Sums(workers, counted), numbered(4 * workers), RunStats()))) == 4 * workers
    assert most == workers


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_buckets_are_taken_as_they_are_needed(workers: int) -> None:
    """A buffer's buckets hold all its token ids once more."""
    n_taken = 0

    def endless() -> Iterator[Bucket]:
        nonlocal n_taken
        (bucket,) = numbered(1)
        while True:
            n_taken += 1
            yield bucket

    results = score_in_order(Sums(workers), endless(), RunStats())
    for n_given in range(1, 20):
        next(results)
        assert n_taken <= n_given + (2 * workers if workers > 1 else 0)
    results.close()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ ends


class Gone(Exception):
    """A fault of an engine."""


@pytest.mark.parametrize("workers", [1, 3])
def test_a_fault_comes_at_its_place_and_what_was_before_it_is_not_lost(workers: int) -> None:
    """The threads end even while the error is at hand, whose traceback keeps every generator on the way alive."""

    def fails_at_4(bucket: Bucket) -> None:
        if number(bucket) == 4:
            raise Gone("device")

    before, came = threading.active_count(), []
    with pytest.raises(Gone, match="device") as error:
        for bucket, _ in score_in_order(Sums(workers, fails_at_4), numbered(30), RunStats()):
            came.append(number(bucket))
    assert came == [0, 1, 2, 3]
    assert threading.active_count() == before
    assert error.value.args == ("device",)


def test_a_fault_of_the_buckets_themselves_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def buckets() -> Iterator[Bucket]:
        yield from numbered(2)
        raise Gone("memory")

    before = threading.active_count()
    with pytest.raises(Gone):
        list(score_in_order(Sums(3), buckets(), RunStats()))
    assert threading.active_count() == before


def test_buckets_that_wait_behind_a_fault_are_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled, started = threading.Event(), []

    class Pool(ThreadPoolExecutor):
        """Lets the passes under way end once those that wait are cancelled."""

        def shutdown(self, *args: Any, **options: Any) -> None:
            cancelled.set()
            super().shutdown(*args, **options)

    def fails_at_0(bucket: Bucket) -> None:
        started.append(number(bucket))
        if number(bucket) == 0:
            raise Gone
        waiting_for(cancelled)

    monkeypatch.setattr(passes, "ThreadPoolExecutor", Pool)
    with pytest.raises(Gone):
        list(score_in_order(Sums(2, fails_at_0), numbered(30), RunStats()))
    assert {0} <= {*started} <= {0, 1, 2}, "of two workers, one may go on to the third bucket before the fault is seen"


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_whoever_takes_a_few_results_only_leaves_no_threads_behind(how: str) -> None:
    before, n_scored = threading.active_count(), []
    results = score_in_order(Sums(2, n_scored.append), numbered(100), RunStats())
    assert number(next(results)[0]) == 0
    assert threading.active_count() > before
    if how == "closed":
        results.close()  # type: ignore[attr-defined]
    else:
        del results
    assert threading.active_count() == before
    assert len(n_scored) <= 5


def test_nothing_starts_before_the_first_result_is_asked_for() -> None:
    before, scored = threading.active_count(), []
    results = score_in_order(Sums(2, scored.append), numbered(3), RunStats())
    assert (threading.active_count(), scored) == (before, [])
    del results


# ------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
@pytest.mark.parametrize("workers", [1, 3])
def test_passes_without_memory_are_split_by_every_worker_and_counted_once(
    workers: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def no_more_than_two(bucket: Bucket) -> None:
        if len(bucket.rows) > 2:
            raise error

    stats = RunStats()
    assert numbers(score_in_order(Sums(workers, no_more_than_two), numbered(2, n_rows=8), stats)) == [0, 1]
    assert stats.splits == 2 * 3, "of 8 rows, then of 4 and 4"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "--max-batch-tokens" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_for_which_there_is_no_memory_is_a_fault(workers: int) -> None:
    def never(bucket: Bucket) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(score_in_order(Sums(workers, never), numbered(4), RunStats()))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_row_that_is_not_finite_is_scored_again_without_its_neighbours(workers: int) -> None:
    class Spoilt(Sums):
        def score(self, bucket: Bucket) -> NDArray[np.float32]:
            return super().score(bucket) * (np.nan if len(bucket.rows) > 1 else 1)

    assert numbers(score_in_order(Spoilt(workers), numbered(5, n_rows=3), RunStats())) == [*range(5)]


# ------------------------------------------------------------------------------------------------ texts


def texts_of(lengths: list[int], n_shared: list[int] | None = None) -> pl.DataFrame:
    """Encoded texts of random tokens."""
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "token_ids": pl.Series([rng.integers(3, VOCAB_SIZE, n).tolist() for n in lengths], dtype=pl.List(pl.Int64)),
            "n_tokens": pl.Series(lengths, dtype=pl.Int64),
            "n_shared": pl.Series(n_shared or [0] * len(lengths), dtype=pl.Int64),
        }
    ).with_columns(length_window=length_window(pl.col("n_tokens")))


def passes_of(lengths: list[int], workers: int, **limits: int) -> list[list[int]]:
    """The lengths of the texts of each pass."""
    found = run_passes(
        Sums(workers), texts_of(lengths), RunStats(), **{"max_batch_tokens": 1 << 20, "n_nodes": 0, **limits}
    )
    return [[lengths[row] for row in rows] for rows, _ in found]


def test_a_few_texts_are_dealt_to_all_workers() -> None:
    lengths = [100] * 12
    assert [len(rows) for rows in passes_of(lengths * 4, 3)] == [2] * 24  # eight for each
    assert [len(rows) for rows in passes_of(lengths * 4, 2, n_nodes=20)] == [3] * 16
    assert [len(rows) for rows in passes_of(lengths * 4, 3, max_batch_tokens=120)] == [1] * 48


def test_one_worker_gets_as_much_as_the_limit_allows() -> None:
    """Lengths differ, so that the padded tokens are more than the texts': a share of them all left some for a pass."""
    lengths = [100, 99, 98, 97, 96, 95]
    assert passes_of(lengths, 1) == [lengths]


def test_very_few_texts_are_not_worth_several_passes() -> None:
    assert passes_of([MIN_BATCH_TOKENS // 4] * 4, 8) == [[MIN_BATCH_TOKENS // 4] * 4]
    assert passes_of([], 8) == []


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 60), max_size=40),
    workers=st.integers(1, 4),
    max_batch_tokens=st.sampled_from([1, 64, 300, 5000]),
    n_nodes=st.integers(0, 5),
    data=st.data(),
)
def test_every_text_comes_out_once_and_is_counted_once(
    lengths: list[int], workers: int, max_batch_tokens: int, n_nodes: int, data: st.DataObject
) -> None:
    n_shared = [data.draw(st.sampled_from([12, 9])) for _ in lengths]
    texts, stats = texts_of(lengths, n_shared), RunStats()
    expected = np.array([sum(ids) for ids in texts["token_ids"]], dtype=np.float32)
    read = np.full(len(lengths), np.nan, dtype=np.float32)
    for rows, raw in run_passes(Sums(workers), texts, stats, max_batch_tokens=max_batch_tokens, n_nodes=n_nodes):
        assert np.isnan(read[rows]).all()
        read[rows] = raw[:, 0]
    np.testing.assert_array_equal(read, expected)
    assert stats.texts == len(lengths)
    assert stats.fed_tokens == sum(lengths) + n_nodes * len(lengths) <= stats.padded_tokens


# ------------------------------------------------------------------------------------------------ threads of torch


def test_a_worker_computes_alone_and_everybody_else_as_before() -> None:
    """What a worker set was the number of all threads that came later: an engine built in one had a single worker."""
    own = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        seen = []
        engine = Sums(2, lambda bucket: seen.append(torch.get_num_threads()))
        numbers(score_in_order(engine, numbered(8), RunStats()))
        assert seen == [1] * 8
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(own)


def test_a_real_engine_reads_the_same_on_several_workers() -> None:
    model = tiny_model("llama")
    engine = FusedEngine(model, PREFIX, HiddenStates())
    engine.workers = 3
    buckets = [bucket_of([n, n, n - 1], 12, seed=n) for n in range(30, 10, -1)]
    for bucket, raw in score_in_order(engine, buckets, RunStats()):
        assert_same(raw, reference(model, HiddenStates(), bucket), f"rows of {bucket.n_tokens.max()} tokens")
