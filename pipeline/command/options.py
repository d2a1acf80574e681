"""The flags of the command line: names, help, environment variables, and what they make: a task and settings.

Every flag ``--some-name`` may also be given as the environment variable ``PIPELINE_SOME_NAME``; the flag wins. Nothing
here touches the input, the output or a model, and nothing heavy is imported.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.command.flags import (
    RowLimit,
    Span,
    column_names,
    count,
    count_or_auto,
    flag,
    number,
    row_limit,
    share,
    span,
    usage_error,
)
from pipeline.errors import UsageError
from pipeline.settings import DEFAULT_MAX_TOKENS, UNQUANTIZED, EngineKind, Overlong, Quantize, Settings
from pipeline.task import Calibration, Mode, Scoring, Task
from pipeline.task_file import builtin_task, load_task
from pipeline.version import PROGRAM, installed_version

COMMAND = "python -m pipeline.classify"
HELP = """Label every row of a Parquet file with a small local language model.

OUTPUT gets every column of INPUT as it is and a column of labels behind them, rows in their original order. It appears only when it is complete. If INPUT is a folder or a quoted glob, OUTPUT is a folder of the same files; a second run skips those that are finished.

The columns with the text are found by name: text, ticket, body (with subject), description or message. The built-in task tells billing, technical and account tickets apart. Both are yours to change.
"""  # noqa: E501  (a line is a paragraph)
EXIT_CODES = (
    "Exit codes: 0 done; 2 flags or task file; 3 a check that was asked for failed; 65 input unusable; 66 no input; "
    "69 model unavailable; 70 a fault of this program; 73 output exists or cannot be created; 74 reading or writing "
    "failed; 75 or 130 stopped by SIGTERM or Ctrl-C."
)


# Work files, journals, and what is kept in an output folder.
OWN_SUFFIXES = (".partial", ".scores", ".parts", ".parquet_classify.json", ".parquet_classify.lock")
# The host may be in brackets, as that of IPv6 is; a URI of another scheme is none, though it may have a port.
RAY_ADDRESS = re.compile(r"local|auto|(ray://)?[^\s/]+:\d{1,5}")
RAY_HINT = "an address behind --ray is local, auto or HOST:PORT"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {installed_version()}")
        raise typer.Exit()


@dataclass(frozen=True, slots=True)
class Options:
    """What a command line says; each field is a flag and carries its help.

    Values are of the right type, but may still contradict each other: see ``build_settings`` and ``build_task``.
    """

    input: Annotated[
        str, typer.Argument(metavar="INPUT", help="Parquet file, folder, glob or URI to read.", show_default=False)
    ] = ""
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Parquet file to write, or a folder.", show_default=False)
    ] = ""

    task: Annotated[
        str | None,
        flag(
            "task",
            "Task",
            "Task file, or a built-in task: labels, prompts, text columns; flags win over it.",
            metavar="FILE.toml|builtin:NAME",
        ),
    ] = None
    text_column: Annotated[
        list[str] | None,
        flag(
            "text-column",
            "Task",
            "Column that holds the text; repeat the flag to join several (with commas in the variable).",
            metavar="NAME",
            callback=column_names,
        ),
    ] = None
    labels: Annotated[
        str | None, flag("labels", "Task", "Labels to choose from, with commas between them.", metavar="A,B,C")
    ] = None
    mode: Annotated[
        Mode | None, flag("mode", "Task", "Whether a row has one label, or any number of them, each asked by itself.")
    ] = None
    label_column: Annotated[
        str, flag("label-column", "Task", "Name of the added column of labels.", metavar="NAME")
    ] = "label"
    score_column: Annotated[
        str | None, flag("score-column", "Task", "Also add a column of the labels' probabilities.", metavar="NAME")
    ] = None
    status_column: Annotated[
        str | None,
        flag(
            "status-column",
            "Task",
            "Also add a column that says how each row went: ok, blank, truncated, overlong, low_score, invalid_text or "
            "failed.",
            metavar="NAME",
        ),
    ] = None
    min_score: Annotated[
        float | None,
        flag(
            "min-score",
            "Task",
            "Rows whose label is less probable get the default label instead.",
            metavar="P",
            parser=number,
        ),
    ] = None
    min_margin: Annotated[
        float | None,
        flag(
            "min-margin",
            "Task",
            "Rows whose label is not more probable than the next one by this get the default label instead.",
            metavar="P",
            parser=number,
        ),
    ] = None
    default_label: Annotated[
        str | None,
        flag("default-label", "Task", "Label of such rows; null if empty or not given.", metavar="LABEL"),
    ] = None
    scoring: Annotated[
        Scoring | None,
        flag(
            "scoring",
            "Task",
            "How labels are compared: first-token, constrained (token by token, each among those that some label goes "
            "on with), sequence (all their tokens); auto: constrained.",
            metavar="SCORING",
        ),
    ] = None
    calibration: Annotated[
        Calibration | None,
        flag(
            "calibration",
            "Task",
            "Whether to divide out what the model answers to texts without content (contextual) or to the first texts "
            "of the input (batch).",
        ),
    ] = None

    model: Annotated[
        str, flag("model", "Model", "A folder, a .gguf file, a model hub name, or embedded.", metavar="MODEL")
    ] = "embedded"
    revision: Annotated[
        str | None, flag("revision", "Model", "Branch, tag or commit of the model on the hub.", metavar="REVISION")
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], flag("device", "Model", "Where the model runs; auto: the best there is.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        flag(
            "dtype",
            "Model",
            "Type of the weights: float32, bfloat16, float16; auto: float32 on a CPU, 16 bits elsewhere.",
            metavar="TYPE",
        ),
    ] = "auto"
    max_tokens: Annotated[
        int | None,
        flag(
            "max-tokens",
            "Model",
            f"Most tokens of a whole prompt; {DEFAULT_MAX_TOKENS}, or what the model can take if less.",
            metavar="N",
            parser=count,
        ),
    ] = None
    overlong: Annotated[
        Overlong,
        flag(
            "overlong",
            "Model",
            "Rows with longer prompts: cut the text in its middle, give no label, or end the run.",
        ),
    ] = "truncate"
    trust_remote_code: Annotated[
        bool,
        flag("trust-remote-code", "Model", "Run code that comes with the model, and read pickled weights."),
    ] = False

    engine: Annotated[
        EngineKind,
        flag(
            "engine",
            "Speed",
            "How rows go through the model: fused, packed, padded, single; auto: the fastest that fits it.",
            metavar="ENGINE",
        ),
    ] = "auto"
    quantize: Annotated[
        Quantize,
        flag(
            "quantize",
            "Speed",
            "Compute half of the products in int8, which is faster and changes some labels; see --min-agreement.",
        ),
    ] = "none"
    buffer_rows: Annotated[
        int, flag("buffer-rows", "Speed", "Most rows in memory at a time.", metavar="N", parser=count)
    ] = 8192
    max_batch_tokens: Annotated[
        int | None,
        flag(
            "max-batch-tokens",
            "Speed",
            "Most tokens of one pass through the model; auto: by device.",
            metavar="N|auto",
            parser=count_or_auto,
        ),
    ] = None

    ray: Annotated[
        str | None,
        flag(
            "ray",
            "Cluster",
            "Label on Ray: local, also if no address follows, starts one on this machine; else a cluster's address.",
            metavar="[ADDRESS]",
        ),
    ] = None
    workers: Annotated[
        Span | None,
        flag(
            "workers",
            "Cluster",
            "Workers on Ray, or from MIN to MAX as they find a place; by default as many as have room.",
            metavar="N|MIN,MAX",
            parser=span,
        ),
    ] = None
    cpus_per_worker: Annotated[
        int | None,
        flag(
            "cpus-per-worker",
            "Cluster",
            "Cores of each worker; by default 4, or all of a smaller machine.",
            metavar="N",
            parser=count,
        ),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        flag(
            "gpus-per-worker",
            "Cluster",
            "GPUs of each worker; by default 1 where there are any; 0.5 lets two share one.",
            metavar="N",
            parser=number,
        ),
    ] = None
    unit_rows: Annotated[
        int,
        flag(
            "unit-rows",
            "Cluster",
            "About how many rows a worker labels at a time: whole row groups of one file.",
            metavar="N",
            parser=count,
        ),
    ] = 20_000

    cache: Annotated[
        Path | None,
        flag(
            "cache",
            "Safety",
            "Keep scores of texts in this file and use those it has; for many runs and tasks.",
            metavar="PATH",
        ),
    ] = None
    no_cache: Annotated[
        bool,
        flag(
            "no-cache",
            "Safety",
            "Keep no scores, not even beside OUTPUT until it is complete: a run that ends early starts anew.",
        ),
    ] = False
    max_failed: Annotated[
        RowLimit,
        flag(
            "max-failed",
            "Safety",
            "End the run if more rows of a file have no finite scores; up to then they get no label.",
            metavar="N|P%",
            parser=row_limit,
        ),
    ] = RowLimit(Fraction(0))  # noqa: RUF009  (frozen)
    min_agreement: Annotated[
        float,
        flag(
            "min-agreement",
            "Safety",
            "With --quantize: end the run if fewer of the first texts get the label that float32 gives them.",
            metavar="P",
            parser=share,
        ),
    ] = 0.95
    overwrite: Annotated[bool, flag("overwrite", "Safety", "Replace OUTPUT, or files in it, if it exists.")] = False
    verify: Annotated[
        int | None,
        flag(
            "verify",
            "Safety",
            "Label N texts again, one at a time, and write OUTPUT only if they get the same labels.",
            metavar="N",
            parser=count,
        ),
    ] = None

    metrics: Annotated[
        Path | None,
        flag(
            "metrics", "Night", "Write counts and timings there at the end, also of a failed run.", metavar="FILE.json"
        ),
    ] = None
    log_format: Annotated[
        Literal["text", "json"], flag("log-format", "Night", "Messages for people, or one JSON object a line.")
    ] = "text"
    progress: Annotated[
        Literal["auto", "bar", "log", "none"],
        flag("progress", "Night", "A bar (on a terminal only), or a line now and then; auto: by where messages go."),
    ] = "auto"
    limit: Annotated[
        int | None, flag("limit", "Night", "Only the first N rows of each file.", metavar="N", parser=count)
    ] = None
    dry_run: Annotated[
        bool, flag("dry-run", "Night", "Check everything but the model, say what would be done, write nothing.")
    ] = False
    explain: Annotated[
        int | None,
        flag(
            "explain",
            "Night",
            "Show on stdout, for N rows, the prompt as the model sees it and the scores; quotes their text.",
            metavar="N",
            parser=count,
        ),
    ] = None
    print_task: Annotated[
        bool,
        flag("print-task", "Night", "Print the task with all flags applied as a task file; needs no INPUT and OUTPUT."),
    ] = False
    debug: Annotated[
        bool, flag("debug", "Night", "Show where an error comes from; this may quote rows of the input.")
    ] = False
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, rich_help_panel="Night", help="Show it."),
    ] = False

    def build_task(self) -> Task:
        """The task: the built-in one, or that of the file, with the flags over it.

        Raises:
            UsageError: the file or a flag is wrong.
        """
        task = builtin_task() if self.task is None else load_task(self.task)
        return task.with_overrides(
            text_columns=self.text_column or (),
            labels=self.labels,
            scoring=self.scoring,
            calibration=self.calibration,
            mode=self.mode,
            min_score=self.min_score,
            min_margin=self.min_margin,
            default_label=self.default_label,
        )

    def build_settings(self) -> Settings:
        """Everything else that decides what is written.

        Raises:
            UsageError: a flag is wrong, or two contradict each other.
        """
        self._check_conflicts()
        return Settings(
            label_column=self.label_column,
            score_column=self.score_column,
            status_column=self.status_column,
            max_tokens=self.max_tokens,
            overlong=self.overlong,
            engine=self.engine,
            quantize=self.quantize,
            buffer_rows=self.buffer_rows,
            max_batch_tokens=self.max_batch_tokens,
        )

    def _check_conflicts(self) -> None:
        if self.revision is not None and (self.model == "embedded" or Path(self.model).exists()):
            raise UsageError(
                f"--revision {self.revision!r} has no effect: --model {self.model!r} is not on a model hub",
                "leave --revision out, or name a model of the hub",
            )
        if self.progress == "bar" and self.log_format == "json":
            raise UsageError(
                "--progress bar and --log-format json exclude each other: a bar is no JSON", "use --progress log"
            )
        if self.quantize != "none":
            self._check_quantize()
        self._check_ray()
        if self.explain is not None and self.dry_run:
            raise UsageError(
                f"--explain {self.explain} and --dry-run exclude each other: a dry run loads no model",
                "leave one of them out",
            )
        if self.print_task and (self.explain is not None or self.dry_run):
            other = "--dry-run" if self.dry_run else f"--explain {self.explain}"
            raise UsageError(
                f"--print-task and {other} exclude each other: both write to stdout", "leave one of them out"
            )
        if self.cache is not None and self.no_cache:
            raise UsageError(f"--cache {str(self.cache)!r} and --no-cache exclude each other", "leave one of them out")
        places: dict[str, str | Path | None] = {
            "INPUT": self.input,
            "OUTPUT": self.output,
            "the file of --task": self.task,
        }
        for flag_name, path in (("--metrics", self.metrics), ("--cache", self.cache)):
            for name, place in places.items():
                if path is not None and place is not None and os.path.realpath(path) == os.path.realpath(place):
                    raise UsageError(f"{flag_name} {str(path)!r} is {name}", "name another file")
            if path is not None and path.name.startswith(".") and path.name.endswith(OWN_SUFFIXES):
                raise UsageError(f"{flag_name} {str(path)!r} is a name of this program's own", "name another file")
            places[f"the file of {flag_name}"] = path

    def _check_quantize(self) -> None:
        if self.verify is not None:
            raise UsageError(
                f"--verify {self.verify} and --quantize {self.quantize} exclude each other: labels need not be those "
                "of the reference path",
                "leave --verify out; --min-agreement says how many must be the same",
            )
        for flag_name, value in (("--device", self.device), ("--dtype", self.dtype)):
            if value not in ("auto", "cpu", "float32"):
                raise UsageError(
                    f"--quantize {self.quantize} and {flag_name} {value} exclude each other: it is for float32 on CPUs",
                    UNQUANTIZED,
                )

    def _check_ray(self) -> None:
        if self.ray is None:
            for flag_name, value in (
                ("--workers", self.workers),
                ("--cpus-per-worker", self.cpus_per_worker),
                ("--gpus-per-worker", self.gpus_per_worker),
            ):
                if value is not None:
                    raise UsageError(f"{flag_name} {value} has no effect without --ray", "add --ray, or leave it out")
            return
        if not RAY_ADDRESS.fullmatch(self.ray):
            raise UsageError(f"--ray {self.ray!r} is no address", RAY_HINT)
        if self.explain is not None:
            raise UsageError(
                f"--explain {self.explain} and --ray exclude each other: workers have no stdout",
                "leave --ray out, and take a few rows with --limit",
            )
        if self.gpus_per_worker is not None and not self.gpus_per_worker >= 0:
            raise UsageError(f"--gpus-per-worker {self.gpus_per_worker:g} is below 0", "0 is for CPUs only")


def parse(arguments: Sequence[str]) -> Options | None:
    """The options; None when help or the version was asked for, and printed.

    Raises:
        UsageError: an unknown flag, a missing argument, a value that is not allowed.
    """
    arguments = _with_ray_address(arguments)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP, epilog=EXIT_CODES)(Options)
    command = typer.main.get_command(app)
    for flag_name, excluded in (("--cache", "no_cache"), ("--no-cache", "cache")):
        if any(argument.partition("=")[0] == flag_name for argument in arguments):
            for parameter in command.params:  # a flag wins over a variable, also over that of its opposite
                parameter.envvar = None if parameter.name == excluded else parameter.envvar
    try:
        options = command(list(arguments), prog_name=COMMAND, standalone_mode=False)
    except typer.TyperException as error:
        refusal = usage_error(error, COMMAND)
        if "--ray" in arguments and "unexpected extra argument" in str(refusal):
            refusal.hint = RAY_HINT
        raise refusal from None
    if not isinstance(options, Options):
        return None
    for metavar, place in (("INPUT", options.input), ("OUTPUT", options.output)):
        if not place and not options.print_task:
            raise UsageError(f"missing argument '{metavar}'", f"see {COMMAND} --help")
    return options


def _with_ray_address(arguments: Sequence[str]) -> list[str]:
    """``--ray`` with nothing behind it that is an address is ``--ray local``."""
    given = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        given += [argument, "local"] if argument == "--ray" and not RAY_ADDRESS.fullmatch(following) else [argument]
    return given
