"""One run of the whole stage, in a process of its own: ``python -m pipeline.bench.stage_run``, started by ``scale``.

From an open Parquet file to a committed one, with a store of scores beside it, as the command line does it; loading the
model is not part of it. Then once more with all scores known. The last line of the output is JSON.
"""

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.bench.command import run

if TYPE_CHECKING:
    from pipeline.stage import Stage
    from pipeline.stats import RunStats

ENGINES = ("null", "tiny", "model")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage twice over a file, print what it took, and return the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see pipeline.classify
    parser = argparse.ArgumentParser(prog="python -m pipeline.bench.stage_run", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="holds in.parquet, with a column `text`; outputs go there, too")
    parser.add_argument("--engine", choices=ENGINES, required=True, help="no model, a tiny one, or the one given")
    parser.add_argument("--model", required=True, help="the model, or the one whose tokenizer is taken")
    options = parser.parse_args(argv)
    return run(lambda: print(json.dumps(_measure(options.folder, options.engine, options.model))))


def _measure(folder: Path, engine: str, name: str) -> dict[str, Any]:
    from pipeline.bench.tiny import NullEngine, tiny_model
    from pipeline.build import build_stage, with_store
    from pipeline.command.report import peak_rss_mib
    from pipeline.engine.load import load_model
    from pipeline.label_store import LabelStore
    from pipeline.settings import Settings
    from pipeline.task_file import builtin_task

    model = load_model(name) if engine == "model" else tiny_model(name)
    stage = build_stage(builtin_task(), model, Settings())
    if engine == "null":
        stage = replace(stage, engine=NullEngine(stage.scorer.readout))  # type: ignore[arg-type]
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
    with LabelStore(folder / "scores", shared=False) as store:
        first = _run(with_store(stage, model, store), folder / "in.parquet", folder / "out.parquet")
        peak_mib = peak_rss_mib()
        again = _run(with_store(stage, model, store), folder / "in.parquet", folder / "again.parquet")
    assert again.texts == 0
    seconds, known = first.seconds["run"], again.seconds["run"]
    return {
        "rows": first.rows,
        "engine": stage.engine.name,
        "seconds": seconds,
        "rows_per_s": first.rows / seconds,
        "us_per_row": 1e6 * seconds / first.rows,
        "outside_model_share": 1 - first.seconds["model"] / seconds,
        "peak_mib": peak_mib,
        "known_rows_per_s": again.rows / known,
    }


def _run(stage: "Stage", source: Path, target: Path) -> "RunStats":
    """Label a file into another."""
    from pipeline.parquet.buffers import buffers
    from pipeline.parquet.location import locate
    from pipeline.parquet.sink import ParquetSink
    from pipeline.parquet.source import ParquetSource
    from pipeline.schema import bind_schema
    from pipeline.stage import MAX_BUFFER_BYTES
    from pipeline.stats import RunStats

    stats = RunStats()
    with stats.phase("run"), ParquetSource(locate(str(source))) as rows:
        task, fields = bind_schema(stage.task, stage.settings, rows.schema)
        with ParquetSink(locate(str(target)), rows.layout, fields) as sink:
            batches = buffers(rows.batches(), stage.settings.buffer_rows, MAX_BUFFER_BYTES)
            with closing(replace(stage, task=task).run(batches, stats)) as tables:
                for table in tables:
                    sink.write(table)
            sink.commit()
    return stats


if __name__ == "__main__":
    sys.exit(main())
