"""A run on Ray gives what a run on one machine gives: every column, every label, in order.

Most of it needs no Ray: units are planned, labelled and put together by the code that a run on Ray uses, one after the
other. Whole runs on Ray are few, on one cluster for all of them.
"""

import json
import logging
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.cluster_utils import Cluster
from ray.exceptions import AuthenticationError

from pipeline.classify import main
from pipeline.command.load import load_stage
from pipeline.command.one_file import OneFile
from pipeline.command.options import parse
from pipeline.command.stop_signals import Stopped
from pipeline.distributed.cluster import connected
from pipeline.distributed.plan import plan_units
from pipeline.distributed.pool import PoolSize
from pipeline.distributed.unit import Done, Failed, Job
from pipeline.distributed.worker import UnitWorker
from pipeline.errors import ReadError
from tests.hard_files import USABLE, bits, ticket_texts
from tests.in_units import FLAGS, InUnits, do_without_ray, job_of


def write(path: Path, n_rows: int, row_group_size: int, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{text} {first + row}" for row, text in enumerate(ticket_texts(n_rows))]
    table = pa.table({"id": range(first, first + n_rows), "text": texts})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def same(one: Path, other: Path) -> None:
    """All but the scores' last digits, which depend on a text's company."""
    first, second = pq.ParquetFile(one), pq.ParquetFile(other)
    assert first.schema_arrow.equals(second.schema_arrow, check_metadata=True)
    groups = [[file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] for file in (first, second)]
    assert groups[0] == groups[1]
    ours_all, theirs_all = ([file.read_row_group(i) for i in range(file.num_row_groups)] for file in (second, first))
    for i, field in enumerate(first.schema_arrow):
        ours, theirs = (
            pa.chunked_array([chunk for group in groups for chunk in group.column(i).chunks], field.type)
            for groups in (ours_all, theirs_all)
        )
        if field.name == "score":
            np.testing.assert_allclose(ours.to_numpy(), theirs.to_numpy(), atol=1e-5)
        else:
            assert bits(ours) == bits(theirs), field.name


@pytest.mark.parametrize("name", sorted(USABLE.keys() - {"names_duplicate"}))
def test_a_hard_file_in_units_of_one_row_group_is_the_file_of_one_run(
    name: str, tiny_model_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    USABLE[name](path)
    flags = ("--model", str(tiny_model_folder), *FLAGS, "--score-column", "score", "--status-column", "status")
    assert main([str(path), str(tmp_path / "whole.parquet"), *flags]) == 0
    in_units = InUnits(path, tmp_path / "parts.parquet", tiny_model_folder, "--unit-rows", "1", *flags[-4:])
    outcomes = in_units.work()
    assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
    in_units.assemble()
    same(tmp_path / "whole.parquet", tmp_path / "parts.parquet")


def test_the_first_rows_only_are_labelled_where_that_is_asked_for(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 20, 6)
    flags = ("--model", str(tiny_model_folder), *FLAGS, "--limit", "13")
    assert main([str(path), str(tmp_path / "whole.parquet"), *flags]) == 0
    in_units = InUnits(path, tmp_path / "parts.parquet", tiny_model_folder, "--unit-rows", "6", "--limit", "13")
    assert [unit.rows.n_rows for unit in in_units.units] == [6, 6, 1]
    in_units.work()
    in_units.assemble()
    same(tmp_path / "whole.parquet", tmp_path / "parts.parquet")


def test_a_part_that_is_there_is_not_made_again(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 20, 5)
    in_units = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5", "--verify", "4")
    first = in_units.work()
    states = [unit.part.local.stat() for unit in in_units.units]
    in_units.units[1].part.local.write_bytes(b"half a part")
    again = in_units.work()
    assert [outcome.was_there for outcome in again] == [True, False, True, True]
    kept = [(unit.part.local.stat().st_ino, unit.part.local.stat().st_mtime_ns) for unit in in_units.units]
    unchanged = [(state.st_ino, state.st_mtime_ns) == now for state, now in zip(states, kept, strict=True)]
    assert unchanged == [True, False, True, True]
    for one, other in zip(first, again, strict=True):
        assert (one.stats.rows, one.stats.labels, one.verdict) == (other.stats.rows, other.stats.labels, other.verdict)


@pytest.mark.parametrize("flags", [("--labels", "a,b"), ("--min-score", "0.9"), ("--score-column", "score")])
def test_a_part_made_in_another_way_is_made_again(
    flags: tuple[str, ...], tiny_model_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "in.parquet", 10, 5)
    InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5").work()
    other = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5", *flags).work()
    assert [outcome.was_there for outcome in other] == [False, False]


def test_a_part_of_a_file_that_changed_is_made_again(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 10, 5)
    InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5").work()
    write(path, 10, 5, first=7)
    again = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5").work()
    assert [outcome.was_there for outcome in again] == [False, False]


def test_a_file_that_changes_while_it_is_labelled_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 10, 5)
    in_units = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5")
    write(path, 10, 5, first=7)
    for outcome in in_units.work():
        assert isinstance(outcome, Failed)
        assert outcome.error.exit_code == 65
        assert "was changed" in str(outcome.error)


def test_another_version_of_the_program_on_a_worker_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 4, 4)
    job = job_of([str(path), str(tmp_path / "out"), "--model", str(tiny_model_folder)])
    error = UnitWorker(Job(job.options, job.settings, job.task, "0.0.1", job.folder)).load()
    assert error is not None
    assert error.exit_code == 69
    assert "0.0.1" in str(error)


