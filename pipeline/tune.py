"""The command line that makes a task better: ``python -m pipeline.tune LABELLED --truth COLUMN -o T2.toml``.

It tries prompts, ways to decide and a fitted head on labelled rows, chooses on one part of them, judges by the other,
and writes the best as a task file, a head beside it. stdout carries counts and labels, and no text of a row.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from pipeline.task import Task
from pipeline.task_file import builtin_task, load_task
from pipeline.task_toml import task_to_toml

if TYPE_CHECKING:
    from pipeline.parquet.location import Location
    from pipeline.parquet.work_file import WorkFile
    from pipeline.tuning.rows import DistinctTexts

log = logging.getLogger("pipeline.tune")  # __name__ is "__main__" here

PROGRAM = "python -m pipeline.tune"
MIN_TEXTS = 4

Labelled = Annotated[str, typer.Argument(metavar="LABELLED", help="Parquet or CSV file.", show_default=False)]
Truth = Annotated[
    str, typer.Option("--truth", metavar="COLUMN", help="Column with the right labels; null: not labelled.")
]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="T2.toml", help="Task file to write; a head goes beside it."),
]
HeldOut = Annotated[
    float, typer.Option("--held-out", metavar="SHARE", help="Share of the rows to judge by.", min=0.0, max=0.9)
]
NoHead = Annotated[bool, typer.Option("--no-head", help="Try prompts only.")]
HeadOnly = Annotated[bool, typer.Option("--head-only", help="Fit a head to the task as it is, try no prompts.")]
NoExamples = Annotated[bool, typer.Option("--no-examples", help="Try no prompt that holds texts of labelled rows.")]
MaxRows = Annotated[
    int, typer.Option("--max-rows", metavar="N", help="Most labelled texts, drawn by chance.", parser=count)
]
PromptRows = Annotated[
    int,
    typer.Option("--prompt-rows", metavar="N", help="Most texts of each part that prompts are tried on.", parser=count),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the task file and the head.")]


def tune(
    labelled: Labelled,
    truth: Truth,
    output: Output,
    task: TaskFile = None,
    text_column: TextColumns = None,
    held_out: HeldOut = 0.3,
    no_head: NoHead = False,
    head_only: HeadOnly = False,
    no_examples: NoExamples = False,
    max_rows: MaxRows = 10_000,
    prompt_rows: PromptRows = 200,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    model: ModelName = "embedded",
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_tokens: MaxTokens = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find the best prompt for some labelled rows, fit a head to them, and write the better one as a task file."""
    check_file_name(output)
    if no_head and head_only:
        raise UsageError("--no-head and --head-only exclude each other", "leave one of them out")
    given = builtin_task() if task is None else load_task(task)
    given = replace(given.with_overrides(text_columns=text_column or ()), head=None)
    from pipeline.parquet.location import locate
    from pipeline.parquet.work_file import WorkFile
    from pipeline.tuning.enough import check_enough_texts
    from pipeline.tuning.fit import check_installed
    from pipeline.tuning.plan import Plan

    if not no_head:
        check_installed()
    source, head_path = locate(labelled), output.with_name(f"{output.name.removesuffix('.toml')}.head.safetensors")
    with ExitStack() as stack:
        works = []
        for path in [output] if no_head else [output, head_path]:
            works.append(WorkFile(locate(str(path)), overwrite=overwrite, forbidden=source))
            stack.callback(works[-1].discard)
        found = _read(source, given, truth, max_rows, seed)
        if head_only and not given.multi:
            check_enough_texts(found.truth, given.label_names)
        from pipeline.engine.load import load_model
        from pipeline.tuning.choose import choose

        loaded = load_model(model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
        plan = Plan(held_out, prompt_rows, seed, not head_only, not no_head, not no_examples)
        chosen = choose(given, Settings(max_tokens=max_tokens), loaded, found, plan, write_stdout)
        # the head first: a task file never stands there without it
        tuned = chosen.task
        if chosen.head is not None:
            tuned = replace(tuned, head=head_path.absolute())
            _write(works[1], chosen.head.to_bytes())
        _write(works[0], task_to_toml(tuned, output.parent).encode())
    if left_out := _left_out(given, chosen.task):
        write_stdout(f"{left_out}\n")
    names = str(output) if chosen.head is None else f"{output} and {head_path}"
    write_stdout(f"written: {names}\n")
    if chosen.task.examples and not given.examples:
        hint = "--no-examples tries no such prompt"
        log.warning("%s holds texts of labelled rows, as examples", output, extra={"fields": {"hint": hint}})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; None for the arguments of the process."""
    return run_command([tune], PROGRAM, argv)


def _read(source: "Location", task: Task, truth: str, max_rows: int, seed: int) -> "DistinctTexts":
    from pipeline.text_columns import bind_text_columns
    from pipeline.tuning.rows import distinct_texts, open_table

    with open_table(source) as table:
        bound = bind_text_columns(task, table.schema)
        if truth in bound.columns:
            raise UsageError(f"--truth {truth!r} is a column of the text", "name the column with the right labels")
        found = distinct_texts(table, bound, max_texts=max_rows, seed=seed, truth_column=truth)
    if len(found.texts) < MIN_TEXTS:
        raise InputError(
            f"--truth {truth!r} has {len(found.texts)} labelled texts, and at least {MIN_TEXTS} are needed",
            "label some rows of each label; python -m pipeline.sample draws rows worth labelling",
        )
    return found


def _left_out(given: Task, tuned: Task) -> str:
    """What was set in the task and is no more, since it is about the scores of a prompt; empty for nothing."""
    keys = ("min_score", "min_margin", "default_label", "thresholds")
    names = [key for key in keys if getattr(given, key) and not getattr(tuned, key)]
    return (
        f"left out of the task: {', '.join(names)}, chosen for the prompt's scores, not for the head's" if names else ""
    )


def _write(work: "WorkFile", content: bytes) -> None:
    from pipeline.parquet.work_file import storage_errors

    with storage_errors(work.location):
        work.stream.write(content)
    work.commit()


if __name__ == "__main__":
    sys.exit(main())
