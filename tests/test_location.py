"""Places: paths and URIs, what messages call them, where their unfinished output lives, what their errors mean."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest

from pipeline.errors import UsageError
from pipeline.parquet.failures import MAX_REASON, Failure, failure_of, reason_of
from pipeline.parquet.location import Location, locate
from pipeline.parquet.uri import encoded, is_uri, public_name

NO_LOOKUP = "?region=us-east-1&endpoint_override=127.0.0.1:1&scheme=http"  # or the bucket's region is asked for


def remote(name: str = "s3://bucket/a/out.parquet") -> Location:
    return locate(name + NO_LOOKUP)


# Paths


@pytest.mark.parametrize("text", ["in.parquet", "a b/ü#?.parquet", "s3:/bucket/key", "a:b", "-"])
def test_a_path_stays_a_path(text: str) -> None:
    location = locate(text)
    assert not is_uri(text)
    assert location.is_local
    assert location.name == location.path == str(location.local) == text


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    for uri in (f"file://{tmp_path}/a%20b#1", f"file://{tmp_path}/a b#1", f"local://{tmp_path}/a b#1"):
        assert locate(uri) == locate(f"{tmp_path}/a b#1")


def test_unfinished_output_of_a_path_lives_beside_the_file_that_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data/real")
    assert locate(str(tmp_path / "link")).scratch == Path(os.path.realpath(tmp_path)) / "data" / "real"


def test_a_place_tells_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(0, 1_234_567_891_000_000_000))
    folder = locate(str(tmp_path))
    info = folder.child("file").info()
    assert (info.type, info.size, info.mtime_ns) == (pa.fs.FileType.File, 5, 1_234_567_891_000_000_000)
    assert folder.info().type == pa.fs.FileType.Directory
    assert folder.child("absent").info().type == pa.fs.FileType.NotFound
    with folder.child("file").open() as file:
        file.seek(3)
        assert file.read() == b"45"


# URIs


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://bucket/key", "bucket/key"),
        ("S3://bucket/key", "bucket/key"),
        ("s3://bucket/a b/ü[1].parquet", "bucket/a b/ü[1].parquet"),
        ("s3://bucket/a%20b%3F", "bucket/a b?"),
        ("s3://bucket/100%.parquet", "bucket/100%.parquet"),
        ("s3://bucket/dt=2024-01-01/a+b:c@d.parquet", "bucket/dt=2024-01-01/a+b:c@d.parquet"),
        ("s3://bucket/key#1", "bucket/key#1"),
        ("s3://bucket/line\nbreak", "bucket/line\nbreak"),
        ("s3://KEY:SE/CR@ET+=@bucket/key", "bucket/key"),
    ],
)
def test_the_path_of_a_uri_is_what_is_written(uri: str, path: str) -> None:
    """pyarrow refuses blanks, and drops what follows a # so that another object is read."""
    location = locate(uri + NO_LOOKUP)
    assert location.path == path
    assert not location.is_local


@pytest.mark.parametrize(
    ("uri", "kind", "path"),
    [
        ("gs://bucket/a b#1", "gcs", "bucket/a b#1"),
        ("abfss://container@account.dfs.core.windows.net/a b", "abfs", "container/a b"),
        ("memory://folder/a b", "py::fsspec+memory", "/folder/a b"),
    ],
)
def test_other_stores_open_alike(uri: str, kind: str, path: str) -> None:
    location = locate(uri)
    assert (location.filesystem.type_name, location.path, location.name) == (kind, path, uri)
    child = location.child("c/d")
    assert (child.path, child.name, child.filesystem) == (f"{path}/c/d", f"{uri}/c/d", location.filesystem)


