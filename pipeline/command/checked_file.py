"""What is known of one file of a folder or glob before any model is loaded, and all that can be refused by then.

The file is opened, looked at and closed again, since thousands of them could not stay open.
"""

import json
from dataclasses import dataclass

import pyarrow.parquet as pq

from pipeline.command.files import FileTree
from pipeline.command.manifest import FileState, Manifest, existing_state, state_of
from pipeline.command.output_folder import check_file_place
from pipeline.command.report import FOOTER_KEY
from pipeline.errors import OutputError
from pipeline.parquet.input_file import READ_ERRORS
from pipeline.parquet.location import Location
from pipeline.parquet.sink import check_writable
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.settings import Settings
from pipeline.task import Task


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that can be labelled, as far as that is known before.

    Attributes:
        name: its path below INPUT and OUTPUT.
        input: where it is read.
        output: where it is written.
        task: bound to it.
        num_rows: that will be read.
        group_rows: rows of each row group, whether they will be read or not.
        input_state: while it was looked at.
        output_state: of what is in its place; None for nothing.
        recipe: by which the output that is there was made from this input; None if it was not.
    """

    name: str
    input: Location
    output: Location
    task: Task
    num_rows: int
    group_rows: tuple[int, ...]
    input_state: FileState
    output_state: FileState | None
    recipe: str | None


@dataclass(frozen=True, slots=True)
class FileChecks:
    """What every file of a run must pass.

    Attributes:
        tree: the input.
        output: the folder.
        manifest: of that folder.
        task: its text columns may still be unknown.
        settings: of the run.
        limit: rows of each file.
        overwrite: whether outputs may be replaced.
    """

    tree: FileTree
    output: Location
    manifest: Manifest
    task: Task
    settings: Settings
    limit: int | None
    overwrite: bool

    def check(self, name: str) -> CheckedFile:
        """Look at a file.

        Raises:
            PipelineError: it cannot be labelled.
        """
        place, output = self.tree.root.child(name), self.output.child(name)
        input_state = existing_state(place)
        with ParquetSource(place, limit=self.limit) as source:
            task, _ = bind_schema(self.task, self.settings, source.schema)
            check_writable(source.schema)
            num_rows, group_rows = source.num_rows, source.layout.row_group_rows
        check_file_place(output)
        output_state = state_of(output)
        recipe = self.manifest.recipe(name, input_state, output_state, lambda: mark_in(output))
        file = CheckedFile(name, place, output, task, num_rows, group_rows, input_state, output_state, recipe)
        if recipe is None:
            check_may_be_written(file, overwrite=self.overwrite)
        return file


def check_may_be_written(file: CheckedFile, *, overwrite: bool) -> None:
    """Check that an output that is not finished may take the place of what is there.

    Raises:
        OutputError: it exists and may not be replaced.
    """
    if file.output_state is not None and not overwrite:
        known = "was not made from this input in this way"
        if not file.input_state.mtime_ns:
            known = "whether its input is still the same cannot be told, since its place tells no times"
        raise OutputError(f"output {file.output.name!r} exists already, and {known}", "replace it with --overwrite")


def mark_in(output: Location) -> str | None:
    """The mark of the run that wrote a file; None if it has none, or cannot be read."""
    try:
        with output.open() as file:
            mark = json.loads(pq.read_metadata(file).metadata[FOOTER_KEY])["mark"]
    except (*READ_ERRORS, KeyError, TypeError):
        return None
    return str(mark)
