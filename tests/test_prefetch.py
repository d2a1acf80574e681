import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.prefetch import prefetch


def test_items_come_out_once_and_in_order() -> None:
    assert list(prefetch(range(100))) == list(range(100))


def test_nothing_comes_out_of_nothing() -> None:
    assert list(prefetch([])) == []


def test_the_next_item_is_made_while_one_is_in_use() -> None:
    made = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        made.set()
        yield 2

    items = prefetch(source())
    assert next(items) == 1
    assert made.wait(timeout=10), "the second item was not made while the first was in use"
    assert list(items) == [2]


def test_it_runs_no_further_ahead_than_one_slot_and_one_item_in_the_making() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    items = prefetch(source())
    next(items)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert len(made) <= 3, f"{len(made)} items were made while the first was in use"
        time.sleep(0.05)
    items.close()


def test_an_error_of_the_source_comes_at_its_place_in_the_order() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken page")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken page"):
        next(items)


def test_an_error_that_is_no_exception_is_not_lost() -> None:
    """polars panics are BaseExceptions; a thread that dies of one must not leave its consumer waiting."""

    class Panic(BaseException):
        pass

    def source() -> Iterator[int]:
        raise Panic
        yield 1

    with pytest.raises(Panic):
        next(prefetch(source()))


def test_closing_it_ends_the_thread_and_the_source() -> None:
    ended = threading.Event()

    def source() -> Iterator[int]:
        try:
            i = 0
            while True:
                yield i
                i += 1
        finally:
            ended.set()

    before = threading.active_count()
    items = prefetch(source())
    next(items)
    items.close()
    assert threading.active_count() == before
    assert ended.wait(timeout=10), "the source was not closed"
