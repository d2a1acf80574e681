"""Columns of an Arrow schema by name: exact, top-level, and refused in plain words when they will not do.

pyarrow's own selection by name also matches struct fields, takes every duplicate and ignores what is missing, so
names are looked up here and columns taken by position. Knows nothing of files.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import pyarrow as pa

from pipeline.errors import InputError, UsageError

MAX_LISTED_COLUMNS = 20


def is_text(type_: pa.DataType) -> bool:
    """Whether values of this Arrow type are strings, plain or dictionary-encoded."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def type_parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    """A type, and all types nested in it."""
    yield type_
    for i in range(type_.num_fields):
        yield from type_parts(type_.field(i).type)


def resolve_column(schema: pa.Schema, name: str) -> int:
    """The position of the one top-level text column called ``name``.

    Raises:
        InputError: the column is missing, nested, there several times, or holds no strings.
    """
    found = schema.get_all_field_indices(name)
    if not found:
        raise _missing(schema, name)
    if len(found) > 1:
        raise InputError(
            f"text column {name!r} is ambiguous: the input has {len(found)} columns of that name", "rename all but one"
        )
    type_ = schema.field(found[0]).type
    if not is_text(type_):
        raise InputError(f"text column {name!r} holds {type_}, not strings", _type_hint(type_))
    return int(found[0])


def check_new_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    """Check that columns called ``names`` can be added: each once, none of them there already.

    Raises:
        UsageError: a name is given twice.
        InputError: the input has a column of that name.
    """
    for position, name in enumerate(names):
        if name in names[:position]:
            raise UsageError(
                f"two added columns are called {name!r}",
                "give --label-column, --score-column and --status-column different names",
            )
        if schema.get_all_field_indices(name):
            raise InputError(
                f"the input already has a column {name!r}",
                "name the added column otherwise: --label-column NAME (--score-column, --status-column likewise)",
            )


def _missing(schema: pa.Schema, name: str) -> InputError:
    parent = name.partition(".")[0]
    if parent != name and any(schema.field(i).type.num_fields for i in schema.get_all_field_indices(parent)):
        message = f"text column {name!r} would be a field inside column {parent!r}; nested fields are not supported"
    else:
        message = f"no column {name!r} in the input"
    near = get_close_matches(name, schema.names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "name a top-level column with --text-column NAME"
    return InputError(f"{message}; top-level columns: {_listed(schema.names)}", hint)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return (", ".join(map(repr, names[:MAX_LISTED_COLUMNS])) or "none") + more


def _type_hint(type_: pa.DataType) -> str:
    value_type = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_binary(value_type) or pa.types.is_large_binary(value_type) or pa.types.is_binary_view(value_type):
        return "store the bytes as UTF-8 strings first, or name another column with --text-column NAME"
    return "name a column of strings with --text-column NAME"
