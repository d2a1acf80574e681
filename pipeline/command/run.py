"""One run of the command line: input, output, model, rows, check, in this order.

Each step is refused before the next one costs anything. The output appears in the last one, which no signal stops
halfway. torch and the model are imported only once everything else is known to be right.
"""

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.command.dry_run import plan
from pipeline.command.logs import write_stdout
from pipeline.command.options import Options
from pipeline.command.progress import chosen_kind, show_progress, show_step
from pipeline.command.report import Report, footer, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.parquet.buffers import buffers
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.settings import Settings
from pipeline.task import Task

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage
    from pipeline.verify import Sample

log = logging.getLogger(__name__)


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

    def label(self, task: Task) -> None:
        """Label the input into the output, or with ``--dry-run`` say what would be done.

        Args:
            task: its text columns may still be unknown.

        Raises:
            PipelineError: it cannot be done; the output is as it was before.
        """
        options = self.options
        place, output = locate(options.input), locate(options.output)
        with ParquetSource(place, limit=options.limit) as source:
            task, fields = bind_schema(task, self.settings, source.schema)
            with ParquetSink(output, source.layout, fields, overwrite=options.overwrite) as sink:
                if options.dry_run:
                    write_stdout(plan(options, task, source, output, fields))
                    return
                log.info("text from %s", _text(task))
                stage, model = self._load(task)
                sample = self._sample(source)
                self._write(stage, source, sink, sample)
                if sample is not None:
                    self._verify(sample, stage, model)
                self._commit(sink)

    def _load(self, task: Task) -> "tuple[Stage, Model]":
        options, report = self.options, self.report
        with show_step(self._progress, f"loading model {options.model}"), report.stats.phase("load"):
            from pipeline.engine.load import load_model
            from pipeline.stage import build_stage

            model = load_model(
                options.model,
                revision=options.revision,
                device=options.device,
                dtype=options.dtype,
                trust_remote_code=options.trust_remote_code,
            )
            stage = build_stage(task, model, self.settings)
        report.facts = facts = run_facts(stage, model)
        log.info("model %(model)s on %(device)s in %(dtype)s, %(engine)s engine", facts, extra={"fields": facts})
        self.signals.check()
        return stage, model

    def _sample(self, source: ParquetSource) -> "Sample | None":
        if self.options.verify is None:
            return None
        from pipeline.verify import Sample

        return Sample(self.options.verify, source.num_rows, skip_truncated=self.settings.overlong == "null")

    def _write(self, stage: "Stage", source: ParquetSource, sink: ParquetSink, sample: "Sample | None") -> None:
        from pipeline.stage import MAX_BUFFER_BYTES

        stats = self.report.stats
        tables = stage.run(
            buffers(source.batches(), self.settings.buffer_rows, MAX_BUFFER_BYTES),
            stats,
            observe=None if sample is None else sample.observe,
        )
        with stats.phase("run"), show_progress(self._progress, stats, source.num_rows), closing(tables):
            for table in tables:
                self.signals.check()
                with stats.phase("write"):
                    sink.write(table)
        assert stats.rows == source.num_rows

    def _verify(self, sample: "Sample", stage: "Stage", model: "Model") -> None:
        from pipeline.verify import judge

        report = self.report
        with show_step(self._progress, f"scoring {len(sample.rows)} texts alone"), report.stats.phase("verify"):
            report.verdict = judge(sample, stage, model)
        report.verdict.enforce(sample.n_wanted)

    def _commit(self, sink: ParquetSink) -> None:
        self.signals.check()
        self.signals.ignore()
        with self.report.stats.phase("run"), self.report.stats.phase("write"):
            sink.commit(footer(self.report.facts))

    @property
    def _progress(self) -> str:
        return chosen_kind(self.options.progress, self.options.log_format)


def _text(task: Task) -> str:
    """Where the text comes from, names with line breaks and the like quoted."""
    names = [name if name.isprintable() else repr(name) for name in task.columns]
    return f"column{'' if len(names) == 1 else 's'} {', '.join(names)}"
