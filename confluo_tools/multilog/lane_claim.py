"""Lane claim: lock a free lane, and seal the segments that its last owner left unsealed.

`claim` takes the lock, `seal_lane` recovers one lane, `seal_orphans` recovers the lanes of all dead writers.  How one
segment is sealed (trailer, checksums, compaction): pyx/multilog/seal.pyx and c_seal.pxd; a live writer seals in
pyx/multilog/c_lane.pxd.

The lock is flock(2) on ``lane-NNN/lock``: the kernel releases it when the holder dies.  A pid in a file would not
work across pid namespaces.  Every step may be interrupted; the next owner repeats it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import Control, fault
from confluo_tools.core.multilog.seal import find_seal, seal_compact, seal_in_place
from confluo_tools.core.multilog.segment import Segment, SegmentShape
from confluo_tools.errors import BusyError, StoreError
from confluo_tools.formats import arrow_meta
from confluo_tools.multilog.create import metadata, sync_folder
from confluo_tools.multilog.ownership import as_owner

BLOCK_ROWS = 65536
COMPACT_ROWS = 32768  # a segment of one block with at most this many rows is rewritten without free space
_NAME = re.compile(r"seg-(\d{16,20})\.arrow$")
_TEMPORARY = re.compile(r"\.seg-\d+\.tmp$")


class DamagedLineError(StoreError):
    """The line of a lane in the control page contradicts the seals of its segments: its files must not be changed."""

    def __init__(self, folder: str, what: str) -> None:
        hint = "confluo-info --verify gives details"
        super().__init__(f"its line in the control page is damaged: {what}", where=folder, hint=hint)


class Claim(NamedTuple):
    """A locked lane: its number, its folder, and the file descriptor that holds the lock."""

    lane: int
    folder: str
    lock: int


def lane_folder(log: str, lane: int) -> str:
    return os.path.join(log, f"lane-{lane:03d}")


def list_segments(folder: str, first: int = 0) -> list[tuple[int, str]]:
    """(row number of the first row, path) of the segments of a lane from row ``first`` on, ascending.

    [] when the folder does not exist.
    """
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(int(m[1]), os.path.join(folder, m[0])) for m in map(_NAME.match, names) if m]
    return sorted([entry for entry in found if entry[0] >= first])


def batch(shape: SegmentShape, rows: int, capacity: int = BLOCK_ROWS) -> bytes:
    """The record batch message of a block with ``rows`` rows and space for ``capacity`` rows."""
    stride, buffers = shape.geometry(capacity)
    return arrow_meta.batch_message(shape.schema, rows, buffers, stride - shape.message, size=shape.message)


def footer(shape: SegmentShape, rows: int, capacity: int = BLOCK_ROWS) -> bytes:
    """The Arrow footer of a segment of ``rows`` rows."""
    return arrow_meta.footer(shape.schema, metadata(shape.uuid), shape.blocks(rows, capacity))


def claim(path: str, control: Control, damaged: Collection[int] = ()) -> Claim:
    """Lock the first lane without an owner, except those that are ``damaged``.

    Raises BusyError when every lane has an owner, StoreError.
    """
    try:
        for lane in range(control.lanes):
            if lane in damaged:
                continue
            folder = lane_folder(path, lane)
            lock = _open_lock(path, folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                os.close(lock)
                raise
            fault("claim-locked")
            return Claim(lane, folder, lock)
    except OSError as e:
        hint = "you have no write permission for the log" if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM) else ""
        raise StoreError(f"cannot be written: {e.strerror}", where=e.filename or path, hint=hint) from None
    raise BusyError(f"all {control.lanes} lanes have a writer", where=path, hint="stop a writer first")


def _open_lock(log_path: str, folder: str) -> int:
    with as_owner(log_path):
        with suppress(FileExistsError):
            os.mkdir(folder)
        directory = open_folder(folder)
        try:
            return open_log_file("lock", os.O_RDWR | os.O_CREAT, folder=directory)
        except OSError as e:
            raise OSError(e.errno, e.strerror, os.path.join(folder, "lock")) from None
        finally:
            os.close(directory)


def open_folder(folder: str) -> int:
    """A descriptor of the folder of a lane.  Raises OSError, also for a link."""
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "is a symbolic link, which a log must not contain", folder)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def seal_orphans(
    path: str, control: Control, shapes: Mapping[bytes, SegmentShape], shape: SegmentShape, sync: bool
) -> None:
    """Seal the segments of dead writers in all lanes that are not claimed.  Raises OSError."""
    for lane in range(control.claimed):
        if control.rows(lane) <= control.sealed(lane):
            continue
        folder = lane_folder(path, lane)
        try:
            lock = open_log_file(os.path.join(folder, "lock"), os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seal_lane(control, Claim(lane, folder, lock), shapes, shape, sync)
            control.release(lane)
        except (BlockingIOError, DamagedLineError):
            pass  # readers and --verify report the damage
        finally:
            os.close(lock)


def seal_lane(
    control: Control, claim: Claim, shapes: Mapping[bytes, SegmentShape], shape: SegmentShape, sync: bool
) -> None:
    """Seal the unsealed segments of a lane, up to its published tail.

    Temporary files and segments without a published row are removed.  Rows beyond the tail were never visible and
    are dropped.  The caller holds the lock.  Raises OSError, for example when the disk is full.

    A valid seal is stronger than the line: no sealed segment is removed or sealed again because of what the line says.
    Raises DamagedLineError when the two contradict each other; nothing is changed then.
    """
    first, sealed = control.first(claim.lane), control.sealed(claim.lane)
    if first > sealed:
        raise DamagedLineError(claim.folder, f"rows below {first} are removed, but only {sealed} rows are sealed")
    segments = list_segments(claim.folder, first)
    tail = _proven_tail(control, claim, segments, shapes, shape)
    if tail < sealed:
        raise DamagedLineError(claim.folder, f"it has {tail} rows, but {sealed} rows are sealed")
    for i, (base, path) in enumerate(segments):
        last = base < tail and (i + 1 == len(segments) or segments[i + 1][0] >= tail)
        rows = _sealed_rows(claim, base, path, shapes, shape) if base >= tail or (last and tail > sealed) else 0
        if rows and base + rows != tail:
            raise DamagedLineError(
                claim.folder, f"it has {tail} rows, but {os.path.basename(path)} ends at {base + rows}"
            )
    for name in os.listdir(claim.folder):
        if _TEMPORARY.match(name):
            os.unlink(os.path.join(claim.folder, name))
    for base, path in segments:
        if base >= tail:
            os.unlink(path)
            fault("orphan-removed")
    segments = [(base, path) for base, path in segments if base < tail]
    ends = [*(base for base, _ in segments[1:]), tail][: len(segments)]
    for (base, path), end in zip(segments, ends, strict=True):
        if end <= control.sealed(claim.lane):
            continue
        try:
            seals = _seal_segment(claim, base, path, end - base, shapes, shape, sync)
        except ValueError:
            seals = 0  # damaged: readers and --verify report it; it must not block the next writer
        fault("orphan-sealed")
        control.set_sealed(claim.lane, end, seals)
    if sync:
        sync_folder(claim.folder)
        control.flush()


def _proven_tail(
    control: Control,
    claim: Claim,
    segments: list[tuple[int, str]],
    shapes: Mapping[bytes, SegmentShape],
    shape: SegmentShape,
) -> int:
    # Number of rows of the lane.  Only published rows are sealed, so a valid seal proves that its rows were published,
    # even if the lane's tail in the control page is older: after a power failure the page may be stale.
    tail = control.rows(claim.lane)
    for i, (base, path) in enumerate(segments):
        if tail >= base + shape.segment_blocks * BLOCK_ROWS:
            continue
        if i + 1 < len(segments) and segments[i + 1][0] <= tail:
            continue  # the next segment starts at or before the tail: this one ends there
        try:
            own = Segment(path, claim.lane, base, shapes, shape, []).shape
            rows = find_seal(path, own, claim.lane, base)
            if not rows or base + rows <= tail or Segment(path, claim.lane, base, shapes, shape, [], rows).bad_pages():
                continue
        except (ValueError, FileNotFoundError):  # damaged, or removed by retention just now
            continue
        while not control.raise_tail(claim.lane, base + rows):
            time.sleep(0.001)  # a freeze lasts at most 60 s
        tail = base + rows
    return tail


def _sealed_rows(claim: Claim, base: int, path: str, shapes: Mapping[bytes, SegmentShape], shape: SegmentShape) -> int:
    # Number of rows in the valid seal of a segment; 0 without one.
    try:
        return find_seal(path, Segment(path, claim.lane, base, shapes, shape, []).shape, claim.lane, base)
    except (ValueError, FileNotFoundError):
        return 0


def _seal_segment(
    claim: Claim, base: int, path: str, rows: int, shapes: Mapping[bytes, SegmentShape], shape: SegmentShape, sync: bool
) -> int:
    damage: list[tuple[str, int | None, str]] = []
    try:
        sealed = Segment(path, claim.lane, base, shapes, shape, damage, rows)
        if not damage and not sealed.check_trailer():
            return 0
    except ValueError:
        pass
    growing = Segment(path, claim.lane, base, shapes, shape, damage)
    own = growing.shape
    if growing.codec:
        raise ValueError("it is compressed but its seal is damaged")
    if rows > growing.blocks_on_file * growing.capacity:
        raise ValueError(f"it has space for {growing.blocks_on_file * growing.capacity} rows; {rows} were published")
    if growing.capacity == BLOCK_ROWS and rows <= COMPACT_ROWS:
        capacity = -(-rows // 64) * 64
        new = os.path.join(claim.folder, f".seg-{base:016d}.tmp")
        seal_compact(
            path, new, own, claim.lane, base, rows, batch(own, rows, capacity), footer(own, rows, capacity), sync
        )
        fault("compact-rename")
        os.rename(new, path)
    elif growing.capacity == BLOCK_ROWS:
        in_last = rows - (rows - 1) // BLOCK_ROWS * BLOCK_ROWS
        seal_in_place(path, own, claim.lane, base, rows, batch(own, in_last), footer(own, rows), sync)
    else:
        raise ValueError("it is compact but its seal is damaged")
    return 1


def owner() -> tuple[int, int, int]:
    """(pid, start time in clock ticks since boot, first 8 bytes of the boot id) of this process, for information."""
    started = boot = 0
    try:
        with open("/proc/self/stat", "rb") as f:
            started = int(f.read().rpartition(b")")[2].split()[19])
        boot = boot_id()
    except (OSError, ValueError, IndexError):
        pass
    return os.getpid(), started, boot


def boot_id() -> int:
    """First 8 bytes of the boot id of the machine, 0 if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as f:
            return int(f.read(19).replace(b"-", b"")[:16], 16)
    except (OSError, ValueError):
        return 0


def is_temporary(name: str) -> bool:
    """Whether ``name`` is that of a temporary segment file."""
    return _TEMPORARY.match(name) is not None
