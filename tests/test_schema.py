"""A task and settings meet a schema: text columns found, added columns new and different."""

import pyarrow as pa
import pytest

from pipeline.errors import InputError, UsageError
from pipeline.schema import bind_schema
from pipeline.settings import Settings
from pipeline.task_file import builtin_task

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("label", pa.string())])


def test_a_task_gets_its_columns_and_the_input_its_new_ones() -> None:
    settings = Settings(label_column="Label", score_column="p", status_column="s")
    task, fields = bind_schema(builtin_task(), settings, SCHEMA)
    assert task.columns == ("text",)
    assert [field.name for field in fields] == ["Label", "p", "s"]


@pytest.mark.parametrize(
    ("flag", "settings"),
    [
        ("--label-column NAME", Settings()),
        ("--score-column NAME", Settings(label_column="x", score_column="label")),
        ("--status-column NAME", Settings(label_column="x", status_column="label")),
    ],
)
def test_a_column_that_is_there_already_names_the_flag_that_helps(flag: str, settings: Settings) -> None:
    with pytest.raises(InputError, match="already has a column 'label'") as error:
        bind_schema(builtin_task(), settings, SCHEMA)
    assert flag in error.value.hint


def test_two_new_columns_of_one_name_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--label-column and --status-column are both 'x'") as error:
        bind_schema(builtin_task(), Settings(label_column="x", score_column="y", status_column="x"), SCHEMA)
    assert error.value.exit_code == 2
