"""From the prompt that anyone would write first to a fitted head, one step at a time: what each is worth, and costs.

Everything is measured by the stage that labels files: its engine, its scorers, its calibration. A step differs from the
one before it in one thing. A prompt is scored once for all calibrations, which only divide numbers.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.bench.quality_data import Subset
from pipeline.build import build_stage, contextual_prior, hidden_states
from pipeline.engine.model import Model
from pipeline.evaluation.metrics import accuracy_interval, macro_f1, macro_f1_interval
from pipeline.first_texts import N_TEXTS
from pipeline.scoring import label_prior, probabilities
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task import Calibration, Task
from pipeline.tuning.fit import fit_head

SHOTS = (4, 10, 24)
MAX_EXAMPLES = 20  # beyond that, turns with examples are a prefix of thousands of tokens
N_ORDERS = 5
FEW_ORDERS = 2  # of many labels
LIST = " Answer with exactly one of: {labels}."
LIST_WITH_DESCRIPTIONS = " Answer with exactly one of: {descriptions}."


@dataclass(frozen=True, slots=True)
class Step:
    """What one way to label the test rows gives.

    Attributes:
        name: for the table.
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
    """The scores of the test rows, (n, labels), before calibration, and what they took."""

    stage: Stage
    scores: NDArray[np.float64]
    fed_per_row: float
    items_per_s: float

    def decisions(self, calibration: Calibration) -> NDArray[np.intp]:
        """(n,) which of the task's labels each row gets; the rows are the whole input of a run."""
        prior = np.zeros(self.scores.shape[1])
        if calibration == "contextual":
            prior = contextual_prior(self.stage)
        if calibration == "batch":
            prior = label_prior(self.scores[:N_TEXTS])
        best: NDArray[np.intp] = probabilities(self.scores, prior, multi=False).argmax(axis=1)
        return best


