"""A pool of Ray actors loses no unit: actors die, are killed, go with their node, and each unit still has one outcome.

The workers here sleep in place of labelling, and import no model.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from pipeline.distributed import waiting
from pipeline.distributed.pool import Crash, Pool, PoolSize
from pipeline.distributed.waiting import MAX_ATTEMPTS
from pipeline.errors import GateError, ModelError, PipelineError

TIMES = {"again once": 1, "again twice": 2, "again always": MAX_ATTEMPTS}  # that a unit asks for another attempt
N_KILLS = 5  # each costs seconds for a new process; a change of the pool is worth 100 once


class Sleeper:
    """A worker whose units are pairs of a number and of what happens when it is done."""

    def __init__(self, folder: Path, at_load: str = "") -> None:
        self.folder, self.at_load = folder, at_load

    def load(self) -> PipelineError | None:
        """Get ready, or not."""
        note(self.folder / "loads", str(os.getpid()))
        if self.at_load == "error":
            return GateError("no model today")
        if self.at_load == "die" or (self.at_load == "only one lives" and n_notes(self.folder / "loads") > 1):
            os._exit(1)
        return None

    def work(self, unit: tuple[int, str]) -> tuple[int, str, int, str]:
        """Give back the unit's number, how it went, and where."""
        number, what = unit
        note(self.folder / f"unit-{number}", str(os.getpid()))
        if what == "exit":
            os._exit(1)
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise ValueError("a secret row")
        if what == "wait":
            while not (self.folder / "go").exists():
                time.sleep(0.01)
        else:
            time.sleep(0.01)
        way = "again" if n_notes(self.folder / f"unit-{number}") <= TIMES.get(what, 0) else "done"
        return number, way, os.getpid(), ray.get_runtime_context().get_node_id()

    @staticmethod
    def may_try_again(outcome: tuple[int, str, int, str]) -> bool:
        """Whether it did not go well."""
        return outcome[1] == "again"


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def n_notes(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20})
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def pool_of(cluster: Cluster, tmp_path: Path) -> Callable[..., Pool]:
    def make(fewest: int = 2, most: int | None = None, at_load: str = "") -> Pool:
        return Pool((Sleeper, (tmp_path, at_load)), PoolSize(fewest, most or fewest, 1, 0), {})

    return make


def no_check() -> None:
    """Let a run go on."""


