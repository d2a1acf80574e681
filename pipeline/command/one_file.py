"""One file on its way: labelled, verified, put in its place. Knows nothing of other files."""

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.command.logs import write_stdout
from pipeline.command.options import Options
from pipeline.command.report import Report, footer, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.errors import GateError
from pipeline.parquet.buffers import buffers
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage
    from pipeline.verify import Sample


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file, open on both sides, and what labels it.

    Attributes:
        source: its rows.
        sink: where they go.
        stage: its task bound to the source.
        model: of the stage.
        options: of the command line.
        report: is told how it goes.
        signals: that may stop it.
    """

    source: ParquetSource
    sink: ParquetSink
    stage: "Stage"
    model: "Model"
    options: Options
    report: Report
    signals: StopSignals

    def label(self, n_verify: int) -> "Sample | None":
        """Label all rows into the sink, and explain some on stdout if that is wanted.

        Args:
            n_verify: how many texts will be scored again.

        Returns:
            Those texts; None for none.

        Raises:
            GateError: more rows than ``--max-failed`` have no finite scores.
        """
        from pipeline.explain import Explanations
        from pipeline.stage import MAX_BUFFER_BYTES
        from pipeline.verify import Sample

        stats, settings = self.report.stats, self.stage.settings
        sample = Sample(n_verify, self.source.num_rows, self.stage) if n_verify else None
        n_explain = (self.options.explain or 0) - self.report.n_explained
        where = "" if self.report.files is None else f"{self.source.location.name}, "
        explanations = Explanations(n_explain, self.stage, where, write_stdout)
        most_failed = self.options.max_failed.rows(self.source.num_rows)
        tables = self.stage.run(
            buffers(self.source.batches(), settings.buffer_rows, MAX_BUFFER_BYTES),
            stats,
            observers=[*([] if sample is None else [sample.observe]), explanations.observe],
        )
        n_before, n_failed_before = stats.rows, stats.statuses["failed"]
        with stats.phase("run"), closing(tables):
            for table in tables:
                self.signals.check()
                self._check_failed(stats.statuses["failed"] - n_failed_before, most_failed)
                with stats.phase("write"):
                    self.sink.write(table)
        assert stats.rows - n_before == self.source.num_rows
        self.report.n_explained += explanations.n_shown
        return sample

    def judge(self, sample: "Sample") -> None:
        """Score texts again, each alone, and report it.

        Raises:
            GateError: one has another label. What is known of this task's scores is forgotten.
        """
        from pipeline.verify import judge

        report = self.report
        with report.stats.phase("verify"):
            verdict = judge(sample, self.model)
        report.verdict = verdict if report.verdict is None else report.verdict + verdict
        try:
            verdict.check(sample.n_wanted)
        except GateError:
            if self.stage.store is not None:
                self.stage.store.forget()
            raise

    def commit(self, mark: str | None = None) -> None:
        """Let the output appear; no signal stops this halfway.

        Args:
            mark: to know it by.
        """
        self.signals.check()
        with self.signals.deferred(), self.report.stats.phase("run"), self.report.stats.phase("write"):
            self.sink.commit(footer({**run_facts(self.stage, self.model), **({"mark": mark} if mark else {})}))

    def _check_failed(self, n_failed: int, most: int) -> None:
        if n_failed > most:
            rows = ", ".join(map(str, self.report.stats.failed_rows))
            raise GateError(
                f"{n_failed:,} of {self.source.num_rows:,} rows have no finite scores (among them {rows}, counted "
                f"from 0), and --max-failed {self.options.max_failed} allows {most:,}",
                "allow more with --max-failed N or P%, or try --dtype float32; their labels are null",
            )
