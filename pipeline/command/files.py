"""Which files INPUT stands for, when it is a folder or a glob, and that their outputs are none of them.

A folder is all Parquet files in it at any depth; a glob is whatever files it matches. Files and folders whose names
start with ``_`` or ``.`` are not data (Spark's ``_SUCCESS``, checksums, work files) unless a glob spells that out. The
order is that of the names. Each folder is read once, however many links lead there, so that loops end. Knows
where files are, and nothing of what is in them.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from pipeline.command.pattern import Pattern, has_wildcards
from pipeline.errors import InputError, InputMissingError, OutputError, ReadError
from pipeline.parquet.failures import Failure, credentials_hint, failure_of, reason_of
from pipeline.parquet.location import Location, locate
from pipeline.parquet.upload import check_container

log = logging.getLogger(__name__)

SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True, slots=True)
class FileTree:
    """The files below a folder that match a pattern.

    Attributes:
        name: what messages call it: the folder, or the glob.
        root: the folder that relative paths start from.
        pattern: what they must match.
        is_glob: whether it was given as a glob; of a folder's files only those count that are called Parquet.
    """

    name: str
    root: Location
    pattern: Pattern
    is_glob: bool

    def files(self) -> list[str]:
        """Relative paths of all files, with ``/`` between their parts, in order.

        Raises:
            InputMissingError: there is none.
            InputError: a folder may not be read.
            ReadError: listing failed.
        """
        with _listing_errors(self):
            found = sorted(_walk_local(self) if self.root.is_local else _list_remote(self))
        if self.is_glob:
            if not found:
                raise InputMissingError(
                    f"no file matches input {self.name!r}", "check it; '**' stands for folders at any depth"
                )
            return ["/".join(parts) for parts in found]
        files = [parts for parts in found if parts[-1].lower().endswith(SUFFIXES)]
        if not files:
            raise InputMissingError(
                f"input folder {self.name!r} holds no Parquet file, of {len(found):,} files in it",
                f"names must end in {', '.join(SUFFIXES)}; name others with a glob",
            )
        if left_out := [parts for parts in found if not parts[-1].lower().endswith(SUFFIXES)]:
            log.info(
                "left out: %d file%s not called %s, such as %r; name them with a glob",
                len(left_out),
                "" if len(left_out) == 1 else "s",
                ", ".join(f"*{suffix}" for suffix in SUFFIXES),
                "/".join(left_out[0]),
            )
        return ["/".join(parts) for parts in files]


def find_tree(text: str) -> FileTree | None:
    """The files that a path, URI or glob stands for; None if it names a single file, there or not.

    What exists under its literal name is no glob.

    Raises:
        UsageError: a URI that cannot be opened.
    """
    given = locate(text)
    kind = _type(given)
    if kind == pa.fs.FileType.Directory:
        root = Location(given.name.rstrip("/") or "/", given.filesystem, given.path.rstrip("/") or "/")
        return FileTree(given.name, root, Pattern(("**", "*")), is_glob=False)
    if kind != pa.fs.FileType.NotFound or not has_wildcards(given.path):
        return None
    parts = given.path.split("/")
    n_literal = next(i for i, part in enumerate(parts) if has_wildcards(part))
    pattern = tuple(part for part in parts[n_literal:] if part)
    n_below = len(parts) - n_literal
    root = Location(
        _folder(given.name.split("/")[:-n_below]), given.filesystem, _folder(parts[:n_literal], given.is_local)
    )
    return FileTree(given.name, root, Pattern((*pattern, "*") if pattern[-1] == "**" else pattern), is_glob=True)


def check_output_place(tree: FileTree, files: list[str], output: Location) -> None:
    """Check that OUTPUT is or can become a folder, and that none of its files is, or would become, one of the input.

    Raises:
        OutputError: it is not so.
    """
    kind = _type(output)
    if kind not in (pa.fs.FileType.Directory, pa.fs.FileType.NotFound):
        raise OutputError(
            f"output {output.name!r} is a file, and input {tree.name!r} is a {'glob' if tree.is_glob else 'folder'}",
            "name a folder",
        )
    try:
        check_container(output)
    except OSError as error:
        raise OutputError(
            f"output {output.name!r} cannot be created: {reason_of(error)}", credentials_hint(output)
        ) from error
    if (
        output.is_local
        and kind == pa.fs.FileType.NotFound
        and not (parent := Path(os.path.abspath(output.path)).parent).is_dir()
    ):
        raise OutputError(
            f"output {output.name!r} cannot be created: there is no folder {str(parent)!r}", "create the folder first"
        )
    if output.filesystem != tree.root.filesystem:
        return
    root, place = _real_parts(tree.root), _real_parts(output)
    if place[: len(root)] == root:
        below = place[len(root) :]
        if not below and not tree.is_glob:
            raise OutputError(f"output {output.name!r} is the input folder", "write to another folder")
        if not tree.is_glob or any(tree.pattern.matches((*below, *file.split("/"))) for file in files):
            raise OutputError(
                f"output {output.name!r} lies inside input {tree.name!r}: the next run would take it for input",
                "write to a folder outside",
            )
    inputs = {_real_parts(tree.root.child(file)) for file in files}
    for file in files:
        if _real_parts(output.child(file)) in inputs:
            raise OutputError(f"output {output.child(file).name!r} is a file of the input", "write to another folder")


def _walk_local(tree: FileTree) -> Iterator[tuple[str, ...]]:
    """Names of the files found; folders that are links come last, and only if they lead to something new."""
    pattern, seen, n_left_out = tree.pattern, set(), 0
    folders: deque[tuple[tuple[str, ...], frozenset[int]]] = deque([((), pattern.start)])
    links: deque[tuple[tuple[str, ...], frozenset[int]]] = deque()
    while folders or links:
        above, positions = (folders or links).popleft()
        folder = os.path.join(tree.root.path, *above)
        key = (os.path.realpath(folder), positions - {pattern.end})
        if key in seen:
            n_left_out += 1
            continue
        seen.add(key)
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                behind, names = pattern.after(positions, entry.name), (*above, entry.name)
                if not _is_folder(entry):
                    if pattern.end in behind:
                        yield names
                elif behind - {pattern.end}:
                    (links if entry.is_symlink() else folders).append((names, behind))
    if n_left_out:
        log.info("left out: %d link%s to folders that are read anyway", n_left_out, "" if n_left_out == 1 else "s")


def _list_remote(tree: FileTree) -> Iterator[tuple[str, ...]]:
    """One recursive listing, which an object store answers faster than one for each folder."""
    root = tree.root.path.rstrip("/")
    for info in tree.root.filesystem.get_file_info(pa.fs.FileSelector(root, recursive=True)):
        names = tuple(info.path.removeprefix(root).strip("/").split("/"))
        if info.type != pa.fs.FileType.Directory and tree.pattern.matches(names):
            yield names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


@contextmanager
def _listing_errors(tree: FileTree) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputMissingError(f"input {tree.name!r} does not exist", "check the path") from error
    except OSError as error:
        if isinstance(error, PermissionError) or failure_of(tree.root, error) == Failure.DENIED:
            place = error.filename or tree.root.name
            raise InputError(f"input folder {str(place)!r} may not be read", credentials_hint(tree.root)) from error
        raise ReadError(
            f"listing {tree.root.name!r} failed: {reason_of(error)}", "check the device or network, then run again"
        ) from error


def _type(location: Location) -> pa.fs.FileType:
    """What is at a place; nothing, where one cannot look."""
    try:
        return location.filesystem.get_file_info(location.path).type
    except (OSError, ValueError, pa.ArrowException):
        return pa.fs.FileType.NotFound


def _folder(parts: list[str], is_local: bool = True) -> str:
    """The parts of a path together; the first may be empty, before a leading ``/``."""
    return "/".join(parts) or ("/" if parts else "." if is_local else "")


def _real_parts(location: Location) -> tuple[str, ...]:
    path = os.path.realpath(location.path) if location.is_local else location.path
    return tuple(part for part in path.split("/") if part)
