"""The label-quality measurements' own arithmetic, on a tiny model and invented texts; no quality is judged here."""

import json
import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from pipeline.bench.label_quality import main
from pipeline.bench.quality_data import SUBSETS, Subset, load_subset
from pipeline.bench.quality_steps import Measuring, prompts, unlisted
from pipeline.engine.load import load_model
from pipeline.errors import InputError, InputMissingError
from pipeline.task_file import load_task

TASKS = Path(__file__).parents[1] / "pipeline" / "bench" / "quality_tasks"


def invented_text(label: str, number: int) -> str:
    return f"{label[:9].lower()} {' '.join(random.Random(f'{label} {number}').choices('abcdefgh', k=5))} {number}"


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    banking = [
        {"text": invented_text(label, number), "label": label, "split": "test" if number < 3 else "train"}
        for label in load_task(TASKS / "banking77.toml").label_names
        for number in range(9)
    ]
    customers = [
        {"text": invented_text(label, number), "label": label, "domain": name.removeprefix("dstc11_")}
        for name in SUBSETS
        if name.startswith("dstc11")
        for label in load_task(TASKS / f"{name}.toml").label_names
        for number in range(20)
    ]
    pl.DataFrame(banking).write_parquet(tmp_path / "banking77.parquet")
    pl.DataFrame(customers).write_parquet(tmp_path / "dstc11_customer_service.parquet")
    return tmp_path


@pytest.mark.parametrize("name", SUBSETS)
def test_no_text_is_trained_and_tested_on_and_every_label_has_rows_of_both(data_folder: Path, name: str) -> None:
    subset = load_subset(data_folder, name, 10_000)
    assert not set(subset.train["text"]) & set(subset.test["text"])
    assert set(subset.train["label"]) == set(subset.test["label"]) == set(subset.task.label_names)
    assert subset.shots(2).group_by("label").len()["len"].to_list() == [2] * len(subset.task.labels)


def test_banking_keeps_its_own_split(data_folder: Path) -> None:
    subset = load_subset(data_folder, "banking77", 10_000)
    assert (len(subset.train), len(subset.test)) == (77 * 6, 77 * 3)


def test_a_text_that_stands_in_both_parts_is_not_tested_on(data_folder: Path) -> None:
    path = data_folder / "banking77.parquet"
    rows = pl.read_parquet(path)
    twin = rows.filter(pl.col("split") == "train").head(1).with_columns(split=pl.lit("test"))
    pl.concat([rows, twin]).write_parquet(path)
    assert len(load_subset(data_folder, "banking77", 10_000).test) == 77 * 3


def test_fewer_rows_are_the_first_of_the_same_order(data_folder: Path) -> None:
    few, all_rows = (load_subset(data_folder, "dstc11_banking", n_rows).test for n_rows in (7, 1000))
    assert len(few) == 7
    assert few.equals(all_rows.head(7))


def test_a_folder_without_the_files_or_without_a_label_says_what_it_must_hold(data_folder: Path) -> None:
    path = data_folder / "banking77.parquet"
    pl.read_parquet(path).filter(pl.col("label") != "change_pin").write_parquet(path)
    with pytest.raises(InputError, match=r"no row to train on for label 'change_pin' of banking5"):
        load_subset(data_folder, "banking5", 10)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"banking77\.parquet' cannot be read"):
        load_subset(data_folder, "banking5", 10)
    path.unlink()
    with pytest.raises(InputMissingError, match=r"banking77\.parquet' does not exist") as caught:
        load_subset(data_folder, "banking5", 10)
    assert "dstc11_customer_service.parquet" in caught.value.hint


@pytest.mark.parametrize("name", SUBSETS)
def test_the_steps_lead_from_bare_names_to_the_prompt_of_the_task(name: str) -> None:
    task = load_task(TASKS / f"{name}.toml")
    steps = [step for _, step in prompts(task)]
    sentence, last = steps[0], steps[-1]
    assert all(label in sentence.system_message() for label in task.label_names)
    assert all(description not in sentence.system_message() for _, description in task.labels)
    assert sentence.user_message("hello") == "hello\nCategory:"
    assert all(description in last.system_message() for _, description in task.labels)
    assert last.user_message("hello") == task.user_message("hello")
    assert not any(answer in unlisted(last).system_message() for answer in task.label_answers)
    assert len({(step.system_message(), step.user, step.answer, step.label_answers) for step in steps}) == len(steps)


def test_every_label_has_a_description_and_an_answer_in_words() -> None:
    for name in SUBSETS:
        task = load_task(TASKS / f"{name}.toml")
        assert all(description for _, description in task.labels), name
        assert all(answer and "_" not in answer for answer in task.label_answers), name
        assert len(set(task.label_answers)) == len(task.labels), name


def test_it_prints_a_table_and_writes_the_same_figures(
    data_folder: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = data_folder / "quality.json"
    flags = ["--rows", "12", "--subset", "dstc11_banking", "--model", str(tiny_model_folder), "--json", str(report)]
    assert main([str(data_folder), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(report.read_text(encoding="utf-8"))
    (subset,) = figures["subsets"]
    assert (subset["subset"], subset["labels"], subset["rows"]) == ("dstc11_banking", 6, 12)
    names = [step["name"] for step in subset["steps"]]
    assert names[0] == "one sentence, raw"
    assert sum(name.startswith("head, ") for name in names) == 3
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")][2:] == [f"| {name}" for name in names]
    for step in subset["steps"]:
        for value, low, high in (step["accuracy"], step["macro_f1"]):
            assert 0 <= low <= high <= 1
            assert 0 <= value <= 1
        assert step["items_per_s"] > 0
    fed = {step["name"]: step["fed_per_row"] for step in subset["steps"]}
    assert fed["+ prefilled answer"] > fed["+ constrained scoring"] >= min(fed.values())
    assert len(subset["order_changes"]) == len(subset["order_changes_listed"]) == 5
    assert max(subset["order_changes"]) == 0  # what the prompt does not list has no order
    assert any("in another order, 5 times" in line for line in lines)


def test_a_head_on_all_rows_comes_last_if_it_is_wanted(data_folder: Path, tiny_model_folder: Path) -> None:
    subset = load_subset(data_folder, "banking5", 5)
    steps = [*Measuring(subset, load_model(str(tiny_model_folder)), print).head_steps(all_rows=True)]
    assert [step.name for step in steps] == [
        "head, 4 rows a label (20 in all)",
        "head, 10 rows a label where there are (30 in all)",
        "head, 24 rows a label where there are (30 in all)",
        "head, all rows (30 in all)",
    ]
    assert steps[-1].accuracy == steps[-2].accuracy


def test_more_labels_than_examples_make_sense_for_get_none(data_folder: Path, tiny_model_folder: Path) -> None:
    subset = load_subset(data_folder, "banking77", 20)
    task = replace(subset.task, labels=subset.task.labels[:21], answers=subset.task.answers[:21])
    rows = (part.filter(pl.col("label").is_in(task.label_names)) for part in (subset.train, subset.test))
    steps = Measuring(Subset(subset.name, task, *rows), load_model(str(tiny_model_folder)), print).prompt_steps()
    assert not any("example" in step.name for step in steps)


def test_a_folder_that_is_not_there_is_one_line_and_the_documented_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothing")]) == 66
    assert capsys.readouterr().err.startswith("error: ")
