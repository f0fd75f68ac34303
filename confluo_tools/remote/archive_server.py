"""The sealed segments of a log for a client on another host: what confluo-archive HOST:/PATH requests.

A segment is sent as the extents of its file that have data, because unused columns are holes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import fault
from confluo_tools.errors import BusyError, StoreError, UsageError
from confluo_tools.multilog import lane_claim, retain
from confluo_tools.multilog.create import CONTROL
from confluo_tools.multilog.log import Log
from confluo_tools.multilog.retain import SegmentCatalog
from confluo_tools.multilog.snapshot import MAX_LANES
from confluo_tools.remote import frame_codec

if TYPE_CHECKING:
    from confluo_tools.remote.server import QueryServer

LISTED = 4096  # segments of one frame
MAX_ROW = 1 << 48
OFFSET_BYTES = 8  # a DATA frame begins with the offset of its bytes in the file
PIECE = frame_codec.MAX_FRAME - OFFSET_BYTES
WAIT = 5.0  # seconds for the lock of another process that removes segments


class ArchiveServer:
    """Answers the ARCHIVE frames of the client of ``server``."""

    def __init__(self, server: QueryServer) -> None:
        self._server = server
        self._locks: dict[str, int] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message requests; the body of its END frame.  Raises ConfluoError, ValueError."""
        name, what = frame_codec.get(message, "path", str), frame_codec.get(message, "do", str)
        if what not in ("list", "fetch", "remove"):
            raise ValueError("invalid 'do' in message")
        if what == "remove" and self._server.read_only:
            raise UsageError("is served read-only, so its rows cannot be removed", where=name)
        path = self._server.inside(name)
        with Log(path, readonly=self._server.read_only) as log:
            if what == "list":
                lock, change = (frame_codec.get(message, key, bool, False) for key in ("lock", "change"))
                return self._list(log, lock, change)
            if frame_codec.get(message, "uuid", str) != log.uuid.hex():
                raise StoreError("another log has taken the name", where=name, hint="run it again")
            lane = frame_codec.get(message, "lane", int)
            row = frame_codec.get(message, "row", int)
            if not 0 <= lane < MAX_LANES or not 0 <= row < MAX_ROW:
                raise ValueError("invalid 'lane' or 'row' in message")
            return self._fetch(log, lane, row) if what == "fetch" else self._remove(log, lane, row)

    def _lock(self, path: str) -> None:
        # One process archives the log at a time, on whatever host; the lock ends with this process.
        if path in self._locks:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BusyError("another process is archiving it", where=path, hint="try again later") from None
        self._locks[path] = fd

    def _list(self, log: Log, lock: bool, change: bool) -> dict[str, Any]:
        """Send the control page and the sealed segments.

        ``lock``: for this process alone.  ``change``: rows will be removed, so those of dead writers are sealed, and
        what a killed process began to remove goes.
        """
        if lock:
            self._lock(log.path)
        if change and log.control.writable:
            log.seal_orphans()
            with suppress(BusyError, OSError), retain.removal_lock(log, 0.0):
                for lane in range(log.control.claimed):
                    retain.sweep(log, lane)
        size = self._send(os.path.join(log.path, CONTROL))
        catalog = SegmentCatalog(log)
        listed: list[list[int | None]] = []
        for lane in range(log.control.claimed):
            for one in catalog.lane(lane):
                newest = catalog.newest(one) if catalog.time >= 0 else None
                listed.append([lane, one.base, one.end, newest, retain.disk_bytes(one.path)])
                if len(listed) == LISTED:
                    self._put_list(listed)
        self._put_list(listed)
        end = {"uuid": log.uuid.hex(), "size": size, "writable": log.control.writable, "lanes": log.control.claimed}
        return end

    def _put_list(self, listed: list[list[int | None]]) -> None:
        self._server.send(frame_codec.META, json.dumps({"segments": listed}, separators=(",", ":")).encode())
        listed.clear()

    def _fetch(self, log: Log, lane: int, base: int) -> dict[str, Any]:
        """Send the segment that begins with row ``base``."""
        for one in SegmentCatalog(log).lane(lane) if lane < log.control.claimed else ():
            if one.base == base:
                try:
                    return {"size": self._send(one.path)}
                except FileNotFoundError:
                    break
                except OSError as e:
                    raise StoreError(f"cannot be read: {e.strerror}", where=one.path) from None
        return {"gone": True}

    def _send(self, path: str) -> int:
        """Send the extents of a file; returns its size.  Raises OSError."""
        fd = open_log_file(path)
        try:
            size = os.fstat(fd).st_size
            at = 0
            while at < size:
                try:
                    start = os.lseek(fd, at, os.SEEK_DATA)
                except OSError as e:
                    if e.errno == errno.ENXIO:  # only a hole follows
                        break
                    start = at  # a file system without holes
                end = _hole(fd, start, size)
                for at in range(start, end, PIECE):
                    data = os.pread(fd, min(PIECE, end - at), at)
                    if not data:
                        return size
                    self._server.send(frame_codec.DATA, at.to_bytes(OFFSET_BYTES, "little"), data)
                at = end
            fault("archive-sent")
            return size
        finally:
            os.close(fd)

    def _remove(self, log: Log, lane: int, end: int) -> dict[str, Any]:
        """Remove the segments of a lane before row ``end``, which must be whole sealed segments."""
        fault("archive-removal")
        if not log.control.writable:
            raise StoreError("nothing can be removed", where=log.path, hint="its user may only read it")
        if lane >= log.control.claimed:
            raise ValueError("invalid 'lane' in message")
        try:
            with retain.removal_lock(log, WAIT):
                if end <= log.first(lane):
                    return {"removed": 0}
                if all(one.end != end for one in SegmentCatalog(log).lane(lane)):
                    what = f"row {end} of lane {lane} is not the end of a sealed segment"
                    raise StoreError(what, where=lane_claim.lane_folder(log.path, lane), hint="nothing was removed")
                return {"removed": retain.remove(log, {lane: end})[0]}
        except OSError as e:
            raise log.write_error(e) from None


def _hole(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_HOLE)
    except OSError:
        return size
