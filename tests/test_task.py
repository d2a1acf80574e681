from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.task import Task, split_template

TASK = Task(
    name="test",
    text=("subject", "body"),
    template=None,
    labels=(("billing", "payments, refunds"), ("other", "")),
    system="One of {labels}: {descriptions}. {{JSON}}",
    user="Ticket: {text}\n{labels}",
    answer='{"label": {text}',
    scoring="auto",
    calibration="none",
)


def test_system_message_fills_labels_and_descriptions_and_halves_doubled_braces():
    assert TASK.system_message() == "One of billing, other: billing (payments, refunds), other. {JSON}"


def test_an_empty_system_gives_an_empty_message():
    assert replace(TASK, system="").system_message() == ""


@given(st.text())
@example("{labels} {text} {0} {{ }} { } {text!r:>9}")
def test_user_message_takes_the_text_verbatim_whatever_its_braces(text):
    assert TASK.user_message(text) == "Ticket: " + text + "\nbilling, other"


def test_braces_in_labels_and_descriptions_are_not_placeholders():
    task = replace(TASK, labels=(("{text}", "{labels}"), ("b", "{{")), system="{descriptions}")
    assert task.system_message() == "{text} ({labels}), b ({{)"
    assert task.user_message("T") == "Ticket: T\n{text}, b"


def test_label_names_and_columns_keep_their_order():
    assert TASK.label_names == ("billing", "other")
    assert TASK.columns == ("subject", "body")


def test_columns_of_a_template_are_named_once_each_in_order_of_appearance():
    task = replace(TASK, text=(), template="{b}{a c} {{x}} {b}")
    assert task.columns == ("b", "a c")


def test_split_template_pairs_each_literal_with_the_placeholder_behind_it():
    assert split_template("a{{{x.y[0]}}}b", "text") == [("a{", None), ("", "x.y[0]"), ("}", None), ("b", None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ()}, r"labels: at least two labels are needed, got \[\]"),
        ({"labels": (("a", ""),)}, r"labels: at least two labels are needed, got \['a'\]"),
        ({"labels": (("a", ""), (" ", ""))}, r"labels: ' ' is not a label"),
        ({"labels": (("a", ""), ("", ""))}, r"labels: '' is not a label"),
        ({"labels": (("a", ""), ("b ", ""))}, r"labels: label 'b ' has blanks around it"),
        ({"labels": (("a", ""), ("b\nc", ""))}, r"labels: label 'b\\nc' has a line break"),
        ({"labels": (("a", ""), ("b\u2028c", ""))}, r"labels: label 'b\\u2028c' has a line break"),
        ({"labels": (("a", ""), ("\udce9", ""))}, r"labels: label '\\udce9' has a line break or control character"),
        ({"labels": (("a", ""), ("a", ""))}, r"labels: label 'a' is given twice"),
        ({"labels": (("a", ""), ("b", ""), ("A", ""))}, r"labels: label 'A' differs from 'a' in case only"),
        ({"user": "Ticket:"}, r"user: \{text\} must stand in it exactly once, not 0 times: 'Ticket:'"),
        ({"user": "{text} {text}"}, r"user: \{text\} must stand in it exactly once, not 2 times"),
        ({"user": "{{text}}"}, r"user: \{text\} must stand in it exactly once, not 0 times"),
        ({"user": "{text} {label}"}, r"user: unknown placeholder '\{label\}'; known are \{text\}, \{labels\}, \{desc"),
        ({"system": "{text}"}, r"system: unknown placeholder '\{text\}'; known are \{labels\}, \{descriptions\}$"),
        ({"system": "{}"}, r"system: unknown placeholder '\{\}'"),
        ({"system": "a { b"}, r"system: 'a \{ b': "),
        ({"system": "a } b"}, r"system: 'a \} b': "),
        ({"system": "{labels:>9}"}, r"system: placeholder 'labels' may not be followed by ':' or '!'"),
        ({"system": "{labels!r}"}, r"system: placeholder 'labels' may not be followed by ':' or '!'"),
        ({"text": ("a", "a")}, r"text: column 'a' is given twice"),
        ({"text": ("",)}, r"text: '' is not a column name"),
        ({"text": (), "template": "body"}, r"text: the template 'body' names no \{column\}"),
        ({"text": (), "template": "{ }"}, r"text: ' ' is not a column name"),
        ({"text": ("a",), "template": "{b}"}, r"text: give the columns \['a'\] or the template '\{b\}', not both"),
        ({"scoring": "frist-token"}, r"scoring: 'frist-token' is not one of 'auto', 'first-token', 'sequence'"),
        ({"calibration": ""}, r"calibration: '' is not one of 'none', 'contextual'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_itself(change, message):
    with pytest.raises(UsageError, match=message) as caught:
        replace(TASK, **change)
    assert "\n" not in str(caught.value)


def test_joined_emoji_and_non_latin_letters_may_be_labels():
    names = ("👩\u200d💻", "نر\u200cم", "sales lead", "a.b")
    assert replace(TASK, labels=tuple((name, "") for name in names)).label_names == names


def test_a_template_that_is_only_a_column_name_hints_at_the_array():
    with pytest.raises(UsageError) as caught:
        replace(TASK, text=(), template="body")
    assert caught.value.hint == "for the column itself write text = ['body']"


def test_a_choice_misspelt_hints_at_the_nearest():
    with pytest.raises(UsageError) as caught:
        TASK.with_overrides(scoring="sequences")
    assert caught.value.hint == "did you mean 'sequence'?"


def test_overrides_not_given_change_nothing():
    assert TASK.with_overrides() == TASK


def test_overrides_replace_what_is_given():
    task = TASK.with_overrides(text_columns=["x"], scoring="sequence", calibration="contextual")
    assert task == replace(TASK, text=("x",), scoring="sequence", calibration="contextual")


def test_text_columns_given_replace_a_template():
    task = replace(TASK, text=(), template="{a} {b}").with_overrides(text_columns=["x", "y"])
    assert (task.text, task.template, task.columns) == (("x", "y"), None, ("x", "y"))


@pytest.mark.parametrize("given_labels", ["new, billing", ["new", "billing "]])
def test_labels_given_replace_all_and_keep_descriptions_of_known_names(given_labels):
    assert TASK.with_overrides(labels=given_labels).labels == (("new", ""), ("billing", "payments, refunds"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": "a,a"}, "--labels: label 'a' is given twice"),
        ({"labels": "a,b,"}, "--labels: '' is not a label"),
        ({"labels": ""}, "--labels: at least two labels are needed"),
        ({"labels": []}, "--labels: at least two labels are needed"),
        ({"text_columns": ["a", "a"]}, "--text-column: column 'a' is given twice"),
        ({"scoring": "fast"}, "--scoring: 'fast' is not one of"),
        ({"calibration": "off"}, "--calibration: 'off' is not one of"),
    ],
)
def test_a_wrong_override_is_refused_with_its_flag(change, message):
    with pytest.raises(UsageError, match=message):
        TASK.with_overrides(**change)
