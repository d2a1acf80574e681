import subprocess
import sys
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.task_file import MAX_TASK_FILE_BYTES, builtin_names, builtin_task, builtin_toml, load_task, task_from_toml


def test_the_builtin_task_sorts_tickets_and_finds_its_text_by_name():
    task = builtin_task()
    assert task.name == "tickets"
    assert (task.text, task.template, task.columns) == ((), None, ())
    assert task.label_names == ("billing", "technical", "account")
    assert all(description for _, description in task.labels)
    assert (task.scoring, task.calibration) == ("auto", "contextual")


def test_the_builtin_prompts_speak_of_no_labels_so_that_their_order_cannot_matter():
    task = builtin_task().with_overrides(labels="spam,ham")
    assert task.label_answers == ("spam", "ham")
    prompts = task.system + task.user + task.answer
    assert not any(name in prompts for name in builtin_task().label_names)


def test_a_file_overrides_the_builtin_task_key_by_key(tmp_path):
    path = tmp_path / "mail.toml"
    path.write_text('text = ["subject", "body"]\nscoring = "sequence"\n')
    assert load_task(path) == replace(builtin_task(), name="mail", text=("subject", "body"), scoring="sequence")


def test_a_copy_of_the_builtin_file_is_the_builtin_task(tmp_path):
    copy = tmp_path / "tickets.toml"
    copy.write_bytes(files("pipeline").joinpath("tasks/tickets.toml").read_bytes())
    assert load_task(copy) == builtin_task()


def test_labels_of_a_file_replace_all_labels_and_keep_their_order():
    task = task_from_toml('[labels]\nzebra = ""\n"a b" = "x"\n', "t")
    assert task.labels == (("zebra", ""), ("a b", "x"))


def test_a_string_as_text_is_a_template():
    task = task_from_toml('text = "Subject: {subject}\\n\\n{body}"', "t")
    assert (task.text, task.template, task.columns) == ((), "Subject: {subject}\n\n{body}", ("subject", "body"))


def test_every_string_key_of_a_file_is_used():
    toml = 'system = ""\nuser = "<{text}>"\nanswer = "= "\nscoring = "first-token"\ncalibration = "none"'
    task = task_from_toml(toml, "t")
    assert (task.system, task.user, task.answer) == ("", "<{text}>", "= ")
    assert (task.scoring, task.calibration) == ("first-token", "none")


EVERYTHING = """
text = ["a"]
calibration = "batch"
scoring = "constrained"
question = "{description}?"
yes = "ja"
no = "nein"
min_score = 1
min_margin = 0.25
default_label = "other"
head = "heads/h.safetensors"
[labels]
up = "higher"
down = "lower"
[answers]
up = "rise"
[[examples]]
text = "It rose."
label = "up"
[[examples]]
text = "It fell."
label = "down"
"""


def test_every_other_key_of_a_file_is_used(tmp_path):
    (tmp_path / "t.toml").write_text(EVERYTHING)
    task = load_task(tmp_path / "t.toml")
    assert (task.calibration, task.scoring) == ("batch", "constrained")
    assert (task.question, task.yes, task.no) == ("{description}?", "ja", "nein")
    assert (task.min_score, task.min_margin, task.default_label) == (1.0, 0.25, "other")
    assert isinstance(task.min_score, float)
    assert task.answers == (("up", "rise"),)
    assert task.examples == (("It rose.", "up"), ("It fell.", "down"))
    multi = task_from_toml('mode = "multi"\n[thresholds]\nbilling = 0.7\naccount = 1', "t")
    assert (multi.mode, multi.label_thresholds) == ("multi", (0.7, 0.5, 1.0))


def test_a_head_is_found_from_the_folder_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    path = tmp_path / "tasks" / "t.toml"
    path.write_text('head = "../h.safetensors"')
    assert load_task(path).head == tmp_path / "h.safetensors"
    monkeypatch.chdir(tmp_path)
    assert load_task("tasks/t.toml").head == tmp_path / "h.safetensors"
    path.write_text('head = "/heads/h"')
    assert load_task(path).head == Path("/heads/h")


def test_an_empty_string_is_no_head_and_no_default_label():
    task = task_from_toml('head = ""\ndefault_label = ""\nmin_score = 0.5', "t")
    assert (task.head, task.default_label) == (None, None)


def test_examples_may_stand_in_one_array():
    task = task_from_toml('examples = [{text = "x", label = "billing"}]', "t")
    assert task.examples == (("x", "billing"),)


