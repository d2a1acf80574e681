"""Whether columns hold labels, or texts by mistake: told by how many values differ, and how few both have.

A report names labels; texts of rows may stand in none. No message here quotes a value.
"""

from collections.abc import Collection, Set

from pipeline.errors import InputError

MAX_LABELS = 1000  # of a column; a matrix of them all is small
ENOUGH_ROWS = 20  # to tell labels from texts by how many differ
MAX_DISTINCT = 0.5  # of the rows, where hardly any label is in both columns
FEW_SHARED = 0.1  # of the distinct values
MAX_CHARS = 100  # of a label, where no label is in both columns

HINT = "name the columns that hold the labels by --truth COLUMN and --prediction COLUMN"


def check_not_too_many(values: Collection[str], n_rows: int, flag: str, column: str) -> None:
    """Check, while rows are read, that their distinct values can be labels.

    Raises:
        InputError: there are too many.
    """
    if len(values) > MAX_LABELS:
        raise InputError(
            f"{flag} {column!r} holds more than {MAX_LABELS:,} different values in its first {n_rows:,} rows, "
            f"too many for labels",
            HINT,
        )


def check_are_labels(truth: Set[str], predicted: Set[str], n_rows: int, truth_column: str, column: str) -> None:
    """Check that both columns can hold labels.

    Args:
        truth: distinct values of the truth.
        predicted: those of the prediction.
        n_rows: rows with a truth.
        truth_column: name of the one column.
        column: name of the other.

    Raises:
        InputError: one seems to hold texts: nearly every row another one, or long ones, and the other has not the same.
    """
    n_shared = len(truth & predicted)
    # the worse one first: it is the one that should be named
    both = sorted((("--prediction", column, predicted), ("--truth", truth_column, truth)), key=lambda one: -len(one[2]))
    for flag, name, values in both:
        if n_rows >= ENOUGH_ROWS and len(values) > MAX_DISTINCT * n_rows and n_shared <= FEW_SHARED * len(values):
            raise InputError(
                f"{flag} {name!r} holds {len(values):,} different values in {n_rows:,} rows, and {n_shared:,} of them "
                f"are in the other column: no labels",
                HINT,
            )
    for flag, name, values in both:
        if not n_shared and any(len(value) > MAX_CHARS for value in values):
            raise InputError(
                f"{flag} {name!r} holds values of more than {MAX_CHARS} characters, and none of them is in the other "
                f"column: no labels",
                HINT,
            )
