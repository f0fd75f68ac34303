"""An open MultiLog: versions, segments, blocks, writers."""

from __future__ import annotations

import errno
import os
from _thread import RLock
from collections.abc import Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog import column_codec
from confluo_tools.core.multilog.control import Control
from confluo_tools.core.multilog.lane import LaneWriter
from confluo_tools.core.multilog.seal import find_seal
from confluo_tools.core.multilog.segment import Segment, SegmentBlock, SegmentPart, SegmentShape
from confluo_tools.errors import ConfluoError, DiskFullError, SchemaError, StoreError
from confluo_tools.formats import arrow_meta, zstd_buffer
from confluo_tools.multilog import create as _create
from confluo_tools.multilog import lane_claim, removal_record
from confluo_tools.multilog.ownership import as_owner, foreign_owner
from confluo_tools.multilog.version import Version
from confluo_tools.schema import Schema

BLOCK_ROWS = 65536
column_codec.use_zstd(zstd_buffer.compress, zstd_buffer.decompress_into)


@lru_cache(maxsize=64)
def _read_schema(message: bytes, trusted: bool = False) -> Schema:
    # `trusted`: the message is covered by a checksum of the log, so the Arrow fields are not compared with the schema.
    # Raises ValueError, the only exception that the compiled core handles.
    try:
        parsed = arrow_meta.parse_message(message, fields=not trusted)
        schema = arrow_meta.schema_from_metadata(parsed.metadata)
    except ConfluoError as e:
        raise ValueError(e.what) from None
    if schema is None or not (trusted or arrow_meta.matches(parsed, schema)):
        raise ValueError("its Arrow schema is not that of a MultiLog")
    return schema


class _ShapeCache(dict[bytes, SegmentShape]):
    """Header bytes -> Shape, for the segments that were written before the log gained columns."""

    def __init__(self, main: SegmentShape, schema: Schema) -> None:
        super().__init__({main.header: main})
        self.main, self.schema = main, schema

    def __missing__(self, header: bytes) -> SegmentShape:
        schema = _read_schema(header[8:])
        shape = _create.shape(schema, header, self.main.uuid, self.main.segment_blocks, self.schema)
        self[header] = shape
        return shape


