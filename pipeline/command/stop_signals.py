"""SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is gone) as one exception that the main thread meets anywhere.

The exception is a ``KeyboardInterrupt``, because libraries let that one through where they swallow others. A second
signal raises it again, so that it also cuts a slow clean-up short.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

EXIT_CODES = {signal.SIGTERM: 75, signal.SIGHUP: 75, signal.SIGINT: 130}
NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP", signal.SIGINT: "Ctrl-C"}


class Stopped(KeyboardInterrupt):
    """A signal asks the run to end.

    Attributes:
        exit_code: of the process.
        cause: the signal, in words.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.exit_code = EXIT_CODES[signal.Signals(signum)]
        self.cause = NAMES[signal.Signals(signum)]


class StopSignals:
    """Raises ``Stopped`` on a signal while the block runs; for the main thread only.

    A signal that the process was started to ignore, as ``nohup`` and background jobs do, stays ignored.

    Args:
        last: whether the process ends with the block. Signals are ignored from then on, since one that comes while
            Python cleans up would take the place of the exit code.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self._received: int | None = None
        self._ignored = False
        self._before: dict[int, signal._HANDLER] = {}

    def check(self) -> None:
        """Raise ``Stopped`` again if there was one: it is lost when it meets a destructor or a callback from C."""
        if self._received is not None and not self._ignored:
            raise Stopped(self._received)

    def cause_of(self, error: BaseException) -> BaseException:
        """Why a run ends with this error: if there was a signal, for that, whatever ``Stopped`` became on its way."""
        if self._received is None or self._ignored:
            return error
        return Stopped(self._received)

    def ignore(self) -> None:
        """From here on signals change nothing: the little that is left will be done."""
        self._ignored = True

    def take_back(self) -> None:
        """Receive signals again after a library has put handlers of its own in place."""
        for signum in self._before:
            signal.signal(signum, self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Until the block ends, signals change nothing; then ``check`` tells of them."""
        before, self._ignored = self._ignored, True
        try:
            yield
        finally:
            self._ignored = before

    def __enter__(self) -> Self:
        for signum in EXIT_CODES:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_IGN if self._last else handler)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._received = signum
        if not self._ignored:
            raise Stopped(signum)
