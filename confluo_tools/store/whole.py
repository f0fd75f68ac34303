"""Files that are there whole, with their new words or their old ones, at whatever instant somebody dies."""

from __future__ import annotations

import os
from contextlib import suppress

from confluo_tools.core.control import fault
from confluo_tools.store.create import sync_folder


def replace(path: str, data: bytes, *, sync: bool = False, point: str = "") -> None:
    """``data`` is what the file holds from now on; with ``sync`` also after the power fails.

    ``point``: the fault point before the new file takes the name.  Raises OSError, and then nothing has changed.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as f:
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