def test_a_secret_with_odd_characters_reaches_the_store() -> None:
    filesystem = locate(f"s3://KEY:SE/CR@ET+%3D=@bucket/key{NO_LOOKUP}").filesystem
    _, (options,) = filesystem.__reduce__()
    assert (options["access_key"], options["secret_key"]) == ("KEY", "SE/CR@ET+==")
    assert options["endpoint_override"] == "127.0.0.1:1"
    assert not options["background_writes"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("s3://KEY:SECRET@bucket/key?region=x", "s3://bucket/key"),
        ("s3://KEY:SEC/RET@bucket/a@b", "s3://bucket/a@b"),
        ("s3://KEY:SEC@RET@bucket/a@b", "s3://bucket/a@b"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("https://user@host/key?token=x", "https://host/key"),
        ("abfss://container@account.dfs.core.windows.net/key", "abfss://container@account.dfs.core.windows.net/key"),
        (
            "abfss://container:pass@account.dfs.core.windows.net/key",
            "abfss://container@account.dfs.core.windows.net/key",
        ),
        (
            "abfs://:pass@account.blob.core.windows.net/container/key",
            "abfs://account.blob.core.windows.net/container/key",
        ),
        ("dir/KEY:SECRET@file?x", "dir/KEY:SECRET@file?x"),
    ],
)
def test_the_name_of_a_place_has_no_secrets(text: str, name: str) -> None:
    assert public_name(text) == name


def test_encoding_twice_changes_nothing() -> None:
    uri = "s3://KEY:SE/CR@bucket/a b%20%#[ü]?region=x"
    assert encoded(encoded(uri)) == encoded(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "foo://bucket/key",
        "s3:///key",
        "s3://bucket/key?nonsense=1",
        "s3://KEY:SECRET@buc ket/key",
        "s3://KEY:SECRET@/key",
        "file://host/tmp/x",
        "abfss://account/key",
        "github://needs-arguments",
    ],
)
def test_a_uri_that_cannot_be_used_is_a_usage_error_in_one_line(uri: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(uri)
    shown = str(caught.value) + caught.value.hint
    assert repr(public_name(uri)) in shown
    assert caught.value.hint
    assert "\n" not in shown
    assert "SECRET" not in shown
    assert caught.value.__suppress_context__, "a traceback would show the URI"


def test_unfinished_output_of_a_uri_lives_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scratch = remote().scratch
    assert scratch == remote().scratch
    assert locate("memory://out/").scratch == locate("memory://out").scratch
    assert scratch.parents[1] == tmp_path / "parquet-classify" / "uploads"
    assert (len(scratch.parent.name), scratch.name) == (16, "out.parquet")
    assert remote("s3://bucket/b/out.parquet").scratch.parent != scratch.parent
    assert len(remote(f"s3://bucket/{'x' * 900}.parquet").scratch.name) == 50
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert remote().scratch.is_relative_to(tmp_path / "home" / ".cache" / "parquet-classify")


# What errors mean


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            OSError("When reading …: AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7"),
            "unreachable",
        ),
        (OSError("AWS Error SLOW_DOWN during GetObject operation"), "unreachable"),
        (OSError("AWS Error UNKNOWN (HTTP status 503) during GetObject operation"), "unreachable"),
        (OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted"), "unreachable"),
        (OSError("Azure Error: [] Fail to get a new connection for: http://127.0.0.1:1"), "unreachable"),
        (ConnectionResetError(104, "Connection reset by peer"), "unreachable"),
        (TimeoutError("timed out"), "unreachable"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), "denied"),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"), "denied"),
        (OSError("google::cloud::Status(PERMISSION_DENIED: Permanent error"), "denied"),
        (OSError("Azure Error: [AuthorizationFailure] 403"), "denied"),
        (PermissionError("no"), "denied"),
        (OSError("AWS Error NO_SUCH_BUCKET during GetObject operation"), "missing"),
        (FileNotFoundError(2, "Path does not exist 'b/k'"), "missing"),
        (OSError("Corrupt snappy compressed data."), None),
        (OSError("Couldn't deserialize thrift: TProtocolException"), None),
        (pa.ArrowInvalid("could not decode AWS Error"), None),
    ],
)
def test_an_error_of_a_store_tells_what_failed(error: Exception, failure: str | None) -> None:
    assert failure_of(remote(), error) == (None if failure is None else Failure(failure))


def test_an_error_of_a_local_file_is_the_device_only_with_a_number() -> None:
    assert failure_of(locate("x"), OSError(5, "Input/output error")) == Failure.UNREACHABLE
    assert failure_of(locate("x"), OSError("AWS Error ACCESS_DENIED")) is None


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert reason_of(OSError("<html>\n  <b>503</b>\n")) == "<html> <b>503</b>"
    assert len(reason_of(OSError("x" * 10_000))) == MAX_REASON + 1
