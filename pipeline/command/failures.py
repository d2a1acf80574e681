"""How a failure is told: one line that says what is wrong, a hint, and on request where it comes from."""

import logging
import traceback

from pipeline.command.logs import FAULT
from pipeline.errors import GateError, InputError, InputMissingError, OutputError, PipelineError, ReadError

log = logging.getLogger("pipeline.classify")

# What is one file's own fault: the others go on.
FILE_ERRORS = (InputError, InputMissingError, OutputError, ReadError, GateError)


def tell_failure(failure: PipelineError, cause: BaseException, *, file: str = "", debug: bool = False) -> str:
    """Log an error.

    Args:
        failure: what is said.
        cause: where it comes from.
        file: that it is about, named in front unless the message does so; empty for the whole run.
        debug: whether the traceback is shown.

    Returns:
        What was said, without the hint.
    """
    message = str(failure) if file in str(failure) else f"{file}: {failure}"
    fields = {"exit_code": failure.exit_code, "hint": failure.hint}
    if file:
        fields["input"] = file
    if debug:
        fields["traceback"] = "".join(traceback.format_exception(cause))
    log.log(FAULT if type(failure) is PipelineError else logging.ERROR, "%s", message, extra={"fields": fields})
    return message
