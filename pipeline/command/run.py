"""One run of the command line: inputs, outputs, model, rows, check, in this order.

Each step is refused before the next one costs anything. Each output appears in its last step, which no signal stops
halfway. torch and the model are imported only once everything else is known to be right. Of many files, one that fails
is told at once, and the others go on.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.agree import check_agreement
from pipeline.command.calibrate import calibrated, fingerprinted
from pipeline.command.checked_file import CheckedFile, FileChecks, check_may_be_written
from pipeline.command.dry_run import plan, plan_of_files
from pipeline.command.failures import FILE_ERRORS, tell_failure
from pipeline.command.files import FileTree, check_output_place, find_tree
from pipeline.command.load import load_stage
from pipeline.command.logs import write_stdout
from pipeline.command.manifest import Manifest, existing_state, read_manifest, recipe_of, state_of
from pipeline.command.one_file import OneFile
from pipeline.command.options import Options
from pipeline.command.output_folder import folder_of, locked_folder, notes_folder
from pipeline.command.progress import chosen_kind, show_progress, show_step
from pipeline.command.report import Report, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.command.store import check_cache, journal_of, opened_store
from pipeline.label_store import LabelStore
from pipeline.parquet.location import Location, locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.settings import Settings
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage

log = logging.getLogger(__name__)

FOLDER_JOURNAL = ".parquet_classify.scores"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is made of.

    Attributes:
        options: of the command line.
        settings: made of them.
        report: is told how it goes.
        signals: that may stop it.
    """

    options: Options
    settings: Settings
    report: Report
    signals: StopSignals

    def label(self, task: Task) -> int:
        """Label the input into the output, or with ``--dry-run`` say what would be done.

        Args:
            task: its text columns may still be unknown.

        Returns:
            The exit code: 0, or the largest of the files that failed while others went on.

        Raises:
            PipelineError: the run cannot go on; the output, or the file at work, is as it was before.
        """
        tree = find_tree(self.options.input)
        if tree is None:
            self._label_one(task)
            return 0
        self._label_all(tree, task)
        return max((failure["exit_code"] for failure in self.report.failures), default=0)

    # One file: its input and output stay open while the model loads, and whatever fails ends the run.

    def _label_one(self, task: Task) -> None:
        options, report = self.options, self.report
        output = locate(options.output)
        with ParquetSource(locate(options.input), limit=options.limit) as source:
            task, fields = bind_schema(task, self.settings, source.schema)
            with ParquetSink(output, source.layout, fields, overwrite=options.overwrite) as sink:
                if options.dry_run:
                    check_cache(options.cache)
                    write_stdout(plan(options, task, source, output, fields))
                    return
                log.info("text from %s", in_words(task.columns))
                with self._store(journal_of(output.scratch)) as store:
                    stage, model = self._load(task, store)
                    check_agreement(stage, [(source.location, task)], options, report, self._progress)
                    stage = calibrated(stage, locate(options.input), options, report, self._progress)
                    report.facts = run_facts(stage, model)
                    file = OneFile(source, sink, stage, model, options, report, self.signals)
                    with show_progress(self._progress, report.stats, lambda: source.num_rows):
                        sample = file.label(options.verify or 0)
                    if sample is not None:
                        with show_step(self._progress, f"scoring {len(sample.rows)} texts alone"):
                            file.judge(sample)
                    if report.verdict is not None:
                        report.verdict.tell(options.verify or 0)
                    self.signals.check()
                    self.signals.ignore()
                    file.commit()

    # Many files: all are looked at, the model is loaded once, and each is labelled on its own.

    def _label_all(self, tree: FileTree, task: Task) -> None:
        options, output = self.options, locate(self.options.output)
        self.report.files = Counter()
        names = tree.files()
        check_output_place(tree, names, output)
        if options.dry_run:
            check_cache(options.cache)
            files = self._check(self._checks(tree, output, task), names)
            write_stdout(plan_of_files(options, task, files))
            return
        with locked_folder(output):
            checks = self._checks(tree, output, task)
            files = self._check(checks, names)
            if not files:
                return
            tell_text([file.task for file in files])
            with self._store(notes_folder(output) / FOLDER_JOURNAL) as store:
                stage, model = self._load(task, store)
                self.report.facts["text_columns"] = list(
                    dict.fromkeys(name for file in files for name in file.task.columns)
                )
                self._label_files(self._unfinished(files, stage, checks.manifest), stage, model, checks.manifest)

    def _checks(self, tree: FileTree, output: Location, task: Task) -> FileChecks:
        options = self.options
        return FileChecks(
            tree, output, read_manifest(output), task, self.settings, options.limit, overwrite=options.overwrite
        )

    def _check(self, checks: FileChecks, names: Sequence[str]) -> list[CheckedFile]:
        """The files that can be labelled."""
        files = []
        for name in names:
            self.signals.check()
            with self._failures_of(checks.tree.root.child(name)):
                files.append(checks.check(name))
        return files

    def _unfinished(self, files: Sequence[CheckedFile], stage: "Stage", manifest: Manifest) -> list[CheckedFile]:
        """The files that are left to do, now that it is known what decides their labels."""
        left = []
        for file in files:
            with self._failures_of(file.input):
                if file.recipe is not None and file.recipe == self._recipe_of(file, stage):
                    manifest.finish(file.name, file.output_state)
                    self._count("skipped")
                    continue
                check_may_be_written(file, overwrite=self.options.overwrite)
                left.append(file)
        return left

    def _recipe_of(self, file: CheckedFile, stage: "Stage") -> str:
        """By which the file would be labelled now."""
        task = replace(stage.task, text=file.task.text, template=file.task.template)
        return recipe_of(fingerprinted(replace(stage, task=task), file.input, self.options), self.options.limit)

    def _label_files(self, files: Sequence[CheckedFile], stage: "Stage", model: "Model", manifest: Manifest) -> None:
        from pipeline.verify import spread

        options, report, n_wanted = self.options, self.report, self.options.verify or 0
        shares = spread(n_wanted, [file.num_rows for file in files])

        def expected_rows() -> int:
            failed = {failure["input"] for failure in report.failures}
            return sum(file.num_rows for file in files if file.input.name not in failed)

        check_agreement(stage, [(file.input, file.task) for file in files], options, report, self._progress)
        with show_progress(self._progress, report.stats, expected_rows):
            for file, n_verify in zip(files, shares, strict=True):
                self.signals.check()
                with self._failures_of(file.input), report.stats.all_or_nothing():
                    self._label_file(file, stage, model, n_verify, manifest)
        if report.verdict is not None:
            report.verdict.tell(n_wanted)

    def _label_file(self, file: CheckedFile, stage: "Stage", model: "Model", n_verify: int, manifest: Manifest) -> None:
        """Label, verify, commit, record."""
        options, report = self.options, self.report
        input_state = existing_state(file.input)  # before it is read: a change meanwhile will show
        with ParquetSource(file.input, limit=options.limit) as source:
            task, fields = bind_schema(stage.task, self.settings, source.schema)
            # not shown as a step: the bar of all files stands there already
            stage = calibrated(replace(stage, task=task), file.input, options, report, "none")
            with (
                folder_of(file.output, locate(options.output)),
                ParquetSink(file.output, source.layout, fields, overwrite=options.overwrite) as sink,
            ):
                one = OneFile(source, sink, stage, model, options, report, self.signals)
                sample = one.label(n_verify)
                if sample is not None:
                    one.judge(sample)
                self.signals.check()
                with self.signals.deferred():
                    one.commit(manifest.begin(file.name, input_state, recipe_of(stage, options.limit)))
                    manifest.finish(file.name, state_of(file.output))
                    self._count("done")

    @contextmanager
    def _failures_of(self, place: Location) -> Iterator[None]:
        """Tell what is one file's fault, and go on behind the block."""
        try:
            yield
        except FILE_ERRORS as error:
            self.signals.check()  # or what a signal became would pass for the file's fault
            message = tell_failure(error, error, file=place.name, debug=self.options.debug)
            self.report.failures.append({"input": place.name, "exit_code": error.exit_code, "error": message})
            self._count("failed")

    def _count(self, way: str) -> None:
        assert self.report.files is not None
        self.report.files[way] += 1

    def _store(self, journal: Path) -> AbstractContextManager[LabelStore | None]:
        """The scores that are known already."""
        options = self.options
        return opened_store(journal, lambda: not self.report.failures, cache=options.cache, no_cache=options.no_cache)

    def _load(self, task: Task, store: LabelStore | None) -> "tuple[Stage, Model]":
        return load_stage(
            task,
            store,
            options=self.options,
            settings=self.settings,
            report=self.report,
            signals=self.signals,
            progress=self._progress,
        )

    @property
    def _progress(self) -> str:
        return chosen_kind(self.options.progress, self.options.log_format)


def tell_text(tasks: Sequence[Task]) -> None:
    """One line for each choice of columns.

    Args:
        tasks: of many files, bound to one each.
    """
    for columns, n_files in Counter(task.columns for task in tasks).items():
        log.info("text from %s in %d file%s", in_words(columns), n_files, "" if n_files == 1 else "s")


def in_words(columns: Sequence[str]) -> str:
    """Where the text comes from; those with line breaks and the like quoted."""
    names = [name if name.isprintable() else repr(name) for name in columns]
    return f"column{'' if len(names) == 1 else 's'} {', '.join(names)}"
