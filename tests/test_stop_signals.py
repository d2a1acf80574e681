"""Signals as exceptions: raised wherever the main thread is, found again when lost, ignored at the end."""

import os
import signal
from collections.abc import Iterator

import pytest

from pipeline.command.stop_signals import Stopped, StopSignals


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches the tests even where they were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_each_signal_has_its_exit_code_and_name() -> None:
    for signum, exit_code, cause in ((signal.SIGTERM, 75, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")):
        with StopSignals(), pytest.raises(Stopped) as stopped:
            os.kill(os.getpid(), signum)
        assert (stopped.value.exit_code, stopped.value.cause) == (exit_code, cause)


def test_a_second_signal_is_raised_too() -> None:
    """A run that waits for its second thread while it ends must not wait for it twice."""
    with StopSignals(), pytest.raises(Stopped):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            with pytest.raises(Stopped):
                os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_a_destructor_swallowed_is_found_by_the_next_check() -> None:
    class Swallows:
        def __del__(self) -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except KeyboardInterrupt:
                return

    with StopSignals() as signals:
        signals.check()
        Swallows()
        with pytest.raises(Stopped):
            signals.check()


def test_an_error_after_a_signal_is_the_signal() -> None:
    """Code that is interrupted may raise what it likes, an ImportError for instance."""
    error = ImportError()
    with StopSignals() as signals:
        assert signals.cause_of(error) is error
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        cause = signals.cause_of(error)
        assert isinstance(cause, Stopped)
        assert cause.exit_code == 75


def test_ignored_signals_change_nothing() -> None:
    with StopSignals() as signals:
        signals.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        signals.check()
        error = ValueError()
        assert signals.cause_of(error) is error


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    """As under nohup, or in the background of a shell script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        signals.check()


def test_signals_are_ignored_after_the_last_block_of_a_process() -> None:
    """A second Ctrl-C that came while Python cleaned up made the exit code -2."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with StopSignals(last=True):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_that_come_while_they_are_deferred_are_told_by_the_next_check() -> None:
    with StopSignals() as signals:
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            signals.check()
        with pytest.raises(Stopped):
            signals.check()


def test_signals_that_are_ignored_stay_so_behind_a_deferred_block() -> None:
    with StopSignals() as signals:
        signals.ignore()
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        signals.check()
