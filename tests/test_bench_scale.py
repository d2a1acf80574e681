"""The whole stage over files of different sizes, with next to no model; no clock is judged here."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.bench import scale
from pipeline.bench.scale import main
from pipeline.bench.stage_run import main as run_stage
from pipeline.bench.tiny import NullEngine, tiny_model
from pipeline.bench.workload import short_tickets
from pipeline.buckets import Bucket
from pipeline.continuations import first_token_tree


@pytest.mark.parametrize("engine", ["null", "tiny", "model"])
def test_a_run_labels_every_row_and_a_second_one_knows_all_scores(
    engine: str, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": range(30), "text": short_tickets(30)}), tmp_path / "in.parquet")
    assert run_stage([str(tmp_path), "--engine", engine, "--model", str(tiny_model_folder)]) == 0
    took = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert took["rows"] == 30
    assert (took["engine"] == "null") == (engine == "null")
    assert 0 <= took["outside_model_share"] <= 1
    for rate in ("seconds", "rows_per_s", "us_per_row", "peak_mib", "known_rows_per_s"):
        assert took[rate] > 0, rate
    first, again = (pq.read_table(tmp_path / name) for name in ("out.parquet", "again.parquet"))
    assert first.equals(again)
    assert first["id"].to_pylist() == list(range(30))
    assert first["label"].null_count == 0


def test_the_null_engine_gives_a_zero_for_every_edge() -> None:
    tree = first_token_tree(["a", "b"], [(1,), (2,)])
    bucket = Bucket(np.arange(3), np.arange(6), np.array([2, 2, 2]), 0)
    assert NullEngine(tree).score(bucket).tolist() == [[0.0, 0.0]] * 3


def test_the_tiny_model_is_the_same_every_time(tiny_model_folder: Path) -> None:
    one, other = (tiny_model(str(tiny_model_folder)) for _ in range(2))
    assert one.digest == other.digest
    assert one.max_context == 2048


def test_every_size_runs_with_no_model_and_with_a_tiny_one_then_tickets_with_a_real_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, str]] = []

    def note(texts: list[str], engine: str, model: str) -> dict[str, object] | int:
        asked.append((len(texts), engine))
        return 70 if engine == "tiny" else {"asked": engine}

    monkeypatch.setattr(scale, "run_stage", note)
    assert main(["--sizes", "10", "30", "--rows", "6", "--json", str(tmp_path / "figures.json")]) == 70
    assert asked == [(10, "null"), (10, "tiny"), (30, "null"), (30, "tiny"), (6, "model")]
    told = capsys.readouterr()
    assert told.err.startswith("error: 2 of 5 runs failed")
    summary = json.loads(told.out.splitlines()[-1])
    assert [run["asked"] for run in summary["runs"]] == ["null", "null", "model"], "a run that failed is left out"
    assert json.loads((tmp_path / "figures.json").read_text()) == summary


def test_a_model_that_is_not_there_is_one_line_from_each_run_and_the_documented_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback of the tokenizer's library, and exit code 0."""
    assert main(["--sizes", "10", "--rows", "0", "--model", str(tmp_path / "nothing")]) == 69
    told = capfd.readouterr().err
    assert told.count("error: cannot load the tokenizer of model") == 2
    assert "Traceback" not in told


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", str(tmp_path)]) == 73
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"error: --json {str(tmp_path)!r}: that is a folder",
        "hint: name a file in it",
    ]
    assert not captured.out


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--sizes", "many"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: argument --sizes: invalid int value: 'many'",
        "hint: see python -m pipeline.bench.scale --help",
    ]
