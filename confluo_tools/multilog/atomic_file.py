"""Atomic file replacement: write, fsync, rename.  After a crash the file has the old or the new content."""

from __future__ import annotations

import os
from contextlib import suppress

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import fault
from confluo_tools.multilog.create import sync_folder
from confluo_tools.multilog.ownership import as_owner


def replace(path: str, data: bytes, *, sync: bool = False, point: str = "") -> None:
    """Replace the content of the file ``path`` in a log's folder; with ``sync`` it survives a power failure.

    ``point``: name of the fault point before the rename.  On OSError the old file is unchanged.
    """
    with as_owner(os.path.dirname(path)):
        _replace(path, data, sync, point)


def _replace(path: str, data: bytes, sync: bool, point: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb", opener=open_log_file) as f:
            f.write(data)
            if sync:
                f.flush()
                os.fsync(f.fileno())
        if point:
            fault(point)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_folder(os.path.dirname(path))
