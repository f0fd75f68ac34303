"""Reader of a MultiLog together with the archives of its older rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.formats.merge import by_time as merged_by_time
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.archive import links
from confluo_tools.multilog.archive.folders import ArchiveFolder, archived_batches, find_parts, has_rows_of, may_hold
from confluo_tools.multilog.archive.open_ahead import PartFile
from confluo_tools.multilog.archive.parquet_parts import PartName
from confluo_tools.multilog.archive.reader import ArchiveScan, Rows, report_damage, tree_of
from confluo_tools.multilog.archive.storage import real_path
from confluo_tools.multilog.reader import LogReader
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import leaves


class LogWithArchiveReader(LogReader):
    """The rows of a MultiLog and of its archives, in their original order.

    Rows that the log still has are read from the log, older rows from the archives, each row once.  The archives are
    those linked in the log (unless ``linked`` is False; ``allowed(real path)``: whether one may be read), and those
    of ``folders`` that contain rows of this log.  Warns when a query needs rows of an archive that is missing.
    """

    def __init__(
        self,
        path: str,
        folders: Sequence[str] = (),
        linked: bool = True,
        allowed: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._allowed, self._warned_of = allowed, set[str]()
        if self.version.pinned is None:
            self.version = self.log.pin(self.version)
        uuid = self.log.uuid.hex()
        self.folders = [folder for folder in folders if has_rows_of(folder, uuid)]
        self.linked_archives = links.linked_archives(self.log) if linked else []
        self.scan: ArchiveScan | None = None
        if self.log.removed:  # removed since the snapshot; not lost if an archive has the rows
            self.log.removed[:] = [left for gone in self.log.removed for left in self._lost(*gone)]

    def _lost(self, lane: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        # The ranges of start <= row < end that no archive contains.
        folders = list(self.folders)
        for entry in self.linked_archives:
            with suppress(ConfluoError):  # reported when its rows are read
                folders += filter(None, [entry.path(self.log)])
        uuid = self.log.uuid.hex()
        for first, after in sorted(batch for folder in folders for batch in archived_batches(folder, uuid, lane)):
            if first > start:
                yield lane, start, min(first, end)
            start = max(start, after)
            if start >= end:
                return
        yield lane, start, end

    def archived(self, tree: leaves.Tree) -> dict[int, list[PartFile]]:
        """The parts of archives that may have rows for which ``tree`` holds, by lane: see `below`."""
        schema = self.schema
        time = -1 if schema.time_field is None else schema.index(schema.time_field.name)
        uuid = self.log.uuid.hex()
        found: dict[int, list[PartFile]] = {}
        folders = list(self.folders)
        for entry in self.linked_archives:
            if not may_hold(tree, time, entry.oldest, entry.newest):
                continue  # no row can match: do not look for the archive
            what = f"{self.name}: older rows were moved to"
            if is_url(entry.absolute) and not self._permits(entry.absolute):  # no request is made
                self._warn_once(f"{what} {entry.absolute}, which may not be read")
                continue
            try:
                folder = entry.path(self.log)
            except ConfluoError as e:
                self._warn_once(f"{what} {e.where}: {e.what}; use --no-archive to read without them")
                continue
            if folder is not None and not self._permits(folder):
                self._warn_once(f"{what} {folder}, which may not be read")
            elif folder is None:
                hint = "use --no-archive to read without them"
                self._warn_once(f"{what} {entry.absolute}, which does not exist; {hint}")
            elif real_path(folder) not in map(real_path, folders):
                folders.append(folder)
        seen = set[tuple[str, PartName]]()  # several folders may be of one archive
        for folder in folders:
            root = real_path(ArchiveFolder.of(folder).root)
            for place in find_parts(folder, tree, time):
                if place.name.uuid == uuid and place.name.first < self.below(place.name.lane):
                    if (root, place.name) in seen:
                        continue
                    seen.add((root, place.name))
                    if not self._permits(place.path):
                        self._warn_once(f"{place.path}: may not be read; its rows are left out")
                        continue
                    found.setdefault(place.name.lane, []).append(place)
        return found

    def _permits(self, path: str) -> bool:
        return self._allowed is None or self._allowed(real_path(path))

    def _warn_once(self, what: str) -> None:
        if self._warn is not None and what not in self._warned_of:
            self._warned_of.add(what)
            self._warn(what)

    def below(self, lane: int) -> int:
        """Rows from this one on are read from the log, earlier rows from archives."""
        firsts = self.version.firsts
        return firsts[lane] if lane < len(firsts) else 0

    def blocks(self) -> Iterator[Block]:
        for block, picks in self._combined(None, None, True):
            yield block.take(picks)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        yield from self._combined(expr, columns, by_time)
        self.rows += self.version.kept + (self.scan.rows if self.scan is not None else 0)

    def _combined(self, expr: Any, columns: Sequence[int] | None, by_time: bool) -> Rows:
        tree = tree_of(expr)
        older = self.archived(tree)
        plan = self.plan(expr, columns)
        if by_time and self.schema.time_field is not None:
            own = plan.streams()
            scan = self.scan = ArchiveScan(self.schema, tree, plan.columns if own else columns)
            streams = [s for lane, parts in older.items() for s in scan.streams(parts, lane, self.below(lane))]
            yield from merged_by_time(self.schema, [*streams, *own], plan.columns) if own else scan.merged(streams)
        else:
            scan = self.scan = ArchiveScan(self.schema, tree, plan.columns)
            rows = plan.lanes()
            for lane in sorted({*older, *rows}):
                yield from scan.lane(older.get(lane, []), self.below(lane))
                yield from rows.get(lane, ())
        self.report(plan.left_out, plan.unused)
        report_damage(scan, self._warn)

    def stored_rollups(self, expr: Any, make: Callable[[], Rollup]) -> bool:
        return not self.archived(tree_of(expr)) and super().stored_rollups(expr, make)

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        if self.archived(tree_of(expr)):
            return Reader.fold(self, expr, columns, make)
        return super().fold(expr, columns, make)  # no archived rows: use the aggregates of the log

    def explain(self) -> dict[str, Any] | None:
        done = super().explain()
        return done if done is None or self.scan is None else done | {"archive": self.scan.explain()}

    def count(self, expr: Any) -> int:
        tree = tree_of(expr)
        found = super().count(expr)
        scan = self.scan = ArchiveScan(self.schema, tree, [])
        for lane, parts in self.archived(tree).items():
            found += scan.count(parts, self.below(lane))
        self.rows += scan.rows
        report_damage(scan, self._warn)
        return found
