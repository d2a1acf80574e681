"""Trying variants on labelled texts, and a head against the best of them.

What is chosen is chosen on the tune part alone; the held-out part only tells how good it is. A head's answers on the
tune part are those of heads that did not know the row. Knows nothing of files and of how results are shown.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.build import build_stage, contextual_prior, hidden_states
from pipeline.engine.model import Model
from pipeline.errors import UsageError
from pipeline.head import HeadScorer, LinearHead
from pipeline.scoring import label_prior, probabilities
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stats import RunStats
from pipeline.task import Task
from pipeline.tuning.fit import FitReport, fit_head
from pipeline.tuning.measure import Quality, quality, right_rows
from pipeline.tuning.split import Truth
from pipeline.tuning.variants import CALIBRATIONS, Variant, order_variants, prompt_variants, scoring_variants

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """Texts with their truth, (n, labels) in the order of the task that was given."""

    texts: tuple[str, ...]
    truth: Truth

    def take(self, rows: NDArray[np.int64]) -> "Part":
        """Some of them."""
        return Part(tuple(self.texts[row] for row in rows.tolist()), self.truth[rows])


@dataclass(frozen=True, slots=True)
class Result:
    """One way to answer, and how good it is.

    Attributes:
        name: for people.
        task: that answers so; for a head without its file.
        tune: on the texts it was chosen by.
        held_out: on those it was not.
        tune_answers: (n, labels) of the tune part.
        held_out_answers: (n, labels) of the held-out part.
        tokens: fed per text, labels included.
    """

    name: str
    task: Task
    tune: Quality
    held_out: Quality
    tune_answers: NDArray[np.bool_]
    held_out_answers: NDArray[np.bool_]
    tokens: float


@dataclass(frozen=True, slots=True)
class Search:
    """Where variants are tried.

    Attributes:
        model: that answers.
        settings: limits and sizes.
        task: as given; its order of labels is that of all answers.
        tune: texts to choose by.
        held_out: texts to judge by.
        seed: of orders and folds.
    """

    model: Model
    settings: Settings
    task: Task
    tune: Part
    held_out: Part
    seed: int

    def try_prompts(self, examples: Sequence[tuple[str, str]]) -> list[Result]:
        """Prompts, then ways to compare labels with the best prompt, then orders of labels; the task as given first."""
        seen: set[str] = set()
        results = self._try(prompt_variants(self.task, examples), seen)
        for more in (scoring_variants, lambda best: order_variants(best, self.seed)):
            if results:
                best = best_of(results)
                plain = Variant(best.name.rpartition(" / ")[0], replace(best.task, calibration="none"))
                results += self._try(more(plain), seen)
        return results

    def fit(self, task: Task, part: Part) -> tuple[LinearHead, FitReport, float]:
        """Fit a head to texts, under the prompt of a task; also gives the tokens fed per text."""
        stage = build_stage(for_head(task), self.model, self.settings)
        features = hidden_states(stage.task, self.model, self.settings, part.texts)
        finite = np.isfinite(features).all(axis=1)
        head, report = fit_head(
            features[finite],
            part.truth[finite],
            self.task.label_names,
            multi=task.multi,
            fitted_for=stage.prompt_fingerprint,
            seed=self.seed,
        )
        return head, replace(report, left_out_rows=np.flatnonzero(finite)[report.left_out_rows]), _n_tokens(stage, part)

    def try_head(self, task: Task) -> tuple[Result, FitReport]:
        """Fit a head on the tune part, and judge it by rows that were left out and by the held-out part."""
        head, report, tokens = self.fit(task, self.tune)
        scorer = HeadScorer(head, tuple(range(len(head.labels))))
        plain = for_head(task)
        tune_answers = answers_of(_probability(report.left_out_logits, multi=task.multi), plain)
        held_out_answers = np.zeros_like(self.held_out.truth)
        if self.held_out.texts:
            states = hidden_states(plain, self.model, self.settings, self.held_out.texts)
            held_out_answers = answers_of(_probability(scorer.scores(states), multi=task.multi), plain)
        result = Result(
            name="head",
            task=plain,
            tune=quality(tune_answers, self.tune.truth[report.left_out_rows]),
            held_out=quality(held_out_answers, self.held_out.truth),
            tune_answers=tune_answers,
            held_out_answers=held_out_answers,
            tokens=tokens,
        )
        return result, report

    def _try(self, variants: Sequence[Variant], seen: set[str]) -> list[Result]:
        results: list[Result] = []
        for number, variant in enumerate(variants, 1):
            log.info("trying %d of %d: %s", number, len(variants), variant.name)
            try:
                results += self._results(variant, seen)
            except UsageError as error:  # labels that are the same tokens, examples that leave no room for a text
                if variant.name == "as given":
                    raise
                log.warning("%s cannot be tried: %s", variant.name, error)
        return results

    def _results(self, variant: Variant, seen: set[str]) -> list[Result]:
        """The variant with every calibration, which costs no pass; nothing if it is one of ``seen``."""
        stage, stats = build_stage(variant.task, self.model, self.settings), RunStats()
        if stage.score_fingerprint in seen:  # "auto" is another way to say it
            return []
        seen.add(stage.score_fingerprint)
        texts = pl.DataFrame({"text": [*self.tune.texts, *self.held_out.texts]}, schema={"text": pl.String})
        scores = stage.score_texts(stage.encoder.encode(texts), stats).astype(np.float64)
        n_tune, multi = len(self.tune.texts), self.task.multi
        # of the tune part: the texts of a run are many, and their labels are not looked at
        priors = {"none": _no_prior(self.task), "batch": label_prior(scores[:n_tune])}
        priors["contextual"] = contextual_prior(stage)
        names = variant.task.label_names
        own_order = [names.index(label) for label in self.task.label_names]
        results = []
        for calibration in CALIBRATIONS:
            probability = probabilities(scores, priors[calibration], multi=multi)[:, own_order]
            answers = answers_of(probability, self.task)
            results.append(
                Result(
                    name=f"{variant.name} / {calibration}",
                    task=replace(variant.task, calibration=calibration),
                    tune=quality(answers[:n_tune], self.tune.truth),
                    held_out=quality(answers[n_tune:], self.held_out.truth),
                    tune_answers=answers[:n_tune],
                    held_out_answers=answers[n_tune:],
                    tokens=stats.fed_tokens / max(1, len(texts)),
                )
            )
        return results


def for_head(task: Task) -> Task:
    """A task as a head decides it: without all that is about the scores of its prompt, limits on them too."""
    return replace(
        task,
        head=None,
        scoring="auto",
        calibration="none",
        thresholds=(),
        min_score=0.0,
        min_margin=0.0,
        default_label=None,
    )


def best_of(results: Sequence[Result]) -> Result:
    """The one with most right on the tune part, then the best macro-F1 there, then the first."""
    return max(results, key=lambda result: (result.tune.n_right, np.nan_to_num(result.tune.macro_f1)))


def agreement(first: Result, second: Result) -> float:
    """Share of all texts that two ways answer alike."""
    alike = [
        right_rows(first.tune_answers, second.tune_answers),
        right_rows(first.held_out_answers, second.held_out_answers),
    ]
    return float(np.concatenate(alike).mean())


def answers_of(probability: NDArray[np.float64], task: Task) -> NDArray[np.bool_]:
    """(n, labels) what is answered: the most probable label, with several every one that reaches its threshold."""
    if task.multi:
        reached: NDArray[np.bool_] = probability >= np.array(task.label_thresholds)
        return reached
    answers = np.zeros(probability.shape, dtype=bool)
    given = np.flatnonzero(~np.isnan(probability).any(axis=1))
    answers[given, probability[given].argmax(axis=1)] = True
    return answers


def _probability(logits: NDArray[np.float64], *, multi: bool) -> NDArray[np.float64]:
    return probabilities(logits, np.zeros(logits.shape[1]), multi=multi)


def _no_prior(task: Task) -> NDArray[np.float64]:
    return np.zeros(len(task.labels))


def _n_tokens(stage: Stage, part: Part) -> float:
    encoded = stage.encoder.encode(pl.DataFrame({"text": part.texts}, schema={"text": pl.String}))
    return float(encoded["n_tokens"].sum()) / max(1, len(encoded))
