"""The stage from Python: any Arrow stream in, a reader out, lazily, and nothing left running."""

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pipeline
from pipeline import Labeller, PipelineError, RunStats, Settings, label_stream, label_table
from pipeline.errors import GateError, InputError, UsageError
from pipeline.stage import Stage
from tests.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[1]
TEXTS = [f"Ticket {i}: the invoice shows the wrong sum" for i in range(20)]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(tokenizer=tiny_tokenizer("unk-is-control"))


@pytest.fixture(scope="module")
def labeller(model: Any) -> Labeller:
    return Labeller(pipeline.builtin_task(), model, Settings(buffer_rows=4))


@pytest.fixture
def tickets() -> pa.Table:
    fields = [
        pa.field("id", pa.int32(), nullable=False, metadata={b"unit": b"tickets"}),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("text", pa.large_string()),
    ]
    columns = [range(20), pa.array(["a", "b"] * 10).dictionary_encode().cast(fields[1].type), TEXTS]
    return pa.table(columns, schema=pa.schema(fields, metadata={b"owner": b"us"}))


SOURCES: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow table": lambda table: table,
    "pyarrow batch": lambda table: table.combine_chunks().to_batches()[0],
    "pyarrow reader": lambda table: table.to_reader(3),
    "polars": pl.from_arrow,
    "pandas": lambda table: pd.DataFrame(table.to_pandas()),
    "duckdb": lambda table: duckdb.from_arrow(table),
}


def test_the_result_is_the_input_and_the_added_columns(labeller: Labeller, tickets: pa.Table) -> None:
    reader = labeller.label_stream(tickets)
    assert isinstance(reader, pa.RecordBatchReader)
    assert pa.schema(list(reader.schema)[:3], reader.schema.metadata).equals(tickets.schema, check_metadata=True)
    assert reader.schema.field("label").equals(pa.field("label", pa.string()))
    batches = list(reader)
    assert all(batch.schema.equals(reader.schema, check_metadata=True) for batch in batches)
    labelled = pa.Table.from_batches(batches)
    assert labelled.drop_columns("label").equals(tickets)
    assert {*labelled["label"].to_pylist()} <= {"billing", "technical", "account"}


@pytest.mark.parametrize("name", SOURCES)
def test_every_arrow_stream_is_taken(name: str, labeller: Labeller, tickets: pa.Table) -> None:
    labelled = labeller.label_table(SOURCES[name](tickets))
    assert labelled["label"].to_pylist() == labeller.label_table(tickets)["label"].to_pylist()
    assert labelled["id"].to_pylist() == list(range(20))


def test_polars_duckdb_and_pandas_take_the_reader(labeller: Labeller, tickets: pa.Table) -> None:
    expected = labeller.label_table(tickets)["label"].to_pylist()
    assert pl.DataFrame(labeller.label_stream(tickets))["label"].to_list() == expected
    reader = labeller.label_stream(tickets)
    assert duckdb.from_arrow(reader).fetchall()[3][-1] == expected[3]
    assert labeller.label_stream(tickets).read_pandas()["label"].to_list() == expected


def test_the_stream_is_lazy(labeller: Labeller, tickets: pa.Table) -> None:
    """At most five buffers of 4 rows are on their way: one in use, and for each thread one made and one in making."""
    n_read = 0
    many = pa.concat_tables([tickets] * 3)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal n_read
        for batch in many.to_batches(max_chunksize=1):
            n_read += 1
            yield batch

    reader = labeller.label_stream(pa.RecordBatchReader.from_batches(tickets.schema, batches()))
    assert n_read == 0
    reader.read_next_batch()
    time.sleep(0.3)
    assert 4 <= n_read <= 24


def test_a_reader_that_is_dropped_ends_its_threads(labeller: Labeller, tickets: pa.Table) -> None:
    before = threading.active_count()
    reader = labeller.label_stream(tickets)
    assert threading.active_count() == before
    reader.read_next_batch()
    assert threading.active_count() == before + 2
    del reader
    assert threading.active_count() == before


def test_a_consumer_that_closes_the_stream_ends_the_threads(labeller: Labeller, tickets: pa.Table) -> None:
    """Across the C interface, as DuckDB or polars read it, closing does release the stream."""
    before = threading.active_count()
    foreign = pa.RecordBatchReader.from_stream(labeller.label_stream(tickets))
    foreign.read_next_batch()
    assert threading.active_count() == before + 2
    foreign.close()
    assert threading.active_count() == before


