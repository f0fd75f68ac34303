"""Whose the files in a log are: its owner's, also when root makes them.

A capture begun by root goes on as another user (-Z).  A view that root adds later, or a lane that root claims, must
be that user's, or the capture could not go on with it.
"""

from __future__ import annotations

import os
import stat


def give(log_path: str, *paths: str) -> None:
    """Let files and folders just made in the log be its owner's.  Does nothing unless we are root.

    The owner may put something else in their place: what is not root's, or has a second name, is left alone.
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