class Log:
    """An open MultiLog.

    Readers append to ``damage`` when they find a damaged part: (path, block number or None, reason), and to
    ``removed`` when retention has removed rows of their version: (lane, first row, row after the last).
    """

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.path = os.fspath(path)
        self.damage: list[tuple[str, int | None, str]] = []
        self.removed: list[tuple[int, int, int]] = []
        try:
            self.control = Control(os.path.join(self.path, _create.CONTROL), readonly)
            self.schema = _read_schema(self.control.schema, trusted=True)
        except (FileNotFoundError, NotADirectoryError):
            from confluo_tools.formats.detect import is_archive
            from confluo_tools.objects.address import refuse_url

            refuse_url(self.path, "a MultiLog is a folder of this host; archives can be in stores, and are only read")
            if is_archive(self.path):
                hint = "name the log; only confluo-archive changes an archive"
                raise StoreError("is an archive, not a MultiLog", where=self.path, hint=hint) from None
            there = os.path.exists(self.path)
            what = "is not a MultiLog (it has no control page)" if there else "there is no such MultiLog"
            raise StoreError(what, where=self.path) from None
        except OSError as e:
            raise StoreError(f"cannot be opened: {e.strerror}", where=self.path) from None
        except ValueError as e:
            raise StoreError(str(e), where=self.path) from None
        self.uuid = self.control.uuid
        self.sync = next(name for name, number in _create.SYNC.items() if number == self.control.sync)
        self.segment_rows = self.control.segment_blocks * BLOCK_ROWS
        try:
            if _create.message_bytes(self.schema) != self.control.message_bytes:
                raise ValueError("its control page and its schema do not match")
            self._shape = _create.shape(
                self.schema, arrow_meta.MAGIC + b"\0\0" + self.control.schema, self.uuid, self.control.segment_blocks
            )
        except ValueError as e:
            raise StoreError(str(e), where=self.path) from None
        self._shapes = _ShapeCache(self._shape, self.schema)
        self._lanes: dict[int, _LaneCache] = {}
        self._firsts: dict[int, tuple[int, int]] = {}  # lane -> (first in its line, first row that is kept)

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the cached segments.  Blocks that the caller holds stay valid."""
        for cache in self._lanes.values():
            for _, segment in cache.segments.values():
                if segment is not None:
                    segment.forget()
        self._lanes.clear()

    # -- reading

    def version(self, *, pin: bool = False) -> Version:
        """The rows published at this instant in all lanes: an atomic cut.  Takes no lock.

        ``pin``: open the segments now, so that retention cannot remove rows of the version before they are read.
        """
        while True:
            try:
                tails, _ = self.control.cut()
            except (TimeoutError, OverflowError) as e:
                raise StoreError(str(e), where=self.path) from None
            version = Version(tails, (min(self.first(lane), rows) for lane, rows in enumerate(tails)))
            if not pin:
                return version
            before = len(self.removed)
            pinned = self.pin(version)
            if len(self.removed) == before:
                return pinned
            del self.removed[before:]  # removed meanwhile: a newer version does not have them

    def pin(self, version: Version) -> Version:
        """``version`` with its remaining segments open, so that retention cannot remove their rows any more.

        Its ``firsts`` are the current ones.  Rows that were removed after ``version`` was taken are appended to
        ``removed``, if ``version`` has ``firsts``.
        """
        parts: list[SegmentPart] = []
        firsts: list[int] = []
        for lane, rows in enumerate(version.tails):
            found, first = self._parts(lane, rows) if rows else ([], 0)
            if not rows and self.control.sealed(lane) > self.control.rows(lane):
                self._note(self.control.path, f"lane {lane} has fewer rows than were sealed")
            parts += found
            firsts.append(min(first, rows))
            if lane < len(version.firsts) and firsts[lane] > version.firsts[lane]:
                self.removed.append((lane, version.firsts[lane], firsts[lane]))
        pinned = Version(version.tails, firsts)
        pinned.pinned = self, parts
        return pinned

    def segments(self, version: Version | None = None) -> list[SegmentPart]:
        """The segments with rows of ``version`` (None: now), lane by lane in the order of their rows.

        Damaged or missing segments are left out and appended to ``damage``; rows that retention has removed since
        the version was taken are appended to ``removed``.  The returned segments stay readable after a removal.
        """
        version = self.version() if version is None else version
        if version.pinned is not None and version.pinned[0] is self:
            return list(version.pinned[1])
        pinned = self.pin(version).pinned
        return pinned[1] if pinned is not None else []

    def segment(self, lane: int, base: int, rows: int) -> SegmentPart | None:
        """``rows`` rows of the segment of ``lane`` that begins with row ``base``; no other segment is opened.

        None if it is missing or damaged, which is noted in ``damage``, or if retention has removed it: in ``removed``.
        """
        before = len(self.damage)
        found = [part for part in self._kept_parts(lane, base + rows, base) if part.base == base]
        if self.first(lane) > base:
            del self.damage[before:]
            self.removed.append((lane, base, base + rows))
            return None
        return found[0] if found else None

    def blocks(self, version: Version | None = None) -> Iterator[SegmentBlock]:
        """The blocks of ``version``, without copying: lane by lane, in row order.

        Each has ``lane``, ``base``, ``zone``, and `SegmentBlock.check`, to be called before a column is read.
        Damaged blocks are left out and appended to ``damage``.
        """
        for part in self.segments(version):
            for number in range(part.blocks):
                block = part.block(number)
                if block is not None:
                    yield block
            part.release()

    def row_block(self, lane: int, row: int, version: Version | None = None) -> tuple[SegmentBlock, int] | None:
        """The block with row ``row`` of ``lane`` and the row's index in it; None when the row does not exist."""
        rows = (self.version() if version is None else version)[lane]
        for part in self._parts(lane, rows)[0] if 0 <= row < rows else ():
            if part.base <= row < part.base + part.rows:
                number, inside = part.find(row)
                block = part.block(number)
                return None if block is None else (block, inside)
        return None

    def _parts(self, lane: int, rows: int) -> tuple[list[SegmentPart], int]:
        # The segments of a lane with `rows` rows, and its first kept row.  If retention removes a segment while it is
        # opened, the loop starts again.
        while True:
            first = self.first(lane)
            before = len(self.damage)
            parts = self._kept_parts(lane, rows, first)
            if len(self.damage) == before or self.first(lane) == first:
                return parts, first
            del self.damage[before:]
            self._lanes.pop(lane, None)

    def first(self, lane: int) -> int:
        """The first row of ``lane`` that is kept.

        If the line of the lane says that rows were removed, and they are there, the files are believed, and the damage
        is noted: one flipped bit of the line must not hide rows.
        """
        first = self.control.first(lane)
        if not first or self._firsts.get(lane, (-1, 0))[0] == first:
            return self._firsts[lane][1] if first else 0
        kept = first
        if first > self.control.sealed(lane):
            reason = f"the line of lane {lane} is damaged: rows below {first} are removed, which were never sealed"
        else:
            reason = f"the line of lane {lane} is damaged: rows below {first} are removed, but their files are there"
        bases = [base for base, _ in lane_claim.list_segments(lane_claim.lane_folder(self.path, lane))]
        unsealed = first > self.control.sealed(lane)
        if unsealed or (bases and bases[0] < first and removal_record.recorded(self.path, lane) < first):
            kept = bases[0] if bases else 0
            self._note(self.control.path, reason)
        self._firsts[lane] = first, kept
        return kept

    def _kept_parts(self, lane: int, rows: int, first: int) -> list[SegmentPart]:
        epoch, sealed = self.control.epoch(lane), self.control.sealed(lane)
        if sealed > self.control.rows(lane):
            self._note(self.control.path, f"lane {lane} has fewer rows than were sealed")
        cache = self._lanes.get(lane)
        last = cache.entries[-1][0] if cache is not None and cache.entries else -1
        # Unsealed rows are in segments that start at or after the last sealed row.  A listing without such a segment
        # is older than the growing segment and must be read again.
        if (
            cache is None
            or (cache.epoch, cache.sealed, cache.first) != (epoch, sealed, first)
            or last < 0
            or (rows > last + self.segment_rows or last < sealed < rows)
        ):
            entries = lane_claim.list_segments(lane_claim.lane_folder(self.path, lane), first)
            cache = self._lanes[lane] = _LaneCache(epoch, sealed, first, entries, cache)
        parts: list[SegmentPart] = []
        expected = first
        for i, (base, path) in enumerate(cache.entries):
            if base >= rows:
                break
            limit = base + self.segment_rows
            end = min(cache.entries[i + 1][0] if i + 1 < len(cache.entries) else limit, limit)
            self._gap(lane, expected, base)
            seal = max(min(sealed, end) - base, 0)
            segment = self._segment(cache, lane, base, path, seal)
            if segment is not None:
                if segment.sealed:
                    end = base + segment.sealed
                parts.append(SegmentPart(segment, min(end, rows) - base))
            expected = end
        self._gap(lane, min(expected, rows), rows)
        return parts

    def _gap(self, lane: int, expected: int, base: int) -> None:
        if base > expected:
            self._note(lane_claim.lane_folder(self.path, lane), f"rows {expected} to {base - 1} are missing")

    def _note(self, path: str, reason: str) -> None:
        if (path, None, reason) not in self.damage:
            self.damage.append((path, None, reason))

    def _segment(self, cache: _LaneCache, lane: int, base: int, path: str, sealed: int) -> Segment | None:
        known = cache.segments.get(base)
        if known is not None and known[0] == sealed:
            return known[1]
        if known is not None and known[1] is not None:
            known[1].forget()
        segment = None
        try:
            segment = self.open_segment(path, lane, base, sealed, self.damage)
        except ValueError as e:
            self.damage.append((path, None, str(e)))
        except OSError as e:
            self.damage.append((path, None, f"cannot be opened: {e.strerror}"))
        cache.segments[base] = (sealed, segment)
        return segment

    def open_segment(
        self, path: str, lane: int, base: int, sealed: int, damage: list[tuple[str, int | None, str]]
    ) -> Segment:
        try:
            return Segment(path, lane, base, self._shapes, self._shape, damage, sealed)
        except ValueError:
            rows = find_seal(path, self._shape, lane, base) if sealed and os.path.isfile(path) else 0
            if not 0 < rows < sealed:
                raise
        return Segment(path, lane, base, self._shapes, self._shape, damage, rows)  # the next segment is missing

    # -- writing

    def writer(self, *, sync: str | None = None, ahead: int = 1) -> LogWriter:
        """Claim a lane and return its writer; other writers may be open.

        ``sync``: 'none', 'seal' or 'batch' (None: the mode of the log).
        ``ahead``: number of blocks to prepare ahead, -1 for no helper threads.
        Raises StoreError, DiskFullError, BusyError (every lane has a writer).
        """
        if not self.control.writable:
            raise StoreError("cannot be written", where=self.path, hint="you have no write permission")
        number = _create.SYNC.get(sync or self.sync)
        if number is None:
            raise StoreError(f"unknown sync mode '{sync}'", hint="use none, seal or batch")
        damaged: set[int] = set()
        while True:
            claim = lane_claim.claim(self.path, self.control, damaged)
            try:
                with as_owner(self.path):
                    lane_claim.seal_lane(self.control, claim, self._shapes, self._shape, number > 0)
                    self.control.claim(claim.lane, *lane_claim.owner())
                    lane_claim.seal_orphans(self.path, self.control, self._shapes, self._shape, number > 0)
                    if number:
                        _create.sync_folder(self.path)
                    directory = lane_claim.open_folder(claim.folder)
                break
            except lane_claim.DamagedLineError:
                os.close(claim.lock)
                damaged.add(claim.lane)
            except OSError as e:
                os.close(claim.lock)
                raise self.write_error(e) from None
        full = lane_claim.batch(self._shape, BLOCK_ROWS), lane_claim.footer(self._shape, self.segment_rows)
        return LogWriter(
            self.control,
            self._shape,
            claim.lane,
            directory=directory,
            lock=claim.lock,
            message=full[0],
            footer=full[1],
            sync=number,
            ahead=ahead,
            owner=foreign_owner(self.path),
            log=self,
        )

    def seal_orphans(self) -> None:
        """Seal the rows of dead writers, as every `writer` does when it starts.  Raises StoreError, DiskFullError."""
        try:
            with as_owner(self.path):
                lane_claim.seal_orphans(self.path, self.control, self._shapes, self._shape, self.control.sync > 0)
        except OSError as e:
            raise self.write_error(e) from None

    def write_error(self, e: OSError) -> StoreError:
        """The StoreError to raise for a failed write."""
        where = e.filename or self.path
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError("the disk is full", where=where, hint="the rows before are kept; make room")
        return StoreError(f"cannot be written: {e.strerror}", where=where)

    def remember(self, argv: list[str]) -> None:
        """Add a command line to the history in multilog.yaml."""
        try:
            _create.remember(self.path, argv)
        except OSError as e:
            raise self.write_error(e) from None


