"""Loading what labels rows: the model, the stage on it, and what calibration measures on the first texts of the run."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.command.failures import FILE_ERRORS
from pipeline.command.options import Options
from pipeline.command.progress import show_step
from pipeline.command.report import Report, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.label_store import LabelStore
from pipeline.parquet.buffers import buffers
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource
from pipeline.settings import Settings
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage

log = logging.getLogger(__name__)

Inputs = Sequence[tuple[Location, Task]]


def load_stage(
    task: Task, inputs: Inputs, store: LabelStore | None, *, options: Options, settings: Settings, report: Report,
    signals: StopSignals, progress: str,
) -> "tuple[Stage, Model]":  # fmt: skip
    """The stage of a run and its model.

    Args:
        task: its text columns may still be unknown.
        inputs: all of the run, finished ones too, each with the task bound to it.
        store: that the stage uses; None for none.
        options: of the command line.
        settings: made of them.
        report: is told what was loaded.
        signals: that may stop it.
        progress: how it is shown.

    Raises:
        PipelineError: as ``load_model``, ``build_stage`` and ``with_store`` raise it.
    """
    with show_step(progress, f"loading model {options.model}"), report.stats.phase("load"):
        from pipeline.build import build_stage, with_store
        from pipeline.engine.load import load_model

        model = load_model(
            options.model,
            revision=options.revision,
            device=options.device,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
        )
        stage = build_stage(task, model, settings)
        if store is not None:
            stage = with_store(stage, model, store)
    if stage.task.calibration == "batch":
        from pipeline.build import with_batch_prior

        texts = _first_texts(inputs, options, settings, signals)
        stats = report.stats
        with show_step(progress, f"calibrating on {len(texts)} texts"), stats.phase("run"), stats.phase("model"):
            stage = with_batch_prior(stage, texts, stats)
    report.facts = facts = run_facts(stage, model)
    log.info("model %(model)s on %(device)s in %(dtype)s, %(engine)s engine", facts, extra={"fields": facts})
    signals.check()
    return stage, model


def _first_texts(inputs: Inputs, options: Options, settings: Settings, signals: StopSignals) -> list[str]:
    """The first distinct texts of the run, and a warning if they are few."""
    from pipeline.first_texts import FEW_TEXTS, MAX_PART_BYTES, FirstTexts

    first = FirstTexts()
    for place, task in inputs:
        signals.check()
        # a file that cannot be read on gives what it has: it is told of when it is labelled
        with suppress(*FILE_ERRORS), ParquetSource(place, limit=options.limit) as source:
            first.add(buffers(source.batches(), settings.buffer_rows, MAX_PART_BYTES), task)
        if first.is_full:
            break
    if len(first.texts) < FEW_TEXTS:
        log.warning(
            "batch calibration on only %d distinct texts: labels that are frequent among them are held down; "
            "--calibration contextual needs no texts",
            len(first.texts),
        )
    return first.texts
