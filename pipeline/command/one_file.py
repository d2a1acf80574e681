"""One file on its way: labelled, verified, put in its place. Knows nothing of other files."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.command.report import Report, footer, run_facts
from pipeline.command.stop_signals import StopSignals
from pipeline.parquet.buffers import buffers
from pipeline.parquet.file_layout import FileLayout
from pipeline.parquet.location import Location
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource

if TYPE_CHECKING:
    from pipeline.engine.model import Model
    from pipeline.stage import Stage
    from pipeline.verify import Sample, Verdict


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file, open on both sides, and what labels it.

    Attributes:
        source: its rows.
        sink: where they go.
        stage: its task bound to the source.
        model: of the stage.
        n_verify: texts of it that will be scored again.
        report: is told how it goes.
        signals: that may stop it.
    """

    source: ParquetSource
    sink: ParquetSink
    stage: "Stage"
    model: "Model"
    n_verify: int
    report: Report
    signals: StopSignals

    def label(self) -> "Sample | None":
        """Label all rows into the sink; gives the texts to score again."""
        from pipeline.stage import MAX_BUFFER_BYTES

        stats, settings, sample = self.report.stats, self.stage.settings, self._sample()
        tables = self.stage.run(
            buffers(self.source.batches(), settings.buffer_rows, MAX_BUFFER_BYTES),
            stats,
            observe=None if sample is None else sample.observe,
        )
        n_before = stats.rows
        with stats.phase("run"), closing(tables):
            for table in tables:
                self.signals.check()
                with stats.phase("write"):
                    self.sink.write(table)
        assert stats.rows - n_before == self.source.num_rows
        return sample

    def judge(self, sample: "Sample") -> "Verdict":
        """Score texts again, each alone."""
        from pipeline.verify import judge

        with self.report.stats.phase("verify"):
            return judge(sample, self.stage, self.model)

    def commit(self) -> None:
        """Let the output appear; no signal stops this halfway."""
        self.signals.check()
        with self.signals.deferred(), self.report.stats.phase("run"), self.report.stats.phase("write"):
            self.sink.commit(footer(run_facts(self.stage, self.model)))

    def _sample(self) -> "Sample | None":
        if not self.n_verify:
            return None
        from pipeline.verify import Sample

        return Sample(self.n_verify, self.source.num_rows, skip_truncated=self.stage.settings.overlong == "null")


def open_source(place: Location, limit: int | None) -> ParquetSource:
    """Open an input file."""
    return ParquetSource(place.local, limit=limit)  # merge: ParquetSource takes a Location


def open_sink(place: Location, layout: FileLayout, fields: Sequence[pa.Field], *, overwrite: bool) -> ParquetSink:
    """Open an output file."""
    return ParquetSink(place.local, layout, fields, overwrite=overwrite)  # merge: ParquetSink takes a Location
