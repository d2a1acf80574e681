"""The README says what there is: every flag, every exit code, every file of the tree, and no more."""

import re
from dataclasses import fields
from pathlib import Path

from pipeline.command.options import Options
from pipeline.errors import PipelineError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def subclasses(kind: type[PipelineError]) -> set[type[PipelineError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_every_flag_is_documented_and_every_documented_flag_exists() -> None:
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(Options)} - {"--input", "--output"}
    section = README[README.index("## Options") : README.index("### A task of your own")]
    documented = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", section))
    assert documented == flags | {"--help"}


def test_every_exit_code_is_documented() -> None:
    section = README[README.index("### Exit codes") : README.index("## In Python")]
    documented = {int(code) for code in re.findall(r"(?:^\| |, )(\d+)\b", section, flags=re.MULTILINE)}
    assert documented == {kind.exit_code for kind in subclasses(PipelineError) if hasattr(kind, "exit_code")} | {
        0,
        75,
        130,
    }


def test_every_file_and_folder_of_the_package_stands_in_the_tree() -> None:
    section = README[README.index("## The tree") : README.index("## Words")]
    there = {path.name for path in (ROOT / "pipeline").iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    missing = {name for name in there if name not in section}
    assert not missing
    named = set(re.findall(r"\b([a-z_]+\.py)\b", section))
    assert not {name for name in named if not (ROOT / "pipeline" / name).exists()}


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make (\w+)", README, flags=re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for module in set(re.findall(r"python -m (pipeline[.\w]*)", README)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
