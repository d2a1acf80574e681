"""What a Ray actor does: load the model once, then label unit after unit by the very same stage. Knows nothing of Ray.

A part has in its footer from what and how it was made, and what was counted. One that an earlier run made in the same
way from the same rows is not made again.
"""

import hashlib
import json
import logging
import os
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.agreement import Agreement
from pipeline.build import with_store
from pipeline.command.agree import check_agreement
from pipeline.command.calibrate import calibrated, fingerprinted
from pipeline.command.checked_file import CheckedFile, check_may_be_written
from pipeline.command.flags import RowLimit
from pipeline.command.load import load_stage
from pipeline.command.manifest import existing_state, recipe_of
from pipeline.command.one_file import OneFile
from pipeline.command.report import FOOTER_KEY, Report, footer, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.command.store import opened_store
from pipeline.distributed.unit import Done, Failed, Finished, Job, Outcome, Unit, Warnings
from pipeline.engine.model import Model
from pipeline.errors import InputError, ModelError, OutputError, PipelineError, StorageError
from pipeline.parquet.input_file import READ_ERRORS
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.verify import Verdict
from pipeline.version import installed_version

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
# Of a file, not of a unit, and so for the driver to check.
ANY_FAILED = RowLimit(Fraction(100), is_share=True)


class UnitWorker:
    """Labels the units of one run.

    Args:
        job: of the run.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        with suppress(OSError):  # not on this machine: absolute paths and URIs do without
            os.chdir(job.folder)
        self._options = replace(job.options, max_failed=ANY_FAILED)
        self._loaded: tuple[Stage, Model] | None = None
        self._agreement: Agreement | None = None
        self._warnings: tuple[str, ...] = ()  # of loading

    def load(self) -> PipelineError | None:
        """Load the model, and see that it may be used; the error if that fails, which it would everywhere."""
        if self._job.version != installed_version():
            return ModelError(
                f"a worker has version {installed_version()} of this program, and this run {self._job.version}",
                "install the same version on every machine of the cluster",
            )
        options, report = self._options, Report()
        try:
            with Warnings() as warnings:
                self._loaded = load_stage(
                    self._job.task,
                    None,
                    options=options,
                    settings=self._job.settings,
                    report=report,
                    signals=StopSignals(),
                    progress="none",
                )
            check_agreement(self._loaded[0], self._job.inputs, options, report, "none")
        except PipelineError as error:
            return error
        self._warnings = tuple(warnings.messages)
        self._agreement = report.agreement
        return None

    def work(self, unit: Unit) -> Outcome:
        """Label a unit into its part."""
        assert self._loaded is not None, "not loaded"
        with Warnings() as warnings:
            outcome = self._tried(unit)
        if isinstance(outcome, Done):
            outcome = replace(outcome, warnings=(*self._warnings, *warnings.messages))
        return replace(outcome, loaded=run_facts(*self._loaded))

    @staticmethod
    def may_try_again(outcome: Any) -> bool:
        """Whether an outcome is a failure that another attempt may not meet."""
        return isinstance(outcome, Failed) and outcome.again

    def _tried(self, unit: Unit) -> Outcome:
        try:
            return self._label(unit)
        except PipelineError as error:
            # a device or a network may be well again, and whoever else writes the part may be gone, next time
            return Failed(error, again=isinstance(error, (StorageError, OutputError)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # polars' panics too; its own words may quote a row
            return Failed(_fault(error), again=True)

    def _label(self, unit: Unit) -> Outcome:
        assert self._loaded is not None, "not loaded"
        (stage, model), file, options, report = self._loaded, unit.file, self._options, Report(files=Counter())
        rows = range(unit.rows.first_group, unit.rows.end_group)
        _check_unchanged(unit)
        with ParquetSource(file.input, limit=unit.rows.n_rows, row_groups=rows) as source:
            task, fields = bind_schema(self._job.task, self._job.settings, source.schema)
            stage = fingerprinted(replace(stage, task=task), file.input, options)
            recipe, facts = recipe_of(stage, options.limit), run_facts(stage, model)
            if file.recipe == recipe:
                return Finished(facts)
            if file.recipe is not None and (refusal := _refusal(file, overwrite=options.overwrite)) is not None:
                return refusal
            mark = _mark(unit, recipe)
            if (done := _finished_part(unit, mark, facts, recipe)) is not None:
                return replace(done, agreement=self._agreement)
            with opened_store(None, lambda: True, cache=options.cache, no_cache=options.no_cache) as store:
                stage = stage if store is None else with_store(stage, model, store)
                stage = calibrated(stage, file.input, options, report, "none")
                with _part_of(unit, source, fields) as sink:
                    one = OneFile(source, sink, stage, model, options, report, StopSignals())
                    sample = one.label(unit.n_verify)
                    if sample is not None:
                        one.judge(sample)
                    _check_unchanged(unit)
                    verdict = _numbered_in_file(report.verdict, unit)
                    counts = {"mark": mark, "counts": _counts(report.stats), "verdict": verdict and asdict(verdict)}
                    sink.commit(footer({**facts, "part": counts}))
        return Done(facts, recipe, report.stats, verdict, self._agreement)


def _refusal(file: CheckedFile, *, overwrite: bool) -> Failed | None:
    """Why what is in a file's place may not be replaced: to ask again would be of no use."""
    try:
        check_may_be_written(file, overwrite=overwrite)
    except OutputError as error:
        return Failed(error)
    return None


