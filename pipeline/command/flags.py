"""How a flag is declared, read and refused, whatever it means.

Every flag ``--some-name`` may also be given as the environment variable ``PIPELINE_SOME_NAME``; the flag wins. An error
about the form of a value names whichever of the two holds it; one about its meaning names the flag.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import typer

from pipeline.errors import UsageError


def flag(name: str, panel: str, description: str, **how: Any) -> Any:
    """Declare a flag.

    Args:
        name: without its dashes.
        panel: the group of flags that help shows it in.
        description: for help.
        how: further arguments of ``typer.Option``.
    """
    return typer.Option(f"--{name}", envvar=variable(name), rich_help_panel=panel, help=description, **how)


def variable(name: str) -> str:
    """The environment variable of a flag, with or without its dashes."""
    return "PIPELINE_" + name.removeprefix("--").upper().replace("-", "_")


def count(value: str | int) -> int:
    """Read a whole number above 0; a flag's default passes through here too."""
    text = str(value)
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"{text!r} is not a whole number above 0")
    return int(text)


def count_or_auto(text: str) -> int | None:
    """Read a whole number above 0, or ``auto``: None."""
    return None if text == "auto" else count(text)


@dataclass(frozen=True, slots=True)
class RowLimit:
    """A number of rows, or a share of them.

    Attributes:
        number: of rows, or per cent.
        is_share: whether it is per cent.
    """

    number: Fraction
    is_share: bool = False

    def rows(self, num_rows: int) -> int:
        """The limit for a file of so many rows."""
        return int(num_rows * self.number / 100) if self.is_share else int(self.number)

    def __str__(self) -> str:
        return f"{float(self.number):g}%" if self.is_share else str(self.number)


def row_limit(value: str | RowLimit) -> RowLimit:
    """Read a whole number from 0, or a percentage; a flag's default passes through here too."""
    text = str(value)
    if text.isascii() and text.isdecimal():
        return RowLimit(Fraction(text))
    share = text.removesuffix("%")
    if share != text and re.fullmatch(r"\d+(\.\d+)?", share, re.ASCII) and Fraction(share) <= 100:
        return RowLimit(Fraction(share), is_share=True)
    raise typer.BadParameter(f"{text!r} is neither a whole number of rows nor a percentage like 0.5%")


def share(value: str | float) -> float:
    """Read a share: a number from 0 to 1, or a percentage; a flag's default passes through here too."""
    text = str(value)
    with suppress(ValueError):
        read = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= read <= 1:
            return read
    raise typer.BadParameter(f"{text!r} is neither a number from 0 to 1 nor a percentage like 95%")


@dataclass(frozen=True, slots=True)
class Span:
    """From a number to one that is not smaller."""

    fewest: int
    most: int

    def __str__(self) -> str:
        return f"{self.fewest}" if self.fewest == self.most else f"{self.fewest},{self.most}"


def span(value: str | Span) -> Span:
    """Read a whole number above 0, or two with a comma between; a flag's default passes through here too."""
    fewest, comma, most = str(value).partition(",")
    read = Span(count(fewest.strip()), count(most.strip() if comma else fewest.strip()))
    if read.most < read.fewest:
        raise typer.BadParameter(f"{str(value)!r} goes from {read.fewest} down to {read.most}")
    return read


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def column_names(ctx: typer.Context, names: list[str] | None) -> list[str]:
    """Read ``--text-column``: the flag is repeated, the variable has commas, since names may have blanks in them."""
    if _is_from_environment(ctx, "text_column"):
        return [name.strip() for name in os.environ[variable("text-column")].split(",")]
    return names or []


def check_file_name(name: str | Path, flag: str = "-o") -> None:
    """Refuse ``-``, by which many programs mean stdout, for what is written to a file only.

    Raises:
        UsageError: it is that.
    """
    if str(name) == "-":
        raise UsageError(f"{flag} '-' is no file, and this output does not go to stdout", "name a file, such as ./out")


def usage_error(error: typer.TyperException, program: str) -> UsageError:
    """The parser's error in this program's words: place first, hint on a line of its own."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if error.message and parameter is not None:
        place = parameter.opts[0]
        if context is not None and _is_from_environment(context, parameter.name):
            place = variable(place)
        message = f"{place}: {error.message.removeprefix('Value error, ')}"
    else:  # a flag that does not exist, something missing, something too much
        message = error.message or error.format_message()
        message = message[:1].lower() + message[1:]
    near = getattr(error, "possibilities", None)
    hint = f"did you mean {near[0]}?" if near else f"see {program} --help"
    if "unexpected extra argument" in message:
        hint = "put a glob in quotes, or the shell replaces it by the files it matches"
    return UsageError(" ".join(message.split()).rstrip("."), hint)


def _is_from_environment(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "ENVIRONMENT"
