"""The MultiLog: a folder of lanes of Arrow segments, written by many and read by all, without locks.

    log = store.create("trace.ml", schema.builtin("packet"))     log = store.open("trace.ml")
    with log.writer() as writer:                                 version = log.version()
        writer.append(block)                                     for block in log.blocks(version): ...

multilog(5) tells the promises, docs/format.md the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.store.log import Log, Writer
from confluo_tools.store.version import Version

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

__all__ = ["Log", "Version", "Writer", "create", "is_log", "open"]


def create(
    path: str | os.PathLike[str],
    schema: Schema,
    *,
    sync: str = "none",
    lanes: int = 256,
    segment_blocks: int = 16,
    argv: Sequence[str] | None = None,
) -> Log:
    """Make an empty MultiLog and open it: see `confluo_tools.store.create.create`."""
    from confluo_tools.store.create import create as make

    make(path, schema, sync=sync, lanes=lanes, segment_blocks=segment_blocks, argv=argv)
    return Log(path)


def open(path: str | os.PathLike[str], *, readonly: bool = False) -> Log:
    """Open a MultiLog.  Raises StoreError when it is none, or a damaged one."""
    return Log(path, readonly=readonly)


def is_log(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a MultiLog: a folder with a control page."""
    return os.path.isfile(os.path.join(path, "control"))
