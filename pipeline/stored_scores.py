"""Scores of texts that were scored before, kept in a label store by digest.

One mechanism with three uses: the journal by which a run goes on where another one ended, the filter that scores a text
once however often it comes, and the cache that one night hands to the next. The digest (128 bits) is keyed with the
fingerprint of all that decides the scores, so nothing scored in another way is ever found. An entry holds numbers, no
text: the scores for each label, whether the text was cut, and a checksum over all of it, so that an entry that the disk
has altered is noticed and not used. Texts without finite scores are not kept.

A buffer's keys and entries travel packed into one value each. The sqlite3 module gives the interpreter lock away at
every row it hands over, and while another thread computes it gets the lock back only after milliseconds.
"""

import json
import sqlite3
from functools import partial
from hashlib import blake2b

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.label_store import LabelStore, StoreDamaged, today

TEXTS_AT_ONCE = 4096

LOOKUP = (
    "SELECT group_concat(hex(coalesce(score.entry, zeroblob(?))), '') "
    "FROM json_each(?) AS wanted LEFT JOIN score ON score.key = wanted.value"
)
ENTER = (
    "INSERT INTO task (fingerprint, n_scores, description, last_used) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (fingerprint) DO UPDATE SET last_used = excluded.last_used"
)
INSERT = "INSERT OR IGNORE INTO score SELECT value, ?, ?, substr(?, ? * key + 1, ?) FROM json_each(?)"


class StoredScores:
    """The part of a store that belongs to one way of scoring.

    Args:
        store: open.
        fingerprint: hex digest of all that decides the scores.
        n_scores: scores per text, one for each label.
        description: of model and labels, for people.
    """

    def __init__(self, store: LabelStore, fingerprint: str, n_scores: int, description: str) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._n_scores = n_scores
        self._description = description
        self._digest = blake2b(digest_size=16, key=bytes.fromhex(fingerprint))
        self._entry = np.dtype(
            [("checksum", "<u8"), ("rest", "<u8"), ("truncated", "<u4"), ("scores", "<f4", (n_scores,))]
        )
        # odd, so that no change of a single number leaves the sum as it was
        self._multipliers = np.arange(1, 2 * (n_scores + 3), 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        store.attempt(self._enter)

    def keys(self, texts: pl.Series) -> NDArray[np.uint64]:
        """(n, 2) digests of n texts: the key in the store, and the rest."""
        digests = bytearray()
        for text in texts.cast(pl.Binary).to_list():
            digest = self._digest.copy()
            digest.update(text)
            digests += digest.digest()
        return np.frombuffer(digests, np.dtype("<u8")).reshape(-1, 2)

    def lookup(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What is known of n texts.

        Args:
            keys: (n, 2) of ``keys``.

        Returns:
            (n, n_scores) scores, NaN for texts that are not in the store, and (n,) whether each text was cut.

        Raises:
            CacheError: a shared store is damaged.
            StorageError: the device failed.
        """
        scores = np.full((len(keys), self._n_scores), np.nan, dtype=np.float32)
        truncated = np.zeros(len(keys), dtype=np.bool_)
        order = np.argsort(keys[:, 0].view(np.int64))  # as they lie in the file
        for start in range(0, len(keys), TEXTS_AT_ONCE):
            some = order[start : start + TEXTS_AT_ONCE]
            entries = self._store.attempt(partial(self._read, keys[some]))
            found = (entries["checksum"] != 0) & (entries["rest"] == keys[some, 1])
            scores[some[found]] = entries["scores"][found]
            truncated[some] = found & (entries["truncated"] != 0)
        return scores, truncated

    def insert(self, keys: NDArray[np.uint64], scores: NDArray[np.float32], truncated: NDArray[np.bool_]) -> None:
        """Keep the scores of n texts, in one transaction; those that are not finite are left out.

        Raises:
            CacheError: a shared store is damaged.
            StorageError: the device failed or is full; none is kept.
        """
        finite = np.isfinite(scores).all(axis=1)
        entries = np.zeros(int(finite.sum()), self._entry)
        entries["rest"] = keys[finite, 1]
        entries["truncated"] = truncated[finite]
        entries["scores"] = scores[finite]
        entries["checksum"] = self._checksums(keys[finite, 0], entries)
        self._store.attempt(partial(self._write, keys[finite, 0], entries))

    def forget(self) -> None:
        """Remove all scores of this fingerprint, of earlier runs too: they have proved wrong."""

        def remove() -> None:
            with self._store.transaction() as connection:
                connection.execute(
                    "DELETE FROM score WHERE task = (SELECT id FROM task WHERE fingerprint = ?)", (self._fingerprint,)
                )

        self._store.attempt(remove)

    def _enter(self) -> None:
        with self._store.transaction() as connection:
            self._task_id(connection)

    def _task_id(self, connection: sqlite3.Connection) -> int:
        """The task's number in the store as it is now: a new one may have taken the place of a damaged one."""
        connection.execute(ENTER, (self._fingerprint, self._n_scores, self._description, today()))
        known = connection.execute("SELECT id, n_scores FROM task WHERE fingerprint = ?", (self._fingerprint,))
        task_id, n_scores = known.fetchone()
        if n_scores != self._n_scores:
            raise StoreDamaged(f"it says {n_scores} scores where there must be {self._n_scores}")
        return int(task_id)

    def _read(self, keys: NDArray[np.uint64]) -> NDArray[np.void]:
        """The (n,) entries of n keys, zeros where there is none."""
        width = self._entry.itemsize
        ((text,),) = self._store.query(LOOKUP, (width, _json(keys[:, 0])))
        if len(text) != 2 * width * len(keys):
            raise StoreDamaged("an entry has a wrong size")
        entries = np.frombuffer(bytes.fromhex(text), self._entry)
        wrong = (entries["checksum"] != 0) & (entries["checksum"] != self._checksums(keys[:, 0], entries))
        if wrong.any():
            raise StoreDamaged("an entry has a wrong checksum")
        return entries

    def _write(self, keys: NDArray[np.uint64], entries: NDArray[np.void]) -> None:
        width = self._entry.itemsize
        with self._store.transaction() as connection:
            task_id = self._task_id(connection)
            for start in range(0, len(keys), TEXTS_AT_ONCE):
                some = slice(start, start + TEXTS_AT_ONCE)
                packed = entries[some].tobytes()
                connection.execute(INSERT, (task_id, today(), packed, width, width, _json(keys[some])))

    def _checksums(self, keys: NDArray[np.uint64], entries: NDArray[np.void]) -> NDArray[np.uint64]:
        """(n,) sums over everything in an entry, and its key; never 0."""
        numbers = [keys, entries["rest"], entries["truncated"], *entries["scores"].view("<u4").T]
        sums = sum(number.astype(np.uint64) * by for number, by in zip(numbers, self._multipliers, strict=True))
        return np.asarray(sums, dtype=np.uint64) | np.uint64(1)


def _json(keys: NDArray[np.uint64]) -> str:
    """Keys as SQLite's signed numbers, packed into one parameter."""
    return json.dumps(np.ascontiguousarray(keys).view(np.int64).tolist())
