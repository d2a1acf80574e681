"""Every error a user can meet, each with its exit code, in one tree.

    PipelineError
    ├── UsageError         2    flags, environment variables or the task file contradict each other or are unknown
    ├── GateError          3    the run finished, but a check that was asked for (``--verify``) failed
    ├── InputError         65   the input was found but cannot be used: corrupt, a column missing, a wrong type
    ├── CacheError         65   the file of --cache is damaged, or another kind of file
    ├── InputMissingError  66   there is no input at that place
    ├── ModelError         69   no usable model
    ├── OutputError        73   the output cannot be created, or exists already
    ├── StorageError       74   reading or writing failed midway (disk full, device or network gone)
    │   └── ReadError      74   it was the input that could not be read on
    └── Interrupted        75   stopped by a signal; run the same command again

The codes are those of BSD ``sysexits.h`` where one fits. A message is one line that names the offending value, the
limit and the place; ``hint`` says which flag or command helps.
"""

from unicodedata import normalize


class PipelineError(Exception):
    """Base of all errors that are the user's to act on.

    Args:
        message: one line: what is wrong, with the offending value, and where.
        hint: one line: what to do about it; empty when nothing helps.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(PipelineError):
    """Flags, environment variables or a task file are wrong (exit code 2)."""

    exit_code = 2


class GateError(PipelineError):
    """A check that the user asked for was not met (exit code 3)."""

    exit_code = 3


class InputError(PipelineError):
    """The input exists but cannot be used (exit code 65)."""

    exit_code = 65


class CacheError(PipelineError):
    """The file of known scores cannot be used (exit code 65)."""

    exit_code = 65


class InputMissingError(PipelineError):
    """The input does not exist (exit code 66)."""

    exit_code = 66


class ModelError(PipelineError):
    """The model cannot be found or loaded (exit code 69)."""

    exit_code = 69


class OutputError(PipelineError):
    """The output cannot be created, or exists and may not be replaced (exit code 73)."""

    exit_code = 73


class StorageError(PipelineError):
    """Reading or writing failed midway: disk full, device or network gone (exit code 74)."""

    exit_code = 74


class ReadError(StorageError):
    """Reading an input failed midway, for no fault of its content (exit code 74)."""


class Interrupted(PipelineError):
    """A signal stopped the run (exit code 75 for SIGTERM, 130 for Ctrl-C).

    Args:
        message: one line.
        hint: how to go on.
        exit_code: 75 or 130.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = 75) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


def quoted(one: str, other: str) -> tuple[str, str]:
    """Two names as a message shows them: in ASCII where they look alike, such as one é of one character and of two."""
    alike = one != other and normalize("NFKC", one) == normalize("NFKC", other)
    return (ascii(one), ascii(other)) if alike else (repr(one), repr(other))
