"""A pool of Ray actors that work through units, whatever they are: nothing is lost when an actor dies.

Ray Data has such a pool, too. It waits for a dead actor's own restart, which never comes when its node is gone for good
and the others have no room, and it retries an input that kills its actor for ever (docs/log.md). Here a unit whose
actor died goes to another one, and after ``MAX_ATTEMPTS`` it is given up and the others go on. A unit may be worked at
twice, even at the same time, when an actor is believed dead that is not: what comes of it must bear that.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.distributed.waiting import WaitingUnits
from pipeline.errors import ModelError, PipelineError

log = logging.getLogger(__name__)

MAX_DEATHS_AT_START = 3
MAX_CRASHES_IN_A_ROW = 5  # it is not the units, then
REST_SECONDS = 60.0
WAIT_SECONDS = 0.5
SILENT_SECONDS = 30.0


class Worker(Protocol):
    """What an actor is made of."""

    def load(self) -> PipelineError | None:
        """Get ready; what comes back ends the whole run."""
        ...

    def work(self, unit: Any) -> Any:
        """Do a unit; never raises."""
        ...

    @staticmethod
    def may_try_again(outcome: Any) -> bool:
        """Whether an outcome is a failure that another attempt may not meet."""
        ...


@dataclass(frozen=True, slots=True)
class Crash:
    """A unit given up, since every worker that had it died.

    Attributes:
        n_attempts: that it was given.
        reason: of the last death, by Ray.
    """

    n_attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many actors there are, and what each is given.

    Attributes:
        fewest: that are started at once.
        most: one more is asked for whenever all have found a place and there are units left.
        cpus: of each.
        gpus: of each.
    """

    fewest: int
    most: int
    cpus: float
    gpus: float


@dataclass(eq=False, slots=True)
class _Actor:
    handle: Any
    loading: Any  # a reference to what ``load`` gives; None once it is ready
    n_deaths_before: int  # at start, in a row
    is_idle: bool = False  # nothing was heard of it for a while: it may be dead
    queue: deque[tuple[Any, int | None]] = field(default_factory=deque)  # references to outcomes, and units' numbers

    @property
    def awaited(self) -> Any:
        """What it will tell next; None when it is idle."""
        return self.loading or (self.queue[0][0] if self.queue else None)


