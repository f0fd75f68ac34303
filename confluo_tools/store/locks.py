"""Waiting for a lock file that somebody else may hold: the kernel lets go of it when its holder dies."""

from __future__ import annotations

import fcntl
import time

from confluo_tools.errors import BusyError

PAUSE = 0.02  # s between two tries


def lock(fd: int, wait: float, busy: BusyError) -> None:
    """Lock the open file ``fd``; raises ``busy`` when somebody else has it, and still has after ``wait`` seconds."""
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise busy from None
            time.sleep(PAUSE)
