"""URIs as text: told from paths, made safe to show, made fit for pyarrow. Opens nothing and knows no file system."""

import os
import re
from urllib.parse import quote

# A password may contain a slash or an @, raw. A parser that goes by the rules takes them for the end of the host or of
# the password, and what follows would be shown.
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?:(?P<user>[^/?@:]*)(?P<password>:[^?@]*(?:@[^/?@]*(?=@))*)?@)?"
    r"(?P<host>[^/?]*)(?P<path>[^?]*)(?P<query>.*)",
    re.DOTALL,
)
_AZURE = ("abfs", "abfss")
_ALLOWED_IN_PATH = "/%:@!$&'()*+,;=~"


def is_uri(text: str) -> bool:
    """Whether a text is a URI, not a path."""
    return _URI.match(text) is not None


def public_name(text: str) -> str:
    """A path as it is; a URI without user, password and query, for messages.

    In Azure's URIs the user is the container, and stays.
    """
    parts = _URI.fullmatch(text)
    if parts is None:
        return text
    container = f"{parts['user']}@" if parts["user"] and parts["scheme"].lower() in _AZURE else ""
    return f"{parts['scheme'].lower()}://{container}{parts['host']}{parts['path']}"


def encoded(uri: str) -> str:
    """A URI with blanks, brackets, ``#`` and the like percent-encoded in its path, where pyarrow refuses them raw.

    A ``#`` would begin a fragment, which is dropped without a word: another object would be read. What is encoded
    already stays, so ``%20`` is a blank; a ``%`` before anything but two hexadecimal digits is itself.
    """
    parts = _URI.fullmatch(uri)
    assert parts is not None
    path = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", parts["path"])
    password = parts["password"] or ""  # keys of AWS contain slashes
    pieces = (
        uri[: parts.end("scheme")].lower(),
        uri[parts.end("scheme") : parts.start("host")].replace(f"{password}@", f"{quote(password, safe=':%')}@"),
        parts["host"],
        quote(os.fsencode(path), safe=_ALLOWED_IN_PATH),
        parts["query"],
    )
    return "".join(pieces)
