"""Counts and aggregates of a log or an archive on several cores: processes that each take a share of the rows.

A share is a run of blocks of a log, or of batches of an archive, in the order of the rows; each gives a partial state,
and states are merged in that order.  The processes are forks: they share the open files and the question, and send
their states as the bytes that `confluo serve` sends.  (Threads would wait for the interpreter lock between blocks.)
What a process that died had to do is done again here.  A damaged part is left out and reported as on one core.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.multilog.archive.reader import ArchiveReader, ArchiveScan, by_lane, tree_of
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.reader import LogReader, Problems
from confluo_tools.multilog.version import Version

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.archive.reader import PartFile

_HEAD = struct.Struct("<QQ")  # of what a process sends: bytes of the JSON, bytes of the state


class Found(NamedTuple):
    """What a share gave: the number of rows, the state of the aggregation, and what is to be said."""

    rows: int
    state: bytes
    left_out: Problems
    unused: Problems
    scanned: int  # rows of an archive that were looked at


class Share:
    """A share of the rows of an input."""

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        """The selected rows of each block; ``columns``: numbers of those that are read."""
        raise NotImplementedError

    def count(self) -> int:
        """The number of selected rows."""
        raise NotImplementedError

    def found(self, rows: int, state: bytes) -> Found:
        """The result, after `rows` or `count`."""
        raise NotImplementedError


class LogShare(Share):
    """Blocks ``first`` to ``after`` (not included) of a version, counted through the ``parts``."""

    _plan: QueryPlan

    def __init__(self, reader: LogReader, expr: Any, parts: Sequence[SegmentPart], first: int, after: int) -> None:
        mine: list[SegmentPart] = []
        blocks: dict[tuple[int, int], range] = {}  # (lane, first row) of a segment -> its blocks
        at = 0
        for part in parts:
            inside = range(max(first - at, 0), min(after - at, part.blocks))
            if inside:
                mine.append(part)
                blocks[part.lane, part.base] = inside
            at += part.blocks
        version = Version(reader.version.tails, reader.version.firsts)
        version.pinned = reader.log, mine

        def skip(part: SegmentPart, number: int) -> bool:
            return number not in blocks[part.lane, part.base]

        def plan(columns: Sequence[int] | None) -> QueryPlan:
            return QueryPlan(reader.log, version, expr, columns=columns, skip=skip)

        self._make = plan

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        self._plan = self._make(columns)
        return self._plan

    def count(self) -> int:
        self._plan = self._make([])
        return self._plan.count()

    def found(self, rows: int, state: bytes) -> Found:
        return Found(rows, state, self._plan.left_out, self._plan.unused, 0)


class ArchiveShare(Share):
    """Batches of the lanes of an archive.  ``lanes``: the parts of each, and the first row no earlier share has."""

    _scan: ArchiveScan

    def __init__(self, reader: ArchiveReader, expr: Any) -> None:
        self.lanes: list[tuple[list[PartFile], int]] = []
        self._schema, self._tree = reader.schema, tree_of(expr)

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        self._scan = ArchiveScan(self._schema, self._tree, columns)
        for parts, covered in self.lanes:
            yield from self._scan.lane(parts, covered=covered)

    def count(self) -> int:
        self._scan = ArchiveScan(self._schema, self._tree, [])
        return sum(self._scan.count(parts, covered=covered) for parts, covered in self.lanes)

    def found(self, rows: int, state: bytes) -> Found:
        return Found(rows, state, self._scan.damaged, [], self._scan.rows)


class AllCores(Wrapper):
    """``reader`` with counts and aggregates by ``processes`` (None: one for each core).

    Rows come as on one core: their order is one stream.  Raises UsageError for an input that has no shares.
    """

    def __init__(self, reader: Reader, processes: int | None = None) -> None:
        super().__init__(reader, reader._warn)
        self.schema, self.by_time, self.chosen = reader.schema, reader.by_time, reader.chosen
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        if type(reader) not in (LogReader, ArchiveReader):
            hint = "it takes a MultiLog without archives, or an archive, of this host"
            raise UsageError(f"{reader.name} is read by one core", where="--engine local", hint=hint)
        self.processes = processes or len(os.sched_getaffinity(0))

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        before = self.reader.rows
        yield from self.reader.select(expr, columns, by_time=by_time)
        self.rows += self.reader.rows - before

    def blocks(self) -> Iterator[Block]:
        return self.reader.blocks()

    def shares(self, expr: Any) -> Sequence[Share]:
        """At most one share for each process, in the order of the rows."""
        if isinstance(self.reader, LogReader):
            parts = self.reader.log.segments(self.reader.version)
            edges = _edges(sum(part.blocks for part in parts), self.processes)
            return [LogShare(self.reader, expr, parts, first, after) for first, after in pairwise(edges)]
        assert isinstance(self.reader, ArchiveReader)
        return _archive_shares(self.reader, expr, self.processes)

    def count(self, expr: Any) -> int:
        return sum(found.rows for found in self._all(self.shares(expr), lambda share: share.found(share.count(), b"")))

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        from confluo_tools.core.query.rollup_codec import dump, load

        if isinstance(self.reader, LogReader):
            from confluo_tools.multilog.views.aggregate_lookup import find_lookup

            if find_lookup(self.reader.log, expr.tree, make) is not None:  # only blocks at the edges are read
                whole, total = self.reader.fold(expr, columns, make)
                self.rows += self.reader.rows
                return whole, total

        def work(share: Share) -> Found:
            rollup, rows = make(), 0
            for block, picks in share.rows(columns):
                rollup.update(block, picks)
                rows += len(picks)
            return share.found(rows, dump(rollup))

        whole, total = make(), 0
        for found in self._all(self.shares(expr), work):
            part = make()
            load(part, found.state)
            whole.merge(part)
            total += found.rows
        return whole, total

    def _all(self, shares: Sequence[Share], work: Callable[[Share], Found]) -> Iterator[Found]:
        """What each share gives, in their order.  The first is done by this process, the others by forks of it."""
        out: list[Found] = []
        with _Forks() as forks:
            for share in shares[1:]:
                forks.start(share, work)
            for number, share in enumerate(shares):
                found = (forks.result(number - 1) if number else None) or work(share)
                out.append(found)
                yield found
        left_out = list(dict.fromkeys(one for found in out for one in found.left_out))
        if isinstance(self.reader, LogReader):
            self.rows += self.reader.version.kept
            self.reader.report(left_out, list(dict.fromkeys(one for found in out for one in found.unused)))
            return
        self.rows += sum(found.scanned for found in out)
        for path, what in left_out:
            self.warn_of(path, what)

    def warn_of(self, path: str, what: str) -> None:
        """Report a damaged part of an archive."""
        if self._warn is not None:
            self._warn(f"{path}: {what}")


class _Forks:
    """Processes that each do a share of the work; those that are left at the end are killed."""

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []  # process, descriptor of its pipe

    def __enter__(self) -> _Forks:
        return self

    def __exit__(self, *error: object) -> None:
        for process, pipe in self._running:
            os.close(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def start(self, share: Share, work: Callable[[Share], Found]) -> None:
        read, write = os.pipe()
        process = os.fork()
        if process:
            os.close(write)
            self._running.append((process, read))
            return
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _send(write, work(share))
        finally:
            os._exit(0)  # whatever happened: this process has nothing of its own to end

    def result(self, number: int) -> Found | None:
        """What process ``number`` sent; None if it failed: its share is still to be done."""
        with open(self._running[number][1], "rb", buffering=1 << 16, closefd=False) as stream:
            data = stream.read()
        return _received(data)


def _send(pipe: int, found: Found) -> None:
    head = json.dumps([found.rows, found.left_out, found.unused, found.scanned]).encode()
    data = memoryview(_HEAD.pack(len(head), len(found.state)) + head + found.state)
    while data:
        data = data[os.write(pipe, data) :]


def _received(data: bytes) -> Found | None:
    if len(data) < _HEAD.size:
        return None
    size, state = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + size + state:
        return None
    rows, left_out, unused, scanned = json.loads(data[_HEAD.size : _HEAD.size + size])
    problems = [[(path, what) for path, what in some] for some in (left_out, unused)]
    return Found(rows, data[_HEAD.size + size :], problems[0], problems[1], scanned)


def _edges(size: int, shares: int) -> list[int]:
    return sorted({size * i // shares for i in range(shares + 1)})


def _archive_shares(reader: ArchiveReader, expr: Any, processes: int) -> list[ArchiveShare]:
    lanes = by_lane(reader.places(tree_of(expr)))
    batches = [
        (lane, rows)
        for lane, parts in lanes.items()
        for rows in sorted({(p.name.first, p.name.end) for p in parts}, key=lambda rows: (rows[0], -rows[1]))
    ]
    out = []
    covered: dict[Any, int] = {}
    for first, after in pairwise(_edges(len(batches), processes)):
        share = ArchiveShare(reader, expr)
        mine = batches[first:after]
        for lane in dict.fromkeys(lane for lane, _ in mine):
            rows = {r for other, r in mine if other == lane}
            parts = [p for p in lanes[lane] if (p.name.first, p.name.end) in rows]
            share.lanes.append((parts, covered.get(lane, 0)))
            covered[lane] = max(covered.get(lane, 0), *(end for _, end in rows))
        out.append(share)
    return out
