"""Sink, and the work file it writes: nothing changed but the added columns, all or nothing."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError, OutputError, StorageError
from pipeline.parquet.buffers import buffers
from pipeline.parquet.file_layout import FileLayout, read_layout
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from tests.hard_files import (
    ROW_GROUP_ROWS,
    SPARK_SCHEMA_KEY,
    USABLE,
    bits,
    chunked_dictionaries,
    pandas_index,
    spark_metadata,
    ticket_texts,
    with_text,
    writer,
)
from tests.test_source import peak_mib

ROOT = Path(__file__).parents[1]
SHARED_FILES = ROOT.parent / "shared" / "hard_files"
LABEL = pa.field("pipeline_label", pa.string())
MIB = 1 << 20


def copy(
    path: Path,
    output: Path,
    *,
    max_rows: int = 8192,
    max_bytes: int = 64 * MIB,
    read_rows: int = 256,
    overwrite: bool = False,
    metadata: dict[bytes, bytes] | None = None,
) -> None:
    """Every row of a file through source and sink, labelled with its row number."""
    n_rows = 0
    with (
        ParquetSource(locate(str(path)), max_rows=read_rows) as source,
        ParquetSink(locate(str(output)), source.layout, [LABEL], overwrite=overwrite) as sink,
    ):
        for table in buffers(source.batches(), max_rows, max_bytes):
            sink.write(table.append_column(LABEL, numbers(n_rows, table.num_rows)))
            n_rows += table.num_rows
        sink.commit(metadata)


def read_groups(path: Path) -> pa.Table:
    """A file read by pyarrow's own means, far INT96 dates included."""
    unit = "us" if "types_int96_far" in path.parts else "ns"
    file = pq.ParquetFile(path, coerce_int96_timestamp_unit=unit, page_checksum_verification=True)
    groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
    return pa.concat_tables([file.schema_arrow.empty_table(), *groups])


def assert_only_labels_added(path: Path, output: Path, expected: pa.Table | None = None) -> None:
    before, after = expected if expected is not None else read_groups(path), read_groups(output)
    n_columns = before.num_columns
    assert pa.schema(list(after.schema)[:n_columns], after.schema.metadata).equals(before.schema, check_metadata=True)
    assert after.schema.names[n_columns:] == [LABEL.name]
    for i in range(n_columns):
        assert are_same(after.column(i), before.column(i)), before.schema.names[i]
    assert after.column(n_columns).equals(pa.chunked_array([numbers(0, before.num_rows)]))


def are_same(column: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if column.type == pa.int64():  # a fast path for the file of a million rows
        return bool(column.equals(other))
    return bits(column) == bits(other)


def numbers(start: int, n_rows: int) -> pa.Array:
    return pa.array(range(start, start + n_rows), pa.int64()).cast(pa.string())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    USABLE["plain"](path)
    return path


# Nothing changes


@pytest.mark.parametrize("max_rows", [5, 8192])
@pytest.mark.parametrize("name", USABLE)
def test_a_hard_file_comes_through_unchanged(name: str, max_rows: int, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    path, output = folder / "in.parquet", folder / "out.parquet"
    USABLE[name](path)
    copy(path, output, max_rows=max_rows, read_rows=max_rows)
    assert_only_labels_added(path, output)
    assert names_in(folder) == ["in.parquet", "out.parquet"]


def shared_usable_files() -> list[str]:
    if not SHARED_FILES.exists():
        return []
    entries = json.loads((SHARED_FILES / "manifest.json").read_text())["files"]
    unreadable = ("broken", "encrypted")
    names = [entry["file"] for entry in entries if entry["kind"] not in unreadable]
    return [name for name in names if (SHARED_FILES / name).is_file()]


@pytest.mark.parametrize("name", shared_usable_files())
def test_a_shared_hard_file_comes_through_unchanged(name: str, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    copy(SHARED_FILES / name, output)
    assert_only_labels_added(SHARED_FILES / name, output)


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8),
    pa.large_string(): st.text(max_size=8),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=8),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(20, 4): st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-4)),
    pa.decimal256(50, 0): st.integers(-(10**27), 10**27).map(Decimal),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.duration("ms"): st.integers(-(2**60), 2**60),
    pa.timestamp("us"): st.integers(-(2**63) + 1, 2**63 - 1),
    pa.timestamp("ns", "Europe/Paris"): st.integers(-(2**63) + 1, 2**63 - 1),
    pa.timestamp("ms", "UTC"): st.integers(-(2**63) + 1, 2**63 - 1),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from("abcdefgh"),
    pa.dictionary(pa.int32(), pa.string(), ordered=True): st.text(max_size=5),
}