class Pool:
    """Actors that work through units; a context manager that ends them.

    Args:
        make: the class of the worker, and what it is made with.
        size: of the pool.
        environment: variables of the actors' processes.

    Attributes:
        n_deaths: of actors, so far.
    """

    def __init__(self, make: tuple[type[Worker], tuple[Any, ...]], size: PoolSize, environment: Mapping[str, str]):
        cls, arguments = make
        self._size = size
        self._again = cls.may_try_again
        self._arguments = [ray.put(argument) for argument in arguments]
        self._class: Any = ray.remote(cls).options(
            num_cpus=size.cpus, num_gpus=size.gpus, max_restarts=0, max_task_retries=0,
            runtime_env={"env_vars": dict(environment)},
        )  # fmt: skip
        self._actors: list[_Actor] = []
        self._n_deaths_at_start = 0
        self._rest_until = 0.0
        self._n_crashes = 0  # since a unit was last done
        self.n_deaths = 0

    def run(self, units: Iterable[Any], check: Callable[[], None]) -> Iterator[tuple[Any, Any]]:
        """Work through units.

        Args:
            units: in the order in which they are dealt out.
            check: called often; what it raises ends the run.

        Yields:
            Each unit, as it is done, with its outcome or a ``Crash``.

        Raises:
            PipelineError: the workers cannot get ready, or die of every unit.
        """
        units = list(units)
        waiting, n_left, silent_since = WaitingUnits(len(units)), len(units), time.monotonic()
        while n_left:
            check()
            self._grow(n_left, len(waiting))
            self._deal(units, waiting)
            done = self._wait()
            if done is None:
                if all(actor.loading for actor in self._actors):
                    silent_since = self._tell_waiting(silent_since)
                continue
            silent_since = time.monotonic()
            for number, outcome in self._take(done, waiting):
                n_left -= 1
                yield units[number], outcome

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *of_block: object) -> None:
        for actor in self._actors:
            _kill(actor)
        self._actors = []

    def _grow(self, n_left: int, n_waiting: int) -> None:
        if self._actors and time.monotonic() < self._rest_until:
            return
        n_wanted = min(self._size.fewest, n_left)
        if n_waiting and all(actor.loading is None for actor in self._actors):
            n_wanted = min(max(n_wanted, len(self._actors) + 1), self._size.most, n_left)
        while len(self._actors) < n_wanted:
            handle: Any = self._class.remote(*self._arguments)
            self._actors.append(_Actor(handle, handle.load.remote(), self._n_deaths_at_start))

    def _deal(self, units: list[Any], waiting: WaitingUnits) -> None:
        """Hand out units, one each and then one more, but at the end none that another actor could begin earlier."""

        def hand_out(actor: _Actor, number: int | None) -> None:
            if number is not None:
                actor.queue.append((actor.handle.work.remote(units[number]), number))

        ready = [actor for actor in self._actors if actor.loading is None]
        for actor in ready:
            if actor.queue:
                continue
            if actor.is_idle and waiting.has_next:  # were it dead, a unit would be charged with an attempt it never had
                actor.queue.append((actor.handle.__ray_ready__.remote(), None))
            else:
                hand_out(actor, waiting.take())
                actor.is_idle = not actor.queue
        for actor in ready:  # the next is at hand when one ends; more would only be dealt out anew after a death
            if len(waiting) > len(self._actors) and len(actor.queue) == 1 and (first := actor.queue[0][1]) is not None:
                hand_out(actor, waiting.take_behind(first))

    def _wait(self) -> _Actor | None:
        """The actor that is the next to tell something; None if there was none for a while."""
        of_reference = {actor.awaited: actor for actor in self._actors if actor.awaited}
        if not of_reference:  # all that is left was tried just now
            time.sleep(WAIT_SECONDS)
            return None
        done, _ = ray.wait([*of_reference], num_returns=1, timeout=WAIT_SECONDS)
        return of_reference[done[0]] if done else None

    def _take(self, actor: _Actor, waiting: WaitingUnits) -> Iterator[tuple[int, Any]]:
        """Hear what an actor has to tell, and give the unit that is over by that."""
        try:
            result = ray.get(actor.awaited)
        except RayError as error:
            yield from self._bury(actor, error, waiting)
            return
        actor.is_idle = False
        if actor.loading is not None:
            if result is not None:
                raise result
            actor.loading, self._n_deaths_at_start = None, 0
            return
        _, number = actor.queue.popleft()
        if number is None or (self._again(result) and waiting.add_failed(number)):
            return
        self._n_crashes = 0
        yield number, result

    def _bury(self, actor: _Actor, error: RayError, waiting: WaitingUnits) -> Iterator[tuple[int, Any]]:
        """An actor is gone, and its units go to others; give the one that is given up, if there is one."""
        reason = _reason(error)
        self._actors.remove(actor)
        _kill(actor)  # it may be out of reach only, and must not go on with a unit that others get
        self.n_deaths += 1
        if actor.loading is not None:
            self._count_death_at_start(actor, reason)
            return
        log.warning("a worker died, and its work goes to another one: %s", reason)
        numbers = [number for _, number in actor.queue if number is not None]
        if not waiting.add_dead(numbers):
            self._n_crashes += 1
            yield numbers[0], Crash(waiting.n_attempts[numbers[0]], reason)
            if self._n_crashes == MAX_CRASHES_IN_A_ROW:
                raise ModelError(
                    f"the last {MAX_CRASHES_IN_A_ROW} units each killed every worker that had them: {reason}",
                    "give each worker more memory by fewer --workers, or use a smaller model",
                )

    def _count_death_at_start(self, actor: _Actor, reason: str) -> None:
        """Of those that die together, with their node, one counts. The run ends when there is no other actor left.

        Raises:
            ModelError: it ends.
        """
        self._n_deaths_at_start = max(self._n_deaths_at_start, actor.n_deaths_before + 1)
        if self._n_deaths_at_start < MAX_DEATHS_AT_START:
            return
        if not self._actors:
            raise ModelError(
                f"{MAX_DEATHS_AT_START} workers in a row died while they loaded the model: {reason}",
                "give each more memory by fewer --workers, or use a smaller model",
            )
        self._rest_until = time.monotonic() + REST_SECONDS
        log.warning(
            "no new worker for %g seconds, since %d in a row died while they loaded the model; the others go on: %s",
            REST_SECONDS, self._n_deaths_at_start, reason,
        )  # fmt: skip

    def _tell_waiting(self, since: float) -> float:
        if time.monotonic() - since < SILENT_SECONDS:
            return since
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        log.warning(
            "no worker is ready yet: they load, or wait for %g CPUs and %g GPUs each, where %g and %g are free",
            self._size.cpus, self._size.gpus, free.get("CPU", 0), free.get("GPU", 0),
        )  # fmt: skip
        return time.monotonic()


def _kill(actor: _Actor) -> None:
    with suppress(RayError):  # Ray itself is gone, and so is the actor
        ray.kill(actor.handle)


def _reason(error: RayError) -> str:
    """What Ray says, in one line."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__} in the worker"  # its own words may quote a row
    kind = "" if isinstance(error, RayActorError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:300]
