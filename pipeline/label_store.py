"""One SQLite file that keeps scores by digest of text: opening it, sharing it, finding it damaged.

What is in it and how it is looked up is the business of ``stored_scores``. Whoever uses a store may be killed at any
moment: a transaction is there whole or not at all, and survives a power cut. Several processes may share one file (a
write-ahead log; they wait for each other's transactions).
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pipeline.errors import CacheError, OutputError, PipelineError, StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")

APPLICATION_ID = 0x7071636C  # tells our files from other SQLite databases
FORMAT_VERSION = 1
TABLES = (
    "CREATE TABLE task (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, n_scores INTEGER NOT NULL, "
    "description TEXT NOT NULL, last_used INTEGER NOT NULL)",
    "CREATE TABLE score (key INTEGER PRIMARY KEY, task INTEGER NOT NULL, day INTEGER NOT NULL, entry BLOB NOT NULL)",
)
BUSY_SECONDS = 60.0
TURN_SECONDS = 0.2  # of waiting within SQLite, where no signal is heard
CACHE_KIB = 32 << 10

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DEVICE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
_FORBIDDEN = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


class StoreDamaged(Exception):
    """The file is no label store, or does not hold what was written to it.

    Args:
        message: what is wrong.
        is_ours: whether it was a label store once.
    """

    def __init__(self, message: str, *, is_ours: bool = True) -> None:
        super().__init__(message)
        self.is_ours = is_ours


class LabelStore:
    """An open store; a context manager that closes it. May be used by several threads.

    Args:
        path: created if it does not exist. None for a file without a name, which goes when it is closed or its process
            dies, and which is not shared.
        shared: whether it outlives the run and other processes use it too. Damage to a shared store is an error; a
            store that is not is moved aside, and a new one takes its place.

    Raises:
        CacheError: a shared store is damaged, or another kind of file.
        OutputError: it cannot be created or opened.
        StorageError: the device failed or is full, or another process keeps the store locked.
    """

    def __init__(self, path: str | Path | None, *, shared: bool) -> None:
        self.path = None if path is None else Path(path)
        self._shared = shared
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self.attempt(self._ensure_open)

    def attempt(self, operation: Callable[[], T]) -> T:
        """Do something with the store, and if it turns out to be damaged, once more with a new one in its place.

        Raises:
            CacheError: it is damaged, and shared.
        """
        with self._lock:  # or two threads would both replace it
            try:
                return operation()
            except StoreDamaged as damage:
                if self._shared:
                    also = ", or remove this one" if damage.is_ours else ""
                    raise CacheError(f"{self._title} cannot be used: {damage}", f"name another file{also}") from damage
                self._replace(damage)
                return operation()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A block whose changes are durable at its end, or do not happen.

        Raises:
            StoreDamaged: the file is.
            StorageError: the device failed or is full, or another process keeps the store locked.
        """
        with self._lock, self._sqlite_errors():
            connection = self._opened()
            try:  # from here on, since a signal may come right behind the beginning
                _patiently(connection, "BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query; raises as ``transaction`` does."""
        with self._lock, self._sqlite_errors():
            return _patiently(self._opened(), statement, parameters).fetchall()

    def is_empty(self) -> bool:
        """Whether it holds no scores; a store that cannot be read is not empty."""
        try:
            return not self.query("SELECT 1 FROM score LIMIT 1")
        except (StoreDamaged, PipelineError):
            return False

    def close(self) -> None:
        """Close it; what was committed stays. Never fails."""
        with self._lock, suppress(sqlite3.Error):
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def remove(self) -> None:
        """Close and delete it; never fails."""
        self.close()
        if self.path is not None:
            remove_store(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ensure_open(self) -> None:
        if self._connection is not None:
            return
        is_new = self.path is None or self._check_place(self.path)
        with self._sqlite_errors():
            # no implicit transactions; threads take turns by the lock above
            connection = sqlite3.connect(self.path or "", TURN_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                if is_new and not self._shared:  # a full device: what is there holds nothing
                    self.remove()
                raise
        self._connection = connection

    def _check_place(self, path: Path) -> bool:
        """Whether there is nothing yet.

        Raises:
            OutputError: no store can be there.
        """
        if path.exists() and not path.is_file():
            raise OutputError(f"{self._title} is not a regular file", "name a regular file, or one that is yet to be")
        if not path.parent.is_dir():
            raise OutputError(
                f"{self._title} cannot be created: there is no folder {str(path.parent)!r}", "create it first"
            )
        return not path.exists()

    def _set_up(self, connection: sqlite3.Connection) -> None:
        def ask(statement: str) -> Any:
            return _patiently(connection, statement).fetchone()[0]

        if not self._shared:
            # before anything is read, so that it does without the shared-memory file, which network folders cannot have
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")

        # 1. is it ours? nothing is written before that is known
        connection.execute("BEGIN")  # all of it as of one moment, for another process may be making the tables
        n_tables = ask("SELECT count(*) FROM sqlite_master")
        application_id, version = ask("PRAGMA application_id"), ask("PRAGMA user_version")
        connection.execute("COMMIT")
        if application_id != APPLICATION_ID and (application_id or n_tables):
            raise StoreDamaged("it is another program's database", is_ours=False)
        if application_id and version != FORMAT_VERSION:
            raise StoreDamaged(f"it has format {version}, and this version of the program uses {FORMAT_VERSION}")

        # 2. how it is accessed
        _patiently(connection, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")

        # 3. a new one gets its tables, unless another process was faster
        _patiently(connection, "BEGIN IMMEDIATE")
        if not ask("PRAGMA application_id"):
            for statement in (*TABLES, f"PRAGMA application_id = {APPLICATION_ID}"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "the store is closed"
        return self._connection

    def _replace(self, damage: StoreDamaged) -> None:
        """Put a new store in the place of a damaged one."""
        if self.path is None:  # by its device
            raise StorageError(f"{self._title} is damaged: {damage}", "check the device") from damage
        aside = self.path.with_name(f"{self.path.name}.damaged")
        log.warning(
            "%s is damaged (%s): it is now %r, and its scores are computed anew", self._title, damage, str(aside)
        )
        self.close()
        try:
            os.replace(self.path, aside)
            for path in _companions(self.path):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"moving {self._title} aside failed: {error.strerror}", "remove the file, or use --no-cache"
            ) from error
        self._ensure_open()

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # a message of SQLite that quotes damaged bytes
            raise StoreDamaged("database disk image is malformed") from error
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest tells details
        if code in _LOCKED:
            return StorageError(
                f"{self._title} was locked by another process for {BUSY_SECONDS:g} s", "run again when it is free"
            )
        if code in _DEVICE:
            return StorageError(
                f"writing {self._title} failed: {error}", "make room on the device, then run the same command again"
            )
        if code in _FORBIDDEN:
            return OutputError(f"{self._title} cannot be written: {error}", "name a file where you may write one")
        return StoreDamaged(str(error), is_ours=code != sqlite3.SQLITE_NOTADB)

    @property
    def _title(self) -> str:
        if self.path is None:
            return "the store of scores in the temporary folder"
        return f"{'--cache' if self._shared else 'the store of scores'} {str(self.path)!r}"


def today() -> int:
    """The day, in days since 1970 (UTC)."""
    return int(time.time() // 86_400)


def remove_store(path: Path) -> None:
    """Delete a store that is not open, if there is one; never fails."""
    for part in (path, *_companions(path)):
        with suppress(OSError):
            part.unlink()


def _patiently(connection: sqlite3.Connection, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Execute a statement, however often others are at the file."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement, parameters)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() > deadline:
                raise
            time.sleep(0.02)  # some locks are not waited for at all


def _companions(path: Path) -> list[Path]:
    """Files that SQLite keeps beside a database."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
