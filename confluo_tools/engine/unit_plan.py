"""Which units a question needs: those in which no row can match are not handed out.

Partition folders, Parquet statistics and zone maps decide; nothing else of the rows is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools.engine.result import Problems
from confluo_tools.engine.unit import ArchiveBatch, LogBlocks, Unit
from confluo_tools.expr import leaves
from confluo_tools.multilog.archive.folders import part_file
from confluo_tools.multilog.archive.log_with_archive import LogWithArchiveReader
from confluo_tools.multilog.archive.open_ahead import PartFile
from confluo_tools.multilog.archive.parquet_parts import HOUR
from confluo_tools.multilog.archive.reader import ArchiveReader, ArchiveScan, by_lane, in_time_order, ranges
from confluo_tools.multilog.query import time_order
from confluo_tools.multilog.query.plan import problems

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.expr import Expr
    from confluo_tools.multilog.reader import LogReader

PER_SLOT = 16  # units of a log for each slot: shares of the blocks that differ by a sixteenth at most


class UnitPlan:
    """The units of ``reader`` for ``expr``, in the order of the rows, and lane by lane.  ``slots``: of the engine.

    ``most_rows``: of a unit of a log, about.
    ``look``: conditions without limits of time rule out units, too.  That opens parts of archives and looks at each
    zone map of a log, which those who read them do anyway; they must look if the units are shared out by their size.
    ``given``: of each log and archive, its absolute path and the path that the user gave.
    ``left_out``: (path, problem) of what is damaged, as far as known; ``passed``: rows of archives that were ruled out.
    """

    def __init__(
        self, reader: LogReader | ArchiveReader, expr: Expr, slots: int, most_rows: int | None = None, look: bool = True
    ) -> None:
        self._expr, self._schema = expr, reader.schema
        self._path_fields = reader.path_fields if isinstance(reader, ArchiveReader) else ()
        self._scan = ArchiveScan(reader.schema, expr.tree, [], self._path_fields)
        field = reader.schema.time_field
        self._time = -1 if field is None else reader.schema.index(field.name)
        self._all = expr.tree == leaves.TRUE
        # Neighbours have rows of a short time, so limits of time rule out many, other conditions hardly any.
        self._look = not self._all and (look or self._time in leaves.columns(expr.tree))
        self._segments: dict[tuple[int, int], SegmentPart] = {}
        self.given: dict[str, str] = {}
        self.left_out: Problems = []
        if isinstance(reader, ArchiveReader):
            lanes = by_lane(reader.places(expr.tree)).items()
            self.lanes: list[list[Unit]] = [list(self._batches(parts, reader.below(lane))) for lane, parts in lanes]
        else:
            self.lanes = self._of_log(reader, slots, most_rows)
            self.left_out += problems(reader.log)
        self.units = [unit for lane in self.lanes for unit in lane]
        self.left_out += self._scan.damaged
        self.passed = self._scan.rows

    def _batches(self, parts: Sequence[PartFile], below: int | None = None) -> Iterator[ArchiveBatch]:
        for batch, first, after in ranges(parts, below):
            places = self._scan.possible(batch) if self._look else batch
            alone = len(places) > 1 and in_time_order(places[0])
            for some in [[place] for place in places] if alone else [places] if places else []:
                given, names = _root(some)
                root = given if "://" in given else os.path.abspath(given)
                self.given[root] = given
                size = (after - first) * len(some) // len(batch)
                yield ArchiveBatch(root, names, first, after, size, self._path_fields)

    def _of_log(self, reader: LogReader, slots: int, most_rows: int | None) -> list[list[Unit]]:
        parts = reader.log.segments(reader.version)
        kept = [(part, self._blocks(part)) for part in parts]
        most = max(sum(len(numbers) for _, numbers in kept) // (slots * PER_SLOT), 1)
        out: dict[int, list[Unit]] = {}
        if isinstance(reader, LogWithArchiveReader):
            for lane, places in reader.archived(self._expr.tree).items():
                out[lane] = list(self._batches(places, reader.below(lane)))
        path, uuid = os.path.abspath(reader.log.path), reader.log.uuid.hex()
        self.given[path] = reader.log.path
        for part, numbers in kept:
            capacity = part.segment.capacity
            self._segments[part.lane, part.base] = part
            for first, after in _runs(numbers, most if most_rows is None else min(most, max(most_rows // capacity, 1))):
                size = min((after - first) * capacity, part.rows)
                sealed = part.segment.sealed > 0
                unit = LogBlocks(path, uuid, part.lane, part.base, part.rows, first, after, sealed, size)
                out.setdefault(part.lane, []).append(unit)
        return [out[lane] for lane in sorted(out)]

    def as_given(self, problem: tuple[str, str]) -> tuple[str, str]:
        """A problem that a worker reported, with the path that the user knows."""
        path, what = problem
        for absolute, given in self.given.items():
            if path == absolute or path.startswith(absolute + "/"):
                return given + path[len(absolute) :], what
        return problem

    def times(self, unit: Unit) -> tuple[int, int]:
        """The first and the last time that rows of a unit may have, ns; it needs a time field."""
        if isinstance(unit, ArchiveBatch):
            hours = [part_file(unit.archive, path).name.hour for path in unit.parts]
            return hours[0] * HOUR, (hours[-1] + 1) * HOUR - 1
        part = self._segments[unit.lane, unit.base]
        own = time_order.pieces([(part, range(unit.first, unit.after))], self._time)
        return min(piece.lo for piece in own), max(piece.hi for piece in own)

    def _blocks(self, part: SegmentPart) -> list[int]:
        # The blocks that may have matching rows.  A damaged one is kept: who reads it says so.
        if not self._look:
            return list(range(part.blocks))
        blocks = ((number, part.block(number)) for number in range(part.blocks))
        return [number for number, block in blocks if block is None or self._expr.program.possible(block)]


def _runs(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, after) of neighbours, at most ``most`` of them."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and end - at < most and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], numbers[end - 1] + 1
        at = end


def _root(places: Sequence[PartFile]) -> tuple[str, tuple[str, ...]]:
    """The archive of some parts, and their paths in it: host, date, hour, name."""
    words = [place.path.rsplit("/", 4) for place in places]
    root = words[0][0]
    return root, tuple("/".join(own[1:]) for own in words)
