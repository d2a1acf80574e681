"""Batch calibration: each input file is measured on its own first texts, so that no file's labels depend on another.

A file that arrives, fails or is finished changes nothing for its neighbours, and a folder gives the labels that its
files would get one by one.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.command.options import Options
from pipeline.command.progress import show_step
from pipeline.command.report import Report
from pipeline.parquet.buffers import buffers
from pipeline.parquet.location import Location
from pipeline.parquet.source import ParquetSource
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.stage import Stage

log = logging.getLogger(__name__)


def calibrated(stage: "Stage", place: Location, options: Options, report: Report, progress: str) -> "Stage":
    """The stage with the prior for a file; as it is, if its task has no batch calibration.

    Args:
        stage: its task bound to the file.
        place: of the file.
        options: of the command line.
        report: its counts are added to.
        progress: how it is shown.

    Raises:
        PipelineError: the file cannot be read, or the store fails.
    """
    if stage.task.calibration != "batch":
        return stage
    from pipeline.build import with_batch_prior
    from pipeline.first_texts import FEW_TEXTS

    texts, stats = first_texts(place, stage.task, options), report.stats
    if len(texts) < FEW_TEXTS:
        log.warning(
            "batch calibration of %s on only %d distinct texts: labels that are frequent among them are held down; "
            "--calibration contextual needs no texts",
            place.name,
            len(texts),
        )
    with show_step(progress, f"calibrating on {len(texts)} texts"), stats.phase("run"), stats.phase("model"):
        return with_batch_prior(stage, texts, stats)


def fingerprinted(stage: "Stage", place: Location, options: Options) -> "Stage":
    """The stage with the fingerprint that ``calibrated`` would give it, without asking the model."""
    if stage.task.calibration != "batch":
        return stage
    from pipeline.fingerprint import label_fingerprint

    texts = first_texts(place, stage.task, options)
    return replace(stage, fingerprint=label_fingerprint(stage.score_fingerprint, stage.task, texts))


def first_texts(place: Location, task: Task, options: Options, n_texts: int | None = None) -> list[str]:
    """The first distinct texts of a file.

    Args:
        place: of the file.
        task: bound to it.
        options: of the command line.
        n_texts: how many; None for as many as batch calibration wants.

    Raises:
        PipelineError: the file cannot be read.
    """
    from pipeline.first_texts import MAX_PART_BYTES, N_TEXTS, FirstTexts

    first = FirstTexts(n_texts or N_TEXTS)
    with ParquetSource(place, limit=options.limit) as source:
        first.add(buffers(source.batches(), options.buffer_rows, MAX_PART_BYTES), task)
    return first.texts
