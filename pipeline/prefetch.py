"""Run an iterator one step ahead on another thread, through a one-slot queue."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

THREAD_NAME = "prefetch"
TURN_SECONDS = 0.1  # of waiting: a signal may reach another thread, and is heard here only when this one runs


def has_stragglers() -> bool:
    """Whether a thread still runs whose consumer was interrupted while it waited for the thread's end."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items in order while the next one is being made on another thread.

    At most three items exist at once: the one in use, the one in the slot, the one being made. An exception of the
    iterable is raised here, at its place in the order. Closing this generator ends the thread after its current item.
    """
    slot: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> bool:
        while not stop.is_set():
            try:
                slot.put(entry, timeout=TURN_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None, False)):
                    return
            put((None, None, True))
        except BaseException as error:  # carried over to the consumer's thread, polars panics included
            put((None, error, True))

    thread = threading.Thread(target=work, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error, ended = slot.get(timeout=TURN_SECONDS)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if ended:
                return
            yield item  # type: ignore[misc]  # only the end carries no item
    finally:
        stop.set()
        while thread.is_alive():
            thread.join(TURN_SECONDS)
