"""A MultiLog and the archives that its older rows were moved to, as one input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.reader import Reader
from confluo_tools.store import archive
from confluo_tools.store.archive_reader import Place, Rows, Scan, batches, everything, find, knows, may_hold, tell
from confluo_tools.store.plan import merged
from confluo_tools.store.reader import LogReader

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.expr import leaves


class JoinedReader(LogReader):
    """A MultiLog and the rows that were moved from it to archives, in the order in which they stood before.

    The log gives the rows that it has; those before come from its archives, each once: those that it remembers
    (unless not ``remembered``; ``allowed``: whether one may be looked at), and those of ``folders`` that know it.
    A question for rows that were moved to an archive that is not there now warns of it.
    """

    def __init__(
        self,
        path: str,
        folders: Sequence[str] = (),
        remembered: bool = True,
        allowed: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._allowed, self._said = allowed, set[str]()
        if self.version.pinned is None:
            self.version = self.log.pin(self.version)
        uuid = self.log.uuid.hex()
        self.folders = [folder for folder in folders if knows(folder, uuid)]
        self.noted = archive.noted(self.log) if remembered else []
        self.scan: Scan | None = None
        if self.log.removed:  # since the snapshot that we are asked for; it is no loss if the archive has the rows
            self.log.removed[:] = [left for gone in self.log.removed for left in self._lost(*gone)]

    def _lost(self, lane: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        # The rows of start <= row < end that no archive has.
        folders = [*self.folders, *(f for entry in self.noted if (f := entry.path(self.log)) is not None)]
        uuid = self.log.uuid.hex()
        for first, after in sorted(batch for folder in folders for batch in batches(folder, uuid, lane)):
            if first > start:
                yield lane, start, min(first, end)
            start = max(start, after)
            if start >= end:
                return
        yield lane, start, end

    def _lanes(self, tree: leaves.Tree) -> dict[int, list[Place]]:
        schema = self.schema
        time = -1 if schema.time_field is None else schema.index(schema.time_field.name)
        uuid = self.log.uuid.hex()
        found: dict[int, list[Place]] = {}
        folders = list(self.folders)
        for entry in self.noted:
            if not may_hold(tree, time, entry.oldest, entry.newest):
                continue  # no need to know whether it is there
            folder = entry.path(self.log)
            if folder is not None and self._allowed is not None and not self._allowed(os.path.realpath(folder)):
                self._warned(f"{self.name}: older rows were moved to {folder}, which may not be read")
            elif folder is None:
                what = f"{self.name}: older rows were moved to {entry.absolute}, which is not there"
                self._warned(f"{what}; --no-archive does without them")
            elif not any(os.path.samefile(folder, f) for f in folders):
                folders.append(folder)
        for folder in folders:
            for place in find(folder, tree, time):
                if place.name.uuid == uuid and place.name.first < self._below(place.name.lane):
                    if self._allowed is not None and not self._allowed(os.path.realpath(place.path)):
                        self._warned(f"{place.path}: may not be read; its rows are left out")
                        continue
                    found.setdefault(place.name.lane, []).append(place)
        return found

    def _warned(self, what: str) -> None:
        if self._warn is not None and what not in self._said:
            self._said.add(what)
            self._warn(what)

    def _below(self, lane: int) -> int:
        # Rows from here on are the log's affair (those of the version; later ones are nobody's).
        firsts = self.version.firsts
        return firsts[lane] if lane < len(firsts) else 0

    def blocks(self) -> Iterator[Block]:
        for block, picks in self._joined(None, None, True):
            yield block.take(picks)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        yield from self._joined(expr, columns, by_time)
        self.rows += self.version.kept + (self.scan.rows if self.scan is not None else 0)

    def _joined(self, expr: Any, columns: Sequence[int] | None, by_time: bool) -> Rows:
        tree = everything(expr)
        older = self._lanes(tree)
        plan = self.plan(expr, columns)
        own = plan.lanes(older)
        scan = self.scan = Scan(self.schema, tree, plan.columns)
        streams = [self._lane(scan, older.get(lane, []), lane, own.get(lane)) for lane in sorted({*older, *own})]
        if by_time:
            yield from merged(self.schema, streams, plan.columns)
        else:
            for stream in streams:
                yield from stream
        self._tell(plan)
        tell(scan, self._warn)

    def _lane(self, scan: Scan, older: list[Place], lane: int, own: Rows | None) -> Rows:
        yield from scan.lane(older, self._below(lane))
        if own is not None:
            yield from own

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        if self._lanes(everything(expr)):
            return Reader.fold(self, expr, columns, make)
        return super().fold(expr, columns, make)  # as the log alone does it best

    def explain(self) -> dict[str, Any] | None:
        done = super().explain()
        return done if done is None or self.scan is None else done | {"archive": self.scan.explain()}

    def count(self, expr: Any) -> int:
        tree = everything(expr)
        found = super().count(expr)
        scan = self.scan = Scan(self.schema, tree, [])
        for lane, parts in self._lanes(tree).items():
            found += scan.count(parts, self._below(lane))
        self.rows += scan.rows
        tell(scan, self._warn)
        return found
