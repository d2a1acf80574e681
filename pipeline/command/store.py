"""The label store of a run: the file of ``--cache``, or a journal beside the output that goes away when all is done."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import OutputError
from pipeline.label_store import LabelStore, remove_store

MAX_NAME_BYTES = 200  # of 255, since SQLite puts names of its own behind it


def journal_of(place: Path) -> Path:
    """Where the scores of an unfinished output are kept.

    Args:
        place: local path of the output, or that beside which it is prepared.
    """
    name = place.name
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return place.with_name(f".{name}.scores")


def check_cache(cache: Path | None) -> None:
    """Check that the file of ``--cache`` can be used, and leave it as it is.

    Raises:
        CacheError: it is damaged, or another kind of file.
        OutputError: it cannot be created.
    """
    if cache is not None and cache.exists():
        LabelStore(cache, shared=True).close()
    elif cache is not None and not cache.absolute().parent.is_dir():
        raise OutputError(f"--cache {str(cache)!r}: there is no such folder", "create the folder first")


@contextmanager
def opened_store(
    journal: Path | None, is_done: Callable[[], bool], *, cache: Path | None, no_cache: bool
) -> Iterator[LabelStore | None]:
    """The store to use within the block: the cache, else the journal, else none.

    A journal is removed when all is done, or when it holds nothing; else it is left for the next run.

    Args:
        journal: see ``journal_of``; None for one without a name, which nothing is left of however the process ends.
        is_done: whether a block that ended without an error has left nothing to do.
        cache: of ``--cache``.
        no_cache: of ``--no-cache``.

    Raises:
        CacheError: the cache is damaged, or another kind of file.
        OutputError: the store cannot be created.
        StorageError: the device failed or is full.
    """
    if no_cache:
        yield None
    elif cache is not None:
        with LabelStore(cache.absolute(), shared=True) as store:  # SQLite has a meaning of its own for ":memory:"
            yield store
    else:
        with LabelStore(journal, shared=False) as store:
            try:
                yield store
            finally:
                if store.is_empty():
                    store.remove()
    if journal is not None and is_done():
        remove_store(journal)  # of an earlier run, too
