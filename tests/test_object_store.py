"""Object stores through the command line, against a real S3 endpoint on this machine.

The store's client tries a failing call again for about six seconds, so tests of failures are few and slow.
"""

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from pipeline.classify import main
from pipeline.distributed.parts import parts_beside, remove_parts
from pipeline.distributed.unit import Done
from pipeline.errors import InputError, OutputError, ReadError, StorageError
from pipeline.parquet.location import Location, locate
from pipeline.parquet.sink import ParquetSink
from pipeline.parquet.source import ParquetSource
from tests.hard_files import USABLE, with_text
from tests.in_units import InUnits
from tests.store import CREDENTIALS, HOST, Gate, filesystem, free_port, gate_before, moto_server
from tests.test_hard_files import arguments

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with moto_server() as port:
        yield port


@dataclass(frozen=True)
class Store:
    """A bucket of one test, in a store that is reached through a gate.

    Attributes:
        filesystem: past the gate.
        bucket: its name.
        query: what a URI needs to find the store.
        gate: before it.
        cache: the user's cache folder.
    """

    filesystem: pa.fs.S3FileSystem
    bucket: str
    query: str
    gate: Gate
    cache: Path

    def uri(self, key: str, bucket: str | None = None) -> str:
        return f"s3://{bucket or self.bucket}/{key}{self.query}"

    def put(self, key: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(f"{self.bucket}/{key}") as stream:
            stream.write(content)

    def get(self, key: str) -> bytes:
        with self.filesystem.open_input_file(f"{self.bucket}/{key}") as file:
            return bytes(file.read())

    def table(self, key: str) -> pa.Table:
        return pq.ParquetFile(pa.BufferReader(self.get(key))).read()

    def stored(self) -> list[str]:
        found = self.filesystem.get_file_info(pa.fs.FileSelector(self.bucket, recursive=True))
        return sorted(info.path.removeprefix(f"{self.bucket}/") for info in found)

    def leftovers(self) -> list[Path]:
        """What a run left in the user's cache folder."""
        return [path for path in self.cache.rglob("*") if path.name != "uploads" and path.parent != self.cache]


@pytest.fixture
def store(
    server: int,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Store]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    past_the_gate = filesystem(server)
    bucket = f"bucket-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    past_the_gate.create_dir(bucket)
    with gate_before(server) as (port, gate):
        yield Store(past_the_gate, bucket, f"?endpoint_override={HOST}:{port}&scheme=http", gate, cache)


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    USABLE["types_times"](path)
    return path


def run(source: object, output: object, model: Path, *flags: str) -> int:
    return main([*arguments(Path("in"), Path("out"), model)[2:], str(source), str(output), *flags])


def assert_refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """One line that says why, and a hint."""
    errors = capsys.readouterr().err
    lines = [line for line in errors.splitlines() if line]
    assert sum("error:" in line for line in lines) == 1, errors
    assert "hint:" in lines[-1], errors
    assert "Traceback" not in errors
    for word in words:
        assert word in errors
    return errors


# In and out


def test_a_store_gives_and_takes_what_a_local_run_does(store: Store, tickets: Path, tiny_model_folder: Path) -> None:
    local = tickets.with_name("local.parquet")
    assert run(tickets, local, tiny_model_folder) == 0
    expected = pq.read_table(local)
    store.put("in/tickets.parquet", tickets.read_bytes())

    downloaded = tickets.with_name("out.parquet")
    assert run(store.uri("in/tickets.parquet"), downloaded, tiny_model_folder) == 0
    assert run(tickets, store.uri("out/from local.parquet"), tiny_model_folder) == 0
    assert run(store.uri("in/tickets.parquet"), store.uri("out/from%20store.parquet"), tiny_model_folder) == 0

    assert downloaded.read_bytes() == local.read_bytes()
    for key in ("out/from local.parquet", "out/from store.parquet"):
        assert store.get(key) == local.read_bytes()
        assert store.table(key).equals(expected)
    assert store.leftovers() == []


def test_the_endpoint_may_come_from_the_environment(
    store: Store, tickets: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = store.query.removeprefix("?endpoint_override=").removesuffix("&scheme=http")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{endpoint}")
    assert run(tickets, f"s3://{store.bucket}/out.parquet", tiny_model_folder) == 0
    assert store.table("out.parquet").num_rows == 24


def test_a_dry_run_says_what_would_be_done_and_leaves_nothing(
    store: Store, tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("in.parquet", tickets.read_bytes())
    assert run(store.uri("in.parquet"), store.uri("out.parquet"), tiny_model_folder, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert f"s3://{store.bucket}/out.parquet (would be created)" in planned
    assert "endpoint_override" not in planned
    assert store.stored() == ["in.parquet"]
    assert store.leftovers() == []


def test_an_existing_object_is_replaced_only_with_the_flag(
    store: Store, tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("out.parquet", b"old")
    assert run(tickets, store.uri("out.parquet"), tiny_model_folder) == 73
    assert_refused(capsys, f"output 's3://{store.bucket}/out.parquet' exists already", "--overwrite")
    assert store.get("out.parquet") == b"old"
    assert store.leftovers() == []
    assert run(tickets, store.uri("out.parquet"), tiny_model_folder, "--overwrite") == 0
    assert store.table("out.parquet").num_rows == 24
    assert store.leftovers() == []


def test_places_that_cannot_be_used_are_refused_before_any_work(
    store: Store, tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("folder/in.parquet", tickets.read_bytes())
    store.put("text.parquet", b"id,text\n1,hello\n")
    store.put("empty.parquet", b"")
    output = tickets.with_name("out.parquet")
    for source, exit_code, words in (
        (store.uri("absent.parquet"), 66, "does not exist"),
        (store.uri("in.parquet", bucket="no-such-bucket"), 66, "does not exist"),
        (store.uri("text.parquet"), 65, "looks like CSV"),
        (store.uri("empty.parquet"), 65, "is empty"),
    ):
        assert run(source, output, tiny_model_folder) == exit_code, source
        assert_refused(capsys, words, f"'{source.partition('?')[0]}'")
        assert not output.exists()
    for target, words in (
        (store.uri("out.parquet", bucket="no-such-bucket"), "there is no bucket 'no-such-bucket'"),
        (store.uri("folder"), "is a folder"),
        (f"s3://{store.bucket}{store.query}", "is a folder"),
    ):
        assert run(tickets, target, tiny_model_folder) == 73, target
        assert_refused(capsys, words, f"'{target.partition('?')[0]}'")
    assert run(store.uri("folder"), store.uri("out", bucket="no-such-bucket"), "/no/model") == 73
    assert_refused(capsys, "there is no bucket 'no-such-bucket'")
    assert run(store.uri("folder/in.parquet"), store.uri("folder/in.parquet"), tiny_model_folder, "--overwrite") == 73
    assert_refused(capsys, "is the input")
    assert store.stored() == ["empty.parquet", "folder", "folder/in.parquet", "text.parquet"]
    assert store.leftovers() == []


def test_two_runs_on_one_machine_cannot_write_one_object(store: Store, tickets: Path) -> None:
    output = locate(store.uri("out.parquet"))
    with ParquetSource(locate(str(tickets))) as source, ParquetSink(output, source.layout, []) as first:
        assert stat.S_IMODE(output.scratch.parent.stat().st_mode) == 0o700
        with pytest.raises(OutputError, match="another run is writing"):
            ParquetSink(output, source.layout, [])
        for batch in source.batches():
            first.write(batch)
        first.commit()
    assert store.table("out.parquet").equals(pq.read_table(tickets))
    assert store.leftovers() == []


def test_an_object_that_came_into_being_meanwhile_is_not_overwritten(store: Store, tickets: Path) -> None:
    with (
        ParquetSource(locate(str(tickets))) as source,
        ParquetSink(locate(store.uri("out.parquet")), source.layout, []) as sink,
    ):
        store.put("out.parquet", b"new")
        with pytest.raises(OutputError, match="exists already"):
            sink.commit()
    assert store.get("out.parquet") == b"new"
    assert store.leftovers() == []


def test_a_cache_folder_that_cannot_be_written_is_refused(
    store: Store, tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.cache / "parquet-classify").touch()
    assert run(tickets, store.uri("out.parquet"), tiny_model_folder) == 73
    assert_refused(capsys, "cannot be kept in", "XDG_CACHE_HOME")


# Secrets


def test_credentials_in_a_uri_work_and_show_nowhere(
    store: Store, tickets: Path, tiny_model_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = tickets.with_name("metrics.json")
    output = f"s3://KEYKEY:SEC/RET+=@{store.bucket}/out.parquet{store.query}"
    flags = ("--metrics", str(metrics), "--debug")
    assert run(tickets, output, tiny_model_folder, *flags) == 0
    assert run(tickets, output, tiny_model_folder, *flags) == 73
    assert run(tickets, output.replace("out.parquet?", "out.parquet?nonsense=1&"), tiny_model_folder, *flags) == 2
    assert run(output.replace("out", "absent"), tickets.with_name("o"), tiny_model_folder, *flags) == 66
    shown = "".join(capfd.readouterr()) + metrics.read_text()
    assert json.loads(metrics.read_text())["input"] == f"s3://{store.bucket}/absent.parquet"
    assert "exists already" in shown
    for secret in ("KEYKEY", "SEC/RET", "SEC%2FRET"):
        assert secret not in shown


# Faults


def test_a_store_that_is_gone_at_the_start_is_told_by_its_place(
    tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://bucket/x.parquet?endpoint_override={HOST}:{free_port()}&scheme=http"
    assert run(uri, tickets.with_name("out.parquet"), tiny_model_folder) == 74
    assert_refused(capsys, "reading 's3://bucket/x.parquet' failed", "NETWORK_CONNECTION", "run the same command again")
    assert run(tickets, uri, tiny_model_folder) == 73
    assert_refused(capsys, "output 's3://bucket/x.parquet' cannot be created", "NETWORK_CONNECTION")


def test_a_connection_lost_while_reading_is_a_read_error(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "big.parquet"
    texts = [os.urandom(500).hex() for _ in range(8000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1000, compression="none", use_dictionary=False)
    store.put("in.parquet", path.read_bytes())
    n_rows = 0
    with ParquetSource(locate(store.uri("in.parquet"))) as source, pytest.raises(ReadError) as caught:
        for batch in source.batches():
            n_rows += batch.num_rows
            store.gate.is_closed = n_rows > 2000
    assert 2000 < n_rows < 8000
    assert caught.value.exit_code == 74
    assert "\n" not in str(caught.value)
    assert f"reading 's3://{store.bucket}/in.parquet' failed" in str(caught.value)
    assert "column" not in str(caught.value)


def test_damage_in_a_store_is_told_from_a_lost_connection(store: Store, tickets: Path) -> None:
    pq.write_table(with_text(), tickets, compression="none", use_dictionary=False, write_page_checksum=True)
    store.put("in.parquet", tickets.read_bytes().replace(b"Ticket 12: the invoice", b"Ticket 12: the invoicf"))
    with pytest.raises(InputError, match="row group 0, column 'text'"):
        ParquetSource(locate(store.uri("in.parquet")))


@pytest.mark.parametrize(
    "request_line",
    [b"POST /%s/out.parquet?uploads", b"PUT /%s/out.parquet?partNumber=2", b"POST /%s/out.parquet?uploadId"],
)
def test_an_upload_that_fails_leaves_the_old_object_and_a_rerun_succeeds(
    request_line: bytes, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": [os.urandom(MIB // 2).hex() for _ in range(24)]}), path, compression="none")
    store.put("out.parquet", b"old")

    def copy() -> None:
        output = locate(store.uri("out.parquet"))
        with ParquetSource(locate(str(path))) as source, ParquetSink(output, source.layout, [], overwrite=True) as sink:
            for batch in source.batches():
                sink.write(batch)
            sink.commit()

    stop_at = request_line.replace(b"%s", store.bucket.encode())
    store.gate.stops = lambda head: head.startswith(stop_at)
    with pytest.raises(StorageError, match=r"uploading output .* failed: .*NETWORK_CONNECTION") as caught:
        copy()
    assert caught.value.exit_code == 74
    assert "\n" not in str(caught.value)
    assert caught.value.hint == "run the same command again"
    assert store.gate.is_closed
    assert store.get("out.parquet") == b"old"
    assert store.stored() == ["out.parquet"]
    assert store.leftovers() == []

    store.gate.stops, store.gate.is_closed = lambda head: False, False
    copy()
    assert store.table("out.parquet").equals(pq.read_table(path))
    assert store.leftovers() == []


def test_a_store_that_goes_before_the_upload_ends_the_run_with_74(
    store: Store, tickets: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("in.parquet", tickets.read_bytes())
    store.gate.stops = lambda head: head.startswith(b"POST ")
    assert run(store.uri("in.parquet"), store.uri("out.parquet"), tiny_model_folder) == 74
    assert_refused(capsys, "uploading output", "run the same command again")
    assert store.stored() == ["in.parquet"]
    assert [path.name for path in store.leftovers() if path.is_file()] == [".out.parquet.scores"]
    store.gate.stops, store.gate.is_closed = lambda head: False, False
    assert run(store.uri("in.parquet"), store.uri("out.parquet"), tiny_model_folder) == 0
    assert store.table("out.parquet").num_rows == 24
    assert store.leftovers() == []


def test_an_upload_that_is_not_allowed_hints_at_the_credentials(
    store: Store, tickets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether writing is allowed shows only at the end."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("When initiating: AWS Error ACCESS_DENIED during CreateMultipartUpload operation:\nAccess Denied")

    monkeypatch.setattr(pa.fs, "copy_files", refuse)
    with (
        ParquetSource(locate(str(tickets))) as source,
        ParquetSink(locate(store.uri("out.parquet")), source.layout, []) as sink,
        pytest.raises(
            StorageError, match="ACCESS_DENIED during CreateMultipartUpload operation: Access Denied"
        ) as caught,
    ):
        sink.commit()
    assert "credentials" in caught.value.hint
    assert store.leftovers() == []


def test_a_web_server_is_no_output(tickets: Path) -> None:
    place = Location("https://host/out.parquet", locate("memory://out.parquet").filesystem, "https://host/out.parquet")
    with (
        ParquetSource(locate(str(tickets))) as source,
        pytest.raises(OutputError, match="web servers are only read from"),
    ):
        ParquetSink(place, source.layout, [])


def test_an_object_of_another_size_is_removed(store: Store, tickets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_files = pa.fs.copy_files

    def lose_the_end(source: str, *args: object, **options: object) -> None:
        short = tickets.with_name("short")
        short.write_bytes(Path(source).read_bytes()[:-1])
        copy_files(str(short), *args, **options)

    monkeypatch.setattr(pa.fs, "copy_files", lose_the_end)
    with (
        ParquetSource(locate(str(tickets))) as source,
        ParquetSink(locate(store.uri("a/out.parquet")), source.layout, []) as sink,
        pytest.raises(StorageError, match="bytes arrived of"),
    ):
        sink.commit()
    assert "a/out.parquet" not in store.stored()
    assert store.leftovers() == []


def test_what_a_killed_run_left_goes_with_the_next(store: Store, tickets: Path) -> None:
    output = locate(store.uri("out.parquet"))
    output.scratch.parent.mkdir(parents=True)
    output.scratch.with_name(".out.parquet.partial").write_bytes(b"cut off")
    with ParquetSource(locate(str(tickets))) as source, ParquetSink(output, source.layout, []) as sink:
        for batch in source.batches():
            sink.write(batch)
        sink.commit()
    assert store.table("out.parquet").equals(pq.read_table(tickets))
    assert store.leftovers() == []


# Memory

PEAK = """
import sys
from pathlib import Path
from pipeline.parquet.location import locate
from pipeline.parquet.source import ParquetSource
from pipeline.parquet.upload import upload

upload(Path(sys.argv[1]), locate(sys.argv[2]))
with ParquetSource(locate(sys.argv[2])) as source:
    assert sum(batch.num_rows for batch in source.batches()) == source.num_rows
with open("/proc/self/status") as status:  # ru_maxrss would be that of the process that started this one
    print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_object(store: Store, server: int, tmp_path: Path) -> None:
    """By default parts to upload queue without a bound, and the columns of a file are read ahead whole."""
    path, query = tmp_path / "big.parquet", f"?endpoint_override={HOST}:{server}&scheme=http"
    table = pa.table({"text": [os.urandom(500).hex() for _ in range(4000)]})

    def peak_mib(n_groups: int) -> float:
        with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as file:
            for _ in range(n_groups):
                file.write_table(table)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, path, f"s3://{store.bucket}/{n_groups}.parquet{query}"],
            cwd=Path(__file__).parents[1],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout)

    few, many = peak_mib(4), peak_mib(20)
    assert many < few + 20, f"{few:.0f} MiB for 16 MB, {many:.0f} MiB for 80 MB"


# Schemes of fsspec


def test_fsspec_opens_what_pyarrow_does_not_know(
    tickets: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tickets.parent / "cache"))
    local = tickets.with_name("local.parquet")
    assert run(tickets, local, tiny_model_folder) == 0
    memory = locate("memory://in a folder/in.parquet")
    pa.fs.copy_files(str(tickets), memory.path, pa.fs.LocalFileSystem(), memory.filesystem)
    output = "memory://in a folder/out.parquet"
    assert run("memory://in a folder/in.parquet", output, tiny_model_folder) == 0
    assert run("memory://in a folder/in.parquet", output, tiny_model_folder) == 73
    with locate(output).open() as file:
        assert file.read() == local.read_bytes()
    assert run("memory://absent.parquet", output, tiny_model_folder, "--overwrite") == 66


# In units, as workers of a run on many machines label it


def test_parts_lie_in_the_bucket_of_the_output_and_go_away(store: Store, tiny_model_folder: Path) -> None:
    USABLE["types_times"](path := store.cache / "in.parquet")
    store.put("in.parquet", path.read_bytes())
    assert run(path, store.cache / "whole.parquet", tiny_model_folder) == 0
    in_units = InUnits(store.uri("in.parquet"), store.uri("to/out.parquet"), tiny_model_folder, "--unit-rows", "8")
    assert all(isinstance(outcome, Done) for outcome in in_units.work())
    parts = [f"to/.out.parquet.parts/rows-{row:012}.parquet" for row in (0, 8, 16)]
    assert [key for key in store.stored() if key.endswith(".parquet")] == ["in.parquet", *parts]
    assert [outcome.was_there for outcome in in_units.work()] == [True] * 3
    in_units.assemble()
    assert store.table("to/out.parquet").equals(pq.read_table(store.cache / "whole.parquet"))
    remove_parts(parts_beside(in_units.output))
    assert [key for key in store.stored() if key.endswith(".parquet")] == ["in.parquet", "to/out.parquet"]
