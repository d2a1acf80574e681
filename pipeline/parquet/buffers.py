"""Bounded groups of consecutive rows: the buffers the stage works on, and the row groups the sink writes.

Groups hold at most so many rows and about so many bytes, in the order given, every row once. Rows are never copied:
a group is a table whose chunks are (slices of) the batches put in, so dictionary columns may have another dictionary
in each chunk. Knows nothing of files.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def buffers(batches: Iterable[pa.RecordBatch], max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Regroup a stream of batches into tables of ``max_rows`` rows, or fewer where ``max_bytes`` is reached first.

    Args:
        batches: of one schema.
        max_rows: a table has this many rows unless its bytes are too many or the stream ends.
        max_bytes: bytes of Arrow memory (see ``Grouper``).
    """
    grouper = Grouper(max_rows, max_bytes)
    for batch in batches:
        yield from grouper.add(batch)
    yield from grouper.flush()


class Grouper:
    """Collects batches and gives them back as tables of bounded size; the push form of ``buffers``.

    A batch that would carry the group beyond ``max_bytes`` closes it. Batches larger than that by themselves are
    split, down to single rows: one row is never split. The first dictionary of a group is free of charge, because no
    group can do without it; further ones count unless they are the same memory as the one before.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._held: list[pa.RecordBatch] = []
        self._n_rows = 0
        self._n_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Take in all rows of a batch; yields the groups that this fills."""
        while batch.num_rows:
            n_bytes = self._cost(batch)
            n_rows = min(batch.num_rows, self._max_rows - self._n_rows)
            if self._n_bytes + n_bytes > self._max_bytes:
                if self._held:
                    yield from self.flush()
                    continue
                n_rows = min(n_rows, max(1, batch.num_rows * self._max_bytes // n_bytes))
            self._hold(batch.slice(0, n_rows), n_bytes * n_rows // batch.num_rows)
            batch = batch.slice(n_rows)
            if self._n_rows == self._max_rows:
                yield from self.flush()

    def flush(self) -> Iterator[pa.Table]:
        """Yields what is held, if anything, as one last group."""
        if self._held:
            group = pa.Table.from_batches(self._held)
            self._held, self._n_rows, self._n_bytes = [], 0, 0
            yield group

    def _hold(self, batch: pa.RecordBatch, n_bytes: int) -> None:
        self._held.append(batch)
        self._n_rows += batch.num_rows
        self._n_bytes += n_bytes

    def _cost(self, batch: pa.RecordBatch) -> int:
        """Bytes that a batch adds to what is held."""
        earlier = self._held[-1] if self._held else None
        free = sum(
            n_bytes
            for i, n_bytes in dictionary_bytes(batch).items()
            if earlier is None or _share_dictionary(earlier.column(i), batch.column(i))
        )
        return int(batch.nbytes) - free


def dictionary_bytes(batch: pa.RecordBatch) -> dict[int, int]:
    """Bytes of the dictionaries in a batch, which do not depend on its number of rows, by column position."""
    return {
        i: batch.column(i).slice(0, 0).nbytes for i, type_ in enumerate(batch.schema.types) if has_dictionary(type_)
    }


def type_parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    """A type, and all types nested in it."""
    yield type_
    for i in range(type_.num_fields):
        yield from type_parts(type_.field(i).type)


def has_dictionary(type_: pa.DataType) -> bool:
    """Whether a type is dictionary-encoded, or has a part that is."""
    return any(map(pa.types.is_dictionary, type_parts(type_)))


def share_dictionaries(batch: pa.RecordBatch, earlier: pa.RecordBatch | None) -> pa.RecordBatch:
    """The same rows, on the dictionaries of an earlier batch where those are equal.

    The Parquet reader builds the dictionary anew for every batch. On one copy, many batches of a column with a large
    dictionary fit into memory and into one row group. Only top-level columns are looked at.
    """
    if earlier is None or not any(map(pa.types.is_dictionary, batch.schema.types)):
        return batch
    columns = batch.columns
    for i, column in enumerate(columns):
        if isinstance(column, pa.DictionaryArray) and column.dictionary.equals(earlier.column(i).dictionary):
            columns[i] = pa.DictionaryArray.from_arrays(
                column.indices, earlier.column(i).dictionary, ordered=column.type.ordered, safe=False
            )
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _share_dictionary(first: pa.Array, second: pa.Array) -> bool:
    return isinstance(first, pa.DictionaryArray) and _addresses(first.dictionary) == _addresses(second.dictionary)


def _addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]
