"""What ``--print-task`` writes reads back as the same task, whatever is in it."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.task import Task
from pipeline.task_file import builtin_names, builtin_task, builtin_toml, load_task, task_from_toml
from pipeline.task_toml import task_to_toml

PIECES = st.sampled_from(
    [
        "\n",
        "\r\n",
        "\r",
        '"',
        '"""',
        "'''",
        "\\",
        "\\n",
        "#",
        "[labels]",
        "a = 1",
        "\t",
        "\x00",
        "\x1b",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
        "🙂",
        "é",
        " ",
        "=",
        "x",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join)
FILLED = TEXTS.filter(str.strip)
NAMES = st.one_of(
    st.sampled_from(
        ["text", "user", "head", "yes", "examples", "labels", "mode", "min_score", "a.b", "sales lead", '"', "[x]"]
    ),
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=6).filter(
        lambda name: name == name.strip()
    ),
)
PROBABILITIES = st.floats(0.0, 1.0)


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique_by=str.casefold))
    some = st.lists(st.sampled_from(names), unique=True, max_size=len(names))
    multi = draw(st.booleans())
    template = draw(st.none() | st.just(escaped(draw(TEXTS)) + "{a column} {b}" + escaped(draw(TEXTS))))
    min_score = 0.0 if multi else draw(PROBABILITIES)
    return Task(
        name="t",
        text=() if template is not None else tuple(draw(st.lists(FILLED, max_size=3, unique=True))),
        template=template,
        labels=tuple((name, draw(TEXTS)) for name in names),
        system=escaped(draw(TEXTS)) + draw(st.sampled_from(["", "{labels}", "{descriptions}"])),
        user=escaped(draw(TEXTS)) + "{text}" + escaped(draw(TEXTS)),
        answer=draw(TEXTS),
        scoring="auto" if multi else draw(st.sampled_from(["auto", "first-token", "constrained", "sequence"])),
        calibration=draw(st.sampled_from(["none", "contextual", "batch"])),
        answers=tuple((name, f"says {names.index(name)} {name}") for name in draw(some)),
        examples=() if multi else tuple(draw(st.lists(st.tuples(FILLED, st.sampled_from(names)), max_size=3))),
        mode="multi" if multi else "single",
        question=escaped(draw(TEXTS)) + "{label}",
        yes=draw(st.sampled_from(["yes", '"ja"', "oui 🙂"])),
        no=draw(st.sampled_from(["no", "nein"])),
        thresholds=tuple((name, draw(PROBABILITIES)) for name in draw(some)) if multi else (),
        min_score=min_score,
        min_margin=0.0 if multi else draw(PROBABILITIES),
        default_label=draw(st.none() | NAMES) if min_score > 0 else None,
        head=draw(st.none() | st.sampled_from([Path("/a b/ä.safetensors"), Path("/x\\y\n")])),
    )


@given(tasks())
@example(replace(builtin_task(), name="t", system='{labels}\r\n"""\r\\'))
@example(replace(builtin_task(), name="t", labels=(("head", ""), ("yes", ""), ("default_label", "")), answers=()))
@example(replace(builtin_task(), name="t", user='\n{text}"', min_score=1e-300))
def test_a_task_that_is_written_reads_back_as_it_was(task: Task) -> None:
    toml = task_to_toml(task)
    assert task_from_toml(toml, "t") == task


@given(tasks())
def test_a_task_goes_through_a_file_as_it_was(tmp_path_factory: pytest.TempPathFactory, task: Task) -> None:
    path = tmp_path_factory.mktemp("task") / "t.toml"
    path.write_bytes(task_to_toml(task).encode())
    assert load_task(path) == task


@pytest.mark.parametrize("name", builtin_names())
def test_every_setting_of_a_builtin_task_is_written_below_the_comment_that_explains_it(name: str) -> None:
    toml = task_to_toml(builtin_task(name))
    assert task_from_toml(toml, name) == builtin_task(name)
    assert tomllib.loads(toml).keys() >= tomllib.loads(builtin_toml("tickets")).keys() - {"answers"}
    assert re.search(r"^(# )?\[answers\]$", toml, re.MULTILINE), "as an example, where there are none"
    comments = [line for line in builtin_toml("tickets").split("\n\n", 1)[1].splitlines() if line.startswith("#")]
    missing = [line for line in comments if line not in toml and line != "#"]
    assert not missing


def test_the_builtin_task_is_written_as_its_own_file_is_but_for_the_first_paragraph() -> None:
    written, own = task_to_toml(builtin_task()), builtin_toml("tickets")
    assert written.split("\n\n", 1)[1] == own.split("\n\n", 1)[1]
    assert written.startswith("# Task 'tickets', for: python -m pipeline.classify in.parquet out.parquet --task ")


def test_texts_of_several_lines_are_written_so_and_examples_one_below_the_other() -> None:
    task = replace(builtin_task(), system="One of:\n{labels}", examples=(("x\ny", "billing"), ("z", "account")))
    toml = task_to_toml(task)
    assert 'system = """\nOne of:\n{labels}"""\n' in toml
    assert toml.endswith(
        '[[examples]]\ntext = """\nx\ny"""\nlabel = "billing"\n\n[[examples]]\ntext = "z"\nlabel = "account"\n'
    )


def test_a_head_beside_the_file_is_written_by_its_name_and_found_again(tmp_path: Path) -> None:
    task = replace(builtin_task(), name="mine", head=tmp_path / "mine.safetensors")
    toml = task_to_toml(task, tmp_path)
    assert 'head = "mine.safetensors"\n' in toml
    (tmp_path / "mine.toml").write_text(toml, encoding="utf-8")
    assert load_task(tmp_path / "mine.toml") == task
    assert load_task(tmp_path / "mine.toml").head == tmp_path / "mine.safetensors"
    elsewhere = tmp_path / "elsewhere"
    assert task_from_toml(task_to_toml(task, elsewhere), "t", elsewhere).head == task.head


def test_a_name_that_is_no_text_is_refused() -> None:
    task = builtin_task().with_overrides(text_columns=["caf\udce9"])
    with pytest.raises(UsageError, match=r"'\\udce9' in the task cannot be written in UTF-8"):
        task_to_toml(task)
