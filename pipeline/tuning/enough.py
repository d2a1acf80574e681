"""Whether there are labelled texts enough to learn from."""

from collections.abc import Sequence

from pipeline.errors import InputError
from pipeline.tuning.split import Truth

MIN_TEXTS = 2  # of a label: one to learn from while the other is left out


def labels_with_few(truth: Truth, labels: Sequence[str], least: int = MIN_TEXTS) -> list[tuple[str, int]]:
    """Labels with fewer rows than ``least``, and how many they have."""
    counts = truth.sum(axis=0).tolist()
    return [(label, n_rows) for label, n_rows in zip(labels, counts, strict=True) if n_rows < least]


def check_enough_texts(truth: Truth, labels: Sequence[str]) -> None:
    """Check that there are texts enough for a head that gives one label a row.

    Raises:
        InputError: a label has too few.
    """
    if few := labels_with_few(truth, labels):
        label, n_texts = few[0]
        more = f"; so it is with {len(few) - 1} more" if len(few) > 1 else ""
        raise InputError(
            f"label {label!r} has {n_texts} labelled text{'' if n_texts == 1 else 's'}, and a head needs at least "
            f"{MIN_TEXTS} of each label{more}",
            "label more rows, better 4 or more of each label; without --head-only prompts are tried too",
        )
