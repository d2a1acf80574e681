from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.task import Task, spaced

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
        (
            {"scoring": "frist-token"},
            r"scoring: 'frist-token' is not one of 'auto', 'first-token', 'constrained', 'sequence'",
        ),
        ({"calibration": ""}, r"calibration: '' is not one of 'none', 'contextual', 'batch'"),
        ({"mode": "many"}, r"mode: 'many' is not one of 'single', 'multi'"),
        ({"answers": (("biling", "x"),)}, r"answers: 'biling' is not one of the labels; the nearest is 'billing'"),
        ({"answers": (("other", "x"), ("other", "y"))}, r"answers: label 'other' is given twice"),
        ({"answers": (("other", " "),)}, r"answers: ' ' is not an answer; an answer is at least one visible character"),
        ({"answers": (("other", "x "),)}, r"answers: answer 'x ' has blanks around it"),
        ({"answers": (("other", "a\nb"),)}, r"answers: answer 'a\\nb' has a line break or control character in it"),
        ({"answers": (("other", "Billing"),)}, r"answers: labels 'billing' and 'other' have the same answer 'Billing'"),
        ({"examples": (("x", "bill"),)}, r"examples: 'bill' is not one of the labels; the nearest is 'billing'"),
        (
            {"examples": (("\n", "other"),)},
            r"examples: '\\n' is no text: one of the examples of label 'other' is blank",
        ),
        (
            {"question": "{labels}"},
            r"question: unknown placeholder '\{labels\}'; known are \{label\}, \{description\}$",
        ),
        ({"yes": ""}, r"yes: '' is not an answer"),
        ({"no": "n\to"}, r"no: answer 'n\\to' has a line break or control character in it"),
        ({"yes": "No"}, r"yes: 'No' and no = 'no' are the same, or one begins with the other"),
        ({"yes": "none"}, r"yes: 'none' and no = 'no' are the same, or one begins with the other"),
        ({"thresholds": (("other", 0.3),)}, r"thresholds: they have no effect with mode 'single'"),
        ({"min_score": 1.5}, r"min_score: 1.5 is not a probability, which is between 0 and 1"),
        ({"min_margin": float("nan")}, r"min_margin: nan is not a probability, which is between 0 and 1"),
        ({"default_label": "x"}, r"default_label: 'x' has no effect without min_score or min_margin"),
        ({"default_label": " ", "min_score": 0.5}, r"default_label: ' ' is not a label; a label is at least one visib"),
        ({"default_label": " x", "min_score": 0.5}, r"default_label: label ' x' has blanks around it"),
        ({"default_label": "x\ty", "min_score": 0.5}, r"default_label: label 'x\\ty' has a line break or control char"),
        (
            {"labels": (("caf\u00e9", ""), ("b", "")), "examples": (("x", "cafe\u0301"),)},
            r"examples: 'cafe\\u0301' is not one of the labels; the nearest is 'caf\\xe9'",
        ),
        (
            {"labels": (("caf\u00e9", ""), ("cafe\u0301", "")), "answers": (("caf\u00e9", "x"), ("cafe\u0301", "x"))},
            r"answers: labels 'caf\\xe9' and 'cafe\\u0301' have the same answer 'x'",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_itself(change, message):
    with pytest.raises(UsageError, match=message) as caught:
        replace(TASK, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "name: None is not a string"),
        ({"system": None}, "system: None is not a string"),
        ({"user": b"{text}"}, "user: b'{text}' is not a string"),
        ({"answer": 1}, "answer: 1 is not a string"),
        ({"scoring": None}, "scoring: None is not a string"),
        ({"yes": True}, "yes: True is not a string"),
        ({"template": ("{a}",)}, "template: ('{a}',) is not a string"),
        ({"default_label": 1}, "default_label: 1 is not a string"),
        ({"text": "text"}, "text: 'text' is not a tuple of column names, such as ('subject', 'body')"),
        ({"text": None}, "text: None is not a tuple of column names, such as ('subject', 'body')"),
        ({"text": ("a", 1)}, "text: ('a', 1) is not a tuple of column names, such as ('subject', 'body')"),
        ({"labels": {"aa": "x"}}, "labels: {'aa': 'x'} is not a tuple of pairs, such as (('billing', 'payments"),
        ({"labels": "ab"}, "labels: 'ab' is not a tuple of pairs, such as (('billing', "),
        ({"labels": ("aa", "bb")}, "labels: 'aa' is not a pair, such as ('billing', 'payments, refunds')"),
        ({"labels": (("a", "", ""), ("b", ""))}, "labels: ('a', '', '') is not a pair, such as ('billing', "),
        ({"labels": (("a", None), ("b", ""))}, "labels: ('a', None) is not a pair, such as ('billing', "),
        ({"answers": {"other": "x"}}, "answers: {'other': 'x'} is not a tuple of pairs, such as (('billing', 'money')"),
        ({"answers": ((1, "x"),)}, "answers: (1, 'x') is not a pair, such as ('billing', 'money')"),
        ({"examples": ("x",)}, "examples: 'x' is not a pair, such as ('I was charged twice.', 'billing')"),
        (
            {"thresholds": {"other": 0.3}},
            "thresholds: {'other': 0.3} is not a tuple of pairs, such as (('billing', 0.7)",
        ),
        ({"thresholds": (("other", "0.3"),)}, "thresholds.other: '0.3' is not a number"),
        ({"min_score": "0.4"}, "min_score: '0.4' is not a number"),
        ({"min_margin": None}, "min_margin: None is not a number"),
        ({"min_score": True}, "min_score: True is not a number"),
        ({"head": 1}, "head: 1 is not the path of a file"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key_and_what_is_expected(change, message):
    with pytest.raises(UsageError) as caught:
        replace(TASK, **change)
    assert str(caught.value).startswith(message)


def test_lists_are_tuples_and_a_string_is_the_path_of_a_head():
    as_lists = {"text": ["subject"], "labels": [["billing", "x"], ("other", "")], "examples": [("T", "other")]}
    task = replace(TASK, head="/x.safetensors", **as_lists)
    assert task.head == Path("/x.safetensors")
    assert (task.text, task.labels) == (("subject",), (("billing", "x"), ("other", "")))
    assert hash(task) == hash(replace(task))


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


MULTI = replace(TASK, mode="multi", answers=(("other", "else"),), thresholds=(("other", 0.3),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thresholds": (("x", 0.3),)}, r"thresholds: 'x' is not one of the labels; the nearest is "),
        ({"thresholds": (("other", -0.1),)}, r"thresholds\.other: -0.1 is not a probability"),
        ({"question": "{{label}}?"}, r"question: \{label\} or \{description\} must stand in it: '\{\{label\}\}\?'"),
        (
            {"question": "{description}?", "labels": (("a", ""), ("other", ""))},
            r"question: two labels have the same question '\?'",
        ),
        ({"examples": (("x", "other"),)}, r"examples: each has one label, so they are no examples of mode 'multi'"),
        ({"scoring": "sequence"}, r"scoring: 'sequence' has no effect with mode 'multi'"),
        ({"min_score": 0.5}, r"min_score: 0.5 has no effect with mode 'multi'"),
        ({"min_margin": 0.5}, r"min_margin: 0.5 has no effect with mode 'multi'"),
        ({"default_label": "x"}, r"default_label: 'x' has no effect without min_score or min_margin"),
    ],
)
def test_what_has_no_effect_with_several_labels_a_row_is_refused(change, message):
    with pytest.raises(UsageError, match=message) as caught:
        replace(MULTI, **change)
    assert "\n" not in str(caught.value)


def test_every_message_about_a_value_begins_with_its_key():
    """Overrides put their flag in its place."""
    for change in ({"mode": "x"}, {"min_score": 2}, {"default_label": "x"}, {"labels": ()}, {"text": ("a", "a")}):
        with pytest.raises(UsageError) as caught:
            replace(TASK, **change)
        (key,) = change
        assert str(caught.value).startswith(f"{key}: ")


def test_answers_stand_in_prompts_for_the_names_of_their_labels():
    task = replace(TASK, answers=(("billing", "money"),))
    assert task.label_answers == ("money", "other")
    assert task.system_message() == "One of money, other: money (payments, refunds), other. {JSON}"


def test_two_labels_may_swap_their_names_as_answers():
    task = replace(TASK, labels=(("yes", ""), ("no", "")), answers=(("yes", "no"), ("no", "yes")))
    assert task.label_answers == ("no", "yes")


@pytest.mark.parametrize(
    ("before", "whole"), [("A:", " x"), ("A: ", "x"), ("A:\n", "x"), ("A:\u3000", "x"), ("", "x"), (" ", "x")]
)
def test_a_text_is_spaced_behind_what_does_not_end_in_a_blank(before, whole):
    assert spaced(before, "x") == whole


def test_examples_are_turns_like_those_of_a_row():
    examples = (("{text} twice", "billing"), ("x", "other"))
    task = replace(TASK, answer="Category:", answers=(("billing", "money"),), examples=examples)
    assert task.example_turns() == (
        ("Ticket: {text} twice\nmoney, other", "Category: money"),
        ("Ticket: x\nmoney, other", "Category: other"),
    )
    assert replace(task, answer="").example_turns()[1][1] == "other"
    assert replace(task, answer="A:\n").example_turns()[1][1] == "A:\nother"


def test_each_label_has_a_question_and_a_threshold_of_its_own():
    assert MULTI.label_questions == ("billing:", "else:")
    assert MULTI.label_thresholds == (0.5, 0.3)
    assert MULTI.yes_no() == (("billing: yes", "billing: no"), ("else: yes", "else: no"))
    task = replace(MULTI, question="{label} ({description})?\n", yes="Ja", no="Nein")
    assert task.yes_no()[0] == ("billing (payments, refunds)?\nJa", "billing (payments, refunds)?\nNein")


def test_descriptions_alone_may_tell_questions_apart():
    task = replace(MULTI, question="about {description}?", labels=(("billing", "money"), ("other", "the rest")))
    assert task.label_questions == ("about money?", "about the rest?")


def test_questions_that_a_task_of_one_label_has_no_use_for_are_harmless():
    task = replace(TASK, question="about nothing?", yes="ja", no="nein")
    assert not task.multi


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


def test_what_speaks_of_labels_stays_for_those_that_stay():
    task = replace(TASK, answers=(("billing", "money"), ("other", "else")), examples=(("x", "other"), ("y", "billing")))
    task = task.with_overrides(labels="new,other")
    assert (task.answers, task.examples) == ((("other", "else"),), (("x", "other"),))
    assert MULTI.with_overrides(labels="other,new").label_thresholds == (0.3, 0.5)
    assert MULTI.with_overrides(labels="billing,new").thresholds == ()


def test_limits_given_replace_those_of_the_task():
    task = replace(TASK, min_score=0.1).with_overrides(min_score=0.2, min_margin=0.3, default_label="ask")
    assert (task.min_score, task.min_margin, task.default_label) == (0.2, 0.3, "ask")
    assert task.with_overrides(min_score=0.0).default_label == "ask"  # the margin stays
    assert TASK.with_overrides(mode="multi").multi


UNSURE = replace(TASK, min_score=0.4, default_label="other")


def test_an_override_that_leaves_no_limit_switches_the_default_label_off():
    assert UNSURE.with_overrides(min_score=0) == TASK
    assert UNSURE.with_overrides(min_score=0.0, mode="multi") == replace(TASK, mode="multi")
    assert UNSURE.with_overrides(min_score=0, min_margin=0.1) == replace(
        TASK, min_score=0, min_margin=0.1, default_label="other"
    )
    with pytest.raises(UsageError, match=r"^--default-label: 'ask' has no effect without min_score or min_margin"):
        UNSURE.with_overrides(min_score=0, default_label="ask")


def test_an_empty_default_label_is_none():
    assert UNSURE.with_overrides(default_label="") == replace(TASK, min_score=0.4)
    assert TASK.with_overrides(default_label="") == TASK
    with pytest.raises(UsageError, match=r"^--default-label: ' ' is not a label"):
        UNSURE.with_overrides(default_label=" ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "many"}, "--mode: 'many' is not one of"),
        ({"min_score": "0.4"}, "--min-score: '0.4' is not a number"),
        ({"text_columns": "text"}, "--text-column: 'text' is not a tuple of column names"),
        ({"labels": [1, 2]}, r"--labels: \(1, ''\) is not a pair"),
        ({"default_label": "x ", "min_score": 0.5}, "--default-label: label 'x ' has blanks around it"),
        ({"min_score": 2.0}, "--min-score: 2.0 is not a probability, which is between 0 and 1"),
        ({"min_margin": -1.0}, "--min-margin: -1.0 is not a probability"),
        ({"default_label": "x"}, "--default-label: 'x' has no effect without min_score or min_margin"),
        ({"min_score": 0.1, "mode": "multi"}, "--min-score: 0.1 has no effect with mode 'multi'"),
        ({"scoring": "sequence", "mode": "multi"}, "--scoring: 'sequence' has no effect with mode 'multi'"),
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


def test_a_value_of_the_task_that_an_override_makes_wrong_is_named_by_its_key():
    with pytest.raises(UsageError, match=r"^thresholds: they have no effect with mode 'single'"):
        MULTI.with_overrides(mode="single")
    with pytest.raises(UsageError, match=r"^examples: each has one label"):
        replace(TASK, examples=(("x", "other"),)).with_overrides(mode="multi")
