"""A file labelled unit by unit in one process, by the code that runs on Ray."""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.command.checked_file import CheckedFile
from pipeline.command.manifest import existing_state
from pipeline.command.options import parse
from pipeline.command.stop_signals import StopSignals
from pipeline.distributed.parts import assemble, folders_of, parts_beside
from pipeline.distributed.plan import plan_units
from pipeline.distributed.pool import PoolSize
from pipeline.distributed.unit import Job, Unit
from pipeline.distributed.worker import UnitWorker
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.schema import bind_schema
from pipeline.version import installed_version

FLAGS = ("--text-column", "text", "--max-tokens", "300", "--progress", "none")


def job_of(arguments: list[str]) -> Job:
    options = parse(arguments)
    assert options is not None
    return Job(options, options.build_settings(), options.build_task(), installed_version(), os.getcwd())


class InUnits:
    """A file labelled unit by unit, in this process; all that a worker is told has travelled."""

    def __init__(self, path: Path | str, output: Path | str, model: Path, *flags: str) -> None:
        self.job = job_of([str(path), str(output), "--model", str(model), *FLAGS, *flags])
        self.place, self.output = locate(str(path)), locate(str(output))
        with ParquetSource(self.place) as source:
            task, _ = bind_schema(self.job.task, self.job.settings, source.schema)
            rows, groups = source.num_rows, source.layout.row_group_rows
        file = CheckedFile("", self.place, self.output, task, rows, groups, existing_state(self.place), None, None)
        self.job = replace(self.job, inputs=[(self.place, task)])
        self.units: list[Unit] = plan_units([file], parts_beside(self.output), self.job.options)[""]
        self.worker = UnitWorker(pickle.loads(pickle.dumps(self.job)))
        assert self.worker.load() is None

    def work(self) -> list[Any]:
        with folders_of(self.units, parts_beside(self.output)):
            units = pickle.loads(pickle.dumps(self.units[::-1]))
            return pickle.loads(pickle.dumps([self.worker.work(unit) for unit in units]))[::-1]

    def assemble(self) -> None:
        with ParquetSource(self.place, limit=self.job.options.limit) as source:
            _, fields = bind_schema(self.job.task, self.job.settings, source.schema)
            with ParquetSink(self.output, source.layout, fields) as sink:
                assemble(self.units, sink, StopSignals().check)
                sink.commit()


class PoolOfOne:
    """Takes the place of the pool: one worker, in this process, that is told what travels."""

    def __init__(self, make: tuple[type[UnitWorker], tuple[Any, ...]], *of_actors: object) -> None:
        cls, arguments = pickle.loads(pickle.dumps(make))
        self._worker = cls(*arguments)

    def __enter__(self) -> "PoolOfOne":
        return self

    def __exit__(self, *of_block: object) -> None:
        pass

    def run(self, units: Sequence[Unit], check: Callable[[], None]) -> Iterator[tuple[Unit, Any]]:
        error = self._worker.load()
        if error is not None:
            raise error
        for unit in reversed(units):
            check()
            yield unit, pickle.loads(pickle.dumps(self._worker.work(pickle.loads(pickle.dumps(unit)))))


def do_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with ``--ray`` start none from here on: the driver is the real one, and its workers are in this process."""
    monkeypatch.setattr("pipeline.distributed.run.Pool", PoolOfOne)
    monkeypatch.setattr("pipeline.distributed.run.connected", lambda *arguments: nullcontext())
    monkeypatch.setattr("pipeline.distributed.run.pool_size", lambda options: PoolSize(1, 1, 1, 0))
