"""The command line that draws rows worth labelling: ``python -m pipeline.sample INPUT -n 50 -o rows.csv``.

The rows come with all their columns, but those that CSV has no form for; the most uncertain first, an empty column for
the truth behind them. Fill it in, and give the file to ``pipeline.tune``. A pool of texts drawn by chance is looked at,
not the whole input.
"""

import logging
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pipeline.command.entry import run_command
from pipeline.command.flags import check_file_name, count
from pipeline.command.logs import write_stdout
from pipeline.command.model_flags import (
    Device,
    Dtype,
    MaxTokens,
    ModelName,
    Revision,
    Seed,
    TaskFile,
    TextColumns,
    TrustRemoteCode,
)
from pipeline.errors import InputError, UsageError
from pipeline.settings import Settings
from pipeline.task_file import builtin_task, load_task

log = logging.getLogger("pipeline.sample")  # __name__ is "__main__" here

PROGRAM = "python -m pipeline.sample"

SUFFIXES = (".parquet", ".parq", ".pq", ".csv")

Input = Annotated[str, typer.Argument(metavar="INPUT", help="Parquet or CSV file.", show_default=False)]
Number = Annotated[int, typer.Option("--number", "-n", metavar="N", help="Rows to draw.", parser=count)]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Parquet file to write, or CSV by its name.")
]
TruthColumn = Annotated[str, typer.Option("--truth-column", metavar="NAME", help="Name of the empty column.")]
MaxRows = Annotated[
    int, typer.Option("--max-rows", metavar="N", help="Texts that are looked at, drawn by chance.", parser=count)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output.")]


def sample(
    input_file: Input,
    output: Output,
    number: Number = 50,
    truth_column: TruthColumn = "truth",
    max_rows: MaxRows = 1000,
    task: TaskFile = None,
    text_column: TextColumns = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    model: ModelName = "embedded",
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_tokens: MaxTokens = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Draw the rows of a table whose labels would teach most: different from each other, and uncertain."""
    check_file_name(output)
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"-o {str(output)!r} is called neither .parquet nor .csv", "name it for what it is to be")
    given = builtin_task() if task is None else load_task(task)
    given = given.with_overrides(text_columns=text_column or ())
    from pipeline.parquet.location import locate
    from pipeline.parquet.work_file import WorkFile, storage_errors
    from pipeline.text_columns import bind_text_columns
    from pipeline.tuning.fit import check_installed
    from pipeline.tuning.rows import distinct_texts, open_table
    from pipeline.tuning.sampled_rows import added_columns, check_sample, encoded, take_rows

    check_installed()
    source, as_csv = locate(input_file), output.suffix.lower() == ".csv"
    with ExitStack() as stack:
        work = WorkFile(locate(str(output)), overwrite=overwrite, forbidden=source)
        stack.callback(work.discard)
        with open_table(source) as table:
            bound = bind_text_columns(given, table.schema)
            left_out = check_sample(table.schema, truth_column, as_csv=as_csv, multi=given.multi)
            pool = distinct_texts(table, bound, max_texts=max_rows, seed=seed)
        if not pool.texts:
            raise InputError(f"input {source.name!r} has no text to label", "name the text column with --text-column")
        from pipeline.engine.load import load_model
        from pipeline.tuning.draw import draw

        loaded = load_model(model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
        drawn = draw(given, Settings(max_tokens=max_tokens), loaded, pool.texts, number, seed)
        rows = take_rows(source, pool.rows[drawn.places]).drop_columns(left_out)
        content = encoded(added_columns(rows, pool.rows[drawn.places], drawn, truth_column, given.multi), as_csv=as_csv)
        with storage_errors(work.location):
            work.stream.write(content)
        work.commit()
    write_stdout(f"{len(drawn.places):,} of {len(pool.texts):,} texts written: {output}\n")
    if left_out:
        names = ", ".join(map(repr, left_out))
        log.warning("CSV has no form for these columns, which are left out: %s; -o rows.parquet keeps them", names)
    flags = {"--task": task, "--model": model, "--revision": revision, "--device": device, "--dtype": dtype}
    defaults = {"--model": "embedded", "--device": "auto", "--dtype": "auto"}
    told = {flag: value for flag, value in flags.items() if value not in (None, defaults.get(flag))}
    next_step = [
        *("python", "-m", "pipeline.tune", str(output), "--truth", truth_column),
        *(part for flag, value in told.items() for part in (flag, str(value))),
        *(part for column in text_column or () for part in ("--text-column", column)),
        *(() if max_tokens is None else ("--max-tokens", str(max_tokens))),
        *(("--trust-remote-code",) if trust_remote_code else ()),
        *("-o", str(_free_name(output.parent))),
    ]
    write_stdout(f"fill in the column {truth_column!r}, then: {shlex.join(next_step)}\n")


def _free_name(folder: Path) -> Path:
    """A task file that ``tune`` can write there."""
    number = 1
    while (path := folder / ("tuned.toml" if number == 1 else f"tuned{number}.toml")).exists():
        number += 1
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; None for the arguments of the process."""
    return run_command([sample], PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
