"""What to ask of every row: text columns, labels and their descriptions, prompts, scoring and calibration.

A ``Task`` is immutable and valid: whoever holds one need not check it again. Placeholders are filled in a single pass,
so text, labels and descriptions may contain braces. This module knows nothing of TOML (``task_file``), of an input's
columns (``text_columns``), of Arrow, tokenizers or models, and imports nothing heavy.
"""

import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Literal, get_args

from pipeline.errors import UsageError

Mode = Literal["single", "multi"]
Scoring = Literal["auto", "first-token", "constrained", "sequence"]
Calibration = Literal["none", "contextual", "batch"]

DEFAULT_THRESHOLD = 0.5

_BRACES_HINT = "write a literal brace doubled: {{ or }}"


@dataclass(frozen=True, slots=True)
class Task:
    """One classification task, checked when it is made.

    Args:
        name: for logs and reports.
        text: columns that are joined by a blank line; empty, with no template: to be found by name.
        template: instead of ``text``: a text with ``{column}`` placeholders.
        labels: (name, description) pairs, at least two; a description may be empty. Order decides ties.
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

    def __post_init__(self) -> None:
        _check_columns(self.text, "text")
        if self.template is not None:
            _check_template(self.template, self.text)
        _check_labels(self.label_names, "labels")
        _check_placeholders(self.system, ("labels", "descriptions"), "system")
        _check_placeholders(self.user, ("text", "labels", "descriptions"), "user")
        n_texts = _placeholders(self.user, "user").count("text")
        if n_texts != 1:
            raise UsageError(
                f"user: {{text}} must stand in it exactly once, not {n_texts} times: {short_repr(self.user)}"
            )
        _check_choice(self.scoring, get_args(Scoring), "scoring")
        _check_choice(self.calibration, get_args(Calibration), "calibration")

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
            _fill(self.question, {"label": answer, "description": description}, "question")
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
        return tuple(dict.fromkeys(_placeholders(self.template, "text")))

    def system_message(self) -> str:
        """The system turn; empty when there is none."""
        return _fill(self.system, self._label_values(), "system")

    def user_message(self, text: str) -> str:
        """The user turn around one text, which is taken verbatim."""
        return _fill(self.user, self._label_values() | {"text": text}, "user")

    def with_overrides(
        self,
        *,
        text_columns: Sequence[str] = (),
        labels: str | Iterable[str] | None = None,
        scoring: str | None = None,
        calibration: str | None = None,
    ) -> "Task":
        """The same task with the values given by flags; ``None``, and no text columns, mean: not given.

        Args:
            text_columns: replace the columns or the template of the task.
            labels: names, or one string of names with commas between them, that replace all labels; blanks around
                a name are dropped, and one that the task has already keeps its description.
            scoring: as in ``Task``.
            calibration: as in ``Task``.

        Raises:
            UsageError: a value is not allowed; the message begins with its flag.
        """
        changes: dict[str, Any] = {}
        if text_columns:
            _check_columns(text_columns, "--text-column")
            changes |= {"text": tuple(text_columns), "template": None}
        if labels is not None:
            names = [name.strip() for name in (labels.split(",") if isinstance(labels, str) else labels)]
            _check_labels(names, "--labels")
            descriptions = dict(self.labels)
            changes["labels"] = tuple((name, descriptions.get(name, "")) for name in names)
        if scoring is not None:
            _check_choice(scoring, get_args(Scoring), "--scoring")
            changes["scoring"] = scoring
        if calibration is not None:
            _check_choice(calibration, get_args(Calibration), "--calibration")
            changes["calibration"] = calibration
        return replace(self, **changes)

    def _label_values(self) -> dict[str, str]:
        described = (f"{name} ({text})" if text.strip() else name for name, text in self.labels)
        return {"labels": ", ".join(self.label_names), "descriptions": ", ".join(described)}


def split_template(template: str, place: str) -> list[tuple[str, str | None]]:
    """Cut a template into (literal, placeholder that follows it) pieces; ``None``: no placeholder follows.

    Args:
        template: with ``{name}`` placeholders; ``{{`` and ``}}`` are literal braces.
        place: key or flag, for the message.

    Raises:
        UsageError: braces do not match, or a placeholder asks for a format or conversion.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{place}: {short_repr(template)}: {error}", _BRACES_HINT) from None
    for _, name, spec, conversion in parsed:
        if spec or conversion:
            raise UsageError(f"{place}: placeholder {name!r} may not be followed by ':' or '!'", _BRACES_HINT)
    return [(literal, name) for literal, name, _, _ in parsed]


def _placeholders(template: str, place: str) -> list[str]:
    return [name for _, name in split_template(template, place) if name is not None]


def _fill(template: str, values: Mapping[str, str], place: str) -> str:
    pieces = split_template(template, place)
    return "".join(literal if name is None else literal + values[name] for literal, name in pieces)


def _check_placeholders(template: str, known: tuple[str, ...], place: str) -> None:
    for name in _placeholders(template, place):
        if name not in known:
            allowed = ", ".join(f"{{{placeholder}}}" for placeholder in known)
            raise UsageError(f"{place}: unknown placeholder {'{' + name + '}'!r}; known are {allowed}", _BRACES_HINT)


def _check_template(template: str, columns: tuple[str, ...]) -> None:
    if columns:
        raise UsageError(f"text: give the columns {list(columns)!r} or the template {short_repr(template)}, not both")
    names = _placeholders(template, "text")
    if not names:
        hint = f"for the column itself write text = [{template!r}]"
        raise UsageError(f"text: the template {short_repr(template)} names no {{column}}", hint)
    _check_columns(tuple(dict.fromkeys(names)), "text")


def _check_columns(columns: Sequence[str], place: str) -> None:
    for position, column in enumerate(columns):
        if not column.strip():
            raise UsageError(f"{place}: {column!r} is not a column name")
        if column in columns[:position]:
            raise UsageError(f"{place}: column {column!r} is given twice")


def _check_labels(names: Sequence[str], place: str) -> None:
    if len(names) < 2:
        raise UsageError(f"{place}: at least two labels are needed, got {list(names)!r}")
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip():
            raise UsageError(f"{place}: {name!r} is not a label; a label is at least one visible character")
        if name != name.strip():
            raise UsageError(f"{place}: label {name!r} has blanks around it", f"write {name.strip()!r}")
        if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
            raise UsageError(f"{place}: label {name!r} has a line break or control character in it")
        twin = seen.get(name.casefold())
        if twin is not None:
            how = "is given twice" if twin == name else f"differs from {twin!r} in case only"
            raise UsageError(f"{place}: label {name!r} {how}")
        seen[name.casefold()] = name


def _check_choice(value: str, choices: tuple[str, ...], place: str) -> None:
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{place}: {value!r} is not one of {', '.join(map(repr, choices))}", hint)
