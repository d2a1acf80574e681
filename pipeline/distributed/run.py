"""A run on Ray: the same checks before and the same commit behind, and between them a pool of workers.

Files are cut into units, workers label each into a part beside the output, and this process puts the parts of a file
together, in order, as soon as the last one is there. Where a row belongs is decided by its unit and never by the order
in which things happen.
"""

import logging
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pipeline.command.checked_file import CheckedFile
from pipeline.command.failures import FILE_ERRORS, tell_failure
from pipeline.command.files import FileTree, check_output_place
from pipeline.command.manifest import Manifest, existing_state, state_of
from pipeline.command.output_folder import folder_of, locked_folder, notes_folder
from pipeline.command.progress import show_progress
from pipeline.command.report import footer
from pipeline.command.run import FOLDER_JOURNAL, Run, in_words, tell_text
from pipeline.command.store import journal_of
from pipeline.distributed.cluster import connected, pool_size, worker_environment
from pipeline.distributed.parts import FOLDER_PARTS, assemble, folders_of, parts_beside, remove_parts
from pipeline.distributed.plan import parts_of, plan_units
from pipeline.distributed.pool import Crash, Pool, PoolSize
from pipeline.distributed.unit import Done, Failed, Finished, Job, Outcome, Unit
from pipeline.distributed.worker import UnitWorker
from pipeline.errors import GateError, InputError, ModelError, PipelineError
from pipeline.label_store import remove_store
from pipeline.parquet.location import Location, locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.version import installed_version

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FileWork:
    """A file and what has become of its units so far.

    Attributes:
        file: itself.
        units: in the order of its rows.
        n_left: units that are not over yet.
        stats: of those that are done.
        facts: what decided their labels.
        recipe: of the file.
        is_finished: an earlier run has labelled it.
        error: the first that a unit had.
    """

    file: CheckedFile
    units: Sequence[Unit]
    n_left: int
    stats: RunStats = field(default_factory=RunStats)
    facts: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    is_finished: bool = False
    error: PipelineError | None = None

    def add(self, outcome: Outcome) -> None:
        """One of its units is over."""
        self.n_left -= 1
        if isinstance(outcome, Failed):
            self.error = self.error or outcome.error
        elif isinstance(outcome, Finished):
            self.is_finished = True
        else:
            self.stats.add(outcome.stats)
            if self.recipe not in ("", outcome.recipe):
                self.error = self.error or ModelError(
                    "workers have loaded different models, or see different task files",
                    "put the same ones on every machine of the cluster",
                )
            self.recipe, self.facts = outcome.recipe, outcome.facts


