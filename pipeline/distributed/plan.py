"""Cutting files into units. The same files and flags give the same units, so that an earlier run's parts are found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.command.checked_file import CheckedFile
from pipeline.command.options import Options
from pipeline.distributed.unit import RowRange, Unit
from pipeline.parquet.location import Location
from pipeline.verify import spread


def plan_units(files: Sequence[CheckedFile], parts: Location, options: Options) -> dict[str, list[Unit]]:
    """The units of each file, by its name and in the order of its rows.

    Args:
        files: that will be labelled.
        parts: folder that the parts go to.
        options: of the command line.
    """
    ranges = [(file, rows) for file in files for rows in cut_units(file.group_rows, options.unit_rows, options.limit)]
    shares = spread(options.verify or 0, [rows.n_rows for _, rows in ranges])
    units: dict[str, list[Unit]] = {file.name: [] for file in files}
    for (file, rows), share in zip(ranges, shares, strict=True):
        part = parts_of(parts, file).child(f"rows-{rows.first_row:012}.parquet")
        # each unit is sent by itself, and must not be as long as the list of all of them
        units[file.name].append(Unit(replace(file, group_rows=()), rows, part, share))
    return units


def parts_of(parts: Location, file: CheckedFile) -> Location:
    """The folder of one file's parts. It has the file's own name, since no file of the input can lie below that."""
    return parts.child(file.name) if file.name else parts


def cut_units(group_rows: Sequence[int], unit_rows: int, limit: int | None = None) -> Iterator[RowRange]:
    """Cut a file into ranges of about ``unit_rows`` rows; one row group is never cut.

    Args:
        group_rows: rows of each row group.
        unit_rows: a range has no more, unless a single row group has.
        limit: only the first rows of the file.

    Yields:
        At least one range, empty for an empty file.
    """
    left = sum(group_rows) if limit is None else min(limit, sum(group_rows))
    first_group = first_row = n_rows = 0
    for group, size in enumerate(group_rows):
        if n_rows and n_rows + size > unit_rows:
            yield RowRange(first_group, group, first_row, n_rows)
            first_group, first_row, n_rows = group, first_row + n_rows, 0
        size = min(size, left)
        n_rows, left = n_rows + size, left - size
        if not left:
            yield RowRange(first_group, group + 1, first_row, n_rows)
            return
    yield RowRange(first_group, len(group_rows), first_row, n_rows)
