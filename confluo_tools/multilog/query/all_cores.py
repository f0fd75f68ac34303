"""Counts and aggregates of a log or an archive on several cores: threads that each take shares of the rows.

A share is a run of blocks of a log, or of batches of an archive, in the order of the rows; each has its own partial
state, and states are merged in that order.  There are always `SHARES` of them, so an answer does not depend on the
number of threads.  The kernels run without the interpreter lock; a damaged part is left out and reported as on one
core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from confluo_tools.errors import UsageError
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.multilog.archive.reader import ArchiveReader, ArchiveScan, by_lane, report_damage, tree_of
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.version import Version

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.archive.reader import PartFile

SHARES = 16

Answer = TypeVar("Answer")


class Share(Protocol):
    """A share of the rows of an input, for one thread."""

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        """The selected rows of each block; ``columns``: numbers of those that are read."""

    def count(self) -> int:
        """The number of selected rows."""


class LogShare:
    """Blocks ``first`` to ``after`` (not included) of a version, counted through the ``parts``."""

    def __init__(self, reader: LogReader, expr: Any, parts: Sequence[SegmentPart], first: int, after: int) -> None:
        self._reader, self._expr = reader, expr
        mine: list[SegmentPart] = []
        self._blocks: dict[tuple[int, int], range] = {}  # (lane, first row) of a segment -> its blocks
        at = 0
        for part in parts:
            inside = range(max(first - at, 0), min(after - at, part.blocks))
            if inside:
                mine.append(part)
                self._blocks[part.lane, part.base] = inside
            at += part.blocks
        self._version = Version(reader.version.tails, reader.version.firsts)
        self._version.pinned = reader.log, mine
        self.plan: QueryPlan | None = None

    def _planned(self, columns: Sequence[int] | None) -> QueryPlan:
        def skip(part: SegmentPart, number: int) -> bool:
            return number not in self._blocks[part.lane, part.base]

        self.plan = QueryPlan(self._reader.log, self._version, self._expr, columns=columns, skip=skip)
        return self.plan

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        return self._planned(columns)

    def count(self) -> int:
        return self._planned([]).count()


class ArchiveShare:
    """Batches of one lane of an archive; ``covered``: rows before this number are of an earlier share."""

    def __init__(self, reader: ArchiveReader, expr: Any, parts: Sequence[PartFile], covered: int) -> None:
        self._reader, self._tree, self._parts, self._covered = reader, tree_of(expr), parts, covered
        self.scan: ArchiveScan | None = None

    def _scanned(self, columns: Sequence[int] | None) -> ArchiveScan:
        self.scan = ArchiveScan(self._reader.schema, self._tree, columns)
        return self.scan

    def rows(self, columns: Sequence[int] | None) -> Iterable[tuple[Block, Picks]]:
        return self._scanned(columns).lane(self._parts, covered=self._covered)

    def count(self) -> int:
        return self._scanned([]).count(self._parts, covered=self._covered)


class AllCores(Wrapper):
    """``reader`` with counts and aggregates by ``threads`` threads (None: one for each core).

    Rows come as on one core: their order is one stream.  Raises UsageError for an input that has no shares.
    """

    def __init__(self, reader: Reader, threads: int | None = None) -> None:
        super().__init__(reader, reader._warn)
        self.schema, self.by_time, self.chosen = reader.schema, reader.by_time, reader.chosen
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        if type(reader) not in (LogReader, ArchiveReader):
            hint = "a MultiLog without archives, or an archive, of this host"
            raise UsageError(f"{reader.name} is read by one core", where="--engine local", hint=hint)
        self.threads = threads or len(os.sched_getaffinity(0))

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        before = self.reader.rows
        yield from self.reader.select(expr, columns, by_time=by_time)
        self.rows += self.reader.rows - before

    def blocks(self) -> Iterator[Block]:
        return self.reader.blocks()

    def shares(self, expr: Any) -> list[Share]:
        """The shares of the input, in the order of its rows."""
        if isinstance(self.reader, LogReader):
            parts = self.reader.log.segments(self.reader.version)
            edges = _edges(sum(part.blocks for part in parts))
            return [LogShare(self.reader, expr, parts, a, b) for a, b in pairwise(edges)]
        assert isinstance(self.reader, ArchiveReader)
        return list(_archive_shares(self.reader, expr))

    def count(self, expr: Any) -> int:
        return sum(self._map(self.shares(expr), lambda share: share.count()))

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        if isinstance(self.reader, LogReader):
            from confluo_tools.multilog.views.aggregate_lookup import find_lookup

            if find_lookup(self.reader.log, expr.tree, make) is not None:  # only blocks at the edges are read
                found = self.reader.fold(expr, columns, make)
                self.rows += self.reader.rows
                return found

        def one(share: Share) -> tuple[Rollup, int]:
            rollup, rows = make(), 0
            for block, picks in share.rows(columns):
                rollup.update(block, picks)
                rows += len(picks)
            return rollup, rows

        whole, total = make(), 0
        for rollup, rows in self._map(self.shares(expr), one):
            whole.merge(rollup)
            total += rows
        return whole, total

    def _map(self, shares: Sequence[Share], work: Callable[[Share], Answer]) -> Iterator[Answer]:
        before = self.reader.rows
        pool = ThreadPoolExecutor(self.threads)
        try:
            yield from pool.map(work, shares)
        finally:
            pool.shutdown(cancel_futures=True)
        if isinstance(self.reader, LogReader):
            self.reader.rows += self.reader.version.kept
            self.reader.report(*[share.plan for share in shares if isinstance(share, LogShare) and share.plan])
        for share in shares:
            if isinstance(share, ArchiveShare) and share.scan is not None and isinstance(self.reader, ArchiveReader):
                self.reader.rows += share.scan.rows
                report_damage(share.scan, self.reader.warn_of_part)
        self.rows += self.reader.rows - before


def _edges(blocks: int) -> list[int]:
    return sorted({blocks * i // SHARES for i in range(SHARES + 1)})


def _archive_shares(reader: ArchiveReader, expr: Any) -> Iterator[ArchiveShare]:
    lanes = by_lane(reader.places(tree_of(expr)))
    size = -(-sum(len({(p.name.first, p.name.end) for p in parts}) for parts in lanes.values()) // SHARES)
    for parts in lanes.values():
        batches = sorted({(p.name.first, p.name.end) for p in parts}, key=lambda rows: (rows[0], -rows[1]))
        covered = 0
        for start in range(0, len(batches), size):
            mine = set(batches[start : start + size])
            yield ArchiveShare(reader, expr, [p for p in parts if (p.name.first, p.name.end) in mine], covered)
            covered = max(covered, *(end for _, end in mine))
