"""What surrounds the model, alone and at its best: the tokenizer, and a copy of the table as Parquet."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bench.workload import Workload
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from pipeline.prompt import PromptEncoder

SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Around:
    """Rates of what is not the model.

    Attributes:
        texts_per_s: by the tokenizer's batch encoder alone, on all cores.
        tokens_per_s: the same in tokens.
        rows_per_s: read and written by the project's own source and sink, from one file to another.
    """

    texts_per_s: float
    tokens_per_s: float
    rows_per_s: float


def measure_around(workload: Workload, encoder: PromptEncoder) -> Around:
    """All rates, over a whole workload at once, each the best of what fits into ``SECONDS``."""
    texts = [encoder.chat.left + text + encoder.chat.right for text in workload.texts]
    n_tokens = sum(len(encoding.ids) for encoding in encoder.plain.encode_batch_fast(texts, add_special_tokens=False))
    tokenizing = _best_seconds(lambda: encoder.plain.encode_batch_fast(texts, add_special_tokens=False))
    with TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(workload_table(workload), folder / "in.parquet", compression="zstd")
        copying = _best_seconds(lambda: _copy(folder / "in.parquet", folder / "out.parquet"))
    return Around(len(texts) / tokenizing, n_tokens / tokenizing, len(texts) / copying)


def workload_table(workload: Workload) -> pa.Table:
    """A workload as a table: ``id``, ``text``, and ``truth`` where it is known."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(len(workload.texts))), "text": pa.array(workload.texts)}
    if workload.truths is not None:
        columns["truth"] = pa.array(workload.truths)
    return pa.table(columns)


def _copy(source: Path, target: Path) -> None:
    with (
        ParquetSource(locate(str(source))) as rows,
        ParquetSink(locate(str(target)), rows.layout, [], overwrite=True) as sink,
    ):
        for batch in rows.batches():
            sink.write(batch)
        sink.commit()


def _best_seconds(work: Callable[[], object]) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
