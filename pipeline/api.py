"""The stage from Python: a stream of Arrow data in, the same stream with label columns out.

    labeller = pipeline.Labeller(pipeline.builtin_task(), pipeline.load_model())
    for batch in labeller.label_stream(data):      # a reader in, or anything that can be read as one
        ...
    table = labeller.label_table(table)            # one batch at a time: Ray, Spark, DuckDB

A ``Labeller`` has paid for the set-up (encoding the prompt, checking the engine, measuring the calibration) and may be
used again and again, for inputs of different schemas too, by one thread at a time. ``label_stream`` and ``label_table``
pay for it on every call.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from pipeline.agreement import Agreement, measure_agreement
from pipeline.build import build_stage, with_batch_prior, with_store
from pipeline.engine.model import Model
from pipeline.errors import InputError
from pipeline.first_texts import FirstTexts
from pipeline.label_store import LabelStore
from pipeline.parquet.buffers import buffers
from pipeline.schema import bind_schema
from pipeline.settings import Settings
from pipeline.stage import MAX_BUFFER_BYTES, Stage
from pipeline.stats import RunStats
from pipeline.task import Task

# A stream cannot be read twice: what batch calibration reads of it is held until it is labelled.
MAX_HELD_BYTES = 256 << 20


class Labeller:
    """A task bound to a model, ready to label any number of inputs.

    Args:
        task: without text columns, they are found by name in each input.
        model: of ``load_model``.
        settings: None for the defaults.
        store: an open ``LabelStore``: texts that have scores there are not scored again, and new scores go there, so
            that a text is scored once in all inputs. None: once in a buffer.

    With ``Settings(quantize="int8")`` some texts get another label than float32 gives them. How many is for the caller
    to find out and to judge, by ``agreement``: no label is held back here.

    Raises:
        UsageError: prompt, labels and limits do not go together for this model.
        ModelError: the model cannot be used.
        CacheError: the store is damaged.
        StorageError: it cannot be written.
    """

    def __init__(
        self, task: Task, model: Model, settings: Settings | None = None, *, store: LabelStore | None = None
    ) -> None:
        self._stage = build_stage(task, model, settings or Settings())
        if store is not None:
            self._stage = with_store(self._stage, model, store)

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides a label, but for the texts that batch calibration measures."""
        return self._stage.fingerprint

    def agreement(self, texts: Sequence[str]) -> Agreement:
        """How often the quantized model decides as float32 does; ``Agreement.check`` raises if that is too seldom.

        Args:
            texts: distinct and not blank, such as there are to label; 64 of them say enough to tell 80 % from 95 %.

        Raises:
            UsageError: nothing is quantized, or there are no texts.
        """
        return measure_agreement(self._stage, texts)

    def label_stream(self, data: Any, *, stats: RunStats | None = None) -> pa.RecordBatchReader:
        """Label a stream as it is read.

        Args:
            data: anything with ``__arrow_c_stream__``: a pyarrow reader, table or batch, a polars or pandas (from 3.0)
                frame, a DuckDB relation.
            stats: counts are added to it as rows are labelled.

        Returns:
            A reader of all rows in order, with the input's columns and the added ones. One buffer of rows is labelled
            at a time, when it is asked for, and two threads prepare the next ones. They end with the stream, or
            when the reader is no longer referenced; ``close`` does nothing to a reader that is made by Python code.

        Raises:
            InputError: no Arrow data, or no text in it; see ``bind_schema``.
            UsageError: two added columns have one name.
            PipelineError: while reading, as ``Stage.run`` raises it.
        """
        reader = _open(data)
        task, fields = bind_schema(self._stage.task, self._stage.settings, reader.schema)
        schema = pa.schema([*reader.schema, *fields], metadata=reader.schema.metadata)
        return pa.RecordBatchReader.from_batches(schema, _label(replace(self._stage, task=task), reader, stats))

    def label_table(self, data: Any, *, stats: RunStats | None = None) -> pa.Table:
        """Label what fits in memory: ``label_stream``, read to its end.

        With batch calibration each table is measured on its own first texts; of small ones, use ``contextual``.
        """
        return self.label_stream(data, stats=stats).read_all()


def label_stream(
    data: Any, task: Task, model: Model, settings: Settings | None = None, *, stats: RunStats | None = None
) -> pa.RecordBatchReader:
    """``Labeller.label_stream`` for a single input."""
    return Labeller(task, model, settings).label_stream(data, stats=stats)


def label_table(
    data: Any, task: Task, model: Model, settings: Settings | None = None, *, stats: RunStats | None = None
) -> pa.Table:
    """``Labeller.label_table`` for a single input."""
    return Labeller(task, model, settings).label_table(data, stats=stats)


def _open(data: Any) -> pa.RecordBatchReader:
    if not hasattr(data, "__arrow_c_stream__"):
        raise InputError(
            f"a {type(data).__name__!r} is not Arrow data: it has no __arrow_c_stream__",
            "pass a pyarrow table or reader, a polars or pandas frame, or a DuckDB relation",
        )
    if isinstance(data, pa.RecordBatchReader):
        return data  # as it is: across the C interface an error would lose its type
    return pa.RecordBatchReader.from_stream(data)


def _calibrated(stage: Stage, source: Iterator[pa.Table], stats: RunStats) -> tuple[Stage, Iterator[pa.Table]]:
    """The stage with the prior of a stream's first texts, and the stream with what was read for that."""
    first, read, n_bytes = FirstTexts(), [], 0
    for table in source:
        read.append(table)
        n_bytes += table.nbytes
        first.add([table], stage.task)
        if first.is_full or n_bytes > MAX_HELD_BYTES:
            break
    return with_batch_prior(stage, first.texts, stats), chain(read, source)


def _label(stage: Stage, reader: pa.RecordBatchReader, stats: RunStats | None) -> Generator[pa.RecordBatch, None, None]:
    stats = RunStats() if stats is None else stats
    source: Iterator[pa.Table] = buffers(reader, stage.settings.buffer_rows, MAX_BUFFER_BYTES)
    if stage.task.calibration == "batch":
        stage, source = _calibrated(stage, source, stats)
    tables = stage.run(source, stats)
    with closing(tables):
        for table in tables:
            yield from table.to_batches()