def nested_types(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda type_: pa.list_(type_, 2)),
        inner.map(lambda type_: pa.map_(pa.string(), type_)),
        st.lists(inner, min_size=1, max_size=3).map(lambda types: pa.struct(list(zip("xyz", types, strict=False)))),
    )


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, null ones within but not on top."""
    if type_ in VALUES:
        return VALUES[type_]
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in type_})
    if pa.types.is_map(type_):
        return st.lists(st.tuples(st.text(max_size=3), st.none() | values_of(type_.item_type)), max_size=3)
    n_items = (2, 2) if pa.types.is_fixed_size_list(type_) else (0, 3)
    return st.lists(st.none() | values_of(type_.value_type), min_size=n_items[0], max_size=n_items[1])


NESTABLE = [type_ for type_ in VALUES if not pa.types.is_dictionary(type_) and type_ != pa.string_view()]
TYPES = st.sampled_from(list(VALUES)) | st.recursive(st.sampled_from(NESTABLE), nested_types, max_leaves=4)
METADATA = st.none() | st.dictionaries(st.binary(min_size=1, max_size=5), st.binary(max_size=5), min_size=1, max_size=2)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    n_rows = draw(st.integers(0, 30))
    names = draw(st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True))
    fields, columns = [], []
    for name in names:
        type_, nullable = draw(TYPES), draw(st.booleans())
        values = values_of(type_)
        column = draw(st.lists(st.none() | values if nullable else values, min_size=n_rows, max_size=n_rows))
        fields.append(pa.field(name, type_, nullable, draw(METADATA)))
        columns.append(pa.array(column, type_))
    return pa.table(columns, schema=pa.schema(fields, draw(METADATA)))


@settings(max_examples=60, deadline=None)
@given(
    table=tables(),
    row_group_size=st.integers(1, 40),
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd"]),
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 2000)),
)
def test_any_table_comes_through_unchanged(
    table: pa.Table, row_group_size: int, compression: str, sizes: tuple[int, int, int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "in.parquet"), Path(folder, "out.parquet")
        pq.write_table(table, path, row_group_size=row_group_size, compression=compression)
        read_rows, max_rows, max_bytes = sizes
        copy(path, output, read_rows=read_rows, max_rows=max_rows, max_bytes=max_bytes)
        expected = table.replace_schema_metadata().cast(pa.schema(list(table.schema)))
        columns = [expected.column(i) for i in range(expected.num_columns)]
        assert_only_labels_added(path, output, pa.table(columns, schema=pq.read_schema(path)))


def test_a_required_added_column_stays_required(plain: Path, tmp_path: Path) -> None:
    required = pa.field("n", pa.int8(), nullable=False, metadata={b"unit": b"rows"})
    with (
        ParquetSource(locate(str(plain))) as source,
        ParquetSink(locate(str(tmp_path / "out.parquet")), source.layout, [required]) as sink,
    ):
        for batch in source.batches():
            sink.write(batch.append_column(required, pa.array([1] * batch.num_rows, pa.int8())))
        sink.commit()
    assert pq.read_schema(tmp_path / "out.parquet").field("n").equals(required, check_metadata=True)


def test_run_metadata_joins_that_of_the_input(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    USABLE["metadata_required"](path)
    copy(path, output, metadata={b"parquet-classify": b"{}", b"owner": b"other"})
    footer = pq.read_metadata(output).metadata
    assert footer.pop(b"ARROW:schema")
    assert footer == {b"owner": b"other", b"blob": b"\x00\xff", b"parquet-classify": b"{}"}
    assert pq.read_schema(output).metadata == pq.read_schema(path).metadata


def test_rows_of_another_schema_are_refused(plain: Path, tmp_path: Path) -> None:
    with (
        ParquetSource(locate(str(plain))) as source,
        ParquetSink(locate(str(tmp_path / "out.parquet")), source.layout, [LABEL]) as sink,
        pytest.raises(ValueError, match="schema"),
    ):
        sink.write(next(source.batches()))
        sink.commit()
    assert names_in(tmp_path) == ["in.parquet"]


# Layout


def layout_of(path: Path) -> FileLayout:
    with ParquetSource(locate(str(path))) as source:
        return source.layout


@pytest.mark.parametrize("name", ["layout_codecs", "types_nested_legacy_names"])
def test_each_leaf_keeps_its_compression(name: str, tmp_path: Path) -> None:
    """Leaves that are missing from the writer's dictionary of codecs become uncompressed."""
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    USABLE[name](path)
    copy(path, output)
    before, after = layout_of(path), layout_of(output)
    assert after.codecs == (*before.codecs, before.main_codec)
    assert before.main_codec == {"layout_codecs": "NONE", "types_nested_legacy_names": "SNAPPY"}[name]


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"])
def test_every_codec_is_kept(codec: str, tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(with_text(), path, compression=codec)
    copy(path, output)
    assert set(layout_of(output).codecs) == {codec}


@pytest.mark.parametrize(
    ("type_", "version"),
    [(pa.int32(), "1.0"), (pa.timestamp("us"), "1.0"), (pa.uint32(), "2.6"), (pa.timestamp("ns"), "2.6")],
    ids=str,
)
def test_the_format_version_is_kept_unless_it_would_change_a_type(
    type_: pa.DataType, version: str, tmp_path: Path
) -> None:
    """Files of version 1.0 from other writers may hold what pyarrow would store otherwise in that version."""
    table = with_text(n=pa.array([1] * 24, type_))
    layout = FileLayout(location=locate(str(tmp_path / "none")), schema=table.schema, format_version="1.0")
    (tmp_path / "none").touch()
    with ParquetSink(locate(str(tmp_path / "out.parquet")), layout, []) as sink:
        sink.write(table)
        sink.commit()
    assert layout_of(tmp_path / "out.parquet").format_version == version
    assert pq.read_table(tmp_path / "out.parquet").equals(table)


def test_a_declared_sort_order_is_kept_with_the_row_groups_it_holds_in(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    order = [pq.SortingColumn(0, descending=True)]
    table = pa.table({"n": [3, 2, 1, 9, 8, 7, 6, 5, 4]})
    pq.write_table(table, path, row_group_size=3, sorting_columns=order)
    copy(path, output, max_rows=4)
    assert layout_of(output).sorting_columns == tuple(order)
    assert layout_of(output).row_group_rows == (3, 3, 3)


def test_a_sort_order_that_not_all_row_groups_declare_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path, sorting_columns=[pq.SortingColumn(0)])
    merged = pq.read_metadata(path)
    pq.write_table(pa.table({"n": [2, 1]}), path)
    merged.append_row_groups(pq.read_metadata(path))
    file = SimpleNamespace(metadata=merged, schema=merged.schema, schema_arrow=pq.read_schema(path))
    layout = read_layout(locate(str(path)), file, ns_timestamps=True)
    assert layout.row_group_rows == (2, 2)
    assert layout.sorting_columns == ()


def test_a_page_index_is_kept(tmp_path: Path) -> None:
    for name in ("plain", "layout_sorted"):
        path, output = tmp_path / f"{name}.parquet", tmp_path / f"{name}.out.parquet"
        USABLE[name](path)
        copy(path, output)
        assert layout_of(output).page_index == layout_of(path).page_index == (name == "layout_sorted")


def test_small_row_groups_are_merged(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"n": list(range(10_000))}), path, row_group_size=100)
    copy(path, output)
    assert layout_of(output).row_group_rows == (10_000,)


