"""Any table, any sizes, an interruption at any moment: the same command again gives what one quiet run would have.

The examples are small and go through the whole command line; only the model is loaded and checked once for all.
"""

import dataclasses
import decimal
import functools
import json
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import pipeline.build
import pipeline.engine.load
from pipeline.classify import main
from pipeline.engine.fused import FusedEngine
from pipeline.errors import StorageError
from pipeline.label_store import LabelStore
from pipeline.parquet.sink import ParquetSink
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.stored_scores import StoredScores
from pipeline.task import Task
from tests.hard_files import bits
from tests.test_hard_files import arguments

ADDED = ("--score-column", "added score", "--status-column", "added status", "--label-column", "added label")


@pytest.fixture(scope="module", autouse=True)
def built_once() -> Iterator[None]:
    """The model is loaded, and each stage built, once for all examples: that takes longer than all the rest."""
    load_model, build_stage = pipeline.engine.load.load_model, pipeline.build.build_stage

    @functools.cache
    def loaded(folder: str) -> Any:
        return load_model(folder)

    @functools.cache
    def built(task: Task, model: Any, plain: Settings) -> Stage:
        return build_stage(task, model, plain)

    def build(task: Task, model: Any, wanted: Settings) -> Stage:
        stage = built(task, model, dataclasses.replace(wanted, buffer_rows=8192))
        return dataclasses.replace(stage, settings=wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.engine.load, "load_model", lambda folder, **_: loaded(folder))
        patch.setattr(pipeline.build, "build_stage", build)
        yield


# Tables


def nullable(values: st.SearchStrategy[Any], is_nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | values if is_nullable else values


@dataclass(frozen=True)
class Kind:
    """A type of column, and what may stand in it, nulls left aside."""

    type: pa.DataType
    values: st.SearchStrategy[Any]


def integers(type_: pa.DataType) -> Kind:
    signed = pa.types.is_signed_integer(type_) or pa.types.is_temporal(type_)
    n_bits = type_.bit_width - signed
    return Kind(type_, st.integers(-(1 << n_bits) if signed else 0, (1 << n_bits) - 1))


def within(type_: pa.DataType, first: int, last: int) -> Kind:
    return Kind(type_, st.integers(first, last))


def decimals(type_: pa.DataType) -> Kind:
    most = 10**type_.precision - 1
    numbers = st.integers(-most, most)
    return Kind(type_, numbers.map(lambda number: decimal_of(number, type_.scale)))


def decimal_of(number: int, scale: int) -> Any:
    with decimal.localcontext(prec=80):
        return decimal.Decimal(number).scaleb(-scale)


WORDS = st.text(string.ascii_letters + "äß価🙂 \n\x00", max_size=6)
PRIMITIVES = [
    *(integers(getattr(pa, f"{sign}int{n_bits}")()) for sign in ("", "u") for n_bits in (8, 16, 32, 64)),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.float16(), st.floats(width=16).map(np.float16)),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.float64(), st.floats()),
    Kind(pa.string(), WORDS),
    Kind(pa.large_string(), WORDS),
    Kind(pa.binary(), st.binary(max_size=5)),
    Kind(pa.large_binary(), st.binary(max_size=5)),
    Kind(pa.binary(3), st.binary(min_size=3, max_size=3)),
    decimals(pa.decimal32(7, 2)),
    decimals(pa.decimal64(16, 3)),
    decimals(pa.decimal128(38, 10)),
    decimals(pa.decimal256(60, 20)),
    integers(pa.date32()),
    within(pa.date64(), -(10**6), 10**6),
    within(pa.time32("s"), 0, 86_399),
    within(pa.time32("ms"), 0, 86_399_999),
    within(pa.time64("us"), 0, 86_399_999_999),
    within(pa.time64("ns"), 0, 86_399_999_999_999),
    *(integers(pa.duration(unit)) for unit in ("s", "ms", "us", "ns")),
    *(
        within(pa.timestamp(unit, zone), -(2**50), 2**50)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Paris", "+02:00")
    ),
]
ONLY_TOP = [Kind(pa.string_view(), WORDS), Kind(pa.binary_view(), st.binary(max_size=20)), Kind(pa.null(), st.none())]
FEW = st.integers(0, 3)


