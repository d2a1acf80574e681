"""Units that wait for a worker: which is next, how often each was tried, when it may be again. Knows nothing of Ray.

A worker that dies may have been at the unit behind the one it was believed to be at, when it died before it could tell.
So both are suspect from then on, and a suspect is alone with its worker: what kills workers is found out, and a unit
that only was in its company is not given up in its place.
"""

import heapq
import time
from collections import Counter, deque
from collections.abc import Sequence

MAX_ATTEMPTS = 4  # as Spark's spark.task.maxFailures
# A lock that a worker out of reach still holds, or a network, takes seconds to get well, not milliseconds.
FIRST_PAUSE_SECONDS = 1.0
PAUSE_FACTOR = 4


class WaitingUnits:
    """Units by their numbers.

    Args:
        n_units: that there are.

    Attributes:
        n_attempts: that each was given, and that are over.
    """

    def __init__(self, n_units: int) -> None:
        self.n_attempts: Counter[int] = Counter()
        self._ready = deque(range(n_units))
        self._paused: list[tuple[float, int]] = []  # a heap of when and which
        self._suspects: set[int] = set()

    def __len__(self) -> int:
        return len(self._ready) + len(self._paused)

    @property
    def has_next(self) -> bool:
        """Whether there is one for a worker that has none."""
        return bool(self._ready) or self._has_rested

    def take(self) -> int | None:
        """The next for a worker that has none; None if there is none now."""
        if self._has_rested:
            return heapq.heappop(self._paused)[1]
        return self._ready.popleft() if self._ready else None

    def take_behind(self, number: int) -> int | None:
        """The next for a worker that is at one already; None if there is none now that may be in its company."""
        if not self._ready or number in self._suspects or self._ready[0] in self._suspects:
            return None
        return self._ready.popleft()

    def add_failed(self, number: int) -> bool:
        """An attempt failed and another one may not: in a while, unless it was the last; whether it was not."""
        self.n_attempts[number] += 1
        if self.n_attempts[number] >= MAX_ATTEMPTS:
            return False
        pause = FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** (self.n_attempts[number] - 1)
        heapq.heappush(self._paused, (time.monotonic() + pause, number))
        return True

    def add_dead(self, numbers: Sequence[int]) -> bool:
        """The worker died that had these, in the order in which it had them; they go before all others.

        Args:
            numbers: the first is the one it was at, and has had an attempt; the others have not begun.

        Returns:
            Whether the first waits again, too: it was not its last attempt.
        """
        self._suspects.update(numbers)
        self._ready.extendleft(reversed(numbers[1:]))
        if not numbers:
            return True
        self.n_attempts[numbers[0]] += 1
        if self.n_attempts[numbers[0]] >= MAX_ATTEMPTS:
            return False
        self._ready.appendleft(numbers[0])
        return True

    @property
    def _has_rested(self) -> bool:
        return bool(self._paused) and self._paused[0][0] <= time.monotonic()
