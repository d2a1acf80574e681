from dataclasses import replace

from pipeline.task_file import task_from_toml
from pipeline.tuning.variants import Variant, choose_examples, order_variants, prompt_variants, scoring_variants

TASK = task_from_toml(
    'system = "One of: {descriptions}."\nuser = "T: {text}"\nanswer = ""\nscoring = "auto"\n'
    '[labels]\na = "first"\nb = ""\nc = "third"\n',
    "t",
)


def test_each_variant_changes_one_thing_and_the_given_task_comes_first():
    variants = {variant.name: variant.task for variant in prompt_variants(TASK, [("x", "a"), ("y", "b"), ("z", "c")])}
    plain = replace(TASK, calibration="none")
    assert variants == {
        "as given": plain,
        "without descriptions": replace(plain, system="One of: {labels}."),
        "labels not listed": replace(plain, system=""),
        "answer begins 'Category:'": replace(plain, answer="Category:"),
        "one example per label": replace(plain, examples=(("x", "a"), ("y", "b"), ("z", "c"))),
    }


def test_descriptions_are_tried_where_there_are_some():
    with_names = replace(TASK, system="One of: {labels}.", answer="It is")
    names = [variant.name for variant in prompt_variants(with_names, [])]
    assert names == ["as given", "with descriptions", "labels not listed"]
    bare = replace(with_names, labels=(("a", ""), ("b", "")))
    assert [variant.name for variant in prompt_variants(bare, [])] == ["as given", "labels not listed"]


def test_labels_are_listed_where_they_are_not_and_only_there():
    task = replace(TASK, system="You judge.", answer="It is")
    variants = {variant.name: variant.task.system for variant in prompt_variants(task, [])}
    assert variants == {
        "as given": "You judge.",
        "labels listed": "You judge. Answer with exactly one of: {labels}.",
        "descriptions listed": "You judge. Answer with exactly one of: {descriptions}.",
    }
    (listed,) = [v.task.system for v in prompt_variants(replace(task, mode="multi"), []) if v.name == "labels listed"]
    assert listed == "You judge. Labels: {labels}."


def test_only_the_sentences_that_list_labels_are_left_out():
    task = replace(TASK, system="You judge. Take your time! Answer with one of:\n{labels}.", answer="It is")
    (unlisted,) = [v.task.system for v in prompt_variants(task, []) if v.name == "labels not listed"]
    assert unlisted == "You judge. Take your time!"
    in_user = replace(TASK, user="{text}: {labels}", answer="It is")
    assert "labels not listed" not in [variant.name for variant in prompt_variants(in_user, [])]


def test_the_other_ways_to_compare_labels_are_tried():
    assert [v.task.scoring for v in scoring_variants(Variant("x", TASK))] == ["constrained", "sequence"]
    assert [v.task.scoring for v in scoring_variants(Variant("x", replace(TASK, scoring="sequence")))] == [
        "constrained"
    ]
    assert scoring_variants(Variant("x", replace(TASK, mode="multi"))) == []


def test_orders_are_other_orders_of_the_same_labels():
    orders = [variant.task.labels for variant in order_variants(Variant("x", TASK), seed=0)]
    assert len(set(orders)) == 2 and TASK.labels not in orders
    assert all(sorted(order) == sorted(TASK.labels) for order in orders)
    two = replace(TASK, labels=(("a", ""), ("b", "")))
    assert [variant.task.label_names for variant in order_variants(Variant("x", two), seed=0)] == [("b", "a")]


def test_examples_are_of_middling_length_one_for_each_label():
    texts = ["a" * 10, "a" * 50, "b" * 60, "b" * 500, "c" * 55]
    labels = [["a"], ["a"], ["b"], ["b"], ["c"]]
    assert choose_examples(texts, labels, TASK) == [1, 2, 4]
    assert choose_examples(texts[:4], labels[:4], TASK) == [], "a label without a text"
    assert choose_examples(texts, labels, replace(TASK, mode="multi")) == []
