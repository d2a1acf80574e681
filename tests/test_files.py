"""Which files a folder or a glob stands for, and where their outputs may not go."""

import os
from pathlib import Path

import fsspec
import pytest

from pipeline.command.files import check_output_place, find_tree
from pipeline.command.pattern import Pattern
from pipeline.errors import InputError, InputMissingError, OutputError
from pipeline.parquet.location import locate


def plant(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(text: object) -> list[str]:
    tree = find_tree(str(text))
    assert tree is not None
    return tree.files()


def refused_output(text: object, output: object) -> str:
    tree = find_tree(str(text))
    assert tree is not None
    with pytest.raises(OutputError) as caught:
        check_output_place(tree, tree.files(), locate(str(output)))
    return str(caught.value)


def allowed_output(text: object, output: object) -> None:
    tree = find_tree(str(text))
    assert tree is not None
    check_output_place(tree, tree.files(), locate(str(output)))


def test_a_folder_is_its_parquet_files_at_any_depth_in_order(tmp_path: Path) -> None:
    plant(tmp_path, "b.parquet", "dt=2/hr=01/x.parq", "a.PARQUET", "dt=1/y.snappy.parquet", "c.pq")
    assert found(tmp_path) == ["a.PARQUET", "b.parquet", "c.pq", "dt=1/y.snappy.parquet", "dt=2/hr=01/x.parq"]
    assert found(f"{tmp_path}/") == found(tmp_path)


def test_names_that_start_with_an_underscore_or_a_dot_are_ignored_at_any_depth(tmp_path: Path) -> None:
    plant(
        tmp_path, "_SUCCESS", "._x.parquet", "_x.parquet", "_temporary/0/x.parquet", ".git/x.parquet", "d/_e/x.parquet"
    )
    plant(tmp_path, "d/x.parquet")
    assert found(tmp_path) == ["d/x.parquet"]


def test_only_what_lies_below_the_folder_decides_what_is_ignored(tmp_path: Path) -> None:
    plant(tmp_path, "_in/x.parquet")
    assert found(tmp_path / "_in") == ["x.parquet"]


def test_other_names_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant(tmp_path, "a.parquet", "README.md", "part-0")
    with caplog.at_level("INFO"):
        assert found(tmp_path) == ["a.parquet"]
    (record,) = caplog.records
    assert "left out: 2 files" in record.getMessage()
    assert "such as 'README.md'; name them with a glob" in record.getMessage()


def test_a_folder_without_a_parquet_file_is_missing_input(tmp_path: Path) -> None:
    plant(tmp_path, "a.csv", "b.csv")
    with pytest.raises(InputMissingError, match="holds no Parquet file, of 2 files in it") as caught:
        found(tmp_path)
    assert "name others with a glob" in caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a.csv", "a.parquet", "b.parquet"]),
        ("?.parquet", ["a.parquet", "b.parquet"]),
        ("[!a].parquet", ["b.parquet"]),
        ("*/*.parquet", ["d=1/c.parquet", "d=2/c.parquet"]),
        ("d=[13]/*", ["d=1/c.parquet"]),
        ("**/c.parquet", ["d=1/c.parquet", "d=2/c.parquet", "d=2/e/c.parquet"]),
        ("**/e/*", ["d=2/e/c.parquet"]),
        ("**/**/a.*", ["a.csv", "a.parquet"]),
        ("d*/**", ["d=1/c.parquet", "d=2/c.parquet", "d=2/e/c.parquet"]),
        ("_[x]/*.parquet", ["_x/c.parquet"]),
        ("**/.*", [".h.parquet"]),
    ],
)
def test_a_glob_is_the_files_it_matches_below_its_literal_part(
    pattern: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "in", "a.parquet", "a.csv", "b.parquet", "d=1/c.parquet", "d=2/c.parquet", "d=2/e/c.parquet")
    plant(tmp_path / "in", "_x/c.parquet", ".h.parquet")
    assert found(f"{tmp_path}/in/{pattern}") == expected
    monkeypatch.chdir(tmp_path / "in")
    assert found(pattern) == expected


def test_a_glob_that_matches_nothing_is_missing_input(tmp_path: Path) -> None:
    for pattern in ("*.parquet", "no/*.parquet", "**"):
        with pytest.raises(InputMissingError):
            found(tmp_path / pattern)


def test_what_exists_under_its_literal_name_is_no_glob(tmp_path: Path) -> None:
    plant(tmp_path, "[1].parquet", "1.parquet", "what?/x.parquet", "whatx/y.parquet")
    assert find_tree(str(tmp_path / "[1].parquet")) is None
    assert found(tmp_path / "what?") == ["x.parquet"]


