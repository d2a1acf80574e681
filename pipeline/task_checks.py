"""What the values of a task must be, each on its own and beside the others.

Every message begins with the key of its value, so that a caller can put the flag there that gave it. Knows no ``Task``.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from pipeline.errors import UsageError, quoted
from pipeline.template import check_placeholders, placeholders

_STRINGS = ("name", "system", "user", "answer", "scoring", "calibration", "mode", "question", "yes", "no")
_STRINGS_OR_NONE = ("template", "default_label")
# Keys with pairs, and one that shows what is meant.
_PAIRS = {
    "labels": ("billing", "payments, refunds"),
    "answers": ("billing", "money"),
    "examples": ("I was charged twice.", "billing"),
    "thresholds": ("billing", 0.7),
}


def of_right_types(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a task is made of, by key: lists as tuples, the path of a head as a ``Path``. Numbers are checked later.

    Raises:
        UsageError: a value is of another type.
    """
    for key in (*_STRINGS, *(key for key in _STRINGS_OR_NONE if values[key] is not None)):
        if not isinstance(values[key], str):
            raise UsageError(f"{key}: {short_repr(values[key])} is not a string")
    columns, head = values["text"], values["head"]
    if not _is_list(columns) or not all(isinstance(column, str) for column in columns):
        hint = "a text with {column} placeholders goes to template"
        raise UsageError(
            f"text: {short_repr(columns)} is not a tuple of column names, such as ('subject', 'body')", hint
        )
    if not isinstance(head, str | Path | None):
        raise UsageError(f"head: {short_repr(head)} is not the path of a file")
    pairs = {key: _pairs(values[key], key, like) for key, like in _PAIRS.items()}
    return {**values, **pairs, "text": tuple(columns), "head": Path(head) if isinstance(head, str) else head}


def _is_list(value: object) -> bool:
    return isinstance(value, tuple | list)


def _pairs(value: Any, key: str, like: tuple[str, Any]) -> tuple[tuple[Any, Any], ...]:
    if not _is_list(value):
        raise UsageError(f"{key}: {short_repr(value)} is not a tuple of pairs, such as ({like!r}, …)")
    kinds = (str, str if isinstance(like[1], str) else object)
    for pair in value:
        if not _is_list(pair) or len(pair) != 2 or not all(map(isinstance, pair, kinds)):
            raise UsageError(f"{key}: {short_repr(pair)} is not a pair, such as {like!r}")
    return tuple((first, second) for first, second in value)


def check_text(columns: Sequence[str], template: str | None) -> None:
    """Columns, or a template over columns, not both.

    Raises:
        UsageError: both, no name, or one name twice.
    """
    if template is None:
        _check_columns(columns)
        return
    if columns:
        raise UsageError(f"text: give the columns {list(columns)!r} or the template {short_repr(template)}, not both")
    names = placeholders(template, "text")
    if not names:
        hint = f"for the column itself write text = [{template!r}]"
        raise UsageError(f"text: the template {short_repr(template)} names no {{column}}", hint)
    _check_columns(tuple(dict.fromkeys(names)))


def check_user(user: str) -> None:
    """The user turn has a place for the text, and one only.

    Raises:
        UsageError: it has not.
    """
    check_placeholders(user, ("text", "labels", "descriptions"), "user")
    n_texts = placeholders(user, "user").count("text")
    if n_texts != 1:
        raise UsageError(f"user: {{text}} must stand in it exactly once, not {n_texts} times: {short_repr(user)}")


def check_labels(names: Sequence[str]) -> None:
    """At least two visible names that differ in more than case.

    Raises:
        UsageError: they are not.
    """
    if len(names) < 2:
        raise UsageError(f"labels: at least two labels are needed, got {list(names)!r}")
    seen: dict[str, str] = {}
    for name in names:
        _check_word(name, "label", "labels")
        twin = seen.get(name.casefold())
        if twin is not None:
            how = "is given twice" if twin == name else f"differs from {twin!r} in case only"
            raise UsageError(f"labels: label {name!r} {how}")
        seen[name.casefold()] = name


