"""What a unit costs beside its rows, without the Ray that it is about; no clock is judged here."""

import json
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench import workers
from pipeline.bench.units import IdleWorker, main, run_units, units_of_one_file
from pipeline.distributed.unit import Done


class PoolOfThisProcess:
    """One worker, without Ray."""

    def __init__(self, make: tuple[type[Any], tuple[Any, ...]] = (IdleWorker, ()), *of_ray: object) -> None:
        self.worker = make[0](*make[1])

    def run(self, units: Iterable[Any], check: Callable[[], None]) -> Iterator[tuple[Any, Any]]:
        assert self.worker.load() is None
        for unit in units:
            outcome = self.worker.work(unit)
            assert isinstance(outcome, Done)
            assert not self.worker.may_try_again(outcome)
            yield unit, outcome

    def __enter__(self) -> "PoolOfThisProcess":
        return self

    def __exit__(self, *of_block: object) -> None:
        pass


def test_a_unit_is_as_long_in_a_file_of_many_row_groups_as_in_one_of_few() -> None:
    """Each held the number of rows of every row group: 30 of a unit's 31 kB, in a file of 10,000."""
    few, many = (len(pickle.dumps(units_of_one_file(n_units)[-1])) for n_units in (10, 10_000))
    assert many < few + 50


@pytest.mark.parametrize("n_units", [1, 2, 100])
def test_memory_is_looked_at_while_units_are_done(n_units: int) -> None:
    took = run_units(PoolOfThisProcess(), units_of_one_file(n_units))  # type: ignore[arg-type]
    assert list(took["resident_mib"])[-1] == "100%"
    assert all(mib > 1 for mib in took["resident_mib"].values())
    assert took["us_per_unit"] >= 0


def test_what_was_measured_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.distributed.cluster.connected", lambda *of_ray: nullcontext())
    monkeypatch.setattr("pipeline.distributed.pool.Pool", PoolOfThisProcess)
    assert main(["--units", "30", "--json", str(tmp_path / "figures.json")]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["units"], summary["workers"]) == (30, 2)
    assert list(summary["resident_mib"]) == ["10%", "50%", "100%"]
    assert json.loads((tmp_path / "figures.json").read_text()) == summary


@pytest.mark.parametrize("flags", [("--units", "0"), ("--workers", "0")])
def test_no_units_and_no_workers_are_refused(flags: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        main(flags)


def test_workers_and_process_label_the_same_rows_in_turns(
    monkeypatch: pytest.MonkeyPatch,
    tiny_model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pipeline.distributed.cluster.connected", lambda *of_ray: nullcontext())
    monkeypatch.setattr("pipeline.distributed.pool.Pool", PoolOfThisProcess)
    flags = [
        "--rows",
        "24",
        "--turns",
        "2",
        "--model",
        str(tiny_model_folder),
        "--json",
        str(tmp_path / "figures.json"),
    ]
    assert workers.main(flags) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["n_rows"], summary["n_equal"]) == (24, 24)
    low, high = summary["ratio"][1:]
    assert 0 < low <= summary["ratio"][0] <= high
    assert json.loads((tmp_path / "figures.json").read_text()) == summary


@pytest.mark.parametrize("command", [main, workers.main])
def test_without_ray_there_is_nothing_to_measure(
    command: Callable[[list[str]], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command([]) == 2
    assert capsys.readouterr().err.startswith("error: Ray is not installed\nhint: pip install ")


@pytest.mark.parametrize("flags", [("--rows", "3"), ("--turns", "0"), ("--units", "0")])
def test_a_turn_has_a_row_for_each_unit(flags: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        workers.main(flags)
