"""The sealed segments of a log on another host, for an archive on this one.

The other host sends the control page of the log and a list of its segments.  Of these a folder is made that opens as a
log without rows: so schemas and segments are checked by what checks those of this host.  Segments are fetched one by
one, and the pages of each have their checksums.  After a batch is recorded in the archive, the other host removes it.
A connection that is lost in between changes nothing: the record says which rows are archived, and the next run removes
them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from confluo_tools.core.multilog.control import fault
from confluo_tools.errors import DiskFullError, StoreError
from confluo_tools.multilog.create import CONTROL
from confluo_tools.multilog.log import BLOCK_ROWS, Log
from confluo_tools.multilog.retain import SealedSegment
from confluo_tools.remote import frame_codec
from confluo_tools.remote.archive_server import MAX_ROW, OFFSET_BYTES
from confluo_tools.remote.connect import Connection, connected

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import Segment
    from confluo_tools.remote.address import Address
    from confluo_tools.remote.connect import RemoteShell

MAX_CONTROL = 16 << 20  # bytes of a control page
MAX_SEGMENTS = 1 << 20  # of a log
MAX_LANES = 65536
SPARE = 16 << 20  # bytes of a segment in addition to its columns
DISK_FULL = (28, 122, 27)  # ENOSPC, EDQUOT, EFBIG


class RemoteSegments:
    """The sealed segments of the log at ``address``; a `SegmentSource`.

    ``lock``: no other process may archive the log meanwhile; ``change``: segments will be removed.

    Raises RemoteError, HostLostError, BusyError, StoreError.
    """

    def __init__(self, address: Address, shell: RemoteShell, *, lock: bool, change: bool) -> None:
        self.address, self.name = address, str(address)
        self._folder = TemporaryDirectory(prefix="confluo-archive-")
        self._peer: Connection | None = None
        try:
            self._peer = connected(address, shell, "archive", "does not archive for others")
            self._segments: dict[int, list[SealedSegment]] = {}
            self._of: dict[tuple[int, int], tuple[int | None, int]] = {}
            end = self._list(lock, change)
            try:
                self.log = Log(self._folder.name, readonly=True)
            except StoreError as e:
                raise StoreError(e.what, where=self.name, hint=e.hint) from None
            if self.log.uuid.hex() != end["uuid"]:
                raise self._peer.protocol_error("a control page of another log")
        except BaseException:
            self.close()
            raise
        stride, _ = self.log._shape.geometry(BLOCK_ROWS)
        self._max_bytes = 2 * stride * self.log.control.segment_blocks + SPARE

    def __enter__(self) -> RemoteSegments:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._folder.cleanup()

    # -- requests

    def _answers(self, message: dict[str, Any], data: int, most: int) -> Iterator[tuple[int, Any]]:
        """Send a request and give its META frames and its END; DATA goes to the file ``data``, at most ``most`` bytes.

        Raises RemoteError, DiskFullError.
        """
        assert self._peer is not None
        peer = self._peer
        peer.send(frame_codec.frame(frame_codec.ARCHIVE, {"path": self.address.path, **message}))
        while True:
            kind, size = peer.head()
            if kind == frame_codec.DATA:
                body = peer.body(size)
                at = int.from_bytes(body[:OFFSET_BYTES], "little")
                if size <= OFFSET_BYTES or at + size - OFFSET_BYTES > most:
                    raise peer.protocol_error("bytes beyond the end of a file")
                try:
                    done = os.pwrite(data, memoryview(body)[OFFSET_BYTES:], at)
                    if done < size - OFFSET_BYTES:
                        os.pwrite(data, memoryview(body)[OFFSET_BYTES + done :], at + done)
                except OSError as e:
                    raise self._write_error(e) from None
                continue
            found = peer.message(peer.body(size))
            if kind == frame_codec.ERROR:
                raise peer.reported(found)
            if kind not in (frame_codec.META, frame_codec.END):
                raise peer.protocol_error(f"a frame '{frame_codec.KINDS[kind]}' out of turn")
            yield kind, found
            if kind == frame_codec.END:
                return

    def _write_error(self, e: OSError) -> StoreError:
        if e.errno in DISK_FULL:
            hint = "make room, or name another folder in TMPDIR"
            return DiskFullError("the disk is full", where=self._folder.name, hint=hint)
        return StoreError(f"cannot be written: {e.strerror}", where=self._folder.name)

    def _file(self, message: dict[str, Any], path: str, most: int) -> tuple[list[Any], dict[str, Any]]:
        """The META frames and the END of a request, with the file that it gives at ``path``."""
        assert self._peer is not None
        metas: list[Any] = []
        end: dict[str, Any] = {}
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for kind, found in self._answers(message, fd, most):
                if kind == frame_codec.END:
                    end = found
                elif sum([len(one) for one in metas]) > MAX_SEGMENTS:
                    raise self._peer.protocol_error("too many segments")
                else:
                    metas.append(self._checked(frame_codec.get, found, "segments", list))
            size = self._checked(frame_codec.get, end, "size", int, 0)
            if not 0 <= size <= most:
                raise self._peer.protocol_error("invalid 'size' in message")
            os.ftruncate(fd, size)  # a hole at the end is not sent
        except OSError as e:
            raise self._write_error(e) from None
        finally:
            os.close(fd)
        return metas, end

    def _checked(self, check: Any, *values: Any) -> Any:
        try:
            return check(*values)
        except (ValueError, TypeError) as e:
            assert self._peer is not None
            raise self._peer.protocol_error(str(e)) from None

    def _list(self, lock: bool, change: bool) -> dict[str, Any]:
        control = os.path.join(self._folder.name, CONTROL)
        metas, end = self._file({"do": "list", "lock": lock, "change": change}, control, MAX_CONTROL)
        self.lanes = self._checked(frame_codec.get, end, "lanes", int)
        if not 0 <= self.lanes <= MAX_LANES:
            assert self._peer is not None
            raise self._peer.protocol_error("invalid 'lanes' in message")
        self.writable = self._checked(frame_codec.get, end, "writable", bool)
        self._checked(frame_codec.get, end, "uuid", str)
        for row in (row for rows in metas for row in rows):
            lane, base, after, newest, size = self._checked(_segment, row, self.lanes)
            path = f"{self.name}/lane-{lane:03d}/seg-{base:016d}.arrow"
            self._segments.setdefault(lane, []).append(SealedSegment(lane, base, after, path))
            self._of[lane, base] = newest, size
        return end

    # -- the source of an archive

    def lane(self, lane: int) -> list[SealedSegment]:
        return self._segments.get(lane, [])

    def newest(self, segment: SealedSegment) -> int | None:
        return self._of[segment.lane, segment.base][0]

    def disk_bytes(self, segment: SealedSegment) -> int:
        return self._of[segment.lane, segment.base][1]

    def open(self, segment: SealedSegment, damage: list[tuple[str, int | None, str]]) -> Segment:
        """Fetch a segment.  Its file is removed at once: the mapping keeps it."""
        folder = os.path.join(self._folder.name, "segment")
        os.mkdir(folder, 0o700)
        try:
            path = os.path.join(folder, os.path.basename(segment.path))
            request = {"do": "fetch", "uuid": self.log.uuid.hex(), "lane": segment.lane, "row": segment.base}
            _, end = self._file(request, path, self._max_bytes)
            fault("archive-fetched")
            if "gone" in end:
                raise FileNotFoundError(segment.path)
            return self.log.open_segment(path, segment.lane, segment.base, segment.end - segment.base, damage)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, lane: int, end: int, archive: str, oldest: int, newest: int) -> None:
        request = {"do": "remove", "uuid": self.log.uuid.hex(), "lane": lane, "row": end}
        for _ in self._answers(request, -1, 0):
            pass
        fault("archive-removed")


def _segment(row: Any, lanes: int) -> tuple[int, int, int, int | None, int]:
    """A segment of a list: lane, first row, row after the last, latest time, bytes.  Raises ValueError."""
    if not isinstance(row, list) or len(row) != 5:
        raise ValueError("invalid 'segments' in message")
    lane, base, end, newest, size = row
    if not all(type(n) is int for n in (lane, base, end, size)) or not (newest is None or type(newest) is int):
        raise ValueError("invalid 'segments' in message")
    if not (0 <= lane < lanes and 0 <= base < end < MAX_ROW and 0 <= size < 1 << 62):
        raise ValueError("invalid 'segments' in message")
    if newest is not None and not -(1 << 63) <= newest < 1 << 63:
        raise ValueError("invalid 'segments' in message")
    return lane, base, end, newest, size
