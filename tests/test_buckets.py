import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buckets import MIN_FILL, WINDOW_RATIO, Bucket, cut_buckets, length_window, plan_buckets

MAX_PADDING = 1 - 1 / WINDOW_RATIO  # of a rectangle whose rows are of one window

lengths = st.lists(st.integers(1, 60) | st.integers(1, 3000), min_size=1, max_size=80).map(np.array)
budgets = st.sampled_from([1, 64, 512, 2048])
extras = st.sampled_from([0, 7])


def windows_of(n_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    frame = pl.DataFrame({"n": n_tokens}, schema={"n": pl.UInt32})
    return frame.select(length_window(pl.col("n"))).to_series().to_numpy().astype(np.int64)


def plan(n_tokens: NDArray[np.int64], budget: int, extra: int = 0) -> list[NDArray[np.int64]]:
    return list(plan_buckets(n_tokens, windows_of(n_tokens), max_batch_tokens=budget, extra_tokens=extra))


def long_tailed() -> NDArray[np.int64]:
    """The design's workload: 8192 tickets of 12 to 400 words, most of them short."""
    words = np.random.default_rng(0).lognormal(np.log(60), 0.9, 8192)
    return np.clip(words, 12, 400).astype(np.int64)


def frame_of(n_tokens: list[int], n_shared: list[int] | None = None) -> pl.DataFrame:
    """Rows whose tokens are 1000 * row + place, so that a token tells where it comes from."""
    token_ids = [[1000 * row + place for place in range(n)] for row, n in enumerate(n_tokens)]
    frame = pl.DataFrame(
        {"token_ids": token_ids, "n_shared": n_shared or [5] * len(n_tokens)},
        schema={"token_ids": pl.List(pl.Int32), "n_shared": pl.UInt32},
    )
    frame = frame.with_columns(n_tokens=pl.col("token_ids").list.len())
    return frame.with_columns(length_window=length_window(pl.col("n_tokens")))


@given(lengths, budgets, extras)
def test_every_row_comes_exactly_once(n_tokens, budget, extra):
    picked = np.concatenate(plan(n_tokens, budget, extra))
    assert sorted(picked.tolist()) == list(range(len(n_tokens)))


@given(lengths, budgets, extras)
def test_no_bucket_exceeds_the_budget_except_a_single_long_row(n_tokens, budget, extra):
    for rows in plan(n_tokens, budget, extra):
        padded = len(rows) * (n_tokens[rows].max() + extra)
        assert padded <= budget or len(rows) == 1, f"{len(rows)} rows, {padded} padded tokens, budget {budget}"


@given(lengths, budgets, extras)
def test_longest_rows_come_first(n_tokens, budget, extra):
    in_order = n_tokens[np.concatenate(plan(n_tokens, budget, extra))]
    assert (np.diff(in_order) <= 0).all()


@given(lengths, budgets, extras)
def test_padding_is_bounded_unless_a_bucket_was_too_small_to_be_worth_a_pass(n_tokens, budget, extra):
    windows = windows_of(n_tokens)
    for rows in plan(n_tokens, budget, extra):
        longest = n_tokens[rows].max()
        padding = 1 - n_tokens[rows].sum() / (len(rows) * longest)
        if len(set(windows[rows])) == 1:
            assert padding <= MAX_PADDING, f"{padding:.1%} padding in one window: {n_tokens[rows]}"
        else:
            # it spans windows: without its last row, which is of another window, it was not worth a pass
            assert (len(rows) - 1) * (longest + extra) < MIN_FILL * budget


@given(lengths, budgets, extras)
def test_a_bucket_ends_only_where_it_is_full_or_its_window_ends(n_tokens, budget, extra):
    """Else rows of one window would be spread over more passes than are needed."""
    windows = windows_of(n_tokens)
    buckets = plan(n_tokens, budget, extra)
    for rows, following in itertools.pairwise(buckets):
        with_next = (len(rows) + 1) * (n_tokens[rows].max() + extra)
        if with_next <= budget and with_next <= MIN_FILL * budget:
            pytest.fail(f"bucket {n_tokens[rows]} had room for {n_tokens[following[0]]}")
        if with_next <= budget:
            assert windows[following[0]] != windows[rows[0]]


@given(lengths, budgets)
def test_the_same_rows_make_the_same_buckets(n_tokens, budget):
    assert [rows.tolist() for rows in plan(n_tokens, budget)] == [rows.tolist() for rows in plan(n_tokens, budget)]


def test_equally_long_rows_keep_their_order():
    n_tokens = np.array([7, 5] * 50)
    assert np.concatenate(plan(n_tokens, 70)).tolist() == [*range(0, 100, 2), *range(1, 100, 2)]


def test_a_straggler_takes_shorter_rows_along_up_to_a_quarter_of_the_budget():
    assert [rows.tolist() for rows in plan(np.array([100, 1000, 100, 100, 100]), 10_000)] == [[1, 0, 2], [3, 4]]


def test_a_window_that_is_worth_a_pass_takes_none_along():
    assert [len(rows) for rows in plan(np.array([100] * 30 + [50] * 30), 10_000)] == [30, 30]


@pytest.mark.parametrize("budget", [1024, 2048, 8192])
def test_padding_of_the_designs_workload_is_in_single_digits(budget):
    n_tokens = long_tailed()
    padded = sum(len(rows) * int(n_tokens[rows].max()) for rows in plan(n_tokens, budget))
    padding = 1 - n_tokens.sum() / padded
    assert padding < 0.1, f"{padding:.1%} of {padded} padded tokens are padding"


def test_the_designs_workload_fills_its_passes():
    """A fixed cost per pass makes many small ones slow: the fewest that could do it, and a fifth more."""
    n_tokens = long_tailed()
    n_buckets = len(plan(n_tokens, 2048))
    fewest = n_tokens.sum() / 2048
    assert n_buckets < 1.2 * fewest, f"{n_buckets} passes where {fewest:.0f} full ones would do"


def test_windows_grow_with_the_length_and_their_ends_are_within_the_ratio():
    n_tokens = np.arange(1, 20_000)
    windows = windows_of(n_tokens)
    assert (np.diff(windows) >= 0).all()
    firsts = n_tokens[np.flatnonzero(np.diff(windows, prepend=-1))]
    lasts = n_tokens[np.flatnonzero(np.diff(windows, append=1 << 30))]
    assert len(firsts) == len(lasts) < 100
    worst = (lasts / firsts).max()
    assert worst <= WINDOW_RATIO, f"a window's ends are {worst:.4f} apart"


def test_windows_of_huge_lengths_do_not_overflow():
    assert windows_of(np.array([10_000, 100_000, 4_000_000_000])).tolist() == [82, 106, 217]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), budgets, extras, st.data())
