"""An object store that goes away while an output is uploaded: what was scored is not scored again.

The scores of an output in a store are kept on this machine, in the place where the output waits for its upload.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store import HOST
from tests.test_object_store import Store, assert_refused, run, server, store

__all__ = ["server", "store"]

TEXTS = [f"Ticket {i % 20}: the invoice of May shows the wrong sum" for i in range(24)]


@dataclass(frozen=True)
class Night:
    """Runs from here to a store.

    Attributes:
        input: a Parquet file on this machine.
        expected: the labels of its rows, from a run within this machine.
    """

    store: Store
    model: Path
    folder: Path
    input: Path
    expected: list[str]

    def run(self, source: object, output: object, *flags: object) -> int:
        metrics = ("--metrics", str(self.folder / "metrics.json"))
        return run(source, output, self.model, *metrics, "--buffer-rows", "7", *map(str, flags))

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((self.folder / "metrics.json").read_text())
        return metrics

    @property
    def kept(self) -> list[str]:
        """The names of the files that wait on this machine."""
        return sorted(path.name for path in self.store.leftovers() if path.is_file())

    def cut_at(self, request_line: str) -> None:
        """The store is gone when this request comes."""
        start = request_line.encode()
        self.store.gate.stops = lambda head: head.startswith(start)

    def mend(self) -> None:
        assert self.store.gate.is_closed
        self.store.gate.stops, self.store.gate.is_closed = lambda head: False, False


@pytest.fixture
def night(store: Store, tiny_model_folder: Path, tmp_path: Path) -> Night:
    path, output = tmp_path / "in.parquet", tmp_path / "expected.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    assert run(path, output, tiny_model_folder, "--no-cache") == 0
    return Night(store, tiny_model_folder, tmp_path, path, pq.read_table(output)["label"].to_pylist())


@pytest.mark.parametrize("request_line", ["PUT /{}/out.parquet?partNumber=1", "POST /{}/out.parquet?uploadId"])
def test_an_upload_cut_midway_leaves_the_scores_and_the_next_run_only_uploads(
    request_line: str, night: Night, server: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store = night.store
    night.cut_at(request_line.format(store.bucket))
    assert night.run(night.input, store.uri("out.parquet")) == 74
    assert_refused(capsys, "uploading output", "run the same command again")
    assert night.metrics["texts"] == 20
    assert store.stored() == []
    assert night.kept == [".out.parquet.scores"]

    # the same store, behind another name
    night.mend()
    another = f"s3://{store.bucket}/out.parquet?endpoint_override={HOST}:{server}&scheme=http"
    assert night.run(night.input, another) == 0
    assert night.metrics["texts"] == 0
    assert store.table("out.parquet")["label"].to_pylist() == night.expected
    assert store.stored() == ["out.parquet"]
    assert store.leftovers() == []


def test_a_folder_of_objects_goes_on_where_the_store_went_away(
    night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    store, table = night.store, pq.read_table(night.input)
    for name, first in (("1", 0), ("a/2", 8), ("b/3", 16)):
        sink = pa.BufferOutputStream()
        pq.write_table(table.slice(first, 8), sink)
        store.put(f"in/{name}.parquet", sink.getvalue().to_pybytes())
    command = (store.uri("in"), store.uri("out"))
    night.cut_at(f"PUT /{store.bucket}/out/a/2.parquet?partNumber=1")
    assert night.run(*command) == 74
    assert_refused(capsys, "uploading output", "out/a/2.parquet", "run the same command again")
    finished = [name for name in store.stored() if name.startswith("out/") and name.endswith(".parquet")]
    assert finished == ["out/1.parquet"]
    assert night.kept == [".parquet_classify.scores"]
    before = store.filesystem.get_file_info(f"{store.bucket}/out/1.parquet").mtime_ns

    night.mend()
    assert night.run(*command) == 0
    assert night.metrics["files"] == {"done": 2, "skipped": 1, "failed": 0}
    assert night.metrics["texts"] == 4, "only those of the file that had not been begun, and are not in the others"
    assert store.filesystem.get_file_info(f"{store.bucket}/out/1.parquet").mtime_ns == before
    outputs = [store.table(f"out/{name}.parquet") for name in ("1", "a/2", "b/3")]
    assert pa.concat_tables(outputs)["label"].to_pylist() == night.expected
    assert store.leftovers() == []
    assert night.run(*command) == 0
    assert night.metrics["files"] == {"done": 0, "skipped": 3, "failed": 0}
    assert store.leftovers() == []


def test_a_cache_serves_outputs_in_a_store(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    store, cache = night.store, night.folder / "cache.db"
    flags = ("--cache", cache)
    night.cut_at(f"POST /{store.bucket}/out.parquet?uploads")
    assert night.run(night.input, store.uri("out.parquet"), *flags) == 74
    assert_refused(capsys, "uploading output")
    assert store.stored() == []
    assert store.leftovers() == [], "all that is kept is in the cache"
    night.mend()
    for key in ("out.parquet", "another.parquet"):
        assert night.run(night.input, store.uri(key), *flags) == 0
        assert night.metrics["texts"] == 0
        assert store.table(key)["label"].to_pylist() == night.expected
    assert store.leftovers() == []
    assert [path.name for path in night.folder.glob("cache.db*")] == ["cache.db"]
