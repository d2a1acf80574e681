"""Peak memory of whole runs: it is bounded by bytes, whatever the size of the file, its row groups and its rows.

Every run is a real command line with a tiny model in a process of its own. Bounds are relative to the peak of a small
run, which is nearly all imports; they leave room for noise, and fail when one of the bounds in bytes is lost. What no
reader can avoid is added: it holds a page (as stored and decoded) and a dictionary (twice) of every column, as large as
the file's writer made them. That a million short rows in one row group change nothing is in ``test_hard_files``.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.test_hard_files import arguments, peak_mib

MIB = 1 << 20


def long_texts(n_rows: int, n_bytes: int) -> pa.Array:
    """Distinct texts that do not compress away."""
    noise = os.urandom(n_bytes // 2).hex()
    return pa.array([f"{i:06} {noise[i:]}" for i in range(n_rows)])


@pytest.fixture(scope="module")
def small_peak(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Peak memory in MiB of a run over a few rows that fill the model's batches."""
    folder = tmp_path_factory.mktemp("small")
    pq.write_table(pa.table({"text": long_texts(40, 5000)}), folder / "in.parquet")
    return peak_mib(arguments(folder / "in.parquet", folder / "out.parquet", tiny_model_folder))


def grown(path: Path, model: Path, small_peak: float) -> float:
    """How much more a run over a file takes than the small run, in MiB; the output has all its rows."""
    output = path.with_name("out.parquet")
    growth = peak_mib(arguments(path, output, model)) - small_peak
    assert pq.read_metadata(output).num_rows == pq.read_metadata(path).num_rows
    output.unlink()
    path.unlink()
    print(f"{growth:.0f} MiB more than {small_peak:.0f}")
    return growth


@pytest.mark.parametrize(("n_rows", "n_bytes", "group_rows"), [(150, MIB, 10), (40, 5 * MIB, 2)])
def test_long_texts(
    n_rows: int, n_bytes: int, group_rows: int, small_peak: float, tiny_model_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": long_texts(n_rows, n_bytes)}), path, row_group_size=group_rows)
    assert grown(path, tiny_model_folder, small_peak) < 380


def test_a_page_of_long_texts(small_peak: float, tiny_model_folder: Path, tmp_path: Path) -> None:
    """With default page settings, 150 texts of 1 MiB are one dictionary page."""
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": long_texts(150, MIB)}), path)
    assert grown(path, tiny_model_folder, small_peak) < 2 * 150 + 250


def test_thousands_of_columns(small_peak: float, tiny_model_folder: Path, tmp_path: Path) -> None:
    """Most of what 3,000 columns take is their dictionaries, pages and read-ahead."""
    n_rows, path = 8000, tmp_path / "in.parquet"
    kinds = [
        pa.array(np.random.default_rng(0).integers(0, 1 << 60, n_rows)),
        pa.array(np.random.default_rng(0).random(n_rows)),
        pa.array([f"kind {i % 200}" for i in range(n_rows)]),
    ]
    columns = {f"c{i}": kinds[i % 3] for i in range(3000)}
    pq.write_table(pa.table({"text": [f"ticket {i % 12}" for i in range(n_rows)]} | columns), path)
    assert grown(path, tiny_model_folder, small_peak) < 700


def test_a_row_group_that_decodes_to_more_than_2_gib(
    small_peak: float, tiny_model_folder: Path, tmp_path: Path
) -> None:
    """20 texts of 1 MiB, in a dictionary page of their own, and 2,100 rows."""
    path = tmp_path / "in.parquet"
    some = long_texts(20, MIB)
    pq.write_table(pa.table({"text": pa.chunked_array([some] * 105)}), path, dictionary_pagesize_limit=64 * MIB)
    assert pq.read_metadata(path).num_row_groups == 1
    assert grown(path, tiny_model_folder, small_peak) < 330
