"""What a run would do, in words, before any model is loaded."""

from collections.abc import Iterator, Sequence
from itertools import chain
from textwrap import indent

import pyarrow as pa
import pyarrow.fs

from pipeline.added_columns import added_fields
from pipeline.command.checked_file import CheckedFile
from pipeline.command.options import Options
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource
from pipeline.task import Task


def plan(options: Options, task: Task, source: ParquetSource, output: Location, fields: Sequence[pa.Field]) -> str:
    """The report of ``--dry-run``.

    Args:
        options: of the command line.
        task: with its text columns bound to the input.
        source: the input.
        output: where the labelled rows would go, known to be allowed.
        fields: the columns that would be added.
    """
    exists = output.info().type != pa.fs.FileType.NotFound
    facts = _facts(
        options,
        task,
        fields,
        input=source.location.name,
        rows=_rows(source),
        text=_text(task),
        output=f"{output} (would be {'replaced' if exists else 'created'})",
    )
    return "\n".join(["dry run: nothing was written", "", *facts, "", *_prompt(task), ""])


def plan_of_files(options: Options, task: Task, files: Sequence[CheckedFile]) -> str:
    """The report of ``--dry-run`` for a folder or a glob.

    Args:
        options: of the command line.
        task: its text columns may be unknown.
        files: those that can be labelled.
    """
    facts = _facts(
        options,
        task,
        added_fields(task, options.build_settings()),
        input=f"{options.input} ({len(files):,} file{'' if len(files) == 1 else 's'} that can be labelled)",
        rows=f"{sum(file.num_rows for file in files):,}",
        text=" or ".join(dict.fromkeys(_text(file.task) for file in files)),
        output=str(options.output),
    )
    digits = max((len(f"{file.num_rows:,}") for file in files), default=0)
    names = [file.name if file.name.isprintable() else repr(file.name) for file in files]
    rows = [
        f"{file.num_rows:>{digits},} rows  {name}  ({_fate(file)})" for file, name in zip(files, names, strict=True)
    ]
    return "\n".join(["dry run: nothing was written", "", *facts, "", *rows, "", *_prompt(task), ""])


def _facts(
    options: Options, task: Task, fields: Sequence[pa.Field], *, input: str, rows: str, text: str, output: str
) -> list[str]:
    """What is known of one file or of many alike, a line each."""
    facts = [
        ("input", input),
        ("rows", rows),
        ("text", text),
        ("labels", ", ".join(task.label_names)),
        *_decision(task),
        ("adds", ", ".join(f"{field.name} ({field.type})" for field in fields)),
        ("output", output),
        ("model", f"{options.model} (not loaded: a dry run cannot tell whether it is there and fits)"),
        *([] if options.quantize == "none" else [("quantize", options.quantize)]),
        ("scoring", _scoring(task)),
        ("calibration", "none" if task.head is not None else task.calibration),
    ]
    width = max(len(name) for name, _ in facts)
    return [f"{name.ljust(width)}  {value}" for name, value in facts]


def _fate(file: CheckedFile) -> str:
    """What would become of the output; only the model's fingerprint tells whether a finished one still holds."""
    if file.output_state is None:
        return "would be created"
    return "would be replaced" if file.recipe is None else "finished before, skipped if model and settings are the same"


def _rows(source: ParquetSource) -> str:
    total, n_groups = source.metadata.num_rows, source.metadata.num_row_groups
    groups = f"{n_groups:,} row group{'' if n_groups == 1 else 's'}"
    if source.num_rows < total:
        return f"the first {source.num_rows:,} of {total:,}, which are in {groups}"
    return f"{total:,} in {groups}"


def _text(task: Task) -> str:
    return ", ".join(task.columns) if task.template is None else f"template {task.template!r}"


def _decision(task: Task) -> Iterator[tuple[str, str]]:
    """How many labels a row gets, and how sure the model must be."""
    yield "mode", "any number of labels a row" if task.multi else "one label a row"
    if task.multi:
        limits = zip(task.label_names, task.label_thresholds, strict=True)
        yield "thresholds", ", ".join(f"{name} {threshold:g}" for name, threshold in limits)
        return
    minima = {"probability": task.min_score, "more than the next": task.min_margin}
    limits_text = " and ".join(f"{value:g} {what}" for what, value in minima.items() if value > 0)
    if limits_text:
        default = "null" if task.default_label is None else repr(task.default_label)
        yield "at least", f"{limits_text}, or {default}"


def _scoring(task: Task) -> str:
    if task.head is not None:
        return f"head {str(task.head)!r}"
    return f"{task.yes!r} against {task.no!r}" if task.multi else task.scoring


def _prompt(task: Task) -> Iterator[str]:
    """The turns of the chat, with {text} where a row's text goes; with ``multi``, what the answer turn goes on with."""
    examples = chain.from_iterable(
        (("user turn of an example", user), ("answer turn of an example", answer))
        for user, answer in task.example_turns()
    )
    turns = [
        ("system turn", task.system_message()),
        *examples,
        ("user turn", task.user_message("{text}")),
        ("answer turn", task.answer),
    ]
    if task.multi:
        questions = "\n".join(f"{question} ({task.yes} or {task.no})" for question in task.label_questions)
        turns.append(("questions behind it", questions))
    for name, content in turns:
        if content:
            yield f"{name}:"
            yield indent(content, "  ")