def _part_of(unit: Unit, source: ParquetSource, fields: Sequence[pa.Field]) -> ParquetSink:
    try:
        return ParquetSink(unit.part, source.layout, fields, overwrite=True)
    except OutputError as error:
        error.hint = "OUTPUT must lie on a file system that all machines share, or in an object store"
        raise


def _check_unchanged(unit: Unit) -> None:
    """Refuse rows of a file that is another one by now: its units would not fit together.

    Raises:
        InputError: it was changed.
        PipelineError: as ``existing_state`` raises it.
    """
    if existing_state(unit.file.input) != unit.file.input_state:
        raise InputError(
            f"input {unit.file.input.name!r} was changed while it was labelled, or is another file on another machine",
            "run the same command again when it is complete",
        )


def _mark(unit: Unit, recipe: str) -> str:
    """Digest of what a part was made from, and how; none that lasts where files tell no times."""
    if not unit.file.input_state.mtime_ns:
        return ""
    parts = [recipe, asdict(unit.file.input_state), asdict(unit.rows), unit.n_verify]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _finished_part(unit: Unit, mark: str, facts: dict[str, Any], recipe: str) -> Done | None:
    """What is known of a part that an earlier run made in the same way."""
    try:
        with unit.part.open() as file:
            found = json.loads(pq.read_metadata(file).metadata[FOOTER_KEY])["part"]
        if not mark or found["mark"] != mark:
            return None
        verdict = found["verdict"] and Verdict(**{**found["verdict"], "wrong_rows": ()})
        return Done(facts, recipe, _stats(found["counts"]), verdict, was_there=True)
    except (*READ_ERRORS, KeyError, TypeError, ValueError):
        return None


def _counts(stats: RunStats) -> dict[str, Any]:
    """Of rows, as JSON can hold them; what the model did, it did in an earlier run."""
    return {
        "rows": stats.rows,
        "texts": stats.texts + stats.known_texts,
        "labels": [*stats.labels.items()],
        "unlabelled": stats.unlabelled,
        "statuses": dict(stats.statuses),
    }


def _stats(counts: dict[str, Any]) -> RunStats:
    return RunStats(
        rows=counts["rows"],
        known_texts=counts["texts"],
        labels=Counter({label: n_rows for label, n_rows in counts["labels"]}),
        unlabelled=counts["unlabelled"],
        statuses=Counter(counts["statuses"]),
    )


def _numbered_in_file(verdict: Verdict | None, unit: Unit) -> Verdict | None:
    if verdict is None:
        return None
    return replace(verdict, wrong_rows=tuple(unit.rows.first_row + row for row in verdict.wrong_rows))


def _fault(error: BaseException) -> PipelineError:
    """An error that nobody foresaw, as the command line tells them."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return PipelineError(f"{type(error).__name__} at {place}", "please report it")
