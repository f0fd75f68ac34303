"""The work of an engine: a task over some units.  `run` is the function that engines of other programs call.

A worker shares nothing with the host that asks but the file system (or the object store).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from confluo_tools.engine import unit as units_
from confluo_tools.engine.result import Problems, Result, encode_error
from confluo_tools.engine.task import Task, pins
from confluo_tools.engine.unit import LOG, ArchiveBatch, LogBlocks, Unit
from confluo_tools.errors import ConfluoError, SchemaError, StoreError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.multilog.archive.open_ahead import PartFile
    from confluo_tools.multilog.archive.reader import ArchiveScan
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.plan import QueryPlan
    from confluo_tools.multilog.query.time_order import Blocks

SAME_FILES = "workers need the same files under the same paths"
Rows = Iterator[tuple["Block", "Picks"]]
Opened = Callable[[], tuple["Log", "list[SegmentPart]"]]


def run(task: bytes, units: bytes) -> bytes:
    """The result of an encoded task over encoded units, encoded; an error that the user can correct is a result."""
    try:
        return run_units(Task.decode(task), units_.decode(units)).encode()
    except ConfluoError as e:
        return encode_error(ConfluoError(f"{e.what} (on {os.uname().nodename})", where=e.where, hint=e.hint))


def version() -> dict[str, str]:
    """What this worker has of what must be the same at both ends."""
    return pins()


def run_units(task: Task, units: Iterable[Unit], opened: Opened | None = None) -> Result:
    """The result of ``task`` over ``units``.

    ``opened``: gives the log of those that have one, and its segments; the next unit is then only taken when the one
    before is done.

    Raises ConfluoError: a log is not there, or has another schema.
    """
    partial, rows = task.partial.fresh(), 0
    sources: list[LogSource | ArchiveSource] = []
    for (kind, _), own in groupby(units, key=lambda unit: unit.source):
        some: Any = own
        source = LogSource(task, some, opened) if kind == LOG else ArchiveSource(task, list(some))
        sources.append(source)
        if partial.counted:
            rows += source.count()
            continue
        for block, picks in source.by_time() if partial.by_time else source.rows():
            partial.update(block, picks)
            rows += len(picks)
            if partial.full:
                break
    left_out = [one for source in sources for one in source.left_out]
    unused = [one for source in sources for one in source.unused]
    return Result(rows, partial, left_out, unused, sum(source.scanned for source in sources))


class LogSource:
    """The rows of neighbouring units of one log; what was left out is known at the end.  Raises ConfluoError."""

    scanned = 0

    def __init__(self, task: Task, units: Iterable[LogBlocks], opened: Opened | None = None) -> None:
        from confluo_tools.multilog.query.plan import QueryPlan
        from confluo_tools.multilog.version import Version

        if opened is None:
            units = list(units)
            log, parts = _open_parts(units, task)
        else:
            log, parts = opened()
        version = Version()
        version.pinned = log, parts
        self._parts = {(part.lane, part.base): part for part in parts}
        self._units = units
        self._plan: QueryPlan = QueryPlan(log, version, task.expr, columns=task.partial.columns)

    def rows(self) -> Rows:
        yield from self._plan.rows_of(self._blocks())

    def by_time(self) -> Rows:
        """The rows by time, of units of one lane."""
        yield from self._plan.ordered(list(self._blocks()))

    def count(self) -> int:
        return self._plan.count(self._blocks())

    def _blocks(self) -> Iterator[Blocks]:
        for unit in self._units:
            part = self._parts.get((unit.lane, unit.base))
            if part is not None:  # else it is among what the log says of itself
                yield part, range(unit.first, unit.after)

    @property
    def left_out(self) -> Problems:
        return self._plan.left_out

    @property
    def unused(self) -> Problems:
        return self._plan.unused


def _open_parts(units: Sequence[LogBlocks], task: Task) -> tuple[Log, list[SegmentPart]]:
    from confluo_tools.multilog.log import Log

    path = units[0].log
    try:
        log = Log(path, readonly=True)
    except StoreError as e:
        raise StoreError(e.what, where=e.where, hint=SAME_FILES) from None
    if log.uuid.hex() != units[0].uuid:
        raise StoreError("is another log", where=path, hint=SAME_FILES)
    own, theirs = ([(c.name, c.code, c.size, c.count) for c in schema.columns] for schema in (log.schema, task.schema))
    if own != theirs:
        raise SchemaError("has other columns now than the question", where=path, hint="ask again")
    found = []
    for lane, base, rows in dict.fromkeys((unit.lane, unit.base, unit.rows) for unit in units):
        part = log.segment(lane, base, rows)
        if part is not None:
            found.append(part)
    return log, found


class ArchiveSource:
    """The rows of batches of archives."""

    unused: Problems = []  # noqa: RUF012 - archives have no views

    def __init__(self, task: Task, units: Sequence[ArchiveBatch]) -> None:
        from confluo_tools.multilog.archive.folders import part_file
        from confluo_tools.multilog.archive.reader import ArchiveScan

        for root in dict.fromkeys(unit.archive for unit in units):
            if "://" not in root and not os.path.isdir(root):
                raise StoreError("there is no such archive", where=root, hint=SAME_FILES)
        names = units[0].path_fields
        try:
            self._scan: ArchiveScan = ArchiveScan(task.schema, task.expr.tree, task.partial.columns, names)
            self._batches = [([part_file(u.archive, path) for path in u.parts], u.first, u.after) for u in units]
        except ValueError as e:
            raise ConfluoError(str(e)) from None

    def rows(self) -> Rows:
        yield from self._scan.batches(self._batches)

    def by_time(self) -> Rows:
        """The rows by time, of units of one lane."""
        yield from self._scan.merged(self._scan.streams_of(_whole(self._batches), 0))

    def count(self) -> int:
        return self._scan.count_batches(self._batches)

    @property
    def scanned(self) -> int:
        return self._scan.rows

    @property
    def left_out(self) -> Problems:
        return self._scan.damaged


def _whole(batches: Sequence[tuple[list[PartFile], int, int]]) -> list[tuple[list[PartFile], int, int]]:
    # Units of one batch as one: its parts, in the order of their hours.
    out: list[tuple[list[PartFile], int, int]] = []
    for parts, first, after in batches:
        if out and out[-1][0][0].name.batch == parts[0].name.batch:
            out[-1][0].extend(parts)
        else:
            out.append((list(parts), first, after))
    return out
