"""Loading what labels rows: the model, and the stage on it."""

import logging
from typing import TYPE_CHECKING

from pipeline.command.options import Options
from pipeline.command.progress import show_step
from pipeline.command.report import Report, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.label_store import LabelStore
from pipeline.settings import Settings
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage

log = logging.getLogger(__name__)


def load_stage(
    task: Task, store: LabelStore | None, *, options: Options, settings: Settings, report: Report, signals: StopSignals,
    progress: str,
) -> "tuple[Stage, Model]":  # fmt: skip
    """The stage of a run and its model.

    Args:
        task: its text columns may still be unknown.
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
    report.facts = facts = run_facts(stage, model)
    quantized = "" if settings.quantize == "none" else f", half of the products in {settings.quantize}"
    shown = f"model %(model)s on %(device)s in %(dtype)s, %(engine)s engine{quantized}"
    log.info(shown, facts, extra={"fields": facts})
    signals.check()
    return stage, model
