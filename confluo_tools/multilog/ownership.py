"""Files that root creates in a log are chowned to the log's owner.

A capture started by root continues as another user (-Z).  That user must own the views that root adds later and the
lanes that root claims, otherwise the capture could not write to them.
"""

from __future__ import annotations

import os
import stat


def chown_to_owner(log_path: str, *paths: str) -> None:
    """Chown files and folders just created in the log to its owner.  Does nothing unless run as root.

    The owner may have replaced a file in the meantime: files that root does not own, and files with several links,
    are left unchanged.
    """
    if os.geteuid() != 0:
        return
    owner = os.stat(log_path)
    if owner.st_uid == 0:
        return
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            made = os.fstat(fd)
            alone = stat.S_ISDIR(made.st_mode) or (stat.S_ISREG(made.st_mode) and made.st_nlink == 1)
            if made.st_uid == 0 and alone:
                os.fchown(fd, owner.st_uid, owner.st_gid)
        finally:
            os.close(fd)
