"""How the benchmarks' command lines fail: in one line, if possible before anything is measured; their exit codes."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import OutputError, PipelineError, UsageError


class Parser(argparse.ArgumentParser):
    """A parser that tells a wrong flag in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"error: {message}\nhint: see {self.prog} --help\n")


def run(command: Callable[[], None]) -> int:
    """Run a command; returns its exit code, and tells what went wrong."""
    try:
        command()
    except PipelineError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    return 0


def check_ray() -> None:
    """See that Ray is there.

    Raises:
        UsageError: it is not installed.
    """
    if find_spec("ray") is None:
        raise UsageError("Ray is not installed", "pip install -c constraints.txt -e '.[ray]'")


def check_output(flag: str, file: Path | None) -> None:
    """Refuse a file that cannot be written, since measuring it anew would take an hour.

    Raises:
        OutputError: there is no such folder, or it or the file may not be written.
    """
    if file is None:
        return
    folder, named = file.absolute().parent, f"{flag} {str(file)!r}"
    if not folder.is_dir():
        raise OutputError(f"{named}: there is no such folder", "create the folder first")
    if file.is_dir():
        raise OutputError(f"{named}: that is a folder", "name a file in it")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise OutputError(f"{named}: no permission to write there", "name another file")


def tell_json(figures: Mapping[str, Any], file: Path | None) -> None:
    """Print figures as a line of JSON, and write it to a file, too; the line is out whatever becomes of the file.

    Raises:
        OutputError: the file cannot be written.
    """
    line = json.dumps(figures, allow_nan=False)
    print(line, flush=True)
    if file is not None:
        try:
            file.write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"--json {str(file)!r} cannot be written: {error.strerror}", "name another file"
            ) from None
