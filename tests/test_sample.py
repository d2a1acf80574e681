"""The command line that draws rows worth labelling, on a tiny model."""

import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.sample import main
from pipeline.tune import main as tune
from tests.test_tune import SECRET, TASK, WORDS, model, rows
from tests.tiny_classifiers import CLASSES, save_tiny_classifier

__all__ = ["model"]


@pytest.fixture
def draw(tmp_path: Path, model: Path) -> Any:
    (tmp_path / "t.toml").write_text(TASK)

    def run(*flags: Any, table: pa.Table | None = None, output: str = "drawn.parquet") -> int:
        pq.write_table(rows(120) if table is None else table, tmp_path / "in.parquet")
        given = [tmp_path / "in.parquet", "-o", tmp_path / output, "--task", tmp_path / "t.toml", "--model", model]
        return main([str(flag) for flag in [*given, "--truth-column", "mine", *flags]])

    run.folder = tmp_path  # type: ignore[attr-defined]
    return run


def test_rows_come_as_they_are_with_an_empty_column_behind_them(draw, capsys):
    assert draw("-n", 12) == 0
    drawn = pq.read_table(draw.folder / "drawn.parquet")
    assert drawn.column_names == ["id", "body", "truth", "mine", "sample_row", "sample_label", "sample_score"]
    assert drawn["mine"].null_count == len(drawn) == 12
    assert len(set(drawn["sample_row"].to_pylist())) == 12
    source = rows(120)
    assert drawn.select(["id", "body", "truth"]).equals(source.take(drawn["sample_row"]))
    assert set(drawn["sample_label"].to_pylist()) <= set(WORDS)
    told = capsys.readouterr()
    assert "12 of 120 texts written" in told.out and SECRET not in told.out + told.err


def test_the_same_seed_draws_the_same_rows(draw):
    drawn = []
    for seed in (1, 1, 2):
        assert draw("-n", 5, "--seed", seed, "--max-rows", 40, "--overwrite") == 0
        drawn.append(pq.read_table(draw.folder / "drawn.parquet")["sample_row"].to_pylist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_text_that_stands_twice_and_a_blank_one_are_drawn_once_and_never(draw):
    table = pa.table({"body": ["refund now", "refund now", None, " ", "login fails"]})
    assert draw("-n", 5, table=table) == 0
    assert sorted(pq.read_table(draw.folder / "drawn.parquet")["sample_row"].to_pylist()) == [0, 4]


def test_a_csv_file_can_be_filled_in_and_learnt_from(draw, model, capsys):
    assert draw("-n", 45, output="drawn.csv") == 0
    path = draw.folder / "drawn.csv"
    table = pyarrow.csv.read_csv(path)
    filled = table.set_column(table.column_names.index("mine"), "mine", table["truth"])
    pyarrow.csv.write_csv(filled, path)
    flags = [path, "--truth", "mine", "--task", draw.folder / "t.toml", "--model", model, "--head-only"]
    assert tune([str(flag) for flag in [*flags, "-o", draw.folder / "t2.toml"]]) == 0
    assert "45 labelled texts in 45 rows" in capsys.readouterr().out


def test_columns_that_csv_has_no_form_for_are_left_out_and_told(draw, capsys):
    table = rows(30).append_column("tags", pa.array([["a"]] * 30)).append_column("blob", pa.array([b"a"] * 30))
    assert draw("-n", 3, table=table, output="drawn.csv") == 0
    names = pyarrow.csv.read_csv(draw.folder / "drawn.csv").column_names
    assert names == ["id", "body", "truth", "mine", "sample_row", "sample_label", "sample_score"]
    assert "CSV has no form for these columns, which are left out: 'tags', 'blob'" in capsys.readouterr().err


def test_a_column_of_the_truth_that_is_there_already_asks_for_another_name(draw, capsys):
    assert draw("--truth-column", "truth") == 65
    assert "hint: give the empty column another name by --truth-column" in capsys.readouterr().err


def test_the_next_step_works_as_it_is_told(draw, capsys):
    table = rows(45)
    (draw.folder / "a b.toml").write_text(TASK.replace('text = ["body"]\n', ""))
    (draw.folder / "tuned.toml").write_text("mine")
    flags = ["--task", draw.folder / "a b.toml", "--text-column", "body", "--max-tokens", 300]
    assert draw("-n", 45, *flags, table=table) == 0
    step = shlex.split(capsys.readouterr().out.partition("then: ")[2])
    assert step[:3] == ["python", "-m", "pipeline.tune"] and step[-2:] == ["-o", str(draw.folder / "tuned2.toml")]
    drawn = pq.read_table(draw.folder / "drawn.parquet")
    pq.write_table(drawn.set_column(3, "mine", drawn["truth"]), draw.folder / "drawn.parquet")
    assert tune([*step[3:], "--head-only"]) == 0
    assert (draw.folder / "tuned2.head.safetensors").exists()


def test_texts_for_a_classifier_are_drawn_too(draw):
    classifier = save_tiny_classifier(draw.folder / "classifier", "bert")
    (draw.folder / "t.toml").write_text("[labels]\n" + "".join(f'{name} = ""\n' for name in CLASSES))
    assert draw("-n", 7, "--model", classifier) == 0
    assert set(pq.read_table(draw.folder / "drawn.parquet")["sample_label"].to_pylist()) <= set(CLASSES)


def test_with_several_labels_the_empty_column_holds_lists(draw):
    (draw.folder / "t.toml").write_text('mode = "multi"\n' + TASK)
    assert draw("-n", 4) == 0
    assert pq.read_schema(draw.folder / "drawn.parquet").field("mine").type == pa.list_(pa.string())


@pytest.mark.parametrize(
    ("extra", "output", "flags", "exit_code", "message"),
    [
        ({}, "x.xlsx", (), 2, "is called neither .parquet nor .csv"),
        ({}, "x.csv", ("-o", "-"), 2, "-o '-' is no file"),
        ({"mine": ["a"] * 120}, "x.csv", (), 65, "already has a column 'mine'"),
        ({"sample_row": [1] * 120}, "x.parquet", (), 65, "already has a column 'sample_row'"),
        ({}, "x.parquet", ("--truth-column", "sample_row"), 2, "is no name for it"),
        ({}, "in.parquet", ("--overwrite",), 73, "is the input"),
        ({}, "x.parquet", ("-n", "0"), 2, "-n"),
        ({}, "x.parquet", ("--text-column", "none"), 65, "text column 'none' is not in the input"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(draw, capsys, extra, output, flags, exit_code, message):
    table = rows(120)
    for name, values in extra.items():
        table = table.append_column(name, pa.array(values))
    assert draw(*flags, table=table, output=output) == exit_code
    told = capsys.readouterr().err
    assert message in told and told.startswith("error: ")
    assert {path.name for path in draw.folder.iterdir()} == {"t.toml", "in.parquet"}


def test_an_input_without_any_text_is_told(draw, capsys):
    assert draw(table=pa.table({"body": pa.array([None, " "], pa.string())})) == 65
    assert "has no text to label" in capsys.readouterr().err


def test_a_missing_input_is_told(draw, model):
    assert main([str(draw.folder / "none.parquet"), "-o", str(draw.folder / "x.csv")]) == 66
