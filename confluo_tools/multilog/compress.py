"""Compress sealed segments in place, with the buffer compression of Arrow files.

Each segment is written again next to its file, synced, read back and compared, and renamed over it.  So a process that
dies leaves whole segments and at most one temporary file.  Readers that have mapped the old file keep it, writers and
views are not concerned: rows, row numbers and blocks are the same.  docs/format.md has the bytes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog import column_codec
from confluo_tools.core.multilog.control import fault, page
from confluo_tools.core.multilog.seal import packed_head, places, seal_packed
from confluo_tools.core.multilog.segment import Segment
from confluo_tools.errors import StoreError
from confluo_tools.formats import arrow_meta
from confluo_tools.multilog.create import CONTROL, PAGE, metadata, shape, sync_folder
from confluo_tools.multilog.ownership import as_owner
from confluo_tools.multilog.retain import SealedSegment, SegmentCatalog, disk_bytes, removal_lock

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import SegmentBlock
    from confluo_tools.multilog.log import Log

CODECS = {name: number for number, name in column_codec.NAMES.items()}
CODEC = "zstd"  # without --codec
VERSION = 2  # of the control page of a log that may have compressed segments
PACKED_MESSAGE = 64  # bytes by which the batch message of a compressed segment is longer
WAIT = 5.0  # seconds for another process that removes or compresses segments


class UnsoundSegmentError(StoreError):
    """A segment that cannot be read in whole; it is left as it is."""


class Compressed(NamedTuple):
    """A segment that was compressed: its rows, and its disk space in bytes before and after."""

    segment: SealedSegment
    before: int
    after: int


class Compressor:
    """Compresses the sealed segments of ``log``.

    ``codec``: 'lz4' or 'zstd'; ``again``: also segments that are compressed with the other one.
    ``before``: only segments with all rows before this time (ns).  Raises StoreError (no write permission; ``before``
    is given, but the records have no time field).
    """

    def __init__(self, log: Log, codec: str, *, again: bool = False, before: int | None = None) -> None:
        self.log, self.codec, self.again, self.before = log, codec, again, before
        self.catalog = SegmentCatalog(log)
        if before is not None and self.catalog.time < 0:
            what = f"records of kind '{log.schema.kind}' have no time field"
            raise StoreError(what, where=log.path, hint="compress without a time")

    def planned(self) -> list[SealedSegment]:
        """The segments that `run` would compress, lane by lane."""
        found = []
        for lane in range(self.log.control.claimed):
            for segment in self.catalog.lane(lane):
                newest = None if self.before is None else self.catalog.newest(segment)
                if self.before is not None and (newest is None or newest >= self.before):
                    continue
                codec = self._codec(segment)
                if codec is None or (self.again and codec != self.codec):
                    found.append(segment)
        return found

    def run(self, segment: SealedSegment) -> Compressed | None:
        """Compress one segment.  None if it was removed meanwhile, or does not become smaller.

        Raises UnsoundSegmentError, BusyError, StoreError (DiskFullError: the segment is as it was).
        """
        if self.codec == "zstd":
            column_codec.pack(CODECS["zstd"], b"load")  # modules are not loaded as the owner of the log
        with removal_lock(self.log, WAIT):
            try:
                if self.log.control.version < VERSION:
                    raise_version(self.log)
                return self._run(segment)
            except FileNotFoundError:  # retention removed it, or a writer the temporary file
                return None
            except OSError as e:
                raise self.log.write_error(e) from None

    def _codec(self, segment: SealedSegment) -> str | None:
        try:
            return self._open(segment).codec
        except (OSError, ValueError):
            return None  # `run` reports it

    def _open(self, segment: SealedSegment, path: str | None = None) -> Segment:
        # With the columns of the segment itself, which may be fewer than those of the log.
        damage: list[tuple[str, int | None, str]] = []
        rows = segment.end - segment.base
        opened = self.log.open_segment(segment.path, segment.lane, segment.base, rows, damage)
        known = opened.shape
        own = shape(known.schema, known.header, known.uuid, known.segment_blocks)
        return Segment(
            path or segment.path, segment.lane, segment.base, {own.header: own}, own, damage, opened.sealed or rows
        )

    def _run(self, segment: SealedSegment) -> Compressed | None:
        if self.log.first(segment.lane) > segment.base:
            return None
        try:
            opened = self._open(segment)
        except ValueError as e:
            raise UnsoundSegmentError(str(e), where=segment.path, hint="it is left as it is") from None
        if opened.damage or not opened.sealed:
            what = opened.damage[0][2] if opened.damage else "it is not sealed"
            raise UnsoundSegmentError(what, where=segment.path, hint="it is left as it is")
        if opened.codec == self.codec:
            return None
        temporary = os.path.join(os.path.dirname(segment.path), f".seg-{segment.base:016d}.tmp")
        try:
            before = disk_bytes(segment.path)
            self._write(opened, temporary)
            fault("packed-written")
            after = disk_bytes(temporary)
            if after >= before and opened.codec is None:
                return None
            self._compare(opened, self._open(segment, temporary))
            fault("packed-compared")
            with as_owner(self.log.path):
                os.rename(temporary, segment.path)
                fault("packed-renamed")
                sync_folder(os.path.dirname(segment.path))
            return Compressed(segment, before, after)
        finally:
            with suppress(OSError), as_owner(self.log.path):
                os.unlink(temporary)

    def _write(self, opened: Segment, path: str) -> None:
        # The data, block by block; the head of each says where they end, which is known last.
        form, number = opened.shape, CODECS[self.codec]
        size = form.message + PACKED_MESSAGE
        starts, buffers, heads = [len(form.header)], [], []
        with as_owner(self.log.path):
            with suppress(FileNotFoundError):
                os.unlink(path)
            fd = open_log_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with os.fdopen(fd, "wb") as out:
            out.write(form.header)
            for block in sound_blocks(opened):
                start = starts[-1]
                head = block.head()
                at = _up(start + size + len(head), 64)
                column_places, stored = [], []
                for i in range(len(form.schema.columns)):
                    data = column_codec.pack(number, block.buffer(i))
                    column_places.append((at, len(data)))
                    stored.append(data)
                    at = _up(at + len(data), 64)
                end = _up(at, PAGE)
                message = arrow_meta.batch_message(
                    form.schema,
                    len(block),
                    [(where - start - size, n) for where, n in column_places],
                    end - start - size,
                    size=size,
                    compression=self.codec,
                )
                out.write(message + head)
                for (where, _), data in zip(column_places, stored, strict=True):
                    out.write(bytes(where - out.tell()) + data)
                out.write(bytes(end - out.tell()))
                heads.append((start + size, head))
                starts.append(end)
                buffers.append(column_places)
                fault("packed-block")
            for where, head in heads:
                out.seek(where)
                out.write(packed_head(head, starts[-1]))
        batches = [(a, size, b - a - size) for a, b in pairwise(starts)]
        footer = arrow_meta.footer(form.schema, metadata(form.uuid), batches)
        trailer = places(number, opened.sealed, opened.capacity, starts, buffers) + footer
        seal_packed(path, form.uuid, opened.lane, opened.base, opened.sealed, opened.capacity, len(batches), trailer)

    def _compare(self, old: Segment, new: Segment) -> None:
        for a, b in zip(sound_blocks(old), sound_blocks(new), strict=True):
            for i in range(len(old.shape.schema.columns)):
                if bytes(a.buffer(i)) != bytes(b.buffer(i)):  # faster than views, which compare value by value
                    raise UnsoundSegmentError("what was written is not what is read", where=old.path)


def sound_blocks(segment: Segment) -> Iterator[SegmentBlock]:
    """The blocks of a sealed segment, all columns checked.  Raises UnsoundSegmentError."""
    for number in range(segment.blocks_on_file):
        block = segment.block(number, min(segment.sealed - number * segment.capacity, segment.capacity))
        if block is None or not block.check():
            path, at, what = segment.damage[-1]
            what = what if at is None else f"block {at}: {what}"
            raise UnsoundSegmentError(what, where=path, hint="it is left as it is")
        yield block


def raise_version(log: Log) -> None:
    """Write into the control page that the log may have compressed segments: older programs then refuse it.

    The caller holds `removal_lock`.  Raises OSError, StoreError.
    """
    file = os.path.join(log.path, CONTROL)
    with as_owner(log.path):
        f = open(file, "r+b", opener=open_log_file)
    with f:
        fcntl.flock(f, fcntl.LOCK_EX)  # `add_columns` rewrites the page, too
        control = type(log.control)(file, True)
        checked = page(
            control.uuid,
            segment_blocks=control.segment_blocks,
            lanes=control.lanes,
            sync=control.sync,
            created=control.created,
            message_bytes=control.message_bytes,
            schema=control.schema,
            schema_offset=control.schema_offset,
            version=VERSION,
        )
        os.pwrite(f.fileno(), checked, 0)
        fault("packed-version")
        os.fsync(f.fileno())


def _up(n: int, size: int) -> int:
    return -(-n // size) * size
