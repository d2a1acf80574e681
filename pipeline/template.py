"""Texts with ``{placeholders}``: cutting, checking and filling them, in a single pass.

Values are put in as they stand, so they may contain braces. A message begins with the key or flag of its template.
Knows nothing of tasks.
"""

import string
from collections.abc import Mapping
from reprlib import repr as short_repr

from pipeline.errors import UsageError

_BRACES_HINT = "write a literal brace doubled: {{ or }}"


def split_template(template: str, place: str) -> list[tuple[str, str | None]]:
    """Cut a template into (literal, placeholder that follows it) pieces; ``None``: no placeholder follows.

    Args:
        template: with ``{name}`` placeholders; ``{{`` and ``}}`` are literal braces.
        place: key or flag, for the message.

    Raises:
        UsageError: braces do not match, or a placeholder asks for a format or conversion.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{place}: {short_repr(template)}: {error}", _BRACES_HINT) from None
    for _, name, spec, conversion in parsed:
        if spec or conversion:
            raise UsageError(f"{place}: placeholder {name!r} may not be followed by ':' or '!'", _BRACES_HINT)
    return [(literal, name) for literal, name, _, _ in parsed]


def placeholders(template: str, place: str) -> list[str]:
    """The names in a template, as often as they stand there; see ``split_template``."""
    return [name for _, name in split_template(template, place) if name is not None]


def check_placeholders(template: str, known: tuple[str, ...], place: str) -> None:
    """Refuse placeholders that are not known.

    Raises:
        UsageError: there is one.
    """
    for name in placeholders(template, place):
        if name not in known:
            allowed = ", ".join(f"{{{placeholder}}}" for placeholder in known)
            raise UsageError(f"{place}: unknown placeholder {'{' + name + '}'!r}; known are {allowed}", _BRACES_HINT)


def fill(template: str, values: Mapping[str, str], place: str) -> str:
    """Put a value in for every placeholder, all of which must have one."""
    pieces = split_template(template, place)
    return "".join(literal if name is None else literal + values[name] for literal, name in pieces)