def test_a_quantized_model_is_compared_before_the_first_unit(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 20, 5)
    flags = ("--unit-rows", "5", "--quantize", "int8", "--min-agreement")
    lenient = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, *flags, "0%")
    for outcomes in (lenient.work(), lenient.work()):  # the second time the parts are there
        assert [outcome.agreement.n_texts for outcome in outcomes] == [20] * 4
    strict = replace(lenient.job, options=replace(lenient.job.options, min_agreement=1.01))
    error = UnitWorker(strict).load()
    assert error is not None
    assert error.exit_code == 3


def test_rows_that_a_worker_tells_of_are_numbered_in_the_file(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "in.parquet", 20, 5)
    in_units = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5", "--verify", "20")
    wanted = []

    def wrong(sample: Any, model: Any) -> Any:
        from pipeline.verify import Verdict

        wanted.extend(sample.rows)
        return Verdict(1, 0, 1, (), 0.0, 1.0)

    monkeypatch.setattr("pipeline.verify.judge", wrong)
    in_units.work()
    assert sorted(wanted) == sorted([*range(5)] * 4)  # a unit counts from 0; its verdict is moved to the file's rows


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_damaged_part_is_removed_so_that_the_next_run_makes_it_again(
    is_gone: bool, tiny_model_folder: Path, tmp_path: Path
) -> None:
    """By its footer it is finished: every later run found it again, and failed again."""
    path = write(tmp_path / "in.parquet", 20, 5)
    assert main([str(path), str(tmp_path / "whole.parquet"), "--model", str(tiny_model_folder), *FLAGS]) == 0
    in_units = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5")
    in_units.work()
    part = in_units.units[1].part.local
    content = bytearray(part.read_bytes())
    content[40:60] = bytes(20)
    part.unlink() if is_gone else part.write_bytes(content)
    with pytest.raises(ReadError, match=r"part .* is damaged or gone"):
        in_units.assemble()
    assert [outcome.was_there for outcome in in_units.work()] == [True, False, True, True]
    in_units.assemble()
    same(tmp_path / "whole.parquet", tmp_path / "out.parquet")