def test_the_builtin_file_sets_every_setting_and_has_a_paragraph_for_every_table():
    paragraphs = builtin_toml("tickets").split("\n\n")
    for field in fields(builtin_task()):
        if field.name not in ("name", "template", "labels_given"):
            starts = (f"{field.name} = ", f"[{field.name}]", f"# [{field.name}]", f"# [[{field.name}]]")
            assert any(line.startswith(starts) for part in paragraphs for line in part.splitlines()), field.name


@pytest.mark.parametrize("name", builtin_names())
def test_a_builtin_task_is_asked_for_by_its_name(name):
    task = load_task(f"builtin:{name}")
    assert task == builtin_task(name)
    assert task.name == name
    assert all(description for _, description in task.labels)
    assert task.system_message()
    assert task.answer
    assert name == "tickets" or not any(label in task.system for label in builtin_task().label_names)


def test_starters_for_the_usual_questions_ship_in_the_package():
    assert builtin_names() == ("sentiment", "spam", "tickets", "topics", "urgency")


def test_a_builtin_task_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(UsageError) as caught:
        load_task("builtin:sentimnt")
    assert str(caught.value) == "task 'builtin:sentimnt' does not exist; the nearest is 'builtin:sentiment'"
    names = ("sentiment", "spam", "tickets", "topics", "urgency")
    assert caught.value.hint == "there are " + ", ".join(f"builtin:{name}" for name in names)


def test_a_file_may_be_called_like_a_builtin_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("builtin:spam").write_text('answer = "mine"')
    assert load_task("./builtin:spam").answer == "mine"
    assert load_task(Path("builtin:spam")).answer == "mine"


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path):
    path = tmp_path / "t.toml"
    path.write_bytes(b'\xef\xbb\xbfanswer = "A:"\r\nscoring = "auto"\r\n')
    assert load_task(path).answer == "A:"


