"""A pool of Ray actors that work through units, whatever they are: nothing is lost when an actor dies.

Ray Data has such a pool, too. It waits for a dead actor's own restart, which never comes when its node is gone for good
and the others have no room, and it retries an input that kills its actor for ever (docs/log.md). Here a unit whose
actor died goes to another one, and after ``MAX_ATTEMPTS`` it is given up and the others go on.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.errors import ModelError, PipelineError

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4  # as Spark's spark.task.maxFailures
# An actor has the next unit at hand when it ends one; more would only be dealt out anew when it dies.
UNITS_AHEAD = 2
MAX_DEATHS_AT_START = 3
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
    queue: deque[tuple[Any, int]] = field(default_factory=deque)  # references to outcomes, and the units' numbers


class Pool:
    """Actors that work through units; a context manager that ends them.

    Args:
        make: the class of the worker, and what it is made with.
        size: of the pool.
        environment: variables of the actors' processes.
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
        self._deaths_at_start = 0
        self.n_deaths = 0

    def run(self, units: Iterable[Any], check: Callable[[], None]) -> Iterator[tuple[Any, Any]]:
        """Work through units.

        Args:
            units: in the order in which they are dealt out.
            check: called often; what it raises ends the run.

        Yields:
            Each unit, as it is done, with its outcome or a ``Crash``.

        Raises:
            PipelineError: the workers cannot get ready.
        """
        units = list(units)
        waiting, attempts = deque(range(len(units))), Counter[int]()
        silent_since = time.monotonic()
        n_left = len(units)
        while n_left:
            check()
            self._grow(n_left)
            self._deal(units, waiting)
            references = [reference for actor in self._actors for reference in self._references(actor)]
            done, _ = ray.wait(references, num_returns=1, timeout=WAIT_SECONDS)
            if not done and all(actor.loading for actor in self._actors):
                silent_since = self._tell_waiting(silent_since)
            for reference in done:
                for number, outcome in self._take(reference, waiting, attempts):
                    n_left -= 1
                    yield units[number], outcome

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *of_block: object) -> None:
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors = []

    def _grow(self, n_units: int) -> None:
        n_wanted, n_loading = min(self._size.fewest, n_units), sum(actor.loading is not None for actor in self._actors)
        if not n_loading:
            n_wanted = min(max(n_wanted, len(self._actors) + 1), self._size.most, n_units)
        while len(self._actors) < n_wanted:
            handle: Any = self._class.remote(*self._arguments)
            self._actors.append(_Actor(handle, handle.load.remote()))

    def _deal(self, units: list[Any], waiting: deque[int]) -> None:
        """Hand out units, one each and then one more, but at the end none that another actor could begin earlier."""
        for length in range(UNITS_AHEAD):
            for actor in self._actors:
                n_kept = len(self._actors) if length else 0
                if len(waiting) > n_kept and actor.loading is None and len(actor.queue) == length:
                    number = waiting.popleft()
                    actor.queue.append((actor.handle.work.remote(units[number]), number))

    @staticmethod
    def _references(actor: _Actor) -> Iterator[Any]:
        if actor.loading is not None:
            yield actor.loading
        elif actor.queue:
            yield actor.queue[0][0]

    def _take(self, reference: Any, waiting: deque[int], attempts: Counter[int]) -> Iterator[tuple[int, Any]]:
        actor = next(actor for actor in self._actors if reference in self._references(actor))
        try:
            result = ray.get(reference)
        except RayError as error:
            yield from self._bury(actor, error, waiting, attempts)
            return
        if actor.loading is not None:
            if result is not None:
                raise result
            actor.loading, self._deaths_at_start = None, 0
            return
        _, number = actor.queue.popleft()
        attempts[number] += 1
        if self._again(result) and attempts[number] < MAX_ATTEMPTS:
            waiting.append(number)  # behind the others: what is wrong may pass
        else:
            yield number, result

    def _bury(
        self, actor: _Actor, error: RayError, waiting: deque[int], attempts: Counter[int]
    ) -> Iterator[tuple[int, Any]]:
        """An actor is gone: of its units the one it was at has had an attempt, the others have not begun."""
        reason = _reason(error)
        self._actors.remove(actor)
        ray.kill(actor.handle)  # it may be out of reach only, and must not go on with a unit that others get
        self.n_deaths += 1
        if actor.loading is not None:
            self._deaths_at_start += 1
            if self._deaths_at_start == MAX_DEATHS_AT_START:
                raise ModelError(
                    f"{MAX_DEATHS_AT_START} workers in a row died while they loaded the model: {reason}",
                    "give each more memory by fewer --workers, or use a smaller model",
                )
            return
        log.warning("a worker died, and its work goes to another one: %s", reason)
        numbers = [number for _, number in actor.queue]
        at_work, begun_later = numbers[0], numbers[1:]
        waiting.extendleft(reversed(begun_later))
        attempts[at_work] += 1
        if attempts[at_work] < MAX_ATTEMPTS:
            waiting.appendleft(at_work)
        else:
            yield at_work, Crash(attempts[at_work], reason)

    def _tell_waiting(self, since: float) -> float:
        if time.monotonic() - since < SILENT_SECONDS:
            return since
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        log.warning(
            "no worker is ready yet: each wants %g CPUs and %g GPUs, and %g and %g are free in the cluster",
            self._size.cpus, self._size.gpus, free.get("CPU", 0), free.get("GPU", 0),
        )  # fmt: skip
        return time.monotonic()


def _reason(error: RayError) -> str:
    """What Ray says, in one line."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__} in the worker"  # its own words may quote a row
    kind = "" if isinstance(error, RayActorError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:300]