def test_a_unit_leaves_nothing_in_the_temporary_folder_even_if_its_worker_is_killed(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that was ended within a unit left a folder there."""
    path, temporary, found = write(tmp_path / "in.parquet", 10, 5), tmp_path / "temporary", []
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("SQLITE_TMPDIR", str(temporary))
    label = OneFile.label

    def look(one: OneFile, n_verify: int) -> Any:
        sample = label(one, n_verify)
        found.append([*temporary.iterdir()])
        return sample

    monkeypatch.setattr(OneFile, "label", look)
    InUnits(path, tmp_path / "out.parquet", tiny_model_folder, "--unit-rows", "5").work()
    assert found == [[], []]


def test_a_panic_of_a_library_is_a_failure_of_its_unit_and_quotes_nothing(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):  # as pyo3's
        pass

    def panic(*arguments: Any) -> None:
        raise Panic("the ticket of Xenophanes")

    in_units = InUnits(write(tmp_path / "in.parquet", 4, 4), tmp_path / "out.parquet", tiny_model_folder)
    monkeypatch.setattr(OneFile, "label", panic)
    (outcome,) = in_units.work()
    assert isinstance(outcome, Failed)
    assert outcome.again
    assert outcome.error.exit_code == 70
    assert "Panic at" in str(outcome.error)
    assert "Xenophanes" not in str(outcome.error)


def test_batch_calibration_costs_nothing_where_the_part_is_there(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", 20, 5)
    flags = ("--unit-rows", "5", "--calibration", "batch", "--score-column", "score")
    assert main([str(path), str(tmp_path / "whole.parquet"), "--model", str(tiny_model_folder), *FLAGS, *flags]) == 0
    in_units = InUnits(path, tmp_path / "out.parquet", tiny_model_folder, *flags)
    assert [outcome.stats.calibration_texts for outcome in in_units.work()] == [20] * 4
    again = in_units.work()
    assert [(outcome.was_there, outcome.stats.calibration_texts) for outcome in again] == [(True, 0)] * 4
    in_units.assemble()
    same(tmp_path / "whole.parquet", tmp_path / "out.parquet")


def test_an_output_that_may_not_be_replaced_is_not_tried_again(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It took 21 seconds, for the pauses between four attempts."""
    in_units = InUnits(write(tmp_path / "in.parquet", 4, 4), tmp_path / "out.parquet", tiny_model_folder)
    (unit,) = in_units.units
    in_units.units = [replace(unit, file=replace(unit.file, recipe="another", output_state=unit.file.input_state))]
    (outcome,) = in_units.work()
    assert isinstance(outcome, Failed)
    assert not outcome.again
    assert outcome.error.exit_code == 73
    assert "exists already" in str(outcome.error)


def test_parts_of_one_file_do_not_lie_among_those_of_another(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The folder of one file's parts, which is removed when that file is complete, held those of others."""
    in_units = InUnits(write(tmp_path / "in.parquet", 4, 4), tmp_path / "out.parquet", tiny_model_folder)
    names = ("a.parquet", "a.parquet.parts/b.parquet", "a.parquet.parts/b.parquet.parts/c.parquet")
    files = [replace(in_units.units[0].file, name=name, group_rows=(4,)) for name in names]
    units = plan_units(files, in_units.output, in_units.job.options)
    folders = [units[name][0].part.local.parent for name in names]
    assert not [(one, other) for one in folders for other in folders if one in other.parents]


def test_a_place_for_parts_that_is_none_is_refused_before_ray_is_started(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray.init", None)
    path = write(tmp_path / "in.parquet", 4, 4)
    (tmp_path / ".out.parquet.parts").touch()
    assert main([str(path), str(tmp_path / "out.parquet"), *ray_flags("auto", tiny_model_folder)]) == 73
    assert "for unfinished parts cannot be created" in capsys.readouterr().err
    assert sorted(found.name for found in tmp_path.iterdir()) == [".out.parquet.parts", "in.parquet"]


def test_a_start_of_ray_that_is_interrupted_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**how: Any) -> None:
        raise Stopped(signal.SIGINT)

    n_shutdowns = []
    monkeypatch.setattr("ray.init", interrupted)
    monkeypatch.setattr("ray.shutdown", lambda: n_shutdowns.append(1))
    with pytest.raises(Stopped), connected("local", lambda: None):
        pass
    assert n_shutdowns == [1]


def test_of_many_files_metrics_and_what_is_left_behind_are_those_of_a_run_without_ray(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures came in the order of chance, and where all files failed no word said by which model."""
    do_without_ray(monkeypatch)
    for number, name in enumerate(("a.parquet", "b/c.parquet", "d.parquet")):
        write(tmp_path / "in" / name, 9, 4, first=10 * number)
    flags = ["--model", str(tiny_model_folder), *FLAGS, "--calibration", "batch", "--metrics", str(tmp_path / "told")]

    def told(output: str, exit_code: int, *more: str) -> dict[str, Any]:
        """Metrics, but for what was done by whom and how fast."""
        assert main([str(tmp_path / "in"), str(tmp_path / output), *flags, *more]) == exit_code
        metrics = json.loads((tmp_path / "told").read_text().replace(str(tmp_path / output), "OUTPUT"))
        of_work = ("workers", "seconds", "peak_rss_mib", "texts", "known_texts", "calibration_texts", "buckets")
        of_passes = ("padding_share", "padded_tokens", "fed_tokens", "rows_per_second", "tokens_per_second")
        return {key: value for key, value in metrics.items() if key not in (*of_work, *of_passes)}

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".parquet_classify.scores").touch()  # of an earlier run without Ray
    assert told("out", 0, "--ray") == told("plain", 0)
    places = (tmp_path / "out", tmp_path / "plain")
    ours, theirs = (sorted(str(path.relative_to(place)) for path in place.rglob("*")) for place in places)
    assert ours == theirs
    other = ("--labels", "x,y")
    failed = told("out", 73, "--ray", *other)
    assert failed == told("plain", 73, *other)
    assert [failure["input"][-9:] for failure in failed["failures"]] == ["a.parquet", "c.parquet", "d.parquet"]


def test_scores_that_a_run_without_ray_has_kept_go_when_the_output_is_complete(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_without_ray(monkeypatch)
    path = write(tmp_path / "in.parquet", 4, 4)
    (tmp_path / ".out.parquet.scores").touch()
    assert main([str(path), str(tmp_path / "out.parquet"), "--model", str(tiny_model_folder), *FLAGS, "--ray"]) == 0
    assert sorted(found.name for found in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_a_warning_of_the_model_that_loads_is_told_with_the_units(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a slower engine took the place of one that does not fit was never told."""
    load = load_stage

    def load_with_a_warning(*arguments: Any, **more: Any) -> Any:
        logging.getLogger("pipeline.engine.select").warning("trying a slower one")
        return load(*arguments, **more)

    monkeypatch.setattr("pipeline.distributed.worker.load_stage", load_with_a_warning)
    (outcome,) = InUnits(write(tmp_path / "in.parquet", 4, 4), tmp_path / "out.parquet", tiny_model_folder).work()
    assert outcome.warnings == ("trying a slower one",)


# Whole runs, on one cluster.


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20})
    yield cluster.address
    cluster.shutdown()


def ray_flags(address: str, model: Path, *flags: str) -> list[str]:
    return ["--model", str(model), *FLAGS, "--ray", address, "--workers", "2", "--cpus-per-worker", "1", *flags]


def test_a_file_of_several_row_groups_on_ray_is_the_file_of_one_run(
    address: str, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, added = write(tmp_path / "in.parquet", 60, 7), ("--score-column", "score", "--status-column", "status")
    plain, metrics = tmp_path / "plain.parquet", tmp_path / "metrics.json"
    assert main([str(path), str(plain), "--model", str(tiny_model_folder), *FLAGS, *added]) == 0
    capsys.readouterr()
    more = (*added, "--unit-rows", "20", "--verify", "6", "--metrics", str(metrics))
    assert main([str(path), str(tmp_path / "ray.parquet"), *ray_flags(address, tiny_model_folder, *more)]) == 0
    errors = capsys.readouterr().err
    assert "4 units of about 20 rows" in errors
    assert "2 workers, each with 1 CPU\n" in errors
    assert "model, of all workers together" in errors
    assert "MiB at most, without the workers" in errors
    same(plain, tmp_path / "ray.parquet")
    told = json.loads(metrics.read_text())
    assert (told["rows"], told["workers"]) == (60, 2)
    assert told["tokens_per_second"] == pytest.approx(told["fed_tokens"] / told["seconds"]["run"], rel=0.01)
    assert sum(told["label_rows"].values()) == 60
    assert told["verify"]["n_texts"] == told["verify"]["n_same"] == 6
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        "in.parquet", "metrics.json", "plain.parquet", "ray.parquet"
    ]  # fmt: skip


def test_a_folder_on_ray_is_the_folder_of_one_run_and_is_not_done_twice(
    address: str, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plain, output = tmp_path / "in", tmp_path / "plain", tmp_path / "out"
    for number in range(40):
        name = f"day={number % 3}/{number:02}.parquet"
        write(folder / name, (7 * number) % 31, 10, first=100 * number)  # one has no row
    huge = write(folder / "huge.parquet", 120, 1000)
    broken = folder / "broken.parquet"
    broken.write_bytes(huge.read_bytes()[:-50])
    assert main([str(folder), str(plain), "--model", str(tiny_model_folder), *FLAGS]) == 65
    capsys.readouterr()
    flags = ray_flags(address, tiny_model_folder, "--unit-rows", "10", "--metrics", str(tmp_path / "metrics.json"))
    assert main([str(folder), str(output), *flags]) == 65
    assert "broken.parquet" in capsys.readouterr().err
    assert json.loads((tmp_path / "metrics.json").read_text())["files"] == {"done": 41, "skipped": 0, "failed": 1}
    names = sorted(str(path.relative_to(plain)) for path in plain.rglob("*.parquet"))
    assert names == sorted(str(path.relative_to(output)) for path in output.rglob("*.parquet"))
    assert len(names) == 41
    for name in names:
        same(plain / name, output / name)
    assert not [*output.rglob("*.parts")]
    before = {name: (output / name).stat().st_ino for name in names}
    broken.unlink()
    write(folder / "later.parquet", 5, 5)
    assert main([str(folder), str(output), *flags]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["files"] == {"done": 1, "skipped": 41, "failed": 0}
    assert before == {name: (output / name).stat().st_ino for name in names}
    assert main([str(folder), str(output), "--model", str(tiny_model_folder), *FLAGS]) == 0  # the two share a manifest
    assert before == {name: (output / name).stat().st_ino for name in names}


def test_a_model_that_is_not_there_ends_a_run_on_ray_as_any_other(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "in.parquet", 4, 4)
    assert main([str(path), str(tmp_path / "out.parquet"), *ray_flags(address, tmp_path / "no-model")]) == 69
    errors = capsys.readouterr().err
    assert "no-model" in errors
    assert "Traceback" not in errors
    assert [found.name for found in tmp_path.iterdir()] == ["in.parquet"]


def test_rows_without_finite_scores_are_counted_by_the_file(
    address: str, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file, save_file

    model = shutil.copytree(tiny_model_folder, tmp_path / "nan")
    weights = load_file(model / "model.safetensors")
    save_file({name: values * np.float32("nan") for name, values in weights.items()}, model / "model.safetensors")
    path = write(tmp_path / "in.parquet", 12, 4)
    flags = ("--unit-rows", "4", "--engine", "single", "--calibration", "none")
    output = tmp_path / "out.parquet"
    assert main([str(path), str(output), *ray_flags(address, model, *flags, "--max-failed", "11")]) == 3
    assert "12 of 12 rows have no finite scores" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    "flags", [("--workers", "2"), ("--cpus-per-worker", "1"), ("--gpus-per-worker", "1"), ("--ray", "--explain", "3")]
)
def test_flags_that_contradict_each_other_are_refused(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "in.parquet", 4, 4)
    assert main([str(path), str(tmp_path / "out.parquet"), *flags]) == 2
    assert "--ray" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "3,2", "1,x", "-1", ""])
def test_a_number_of_workers_that_is_none_is_refused(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "in.parquet"), str(tmp_path / "out"), "--ray", f"--workers={value}"]) == 2
    assert "--workers" in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_told_in_one_line(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "in.parquet", 4, 4)
    flags = ray_flags("127.0.0.1:1", tiny_model_folder)
    assert main([str(path), str(tmp_path / "out.parquet"), *flags]) == 2
    errors = capsys.readouterr().err
    assert "--ray '127.0.0.1:1'" in errors
    assert "Traceback" not in errors
    assert [found.name for found in tmp_path.iterdir()] == ["in.parquet"]


