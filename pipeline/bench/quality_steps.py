"""From the prompt that anyone would write first to a fitted head, one step at a time: what each is worth, and costs.

Everything is measured by the stage that labels files: its engine, its scorers, its calibration. A step differs from the
one before it in one thing. A prompt is scored once for all calibrations, which only divide numbers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.bench.quality_data import Subset
from pipeline.build import build_stage, contextual_prior, hidden_states
from pipeline.engine.model import Model
from pipeline.evaluation.metrics import accuracy_interval, macro_f1, macro_f1_interval
from pipeline.first_texts import N_TEXTS
from pipeline.head import HeadScorer
from pipeline.scoring import label_prior, probabilities
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task import Calibration, Scoring, Task
from pipeline.tuning.fit import fit_head

SHOTS = (4, 10, 24)
MAX_EXAMPLES = 20  # beyond that, turns with examples are a prefix of thousands of tokens
N_ORDERS = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """What one way to label the test rows gives.

    Attributes:
        name: for the table.
        task: it labels with.
        accuracy: and the bounds of its 95 % interval.
        macro_f1: likewise.
        n_favourite: test rows with the label that is given most often.
        fed_per_row: tokens that go through the model for a row, behind the shared prefix: its own and the labels'.
        items_per_s: test rows in a second, tokenizing and loading not counted.
    """

    name: str
    accuracy: tuple[float, float, float]
    macro_f1: tuple[float, float, float]
    n_favourite: int
    fed_per_row: float
    items_per_s: float


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt's scores of the test rows, (n, labels), before calibration, and what they took."""

    stage: Stage
    scores: NDArray[np.float64]
    fed_per_row: float
    items_per_s: float

    def decisions(self, calibration: Calibration) -> NDArray[np.intp]:
        """(n,) which of the task's labels each row gets."""
        prior = self.stage.prior
        if calibration == "contextual":
            prior = contextual_prior(self.stage)
        if calibration == "batch":
            prior = label_prior(self.scores[:N_TEXTS], multi=False)
        return probabilities(self.scores, prior, multi=False).argmax(axis=1)


def prompts(task: Task) -> list[tuple[str, Task]]:
    """The prompts between the one-sentence prompt and that of the task, each with one thing more."""
    names = replace(task, labels=tuple((name, "") for name in task.label_names))
    sentence = replace(
        names,
        system=task.system.replace("{descriptions}", "{labels}"),
        user="{text}\nCategory:",
        answer="",
        answers=(),
        scoring="sequence",
        calibration="none",
    )
    worded = replace(sentence, answers=task.answers)
    described = replace(worded, labels=task.labels, system=task.system)
    return [
        ("one sentence, raw", sentence),
        ("+ labels in plain words", worded),
        ("+ descriptions", described),
        ("+ prefilled answer", replace(described, user=task.user, answer=task.answer)),
    ]


def prompt_steps(subset: Subset, model: Model, say: Say) -> Iterator[Step]:
    """The one-sentence prompt, and what is added to it until it is the default task; then examples."""
    for name, task in prompts(subset.task):
        say(f"{subset.name}: {name}")
        yield _step(name, subset, score(task, subset, model), "none")
    scorings: tuple[Scoring, ...] = ("sequence", "constrained")
    calibrations: tuple[Calibration, ...] = ("none", "contextual", "batch")
    for scoring in scorings:
        say(f"{subset.name}: {scoring} scoring")
        scored = score(replace(task, scoring=scoring), subset, model)
        for calibration in calibrations:
            yield _step(f"{scoring}, {calibration}", subset, scored, calibration)
    say(f"{subset.name}: the default task")
    default = subset.task
    yield _step(
        f"default task: {default.scoring}, {default.calibration}",
        subset,
        score(default, subset, model),
        default.calibration,
    )
    if len(default.labels) <= MAX_EXAMPLES:
        say(f"{subset.name}: with examples")
        examples = tuple(zip(*subset.shots(1).select("text", "label"), strict=True))
        scored = score(replace(default, examples=examples), subset, model)
        yield _step("default task + one example a label", subset, scored, default.calibration)


