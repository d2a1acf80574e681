"""Before the first label of a quantized model is written: that it decides as float32 does on texts of the input."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.command.calibrate import first_texts
from pipeline.command.failures import FILE_ERRORS
from pipeline.command.options import Options
from pipeline.command.progress import show_step
from pipeline.command.report import Report
from pipeline.parquet.location import Location
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.stage import Stage


def check_agreement(
    stage: "Stage", inputs: Iterable[tuple[Location, Task]], options: Options, report: Report, progress: str
) -> None:
    """Compare on the first texts of the first input that has any; nothing is done if the stage is not quantized.

    Few are compared, and where they do not agree enough, more: what those say counts.

    Args:
        stage: that will label the inputs.
        inputs: places of files, each with the task bound to it. One that cannot be read is passed over, since that is
            told when its turn comes.
        options: of the command line.
        report: is told how it went.
        progress: how it is shown.

    Raises:
        GateError: they agree less than ``--min-agreement``.
    """
    if stage.unquantized is None:
        return
    from pipeline.agreement import N_TEXTS, N_TEXTS_IN_DOUBT, measure_agreement

    some = _first_of(inputs, options, N_TEXTS_IN_DOUBT)
    for texts in (some[:N_TEXTS], some):
        if texts and (report.agreement is None or report.agreement.n_texts < len(texts)):
            with show_step(progress, f"comparing with float32 on {len(texts)} texts"), report.stats.phase("agreement"):
                report.agreement = measure_agreement(stage, texts)
            report.agreement.tell()
            if report.agreement.balanced >= options.min_agreement:
                return
    if report.agreement is not None:
        report.agreement.check(options.min_agreement)


def _first_of(inputs: Iterable[tuple[Location, Task]], options: Options, n_texts: int) -> list[str]:
    for place, task in inputs:
        try:
            texts = first_texts(place, task, options, n_texts)
        except FILE_ERRORS:
            continue
        if texts:
            return texts
    return []
