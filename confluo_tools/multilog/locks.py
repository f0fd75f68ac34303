"""Lock a file with flock(2), with a timeout.  The kernel releases the lock when the holder dies."""

from __future__ import annotations

import fcntl
import time

from confluo_tools.errors import BusyError

PAUSE = 0.02  # s between two attempts


def lock(fd: int, wait: float, busy: BusyError) -> None:
    """Lock the open file ``fd``; raises ``busy`` when another process still holds the lock after ``wait`` seconds."""
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise busy from None
            time.sleep(PAUSE)