@dataclass(frozen=True, slots=True)
class RayRun(Run):
    """A run whose rows are labelled by workers."""

    def _label_one(self, task: Task) -> None:
        options, report = self.options, self.report
        place, output = locate(options.input), locate(options.output)
        state = existing_state(place)  # before it is read: a change meanwhile will show
        with ParquetSource(place, limit=options.limit) as source:
            bound, fields = bind_schema(task, self.settings, source.schema)
            with ParquetSink(output, source.layout, fields, overwrite=options.overwrite) as sink:
                log.info("text from %s", in_words(bound.columns))
                groups = source.layout.row_group_rows
                file = CheckedFile("", place, output, bound, source.num_rows, groups, state, None, None)
                parts = parts_beside(output)
                with closing(self._worked([file], parts, task)) as works:
                    (work,) = works
                if work.error is not None:
                    raise work.error
                self._check_failed(work)
                with report.stats.phase("run"), report.stats.phase("write"):
                    assemble(work.units, sink, self.signals.check)
                self.signals.check()
                self.signals.ignore()
                with report.stats.phase("run"), report.stats.phase("write"):
                    sink.commit(footer(work.facts))
                remove_parts(parts)
                remove_store(journal_of(output.scratch))  # of a run without Ray

    def _label_all(self, tree: FileTree, task: Task) -> None:
        output = locate(self.options.output)
        self.report.files = Counter()
        names = tree.files()
        check_output_place(tree, names, output)
        with locked_folder(output):
            checks = self._checks(tree, output, task)
            files = self._check(checks, names)
            if not files:
                return
            tell_text([file.task for file in files])
            parts = output.child(FOLDER_PARTS)
            with closing(self._worked(files, parts, task)) as works:
                for work in works:
                    if work.error is not None:
                        self._tell_failed(work, work.error)
                        continue
                    try:
                        self._finish(work, checks.manifest)
                    except FILE_ERRORS as error:
                        self.signals.check()  # or what a signal became would pass for the file's fault
                        self._tell_failed(work, error)
            order = {file.input.name: number for number, file in enumerate(files)}  # before them, those of the checks
            self.report.failures.sort(key=lambda failure: order.get(failure["input"], -1))
            columns = dict.fromkeys(name for file in files for name in file.task.columns)
            self.report.facts["text_columns"] = list(columns)
            if not self.report.failures:
                remove_parts(parts)
                remove_store(notes_folder(output) / FOLDER_JOURNAL)

    def _finish(self, work: FileWork, manifest: Manifest) -> None:
        """A file's units are over: put its parts together, commit, record."""
        file, options = work.file, self.options
        if work.is_finished:
            manifest.finish(file.name, file.output_state)
            self._count("skipped")
            return
        self._check_failed(work)
        with (
            self.report.stats.phase("write"),
            ParquetSource(file.input, limit=options.limit) as source,
            folder_of(file.output, locate(options.output)),
        ):
            _, fields = bind_schema(file.task, self.settings, source.schema)
            with ParquetSink(file.output, source.layout, fields, overwrite=options.overwrite) as sink:
                assemble(work.units, sink, self.signals.check)
                self.signals.check()
                with self.signals.deferred():
                    sink.commit(
                        footer({**work.facts, "mark": manifest.begin(file.name, file.input_state, work.recipe)})
                    )
                    manifest.finish(file.name, state_of(file.output))
                    self._count("done")
        remove_parts(parts_of(locate(options.output).child(FOLDER_PARTS), file))

    def _tell_failed(self, work: FileWork, error: PipelineError) -> None:
        place = work.file.input.name
        message = tell_failure(error, error, file=place, debug=self.options.debug)
        self.report.failures.append({"input": place, "exit_code": error.exit_code, "error": message})
        self.report.stats.take_back(work.stats)
        self._count("failed")

    def _check_failed(self, work: FileWork) -> None:
        """Refuse a file with too many rows that have no finite scores.

        Raises:
            GateError: there are more than ``--max-failed`` allows.
        """
        n_failed, most = work.stats.statuses["failed"], self.options.max_failed.rows(work.file.num_rows)
        if n_failed > most:
            raise GateError(
                f"{n_failed:,} of {work.file.num_rows:,} rows have no finite scores, and --max-failed "
                f"{self.options.max_failed} allows {most:,}",
                "allow more with --max-failed N or P%, or try --dtype float32; their labels are null",
            )

    def _worked(self, files: Sequence[CheckedFile], parts: Location, task: Task) -> Generator[FileWork, None, None]:
        """Each file as soon as its last unit is over."""
        options, report, signals = self.options, self.report, self.signals
        planned = plan_units(files, parts, options)
        of_file = {file.name: FileWork(file, planned[file.name], len(planned[file.name])) for file in files}
        units = [unit for work in of_file.values() for unit in work.units]
        log.info("%d unit%s of about %s rows", len(units), "" if len(units) == 1 else "s", f"{options.unit_rows:,}")
        with folders_of(units, parts), connected(options.ray or "", signals.take_back):
            size = pool_size(options)
            report.n_workers = size.most
            log.info("%s", _in_words(size))
            if len(units) < size.fewest:
                log.warning("there is work for %d of them only: a smaller --unit-rows makes more units", len(units))
            job = Job(
                options,
                self.settings,
                task,
                installed_version(),
                os.getcwd(),
                [(file.input, file.task) for file in files],
            )
            said: set[str] = set()
            with (
                Pool((UnitWorker, (job,)), size, worker_environment(size)) as pool,
                show_progress(self._progress, report.stats, lambda: _expected_rows(of_file.values())),
                report.stats.phase("run"),
            ):
                for unit, outcome in pool.run(units, signals.check):
                    work = of_file[unit.file.name]
                    self._add(work, _told(unit, outcome), said)
                    if not work.n_left:
                        yield work
        if report.verdict is not None:
            report.verdict.tell(options.verify or 0)

    def _add(self, work: FileWork, outcome: Outcome, said: set[str]) -> None:
        work.add(outcome)
        report = self.report
        if report.files is None and isinstance(outcome, Done):
            report.facts = outcome.facts
        report.facts = report.facts or dict(outcome.loaded)
        if isinstance(outcome, Done):
            report.stats.add(outcome.stats)
            if report.agreement is None and outcome.agreement is not None:
                report.agreement = outcome.agreement
                report.agreement.tell()
            if outcome.verdict is not None:
                report.verdict = outcome.verdict if report.verdict is None else report.verdict + outcome.verdict
            for warning in outcome.warnings:
                if warning not in said:
                    said.add(warning)
                    log.warning("%s", warning)


def _expected_rows(works: Iterable[FileWork]) -> int:
    """Rows of all files but those that need none, or will get none."""
    return sum(work.file.num_rows for work in works if not work.is_finished and work.error is None)


def _told(unit: Unit, outcome: Outcome | Crash) -> Outcome:
    """An outcome, where a failure says which rows it is about."""
    if isinstance(outcome, Crash):
        return Failed(
            InputError(
                f"every worker died that had {unit}, {outcome.n_attempts} in all: {outcome.reason}",
                "run again with fewer --workers, so that each has more memory; look at these rows; all others are done",
            )
        )
    is_whole_file = unit.rows.n_rows == unit.file.num_rows
    if isinstance(outcome, Failed) and not is_whole_file and unit.file.input.name not in str(outcome.error):
        outcome.error.args = (f"{unit}: {outcome.error}",)
    return outcome


def _in_words(size: PoolSize) -> str:
    number = f"{size.fewest}" if size.fewest == size.most else f"{size.fewest} to {size.most}"
    cpus = f"{size.cpus:g} CPU{'' if size.cpus == 1 else 's'}"
    gpus = f" and {size.gpus:g} GPU{'' if size.gpus == 1 else 's'}" if size.gpus else ""
    return f"{number} worker{'' if size.most == 1 else 's, each'} with {cpus}{gpus}"
