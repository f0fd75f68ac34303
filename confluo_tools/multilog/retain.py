"""Retention: remove the oldest segments of a log by age or by total size.

    keeper = Keeper(log, *parse_keep("1h,10G"))
    keeper.step()                               call regularly, for example every second

Retention removes whole sealed segments, oldest first, together with their view files.  A segment is removed by one
store to `first` in the lane's line of the control page; its files are unlinked afterwards.  After a crash in between,
the next step unlinks the remaining files, which readers ignore.  Readers that have opened a segment keep it (the kernel
keeps mapped files).  `Log.version(pin=True)` opens all segments of a version at once; other readers find in
`Log.removed` the rows that were removed after they took their version.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from confluo_tools import units
from confluo_tools.core.multilog.control import fault
from confluo_tools.errors import BusyError, StoreError, UsageError
from confluo_tools.multilog import lane_claim, removal_record, topic_places
from confluo_tools.multilog.locks import lock, open_lock
from confluo_tools.multilog.ownership import as_owner

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log

LOCK = removal_record.LOCK
VIEWS = "views"
_OF_SEGMENT = re.compile(r"seg-(\d{16,20})\.")
WALK_SHARE = 50  # pause between two walks through the folder, in walk durations: at most 2 % of a core


def parse_keep(text: str) -> tuple[int | None, int | None]:
    """Parse '1h,10G' into (nanoseconds, bytes): a time, a size, or both in any order; None for a missing one.

    Raises UsageError, also for a number without a unit.
    """
    keep_time = keep_size = None
    for word in [w.strip() for w in text.split(",") if w.strip()]:
        if word.isdigit():
            raise UsageError(f"'{word}' has no unit", hint="write a time, a size or both: 1h, 10G, 512B")
        span = units.try_duration(word)
        if span is not None:
            if keep_time is not None:
                raise UsageError(f"'{text}' has two times", hint="write e.g. 1h,10G")
            if span <= 0:
                raise UsageError(f"'{word}' is not a retention time", hint="write e.g. 1h,10G")
            keep_time = span
            continue
        if keep_size is not None:
            raise UsageError(f"'{text}' has two sizes", hint="write e.g. 1h,10G")
        try:
            keep_size = units.size(word)
        except UsageError:
            hint = "write a time, a size or both: 1h, 10G, 1h,10G"
            raise UsageError(f"'{word}' is neither a time nor a size", hint=hint) from None
    if keep_time is None and keep_size is None:
        raise UsageError("neither a time nor a size is given", hint="write a time, a size or both: 1h, 10G, 1h,10G")
    return keep_time, keep_size


@contextmanager
def removal_lock(log: Log, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock for removing segments of ``log``.  BusyError when it is still taken after ``wait`` seconds."""
    if not log.control.writable:
        raise StoreError("cannot remove segments", where=log.path, hint="you have no write permission")
    fd = open_lock(log.path, LOCK)
    try:
        lock(fd, wait, BusyError("another process is removing segments", where=log.path, hint="try again later"))
        yield
    finally:
        os.close(fd)


def remove(log: Log, firsts: dict[int, int]) -> tuple[int, int]:
    """Remove the segments before row ``firsts[lane]`` of each lane.  Returns (segments, bytes) removed.

    The caller holds `removal_lock`; the rows are whole sealed segments.  Raises OSError.
    """
    with suppress(OSError, StoreError):  # a full disk: removing makes room
        topic_places.count_removed(log, _segments_below(log, firsts))
    with suppress(OSError):
        removal_record.record(log.path, firsts)
    for lane, first in firsts.items():
        log.control.set_first(lane, first)
    fault("retain-first")
    log.control.flush()  # before the first unlink: a page restored after a power failure must not list removed files
    fault("retain-flushed")
    segments = size = 0
    for lane, first in firsts.items():
        n, freed = sweep(log, lane, first)
        segments, size = segments + n, size + freed
    return segments, size


def _segments_below(log: Log, firsts: dict[int, int]) -> Iterator[tuple[str, int, int, int]]:
    catalog = SegmentCatalog(log)
    for lane, first in firsts.items():
        for segment in catalog.lane(lane):
            if segment.base < first:
                yield segment.path, lane, segment.base, segment.end - segment.base


def sweep(log: Log, lane: int, removed: int = 0) -> tuple[int, int]:
    """Unlink the files of removed segments of ``lane``, view files included: (segments, bytes).  Raises OSError.

    ``removed``: the caller removed the rows below this one.  The line of the lane alone is not believed; and
    `log.first` would remember that, where a full disk had no room for the record.
    """
    first = removed or log.first(lane)
    with as_owner(log.path):
        return _sweep(log, lane, first)


