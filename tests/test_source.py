"""Source, and what it stands on: recognising input files, columns by name, buffers."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError, InputMissingError, PipelineError, ReadError
from pipeline.parquet.buffers import Grouper, buffers, share_dictionaries
from pipeline.parquet.location import locate
from pipeline.parquet.source import ParquetSource, ReadPace
from tests.hard_files import (
    ODD_TEXTS,
    UNUSABLE,
    USABLE,
    bits,
    chunked_dictionaries,
    int96,
    with_text,
    writer,
)

MIB = 1 << 20
SHARED_FILES = Path(__file__).parents[2] / "shared" / "hard_files"


def opened(path: Path, **options: int | None) -> ParquetSource:
    return ParquetSource(locate(str(path)), **options)


def read(path: Path, **options: int | None) -> pa.Table:
    with opened(path, **options) as source:
        return pa.Table.from_batches(source.batches(), source.schema)


def assert_clear(error: PipelineError, path: Path, exit_code: int) -> None:
    assert error.exit_code == exit_code
    assert "\n" not in str(error) + error.hint
    assert str(path) in str(error)
    assert error.hint


# What is refused


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_file_is_refused_in_one_line_that_says_why(name: str, tmp_path: Path) -> None:
    write, words = UNUSABLE[name]
    path = tmp_path / "in.parquet"
    write(path)
    with pytest.raises(InputError) as caught:
        opened(path)
    assert_clear(caught.value, path, exit_code=65)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "path", sorted(SHARED_FILES.glob("broken_*")) + sorted(SHARED_FILES.glob("foreign_*")), ids=str
)
def test_a_shared_broken_file_is_refused(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        opened(path)
    assert_clear(caught.value, path, exit_code=65)


def test_an_encrypted_shared_file_is_called_encrypted(tmp_path: Path) -> None:
    path = SHARED_FILES / "encrypted_footer.parquet"
    if not path.exists():
        path = tmp_path / "in.parquet"
        UNUSABLE["encrypted"][0](path)
    with pytest.raises(InputError, match="is encrypted"):
        opened(path)


def test_encrypted_columns_under_a_plain_footer_are_called_encrypted(tmp_path: Path) -> None:
    class Keys(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return key_bytes

    encryption = pe.EncryptionConfiguration(footer_key="k", column_keys={"k": ["text"]}, plaintext_footer=True)
    properties = pe.CryptoFactory(lambda _: Keys()).file_encryption_properties(pe.KmsConnectionConfig(), encryption)
    path = tmp_path / "in.parquet"
    pq.write_table(with_text(), path, encryption_properties=properties)
    assert path.read_bytes()[-4:] == b"PAR1"
    with pytest.raises(InputError, match="is encrypted"):
        opened(path)


@pytest.mark.parametrize("name", ["absent.parquet", "dangling", "plain.parquet/below"])
def test_a_missing_input_is_an_error_of_its_own(name: str, tmp_path: Path) -> None:
    USABLE["plain"](tmp_path / "plain.parquet")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputMissingError) as caught:
        opened(tmp_path / name)
    assert_clear(caught.value, tmp_path / name, exit_code=66)


def test_a_folder_is_said_not_to_be_supported_yet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folders are not supported yet") as caught:
        opened(tmp_path)
    assert_clear(caught.value, tmp_path, exit_code=65)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file") as caught:
        opened(tmp_path / "pipe")
    assert_clear(caught.value, tmp_path / "pipe", exit_code=65)


def failing_open(error: OSError) -> object:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


def test_a_file_without_read_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    USABLE["plain"](tmp_path / "in.parquet")
    monkeypatch.setattr(Path, "open", failing_open(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(InputError, match="Permission denied") as caught:
        opened(tmp_path / "in.parquet")
    assert_clear(caught.value, tmp_path / "in.parquet", exit_code=65)


def test_a_failing_device_is_a_storage_error_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    USABLE["plain"](tmp_path / "in.parquet")
    monkeypatch.setattr(Path, "open", failing_open(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(ReadError, match="Input/output error") as caught:
        opened(tmp_path / "in.parquet")
    assert_clear(caught.value, tmp_path / "in.parquet", exit_code=74)


def test_a_failing_device_is_a_storage_error_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.parquet"
    USABLE["plain"](path)

    def failing(file: pq.ParquetFile, **options: object) -> Iterator[pa.RecordBatch]:
        yield from original(file, **options)
        raise OSError(errno.EIO, "Error reading bytes from file. Detail: [errno 5] Input/output error")

    with opened(path) as source:
        original = pq.ParquetFile.iter_batches
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)
        batches = source.batches()
        assert next(batches).num_rows == 8
        with pytest.raises(ReadError, match="Input/output error") as caught:
            next(batches)
    assert_clear(caught.value, path, exit_code=74)


def test_a_damaged_page_names_row_group_and_column_after_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(
        with_text(), path, row_group_size=8, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = path.read_bytes()
    assert content.count(b"Ticket 12: the invoice") == 1
    path.write_bytes(content.replace(b"Ticket 12: the invoice", b"Ticket 12: the invoicf"))
    n_rows = 0
    with opened(path) as source, pytest.raises(InputError) as caught:
        for batch in source.batches():
            n_rows += batch.num_rows
    assert n_rows == 8
    assert "row group 1, column 'text'" in str(caught.value)
    assert_clear(caught.value, path, exit_code=65)


def test_a_damaged_page_of_a_nested_column_names_its_path(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    table = with_text(ticket=[{"tags": [f"tag {i}"]} for i in range(24)])
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"tag 12", b"tag xx"))
    with pytest.raises(InputError, match=r"column 'ticket\.tags\.list\.element'"):
        opened(path)


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": [os.urandom(500).hex() for _ in range(10_000)]}), path, row_group_size=1000)
    with opened(path) as source:
        batches = source.batches()
        next(batches)
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(InputError, match="row group"):
            list(batches)


def test_no_damage_to_a_file_escapes_as_anything_but_a_clear_error(tmp_path: Path) -> None:
    """In a process of its own: pyarrow's metadata of a damaged footer can end the process."""
    script = """
import random, sys
from pathlib import Path
from pipeline.errors import InputError
from pipeline.parquet.location import locate
from pipeline.parquet.source import ParquetSource
from tests.hard_files import USABLE

path, n_refused, random = Path(sys.argv[1]), 0, random.Random(0)
for name in 5 * sorted(USABLE):
    USABLE[name](path)
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 2, 8])):
        content[random.randrange(max(4, len(content) - 1500), len(content) - 4)] = random.randrange(256)
    path.write_bytes(content)
    try:
        with ParquetSource(locate(str(path))) as source:
            for batch in source.batches():
                pass
    except InputError as error:
        n_refused += 1
        assert "\\n" not in str(error)
print(n_refused)
"""
    assert number_from(script, tmp_path / "in.parquet") > len(USABLE)