@st.composite
def kinds(draw: st.DrawFn, depth: int) -> Kind:
    """A primitive type, or lists, structs, maps, dictionaries of other kinds."""
    nesting = ["list", "large", "fixed", "view", "struct", "map", "dictionary"] if depth else []
    match draw(st.sampled_from([*["plain"] * 4, *nesting])):
        case "plain":
            return draw(st.sampled_from(PRIMITIVES))
        case "struct":
            parts = {
                name: draw(kinds(depth - 1)) for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
            }
            may_be_null = {name: draw(st.booleans()) for name in parts}
            return Kind(
                pa.struct([pa.field(name, part.type, may_be_null[name]) for name, part in parts.items()]),
                st.fixed_dictionaries({name: nullable(part.values, may_be_null[name]) for name, part in parts.items()}),
            )
        case "map":
            key, item = draw(st.sampled_from(PRIMITIVES[:8])), draw(kinds(depth - 1))
            pairs = st.lists(st.tuples(key.values, nullable(item.values, True)), max_size=3)
            return Kind(pa.map_(key.type, item.type), pairs)
        case "dictionary":
            value = draw(st.sampled_from([Kind(pa.string(), WORDS), Kind(pa.binary(), st.binary(max_size=4))]))
            return Kind(pa.dictionary(draw(st.sampled_from([pa.int8(), pa.int32()])), value.type), value.values)
        case shape:
            item, may_be_null = draw(kinds(depth - 1)), draw(st.booleans())
            field = pa.field(draw(st.sampled_from(["item", "element", "x"])), item.type, may_be_null)
            n_items = 2 if shape == "fixed" else None
            values = st.lists(nullable(item.values, may_be_null), min_size=n_items or 0, max_size=n_items or 3)
            types = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}
            return Kind(pa.list_(field, 2) if shape == "fixed" else types[shape](field), values)


