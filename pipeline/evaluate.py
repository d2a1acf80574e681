"""The command line that compares labels with the truth: ``python -m pipeline.evaluate LABELLED --truth COLUMN``.

The report goes to stdout; with ``--json -`` that is JSON, and there is no other report. Messages go to stderr, and hold
no text of a row. Nothing heavy is imported before the flags are known to be right.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.command.entry import run_command
from pipeline.command.flags import check_file_name
from pipeline.command.logs import write_stdout
from pipeline.errors import OutputError, UsageError

if TYPE_CHECKING:
    from pipeline.evaluation.quality import Quality
    from pipeline.parquet.location import Location
    from pipeline.parquet.work_file import WorkFile

log = logging.getLogger("pipeline.evaluate")  # __name__ is "__main__" here

PROGRAM = "python -m pipeline.evaluate"
EXTRA = "pip install -c constraints.txt -e '.[report]'"

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="LABELLED...", help="Parquet files, folders of them, or globs.", show_default=False),
]
Truth = Annotated[str, typer.Option("--truth", metavar="COLUMN", help="Column with the right labels; null: not known.")]
Prediction = Annotated[str, typer.Option("--prediction", metavar="COLUMN", help="Column with the labels to judge.")]
Score = Annotated[
    str | None, typer.Option("--score", metavar="COLUMN", help="Column with their probabilities; judges them too.")
]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="COLUMN", help="Column with the status; rows with low_score have no label then."),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write all numbers there as JSON; - is stdout, instead of text."),
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures there.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the files of --json and --html.")]


def evaluate(
    inputs: Inputs,
    truth: Truth,
    prediction: Prediction = "label",
    score: Score = None,
    status: Status = None,
    json_file: Json = None,
    html_file: Html = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare the labels of a table with the truth: accuracy, F1, confusions, and what the scores are worth."""
    check_file_name(html_file or "", "--html")
    if truth == prediction:
        raise UsageError(f"--truth and --prediction are both {truth!r}", "name two columns")
    if json_file is not None and json_file == html_file:
        raise UsageError(f"--json and --html are both {json_file!r}", "name two files")
    with _library_errors():
        from pipeline.evaluation.quality import measure

        if html_file is not None:
            from pipeline.evaluation.html import html_report
    from pipeline.evaluation.columns import Columns
    from pipeline.evaluation.rows import read_rows

    given, locations = _found(inputs)
    with ExitStack() as stack:
        json_work, html_work = (
            stack.enter_context(_created(file, flag, locations, overwrite=overwrite))
            for flag, file in (("--json", None if json_file == "-" else json_file), ("--html", html_file))
        )
        rows = read_rows(locations, Columns(truth, prediction, score, status))
        if rows.several and score is not None:
            raise UsageError(
                f"--score {score!r} is for tables with one label a row, and here a row may have several",
                "leave --score out",
            )
        quality = measure(rows)
        names = [location.name for location in locations]
        as_json = json.dumps(_facts(quality, names, truth, prediction), indent=2, allow_nan=False) + "\n"
        if json_work is not None:
            _write(json_work, as_json)
        if html_work is not None:
            _write(html_work, html_report(quality, inputs=given, truth=truth, prediction=prediction))
    for note in quality.notes:
        log.warning("%s", note)
    write_stdout(as_json if json_file == "-" else _text(quality))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; None for those of the process.

    Returns:
        The exit code.
    """
    return run_command([evaluate], PROGRAM, argv)


def _found(inputs: Sequence[str]) -> "tuple[list[str], list[Location]]":
    """What the inputs are called, and all files that they stand for."""
    from pipeline.command.files import find_tree
    from pipeline.parquet.location import locate

    names, locations = [], []
    for text in inputs:
        tree = find_tree(text)
        own = [locate(text)] if tree is None else [tree.root.child(file) for file in tree.files()]
        names.append(own[0].name if tree is None else tree.name)
        locations += own
    seen = set()
    for location in locations:
        place = os.path.realpath(location.local) if location.is_local else location.name
        if place in seen:
            raise UsageError(f"input {location.name!r} is given twice", "its rows would count twice; leave one out")
        seen.add(place)
    return names, locations


@contextmanager
def _library_errors() -> Iterator[None]:
    """Say how to install what an evaluation needs beside the rest."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "pipeline":
            raise
        raise UsageError(f"{PROGRAM} needs {library!r}, which is not installed", EXTRA) from error


@contextmanager
def _created(
    file: str | None, flag: str, inputs: "Sequence[Location]", *, overwrite: bool
) -> "Iterator[WorkFile | None]":
    """A file begun beside its place; it is there when it is committed, and gone otherwise."""
    if file is None:
        yield None
        return
    from pipeline.parquet.location import locate
    from pipeline.parquet.work_file import WorkFile

    location = locate(file)
    if not location.is_local:
        raise UsageError(f"{flag} {location.name!r} is not on this machine", "name a file, and copy it there")
    for given in inputs[1:]:
        if given.is_local and given.local.exists() and os.path.realpath(given.local) == os.path.realpath(file):
            raise OutputError(f"output {location.name!r} is the input", "write to another file")
    work = WorkFile(location, overwrite=overwrite, forbidden=inputs[0])
    try:
        yield work
    finally:
        work.discard()


def _write(work: "WorkFile", text: str) -> None:
    from pipeline.parquet.work_file import storage_errors

    with storage_errors(work.location):
        work.stream.write(text.encode())
    work.commit()


def _facts(quality: "Quality", inputs: list[str], truth: str, prediction: str) -> dict[str, Any]:
    return {"inputs": inputs, "truth_column": truth, "prediction_column": prediction, **quality.to_json()}


def _text(quality: "Quality") -> str:
    from pipeline.evaluation.text import text_report

    on_terminal = sys.stdout.isatty()
    return text_report(quality, columns=shutil.get_terminal_size().columns if on_terminal else None, styled=on_terminal)


if __name__ == "__main__":
    sys.exit(main())