# Rows, types, order


@pytest.mark.parametrize("name", [name for name in USABLE if "int96" not in name])
def test_every_row_comes_once_in_order_with_its_type(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    USABLE[name](path)
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
    expected = pa.concat_tables([file.schema_arrow.empty_table(), *groups])
    found = read(path, max_rows=5)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert [bits(column) for column in found.columns] == [bits(column) for column in expected.columns]


def test_batches_start_anew_with_each_call(tmp_path: Path) -> None:
    USABLE["plain"](tmp_path / "in.parquet")
    with opened(tmp_path / "in.parquet") as source:
        first, second = source.batches(), source.batches()
        next(first)
        assert pa.Table.from_batches(second) == pq.read_table(tmp_path / "in.parquet")


@pytest.mark.parametrize("limit", [0, 1, 8, 13, 24, 1000])
def test_a_limit_gives_the_first_rows(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    USABLE["text_dictionary"](path)
    with opened(path, limit=limit) as source:
        assert source.num_rows == min(limit, 24)
        ids = [value for batch in source.batches() for value in batch.column("ticket_id").to_pylist()]
    assert ids == list(range(min(limit, 24)))


def test_a_file_in_a_hive_folder_gets_no_partition_column(tmp_path: Path) -> None:
    folder = tmp_path / "dt=2024-01-02"
    folder.mkdir()
    USABLE["plain"](folder / "in.parquet")
    assert read(folder / "in.parquet").schema.names == ["ticket_id", "text"]


def test_int96_within_range_is_read_as_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    table = with_text(at=pa.array([123456789123456789] * 24, pa.timestamp("ns")))
    writer(table, use_deprecated_int96_timestamps=True)(path)
    with opened(path) as source:
        assert source.layout.int96
    assert read(path).column("at").equals(table.column("at"))


def test_int96_far_dates_do_not_wrap(tmp_path: Path) -> None:
    """The default reader turns the year 1000 into 2169."""
    path = tmp_path / "in.parquet"
    table = int96("1000-01-01", "9999-12-31T23:59:59.999999")
    writer(table, use_deprecated_int96_timestamps=True)(path)
    with opened(path) as source:
        assert not source.layout.int96
    found = read(path)
    for name in ("at", "history", "named"):
        assert bits(found.column(name)) == bits(table.column(name))


def test_one_far_date_in_the_last_row_group_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    moments = pa.array([*[10**15] * 23, -(10**17)], pa.timestamp("us"))
    writer(with_text(at=moments), use_deprecated_int96_timestamps=True)(path)
    assert read(path).column("at").combine_chunks().equals(moments)


def test_odd_texts_come_back_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ODD_TEXTS}), path)
    assert read(path).column("text").to_pylist() == ODD_TEXTS


