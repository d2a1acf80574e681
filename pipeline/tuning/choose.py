"""From labelled texts to the better of the best prompt and a head, told as it goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.engine.model import Model
from pipeline.errors import UsageError
from pipeline.head import LinearHead
from pipeline.settings import Settings
from pipeline.task import Task
from pipeline.tuning.enough import MIN_TEXTS, labels_with_few
from pipeline.tuning.measure import Duel, right_rows
from pipeline.tuning.plan import Plan
from pipeline.tuning.rows import DistinctTexts
from pipeline.tuning.search import Part, Result, Search, best_of
from pipeline.tuning.split import Truth, draw, split
from pipeline.tuning.table import choice_lines, head_line, orders_line, rows_line, table, texts_line, warnings
from pipeline.tuning.variants import choose_examples


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a tuning found.

    Attributes:
        task: the best prompt, or the task as given if none was tried.
        head: fitted under it on all texts; None where the prompt is better.
    """

    task: Task
    head: LinearHead | None


def choose(
    task: Task,
    settings: Settings,
    model: Model,
    found: DistinctTexts,
    plan: Plan,
    tell: Callable[[str], None],
) -> Chosen:
    """Try prompts and a head.

    Args:
        task: to begin with, without a head.
        settings: limits and sizes.
        model: that answers.
        found: labelled texts.
        plan: what to try.
        tell: is given what was found, in lines; no text of a row.

    Raises:
        UsageError: the task does not go with the model, or the model has a head of its own.
        InputError: prompts are not to be tried, and too few texts can be used for a head.
    """
    check_tunable(model)
    everything = Part(found.texts, found.truth)
    tune_rows, held_out_rows = split(found.truth, plan.held_out, plan.seed)
    tune, held_out = everything.take(tune_rows), everything.take(held_out_rows)
    labels = task.label_names
    lines = [texts_line(found, len(tune_rows), len(held_out_rows)), *warnings(found, labels, held_out)]
    tell("".join(f"{line}\n" for line in lines))

    # 1. prompts, on few texts; the examples of a prompt are not asked
    results: list[Result] = []
    best, few = None, Search(model, settings, task, tune, held_out, plan.seed)
    if plan.with_prompts:
        names = [[labels[place] for place in np.flatnonzero(row)] for row in tune.truth]
        examples = choose_examples(tune.texts, names, task) if plan.with_examples else []
        asked = np.setdiff1d(np.arange(len(tune.texts)), examples)
        asked = draw(tune.truth, asked, plan.prompt_rows, plan.seed)
        judged = draw(held_out.truth, np.arange(len(held_out.texts)), plan.prompt_rows, plan.seed)
        few = Search(model, settings, task, tune.take(asked), held_out.take(judged), plan.seed)
        results = few.try_prompts([(tune.texts[place], names[place][0]) for place in examples])
        best = best_of(results)

    # 2. a head, on the best prompt
    head_result = report = None
    missing = [] if task.multi else labels_with_few(tune.truth, labels)
    if plan.with_head and not missing:
        whole = Search(model, settings, task, tune, held_out, plan.seed)
        head_result, report = whole.try_head(task if best is None else best.task)
    shown = [*results, *([head_result] if head_result else [])]
    tell("\n" + table(shown) + "\n" + (f"{line}\n" if (line := rows_line(shown)) else "") + "\n")
    if best is not None:
        tell(f"best prompt on the tune part: {best.name}\n" + (f"{line}\n" if (line := orders_line(results)) else ""))
    if missing and plan.with_head:
        label, n_texts = missing[0]
        tell(f"no head: label {label!r} has {n_texts} texts to tune on, and {MIN_TEXTS} of each label are needed\n")
    if head_result is None or report is None:
        return Chosen(task if best is None else best.task, None)
    tell(head_line(report) + "\n")

    # 3. the better one on the tune part, where the head has answered texts that it did not know
    if best is not None:
        left_out = report.left_out_rows.tolist()
        known = _duel([tune.texts[row] for row in left_out], head_result.tune_answers, few.tune, best.tune_answers)
        judged_by = _duel(held_out.texts, head_result.held_out_answers, few.held_out, best.held_out_answers)
        tell("".join(f"{line}\n" for line in choice_lines(known, judged_by)))
        if not known.first_wins:
            return Chosen(best.task, None)
    head, _, _ = Search(model, settings, task, everything, held_out, plan.seed).fit(head_result.task, everything)
    tell(f"the head that is kept is fitted on all {len(found.texts):,} texts, held-out ones too\n")
    return Chosen(head_result.task, head)


def check_tunable(model: Model) -> None:
    """Check that prompts and heads mean something to a model.

    Raises:
        UsageError: it has a head of its own, and sees no prompt.
    """
    if model.class_names is not None:
        raise UsageError(
            f"--model {model.name!r} has a head of its own for its classes, so there is no prompt or head to tune",
            "give --model a language model; python -m pipeline.evaluate tells how good this one's labels are",
        )


def _duel(head_texts: Sequence[str], head_answers: Truth, asked: Part, prompt_answers: Truth) -> Duel:
    """The head against a prompt, on the texts that both have answered.

    Args:
        head_texts: that the head has answered without knowing them.
        head_answers: to these.
        asked: that the prompt was tried on, some of them others.
        prompt_answers: to these.
    """
    places = {text: place for place, text in enumerate(head_texts)}
    both = [place for place, text in enumerate(asked.texts) if text in places]
    head_places = [places[asked.texts[place]] for place in both]
    return Duel(
        right_rows(head_answers[head_places], asked.truth[both]), right_rows(prompt_answers[both], asked.truth[both])
    )
