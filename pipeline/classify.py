"""The command line: ``python -m pipeline.classify INPUT OUTPUT``.

Whatever can be refused is refused before the model loads: flags, task file, input, output, in this order. Messages go
to stderr; stdout carries only what ``--help``, ``--version``, ``--print-task``, ``--dry-run`` and ``--explain`` are
asked for. A run ends with a summary or with one line that says why not, and with an exit code of ``errors``; of many
files, each that fails has such a line. Nothing heavy is imported before the flags are known to be right.
"""

import io
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pipeline.command.failures import tell_failure
from pipeline.command.logs import logs_on_stderr, wanted_format, write_stderr, write_stdout
from pipeline.command.options import COMMAND, Options, parse
from pipeline.command.report import Report, check_metrics_path, write_metrics
from pipeline.command.stop_signals import Stopped, StopSignals
from pipeline.command.summary import summary
from pipeline.errors import Interrupted, PipelineError, UsageError
from pipeline.parquet.uri import public_name
from pipeline.prefetch import has_stragglers
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.command.run import Run

log = logging.getLogger("pipeline.classify")  # __name__ is "__main__" here

PACKAGE = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, in the main thread.

    Args:
        argv: arguments without the program's name; None for those of the process, which ends with the run.

    Returns:
        The exit code.
    """
    # Before torch is imported: OpenMP threads without work must sleep. Spinning, they hold the cores that others need,
    # and with a busy neighbour on one of two cores a pass takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Tokenizing uses all cores, on a thread; nothing here forks, which is what the library would warn about.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    arguments = list(sys.argv[1:] if argv is None else argv)
    options, report, exit_code = None, Report(), 0
    with logs_on_stderr(wanted_format(arguments)), StopSignals(last=argv is None) as signals:
        try:
            options = parse(arguments)
            signals.check()
            if options is not None:
                report.exit_code = exit_code = _label(options, report, signals)
        except SystemExit:  # nobody reads the help any more
            raise
        except BaseException as error:  # polars' panics too
            cause = signals.cause_of(error)
            signals.ignore()
            exit_code = _explain(cause, options, report, arguments)
        signals.ignore()
        metrics_exit_code = _write_metrics(report)
    exit_code = exit_code or metrics_exit_code
    if argv is None and has_stragglers():
        # After a second Ctrl-C a thread may be within a library's native code, which aborts when the interpreter goes.
        sys.stdout.flush()
        os._exit(exit_code)
    return exit_code


def _label(options: Options, report: Report, signals: StopSignals) -> int:
    report.input, report.output = public_name(options.input), public_name(options.output)
    settings, task = options.build_settings(), options.build_task()
    if options.print_task:
        from pipeline.task_toml import task_to_toml

        write_stdout(task_to_toml(task))
        return 0
    if task.head is not None:
        _check_head(task.head, task, f"task file {str(options.task)!r}")
    if options.metrics is not None:
        check_metrics_path(options.metrics)
        report.metrics_path = None if options.dry_run else options.metrics
    exit_code = _chosen_run(options)(options, settings, report, signals).label(task)
    if not options.dry_run:
        _show_summary(report, options.log_format)
    return exit_code


def _chosen_run(options: Options) -> "type[Run]":
    """The kind of run: on this machine, or on Ray."""
    if options.ray is None or options.dry_run:
        from pipeline.command.run import Run

        return Run
    try:
        from pipeline.distributed.run import RayRun
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UsageError(
            f"--ray {options.ray}: Ray is not installed", "pip install -c constraints.txt -e '.[ray]'"
        ) from error
    return RayRun


def _check_head(path: Path, task: Task, where: str) -> None:
    """Refuse a head that is none, or was fitted for other labels; whether it is one of the model, is known later."""
    from pipeline.head import head_scorer, load_head

    try:
        head_scorer(load_head(path), task.label_names, multi=task.multi, path=path)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", error.hint) from None


def _show_summary(report: Report, log_format: str) -> None:
    if log_format == "json":
        log.info("done", extra={"fields": {"summary": report.metrics()}})
        return
    if report.facts:  # a model was loaded
        on_terminal = sys.stderr.isatty()
        lines = io.StringIO()
        console = Console(file=lines, force_terminal=on_terminal, highlight=False)
        for line in summary(report, bars=on_terminal):
            console.print(line, soft_wrap=True)
        write_stderr(f"\n{lines.getvalue()}\n")
    log.info("done: %s%s", report.output, "" if report.files is None else f": {report.describe_files()}")


def _explain(error: BaseException, options: Options | None, report: Report, arguments: Sequence[str]) -> int:
    """Say why a run ended, and give its exit code."""
    failure = _failure(error, report, arguments)
    report.error = tell_failure(failure, error, debug=options is not None and options.debug)
    report.exit_code = failure.exit_code
    return failure.exit_code


def _failure(error: BaseException, report: Report, arguments: Sequence[str]) -> PipelineError:
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, Stopped):
        if not report.output:
            return Interrupted(f"stopped by {error.cause} before anything was done", exit_code=error.exit_code)
        left = "is as it was before" if report.files is None else f"holds what was finished: {report.describe_files()}"
        return Interrupted(
            f"stopped by {error.cause}; {report.output!r} {left}", _resume_hint(arguments), error.exit_code
        )
    # Its own words are left out: they may quote a row.
    return PipelineError(
        f"{type(error).__name__} at {_place(error)}", "run again with --debug to see more, and please report it"
    )


def _resume_hint(arguments: Sequence[str]) -> str:
    has_secrets = any("://" in argument and ("@" in argument or "?" in argument) for argument in arguments)
    return "go on with the same command" + ("" if has_secrets else f": {COMMAND} {shlex.join(arguments)}")


def _place(error: BaseException) -> str:
    """The last line of this package that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def _write_metrics(report: Report) -> int:
    """Write what was measured, if that is wanted; gives an exit code."""
    if report.metrics_path is None:
        return 0
    try:
        write_metrics(report.metrics_path, report.metrics())
    except PipelineError as error:
        log.error("%s", error, extra={"fields": {"exit_code": error.exit_code, "hint": error.hint}})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