def test_one_labeller_serves_many_schemas(labeller: Labeller) -> None:
    a = labeller.label_table(pa.table({"body": TEXTS, "n": range(20)}))
    b = labeller.label_table(pa.table({"message": TEXTS}))
    assert a["label"].to_pylist() == b["label"].to_pylist()


def test_functions_are_the_labeller_for_one_input(model: Any, labeller: Labeller, tickets: pa.Table) -> None:
    task, settings, stats = pipeline.builtin_task(), Settings(buffer_rows=4), RunStats()
    expected = labeller.label_table(tickets)
    assert label_table(tickets, task, model, settings, stats=stats).equals(expected)
    assert stats.rows == 20
    assert label_stream(tickets, task, model, settings).read_all().equals(expected)
    assert len(labeller.fingerprint) == 64


def test_a_store_saves_what_another_labeller_scored(
    model: Any, labeller: Labeller, tickets: pa.Table, tmp_path: Path
) -> None:
    task = pipeline.builtin_task()
    expected = labeller.label_table(tickets)
    for n_scored in (20, 0):
        stats = RunStats()
        with pipeline.LabelStore(tmp_path / "scores.db", shared=True) as store:
            again = Labeller(task, model, Settings(buffer_rows=4), store=store)
            assert again.label_table(tickets, stats=stats).equals(expected)
        assert stats.texts == n_scored


def test_settings_decide_the_added_columns(model: Any, tickets: pa.Table) -> None:
    settings = Settings(label_column="l", score_column="p", status_column="s")
    labelled = label_table(tickets.slice(0, 2), pipeline.builtin_task(), model, settings)
    assert labelled.schema.names[-3:] == ["l", "p", "s"]


def test_an_input_without_rows_has_the_added_columns(labeller: Labeller, tickets: pa.Table) -> None:
    assert labeller.label_table(tickets.slice(0, 0)).schema.names == ["id", "kind", "text", "label"]


def test_what_cannot_be_labelled_is_a_pipeline_error(labeller: Labeller, model: Any) -> None:
    with pytest.raises(InputError, match="a 'list' is not Arrow data") as error:
        labeller.label_stream([1])
    assert "polars" in error.value.hint
    with pytest.raises(InputError, match="no text column"):
        labeller.label_stream(pa.table({"n": [1]}))
    with pytest.raises(InputError, match="already has a column 'label'"):
        labeller.label_stream(pa.table({"text": ["a"], "label": ["b"]}))
    with pytest.raises(UsageError, match="leaves no room"):
        Labeller(pipeline.builtin_task(), model, Settings(max_tokens=5))


def test_an_error_on_the_way_keeps_its_type(model: Any) -> None:
    settings = Settings(max_tokens=300, overlong="fail", buffer_rows=1)
    reader = label_stream(pa.table({"text": ["a", "b " * 500]}), pipeline.builtin_task(), model, settings)
    with pytest.raises(GateError, match="row 1: its prompt is longer") as error:
        reader.read_all()
    assert isinstance(error.value, PipelineError)


def test_an_error_of_the_model_ends_the_thread(
    labeller: Labeller, tickets: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while the error is at hand, whose traceback keeps every generator on the way alive."""

    def fail(*_: Any) -> None:
        raise LookupError("no such kernel")

    before = threading.active_count()
    reader = labeller.label_stream(tickets)
    monkeypatch.setattr("pipeline.passes.score_bucket", fail)
    with pytest.raises(LookupError) as error:
        reader.read_next_batch()
    assert error.value.args == ("no such kernel",)
    assert threading.active_count() == before


def test_an_error_of_the_data_keeps_its_type(labeller: Labeller) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"text": ["a"]})
        raise LookupError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("text", pa.string())]), batches())
    with pytest.raises(LookupError, match="the source is gone"):
        labeller.label_table(reader)


def test_the_public_names_are_these_and_all_there() -> None:
    assert pipeline.__all__ == [
        "LabelStore",
        "Labeller",
        "PipelineError",
        "RunStats",
        "Settings",
        "Task",
        "__version__",
        "builtin_task",
        "label_stream",
        "label_table",
        "load_model",
        "load_task",
    ]
    assert dir(pipeline) == pipeline.__all__
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        assert name == "__version__" or inspect.getdoc(value), name
    assert isinstance(pipeline.__version__, str)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pipeline.nothing  # noqa: B018
    assert Stage.__name__ not in pipeline.__all__


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = (
        "import sys, pipeline; pipeline.Settings(); pipeline.builtin_task(); pipeline.PipelineError; "
        "print({'torch', 'polars', 'pyarrow', 'transformers', 'numpy', 'rich', 'typer'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
