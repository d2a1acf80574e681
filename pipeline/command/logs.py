"""Messages on stderr: plain lines for people, or one JSON object a line for machines.

A message is a log record. A record's ``fields`` (a dict, given as ``extra={"fields": …}``) are further keys of its JSON
object; of them plain lines show ``hint`` and ``traceback`` only. A reader of stderr that goes away does not end a run.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from pipeline.errors import StorageError

FAULT = logging.CRITICAL  # of this program
PREFIXES = {logging.WARNING: "warning: ", logging.ERROR: "error: ", FAULT: "internal error: "}


def write_stderr(text: str) -> None:
    """Write to stderr, if somebody still reads it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def write_stdout(text: str) -> None:
    """Write to stdout, if somebody still reads it; if not, silence what the interpreter would say at its end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise StorageError(f"writing to stdout failed: {error.strerror}", "make room on the device") from error


class StderrHandler(logging.Handler):
    """Writes to whatever ``sys.stderr`` is at the time: a progress bar takes its place while it is on."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        write_stderr(self.format(record) + "\n")


class TextFormatter(logging.Formatter):
    """One plain line, and a second one with the hint; a traceback comes before them."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        fields = _fields(record)
        line = PREFIXES.get(record.levelno, "") + " ".join(record.getMessage().splitlines())
        hint = f"\nhint: {fields['hint']}" if fields.get("hint") else ""
        return f"{fields.get('traceback', '')}{line}{hint}"


class JsonFormatter(logging.Formatter):
    """One JSON object on one line: time (UTC), level, message, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The object of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        return json.dumps(message | _fields(record))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def wanted_format(arguments: Sequence[str]) -> str:
    """What ``--log-format`` or its variable says, known before the arguments are known to be right."""
    wanted = os.environ.get("PIPELINE_LOG_FORMAT", "text")
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--log-format":
            wanted = following
        elif argument.startswith("--log-format="):
            wanted = argument.partition("=")[2]
    return wanted


@contextmanager
def logs_on_stderr(log_format: str) -> Iterator[None]:
    """Show this package's messages, and the warnings of others, until the block ends.

    Args:
        log_format: ``json``; anything else is plain.
    """
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root, own = logging.getLogger(), logging.getLogger("pipeline")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        own.setLevel(level)
        root.removeHandler(handler)
