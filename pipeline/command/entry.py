"""How a small command line runs: its errors in one line, its exit code.

No text of a row is told: what an unexpected error says may quote one, so only its kind and place are.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from pipeline.command.flags import usage_error
from pipeline.command.logs import FAULT, logs_on_stderr
from pipeline.command.stop_signals import Stopped, StopSignals
from pipeline.errors import Interrupted, PipelineError

PACKAGE = Path(__file__).parents[1]
AGAIN = "run the same command again"


def run_command(
    commands: Sequence[Callable[..., None]], program: str, argv: Sequence[str] | None, *, description: str | None = None
) -> int:
    """Run a command whose parameters are its flags, or one of several that is named first.

    Args:
        commands: of ``typer``.
        program: how they are called.
        argv: arguments without the program's name; None for those of the process.
        description: of several commands, for help.

    Returns:
        The exit code.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    app = typer.Typer(add_completion=False, help=description)
    for command in commands:
        app.command()(command)
    with logs_on_stderr("text"), StopSignals(last=argv is None) as signals:
        try:
            stopped = typer.main.get_command(app)(
                list(sys.argv[1:] if argv is None else argv), prog_name=program, standalone_mode=False
            )
            if stopped:  # the parser turns Ctrl-C into an exit code
                signals.check()
                raise Interrupted("stopped by Ctrl-C", AGAIN, stopped)
        except SystemExit:  # nobody reads the help any more
            raise
        except BaseException as error:  # polars' panics too
            cause = signals.cause_of(error)
            signals.ignore()
            failure = _failure(cause, program)
            level = FAULT if type(failure) is PipelineError else logging.ERROR
            fields = {"exit_code": failure.exit_code, "hint": failure.hint}
            logging.getLogger(program.removeprefix("python -m ")).log(level, "%s", failure, extra={"fields": fields})
            return failure.exit_code
    return 0


def _failure(error: BaseException, program: str) -> PipelineError:
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, Stopped):
        return Interrupted(f"stopped by {error.cause}", AGAIN, error.exit_code)
    if isinstance(error, typer.TyperException):
        return usage_error(error, program)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return PipelineError(f"{type(error).__name__} at {place}", "please report it")
