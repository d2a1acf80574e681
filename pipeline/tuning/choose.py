"""From labelled texts to the better of the best prompt and a head, told as it goes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.engine.model import Model
from pipeline.head import LinearHead
from pipeline.settings import Settings
from pipeline.task import Task
from pipeline.tuning.fit import labels_with_few
from pipeline.tuning.measure import compare, right_rows
from pipeline.tuning.plan import Plan
from pipeline.tuning.rows import DistinctTexts
from pipeline.tuning.search import Part, Result, Search, best_of
from pipeline.tuning.split import draw, split
from pipeline.tuning.table import head_line, orders_line, table, texts_line, verdict, warnings
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
        UsageError: the task does not go with the model, or nothing is left to try.
    """
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
    tell("\n" + table([*results, *([head_result] if head_result else [])]) + "\n\n")
    if best is not None:
        tell(f"best prompt on the tune part: {best.name}\n" + (f"{line}\n" if (line := orders_line(results)) else ""))
    if missing and plan.with_head:
        label, n_texts = missing[0]
        tell(f"no head: label {label!r} has {n_texts} texts to tune on, and at least 2 of each label are needed\n")
    if head_result is None or report is None:
        return Chosen(task if best is None else best.task, None)
    tell(head_line(report) + "\n")

    # 3. the better one on the tune part, where the head has answered texts that it did not know
    if best is not None:
        wins = _head_wins(head_result, report.left_out_rows, tune, best, few.tune)
        if held_out.texts:
            tell(verdict(head_result, best, held_out, few.held_out) + "\n")
        if not wins:
            tell("the prompt is kept: on the tune part the head is no better\n")
            return Chosen(best.task, None)
    head, _, _ = Search(model, settings, task, everything, held_out, plan.seed).fit(head_result.task, everything)
    tell(f"the head that is kept is fitted on all {len(found.texts):,} texts, held-out ones too\n")
    return Chosen(head_result.task, head)


def _head_wins(head: Result, left_out: np.ndarray, tune: Part, prompt: Result, asked: Part) -> bool:
    """Whether the head has more right, of the texts that both have answered."""
    place_in_head = {tune.texts[row]: place for place, row in enumerate(left_out.tolist())}
    both = [place for place, text in enumerate(asked.texts) if text in place_in_head]
    head_places = [place_in_head[asked.texts[place]] for place in both]
    paired = compare(
        right_rows(head.tune_answers[head_places], asked.truth[both]),
        right_rows(prompt.tune_answers[both], asked.truth[both]),
    )
    return paired.gained > paired.lost