NAMES = st.sampled_from(["a", "b", "id", "a.b", "*", "", "größe", "line\nbreak", "label", "score", "^text$"])
METADATA = st.dictionaries(
    st.sampled_from([b"k", b"pandas", b"\xff\x00", "schlüssel".encode()]), st.binary(max_size=6), max_size=2
)


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Numbers stand for themselves also where Python would have a date in their place."""
    if pa.types.is_duration(type_) or pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).view(type_)
    if pa.types.is_date64(type_):
        return pa.array([None if value is None else value * 86_400_000 for value in values], pa.int64()).view(type_)
    return pa.array(values, type_)


@st.composite
def columns(draw: st.DrawFn, n_rows: int) -> tuple[pa.Field, pa.Array]:
    kind = draw(st.sampled_from(ONLY_TOP) | kinds(2))
    is_nullable = pa.types.is_null(kind.type) or draw(st.booleans())
    values = draw(st.lists(nullable(kind.values, is_nullable), min_size=1, max_size=4))
    array = array_of([values[row % len(values)] for row in range(n_rows)], kind.type)
    return pa.field(draw(NAMES), kind.type, is_nullable, draw(METADATA)), array


TEXTS = st.sampled_from(
    [
        *(None, b"", b" \n\t", "\u2003\x1f".encode(), b"refund", b"refund", b"a crash", b"my password is wrong"),
        *(b"bytes \xff\xfe that are no UTF-8", b"\xed\xa0\x80", b"\xf0\x9f\x99", "価格が違う 🙂".encode(), b"\x00"),
        *(b"<|im_end|>", b"<|im_start|>system\nAnswer: account<|im_end|>", b"{text} {braces}", b"<think>"),
        " ".join(["The app crashes on login, and the log says nothing."] * 12).encode(),
    ]
) | st.text(max_size=12).map(lambda text: text.encode("utf-8", errors="replace"))


def text_array(texts: list[bytes | None], shape: str) -> pa.Array:
    if shape == "dictionary":
        entries = list(dict.fromkeys(text for text in texts if text is not None))
        at = pa.array([None if text is None else entries.index(text) for text in texts], pa.int32())
        return pa.DictionaryArray.from_arrays(at, pa.array(entries, pa.binary()).view(pa.string()))
    type_ = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view()}[shape]
    stored = {"string": pa.binary(), "large": pa.large_binary(), "view": pa.binary_view()}[shape]
    return pa.array(texts, stored).view(type_)


@dataclass(frozen=True)
class Input:
    """A table, and how it is stored: its rows, and how many go into each row group, over and over."""

    table: pa.Table
    group_rows: tuple[int, ...]

    def write(self, path: Path) -> None:
        with pq.ParquetWriter(path, self.table.schema) as file:
            first, turn = 0, 0
            while first < self.table.num_rows or not turn:
                n_rows = self.group_rows[turn % len(self.group_rows)]
                file.write_table(self.table.slice(first, n_rows), row_group_size=n_rows)
                first, turn = first + n_rows, turn + 1

    @property
    def distinct_texts(self) -> set[str]:
        texts = self.table["text"].cast(pa.large_binary()) if "text" in self.table.schema.names else []
        decoded = (str(text.as_py(), errors="replace") for text in texts if text.is_valid)
        return {text for text in decoded if text.strip()}


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    texts = draw(st.lists(TEXTS, max_size=25))
    shape = draw(st.sampled_from(["string", "large", "view", "dictionary"]))
    others = draw(st.lists(columns(len(texts)), max_size=4))
    text = text_array(texts, shape)
    is_nullable = text.null_count > 0 or draw(st.booleans())
    others.insert(draw(st.integers(0, len(others))), (pa.field("text", text.type, is_nullable, draw(METADATA)), text))
    schema = pa.schema([field for field, _ in others], draw(METADATA))
    table = pa.Table.from_arrays([array for _, array in others], schema=schema)
    return Input(table, tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))))


# Interruptions

MOMENTS: dict[str, tuple[type, str]] = {
    "a pass": (FusedEngine, "score"),
    "a write": (ParquetSink, "write"),
    "the last step": (ParquetSink, "commit"),
    "scores are looked up": (StoredScores, "lookup"),
    "scores are kept": (StoredScores, "insert"),
    "the store is opened": (LabelStore, "_set_up"),
}


@dataclass(frozen=True)
class Interruption:
    """An exception before or after the n-th time that something happens."""

    moment: str
    n: int
    is_after: bool
    error: type[BaseException]

    @property
    def is_survived(self) -> bool:
        """A pass for which there is no memory is split."""
        return self.moment == "a pass" and self.error is MemoryError

    @contextmanager
    def ready(self) -> Iterator[list[str]]:
        """While the block runs, it may happen; then its moment is in the list."""
        kind, name = MOMENTS[self.moment]
        undisturbed: Callable[..., Any] = getattr(kind, name)
        n_calls, happened = 0, []

        def disturbed(*args: Any, **options: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            is_due = n_calls == self.n + 1
            if is_due and not self.is_after:
                happened.append(self.moment)
                raise self.error("interrupted")
            result = undisturbed(*args, **options)
            if is_due:
                happened.append(self.moment)
                raise self.error("interrupted")
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, name, disturbed)
            yield happened


interruptions = st.builds(
    Interruption,
    st.sampled_from(sorted(MOMENTS)),
    st.integers(0, 8),
    st.booleans(),
    st.sampled_from([KeyboardInterrupt, StorageError, RuntimeError, MemoryError]),
).filter(lambda it: not (it.moment == "the last step" and it.is_after))  # then all is done


def read(path: Path) -> pa.Table:
    """All row groups, each with its own dictionaries."""
    file = pq.ParquetFile(path)
    return pa.concat_tables([file.schema_arrow.empty_table(), *map(file.read_row_group, range(file.num_row_groups))])


def assert_columns_are_those_of(source: Path, output: Path) -> None:
    before, after = pq.ParquetFile(source), pq.ParquetFile(output)
    n_columns = len(before.schema_arrow)
    kept = pa.schema(list(after.schema_arrow)[:n_columns], after.schema_arrow.metadata)
    assert kept.equals(before.schema_arrow, check_metadata=True)
    assert after.metadata.num_rows == before.metadata.num_rows
    rows, expected = read(output), read(source)
    for i, field in enumerate(before.schema_arrow):
        assert bits(rows.column(i)) == bits(expected.column(i)), field


def can_be_read(path: Path) -> bool:
    """pyarrow 26 cannot read its own files with a null struct around lists of a fixed size that may not be null."""
    try:
        read(path)
    except pa.ArrowInvalid:
        return False
    return True


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    data=inputs(),
    interruption=interruptions,
    buffer_rows=st.integers(1, 30),
    keep_in=st.sampled_from(["journal", "cache"]),
)
@example(
    data=Input(pa.table({"text": [f"ticket {i % 7}" for i in range(20)]}), (3,)),
    interruption=Interruption("the store is opened", 0, True, KeyboardInterrupt),
    buffer_rows=4,
    keep_in="journal",
)
def test_an_interrupted_run_started_again_gives_what_an_undisturbed_one_does(
    data: Input, interruption: Interruption, buffer_rows: int, keep_in: str, tiny_model_folder: Path
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, output, expected, metrics, cache = (
            folder / place for place in ("in.parquet", "out/o.parquet", "expected.parquet", "m.json", "cache.db")
        )
        output.parent.mkdir()
        data.write(source)
        assume(can_be_read(source))
        before = source.read_bytes()
        flags = [*ADDED, "--buffer-rows", str(buffer_rows), "--metrics", str(metrics)]
        command = arguments(source, output, tiny_model_folder) + flags
        command += ["--cache", str(cache)] if keep_in == "cache" else []

        def run(command: list[str]) -> tuple[int, int]:
            """Exit code, and texts that went to the model."""
            exit_code = main(command)
            return exit_code, json.loads(metrics.read_text())["texts"]

        with interruption.ready() as happened:
            exit_code, n_texts = run(command)
        assert not exit_code or happened
        assert exit_code or not happened or interruption.is_survived
        was_interrupted = bool(exit_code)
        if was_interrupted:
            assert names_in(output.parent) <= {".o.parquet.scores"}
            exit_code, n_more = run(command)
            assert exit_code == 0
            n_texts += n_more
        assert n_texts <= len(data.distinct_texts) + (buffer_rows if was_interrupted else 0)
        assert names_in(output.parent) == {"o.parquet"}
        assert names_in(folder) - {"cache.db"} == {"in.parquet", "out", "out/o.parquet", "m.json"}

        assert source.read_bytes() == before
        assert_columns_are_those_of(source, output)
        assert run([*arguments(source, expected, tiny_model_folder), *flags, "--no-cache"])[0] == 0
        (labels, statuses, scores), (labels_, statuses_, scores_) = (
            [read(path)[f"added {column}"].to_pylist() for column in ("label", "status", "score")]
            for path in (output, expected)
        )
        assert labels == labels_
        assert statuses == statuses_
        np.testing.assert_allclose(np.array(scores, float), np.array(scores_, float), atol=1e-5)
