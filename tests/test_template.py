from pipeline.template import fill, placeholders, split_template


def test_split_template_pairs_each_literal_with_the_placeholder_behind_it():
    assert split_template("a{{{x.y[0]}}}b", "text") == [("a{", None), ("", "x.y[0]"), ("}", None), ("b", None)]


def test_placeholders_are_named_as_often_as_they_stand_there():
    assert placeholders("{a}{{b}}{c} {a}", "text") == ["a", "c", "a"]


def test_values_are_put_in_as_they_stand():
    assert fill("{{{a}}} {b}", {"a": "{b}", "b": "}}"}, "text") == "{{b}} }}"
