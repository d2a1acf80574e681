"""What went wrong with a place, told from the exceptions of its file system: unreachable, not allowed, not there.

Local file systems set ``errno``. Object stores behind pyarrow raise a bare ``OSError`` for everything, as does the
Parquet reader for damaged bytes; only the text tells them apart.
"""

import re
from enum import Enum

from pipeline.parquet.location import Location

MAX_REASON = 400  # characters; stores answer with whole pages

_STORE = re.compile(r"AWS Error|google::cloud::Status|Azure")
_DENIED = re.compile(
    # Answers to HEAD have no body to say why; 301 and 400 are a wrong region and an expired or malformed token.
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|"
    r"SIGNATURE_DOES_NOT_MATCH|MISSING_AUTHENTICATION_TOKEN|UNKNOWN \(HTTP status (301|400|401|403)\))|"
    r"Status\((PERMISSION_DENIED|UNAUTHENTICATED)|OAuth2 access token|"
    r"Azure Error: \[(Auth|NoAuth|InvalidAuth|Insufficient)|Failed to get token"
)
_MISSING = re.compile(
    r"AWS Error (NO_SUCH_KEY|NO_SUCH_BUCKET|RESOURCE_NOT_FOUND|UNKNOWN \(HTTP status 404\))|"
    r"Status\(NOT_FOUND|Azure Error: \[(Blob|Container|Path|Filesystem|Resource)NotFound"
)


class Failure(Enum):
    """Why a place could not be used, where that is no fault of the bytes in it."""

    UNREACHABLE = "unreachable"
    DENIED = "denied"
    MISSING = "missing"


def failure_of(location: Location, error: Exception) -> Failure | None:
    """What an exception says of a place; None when it says nothing of it, so that the bytes are to blame."""
    if location.is_local:
        return Failure.UNREACHABLE if getattr(error, "errno", None) else None
    if isinstance(error, FileNotFoundError):
        return Failure.MISSING
    if isinstance(error, PermissionError):
        return Failure.DENIED
    if not isinstance(error, OSError):
        return None
    text = str(error)
    if _STORE.search(text):
        return Failure.MISSING if _MISSING.search(text) else _denied(text) or Failure.UNREACHABLE
    return Failure.UNREACHABLE if error.errno or isinstance(error, (ConnectionError, TimeoutError)) else None


def reason_of(error: Exception) -> str:
    """What an exception says, in one line of bounded length."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"


def credentials_hint(location: Location) -> str:
    """Where to look when a place is not allowed."""
    if location.is_local:
        return "check its permissions"
    return "check the credentials in the environment, what they may do there, and the region"


def _denied(text: str) -> Failure | None:
    return Failure.DENIED if _DENIED.search(text) else None