def check_answers(answers: Sequence[tuple[str, str]], labels: Sequence[str]) -> None:
    """Visible words for known labels; what is said for one label is said for no other, nor is it another's name.

    Raises:
        UsageError: they are not.
    """
    _check_known((label for label, _ in answers), labels, "answers")
    given = dict(answers)
    owners: dict[str, str] = {}
    for label in labels:
        answer = given.get(label, label)
        if label in given:
            _check_word(answer, "answer", "answers")
        other = owners.setdefault(answer.casefold(), label)
        if other != label:
            raise UsageError(f"answers: labels {' and '.join(quoted(other, label))} have the same answer {answer!r}")


def check_examples(examples: Sequence[tuple[str, str]], labels: Sequence[str]) -> None:
    """Texts with something in them, and a known label each.

    Raises:
        UsageError: they are not.
    """
    for text, label in examples:
        _check_label(label, labels, "examples")
        if not text.strip():
            raise UsageError(f"examples: {text!r} is no text: one of the examples of label {label!r} is blank")


def check_yes_no(yes: str, no: str) -> None:
    """Two visible words that differ in more than case; neither begins the other, or one would be part of both answers.

    Raises:
        UsageError: they are not.
    """
    _check_word(yes, "answer", "yes")
    _check_word(no, "answer", "no")
    if yes.casefold().startswith(no.casefold()) or no.casefold().startswith(yes.casefold()):
        raise UsageError(f"yes: {yes!r} and no = {no!r} are the same, or one begins with the other")


def check_question(question: str, questions: Sequence[str]) -> None:
    """With any number of labels a row: every label is asked for in words of its own.

    Args:
        question: the template.
        questions: what it becomes for each label.

    Raises:
        UsageError: it is the same for two labels.
    """
    if not placeholders(question, "question"):
        raise UsageError(f"question: {{label}} or {{description}} must stand in it: {short_repr(question)}")
    for place, asked in enumerate(questions):
        if asked in questions[:place]:
            raise UsageError(f"question: two labels have the same question {asked!r}", "let it hold {label}")


def check_thresholds(thresholds: Sequence[tuple[str, float]], labels: Sequence[str]) -> None:
    """Probabilities for known labels.

    Raises:
        UsageError: they are not.
    """
    _check_known((label for label, _ in thresholds), labels, "thresholds")
    for label, threshold in thresholds:
        check_probability(threshold, f"thresholds.{label}")


def check_probability(value: float, place: str) -> None:
    """A number from 0 to 1.

    Raises:
        UsageError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{place}: {short_repr(value)} is not a number")
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"{place}: {value!r} is not a probability, which is between 0 and 1")


def check_default_label(label: str | None, *, has_effect: bool) -> None:
    """A name as labels have one, where some rows may get it.

    Raises:
        UsageError: it is none, or no row can get it.
    """
    if label is None:
        return
    _check_word(label, "label", "default_label")
    if not has_effect:
        raise UsageError(
            f"default_label: {label!r} has no effect without min_score or min_margin",
            "give min_score (--min-score P), the probability below which a row gets the default label",
        )


def check_choice(value: str, choices: tuple[str, ...], place: str) -> None:
    """One of a few words.

    Raises:
        UsageError: it is not; the hint has the nearest.
    """
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{place}: {value!r} is not one of {', '.join(map(repr, choices))}", hint)


def _check_columns(columns: Sequence[str]) -> None:
    for position, column in enumerate(columns):
        if not column.strip():
            raise UsageError(f"text: {column!r} is not a column name")
        if column in columns[:position]:
            raise UsageError(f"text: column {column!r} is given twice")


def _check_word(word: str, what: str, place: str) -> None:
    """What a model is to say, or a row is to get."""
    if not word.strip():
        kind = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
        raise UsageError(f"{place}: {word!r} is not {kind}; {kind} is at least one visible character")
    if word != word.strip():
        raise UsageError(f"{place}: {what} {word!r} has blanks around it", f"write {word.strip()!r}")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in word):
        raise UsageError(f"{place}: {what} {word!r} has a line break or control character in it")


def _check_known(names: Iterable[str], labels: Sequence[str], place: str) -> None:
    seen: set[str] = set()
    for name in names:
        _check_label(name, labels, place)
        if name in seen:
            raise UsageError(f"{place}: label {name!r} is given twice")
        seen.add(name)


def _check_label(name: str, labels: Sequence[str], place: str) -> None:
    if name not in labels:
        near = get_close_matches(name, labels, n=1, cutoff=0.0)[0]
        shown, near_shown = quoted(name, near)
        raise UsageError(f"{place}: {shown} is not one of the labels; the nearest is {near_shown}")