def head_steps(subset: Subset, model: Model, say: Say, *, all_rows: bool) -> Iterator[Step]:
    """Heads on a few rows of each label, and at last on all rows to train on, if wanted."""
    train = subset.train if all_rows else subset.shots(max(SHOTS))
    say(f"{subset.name}: hidden states of {len(train)} rows to train on")
    states, _ = _hidden_states(subset.task, train["text"], model)
    tested, items_per_s = _hidden_states(subset.task, subset.test["text"], model)
    stage = build_stage(replace(subset.task, head=None), model, Settings())
    fed = float(stage.encoder.encode(subset.test.select("text"))["n_tokens"].mean())  # type: ignore[arg-type]
    names = subset.task.label_names
    truth = _codes(train["label"], names)[:, None] == np.arange(len(names))
    place = train.select(pl.int_range(pl.len()).over("label")).to_series().to_numpy()
    for n_rows in (*SHOTS, *((len(train),) if all_rows else ())):
        used = place < n_rows
        say(f"{subset.name}: head on {used.sum()} rows")
        head, _ = fit_head(states[used], truth[used], names, multi=False, fitted_for=stage.prompt_fingerprint)
        chosen = HeadScorer(head, tuple(range(len(names)))).scores(tested).argmax(axis=1)
        least = int(truth[used].sum(axis=0).min())
        few = f"{n_rows} rows a label" if least == n_rows else f"{n_rows} rows a label where there are"
        name = "all rows" if n_rows == len(train) else few
        yield _measured(f"head, {name} ({used.sum()} in all)", subset, chosen, fed, items_per_s)


def order_changes(subset: Subset, model: Model, say: Say) -> list[float]:
    """Share of the test rows that get another label when the task's labels are shuffled, for each of some orders."""
    task, rng = subset.task, np.random.default_rng(0)
    names = np.array(task.label_names)
    usual = names[score(task, subset, model).decisions(task.calibration)]
    changes = []
    for number in range(N_ORDERS):
        say(f"{subset.name}: label order {number + 1} of {N_ORDERS}")
        shuffled = replace(task, labels=tuple(task.labels[place] for place in rng.permutation(len(names))))
        decisions = score(shuffled, subset, model).decisions(task.calibration)
        changes.append(float((np.array(shuffled.label_names)[decisions] != usual).mean()))
    return changes


def score(task: Task, subset: Subset, model: Model) -> Scored:
    """Score the test rows under a task's prompt."""
    stage = build_stage(replace(task, calibration="none"), model, Settings())
    texts, stats = stage.encoder.encode(subset.test.select("text")), RunStats()
    start = time.perf_counter()
    scores = stage.score_texts(texts, stats).astype(np.float64)
    seconds = time.perf_counter() - start
    return Scored(stage, scores, stats.fed_tokens / len(texts), len(texts) / seconds)


def _hidden_states(task: Task, texts: pl.Series, model: Model) -> tuple[NDArray[np.float32], float]:
    """States of texts, and how many of them a second, the start with its check of the engine included."""
    start = time.perf_counter()
    states = hidden_states(task, model, Settings(), texts.to_list())
    return states, len(texts) / (time.perf_counter() - start)


def _step(name: str, subset: Subset, scored: Scored, calibration: Calibration) -> Step:
    return _measured(name, subset, scored.decisions(calibration), scored.fed_per_row, scored.items_per_s)


def _measured(name: str, subset: Subset, chosen: NDArray[np.intp], fed_per_row: float, items_per_s: float) -> Step:
    names = subset.task.label_names
    truth, given = subset.test["label"].to_list(), [names[place] for place in chosen]
    n_right = sum(map(str.__eq__, truth, given))
    occurring = sorted(set(truth))
    return Step(
        name=name,
        accuracy=(n_right / len(truth), *accuracy_interval(n_right, len(truth))),
        macro_f1=(macro_f1(truth, given, occurring), *macro_f1_interval(truth, given, occurring)),
        n_favourite=int(np.bincount(chosen).max()),
        fed_per_row=fed_per_row,
        items_per_s=items_per_s,
    )


def _codes(labels: pl.Series, names: Sequence[str]) -> NDArray[np.intp]:
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[label] for label in labels], dtype=np.intp)
