"""Imports go one way: every module may import only those that stand before it in ``ORDER``."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pipeline"

ORDER = [
    # what everything else speaks in
    "version",
    "errors",
    "cache_folder",
    "settings",
    "stats",
    "template",
    "task_checks",
    "task",
    "task_file",
    "task_toml",
    # files and columns
    "text",
    "text_columns",
    "parquet.uri",
    "parquet.location",
    "parquet.failures",
    "parquet.buffers",
    "parquet.input_file",
    "parquet.file_layout",
    "parquet.source",
    "parquet.work_file",
    "parquet.upload",
    "parquet.sink",
    # texts to tokens to buckets
    "buckets",
    "chat",
    "prompt",
    "plain_prompt",
    "continuations",
    "readout",
    # the model
    "engine.layout",
    "engine.attention",
    "engine.model",
    "engine.budget",
    "engine.half",
    "engine.workers",
    "engine.label_head",
    "engine.single",
    "engine.padded",
    "engine.packed",
    "engine.decoder",
    "engine.fused",
    "engine.int8",
    "engine.select",
    "engine.embedded",
    "engine.load",
    # scores to labels
    "scoring",
    "head",
    "classes",
    "decision",
    "added_columns",
    "schema",
    "fingerprint",
    "label_store",
    "stored_scores",
    "prefetch",
    "prepare",
    "passes",
    "stage",
    "build",
    "agreement",
    "first_texts",
    "explain",
    # what is built on the stage
    "verify",
    "api",
    "__init__",
    "command.logs",
    "command.stop_signals",
    "command.report",
    "command.progress",
    "command.summary",
    "command.flags",
    "command.model_flags",
    "command.entry",
    "command.options",
    "command.failures",
    "command.pattern",
    "command.files",
    "command.manifest",
    "command.output_folder",
    "command.store",
    "command.calibrate",
    "command.agree",
    "command.load",
    "command.one_file",
    "command.checked_file",
    "command.dry_run",
    "command.run",
    "distributed.unit",
    "distributed.plan",
    "distributed.worker",
    "distributed.waiting",
    "distributed.pool",
    "distributed.cluster",
    "distributed.parts",
    "distributed.run",
    "classify",
    "cache",
    "evaluation.confusion",
    "evaluation.metrics",
    "evaluation.coverage",
    "evaluation.columns",
    "evaluation.distinct",
    "evaluation.rows",
    "evaluation.quality",
    "evaluation.text",
    "evaluation.pictures",
    "evaluation.html",
    "evaluate",
    "tuning.plan",
    "tuning.split",
    "tuning.enough",
    "tuning.measure",
    "tuning.csv_table",
    "tuning.rows",
    "tuning.variants",
    "tuning.fit",
    "tuning.search",
    "tuning.table",
    "tuning.choose",
    "tune",
    "tuning.sampling",
    "tuning.draw",
    "tuning.sampled_rows",
    "sample",
    "bench.command",
    "bench.workload",
    "bench.turns",
    "bench.ceiling",
    "bench.around",
    "bench.bound",
    "bench.ways",
    "bench.paths",
    "bench.memory",
    "bench.time_shares",
    "bench.label_counts",
    "bench.table",
    "bench.measure",
    "bench.plot",
    "bench.quality_data",
    "bench.quality_steps",
    "bench.label_quality",
    "bench.__main__",
    "bench.tiny",
    "bench.stage_run",
    "bench.scale",
    "bench.units",
    "bench.workers",
]
# Who may import what is slow to import, or is one module's business.
OWNERS = {
    "torch": ("engine", "bench"),
    "transformers": ("engine", "bench"),
    "accelerate": ("engine", "passes"),
    "safetensors": ("engine", "head"),
    "tokenizers": ("chat", "prompt", "plain_prompt"),
    "tomli_w": ("task_toml",),
    "typer": (
        "command.flags",
        "command.options",
        "command.model_flags",
        "command.entry",
        "cache",
        "evaluate",
        "tune",
        "sample",
    ),
    "rich": ("command.progress", "command.summary", "classify", "evaluation.text"),
    "sklearn": ("evaluation", "tuning.fit", "tuning.sampling"),
    "scipy": ("evaluation", "tuning.measure"),
    "matplotlib": ("evaluation.pictures", "bench.plot"),
    "sqlite3": ("label_store", "stored_scores"),
    "ray": ("distributed.pool", "distributed.cluster"),
}


def modules() -> dict[str, Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    names = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}
    return {name: file for name, file in names.items() if not name.endswith(".__init__")}


def imports(file: Path) -> Iterator[str]:
    """Absolute names of everything a file imports, within functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(modules())


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_those_before_it(name: str) -> None:
    known = {f"pipeline.{module}": place for place, module in enumerate(ORDER)}
    own = known[f"pipeline.{name}"]
    later = {module for module in imports(modules()[name]) if known.get(module, -1) >= own}
    assert not later, f"pipeline.{name} imports {later}, which stand at or after it in ORDER"


@pytest.mark.parametrize("package", OWNERS)
def test_a_package_is_imported_by_its_owners_only(package: str) -> None:
    users = {
        name
        for name, file in modules().items()
        if any(module == package or module.startswith(f"{package}.") for module in imports(file))
    }
    allowed = OWNERS[package]
    strangers = {
        name for name in users if not name.startswith(tuple(f"{owner}." for owner in allowed)) and name not in allowed
    }
    assert not strangers
    assert users or not allowed, f"nobody imports {package} any more"
