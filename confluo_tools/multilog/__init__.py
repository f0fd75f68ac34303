"""The MultiLog: a folder of lanes of Arrow segments, with concurrent writers and lock-free readers.

    log = multilog.create("trace.ml", schema.builtin("packet"))     log = multilog.open("trace.ml")
    with log.writer() as writer:                                 version = log.version()
        writer.append(block)                                     for block in log.blocks(version): ...

Guarantees: multilog(5).  File format: docs/format.md.

Where to find what:
    create, open_log, log       make, open, read and write a log; `version` is a consistent cut through its lanes
    lane_claim                  lock a lane; seal the segments of writers that died
    retain, verify, snapshot    remove old segments; check every byte; cuts through several logs
    tail, tails                 follow the new rows
    query/                      query plan, aggregation, derived fields, state definitions
    views/                      indexes, filters, aggregates, states; `views.registry` is the table of kinds
    archive/                    Parquet archives of older rows
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.multilog.log import Log, LogWriter
from confluo_tools.multilog.version import Version

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

__all__ = ["Log", "LogWriter", "Version", "create", "is_log", "open"]


def create(
    path: str | os.PathLike[str],
    schema: Schema,
    *,
    sync: str = "none",
    lanes: int = 256,
    segment_blocks: int = 16,
    argv: Sequence[str] | None = None,
    uuid: bytes | None = None,
) -> Log:
    """Create an empty MultiLog and open it: see `confluo_tools.multilog.create.create`."""
    from confluo_tools.multilog.create import create as make

    make(path, schema, sync=sync, lanes=lanes, segment_blocks=segment_blocks, argv=argv, uuid=uuid)
    return Log(path)


def open(path: str | os.PathLike[str], *, readonly: bool = False) -> Log:
    """Open a MultiLog.  Raises StoreError when it is not a MultiLog, or damaged."""
    return Log(path, readonly=readonly)


def is_log(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a MultiLog: a folder with a control page."""
    return os.path.isfile(os.path.join(path, "control"))
