"""The manifest of an output folder: what counts as finished, and what does not."""

from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from pipeline.build import build_stage
from pipeline.command.manifest import MANIFEST_NAME, FileState, Manifest, read_manifest, recipe_of, state_of
from pipeline.errors import StorageError
from pipeline.parquet.location import locate
from pipeline.settings import Settings
from pipeline.task import Task
from pipeline.task_file import builtin_task
from tests.tiny import tiny_model, tiny_tokenizer

IN, OUT, OLD = FileState(10, 1_000), FileState(20, 2_000), FileState(15, 500)


def unmarked() -> None:
    """The mark of an output that has none."""


def finished(folder: Path) -> Manifest:
    manifest = read_manifest(locate(str(folder)))
    manifest.begin("d/a.parquet", IN, "recipe")
    manifest.finish("d/a.parquet", OUT)
    return read_manifest(locate(str(folder)))


def test_a_finished_file_is_known_again_by_the_next_run(tmp_path: Path) -> None:
    assert finished(tmp_path).recipe("d/a.parquet", IN, OUT, unmarked) == "recipe"
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


@pytest.mark.parametrize(
    ("file", "input_state", "output_state"),
    [
        ("a.parquet", IN, OUT),
        ("d/a.parquet", replace(IN, size=11), OUT),
        ("d/a.parquet", replace(IN, mtime_ns=1_001), OUT),
        ("d/a.parquet", IN, replace(OUT, size=21)),
        ("d/a.parquet", IN, replace(OUT, mtime_ns=2_001)),
        ("d/a.parquet", IN, None),
        ("d/a.parquet", None, OUT),
    ],
)
def test_a_change_of_input_or_output_is_seen(
    file: str, input_state: FileState | None, output_state: FileState | None, tmp_path: Path
) -> None:
    assert finished(tmp_path).recipe(file, input_state, output_state, unmarked) is None


def test_an_output_that_appeared_before_it_was_recorded_is_known(tmp_path: Path) -> None:
    """A run killed between the two."""
    folder = locate(str(tmp_path))
    mark = read_manifest(folder).begin("a", IN, "recipe")
    manifest = read_manifest(folder)
    assert manifest.recipe("a", IN, OLD, unmarked) is None  # killed before: the old output is there, or another's
    assert manifest.recipe("a", IN, OLD, lambda: "another") is None
    assert manifest.recipe("a", IN, OUT, lambda: mark) == "recipe"
    manifest.finish("a", OUT)
    assert read_manifest(folder).recipe("a", IN, replace(OUT, size=1), unmarked) is None


def test_an_input_without_a_time_is_never_finished(tmp_path: Path) -> None:
    manifest = read_manifest(locate(str(tmp_path)))
    manifest.begin("a", replace(IN, mtime_ns=0), "recipe")
    manifest.finish("a", OUT)
    assert manifest.recipe("a", replace(IN, mtime_ns=0), OUT, unmarked) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[]", b'{"version": 2}', b'{"version": 1, "files": {"a": 1}}']
)
def test_a_damaged_manifest_is_as_none_with_a_warning(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tmp_path)
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    assert read_manifest(locate(str(tmp_path))).recipe("d/a.parquet", IN, OUT, unmarked) is None
    assert "no file counts as finished" in caplog.text


def test_a_missing_manifest_is_none_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_manifest(locate(str(tmp_path / "no")))
    assert caplog.text == ""


def test_a_manifest_that_cannot_be_written_is_a_failing_device(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).mkdir()
    manifest = Manifest(locate(str(tmp_path / MANIFEST_NAME)))
    with pytest.raises(StorageError, match=MANIFEST_NAME):
        manifest.begin("a", IN, "recipe")
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_an_object_store_holds_a_manifest_too() -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/kept/a.parquet", b"12345")
    folder = locate("memory://kept")
    try:
        state = state_of(folder.child("a.parquet"))
        assert state is not None
        assert state.size == 5
        manifest = read_manifest(folder)
        manifest.begin("a.parquet", IN, "recipe")
        manifest.finish("a.parquet", state)
        assert read_manifest(folder).recipe("a.parquet", IN, state, unmarked) == "recipe"
    finally:
        store.rm("/kept", recursive=True)


def test_the_recipe_tells_apart_all_that_changes_an_output_and_nothing_else() -> None:
    def recipe(task: Task = builtin_task(), settings: Settings = Settings(), limit: int | None = None) -> str:  # noqa: B008
        return recipe_of(replace(stage, task=task, settings=settings), limit)

    stage = build_stage(builtin_task(), tiny_model(tokenizer=tiny_tokenizer()), Settings(engine="single"))
    text, body = (builtin_task().with_overrides(text_columns=(name,)) for name in ("text", "body"))
    different = [
        recipe(),
        recipe(text),
        recipe(body),
        recipe(limit=5),
        recipe(settings=Settings(label_column="other")),
        recipe(settings=Settings(score_column="score")),
        recipe(settings=Settings(status_column="status")),
        recipe(replace(builtin_task(), min_score=0.5)),
        recipe(replace(builtin_task(), min_score=0.5, default_label="none")),
        recipe(replace(builtin_task(), min_margin=0.5)),
        recipe(replace(builtin_task(), mode="multi")),
        recipe(replace(builtin_task(), mode="multi", thresholds=(("billing", 0.4),))),
        recipe(settings=Settings(overlong="null")),
        recipe_of(replace(stage, fingerprint="other"), None),
    ]
    assert len(set(different)) == len(different)
    assert recipe(settings=Settings(buffer_rows=5, max_batch_tokens=9, engine="padded")) == recipe()
