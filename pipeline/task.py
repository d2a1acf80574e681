"""What to ask of every row: text columns, labels and their descriptions, prompts, scoring and calibration.

A ``Task`` is immutable and valid: whoever holds one need not check it again. Placeholders are filled in a single pass,
so text, labels and descriptions may contain braces. This module knows nothing of TOML (``task_file``), of an input's
columns (``text_columns``), of Arrow, tokenizers or models, and imports nothing heavy.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pipeline import task_checks as checks
from pipeline.errors import UsageError
from pipeline.template import check_placeholders, fill, placeholders

Mode = Literal["single", "multi"]
Scoring = Literal["auto", "first-token", "constrained", "sequence"]
Calibration = Literal["none", "contextual", "batch"]

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """One classification task, checked when it is made.

    Args:
        name: for logs and reports.
        text: columns that are joined by a blank line; empty, with no template: to be found by name.
        template: instead of ``text``: a text with ``{column}`` placeholders.
        labels: (name, description) pairs, at least two; a description may be empty. Their order is
            that of lists in the prompt, which can change answers, and decides ties.
        system: the system turn, with ``{labels}`` and ``{descriptions}``; empty: no system turn.
        user: the user turn, with ``{text}`` exactly once, and ``{labels}`` and ``{descriptions}``.
        answer: start of the answer turn, verbatim (no placeholders).
        scoring: how labels are compared.
        calibration: whether the model's favourites are divided out, and how they are found.
        answers: (label, what the model is to say for it) of labels that have an answer other than their name.
        examples: (text, label) pairs that are put before the row as turns of the chat.
        mode: one label for each row, or any number of them.
        question: with ``multi``, what the answer turn asks of each label behind ``answer``, with ``{label}`` and
            ``{description}``; ``yes`` or ``no`` follows.
        yes: with ``multi``, the word for a label that holds.
        no: with ``multi``, the word for one that does not.
        thresholds: with ``multi``, (label, probability from which it is given) where that is not 0.5.
        min_score: with ``single``, rows whose label is less probable than this get ``default_label``.
        min_margin: with ``single``, so do rows whose label is not more probable than the next by this.
        default_label: label of such rows; None for null.
        head: file of a fitted head that decides in place of the labels' tokens; None for none.
        labels_given: whether somebody chose the labels; those of the built-in task, which nobody did, give way to the
            classes of a model that has a head of its own.

    Lists are taken for tuples, and a string for the path of ``head``.

    Raises:
        UsageError: a value is not allowed; the message begins with the name of its key.
    """

    name: str
    text: tuple[str, ...]
    template: str | None
    labels: tuple[tuple[str, str], ...]
    system: str
    user: str
    answer: str
    scoring: Scoring
    calibration: Calibration
    answers: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    mode: Mode = "single"
    question: str = "{label}:"
    yes: str = "yes"
    no: str = "no"
    thresholds: tuple[tuple[str, float], ...] = ()
    min_score: float = 0.0
    min_margin: float = 0.0
    default_label: str | None = None
    head: Path | None = None
    labels_given: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        for key, value in checks.of_right_types({own.name: getattr(self, own.name) for own in fields(self)}).items():
            object.__setattr__(self, key, value)
        checks.check_text(self.text, self.template)
        checks.check_labels(self.label_names)
        check_placeholders(self.system, ("labels", "descriptions"), "system")
        checks.check_user(self.user)
        checks.check_choice(self.scoring, get_args(Scoring), "scoring")
        checks.check_choice(self.calibration, get_args(Calibration), "calibration")
        checks.check_choice(self.mode, get_args(Mode), "mode")
        checks.check_answers(self.answers, self.label_names)
        checks.check_examples(self.examples, self.label_names)
        check_placeholders(self.question, ("label", "description"), "question")
        checks.check_yes_no(self.yes, self.no)
        checks.check_thresholds(self.thresholds, self.label_names)
        checks.check_probability(self.min_score, "min_score")
        checks.check_probability(self.min_margin, "min_margin")
        self._check_mode()
        checks.check_default_label(self.default_label, has_effect=self.min_score > 0 or self.min_margin > 0)

    def _check_mode(self) -> None:
        """Refuse what has no effect in this mode."""
        if not self.multi:
            if self.thresholds:
                hint = "with one label a row give min_score, or set mode = 'multi' (--mode multi)"
                raise UsageError("thresholds: they have no effect with mode 'single'", hint)
            return
        checks.check_question(self.question, self.label_questions)
        if self.examples:
            hint = "leave out the examples, or set mode = 'single' (--mode single)"
            raise UsageError("examples: each has one label, so they are no examples of mode 'multi'", hint)
        if self.scoring != "auto":
            hint = "leave it at 'auto'"
            raise UsageError(f"scoring: {self.scoring!r} has no effect with mode 'multi': yes or no decides", hint)
        for key, value in (("min_score", self.min_score), ("min_margin", self.min_margin)):
            if value > 0:
                hint = "give thresholds, for each label the probability from which it is given"
                raise UsageError(f"{key}: {value!r} has no effect with mode 'multi'", hint)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in order."""
        return tuple(name for name, _ in self.labels)

    @property
    def multi(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.mode == "multi"

    @property
    def label_answers(self) -> tuple[str, ...]:
        """What the model is to say for each label, in order."""
        answers = dict(self.answers)
        return tuple(answers.get(name, name) for name in self.label_names)

    @property
    def label_questions(self) -> tuple[str, ...]:
        """With ``multi``, what is asked of each label, in order."""
        return tuple(
            fill(self.question, {"label": answer, "description": description}, "question")
            for answer, (_, description) in zip(self.label_answers, self.labels, strict=True)
        )

    @property
    def label_thresholds(self) -> tuple[float, ...]:
        """With ``multi``, the probability from which each label is given, in order."""
        thresholds = dict(self.thresholds)
        return tuple(thresholds.get(name, DEFAULT_THRESHOLD) for name in self.label_names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the text is made of, once each; empty when they are still to be found by name."""
        if self.template is None:
            return self.text
        return tuple(dict.fromkeys(placeholders(self.template, "text")))

    def system_message(self) -> str:
        """The system turn; empty when there is none."""
        return fill(self.system, self._label_values(), "system")

    def user_message(self, text: str) -> str:
        """The user turn around one text, which is taken verbatim."""
        return fill(self.user, self._label_values() | {"text": text}, "user")

    def example_turns(self) -> tuple[tuple[str, str], ...]:
        """The examples as (user turn, answer turn) of a chat, the answer as a row's would go on."""
        answers = dict(zip(self.label_names, self.label_answers, strict=True))
        return tuple(
            (self.user_message(text), self.answer + spaced(self.answer, answers[label]))
            for text, label in self.examples
        )

    def yes_no(self) -> tuple[tuple[str, str], ...]:
        """With ``multi``, per label what follows ``answer``: its question with yes, and with no, behind it."""
        return tuple(
            (question + spaced(question, self.yes), question + spaced(question, self.no))
            for question in self.label_questions
        )

    def with_overrides(
        self,
        *,
        text_columns: Sequence[str] = (),
        labels: str | Iterable[str] | None = None,
        scoring: str | None = None,
        calibration: str | None = None,
        mode: str | None = None,
        min_score: float | None = None,
        min_margin: float | None = None,
        default_label: str | None = None,
    ) -> "Task":
        """The same task with the values given by flags; ``None``, and no text columns, mean: not given.

        Args:
            text_columns: replace the columns or the template of the task.
            labels: names, or one string of names with commas between them, that replace all labels; blanks around
                a name are dropped, and one that the task has already keeps its description, answer, threshold and
                examples.
            scoring: as in ``Task``, and so are the others.
            calibration: whether the model's favourites are divided out.
            mode: one label a row, or any number.
            min_score: least probability of a label.
            min_margin: least distance to the next label.
            default_label: for rows below one of the two; "" for null. That of the task goes when no limit is left.

        Raises:
            UsageError: a value is not allowed; the message begins with its flag.
        """
        values: dict[str, Any] = {
            "scoring": scoring,
            "calibration": calibration,
            "mode": mode,
            "min_score": min_score,
            "min_margin": min_margin,
            "default_label": default_label,
        }
        changes = {key: value for key, value in values.items() if value is not None}
        flags = {key: f"--{key.replace('_', '-')}" for key in changes}
        is_limited = changes.get("min_score", self.min_score) or changes.get("min_margin", self.min_margin)
        if default_label == "" or (default_label is None and not is_limited):
            changes["default_label"] = None
        if text_columns:
            columns = text_columns if isinstance(text_columns, str) else tuple(text_columns)
            changes |= {"text": columns, "template": None}
            flags["text"] = "--text-column"
        if labels is not None:
            changes |= self._of_labels(labels.split(",") if isinstance(labels, str) else labels)
            changes["labels_given"] = True
            flags["labels"] = "--labels"
        try:
            return replace(self, **changes)
        except UsageError as error:  # begins with a key, which the flag that gave it is put in place of
            key, rest = re.findall(r"\A(\w+)(.*)", str(error), re.DOTALL)[0]
            raise UsageError(flags.get(key, key) + rest, error.hint) from None

    def _of_labels(self, names: Iterable[str]) -> dict[str, Any]:
        """The fields that speak of labels, for labels of these names."""
        descriptions = dict(self.labels)
        names = [name.strip() if isinstance(name, str) else name for name in names]  # the rest is refused by Task
        labels = tuple((name, descriptions.get(name, "")) for name in names)
        stay = dict(labels)
        return {
            "labels": labels,
            "answers": tuple((name, answer) for name, answer in self.answers if name in stay),
            "thresholds": tuple((name, threshold) for name, threshold in self.thresholds if name in stay),
            "examples": tuple((text, name) for text, name in self.examples if name in stay),
        }

    def _label_values(self) -> dict[str, str]:
        answers = self.label_answers
        described = (
            f"{answer} ({text})" if text.strip() else answer
            for answer, (_, text) in zip(answers, self.labels, strict=True)
        )
        return {"labels": ", ".join(answers), "descriptions": ", ".join(described)}


def spaced(before: str, text: str) -> str:
    """A text as it stands behind another: with a blank before it, where there is something that ends in none."""
    return f" {text}" if before and not before[-1].isspace() else text
