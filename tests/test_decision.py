from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.decision import decide
from pipeline.task_file import builtin_task

TASK = builtin_task()  # billing, technical, account
MULTI = replace(TASK, mode="multi", thresholds=(("technical", 0.2),))
FAILED = [np.nan, np.nan, np.nan]


def test_the_most_probable_label_is_given_and_ties_go_to_the_one_that_comes_first():
    decision = decide(np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], FAILED]), TASK)
    assert decision.labels.to_pylist() == ["technical", "billing", None]
    assert decision.scores.to_pylist() == [0.5, pytest.approx(0.4), None]
    assert decision.failed.tolist() == [False, False, True]
    assert not decision.low_score.any()


def test_a_label_below_the_minimum_score_is_the_default_one_and_keeps_its_score():
    task = replace(TASK, min_score=0.5, default_label="other")
    decision = decide(np.array([[0.2, 0.5, 0.3], [0.4, 0.35, 0.25], FAILED]), task)
    assert decision.labels.to_pylist() == ["technical", "other", None]
    assert decision.low_score.tolist() == [False, True, False]
    assert decision.scores.to_pylist() == [0.5, pytest.approx(0.4), None]


def test_a_label_that_leads_by_less_than_the_minimum_margin_is_null_without_a_default():
    decision = decide(np.array([[0.2, 0.45, 0.35], [0.1, 0.6, 0.3]]), replace(TASK, min_margin=0.2))
    assert decision.labels.to_pylist() == [None, "technical"]
    assert decision.low_score.tolist() == [True, False]


@given(arrays(np.float64, st.tuples(st.integers(0, 5), st.just(3)), elements=st.floats(0, 1)))
def test_every_label_at_or_above_its_threshold_is_given_in_the_order_of_the_task(probability):
    decision = decide(probability, MULTI)
    expected = [
        [name for name, p, limit in zip(MULTI.label_names, row, (0.5, 0.2, 0.5), strict=True) if p >= limit]
        for row in probability
    ]
    assert decision.labels.to_pylist() == expected
    assert [len(scores) for scores in decision.scores.to_pylist()] == [len(names) for names in expected]


def test_with_several_labels_no_label_is_an_empty_list_and_a_failed_text_is_null():
    decision = decide(np.array([[0.1, 0.1, 0.1], FAILED, [0.9, 0.1, 0.5]]), MULTI)
    assert decision.labels.to_pylist() == [[], None, ["billing", "account"]]
    assert decision.labels.type == pa.list_(pa.string())
    assert decision.scores.to_pylist() == [[], None, [pytest.approx(0.9), 0.5]]
    assert decision.scores.type == pa.list_(pa.float32())
    assert decision.failed.tolist() == [False, True, False]


@pytest.mark.parametrize("task", [TASK, MULTI])
def test_no_texts_make_no_decisions(task):
    decision = decide(np.empty((0, 3)), task)
    assert len(decision.labels) == len(decision.scores) == len(decision.failed) == 0
