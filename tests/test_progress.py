"""How far a run is: the numbers, the words, and where they go."""

import io
import os
import sys
import time
from contextlib import suppress

import pytest

import pipeline.command.progress
from pipeline.command.progress import Position, chosen_kind, duration, percent, position, show_progress, show_step
from pipeline.stats import RunStats


def stats_of(*, rows: int, fed: int, buffer_rows: int = 0, buffer_tokens: int = 0, buffer_fed: int = 0) -> RunStats:
    """Counts of a run that fed ``fed`` tokens for ``rows`` rows, and ``buffer_fed`` of its present buffer's."""
    stats = RunStats(rows=rows, fed_tokens=fed, padded_tokens=fed)
    stats.begin_buffer(buffer_rows, buffer_tokens)
    stats.fed_tokens += buffer_fed
    stats.padded_tokens += buffer_fed
    return stats


def test_nothing_is_known_before_the_first_tokens() -> None:
    now = position(RunStats(), 100, 0.0)
    assert (now.rows, now.token_share, now.tokens_per_second, now.seconds_left) == (0, 0.0, 0.0, None)
    assert str(now) == "rows 0/100 (0.0 %), 0 tokens/s, padding 0.0 %"


def test_rows_within_a_buffer_are_counted_by_its_tokens() -> None:
    now = position(stats_of(rows=100, fed=1000, buffer_rows=50, buffer_tokens=2000, buffer_fed=500), 150, 10.0)
    assert now.rows == 100 + 50 // 4


def test_time_left_is_exact_within_the_last_buffer() -> None:
    now = position(stats_of(rows=0, fed=0, buffer_rows=10, buffer_tokens=900, buffer_fed=300), 10, 6.0)
    assert now.tokens_per_second == 50
    assert now.seconds_left == 12.0
    assert now.token_share == pytest.approx(1 / 3)


def test_rows_not_read_yet_are_expected_to_be_like_those_before_them() -> None:
    """100 rows had 1000 tokens, the buffer's 100 have 3000: 20 a row, for the 200 to come."""
    now = position(stats_of(rows=100, fed=1000, buffer_rows=100, buffer_tokens=3000, buffer_fed=1000), 400, 20.0)
    assert now.seconds_left == pytest.approx((2000 + 200 * 20) / 100)
    assert now.token_share == pytest.approx(2000 / 8000)


def test_longest_first_does_not_make_the_estimate_jump() -> None:
    """Counted in rows, a buffer that begins with its longest rows seems to take for ever."""
    lengths = sorted((10 + i % 500 for i in range(1000)), reverse=True)
    stats = stats_of(rows=0, fed=0, buffer_rows=1000, buffer_tokens=sum(lengths))
    for i, length in enumerate(lengths[:-1]):
        stats.fed_tokens += length
        seconds = stats.fed_tokens / 100
        left = position(stats, 1000, seconds).seconds_left
        assert left == pytest.approx((sum(lengths) - stats.fed_tokens) / 100), i


def test_a_finished_run_is_at_its_end() -> None:
    stats = stats_of(rows=0, fed=0, buffer_rows=40, buffer_tokens=100, buffer_fed=100)
    stats.end_buffer()
    now = position(stats, 40, 1.0)
    assert (now.rows, now.token_share, now.seconds_left) == (40, 1.0, 0.0)


def test_rows_without_text_are_progress_too() -> None:
    stats = RunStats()
    stats.begin_buffer(40, 0)
    stats.end_buffer()
    assert position(stats, 80, 1.0).rows == 40


def test_a_position_in_words() -> None:
    now = Position(12_345, 600_000, 0.02, 3456.4, 0.031, 4321.0)
    assert str(now) == "rows 12,345/600,000 (2.1 %), 3,456 tokens/s, padding 3.1 %, 1 h 12 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "12 ms"),
        (1.25, "1.2 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (172_800, "2 d 0 h"),
    ],
)
def test_durations_have_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_shares_have_one_digit_behind_the_point() -> None:
    assert percent(0.0314) == "3.1 %"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_shown_depends_on_where_messages_go(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert chosen_kind("auto", "text") == ("bar" if terminal else "log")
    assert chosen_kind("bar", "text") == ("bar" if terminal else "log")
    assert chosen_kind("log", "text") == "log"
    assert chosen_kind("none", "text") == "none"
    assert chosen_kind("auto", "json") == "log"
    monkeypatch.setenv("TERM", "dumb")
    assert chosen_kind("auto", "text") == "log"


def test_lines_come_at_intervals_and_end_with_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(pipeline.command.progress, "LINE_SECONDS", 0.01)
    stats = stats_of(rows=0, fed=0, buffer_rows=2, buffer_tokens=10, buffer_fed=5)
    with show_progress("log", stats, lambda: 4):
        while len(caplog.records) < 3:
            time.sleep(0.01)
    n_lines = len(caplog.records)
    assert caplog.records[0].getMessage().startswith("rows 1/4 (25.0 %), ")
    assert caplog.records[0].fields["progress"]["num_rows"] == 4  # type: ignore[attr-defined]
    time.sleep(0.05)
    assert len(caplog.records) == n_lines


def test_short_runs_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with show_progress("log", RunStats(), lambda: 4):
        pass
    with show_progress("none", RunStats(), lambda: 4), show_step("none", "loading"):
        pass
    assert [record.getMessage() for record in caplog.records] == ["loading"]


def read_all(descriptor: int) -> str:
    """What was written to a pseudo-terminal whose other end is closed."""
    content = b""
    with suppress(OSError):  # that is how it ends
        while part := os.read(descriptor, 1 << 16):
            content += part
    os.close(descriptor)
    return content.decode()


def test_a_bar_is_drawn_on_a_terminal_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pseudo-terminal, as a user sees it; messages written meanwhile stand above it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    reader, writer = os.openpty()
    with open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with show_step("bar", "loading"):
            time.sleep(0.05)
        stats = stats_of(rows=0, fed=0, buffer_rows=2, buffer_tokens=10, buffer_fed=5)
        with show_progress("bar", stats, lambda: 4):
            print("a message", file=sys.stderr, flush=True)
            time.sleep(0.4)
    shown = read_all(reader)
    assert "loading …" in shown
    assert "rows 1/4 (25.0 %)" in shown
    assert "━" in shown
    assert "a message" in shown
    assert shown.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))  # the bar's line is empty, the cursor is back


def test_a_bar_does_not_touch_a_stderr_that_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with show_progress(chosen_kind("bar", "text"), RunStats(), lambda: 4):
        pass
    assert stderr.getvalue() == ""
