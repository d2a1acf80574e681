"""The labels of a model with a head for classes: which of its classes each label of the task is.

Such a model knows its classes by name, and decides by what it was trained for: nothing is asked of it, so a task's
prompts and examples have no effect, and its answers are not calibrated again. Knows nothing of models but what they
call their classes.
"""

from collections.abc import Sequence
from dataclasses import replace
from reprlib import repr as short_repr

from pipeline.errors import UsageError
from pipeline.scoring import ClassScorer
from pipeline.task import Task


def class_scorer(task: Task, class_names: Sequence[str], multi_label: bool) -> tuple[Task, ClassScorer]:
    """Match a task's labels with a model's classes.

    Labels are matched by their answers, so that a task's ``answers`` may rename classes. Labels that nobody gave give
    way to the names of the classes.

    Args:
        task: its labels, in any order.
        class_names: of the model, in the order of its logits; no two the same.
        multi_label: whether the model gives each class a yes or no of its own.

    Returns:
        The task without calibration and with the labels that the scorer gives.

    Raises:
        UsageError: the labels are not the model's classes, or the mode is not the model's, or the task has a head.
    """
    if task.head is not None:
        hint = "leave out the task's head, or use the causal language model that it was fitted for"
        raise UsageError(f"head: {str(task.head)!r} has no effect, since this model has a head of its own", hint)
    if multi_label != task.multi:
        raise UsageError(*_wrong_mode(task))
    if not task.labels_given:
        task = _with_labels(task, class_names)
    if task.scoring != "auto":
        raise UsageError(
            f"--scoring {task.scoring} has no effect: this model has a head of its own", "leave scoring as it is: auto"
        )
    if sorted(task.label_answers) != sorted(class_names):
        raise UsageError(
            f"the labels {_listed(task.label_answers)} are not this model's classes, {_listed(class_names)}",
            "give --labels with the classes' names, or under [answers] of a task file the class that each label is",
        )
    order = tuple(class_names.index(answer) for answer in task.label_answers)
    return replace(task, calibration="none"), ClassScorer(order, multi=multi_label)


def _with_labels(task: Task, class_names: Sequence[str]) -> Task:
    """The task with a model's classes as its labels."""
    labels = tuple((name, "") for name in class_names)
    try:
        return replace(task, labels=labels, answers=(), thresholds=(), examples=())
    except UsageError as error:
        hint = "give labels in a task file, and under [answers] the class of this model that each is"
        raise UsageError(f"this model's classes are no labels: {error}", hint) from None


def _wrong_mode(task: Task) -> tuple[str, str]:
    """Message and hint for a mode that is not the model's."""
    if task.multi:
        hint = "use --mode single, or set problem_type to multi_label_classification in the model's config.json"
        return "--mode multi: this model's classes exclude each other", hint
    return "--mode single: this model gives each class a yes or no of its own", "use --mode multi"


def _listed(names: Sequence[str]) -> str:
    return short_repr(list(names))
