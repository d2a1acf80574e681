"""Which unit is next, and which is given up: no Ray in it."""

import pytest

from pipeline.distributed import waiting
from pipeline.distributed.waiting import MAX_ATTEMPTS, WaitingUnits


def taken(units: WaitingUnits) -> list[int]:
    """All that can be had now, in order."""
    return list(iter(units.take, None))


def test_units_are_taken_in_order() -> None:
    units = WaitingUnits(4)
    assert (units.take(), units.take_behind(0), taken(units)) == (0, 1, [2, 3])
    assert units.take_behind(3) is None
    assert not len(units)


def test_units_of_a_dead_worker_are_next_and_only_the_one_it_was_at_had_an_attempt() -> None:
    units = WaitingUnits(5)
    assert (units.take(), units.take_behind(0)) == (0, 1)
    assert units.add_dead([0, 1])
    assert units.n_attempts == {0: 1}
    assert taken(units) == [0, 1, 2, 3, 4]


def test_a_unit_is_given_up_after_its_last_attempt() -> None:
    units = WaitingUnits(1)
    kept = []
    for _ in range(MAX_ATTEMPTS):
        assert taken(units) == [0]
        kept.append(units.add_dead([0]))
    assert kept == [True] * (MAX_ATTEMPTS - 1) + [False]
    assert taken(units) == []


def test_what_kills_workers_before_they_tell_of_the_unit_before_is_given_up_and_not_its_neighbour() -> None:
    """Its neighbour was charged with every death, since it stood before it in each queue."""
    units, done, given_up = WaitingUnits(3), [], []
    while len(units):
        queue = [units.take()]
        queue.append(units.take_behind(queue[0]))
        queue = [number for number in queue if number is not None]
        if 1 not in queue:
            done += queue
        elif not units.add_dead(queue):
            given_up.append(queue[0])
    assert (sorted(done), given_up) == ([0, 2], [1])


def test_a_failed_unit_rests_longer_each_time_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    units = WaitingUnits(2)
    assert units.take() == 0
    assert units.add_failed(0)
    assert (taken(units), units.has_next, len(units)) == ([1], False, 1)
    now += 1
    assert units.has_next
    assert taken(units) == [0]
    assert units.add_failed(0)
    now += 1
    assert taken(units) == []
    now += 3
    assert taken(units) == [0]


def test_a_death_without_a_unit_changes_nothing() -> None:
    units = WaitingUnits(1)
    assert units.add_dead([])
    assert taken(units) == [0]