@pytest.mark.parametrize(
    ("toml", "message", "hint"),
    [
        ('sytem = "x"', "unknown key 'sytem'; the nearest known key is 'system'", "known: text, system, user, answer"),
        ("qqq = 1", "unknown key 'qqq'; the nearest known key is ", "known: text, "),
        ('[label]\na = ""', "unknown key 'label'; the nearest known key is 'labels'", "known: "),
        ("text = 3", "text: 3 is neither an array of column names nor a template string", ""),
        ('text = ["a", 1]', "text: ['a', 1] is neither an array of column names nor a template string", ""),
        ("system = true", "system: True is not a string", "write it in quotes"),
        ("scoring = 1", "scoring: 1 is not a string", "write it in quotes"),
        ('scoring = "first"', "scoring: 'first' is not one of 'auto', 'first-token', 'constrained', 'sequence'", ""),
        ('user = "no text"', "user: {text} must stand in it exactly once, not 0 times: 'no text'", ""),
        ('labels = ["a", "b"]', "labels: ['a', 'b'] is not a table of label = description", "write a line [labels]"),
        ("[labels]", "labels: at least two labels are needed, got []", ""),
        ('[labels]\na = ""\nb = 2', "labels.b: 2 is not a string", "write it in quotes"),
        ('[labels]\na.x = ""\nb = ""', "labels.a: {'x': ''} is not a string", "write it in quotes"),
        ('answers = ["a"]', "answers: ['a'] is not a table of label = answer", "write a line [answers]"),
        ('[answers]\nbiling = "x"', "answers: 'biling' is not one of the labels; the nearest is 'billing'", ""),
        ("[answers]\nbilling = 1", "answers.billing: 1 is not a string", "write it in quotes"),
        ('[thresholds]\nbilling = "0.5"', "thresholds.billing: '0.5' is not a number", "write it without quotes"),
        ("min_score = true", "min_score: True is not a number", "write it without quotes"),
        (f"min_score = 1{'0' * 400}", "min_score: 1000", ""),
        ("min_margin = nan", "min_margin: nan is not a probability", ""),
        ('default_label = "x"', "default_label: 'x' has no effect without min_score or min_margin", "give min_score"),
        ('mode = "both"', "mode: 'both' is not one of 'single', 'multi'", ""),
        ("[examples]\na = 1", "examples: {'a': 1} is not an array of tables", "write for each a line [[examples]]"),
        ('[[examples]]\ntext = "x"', "examples: {'text': 'x'} has no 'label'", "write for each"),
        ('[[examples]]\ntext = "x"\nlable = "y"', "examples: unknown key 'lable'", "write for each"),
        ('[[examples]]\ntext = 1\nlabel = "billing"', "examples.text: 1 is not a string", "write it in quotes"),
        ('[[examples]]\ntext = "x"\nlabel = "bill"', "examples: 'bill' is not one of the labels; the nearest is ", ""),
        ('answer = "x', "is not TOML: ", ""),
        ('a = ""\na = ""', "is not TOML: ", ""),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_key_and_value(toml, message, hint):
    with pytest.raises(UsageError) as caught:
        task_from_toml(toml, "task file 'x'")
    assert str(caught.value).startswith("task file 'x'")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint.startswith(hint)


def test_a_syntax_error_names_line_and_column():
    with pytest.raises(UsageError, match="at line 2, column 6"):
        task_from_toml('answer = ""\nuser x', "t")


def test_a_setting_below_the_labels_is_not_taken_for_a_label():
    """In TOML, keys below [labels] belong to it: `scoring` at the end of a file would have been one more label."""
    with pytest.raises(UsageError, match="labels: 'scoring' is a key of the task file") as caught:
        task_from_toml('[labels]\na = ""\nb = ""\nscoring = "sequence"', "t")
    assert caught.value.hint.startswith("move 'scoring' above the line [labels]")


@pytest.mark.parametrize(
    ("below", "line", "key"),
    [
        ("[labels]", 'mode = "multi"', "mode"),
        ("[labels]", "min_score = 0.5", "min_score"),
        ("[labels]", 'default_label = "x"', "default_label"),
        ("[labels]", "[labels.answers]", "answers"),
        ("[answers]", 'scoring = "sequence"', "scoring"),
        ("[thresholds]", "min_margin = 0.5", "min_margin"),
        ("[[examples]]", 'calibration = "none"', "calibration"),
    ],
)
def test_a_setting_below_any_table_is_told_to_move(below, line, key):
    table = below.strip("[]")
    with pytest.raises(UsageError, match=f"{table}: '{key}' is a key of the task file") as caught:
        task_from_toml(f"{below}\n{line}", "t")
    assert caught.value.hint.startswith(f"move '{key}' above the line {below}")


def test_yes_no_and_question_are_labels_where_they_are_no_settings():
    task = task_from_toml('[labels]\nyes = ""\nno = ""\nquestion = ""', "t")
    assert task.label_names == ("yes", "no", "question")
    with pytest.raises(UsageError, match="labels: 'yes' is a key of the task file"):
        task_from_toml('mode = "multi"\n[labels]\na = ""\nb = ""\nyes = "ja"', "t")


def test_a_label_called_like_a_key_may_have_an_answer():
    task = task_from_toml('user = "{text}"\n[labels]\nuser = ""\nadmin = ""\n[answers]\nuser = "person"', "t")
    assert task.answers == (("user", "person"),)


def test_labels_of_a_file_drop_all_that_spoke_of_the_labels_before():
    task = task_from_toml('[labels]\na = ""\nb = ""', "t")
    assert (task.answers, task.thresholds, task.examples) == ((), (), ())


def test_a_label_may_be_called_like_a_key_that_the_file_sets():
    task = task_from_toml('user = "{text}"\n[labels]\nuser = ""\nadmin = ""', "t")
    assert task.label_names == ("user", "admin")


def write_nothing(path):
    pass


def write_parquet_start(path):
    path.write_bytes(b"PAR1" + bytes(MAX_TASK_FILE_BYTES))


def write_latin_1(path):
    path.write_bytes(b'answer = "caf\xe9"')


def write_too_much(path):
    path.write_bytes(b"#" * (MAX_TASK_FILE_BYTES + 1))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_nothing, "does not exist"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (write_parquet_start, "is a Parquet file"),
        (write_latin_1, r"is not UTF-8: b'\xe9' at byte 13"),
        (write_too_much, "is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_task_is_refused_by_name(tmp_path, write, message):
    path = tmp_path / "t.toml"
    write(path)
    with pytest.raises(UsageError) as caught:
        load_task(path)
    assert str(caught.value).startswith(f"task file {str(path)!r} {message}")


def test_a_missing_file_hints_at_what_prints_one(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_task(tmp_path / "no.toml")
    assert caught.value.hint.endswith("python -m pipeline.classify --print-task")


def test_a_missing_file_that_is_called_like_a_builtin_task_hints_at_that(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_task(tmp_path / "spam.toml")
    assert caught.value.hint == "the built-in task of this name is --task builtin:spam"


def test_loading_a_task_imports_nothing_heavy():
    code = "import sys, pipeline.task_file; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pipeline.task" in modules
    assert not {"torch", "pyarrow", "polars", "numpy", "transformers"} & set(modules)