def outcomes_of(pool: Pool, units: list[Any], check: Callable[[], None] = no_check) -> dict[int, Any]:
    """What became of each unit, by its number."""
    with pool:
        found = list(pool.run(units, check))
    assert sorted(unit[0] for unit, _ in found) == sorted(unit[0] for unit in units), "each comes out once"
    return {unit[0]: outcome for unit, outcome in found}


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "waited for 20 seconds"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_unit_comes_out_once_with_its_outcome(pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    outcomes = {}
    with pool_of() as pool:
        for unit, outcome in pool.run([(0, "wait"), *((number, "") for number in range(1, 50))], no_check):
            assert unit[0] not in outcomes
            outcomes[unit[0]] = outcome
            (tmp_path / "go").touch()  # the first waits for one that another worker has done
    assert sorted(outcomes) == [*range(50)]
    assert all(outcome[:2] == (number, "done") for number, outcome in outcomes.items())
    assert len({outcome[2] for outcome in outcomes.values()}) == 2
    assert all(n_notes(tmp_path / f"unit-{number}") == 1 for number in range(50))


def test_a_unit_that_kills_its_workers_is_given_up_and_the_others_are_done(
    pool_of: Callable[..., Pool], tmp_path: Path
) -> None:
    """Also one that does it so fast that its worker has no time to tell of the unit before."""
    units = [(number, "") for number in range(30)]
    units[3] = (3, "exit")
    pool = pool_of()
    outcomes = outcomes_of(pool, units)
    crash = outcomes.pop(3)
    assert isinstance(crash, Crash)
    assert crash.n_attempts == MAX_ATTEMPTS
    assert "died" in crash.reason
    # by the first death, the one before it may be blamed
    assert MAX_ATTEMPTS <= pool.n_deaths == n_notes(tmp_path / "unit-3") <= MAX_ATTEMPTS + 1
    assert all(outcome[:2] == (number, "done") for number, outcome in outcomes.items())


def test_units_that_all_kill_their_workers_end_the_run(
    pool_of: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_ATTEMPTS", 1)
    monkeypatch.setattr("pipeline.distributed.pool.MAX_CRASHES_IN_A_ROW", 2)
    with pytest.raises(ModelError, match="the last 2 units each killed every worker"):
        outcomes_of(pool_of(1), [(0, "exit"), (1, ""), *((number, "exit") for number in range(2, 9))])
    assert [n_notes(tmp_path / f"unit-{number}") for number in range(5)] == [1, 1, 1, 1, 0]


def test_a_worker_that_raises_is_replaced_and_its_words_are_not_told(
    pool_of: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_ATTEMPTS", 1)
    outcomes = outcomes_of(pool_of(1), [(0, "raise"), (1, "")])
    assert outcomes[0] == Crash(1, "ValueError in the worker")
    assert outcomes[1][1] == "done"


def test_workers_that_are_killed_at_random_lose_nothing(pool_of: Callable[..., Pool]) -> None:
    n_units = 30 * N_KILLS
    chance, units, found, n_kills = random.Random(0), [(number, "") for number in range(n_units)], Counter[int](), 0
    next_kill = 5
    with pool_of(3) as pool:
        for unit, outcome in pool.run(units, no_check):
            assert not isinstance(outcome, Crash)
            assert outcome[:2] == (unit[0], "done")
            found[unit[0]] += 1
            if found.total() >= next_kill and n_kills < N_KILLS and is_alive(outcome[2]):
                if chance.random() < 0.5:  # as the kernel does when memory is short
                    os.kill(outcome[2], signal.SIGKILL)
                else:
                    ray.kill(chance.choice([actor.handle for actor in pool._actors]))
                n_kills, next_kill = n_kills + 1, found.total() + chance.randint(5, 25)
    assert n_kills == N_KILLS
    assert pool.n_deaths >= N_KILLS / 2  # ray.kill may meet one that is not ready, or dead already
    assert found == Counter(dict.fromkeys(range(n_units), 1))


def test_an_outcome_that_asks_for_it_is_tried_again_and_then_given_back(
    pool_of: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_PAUSE_SECONDS", 0.01)
    units = [(0, "again twice"), (1, "again always"), *((number, "") for number in range(2, 10))]
    outcomes = outcomes_of(pool_of(), units)
    assert [outcomes[number][1] for number in (0, 1, 2)] == ["done", "again", "done"]
    assert n_notes(tmp_path / "unit-0") == 3
    assert n_notes(tmp_path / "unit-1") == MAX_ATTEMPTS


def test_an_error_of_load_ends_the_run(pool_of: Callable[..., Pool]) -> None:
    with pytest.raises(GateError, match="no model today"):
        outcomes_of(pool_of(at_load="error"), [(0, ""), (1, "")])


def test_workers_that_die_while_they_load_end_the_run_when_there_is_no_other(
    pool_of: Callable[..., Pool], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="died while they loaded the model") as caught:
        outcomes_of(pool_of(1, at_load="die"), [(0, "")])
    assert "--workers" in caught.value.hint
    assert n_notes(tmp_path / "loads") == 3


def test_units_of_a_node_that_is_gone_are_done_by_the_others(
    pool_of: Callable[..., Pool], cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    pool, nodes = pool_of(5), Counter[str]()

    def check() -> None:
        if pool.n_deaths:
            (tmp_path / "go").touch()

    with pool:
        units = [*((number, "") for number in range(200)), *((number, "wait") for number in range(200, 206))]
        found = []
        for unit, outcome in pool.run(units, check):
            found.append(unit[0])
            nodes[outcome[3]] += 1
            if len(found) == 200:
                cluster.remove_node(node, allow_graceful=False)
    assert nodes[node.node_id], "it was given work"
    assert sorted(found) == list(range(206))
    assert pool.n_deaths == 1


def test_idle_workers_that_die_cost_a_unit_no_attempt(
    pool_of: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their death shows when they are given something to do, and had they had it, it would be given up."""
    monkeypatch.setattr(waiting, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(waiting, "FIRST_PAUSE_SECONDS", 3.0)
    with pool_of(2) as pool:
        found = []
        for unit, outcome in pool.run([(0, "again once"), *((number, "") for number in range(1, 20))], no_check):
            found.append(outcome[:2])
            if len(found) == 19:
                assert unit[0]
                for actor in pool._actors:
                    ray.kill(actor.handle)
    assert (0, "done") in found
    assert pool.n_deaths == 2
    assert n_notes(tmp_path / "unit-0") == 2


def test_a_worker_that_cannot_load_does_not_end_the_run_of_those_that_could(
    pool_of: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.distributed.pool.MAX_DEATHS_AT_START", 2)

    def check() -> None:
        if "no new worker" in caplog.text:
            (tmp_path / "go").touch()

    outcomes = outcomes_of(pool_of(2, at_load="only one lives"), [(number, "wait") for number in range(8)], check)
    assert {outcome[1] for outcome in outcomes.values()} == {"done"}
    assert n_notes(tmp_path / "loads") == 1 + 2


def test_pool_grows_while_there_is_work(pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    def check() -> None:
        if n_notes(tmp_path / "loads") == 3:
            (tmp_path / "go").touch()

    outcomes = outcomes_of(pool_of(1, 3), [(number, "wait") for number in range(40)], check)
    assert len({outcome[2] for outcome in outcomes.values()}) == n_notes(tmp_path / "loads") == 3


def test_a_check_that_raises_ends_the_run_and_its_actors(pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    def check() -> None:
        if n_notes(tmp_path / "unit-5") and n_notes(tmp_path / "loads") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcomes_of(pool_of(), [(number, "wait" if number == 5 else "") for number in range(50)], check)
    pids = [int(line) for line in (tmp_path / "loads").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)))