class _LaneCache:
    # The listing and the open segments of a lane, valid until the epoch of the lane changes.
    __slots__ = ("entries", "epoch", "first", "sealed", "segments")

    def __init__(
        self, epoch: int, sealed: int, first: int, entries: list[tuple[int, str]], before: _LaneCache | None
    ) -> None:
        self.epoch, self.sealed, self.first, self.entries = epoch, sealed, first, entries
        self.segments: dict[int, tuple[int, Segment | None]] = {}  # base -> (sealed rows, segment or None if damaged)
        if before is not None:
            here = {base for base, _ in entries}
            self.segments = {b: s for b, s in before.segments.items() if b in here}
            for base, (_, segment) in before.segments.items():
                if base not in here and segment is not None:
                    segment.forget()  # its blocks refer to it: it would stay mapped, and keep its disk space


class LogWriter(LaneWriter):
    """The writer of one lane, for one thread.  `close` (or the end of a ``with``) seals the rows written.

    Published rows survive when the writer dies: the next writer seals the lane.
    """

    log: Log

    def __init__(self, control: Control, shape: SegmentShape, number: int, *, log: Log, **rest: Any) -> None:
        self.log = log
        self._closing = RLock()

    def append(self, block: Block) -> None:
        """Copy the rows of ``block`` into the lane and publish them.

        Raises DiskFullError: the first ``rows`` rows are published, the rest is not stored.
        """
        try:
            super().append(block)
        except OSError as e:
            raise self.log.write_error(e) from None
        except ValueError as e:
            raise SchemaError(str(e), where=self.log.path) from None

    def close(self) -> None:
        """Publish, seal, and release the lane.  A second call does nothing."""
        with self._closing:  # the log may be closed when this returns
            self._close()

    def _disown(self) -> None:
        super()._disown()
        self._closing = RLock()  # a thread that held it is not in the child

    def _close(self) -> None:
        if self.closed:
            return
        try:
            lock = self.join()
        except ValueError:  # this thread is closing it, and came here again in the handler of a signal
            return
        log = self.log
        claim = lane_claim.Claim(self.number, lane_claim.lane_folder(log.path, self.number), lock)
        try:
            with as_owner(log.path):
                lane_claim.seal_lane(log.control, claim, log._shapes, log._shape, self.sync > 0)
            log.control.release(self.number)
        except OSError as e:
            raise log.write_error(e) from None
        finally:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ConfluoError:
            if value is None:  # otherwise the first exception is reported
                raise
