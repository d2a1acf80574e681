"""The command line that draws rows worth labelling: ``python -m pipeline.sample INPUT -n 50 -o rows.csv``.

The rows come with all their columns, the most uncertain first, an empty column for the truth behind them. Fill it in,
and give the file to ``pipeline.tune``. A pool of texts drawn by chance is looked at, not the whole input.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pipeline.command.entry import run_command
from pipeline.command.flags import count
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
from pipeline.errors import InputError
from pipeline.settings import Settings
from pipeline.task_file import builtin_task, load_task

PROGRAM = "python -m pipeline.sample"

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
            check_sample(table.schema, truth_column, as_csv=as_csv, multi=given.multi)
            pool = distinct_texts(table, bound, max_texts=max_rows, seed=seed)
        if not pool.texts:
            raise InputError(f"input {source.name!r} has no text to label", "name the text column with --text-column")
        from pipeline.engine.load import load_model
        from pipeline.tuning.draw import draw

        loaded = load_model(model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
        drawn = draw(given, Settings(max_tokens=max_tokens), loaded, pool.texts, number, seed)
        rows = take_rows(source, pool.rows[drawn.places])
        content = encoded(added_columns(rows, pool.rows[drawn.places], drawn, truth_column, given.multi), as_csv=as_csv)
        with storage_errors(work.location):
            work.stream.write(content)
        work.commit()
    write_stdout(f"{len(drawn.places):,} of {len(pool.texts):,} texts written: {output}\n")
    write_stdout(
        f"fill in the column {truth_column!r}, then: python -m pipeline.tune {output} --truth {truth_column}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; None for the arguments of the process."""
    return run_command([sample], PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
