import pyarrow as pa
import pytest

from pipeline.errors import InputError, InputMissingError
from pipeline.parquet.location import locate
from pipeline.task_file import task_from_toml
from pipeline.tuning.rows import DistinctTexts, Table, distinct_texts, open_table

TASK = task_from_toml('text = ["text"]\n[labels]\na = ""\nb = ""\n', "t")
MULTI = task_from_toml('text = ["text"]\nmode = "multi"\n[labels]\na = ""\nb = ""\n', "t")


def read(table: pa.Table, *, max_texts: int = 100, seed: int = 0, truth: str | None = "truth", **how) -> DistinctTexts:
    return distinct_texts(
        Table(table.schema, iter(table.to_batches(max_chunksize=3))),
        how.get("task", TASK),
        max_texts=max_texts,
        seed=seed,
        truth_column=truth,
    )


def test_rows_of_one_text_fall_together_and_those_that_disagree_are_left_out():
    texts = ["one", "two", "one", None, "two", "three", " "]
    found = read(pa.table({"text": texts, "truth": ["a", "a", "a", "b", "b", None, "a"]}))
    assert (found.texts, found.rows.tolist(), found.truth.tolist()) == (("one",), [0], [[True, False]])
    assert (found.n_rows, found.n_left_out, found.n_conflicts) == (4, 3, 1)


def test_a_sample_is_the_same_whatever_the_order_of_rows_and_another_with_another_seed():
    table = pa.table({"text": [f"text {n}" for n in range(200)] * 2, "truth": ["a", "b"] * 200})
    first = read(table, max_texts=20)
    turned = read(table.take(pa.array(range(399, -1, -1))), max_texts=20)
    assert len(first.texts) == 20 and set(first.texts) == set(turned.texts)
    assert set(first.texts) != set(read(table, max_texts=20, seed=1).texts)
    assert first.rows.tolist() == sorted(int(text.split()[1]) for text in first.texts)


def test_a_conflict_is_found_wherever_its_rows_stand_also_in_a_sample():
    table = pa.table({"text": [f"text {n}" for n in range(50)] * 2, "truth": ["a"] * 50 + ["b"] * 50})
    found = read(table, max_texts=10)
    assert (len(found.texts), found.n_conflicts) == (0, 10)


def test_lists_are_sets_of_labels_and_a_string_is_one():
    lists = pa.array([["b", "a"], [], None, ["a", None]], pa.list_(pa.string()))
    found = read(pa.table({"text": ["1", "2", "3", "4"], "truth": lists}), task=MULTI)
    assert found.truth.tolist() == [[True, True], [False, False], [True, False]]
    strings = pa.array(["a", "b"]).dictionary_encode()
    assert read(pa.table({"text": ["1", "2"], "truth": strings}), task=MULTI).truth.tolist() == [[1, 0], [0, 1]]


def test_without_a_column_of_labels_every_text_is_kept():
    found = read(pa.table({"text": ["x", "y", "x"]}), truth=None)
    assert found.texts == ("x", "y") and found.truth.shape == (2, 0)


def test_lists_for_a_task_of_one_label_are_refused():
    with pytest.raises(InputError, match="holds lists of labels, and the task gives one label a row") as error:
        read(pa.table({"text": ["1"], "truth": [["a"]]}))
    assert 'mode = "multi"' in error.value.hint


def test_a_csv_file_is_strings_and_a_damaged_one_is_told_without_its_content(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('id,text,truth\n1,"a, b",a\n2,007,\n')
    with open_table(locate(str(path))) as table:
        found = distinct_texts(table, TASK, max_texts=9, seed=0, truth_column="truth")
    assert found.texts == ("a, b",) and found.n_left_out == 1
    path.write_text("id,text\n1,secret,more,fields\n")
    with pytest.raises(InputError, match=r"^line 2 of input") as error, open_table(locate(str(path))):
        pass
    assert "secret" not in str(error.value)


def test_a_csv_file_that_is_missing_or_a_folder_is_told(tmp_path):
    with pytest.raises(InputMissingError, match="does not exist"), open_table(locate(str(tmp_path / "none.csv"))):
        pass
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"), open_table(locate(str(tmp_path / "folder.csv"))):
        pass


def test_a_truth_column_in_other_case_is_suggested():
    with pytest.raises(InputError) as error:
        read(pa.table({"text": ["1"], "truth": ["a"]}), truth="Truth")
    assert error.value.hint == "did you mean 'truth'?"


def test_values_that_are_no_labels_are_told_by_row_and_whether_only_blanks_or_case_differ():
    truth = ["a", "A ", None, "b", "secret", " b", "B"]
    with pytest.raises(InputError) as error:
        read(pa.table({"text": [str(place) for place in range(7)], "truth": truth}))
    assert str(error.value) == (
        "--truth 'truth' holds values that are not labels of the task in 4 rows (from 0: rows 1, 4, 5, 6); 3 of them "
        "differ from a label only by blanks or by upper and lower case"
    )
    with pytest.raises(InputError, match=r"in 30 rows \(from 0: rows 0, 1, 2, 3, 4, …\); all of them differ"):
        read(pa.table({"text": [str(place) for place in range(30)], "truth": ["A"] * 30}))
    with pytest.raises(InputError, match=r"in 1 row \(from 0: row 0\)$"):
        read(pa.table({"text": ["1"], "truth": ["secret"]}))
