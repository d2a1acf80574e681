"""How far a run is, while it runs: a bar on a terminal, a plain line now and then elsewhere.

Reads the counts of ``RunStats`` from a thread of its own and changes nothing. The time left is counted in tokens, not
rows, since long rows come first: exactly for the buffer that the model works on, and for rows not read yet by the
tokens of those before them.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from pipeline.stats import RunStats

log = logging.getLogger(__name__)

LINE_SECONDS = 15.0
MIN_BAR_COLUMNS = 10
ECHO_COLUMNS = 3  # a terminal shows ^C behind the bar: on a line of its own it would keep the bar from being erased
BAR_REFRESHES_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is.

    Attributes:
        rows: labelled; within a buffer by its share of tokens.
        num_rows: of the whole input.
        token_share: tokens fed, of those that the whole input is expected to feed, 0 to 1.
        tokens_per_second: fed since the run began.
        padding_share: share of the buckets' rectangles that is padding.
        seconds_left: None while unknown.
    """

    rows: int
    num_rows: int
    token_share: float
    tokens_per_second: float
    padding_share: float
    seconds_left: float | None

    def __str__(self) -> str:
        share = self.rows / self.num_rows if self.num_rows else 1.0
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return (
            f"rows {self.rows:,}/{self.num_rows:,} ({percent(share)}), {self.tokens_per_second:,.0f} tokens/s, "
            f"padding {percent(self.padding_share)}{left}"
        )


def position(stats: RunStats, num_rows: int, seconds: float) -> Position:
    """How far a run is.

    Args:
        stats: of the run, which may go on meanwhile.
        num_rows: rows of the whole input.
        seconds: since the run began.
    """
    fed = stats.fed_tokens
    waiting = max(0, stats.buffer_end_tokens - fed)
    buffer_share = 1 - waiting / stats.buffer_tokens if stats.buffer_tokens else 0.0
    known_rows = stats.rows + stats.buffer_rows
    unread = (num_rows - known_rows) * (fed + waiting) / known_rows if known_rows else 0.0
    return Position(
        rows=stats.rows + int(stats.buffer_rows * buffer_share),
        num_rows=num_rows,
        token_share=fed / (fed + waiting + unread) if fed else 0.0,
        tokens_per_second=fed / seconds if seconds else 0.0,
        padding_share=stats.padding_share,
        seconds_left=seconds * (waiting + unread) / fed if fed else None,
    )


def percent(share: float) -> str:
    """A share as people read it: ``3.4 %``."""
    return f"{share:.1%}".replace("%", " %")


def duration(seconds: float) -> str:
    """A time in its two largest units: ``1 h 12 min``."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def chosen_kind(wanted: str, log_format: str) -> str:
    """What to show: ``bar``, ``log`` or ``none``.

    Args:
        wanted: the same, or ``auto``; a bar needs a terminal, and elsewhere becomes ``log``.
        log_format: of the messages; a bar would garble those that are JSON.
    """
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if wanted in ("auto", "bar"):
        return "bar" if on_terminal and log_format == "text" else "log"
    return wanted


@contextmanager
def show_step(kind: str, what: str) -> Iterator[None]:
    """Say what is going on while the block runs, for steps whose end cannot be foreseen."""
    if kind == "bar":
        with Console(stderr=True, highlight=False).status(f"{what} …"):
            yield
    else:
        log.info("%s", what)
        yield


@contextmanager
def show_progress(kind: str, stats: RunStats, num_rows: Callable[[], int]) -> Iterator[None]:
    """Show how far a run is while the block runs.

    Args:
        kind: as ``chosen_kind`` gives it.
        stats: of the run.
        num_rows: rows of the whole input, as far as is known by now.
    """
    start = time.monotonic()

    def now() -> Position:
        return position(stats, num_rows(), time.monotonic() - start)

    if kind == "bar":
        console = Console(stderr=True)
        with Live(
            get_renderable=lambda: _bar(now(), console.width - ECHO_COLUMNS),
            console=console,
            refresh_per_second=BAR_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        ):
            yield
    elif kind == "log":
        with _lines(now):
            yield
    else:
        yield


def _bar(now: Position, width: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.width = width
    table.add_column(ratio=1, min_width=MIN_BAR_COLUMNS)
    table.add_column(no_wrap=True)
    table.add_row(ProgressBar(total=1.0, completed=now.token_share), str(now))
    return table


@contextmanager
def _lines(now: Callable[[], Position]) -> Iterator[None]:
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(LINE_SECONDS):
            at = now()
            log.info("%s", at, extra={"fields": {"progress": asdict(at)}})

    thread = threading.Thread(target=work, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