def test_buckets_carry_each_rows_own_tokens(n_tokens, budget, extra, data):
    n_shared = data.draw(st.lists(st.sampled_from([0, 3, 5]), min_size=len(n_tokens), max_size=len(n_tokens)))
    seen: list[int] = []
    for bucket in cut_buckets(frame_of(n_tokens, n_shared), max_batch_tokens=budget, extra_tokens=extra):
        parts = np.split(bucket.token_ids, np.cumsum(bucket.n_tokens)[:-1])
        for row, own in zip(bucket.rows, parts, strict=True):
            assert own.tolist() == [1000 * row + place for place in range(n_tokens[row])]
        seen += bucket.rows.tolist()
    assert sorted(seen) == list(range(len(n_tokens)))


def test_rows_that_share_less_of_the_prefix_come_apart_and_later():
    frame = frame_of([4, 4, 4, 4, 4], n_shared=[5, 0, 5, 3, 0])
    buckets = list(cut_buckets(frame, max_batch_tokens=1000))
    assert [(bucket.n_shared, bucket.rows.tolist()) for bucket in buckets] == [(5, [0, 2]), (3, [3]), (0, [1, 4])]


def test_a_frame_without_rows_makes_no_bucket():
    assert list(cut_buckets(frame_of([3]).clear(), max_batch_tokens=100)) == []


def test_the_tokens_of_scoring_count_in_the_budget():
    n_tokens = np.full(8, 10)
    assert [len(rows) for rows in plan(n_tokens, 40, extra=10)] == [2, 2, 2, 2]
    assert [len(rows) for rows in plan(n_tokens, 40)] == [4, 4]


def test_padded_tokens_are_those_of_the_rectangle():
    bucket = Bucket(np.arange(3), np.arange(9), np.array([4, 3, 2]), 0)
    assert bucket.padded_tokens == 12


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_the_halves_of_a_bucket_are_the_bucket(n_tokens):
    total = sum(n_tokens)
    bucket = Bucket(np.arange(len(n_tokens)) + 100, np.arange(total), np.array(n_tokens), 4)
    first, second = bucket.split()
    assert min(len(first.rows), len(second.rows)) == len(n_tokens) // 2 >= 1
    assert first.rows.tolist() + second.rows.tolist() == bucket.rows.tolist()
    assert first.token_ids.tolist() + second.token_ids.tolist() == bucket.token_ids.tolist()
    assert first.n_tokens.tolist() + second.n_tokens.tolist() == n_tokens
    for half in (first, second):
        assert len(half.token_ids) == half.n_tokens.sum()
        assert half.n_shared == 4
