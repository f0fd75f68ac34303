"""Retention: the oldest segments of a log go when they are too old, or when the log takes too much room.

    keeper = Keeper(log, *parse_keep("1h,10G"))
    keeper.step()                               now and then, every second if you like

Whole sealed segments go, oldest first, with what views hold of them.  One store into the lane's line, `first`, says
that they are gone; their files are unlinked after that, so a death in between leaves files that nobody reads and that
the next step unlinks.  Readers that have opened a segment go on with it (the kernel keeps what is mapped), and
`Log.version(pin=True)` opens all of a version before the first row is read; others learn from `Log.removed` how many
rows went between their version and their reading.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluo_tools import units
from confluo_tools.core.control import fault
from confluo_tools.errors import BusyError, StoreError, UsageError
from confluo_tools.store import recover
from confluo_tools.store.locks import lock
from confluo_tools.store.owner import give

if TYPE_CHECKING:
    from confluo_tools.store.log import Log

LOCK = "retain.lock"
VIEWS = "views"
_OF_SEGMENT = re.compile(r"seg-(\d{16,20})\.")
WALK_SHARE = 50  # a walk through the folder is repeated after so many times what it took: 2 % of a core at most


def parse_keep(text: str) -> tuple[int | None, int | None]:
    """'1h,10G' -> (nanoseconds, bytes): a time, a size, or both in any order; None for what is missing.

    Raises UsageError.
    """
    keep_time = keep_size = None
    for word in [w.strip() for w in text.split(",") if w.strip()]:
        span = units.try_duration(word)
        if span is not None and word != "0":
            if keep_time is not None:
                raise UsageError(f"'{text}' has two times", hint="write e.g. 1h,10G")
            if span <= 0:
                raise UsageError(f"'{word}' is not a time to keep rows for", hint="write e.g. 1h,10G")
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
        raise UsageError("nothing says what to keep", hint="write a time, a size or both: 1h, 10G, 1h,10G")
    return keep_time, keep_size


@contextmanager
def removing(log: Log, wait: float = 0.0) -> Iterator[None]:
    """Be the one who removes segments of ``log``.  BusyError when somebody else is, and still is after ``wait`` s."""
    if not log.control.writable:
        raise StoreError("nothing can be removed", where=log.path, hint="you may only read it")
    fd = os.open(os.path.join(log.path, LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    give(log.path, os.path.join(log.path, LOCK))
    try:
        lock(fd, wait, BusyError("somebody else is removing segments", where=log.path, hint="try again later"))
        yield
    finally:
        os.close(fd)


def remove(log: Log, firsts: dict[int, int]) -> tuple[int, int]:
    """Remove the segments below row ``firsts[lane]`` of each lane: (segments, bytes) that went.

    The caller is `removing`; the rows are whole sealed segments.  Raises OSError.
    """
    for lane, first in firsts.items():
        log.control.set_first(lane, first)
    fault("retain-first")
    log.control.flush()  # before a name goes: after a loss of power nothing is missing that should be there
    fault("retain-flushed")
    segments = size = 0
    for lane in firsts:
        n, freed = sweep(log, lane)
        segments, size = segments + n, size + freed
    return segments, size


def sweep(log: Log, lane: int) -> tuple[int, int]:
    """Unlink what is left of removed segments of ``lane``, views included: (segments, bytes).  Raises OSError."""
    first = log.control.first(lane)
    segments = size = 0
    for base, path in recover.list_segments(recover.lane_folder(log.path, lane)):
        if base < first:
            size += _unlink(path)
            segments += 1
            fault("retain-unlinked")
    folder = os.path.join(log.path, VIEWS)
    for view in _names(folder):
        of_lane = os.path.join(folder, view, f"lane-{lane:03d}")
        for name in _names(of_lane):
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


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _disk(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def disk_use(path: str) -> int:
    """Bytes on the disk of everything in the folder ``path``; holes do not count."""
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


class Sealed:
    """A sealed segment: rows ``base`` to ``end`` - 1 of ``lane``."""

    __slots__ = ("base", "end", "lane", "path")

    def __init__(self, lane: int, base: int, end: int, path: str) -> None:
        self.lane, self.base, self.end, self.path = lane, base, end, path


class Catalog:
    """The sealed segments of an open log, lane by lane; looking again costs two loads a lane when nothing changed."""

    def __init__(self, log: Log) -> None:
        self.log = log
        schema = log.schema
        self.time = -1 if schema.time_field is None else schema.index(schema.time_field.name)
        self._lanes: dict[int, tuple[int, int, list[Sealed]]] = {}
        self._newest: dict[tuple[int, int], int | None] = {}

    def lane(self, lane: int) -> list[Sealed]:
        """The sealed segments of ``lane`` that are kept, oldest first."""
        control = self.log.control
        first, sealed = control.first(lane), control.sealed(lane)
        known = self._lanes.get(lane)
        if known is not None and known[:2] == (first, sealed):
            return known[2]
        entries = recover.list_segments(recover.lane_folder(self.log.path, lane), first)
        found = []
        for i, (base, path) in enumerate(entries):
            after = entries[i + 1][0] if i + 1 < len(entries) else sealed
            end = min(after, base + self.log.segment_rows)
            if base < end <= sealed:
                found.append(Sealed(lane, base, end, path))
        self._lanes[lane] = (first, sealed, found)
        self._newest = {key: t for key, t in self._newest.items() if key[0] != lane or key[1] >= first}
        return found

    def newest(self, segment: Sealed) -> int | None:
        """The latest time of the rows of a segment (ns), by its zone maps; None when nothing there can tell."""
        key = segment.lane, segment.base
        if key not in self._newest:
            self._newest[key] = self._zones(segment)
        return self._newest[key]

    def _zones(self, segment: Sealed) -> int | None:
        damage: list[tuple[str, int | None, str]] = []
        rows = segment.end - segment.base
        try:
            opened = self.log._open_segment(segment.path, segment.lane, segment.base, rows, damage)
        except (ValueError, OSError):
            return None
        rows = opened.sealed or rows
        newest = None
        for number in range(-(-rows // opened.capacity)):
            block = opened.block(number, min(rows - number * opened.capacity, opened.capacity))
            zone = block.zones(self.time) if block is not None else None
            if zone is not None:
                newest = max(zone[1] - (1 << 63), -(1 << 63) if newest is None else newest)
        return newest


class Keeper:
    """Removes the oldest segments of ``log``: those of which every row is more than ``time_ns`` old by this machine's
    clock, and then as many as it takes to bring the disk space of the log, views included, down to ``size`` bytes.

    The segment that a writer fills is never removed.  A step costs microseconds when nothing is to be done; the disk
    space is looked up as often as that takes at most 2 % of the time.  One thread at a time may call `step`, and not
    the one that must not wait for a disk.  Raises UsageError (a time, but rows have none), StoreError.
    """

    def __init__(
        self, log: Log, time_ns: int | None = None, size: int | None = None, *, now: Callable[[], int] = time.time_ns
    ) -> None:
        self.log, self.time_ns, self.size, self._now = log, time_ns, size, now
        self.catalog = Catalog(log)
        self.bytes = 0  # disk space given back so far
        if time_ns is not None and self.catalog.time < 0:
            what = f"records of kind '{log.schema.kind}' have no time to keep them by"
            raise UsageError(what, where=log.path, hint="give a size only, e.g. 10G")
        if not log.control.writable:
            raise StoreError("nothing can be removed", where=log.path, hint="you may only read it")
        self._swept = False
        self._used = 0
        self._due = 0.0  # when to look at the disk again

    def step(self, wait: float = 0.0) -> int:
        """Remove what is too much now: how many segments.  0 also when somebody else is at it (after ``wait`` s)."""
        try:
            if not self._swept or self._anything():
                with removing(self.log, wait):
                    return self._step()
        except BusyError:
            if wait:
                raise
        except OSError as e:
            if e.errno == errno.ENOENT and not os.path.exists(self.log.path):
                raise StoreError("is gone", where=self.log.path) from None
            raise self.log._trouble(e) from None
        return 0

    def would(self) -> list[Sealed]:
        """The segments that `step` would remove now."""
        gone: list[Sealed] = []
        kept = {lane: list(self.catalog.lane(lane)) for lane in self._lanes()}
        if self.time_ns is not None:
            before = self._now() - self.time_ns
            for lane, segments in kept.items():
                first = self._old(lane, before)
                while segments and segments[0].base < first:
                    gone.append(segments.pop(0))
        used = disk_use(self.log.path) - sum(_disk(s.path) for s in gone)
        while self.size is not None and used > self.size and any(kept.values()):
            oldest = min((s[0] for s in kept.values() if s), key=self._age)
            used -= _disk(oldest.path)
            gone.append(kept[oldest.lane].pop(0))
        return gone

    def _lanes(self) -> range:
        return range(self.log.control.claimed)

    def _anything(self) -> bool:
        if self.time_ns is not None:
            before = self._now() - self.time_ns
            if any(self._old(lane, before) for lane in self._lanes()):
                return True
        return self.size is not None and self._look() > self.size and any(map(self.catalog.lane, self._lanes()))

    def _step(self) -> int:
        removed = 0
        if not self._swept:
            for lane in self._lanes():
                removed += sweep(self.log, lane)[0]  # what a keeper that was killed left
            self._swept = True
        if self.time_ns is not None:
            before = self._now() - self.time_ns
            firsts = {lane: first for lane in self._lanes() if (first := self._old(lane, before))}
            removed += self._remove(firsts)
        if self.size is not None:
            while self._look() > self.size:
                oldest = self._oldest()
                if oldest is None:
                    break
                removed += self._remove({oldest.lane: oldest.end})
                if self._used <= self.size:
                    self._due = 0.0  # by our count: look again, blocks may come after the bytes
        return removed

    def _remove(self, firsts: dict[int, int]) -> int:
        if not firsts:
            return 0
        segments, size = remove(self.log, firsts)
        self._used -= size
        self.bytes += size
        return segments

    def _old(self, lane: int, before: int) -> int:
        # The row after the last segment that goes, 0 when none does.  One that cannot tell its time goes with those
        # after it.
        first = 0
        for segment in self.catalog.lane(lane):
            newest = self.catalog.newest(segment)
            if newest is not None:
                if newest >= before:
                    break
                first = segment.end
        return first

    def _oldest(self) -> Sealed | None:
        heads = [segments[0] for lane in self._lanes() if (segments := self.catalog.lane(lane))]
        return min(heads, key=self._age, default=None)

    def _age(self, segment: Sealed) -> tuple[int, int]:
        newest = self.catalog.newest(segment) if self.catalog.time >= 0 else None
        if newest is None:
            try:
                newest = os.stat(segment.path).st_mtime_ns
            except OSError:
                newest = 0
        return newest, segment.lane

    def _look(self) -> int:
        begin = time.monotonic()
        if begin >= self._due:
            self._used = disk_use(self.log.path)
            end = time.monotonic()
            self._due = end + WALK_SHARE * (end - begin)
        return self._used
