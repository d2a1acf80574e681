"""Which files of an output folder are finished, and how they were made: a small JSON file in that folder.

For every file: size and time of its input, the recipe, size and time of its output. A file whose entry still holds is
not done again. An entry is begun before an output appears and finished after, so that a run killed in between is
understood too. A manifest that cannot be understood is as good as none. It holds names and numbers, no data.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs

from pipeline.errors import InputError, InputMissingError, ReadError, StorageError
from pipeline.parquet.failures import reason_of
from pipeline.parquet.location import Location

if TYPE_CHECKING:
    from pipeline.stage import Stage

log = logging.getLogger(__name__)

MANIFEST_NAME = ".parquet_classify.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileState:
    """By what a changed file is known.

    Attributes:
        size: in bytes.
        mtime_ns: when it was last changed; 0 where the file system does not tell.
    """

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one file.

    Attributes:
        input: its state before it was read.
        recipe: see ``recipe_of``.
        output: its state when it was finished; None while it is begun.
        mark: that is in the output's footer, so that a begun one is known when it has appeared.
    """

    input: FileState
    recipe: str
    output: FileState | None
    mark: str


@dataclass(slots=True)
class Manifest:
    """The entries of one output folder, by relative path.

    Attributes:
        place: of the file that holds them.
    """

    place: Location
    _entries: dict[str, Entry] = field(default_factory=dict)
    _lines: dict[str, str] = field(default_factory=dict)  # as written, since of thousands one changes at a time

    def __post_init__(self) -> None:
        for file, entry in self._entries.items():
            self._set(file, entry)

    def recipe(
        self,
        file: str,
        input_state: FileState | None,
        output_state: FileState | None,
        output_mark: Callable[[], str | None],
    ) -> str | None:
        """How the output that is there was made from the input that is there; None if it was not, or is not known.

        Args:
            file: its relative path.
            input_state: what is there now.
            output_state: likewise.
            output_mark: reads the mark in the output; asked only where a run ended before it told the manifest.
        """
        entry = self._entries.get(file)
        if entry is None or output_state is None or entry.input != input_state or not entry.input.mtime_ns:
            return None
        holds = output_state == entry.output if entry.output is not None else output_mark() == entry.mark
        return entry.recipe if holds else None

    def begin(self, file: str, input_state: FileState, recipe: str) -> str:
        """An output is about to appear; gives the mark to put into it.

        Raises:
            StorageError: the device failed or is full.
        """
        entry = Entry(input_state, recipe, None, uuid4().hex)
        self._set(file, entry)
        self._write()
        return entry.mark

    def finish(self, file: str, output_state: FileState | None) -> None:
        """The output has appeared; does nothing when that is known already.

        Raises:
            StorageError: the device failed or is full.
        """
        entry = self._entries[file]
        if entry.output is None and output_state is not None:
            self._set(file, replace(entry, output=output_state))
            self._write()

    def _set(self, file: str, entry: Entry) -> None:
        self._entries[file] = entry
        self._lines[file] = f"{json.dumps(file)}: {json.dumps(asdict(entry))}"

    def _write(self) -> None:
        lines = ",\n".join(self._lines.values())
        content = f'{{"version": {FORMAT_VERSION}, "files": {{\n{lines}\n}}}}\n'.encode("ascii")
        try:
            if self.place.is_local:
                _replace(self.place.local, content)
            else:  # an object appears whole, or not at all
                with self.place.filesystem.open_output_stream(self.place.path) as stream:
                    stream.write(content)
        except OSError as error:
            raise StorageError(
                f"writing {self.place.name!r} failed: {reason_of(error)}",
                "make room on the device, then run the same command",
            ) from error


def read_manifest(folder: Location) -> Manifest:
    """The manifest of an output folder; an empty one where there is none, or a damaged one."""
    place = folder.child(MANIFEST_NAME)
    try:
        with place.filesystem.open_input_stream(place.path) as stream:
            content = json.loads(stream.read())
        if content["version"] != FORMAT_VERSION:
            raise ValueError(f"version {content['version']!r}")
        return Manifest(place, {str(name): _entry(parts) for name, parts in content["files"].items()})
    except FileNotFoundError:
        return Manifest(place)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        log.warning("%r cannot be used (%s): no file counts as finished", place.name, type(error).__name__)
        return Manifest(place)


def state_of(location: Location) -> FileState | None:
    """The state of a file; None if there is none.

    Raises:
        InputError: one may not look, or its name is not UTF-8.
        ReadError: the device failed.
    """
    try:
        info = location.filesystem.get_file_info(location.path)
    except UnicodeEncodeError as error:
        raise InputError(f"the name {location.name!r} is not UTF-8", "rename the file") from error
    except PermissionError as error:
        raise InputError(f"{location.name!r} may not be read", "check its permissions") from error
    except OSError as error:
        raise ReadError(
            f"looking at {location.name!r} failed: {reason_of(error)}", "check the device or network, then run again"
        ) from error
    if info.type == pa.fs.FileType.NotFound:
        return None
    return FileState(info.size or 0, info.mtime_ns or 0)


def existing_state(location: Location) -> FileState:
    """The state of an input file.

    Raises:
        InputMissingError: there is none.
        PipelineError: as ``state_of`` raises it.
    """
    state = state_of(location)
    if state is None:
        raise InputMissingError(f"input {location.name!r} does not exist", "it is a link to nowhere, or was removed")
    return state


def recipe_of(stage: "Stage", limit: int | None) -> str:
    """Digest of everything that decides what is written for a file, beside the file.

    Args:
        stage: its task bound to the file.
        limit: of ``--limit``.
    """
    settings, task = stage.settings, stage.task
    parts: dict[str, Any] = {
        "fingerprint": stage.fingerprint,
        "columns": task.columns,
        "template": task.template,
        "label_column": settings.label_column,
        "score_column": settings.score_column,
        "status_column": settings.status_column,
        "mode": task.mode,
        "min_score": task.min_score,
        "min_margin": task.min_margin,
        "default_label": task.default_label,
        "thresholds": task.label_thresholds,
        "overlong": settings.overlong,
        "limit": limit,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _entry(parts: dict[str, Any]) -> Entry:
    return Entry(
        FileState(**parts["input"]),
        str(parts["recipe"]),
        None if parts["output"] is None else FileState(**parts["output"]),
        str(parts["mark"]),
    )


def _replace(path: Path, content: bytes) -> None:
    work = path.with_name(f"{path.name}.partial")
    try:
        with work.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(work, path)
    except OSError:
        with suppress(OSError):
            work.unlink()
        raise
