"""Globs, followed name by name, so that a walk knows which folders it need not enter. Knows nothing of files."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

WILDCARDS = "*?["
NOT_DATA = ("_", ".")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob, part by part: ``*``, ``?`` and ``[…]`` within a name, ``**`` for any number of folders.

    A path is followed as a set of positions: how many parts may have been used up so far. A wildcard stands for no name
    that starts with ``_`` or ``.``, at any depth: a pattern must spell that out.

    Attributes:
        parts: of the glob.
    """

    parts: tuple[str, ...]

    @property
    def start(self) -> frozenset[int]:
        """Positions before the first name."""
        return self._skip_stars({0})

    @property
    def end(self) -> int:
        """The position where all is used up."""
        return len(self.parts)

    def after(self, positions: frozenset[int], name: str) -> frozenset[int]:
        """Positions behind one more name; none if no path that goes on like this matches."""
        reached = set()
        for position in positions - {self.end}:
            part = self.parts[position]
            if name.startswith(NOT_DATA) and part[0] != name[0]:
                continue
            if part == "**":
                reached.add(position)
            elif fnmatchcase(name, part):
                reached.add(position + 1)
        return self._skip_stars(reached)

    def matches(self, names: tuple[str, ...]) -> bool:
        """Whether a whole path matches."""
        positions = self.start
        for name in names:
            positions = self.after(positions, name)
        return self.end in positions

    def _skip_stars(self, positions: set[int]) -> frozenset[int]:
        closed = set(positions)
        for position in positions:
            while position < self.end and self.parts[position] == "**":
                position += 1
                closed.add(position)
        return frozenset(closed)


def has_wildcards(text: str) -> bool:
    """Whether a path or a part of it is a glob."""
    return any(char in text for char in WILDCARDS)