def test_row_groups_are_bounded_in_rows(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"n": list(range(300_000))}), path, row_group_size=50_000)
    copy(path, output)
    assert layout_of(output).row_group_rows == (131_072, 131_072, 37_856)


def test_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"text": ["x" * MIB] * 100}), path)
    copy(path, output)
    first, second = layout_of(output).row_group_rows
    assert 40 < first <= 64
    assert first + second == 100


def test_dictionaries_that_together_exceed_their_index_type_stay_in_row_groups_of_their_own(tmp_path: Path) -> None:
    """In one row group such a column can be written, but not read: 'Integer value 128 not in range'."""
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    writer(pa.table({"kind": chunked_dictionaries(pa.int8(), 126)}))(path)
    copy(path, output)
    assert layout_of(output).row_group_rows == (ROW_GROUP_ROWS,) * 3
    assert_only_labels_added(path, output)


def test_a_large_dictionary_is_written_once(tmp_path: Path) -> None:
    """Batches come with copies of the dictionary; as many row groups would each store all of it."""
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    texts = pa.array([os.urandom(500).hex() for _ in range(30_000)]).dictionary_encode()
    pq.write_table(pa.table({"text": texts}), path)
    copy(path, output, max_rows=1000)
    assert layout_of(output).row_group_rows == (30_000,)
    assert output.stat().st_size < 1.1 * path.stat().st_size


