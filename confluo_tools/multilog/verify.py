"""Verify a MultiLog: checksums of every page of sealed segments, structure of all other files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.multilog import lane_claim
from confluo_tools.multilog.log import BLOCK_ROWS, Log


class VerifyFinding(NamedTuple):
    """One problem found in a log.

    ``block``: number of the block in the segment, None if it concerns no single block; ``columns``: columns with
    wrong bytes.  ``damage`` is False for information only, such as a segment that is not sealed yet.
    """

    path: str
    block: int | None
    columns: tuple[str, ...]
    what: str
    damage: bool = True

    def __str__(self) -> str:
        where = self.path if self.block is None else f"{self.path}: block {self.block}"
        return f"{where}: {self.what}"


def verify(log: Log, progress: Callable[[int], None] | None = None) -> Iterator[VerifyFinding]:
    """Yield the problems of a log.  Reads the whole log; readers and writers may continue.

    ``progress`` is called with the number of rows checked so far.  Every changed bit in a sealed segment is found.
    Segments that are still written have no checksums; only their structure is checked.
    """
    from confluo_tools.multilog.archive.links import ARCHIVES, read_links

    version = log.version()
    control = log.control
    _, problem = read_links(log.path)
    if problem:
        yield VerifyFinding(os.path.join(log.path, ARCHIVES), None, (), problem)
    checked = 0
    for lane in range(control.lanes):
        line, folder = control.lane(lane), lane_claim.lane_folder(log.path, lane)
        where = f"{log.path}/control"
        if lane >= len(version):
            if line["rows"] and lane >= control.claimed:
                yield VerifyFinding(where, None, (), f"lane {lane} has rows but was never claimed")
            continue
        wrong = line["sealed"] > line["rows"] or line["first"] > control.sealed(lane)
        if wrong or (line["rows"] and not line["epoch"]):
            yield VerifyFinding(where, None, (), f"the control line of lane {lane} is inconsistent: {line}")
        for path, _, reason in log.damage:
            if path == log.control.path and reason.startswith(f"the line of lane {lane} ") and not wrong:
                yield VerifyFinding(where, None, (), reason)
        yield from _folder(folder, version.firsts[lane], version[lane], lane_is_owned(folder))
        yield from _lane(log, lane, folder, version[lane], checked, progress)
        checked += version[lane] - version.firsts[lane]


def lane_is_owned(folder: str) -> bool:
    # Whether a live writer holds the lane.  Taking the lock to find out lasts a microsecond.
    try:
        fd = open_log_file(os.path.join(folder, "lock"))
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _folder(folder: str, first: int, rows: int, owned: bool) -> Iterator[VerifyFinding]:
    known = {os.path.basename(path): base for base, path in lane_claim.list_segments(folder)}
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        if rows:
            yield VerifyFinding(folder, None, (), f"cannot be read: {e.strerror}")
        return
    for name in names:
        path = os.path.join(folder, name)
        if name in known and known[name] < first:
            yield VerifyFinding(
                path, None, (), "removed by an interrupted retention step; the next step unlinks it", False
            )
        elif name == "lock" or known.get(name, rows) < rows or owned:
            continue
        elif name in known or lane_claim.is_temporary(name):
            yield VerifyFinding(path, None, (), "left by a dead writer; the next writer removes it", False)
        else:
            yield VerifyFinding(path, None, (), "is not part of a MultiLog", False)


def _lane(
    log: Log, lane: int, folder: str, rows: int, checked: int, progress: Callable[[int], None] | None
) -> Iterator[VerifyFinding]:
    line = log.control.lane(lane)
    sealed, expected = line["sealed"], log.first(lane)
    begin = expected
    segments = [(base, path) for base, path in lane_claim.list_segments(folder, expected) if base < rows]
    for i, (base, path) in enumerate(segments):
        limit = base + log.segment_rows
        end = min(segments[i + 1][0] if i + 1 < len(segments) else limit, limit)
        expected = max(expected, log.first(lane))
        if base < expected:
            continue  # removed by retention since the folder was listed
        if base != expected:
            yield VerifyFinding(folder, None, (), f"rows {expected} to {base - 1} are missing")
        seal = max(min(sealed, end) - base, 0)
        findings: list[VerifyFinding] = []
        have = 0
        try:
            have = _segment(log, lane, base, path, seal, min(end, rows) - base, findings.append)
        except OSError as e:
            findings.append(VerifyFinding(path, None, (), f"cannot be read: {e.strerror}"))
        if findings and log.first(lane) > base:
            continue
        yield from findings
        expected = base + have if have else end
        if progress is not None:
            progress(checked + min(end, rows) - begin)
        if not seal and line["boot"] not in (0, lane_claim.boot_id()):
            yield VerifyFinding(
                path, None, (), "unsealed since before the last boot: rows may be lost after a power failure", False
            )
    expected = max(expected, log.first(lane))
    if expected < rows:
        yield VerifyFinding(folder, None, (), f"rows {expected} to {rows - 1} are missing")


def _segment(
    log: Log, lane: int, base: int, path: str, sealed: int, rows: int, report: Callable[[VerifyFinding], None]
) -> int:
    # Returns the number of sealed rows, 0 for a growing segment or one that cannot be opened.
    damage: list[tuple[str, int | None, str]] = []
    try:
        segment = log.open_segment(path, lane, base, sealed, damage)
    except ValueError as e:
        report(VerifyFinding(path, None, (), str(e)))
        return 0
    except OSError as e:
        report(VerifyFinding(path, None, (), f"cannot be opened: {e.strerror}"))
        return 0
    rows = min(rows, segment.sealed) if segment.sealed else rows
    reasons = [reason for _, _, reason in damage]
    reasons += [reason for reason in segment.check_trailer() if reason not in reasons]
    for reason in reasons:
        report(VerifyFinding(path, None, (), reason))
    found: dict[tuple[int | None, tuple[str, ...]], list[int]] = {}
    for page in segment.bad_pages():
        block, columns = segment.name_page(page)
        found.setdefault((block, tuple(columns)), []).append(page)
    for (block, names), pages in found.items():
        part = "its header" if block is None else f"column {' or '.join(names)}" if names else "the head of the block"
        where = f"{len(pages)} page{'s' * (len(pages) > 1)} from byte {pages[0] * 4096}"
        report(VerifyFinding(path, block, names, f"{part} is damaged ({where})"))
    bad = {block for block, _ in found}
    for number in range(-(-rows // segment.capacity)):
        if number not in bad:
            damage.clear()
            opened = segment.block(number, min(rows - number * segment.capacity, BLOCK_ROWS))
            if opened is not None and segment.codec:
                opened.check()  # the checksums are right; whether the columns can be decompressed is not known yet
            for _, _, reason in damage:
                report(VerifyFinding(path, number, (), reason))
    return segment.sealed
