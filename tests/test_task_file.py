import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from pipeline.errors import UsageError
from pipeline.task_file import MAX_TASK_FILE_BYTES, builtin_task, load_task, task_from_toml


def test_the_builtin_task_sorts_tickets_and_finds_its_text_by_name():
    task = builtin_task()
    assert task.name == "tickets"
    assert (task.text, task.template, task.columns) == ((), None, ())
    assert task.label_names == ("billing", "technical", "account")
    assert all(description for _, description in task.labels)
    assert (task.scoring, task.calibration) == ("auto", "contextual")


def test_the_builtin_prompts_speak_of_whatever_labels_are_given():
    task = builtin_task().with_overrides(labels="spam,ham")
    assert "spam, ham" in task.system_message()
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
        ('scoring = "first"', "scoring: 'first' is not one of 'auto', 'first-token', 'sequence'", ""),
        ('user = "no text"', "user: {text} must stand in it exactly once, not 0 times: 'no text'", ""),
        ('labels = ["a", "b"]', "labels: ['a', 'b'] is not a table of label = description", "write a line [labels]"),
        ("[labels]", "labels: at least two labels are needed, got []", ""),
        ('[labels]\na = ""\nb = 2', "labels.b: 2 is not a string", "write it in quotes"),
        ('[labels]\na.x = ""\nb = ""', "labels.a: {'x': ''} is not a string", "write it in quotes"),
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


def test_a_missing_file_hints_at_one_to_start_from(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_task(tmp_path / "no.toml")
    assert load_task(caught.value.hint.removeprefix("a file to start from: ")) == builtin_task()


def test_loading_a_task_imports_nothing_heavy():
    code = "import sys, pipeline.task_file; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pipeline.task" in modules
    assert not {"torch", "pyarrow", "polars", "numpy", "transformers"} & set(modules)
