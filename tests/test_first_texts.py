from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import pipeline.first_texts
from pipeline.first_texts import N_TEXTS, FirstTexts
from pipeline.task_file import builtin_task

TASK = builtin_task().with_overrides(text_columns=["text"])


def first_of(*tables: pa.Table, task: Any = TASK) -> list[str]:
    first = FirstTexts()
    first.add(tables, task)
    return first.texts


def test_distinct_texts_in_the_order_of_the_rows_without_blank_ones() -> None:
    table = pa.table({"text": ["b", None, "a", "  ", "b", "c"]})
    assert first_of(table) == ["b", "a", "c"]


def test_how_the_rows_are_cut_into_buffers_makes_no_difference() -> None:
    table = pa.table({"text": [f"ticket {i % 400}" for i in range(900)]})
    whole = first_of(table)
    assert len(whole) == N_TEXTS
    assert first_of(*(table.slice(start, 7) for start in range(0, 900, 7))) == whole


def test_texts_of_several_columns_are_composed_as_the_rows_are() -> None:
    task = replace(TASK, text=(), template="{subject}: {text}")
    assert first_of(pa.table({"subject": ["x", "y"], "text": ["a", None]}), task=task) == ["x: a", "y: "]


def test_no_more_is_read_than_needed() -> None:
    def tables() -> Any:
        yield pa.table({"text": [f"ticket {i}" for i in range(N_TEXTS)]})
        raise AssertionError("read on")

    first = FirstTexts()
    first.add(tables(), TASK)
    first.add(tables(), TASK)
    assert len(first.texts) == N_TEXTS


def test_rows_that_repeat_the_same_few_texts_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.first_texts, "MAX_ROWS", 10)
    tables = [pa.table({"text": ["a", "b", "a"]}), pa.table({"text": ["a"] * 6 + ["c", "d"]})]
    assert first_of(*tables) == ["a", "b", "c"]


def test_few_of_texts_of_megabytes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.first_texts, "MAX_CHARS", 25)
    assert first_of(pa.table({"text": ["a" * 10, "b" * 10, "c" * 10, "d"]})) == ["a" * 10, "b" * 10, "c" * 10]
