"""Which class of a model each label of a task is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.classes import class_scorer
from pipeline.errors import UsageError
from pipeline.task_file import builtin_task, load_task, task_from_toml

CLASSES = ("spam", "ham", "news")


def test_the_built_in_tasks_labels_give_way_to_the_models_classes():
    task, scorer = class_scorer(builtin_task(), CLASSES, multi_label=False)
    assert task.label_names == CLASSES
    assert scorer.order == (0, 1, 2)
    assert not scorer.multi


def test_labels_in_any_order_are_the_models_classes():
    task, scorer = class_scorer(builtin_task().with_overrides(labels="news,spam,ham"), CLASSES, multi_label=False)
    assert task.label_names == ("news", "spam", "ham")
    scores = scorer.scores(np.array([[5.0, 1.0, 0.0]], dtype=np.float32))
    assert task.label_names[int(scores[0].argmax())] == "spam"
    np.testing.assert_allclose(np.exp(scores).sum(), 1.0)


def test_answers_rename_the_models_classes():
    task = task_from_toml(
        """
        [labels]
        ham = "wanted"
        spam = ""
        [answers]
        spam = "LABEL_0"
        ham = "LABEL_1"
        """,
        "spam.toml",
    )
    task, scorer = class_scorer(task, ("LABEL_0", "LABEL_1"), multi_label=False)
    assert task.label_names == ("ham", "spam")
    assert scorer.order == (1, 0)


def test_a_model_for_several_labels_a_row_gives_log_odds():
    task, scorer = class_scorer(builtin_task().with_overrides(mode="multi"), CLASSES, multi_label=True)
    assert task.label_names == CLASSES
    np.testing.assert_array_equal(scorer.scores(np.array([[5.0, 1.0, -2.0]], dtype=np.float32)), [[5.0, 1.0, -2.0]])


def test_a_model_with_a_head_is_not_calibrated_again():
    task = builtin_task().with_overrides(calibration="contextual")
    assert class_scorer(task, CLASSES, multi_label=False)[0].calibration == "none"


@pytest.mark.parametrize("labels", ["spam,ham", "spam,ham,other", "spam,ham,news,other"])
def test_labels_that_are_not_the_models_classes_are_refused(labels):
    with pytest.raises(UsageError) as caught:
        class_scorer(builtin_task().with_overrides(labels=labels), CLASSES, multi_label=False)
    assert str(labels.split(",")) in str(caught.value)
    assert str(list(CLASSES)) in str(caught.value)
    assert "--labels" in caught.value.hint
    assert "[answers]" in caught.value.hint


@pytest.mark.parametrize(("mode", "multi_label"), [("multi", False), ("single", True)])
def test_a_mode_that_is_not_the_models_is_refused(mode, multi_label):
    other = {"multi": "single", "single": "multi"}[mode]
    with pytest.raises(UsageError, match=f"--mode {mode}: ") as caught:
        class_scorer(builtin_task().with_overrides(mode=mode), CLASSES, multi_label=multi_label)
    assert f"use --mode {other}" in caught.value.hint


def test_classes_that_are_no_labels_need_a_task_that_names_them():
    with pytest.raises(UsageError, match="classes are no labels: labels: ") as caught:
        class_scorer(builtin_task(), ("Spam", "spam"), multi_label=False)
    assert "[answers]" in caught.value.hint


def test_a_fitted_head_is_refused():
    task = replace(builtin_task(), head=Path("head.safetensors"))
    with pytest.raises(UsageError, match=r"head: 'head\.safetensors' has no effect"):
        class_scorer(task, CLASSES, multi_label=False)


@pytest.mark.parametrize(
    "task",
    [
        builtin_task().with_overrides(labels="billing,technical,account"),
        task_from_toml('[labels]\nbilling = "payments"\ntechnical = "bugs"\naccount = "login"', "mine"),
        load_task("builtin:tickets"),
    ],
)
def test_labels_that_were_asked_for_are_not_replaced_though_they_are_those_of_the_built_in_task(task):
    """A column of complaints and questions came out where billing, technical and account were asked for."""
    with pytest.raises(UsageError, match="are not this model's classes"):
        class_scorer(task, CLASSES, multi_label=False)


def test_a_task_file_that_says_nothing_of_labels_takes_the_classes():
    task, _ = class_scorer(task_from_toml('text = ["body"]', "mine"), CLASSES, multi_label=False)
    assert task.label_names == CLASSES


def test_a_way_to_compare_label_tokens_is_refused_where_none_are_compared():
    with pytest.raises(UsageError, match="--scoring sequence has no effect"):
        class_scorer(builtin_task().with_overrides(scoring="sequence"), CLASSES, multi_label=False)