def test_a_single_path_is_no_tree_whether_it_is_there_or_not(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet")
    assert find_tree(str(tmp_path / "a.parquet")) is None
    assert find_tree(str(tmp_path / "no.parquet")) is None
    assert find_tree("bad\0name") is None


def test_loops_of_links_end_and_every_folder_is_read_once(tmp_path: Path) -> None:
    plant(tmp_path, "in/a/x.parquet", "in/b/y.parquet", "outside/z.parquet")
    for link, target in {
        "in/loop": "..",
        "in/a/b": "../b",
        "in/b/a": "../a",
        "in/0": "a",
        "in/o": "../outside",
    }.items():
        (tmp_path / link).symlink_to(target, target_is_directory=True)
    (tmp_path / "in/self").symlink_to("self")
    (tmp_path / "outside/in").symlink_to(tmp_path / "in")
    assert found(tmp_path / "in") == ["a/x.parquet", "b/y.parquet", "loop/outside/z.parquet"]


def test_links_to_files_count_even_those_that_lead_nowhere(tmp_path: Path) -> None:
    plant(tmp_path, "elsewhere.parquet")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    (tmp_path / "in/gone.parquet").symlink_to(tmp_path / "no.parquet")
    assert found(tmp_path / "in") == ["a.parquet", "gone.parquet"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    plant(tmp_path, "in/a.parquet", "in/closed/b.parquet")
    (tmp_path / "in/closed").chmod(0)
    with pytest.raises(InputError, match=r"closed.* may not be read"):
        found(tmp_path / "in")


def test_an_object_store_is_listed_by_the_same_rules() -> None:
    store = fsspec.filesystem("memory")
    for name in ("a.parquet", "dt=1/b.pq", "dt=1/_x.parquet", ".t/c.parquet", "note.txt"):
        store.pipe(f"/tree/{name}", b"x")
    try:
        assert found("memory://tree") == ["a.parquet", "dt=1/b.pq"]
        assert found("memory://tree/") == ["a.parquet", "dt=1/b.pq"]
        assert found("memory://tree/*/*.pq") == ["dt=1/b.pq"]
        assert find_tree("memory://tree/a.parquet") is None
        assert "lies inside input" in refused_output("memory://tree", "memory://tree/out")
        allowed_output("memory://tree", "memory://other/out")
    finally:
        store.rm("/tree", recursive=True)


def test_the_output_is_never_the_input_folder_nor_in_it(tmp_path: Path) -> None:
    plant(tmp_path, "in/a.parquet")
    (tmp_path / "link").symlink_to("in")
    assert "is the input folder" in refused_output(tmp_path / "in", tmp_path / "in")
    assert "is the input folder" in refused_output(tmp_path / "in", tmp_path / "link")
    assert "lies inside input" in refused_output(tmp_path / "in", tmp_path / "in" / "out")
    assert "lies inside input" in refused_output(tmp_path / "link", tmp_path / "in" / ".out")
    allowed_output(tmp_path / "in", tmp_path / "in_labelled")


def test_the_output_of_a_glob_may_stand_where_the_glob_does_not_look(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet")
    allowed_output(tmp_path / "*.parquet", tmp_path / "out")
    assert "lies inside input" in refused_output(tmp_path / "*.parquet", tmp_path)
    assert "lies inside input" in refused_output(tmp_path / "**/*.parquet", tmp_path / "out")


def test_an_output_above_the_input_is_refused_where_files_would_meet(tmp_path: Path) -> None:
    plant(tmp_path, "in/a.parquet")
    allowed_output(tmp_path / "in", tmp_path)
    plant(tmp_path, "in/in/a.parquet")
    assert "is a file of the input" in refused_output(tmp_path / "in", tmp_path)


def test_the_output_must_be_a_folder_or_become_one(tmp_path: Path) -> None:
    plant(tmp_path, "in/a.parquet", "file")
    assert "is a file, and input" in refused_output(tmp_path / "in", tmp_path / "file")
    assert "there is no folder" in refused_output(tmp_path / "in", tmp_path / "no" / "out")


def test_a_pattern_is_followed_name_by_name() -> None:
    pattern = Pattern(("a*", "**", "*.parquet"))
    assert pattern.matches(("ab", "x.parquet"))
    assert pattern.matches(("ab", "c", "d", "x.parquet"))
    assert not pattern.matches(("b", "x.parquet"))
    assert not pattern.after(pattern.start, "b")
