"""The label store of a run: the file of ``--cache``, or a journal beside the output that goes away when all is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.label_store import LabelStore


def journal_of(place: Path) -> Path:
    """Where the scores of an unfinished output are kept.

    Args:
        place: local path of the output, or that beside which it is prepared.
    """
    return place.with_name(f".{place.name}.scores")


@contextmanager
def opened_store(cache: Path | None, journal: Path | None, is_done: Callable[[], bool]) -> Iterator[LabelStore | None]:
    """The store to use within the block.

    A journal is removed when all is done, or when it holds nothing; else it is left for the next run.

    Args:
        cache: of ``--cache``; wins over the journal.
        journal: see ``journal_of``; None for no store at all.
        is_done: whether a block that ended without an error has left nothing to do.

    Raises:
        InputError: the cache is damaged, or another kind of file.
        OutputError: the store cannot be created.
        StorageError: the device failed or is full.
    """
    if cache is not None:
        with LabelStore(cache, shared=True) as store:
            yield store
        return
    if journal is None:
        yield None
        return
    with LabelStore(journal, shared=False) as store:
        finished = False
        try:
            yield store
            finished = is_done()
        finally:
            if finished or store.is_empty():
                store.remove()