def test_pages_of_long_texts_are_small(tmp_path: Path) -> None:
    """A reader must hold a whole page: by default it would be 50 MiB here, and more with longer texts."""
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    table = pa.table({"text": [os.urandom(MIB // 4).hex() for _ in range(100)]})
    pq.write_table(table, path, compression="none")
    with ParquetSink(locate(str(output)), layout_of(path), []) as sink:
        sink.write(table)
        sink.commit()
    script = """
import sys, pyarrow as pa, pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[1], pre_buffer=False, buffer_size=1 << 20)
next(file.iter_batches(batch_size=1))
print(pa.default_memory_pool().max_memory() // 1024)
"""
    assert peak_mib(script, output) < 20 < 50 < peak_mib(script, path)


def test_pages_carry_checksums(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    pq.write_table(with_text(), plain, compression="none", use_dictionary=False)
    copy(plain, output)
    output.write_bytes(output.read_bytes().replace(b"Ticket 12: the invoice", b"Ticket 12: the invoicf"))
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(output, page_checksum_verification=True)


# Other readers


def test_pandas_polars_and_duckdb_read_the_output(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    copy(plain, output)
    labels = [str(i) for i in range(24)]
    assert pd.read_parquet(output)[LABEL.name].tolist() == labels
    assert pl.read_parquet(output)[LABEL.name].to_list() == labels
    rows = duckdb.execute("SELECT text, pipeline_label FROM read_parquet(?)", [str(output)]).fetchall()
    assert rows == list(zip(ticket_texts(), labels, strict=True))


def test_pandas_finds_its_index_again_and_the_label(tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pandas_index(), path)
    copy(path, output)
    before, after = pd.read_parquet(path), pd.read_parquet(output)
    assert after.columns.tolist() == [*before.columns, LABEL.name]
    pd.testing.assert_frame_equal(after[before.columns], before)
    assert after.index.name == "ticket_id"


def test_spark_is_told_of_the_added_columns(tmp_path: Path) -> None:
    """Spark takes the schema from this entry alone, and would not see columns that are missing from it."""
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(spark_metadata(), path)
    with ParquetSource(locate(str(path))) as source:
        added = [LABEL, pa.field("score", pa.float32(), nullable=False)]
        with ParquetSink(locate(str(output)), source.layout, added) as sink:
            sink.commit()
    before = json.loads(pq.read_schema(path).metadata[SPARK_SCHEMA_KEY])
    after = json.loads(pq.read_schema(output).metadata[SPARK_SCHEMA_KEY])
    assert after["fields"] == [
        *before["fields"],
        {"name": "pipeline_label", "type": "string", "nullable": True, "metadata": {}},
        {"name": "score", "type": "float", "nullable": False, "metadata": {}},
    ]


@pytest.mark.parametrize("entry", [b"StructType(List(StructField(text,StringType,true)))", b"[]", b"{}"])
def test_a_spark_schema_that_cannot_be_extended_is_left_out(entry: bytes, tmp_path: Path) -> None:
    path, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(with_text().replace_schema_metadata({SPARK_SCHEMA_KEY: entry, b"kept": b"1"}), path)
    copy(path, output)
    assert pq.read_schema(output).metadata == {b"kept": b"1"}


# What is refused before any work


def test_nested_views_are_refused_because_some_of_them_cannot_be_written(tmp_path: Path) -> None:
    table = with_text(ticket=pa.array([{"tag": str(i)} for i in range(24)], pa.struct([("tag", pa.string_view())])))
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    with pytest.raises(InputError, match="column 'ticket' of the input is struct<tag: string_view>") as caught:
        copy(path, tmp_path / "out.parquet")
    assert caught.value.exit_code == 65
    assert names_in(tmp_path) == ["in.parquet"]


def refused(path: Path, layout: FileLayout, *, overwrite: bool = False) -> OutputError:
    with pytest.raises(OutputError) as caught:
        ParquetSink(locate(str(path)), layout, [LABEL], overwrite=overwrite)
    assert caught.value.exit_code == 73
    assert "\n" not in str(caught.value)
    assert repr(str(path)) in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_an_existing_output_is_refused_with_the_flag_that_helps(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    output.write_bytes(b"old")
    assert "--overwrite" in refused(output, layout_of(plain)).hint
    assert output.read_bytes() == b"old"
    copy(plain, output, overwrite=True)
    assert_only_labels_added(plain, output)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_that_is_no_regular_file_is_refused(overwrite: bool, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    layout = layout_of(plain)
    assert "is a folder" in str(refused(tmp_path / "folder", layout, overwrite=overwrite))
    assert "not a regular file" in str(refused(tmp_path / "pipe", layout, overwrite=overwrite))
    assert "not a regular file" in str(refused(Path("/dev/null"), layout, overwrite=overwrite))
    assert "not a regular file" in str(refused(Path("/dev/full"), layout, overwrite=overwrite))


def test_an_output_in_no_folder_is_refused(plain: Path, tmp_path: Path) -> None:
    error = refused(tmp_path / "absent" / "out.parquet", layout_of(plain))
    assert f"there is no folder {str(tmp_path / 'absent')!r}" in str(error)
    assert "Not a directory" in str(refused(plain / "out.parquet", layout_of(plain)))
    assert "File name too long" in str(refused(tmp_path / ("x" * 250), layout_of(plain)))


def test_a_folder_that_may_not_be_written_is_refused(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(plain)

    def fail(*args: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pipeline.parquet.work_file._open_locked", fail)
    assert "Permission denied" in str(refused(tmp_path / "out.parquet", layout))


def test_the_input_is_refused_as_output_under_any_name(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = plain.read_bytes()
    (tmp_path / "symlink.parquet").symlink_to("in.parquet")
    os.link(plain, tmp_path / "hardlink.parquet")
    monkeypatch.chdir(tmp_path)
    for name in (str(plain), "in.parquet", "./in.parquet", "symlink.parquet", "hardlink.parquet"):
        for overwrite in (False, True):
            assert "is the input" in str(refused(Path(name), layout_of(plain), overwrite=overwrite))
    assert plain.read_bytes() == content


def test_the_input_is_not_taken_for_the_work_file_of_a_killed_run(plain: Path, tmp_path: Path) -> None:
    path = plain.rename(tmp_path / ".out.parquet.partial")
    assert "is the input" in str(refused(tmp_path / "out.parquet", layout_of(path)))
    assert names_in(tmp_path) == [".out.parquet.partial"]


def test_two_runs_cannot_write_one_output(plain: Path, tmp_path: Path) -> None:
    layout, output = layout_of(plain), tmp_path / "out.parquet"
    with ParquetSink(locate(str(output)), layout, [LABEL]) as first:
        assert "another run" in str(refused(output, layout))
        first.commit()
    assert pq.read_metadata(output).num_rows == 0
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_where_a_lock_is_granted_twice_the_first_run_does_not_publish_what_the_second_has_begun(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renamed the other's unfinished file over the target, or wrote into it."""
    monkeypatch.setattr("pipeline.parquet.work_file.fcntl.flock", lambda *_: None)
    layout, output = layout_of(plain), tmp_path / "out.parquet"
    with (
        ParquetSink(locate(str(output)), layout, [LABEL]) as first,
        ParquetSink(locate(str(output)), layout, [LABEL]) as second,
    ):
        with pytest.raises(OutputError, match="another run is writing"):
            first.commit()
        first.abort()
        assert names_in(tmp_path) == [".out.parquet.partial", "in.parquet"]
        second.commit()
    assert pq.read_metadata(output).num_rows == 0
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


# All or nothing


def test_nothing_is_there_until_commit(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with ParquetSource(locate(str(plain))) as source, ParquetSink(locate(str(output)), source.layout, []) as sink:
        for batch in source.batches():
            sink.write(batch)
        assert not output.exists()
        sink.commit()
        assert output.exists()
    assert pq.read_table(output).equals(pq.read_table(plain))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_no_trace_and_the_old_output(
    error: type[BaseException], plain: Path, tmp_path: Path
) -> None:
    """'with ParquetWriter' closes a valid file that lacks the last rows."""
    output = tmp_path / "out.parquet"
    output.write_bytes(b"old")
    with (
        ParquetSource(locate(str(plain))) as source,
        pytest.raises(error),
        ParquetSink(locate(str(output)), source.layout, [], overwrite=True) as sink,
    ):
        sink.write(next(source.batches()))
        raise error
    assert output.read_bytes() == b"old"
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_leaving_without_commit_leaves_no_trace(plain: Path, tmp_path: Path) -> None:
    with (
        ParquetSource(locate(str(plain))) as source,
        ParquetSink(locate(str(tmp_path / "out.parquet")), source.layout, []) as sink,
    ):
        sink.write(next(source.batches()))
    assert names_in(tmp_path) == ["in.parquet"]
    sink.abort()


def test_an_output_that_came_into_being_meanwhile_is_not_overwritten(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with ParquetSink(locate(str(output)), layout_of(plain), [LABEL]) as sink:
        output.write_bytes(b"new")
        with pytest.raises(OutputError, match="exists already"):
            sink.commit()
    assert output.read_bytes() == b"new"
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_a_symlink_stays_and_the_file_it_points_to_is_replaced(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    link = tmp_path / "out.parquet"
    link.symlink_to("data/real.parquet")
    copy(plain, link)
    copy(plain, link, overwrite=True)
    assert link.is_symlink()
    assert_only_labels_added(plain, tmp_path / "data" / "real.parquet")
    assert names_in(tmp_path / "data") == ["real.parquet"]


def test_permissions_are_those_of_the_umask_or_of_the_replaced_file(plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    old_umask = os.umask(0o027)
    try:
        copy(plain, output)
        assert stat.S_IMODE(output.stat().st_mode) == 0o640
        output.chmod(0o604)
        copy(plain, output, overwrite=True)
        assert stat.S_IMODE(output.stat().st_mode) == 0o604
    finally:
        os.umask(old_umask)


def test_rows_that_are_being_written_are_as_private_as_the_file_they_replace(plain: Path, tmp_path: Path) -> None:
    """They stood in a file that everybody could read until the output was complete."""
    output = tmp_path / "out.parquet"
    output.touch(mode=0o400)
    with (
        ParquetSource(locate(str(plain))) as source,
        ParquetSink(locate(str(output)), source.layout, [], overwrite=True),
    ):
        assert stat.S_IMODE((tmp_path / ".out.parquet.partial").stat().st_mode) == 0o600
    assert stat.S_IMODE(output.stat().st_mode) == 0o400


def copied(folder: Path, *, before_commit: str = "", setup: str = "") -> subprocess.CompletedProcess[str]:
    """``in.parquet`` copied over ``out.parquet`` in a process of its own; prints exit code and message."""
    script = f"""
import os, resource, signal, sys
from pathlib import Path
from types import SimpleNamespace
from pipeline.errors import PipelineError
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource

folder = Path(sys.argv[1])
{setup}
try:
    with ParquetSource(locate(str(folder / "in.parquet"))) as source:
        with ParquetSink(locate(str(folder / "out.parquet")), source.layout, [], overwrite=True) as sink:
            for batch in source.batches():
                sink.write(batch)
            {before_commit or "pass"}
            sink.commit()
    print(0)
except PipelineError as error:
    print(error.exit_code, error)
"""
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, folder], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def random_file(path: Path, n_mib: int) -> Path:
    texts = [os.urandom(MIB // 2048).hex() for _ in range(1024 * n_mib)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False)
    return path


def test_a_full_disk_leaves_no_partial_file_and_the_old_output(tmp_path: Path) -> None:
    """The file size limit of a process fails as a full disk does, here at writing, at closing and at flushing."""
    random_file(tmp_path / "in.parquet", n_mib=3)
    output = tmp_path / "out.parquet"
    assert copied(tmp_path).stdout == "0\n"
    n_bytes = output.stat().st_size
    output.write_bytes(b"old")
    for limit in (0, MIB, n_bytes - MIB, n_bytes - 1):
        setup = (
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
        )
        done = copied(tmp_path, setup=setup)
        assert done.stdout.startswith(f"74 writing output {str(output)!r} failed: File too large"), done
        assert done.stdout.count("\n") == 1
        assert done.stderr == ""
        assert output.read_bytes() == b"old"
        assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_no_space_on_the_device_is_a_storage_error(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.parquet.work_file._open_locked", lambda _: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(StorageError, match="No space left on device") as caught:
        copy(plain, tmp_path / "out.parquet")
    assert caught.value.exit_code == 74
    assert "make room" in caught.value.hint
    assert names_in(tmp_path) == ["in.parquet"]


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
def test_a_device_that_fails_at_the_end_leaves_the_old_output(
    call: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.parquet"
    output.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match="Input/output error"):
        copy(plain, output, overwrite=True)
    assert output.read_bytes() == b"old"
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_a_folder_that_cannot_be_synced_is_no_failure(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync: Callable[[int], None] = os.fsync

    def fail_on_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    copy(plain, tmp_path / "out.parquet")
    assert_only_labels_added(plain, tmp_path / "out.parquet")


def test_a_killed_run_leaves_the_old_output_and_its_work_file_goes_with_the_next(tmp_path: Path) -> None:
    path, output = random_file(tmp_path / "in.parquet", n_mib=3), tmp_path / "out.parquet"
    output.write_bytes(b"old")
    done = copied(
        tmp_path, before_commit="list(map(sink._write_groups, [sink._grouper.flush()])); os.kill(os.getpid(), 9)"
    )
    assert done.returncode == -signal.SIGKILL
    assert output.read_bytes() == b"old"
    assert names_in(tmp_path) == [".out.parquet.partial", "in.parquet", "out.parquet"]
    copy(path, output, overwrite=True)
    assert_only_labels_added(path, output)
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_leftovers_are_not_written_into(plain: Path, tmp_path: Path) -> None:
    """They may be longer than what is written now, or have another name."""
    leftover, linked = tmp_path / ".out.parquet.partial", tmp_path / "linked"
    leftover.write_bytes(bytes(MIB))
    os.link(leftover, linked)
    copy(plain, tmp_path / "out.parquet")
    assert_only_labels_added(plain, tmp_path / "out.parquet")
    assert linked.read_bytes() == bytes(MIB)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from types import SimpleNamespace
from pipeline.parquet.buffers import buffers
from pipeline.parquet.location import locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource

path = Path(sys.argv[1])
output = path.with_suffix(".out")
with ParquetSource(locate(str(path))) as source, ParquetSink(locate(str(output)), source.layout, []) as sink:
    for table in buffers(source.batches(), 8192, 32 << 20):
        sink.write(table)
    sink.commit()
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""

    def peak(n_groups: int) -> float:
        path = tmp_path / f"{n_groups}.parquet"
        table = pa.table({"text": [f"{i:06}" + "x" * 2000 for i in range(50_000)]})
        with pq.ParquetWriter(path, table.schema) as file:
            for _ in range(n_groups):
                file.write_table(table)
        return peak_mib(script, path)

    assert peak(7) < peak(1) + 80