# Bounded batches


def test_batches_stay_small_when_rows_are_long(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": [f"{i:04}" + "x" * MIB for i in range(60)]}), path, write_batch_size=1)
    with opened(path, max_bytes=4 * MIB) as source:
        sizes = [batch.nbytes for batch in source.batches()]
    assert max(sizes) < 5 * MIB
    assert len(sizes) < 30


def test_a_batch_outgrows_its_bound_only_once_when_long_rows_follow_tiny_ones(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    texts = [*["tiny"] * 1000, *[f"{i:04}" + "x" * MIB for i in range(100)]]
    pq.write_table(pa.table({"text": texts}), path, write_batch_size=1)
    with opened(path, max_bytes=4 * MIB) as source:
        sizes = [batch.nbytes for batch in source.batches()]
    assert sum(size > 5 * MIB for size in sizes) <= 1
    assert max(sizes) < 64 * MIB


def test_reading_speeds_up_again_after_one_long_row(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["x" * 5 * MIB, *["tiny"] * 50_000]}), path, row_group_size=1000)
    with opened(path) as source:
        sizes = [batch.num_rows for batch in source.batches()]
    assert max(sizes) == 256
    assert len(sizes) < 400


def test_large_dictionaries_are_read_in_long_batches_on_one_copy(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    texts = pa.array([f"{i:05}" + "x" * 200 for i in range(30_000)]).dictionary_encode()
    pq.write_table(pa.table({"text": texts}), path)
    with opened(path) as source:
        batches = list(source.batches())
    assert max(batch.num_rows for batch in batches) > 2000
    assert len({batch.column(0).dictionary.buffers()[-1].address for batch in batches}) == 1
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == texts.to_pylist()


def test_a_file_of_3000_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    table = pa.table({f"c{i}": list(range(20)) for i in range(3000)})
    pq.write_table(table, path)
    assert read(path).equals(table)


def test_the_pace_starts_small_and_at_most_doubles() -> None:
    pace = ReadPace(max_rows=100, max_bytes=MIB)
    paces = []
    for _ in range(5):
        paces.append(pace.n_rows)
        pace.see(pa.record_batch({"n": list(range(pace.n_rows))}))
    assert paces == [16, 32, 64, 100, 100]


def test_the_pace_heeds_what_the_footer_says_of_a_row_group() -> None:
    pace = ReadPace(max_rows=100, max_bytes=MIB)
    pace.enter(stored_row_bytes=MIB / 4)
    assert pace.n_rows == 4


PEAK = """
import sys
from pathlib import Path
from pipeline.parquet.buffers import buffers
from pipeline.parquet.location import locate
from pipeline.parquet.source import ParquetSource

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

n_rows, before = 0, peak()
with ParquetSource(locate(sys.argv[1])) as source:
    for table in buffers(source.batches(), 8192, 32 << 20):
        n_rows += table.num_rows
    assert n_rows == source.num_rows
print(peak() - before)
"""


def number_from(script: str, path: Path) -> int:
    """What a script prints that runs in a process of its own."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script, path], cwd=root, check=True, capture_output=True, text=True)
    return int(done.stdout)


def peak_mib(script: str, path: Path) -> float:
    """Memory that a script prints in KiB, in MiB."""
    return number_from(script, path) / 1024


def test_memory_does_not_grow_with_the_number_of_long_rows(tmp_path: Path) -> None:
    def grown(n_rows: int) -> float:
        path = tmp_path / f"{n_rows}.parquet"
        pq.write_table(pa.table({"text": [f"{i:04}" + "x" * MIB for i in range(n_rows)]}), path, write_batch_size=1)
        return peak_mib(PEAK, path)

    assert grown(250) < grown(60) + 60


def test_memory_does_not_grow_with_one_huge_row_group(tmp_path: Path) -> None:
    """With pyarrow's default read-ahead the whole group is in memory."""

    def grown(n_rows: int) -> float:
        path = tmp_path / f"{n_rows}.parquet"
        texts = pa.array([f"{i:06}" + "x" * 1000 for i in range(n_rows)])
        pq.write_table(pa.table({"text": texts}), path, row_group_size=n_rows, compression="none")
        return peak_mib(PEAK, path)

    assert grown(200_000) < grown(50_000) + 50


# Buffers


@given(st.lists(st.lists(st.text(max_size=20), max_size=30), max_size=8), st.integers(1, 20), st.integers(1, 500))
def test_buffers_hold_every_row_once_in_order_within_bounds(
    parts: list[list[str]], max_rows: int, max_bytes: int
) -> None:
    batches = [pa.record_batch({"text": pa.array(part, pa.string())}) for part in parts]
    tables = list(buffers(batches, max_rows, max_bytes))
    assert [row for table in tables for row in table.column(0).to_pylist()] == [row for part in parts for row in part]
    assert all(0 < table.num_rows <= max_rows for table in tables)
    assert all(table.num_rows == 1 or table.nbytes < max_bytes + 120 for table in tables)


def test_buffers_are_full_whatever_the_size_of_the_batches() -> None:
    batches = [pa.record_batch({"n": list(range(n))}) for n in (3, 10, 1, 1, 25)]
    assert [table.num_rows for table in buffers(batches, 8, MIB)] == [8, 8, 8, 8, 8]


def test_buffers_copy_nothing() -> None:
    batch = pa.record_batch({"n": list(range(10))})
    address = batch.column(0).buffers()[1].address
    tables = list(buffers([batch], 4, MIB))
    assert {chunk.buffers()[1].address for table in tables for chunk in table.column(0).chunks} == {address}


def test_buffers_keep_different_dictionaries_apart() -> None:
    column = chunked_dictionaries(pa.int8(), 126)
    batches = pa.table({"kind": column}).to_batches()
    (table,) = buffers(batches, 1000, MIB)
    assert table.column("kind").num_chunks == 3
    assert table.column("kind").to_pylist() == column.to_pylist()


def test_a_dictionary_counts_once_where_batches_share_it() -> None:
    dictionary = pa.array(["x" * 1000, "y" * 1000])
    shared = pa.record_batch({"kind": pa.DictionaryArray.from_arrays([0, 1], dictionary)})
    other = pa.record_batch({"kind": pa.DictionaryArray.from_arrays([0, 1], pa.array(["x" * 1000, "y" * 1000]))})
    assert len(list(buffers([shared] * 5, 1000, max_bytes=1500))) == 1
    assert len(list(buffers([shared, other] * 2, 1000, max_bytes=1500))) == 4
    again = share_dictionaries(other, shared)
    assert again.equals(other)
    assert len(list(buffers([shared, again] * 2, 1000, max_bytes=1500))) == 1


def test_a_flushed_grouper_is_empty() -> None:
    grouper = Grouper(max_rows=10, max_bytes=MIB)
    assert list(grouper.add(pa.record_batch({"n": [1, 2]}))) == []
    assert [group.num_rows for group in grouper.flush()] == [2]
    assert list(grouper.flush()) == []
