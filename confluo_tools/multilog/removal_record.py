"""The second copy of the `first` words: LOG/retain.lock has a line per lane with the first row that retention kept.

Written before the word in the control page, so that one flipped bit there neither hides rows nor removes files.  A line
is ``LANE FIRST CRC``, in decimal and hexadecimal.  A file without lines: nothing was removed, or by an old program.
"""

from __future__ import annotations

import os

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import crc
from confluo_tools.multilog.ownership import as_owner

LOCK = "retain.lock"
MAX_BYTES = 1 << 20


def _line(lane: int, first: int) -> str:
    text = f"{lane} {first}"
    return f"{text} {crc(text.encode()):08x}"


def _read(log_path: str) -> dict[int, int]:
    try:
        fd = open_log_file(os.path.join(log_path, LOCK))
    except OSError:
        return {}
    try:
        lines = os.pread(fd, MAX_BYTES, 0).decode("ascii", "replace").splitlines()
    finally:
        os.close(fd)
    found = {}
    for line in lines:
        words = line.split(" ")
        if len(words) == 3 and all(w.isdigit() and len(w) < 20 for w in words[:2]):
            lane, first = int(words[0]), int(words[1])
            if line == _line(lane, first):
                found[lane] = first
    return found


def recorded(log_path: str, lane: int) -> int:
    """Rows of ``lane`` below this were removed, or are being removed; 0 if there is no record."""
    return _read(log_path).get(lane, 0)


def record(log_path: str, firsts: dict[int, int]) -> None:
    """Record that rows below ``firsts[lane]`` are removed.  The caller holds the lock.  Raises OSError."""
    known = _read(log_path)
    lines = [_line(lane, max(first, known.get(lane, 0))) for lane, first in sorted({**known, **firsts}.items())]
    with as_owner(log_path):
        fd = open_log_file(os.path.join(log_path, LOCK), os.O_CREAT | os.O_RDWR)
    try:
        data = ("\n".join(lines) + "\n").encode()
        os.pwrite(fd, data, 0)  # lines only grow: a line of the old content behind the new one has its own checksum
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
