"""Root acts as the owner of a log when it changes files in it.

A capture started by root continues as another user (-Z).  That user must own the views that root adds later and the
lanes that root claims.  And that user may put links into the log, at any time: as the owner of the log, root can reach
through them nothing that the owner could not reach.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from confluo_tools.core.base.log_file import FileSystemUser


def foreign_owner(log_path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """(uid, gid) of the owner of a log's folder if this process is root and the owner is not; else None."""
    if os.geteuid() != 0:
        return None
    owner = os.stat(log_path)
    return (owner.st_uid, owner.st_gid) if owner.st_uid else None


def as_owner(log_path: str | os.PathLike[str]) -> AbstractContextManager[object]:
    """A context in which this thread changes files as the owner of the log, if it is root's.  Else it does nothing.

    Modules must not be loaded in it: the owner may not be able to read them.
    """
    owner = foreign_owner(log_path)
    return nullcontext() if owner is None else FileSystemUser(*owner)