def _sweep(log: Log, lane: int, first: int) -> tuple[int, int]:
    segments = size = 0
    for base, path in lane_claim.list_segments(lane_claim.lane_folder(log.path, lane)):
        if base < first:
            size += _unlink(path)
            segments += 1
            fault("retain-unlinked")
    folder = os.path.join(log.path, VIEWS)
    for view in list_folder(folder):
        of_lane = os.path.join(folder, view, f"lane-{lane:03d}")
        for name in list_folder(of_lane):
            match = _OF_SEGMENT.match(name)
            if match and int(match[1]) < first:
                size += _unlink(os.path.join(of_lane, name))
                fault("retain-view")
    return segments, size


def _unlink(path: str) -> int:
    try:
        size = os.lstat(path).st_blocks * 512
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return size


def list_folder(folder: str) -> list[str]:
    """Names in ``folder``; [] when it does not exist."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def disk_bytes(path: str) -> int:
    """Disk space of a file in bytes, 0 when it cannot be read."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def disk_use(path: str) -> int:
    """Disk space in bytes of all files in the folder ``path``, without holes."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += disk_use(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total


class SealedSegment:
    """A sealed segment: rows ``base`` to ``end`` - 1 of ``lane``."""

    __slots__ = ("base", "end", "lane", "path")

    def __init__(self, lane: int, base: int, end: int, path: str) -> None:
        self.lane, self.base, self.end, self.path = lane, base, end, path


class SegmentCatalog:
    """The sealed segments of an open log, cached per lane.  An unchanged lane costs two loads from the control page."""

    def __init__(self, log: Log) -> None:
        self.log = log
        schema = log.schema
        self.time = -1 if schema.time_field is None else schema.index(schema.time_field.name)
        self._lanes: dict[int, tuple[int, int, list[SealedSegment]]] = {}
        self._newest: dict[tuple[int, int], int | None] = {}

    def lane(self, lane: int) -> list[SealedSegment]:
        """The sealed segments of ``lane`` that are kept, oldest first."""
        control = self.log.control
        first, sealed = self.log.first(lane), control.sealed(lane)
        known = self._lanes.get(lane)
        if known is not None and known[:2] == (first, sealed):
            return known[2]
        entries = lane_claim.list_segments(lane_claim.lane_folder(self.log.path, lane), first)
        found = []
        for i, (base, path) in enumerate(entries):
            after = entries[i + 1][0] if i + 1 < len(entries) else sealed
            end = min(after, base + self.log.segment_rows)
            if base < end <= sealed:
                found.append(SealedSegment(lane, base, end, path))
        self._lanes[lane] = (first, sealed, found)
        self._newest = {key: t for key, t in self._newest.items() if key[0] != lane or key[1] >= first}
        return found

    def newest(self, segment: SealedSegment) -> int | None:
        """The latest time of the rows of a segment (ns), from its zone maps; None when unknown."""
        key = segment.lane, segment.base
        if key not in self._newest:
            self._newest[key] = self._zones(segment)
        return self._newest[key]

    def _zones(self, segment: SealedSegment) -> int | None:
        damage: list[tuple[str, int | None, str]] = []
        rows = segment.end - segment.base
        try:
            opened = self.log.open_segment(segment.path, segment.lane, segment.base, rows, damage)
        except (ValueError, OSError):
            return None
        rows = opened.sealed or rows
        newest = None
        for number in range(-(-rows // opened.capacity)):
            block = opened.block(number, min(rows - number * opened.capacity, opened.capacity))
            zone = block.zones(self.time) if block is not None else None
            if zone is not None:
                newest = max(zone[1] - (1 << 63), -(1 << 63) if newest is None else newest)
        opened.forget()  # its blocks refer to it: it would stay mapped, and keep its disk space when it is removed
        return newest


class Keeper:
    """Removes the oldest segments of ``log``.

    First those in which every row is older than ``time_ns`` by the clock of this machine (``from_newest``: older than
    the newest sealed row by that much, when records of the past are read), then as many as needed to
    reduce the disk space of the log, views included, to ``size`` bytes.  The segment that a writer fills is never
    removed.  A step without work takes microseconds; measuring the disk space takes at most 2 % of the time.  Only
    one thread at a time may call `step`; it may block on the disk.  Raises UsageError (a time is given, but the
    records have no time field), StoreError.
    """

    def __init__(
        self,
        log: Log,
        time_ns: int | None = None,
        size: int | None = None,
        *,
        now: Callable[[], int] = time.time_ns,
        from_newest: bool = False,
    ) -> None:
        self.log, self.time_ns, self.size, self._now, self._from_newest = log, time_ns, size, now, from_newest
        self.catalog = SegmentCatalog(log)
        self.bytes = 0  # disk space freed so far
        if time_ns is not None and self.catalog.time < 0:
            what = f"records of kind '{log.schema.kind}' have no time field; retention by time is not possible"
            raise UsageError(what, where=log.path, hint="give a size only, e.g. 10G")
        if not log.control.writable:
            raise StoreError("cannot remove segments", where=log.path, hint="you have no write permission")
        self._swept = False
        self._used = 0
        self._due = 0.0  # monotonic time of the next disk space measurement
        self._least = 0  # segments that the limit of the size leaves each lane

    def step(self, wait: float = 0.0) -> int:
        """Remove the segments that exceed the limits; returns their number.  0 when another process holds the lock
        (with ``wait`` > 0: BusyError after ``wait`` seconds)."""
        try:
            if not self._swept or self._has_work():
                with removal_lock(self.log, wait):
                    return self._step()
        except BusyError:
            if wait:
                raise
        except OSError as e:
            if e.errno == errno.ENOENT and not os.path.exists(self.log.path):
                raise StoreError("does not exist any more", where=self.log.path) from None
            raise self.log.write_error(e) from None
        return 0

    def last_step(self) -> int:
        """The step after the writers have ended: it measures the disk space again, and leaves each lane a segment.

        The newest segment of a lane was being filled until now, so it is as safe as it was then.
        """
        self._due, self._least = 0.0, 1
        try:
            return self.step()
        finally:
            self._least = 0

    def planned_removals(self) -> list[SealedSegment]:
        """The segments that `step` would remove now."""
        gone: list[SealedSegment] = []
        kept = {lane: list(self.catalog.lane(lane)) for lane in self._lanes()}
        if self.time_ns is not None:
            before = self._today() - self.time_ns
            for lane, segments in kept.items():
                first = self._expired(lane, before)
                while segments and segments[0].base < first:
                    gone.append(segments.pop(0))
        used = disk_use(self.log.path) - sum(disk_bytes(s.path) for s in gone)
        while self.size is not None and used > self.size and any(kept.values()):
            oldest = min((s[0] for s in kept.values() if s), key=self._age)
            used -= disk_bytes(oldest.path)
            gone.append(kept[oldest.lane].pop(0))
        return gone

    def _today(self) -> int:
        # The time from which ages count.
        now = self._now()
        if not self._from_newest:
            return now
        newest = [self.catalog.newest(segment) for lane in self._lanes() for segment in self.catalog.lane(lane)]
        return min(now, max((t for t in newest if t is not None), default=now))

    def _lanes(self) -> range:
        return range(self.log.control.claimed)

    def _has_work(self) -> bool:
        if self.time_ns is not None:
            before = self._today() - self.time_ns
            if any(self._expired(lane, before) for lane in self._lanes()):
                return True
        return self.size is not None and self._used_bytes() > self.size and any(map(self.catalog.lane, self._lanes()))

    def _step(self) -> int:
        removed = 0
        if not self._swept:
            for lane in self._lanes():
                removed += sweep(self.log, lane)[0]  # files left by a killed process
            self._swept = True
        if self.time_ns is not None:
            before = self._today() - self.time_ns
            firsts = {lane: first for lane in self._lanes() if (first := self._expired(lane, before))}
            removed += self._remove(firsts)
        if self.size is not None:
            while self._used_bytes() > self.size:
                oldest = self._oldest()
                if oldest is None:
                    break
                gone = self._remove({oldest.lane: oldest.end})
                if not gone:
                    break  # another process was first, or the file cannot be removed: the next step looks again
                removed += gone
                if self._used <= self.size:
                    self._due = 0.0  # estimated: measure again, the file system may free blocks later
        return removed

    def _remove(self, firsts: dict[int, int]) -> int:
        if not firsts:
            return 0
        segments, size = remove(self.log, firsts)
        self._used -= size
        self.bytes += size
        return segments

    def _expired(self, lane: int, before: int) -> int:
        # The row after the last segment to remove, 0 for none.  A segment of unknown time is removed together with
        # the next segment of known time.
        first = 0
        for segment in self.catalog.lane(lane):
            newest = self.catalog.newest(segment)
            if newest is not None:
                if newest >= before:
                    break
                first = segment.end
        return first

    def _oldest(self) -> SealedSegment | None:
        lanes = map(self.catalog.lane, self._lanes())
        heads = [segments[0] for segments in lanes if len(segments) > self._least]
        return min(heads, key=self._age, default=None)

    def _age(self, segment: SealedSegment) -> tuple[int, int]:
        newest = self.catalog.newest(segment) if self.catalog.time >= 0 else None
        if newest is None:
            try:
                newest = os.stat(segment.path).st_mtime_ns
            except OSError:
                newest = 0
        return newest, segment.lane

    def _used_bytes(self) -> int:
        begin = time.monotonic()
        if begin >= self._due:
            self._used = disk_use(self.log.path)
            end = time.monotonic()
            self._due = end + WALK_SHARE * (end - begin)
        return self._used
