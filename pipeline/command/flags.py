"""How a flag is declared, read and refused, whatever it means.

Every flag ``--some-name`` may also be given as the environment variable ``PIPELINE_SOME_NAME``; the flag wins. An error
about the form of a value names whichever of the two holds it; one about its meaning names the flag.
"""

import os
from typing import Any

import typer

from pipeline.errors import UsageError

HELP_HINT = "see python -m pipeline.classify --help"


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


def usage_error(error: typer.TyperException) -> UsageError:
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
    hint = f"did you mean {near[0]}?" if near else HELP_HINT
    if "unexpected extra argument" in message:
        hint = "put a glob in quotes, or the shell replaces it by the files it matches"
    return UsageError(" ".join(message.split()).rstrip("."), hint)


def _is_from_environment(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "ENVIRONMENT"
