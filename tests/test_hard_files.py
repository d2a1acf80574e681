"""Every awkward file through the command line, each as the manifest of the shared collection says.

The collection stands beside the checkout where there is one; elsewhere the files that ``tests.hard_files`` writes take
its place (in ``test_classify``). A whole run per file, in this process; a real process where memory is measured.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.classify import main
from tests.hard_files import bits

SHARED_FILES = Path(__file__).parents[2] / "shared" / "hard_files"
MANIFEST = SHARED_FILES / "manifest.json"
LABELS = {"billing", "technical", "account", None}


def single_files() -> list[Any]:
    entries = json.loads(MANIFEST.read_text())["files"] if MANIFEST.exists() else []
    return [
        pytest.param(entry, id=entry["file"])
        for entry in entries
        if (SHARED_FILES / entry["file"]).is_file() and entry["file"] != "rows_1m_one_group.parquet"
    ]


def arguments(path: Path, output: Path, model: Path, text_column: str = "text") -> list[str]:
    # a tiny tokenizer makes many tokens of a word; their number is not what these tests are about
    return [
        *(str(path), str(output), "--model", str(model), "--text-column", text_column),
        *("--max-tokens", "300", "--progress", "none"),
    ]


@pytest.mark.parametrize("entry", single_files())
def test_a_shared_file_is_labelled_or_refused_as_its_manifest_says(
    entry: dict[str, Any], tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = SHARED_FILES / entry["file"], tmp_path / "out.parquet"
    before = path.read_bytes()
    exit_code = main(arguments(path, output, tiny_model_folder, entry["text_column"]))
    errors = capsys.readouterr().err
    assert path.read_bytes() == before
    if entry["expect"] == "clean error":
        assert exit_code == 65, errors
        assert "error: " in errors
        assert "Traceback" not in errors
        assert list(tmp_path.iterdir()) == []
        return
    assert exit_code == 0, errors
    source, labelled = pq.ParquetFile(path), pq.ParquetFile(output)
    assert labelled.metadata.num_rows == entry["rows"]
    assert labelled.schema_arrow.names == [*source.schema_arrow.names, "label"]
    for i, field in enumerate(source.schema_arrow):
        assert labelled.schema_arrow.field(i).equals(field, check_metadata=True), field.name
        assert bits(labelled.read().column(i)) == bits(source.read().column(i)), field.name
    assert set(labelled.read().column("label").to_pylist()) <= LABELS


def test_the_output_reads_the_same_in_pandas_polars_and_duckdb(tiny_model_folder: Path, tmp_path: Path) -> None:
    import duckdb
    import pandas as pd

    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"text": ["a refund", None, "a crash"], "n": [1, 2, 3]}), path)
    assert main(arguments(path, output, tiny_model_folder)) == 0
    expected = pq.read_table(output)["label"].to_pylist()
    assert pl.read_parquet(output)["label"].to_list() == expected
    assert duckdb.sql(f"select label from '{output}'").fetchall() == [(label,) for label in expected]
    labels = pd.read_parquet(output)["label"]
    assert [None if pd.isna(label) else label for label in labels] == expected


# A run that says at its end how much memory it took at most; Linux only, like the rest of these files. Not by
# ``getrusage``, which begins with the peak of the process that started it.
PEAK_MIB = """
import sys
from pipeline.classify import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)
sys.exit(code)
"""


def peak_mib(command: list[str]) -> float:
    """Peak memory of the command line in a process of its own, in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", PEAK_MIB, *command], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return float(run.stdout.splitlines()[-1])


def test_memory_does_not_grow_with_the_file(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A million rows take at most 300 MB more than ten thousand, and come out in their order."""
    peaks = {}
    for n_rows in (10_000, 1_000_000):
        path, output = tmp_path / f"{n_rows}.parquet", tmp_path / f"{n_rows}.labelled.parquet"
        ids = pa.array(range(n_rows))
        texts = pa.array([f"ticket about case {i % 50} and its invoice" for i in range(n_rows)])
        pq.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=n_rows)
        peaks[n_rows] = peak_mib(arguments(path, output, tiny_model_folder))
        labelled = pq.read_table(output)
        assert labelled["id"].to_pylist() == list(range(n_rows))
        by_text = {}
        for text, label in zip(labelled["text"].to_pylist(), labelled["label"].to_pylist(), strict=True):
            assert by_text.setdefault(text, label) == label
    growth = peaks[1_000_000] - peaks[10_000]
    assert growth < 300, f"peak memory {peaks[10_000]:.0f} MiB at 10,000 rows, {growth:.0f} MiB more at 1,000,000"