@dataclass(frozen=True)
class Measuring:
    """Measures a model on a subset.

    Attributes:
        subset: what to label.
        model: by what.
        say: is told what begins.
        known: scores by the fingerprint of the stage that gave them.
    """

    subset: Subset
    model: Model
    say: Callable[[str], None]
    known: dict[str, Scored] = field(default_factory=dict)

    def prompt_steps(self) -> Iterator[Step]:
        """The one-sentence prompt, and what is added to it until it is the default task; then examples.

        With many labels the joint probability of each takes hundreds of tokens a row: all is scored constrained.
        """
        task = default = self.subset.task
        many = len(default.labels) > MAX_EXAMPLES
        sentence, *others = prompts(default)
        if many:
            name, task = sentence
            yield self._step(f"{name}, but constrained", replace(task, scoring="constrained"), "none")
        else:
            for name, task in [sentence, *others]:
                yield self._step(name, task, "none")
            yield self._step("  + contextual calibration", task, "contextual")
            yield self._step("  + batch calibration", task, "batch")
        _, task = others[-1]
        task = replace(task, scoring="constrained")
        yield self._step("+ constrained scoring", task, "none")
        yield self._step("  + contextual calibration", task, "contextual")
        yield self._step("  + batch calibration", task, "batch")
        task = unlisted(task)
        yield self._step("+ labels not listed in the prompt", task, "none")
        yield self._step("  + contextual calibration", task, "contextual")
        yield self._step("  + batch calibration", task, "batch")
        scorer = self.score("the default task", default).stage.scorer
        yield self._step(f"**default task** ({scorer.name}, {default.calibration})", default, default.calibration)
        if not many:
            examples = tuple(self.subset.shots(1).select("text", "label").iter_rows())
            yield self._step(
                "default task + one example a label", replace(default, examples=examples), default.calibration
            )

    def head_steps(self, *, all_rows: bool) -> Iterator[Step]:
        """Heads on a few rows of each label, and at last on all rows to train on, if wanted."""
        task, train = self.subset.task, self.subset.train if all_rows else self.subset.shots(max(SHOTS))
        self.say(f"{self.subset.name}: hidden states of {len(train)} rows to train on")
        states = hidden_states(task, self.model, Settings(), train["text"].to_list())
        truth = _codes(train["label"], task.label_names)[:, None] == np.arange(len(task.labels))
        place = train.select(pl.int_range(pl.len()).over("label")).to_series().to_numpy()
        fitted_for = build_stage(task, self.model, Settings()).prompt_fingerprint
        for n_rows in (*SHOTS, *((len(train),) if all_rows else ())):
            used = place < n_rows
            enough = bool(truth[used].sum(axis=0).min() == n_rows)
            name = f"head, {n_rows} rows a label" + ("" if enough else " where there are")
            if n_rows == len(train):
                name = "head, all rows"
            head, _ = fit_head(states[used], truth[used], task.label_names, multi=False, fitted_for=fitted_for)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "head.safetensors"
                head.save(path)
                yield self._step(f"{name} ({used.sum()} in all)", replace(task, head=path), "none")

    def order_changes(self, *, listed: bool) -> list[float]:
        """Share of the test rows that get another label when the task's labels are shuffled, for some orders.

        Args:
            listed: whether the prompt lists the labels, or is the default task's.
        """
        task, rng = self.subset.task, np.random.default_rng(0)
        if listed:
            task = replace(task, system=_opening(task) + LIST_WITH_DESCRIPTIONS)
        usual = np.array(task.label_names)[self.score("the usual order", task).decisions(task.calibration)]
        changes = []
        for number in range(N_ORDERS if len(task.labels) <= MAX_EXAMPLES else FEW_ORDERS):
            shuffled = replace(task, labels=tuple(task.labels[at] for at in rng.permutation(len(task.labels))))
            decisions = self.score(f"label order {number + 1}", shuffled).decisions(task.calibration)
            changes.append(float((np.array(shuffled.label_names)[decisions] != usual).mean()))
        return changes

    def score(self, name: str, task: Task) -> Scored:
        """Score the test rows under a task's prompt, once."""
        stage = build_stage(replace(task, calibration="none"), self.model, Settings())
        if (known := self.known.get(stage.score_fingerprint)) is not None:
            return known
        self.say(f"{self.subset.name}: {name.strip()}")
        texts, stats = stage.encoder.encode(self.subset.test.select("text")), RunStats()
        start = time.perf_counter()
        scores = stage.score_texts(texts, stats).astype(np.float64)
        seconds = time.perf_counter() - start
        scored = Scored(stage, scores, stats.fed_tokens / len(texts), len(texts) / seconds)
        self.known[stage.score_fingerprint] = scored
        return scored

    def _step(self, name: str, task: Task, calibration: Calibration) -> Step:
        scored = self.score(name, task)
        chosen = scored.decisions(calibration)
        truth, given = self.subset.test["label"].to_list(), [task.label_names[place] for place in chosen]
        n_right = sum(map(str.__eq__, truth, given))
        occurring = sorted(set(truth))
        return Step(
            name=name,
            accuracy=(n_right / len(truth), *accuracy_interval(n_right, len(truth))),
            macro_f1=(macro_f1(truth, given, occurring), *macro_f1_interval(truth, given, occurring)),
            n_favourite=int(np.bincount(chosen).max()),
            fed_per_row=scored.fed_per_row,
            items_per_s=scored.items_per_s,
        )


def prompts(task: Task) -> list[tuple[str, Task]]:
    """The prompts between the one-sentence prompt and that of the task, each with one thing more."""
    plain = replace(task, scoring="sequence", calibration="none")
    sentence = replace(
        plain,
        labels=tuple((name, "") for name in task.label_names),
        system=_opening(task) + LIST,
        user="{text}\nCategory:",
        answer="",
        answers=(),
    )
    worded = replace(sentence, answers=task.answers)
    described = replace(worded, labels=task.labels, system=_opening(task) + LIST_WITH_DESCRIPTIONS)
    return [
        ("one sentence, raw", sentence),
        ("+ labels in plain words", worded),
        ("+ descriptions", described),
        ("+ prefilled answer", replace(described, user=task.user, answer=task.answer)),
    ]


def unlisted(task: Task) -> Task:
    """The same without labels in the prompt; which of them is decided by what may follow it."""
    return replace(task, system=_opening(task))


def _opening(task: Task) -> str:
    return task.system.partition(LIST[:10])[0]


def _codes(labels: pl.Series, names: Sequence[str]) -> NDArray[np.intp]:
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[label] for label in labels], dtype=np.intp)