def test_a_cluster_whose_token_is_not_there_is_told_in_one_line(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It passed for a fault of this program."""

    def refuse(**how: Any) -> None:
        raise AuthenticationError("no authentication token was found")

    monkeypatch.setattr("ray.init", refuse)
    path = write(tmp_path / "in.parquet", 4, 4)
    assert main([str(path), str(tmp_path / "out.parquet"), *ray_flags("auto", tiny_model_folder)]) == 2
    assert "--ray 'auto': AuthenticationError: no authentication token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["--ray", "in", "out"], "local"),
        (["in", "--ray", "out"], "local"),
        (["in", "out", "--ray"], "local"),
        (["--ray", "--limit", "3", "in", "out"], "local"),
        (["--ray", "s3://exports/11", "out"], "local"),
        (["--ray", "auto", "in", "out"], "auto"),
        (["--ray", "head.example:6379", "in", "out"], "head.example:6379"),
        (["--ray=[::1]:6379", "in", "out"], "[::1]:6379"),
    ],
)
def test_behind_the_flag_goes_an_address_or_nothing(arguments: list[str], address: str) -> None:
    """``--ray in.parquet out.parquet`` took the input for the address of a cluster."""
    options = parse(arguments)
    assert options is not None
    assert options.ray == address


@pytest.mark.parametrize("arguments", [["--ray=head"], ["--ray="], ["--ray=s3://exports/11"], ["--ray", "head"]])
def test_what_is_no_address_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["in.parquet", "out.parquet", *arguments]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_more_workers_than_units_are_told(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    do_without_ray(monkeypatch)
    monkeypatch.setattr("pipeline.distributed.run.pool_size", lambda options: PoolSize(2, 2, 1, 0))
    path = write(tmp_path / "in.parquet", 8, 4)
    flags = ["--model", str(tiny_model_folder), *FLAGS, "--ray", "--overwrite"]
    for unit_rows, is_told in (("8", True), ("4", False)):
        assert main([str(path), str(tmp_path / "out.parquet"), *flags, "--unit-rows", unit_rows]) == 0
        assert ("there is work for 1 of them only" in capsys.readouterr().err) == is_told


def test_a_run_without_ray_installed_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pipeline.distributed.run", raising=False)
    monkeypatch.delitem(sys.modules, "pipeline.distributed.pool", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write(tmp_path / "in.parquet", 4, 4)
    assert main([str(path), str(tmp_path / "out.parquet"), "--ray"]) == 2
    errors = capsys.readouterr().err
    assert "Ray is not installed" in errors
    assert "pip install" in errors
    assert not (tmp_path / "out.parquet").exists()
