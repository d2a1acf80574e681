"""Which columns an evaluation compares, and whether a file has them; reads no rows."""

from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa

from pipeline.errors import InputError
from pipeline.parquet.location import Location
from pipeline.text import is_text

MAX_LISTED_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what; the score and the status may be missing."""

    truth: str
    prediction: str
    score: str | None = None
    status: str | None = None

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(name for name in self.flags().values() if name is not None))

    def flags(self) -> dict[str, str | None]:
        """The flag that names each."""
        return {
            "--truth": self.truth,
            "--prediction": self.prediction,
            "--score": self.score,
            "--status": self.status,
        }


def check_columns(schema: pa.Schema, columns: Columns, location: Location) -> bool:
    """Check the columns of a file, and tell whether a row may have several labels.

    Raises:
        InputError: a column is missing, stands there twice, or is of another type.
    """
    for flag, name in columns.flags().items():
        if name is None:
            continue
        types = [field.type for field in schema if field.name == name]
        if not types:
            raise _missing(flag, name, schema, location)
        if len(types) > 1:
            raise InputError(
                f"column {name!r} stands {len(types)} times in input {location.name!r}", "rename all but one"
            )
        wanted, fits = _WANTED[flag]
        if not fits(types[0]):
            raise InputError(
                f"{flag} {name!r} holds {types[0]} in input {location.name!r}, not {wanted}",
                f"name another column by {flag} COLUMN, or cast this one",
            )
    return any(is_list(schema.field(name).type) for name in (columns.truth, columns.prediction))


def _missing(flag: str, name: str, schema: pa.Schema, location: Location) -> InputError:
    more = f" and {len(schema.names) - MAX_LISTED_COLUMNS} more" if len(schema.names) > MAX_LISTED_COLUMNS else ""
    listed = ", ".join(map(repr, schema.names[:MAX_LISTED_COLUMNS])) + more
    near = get_close_matches(name, schema.names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"name one of them by {flag} COLUMN"
    if flag == "--score":
        hint += "; python -m pipeline.classify adds one with --score-column NAME"
    return InputError(f"{flag} {name!r} is not in input {location.name!r}; columns: {listed}", hint)


def is_list(type_: pa.DataType) -> bool:
    """Whether a column may hold several labels a row."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _is_label(type_: pa.DataType) -> bool:
    return is_text(type_.value_type if is_list(type_) else type_)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_) or pa.types.is_integer(type_) or pa.types.is_decimal(type_))


_WANTED = {
    "--truth": ("strings or lists of strings", _is_label),
    "--prediction": ("strings or lists of strings", _is_label),
    "--score": ("numbers", _is_number),
    "--status": ("strings", is_text),
}
