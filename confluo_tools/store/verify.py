"""Checking a whole MultiLog: every page of every sealed segment, and the structure of everything else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluo_tools.store import recover
from confluo_tools.store.log import BLOCK_ROWS, Log


class Finding(NamedTuple):
    """One thing that is not as it should be.

    ``block``: its number in the segment, None when it is not about one; ``columns``: the columns whose bytes
    are wrong.  ``damage`` is False for what is only worth knowing (a segment that nobody has sealed yet).
    """

    path: str
    block: int | None
    columns: tuple[str, ...]
    what: str
    damage: bool = True

    def __str__(self) -> str:
        where = self.path if self.block is None else f"{self.path}: block {self.block}"
        return f"{where}: {self.what}"


def verify(log: Log, progress: Callable[[int], None] | None = None) -> Iterator[Finding]:
    """Check everything; yields what is wrong.  Reads the whole log; writers and readers may go on meanwhile.
    ``progress`` is told the rows checked so far.

    Any bit that changed in a sealed segment is found.  Segments that are still written have no checksums:
    of them only the structure is checked.
    """
    version = log.version()
    control = log.control
    checked = 0
    for lane in range(control.lanes):
        line, folder = control.lane(lane), recover.lane_folder(log.path, lane)
        where = f"{log.path}/control"
        if lane >= len(version):
            if line["rows"] and lane >= control.claimed:
                yield Finding(where, None, (), f"lane {lane} has rows but was never claimed")
            continue
        wrong = line["sealed"] > line["rows"] or line["first"] > control.sealed(lane)
        if wrong or (line["rows"] and not line["epoch"]):
            yield Finding(where, None, (), f"the line of lane {lane} contradicts itself: {line}")
        yield from _folder(folder, line["first"], version[lane], _owned(folder))
        yield from _lane(log, lane, folder, version[lane], checked, progress)
        checked += version[lane] - version.firsts[lane]


def _owned(folder: str) -> bool:
    # Whether a living writer holds the lane.  Our look at the lock lasts a microsecond.
    try:
        fd = os.open(os.path.join(folder, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _folder(folder: str, first: int, rows: int, owned: bool) -> Iterator[Finding]:
    known = {os.path.basename(path): base for base, path in recover.list_segments(folder)}
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        if rows:
            yield Finding(folder, None, (), f"cannot be read: {e.strerror}")
        return
    for name in names:
        path = os.path.join(folder, name)
        if name in known and known[name] < first:
            yield Finding(path, None, (), "removed by retention, which was cut off: its next step unlinks it", False)
        elif name == "lock" or known.get(name, rows) < rows or owned:
            continue
        elif name in known or recover.is_temporary(name):
            yield Finding(path, None, (), "left by a writer that died; the next writer removes it", False)
        else:
            yield Finding(path, None, (), "is not part of a MultiLog", False)


def _lane(
    log: Log, lane: int, folder: str, rows: int, checked: int, progress: Callable[[int], None] | None
) -> Iterator[Finding]:
    line = log.control.lane(lane)
    sealed, expected = line["sealed"], line["first"]
    begin = expected
    segments = [(base, path) for base, path in recover.list_segments(folder, expected) if base < rows]
    for i, (base, path) in enumerate(segments):
        limit = base + log.segment_rows
        end = min(segments[i + 1][0] if i + 1 < len(segments) else limit, limit)
        expected = max(expected, log.control.first(lane))
        if base < expected:
            continue  # retention has come by since we listed the folder
        if base != expected:
            yield Finding(folder, None, (), f"rows {expected} to {base - 1} are missing")
        seal = max(min(sealed, end) - base, 0)
        findings: list[Finding] = []
        have = 0
        try:
            have = _segment(log, lane, base, path, seal, min(end, rows) - base, findings.append)
        except OSError as e:
            findings.append(Finding(path, None, (), f"cannot be read: {e.strerror}"))
        if findings and log.control.first(lane) > base:
            continue
        yield from findings
        expected = base + have if have else end
        if progress is not None:
            progress(checked + min(end, rows) - begin)
        if not seal and line["boot"] not in (0, recover.boot_id()):
            yield Finding(path, None, (), "unsealed since before the last boot: rows may be lost if power was", False)
    expected = max(expected, log.control.first(lane))
    if expected < rows:
        yield Finding(folder, None, (), f"rows {expected} to {rows - 1} are missing")


def _segment(
    log: Log, lane: int, base: int, path: str, sealed: int, rows: int, tell: Callable[[Finding], None]
) -> int:
    # Returns the rows that are sealed, 0 for a segment that grows or is damaged as a whole.
    damage: list[tuple[str, int | None, str]] = []
    try:
        segment = log._open_segment(path, lane, base, sealed, damage)
    except ValueError as e:
        tell(Finding(path, None, (), str(e)))
        return 0
    except OSError as e:
        tell(Finding(path, None, (), f"cannot be opened: {e.strerror}"))
        return 0
    rows = min(rows, segment.sealed) if segment.sealed else rows
    reasons = [reason for _, _, reason in damage]
    reasons += [reason for reason in segment.check_trailer() if reason not in reasons]
    for reason in reasons:
        tell(Finding(path, None, (), reason))
    found: dict[tuple[int | None, tuple[str, ...]], list[int]] = {}
    for page in segment.bad_pages():
        block, columns = segment.name_page(page)
        found.setdefault((block, tuple(columns)), []).append(page)
    for (block, names), pages in found.items():
        part = "its header" if block is None else f"column {' or '.join(names)}" if names else "the head of the block"
        where = f"{len(pages)} page{'s' * (len(pages) > 1)} from byte {pages[0] * 4096}"
        tell(Finding(path, block, names, f"{part} is damaged ({where})"))
    bad = {block for block, _ in found}
    for number in range(-(-rows // segment.capacity)):
        if number not in bad:
            damage.clear()
            segment.block(number, min(rows - number * segment.capacity, BLOCK_ROWS))
            for _, _, reason in damage:
                tell(Finding(path, number, (), reason))
    return segment.sealed
