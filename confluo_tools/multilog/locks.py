"""Lock a file with flock(2), with a timeout.  The kernel releases the lock when the holder dies."""

from __future__ import annotations

import fcntl
import os
import time

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.errors import BusyError, StoreError
from confluo_tools.multilog.ownership import as_owner

PAUSE = 0.02  # s between two attempts


def open_lock(log_path: str, name: str) -> int:
    """Open the lock file ``name`` in the folder of a log, created if missing.  Raises StoreError."""
    path = os.path.join(log_path, name)
    try:
        with as_owner(log_path):
            return open_log_file(path, os.O_CREAT | os.O_RDWR)
    except OSError as e:
        raise StoreError(f"cannot be opened: {e.strerror}", where=path) from None


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
