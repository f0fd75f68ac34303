"""Rows with times, in sealed segments of chosen ages: for tests of retention and archives."""

from __future__ import annotations

import numpy as np

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.schema import Field, Schema

TIMED = Schema("timed", [Field("ts", "time"), Field("writer", "u32"), Field("seq", "u64")])
SECOND = 1_000_000_000


def block(writer: int, start: int, rows: int, ts: int) -> Block:
    """Rows start.. of ``writer``; all but the last are a second older than ``ts``, the last is of ``ts``."""
    times = np.full(rows, ts - SECOND, "<i8")
    times[-1] = ts
    seq = np.arange(start, start + rows, dtype="<u8")
    return Block.wrap(TIMED.layout, rows, [times.tobytes(), np.full(rows, writer, "<u4").tobytes(), seq.tobytes()])


def fill(log: multilog.Log, *segments: tuple[int, int]) -> None:
    """One sealed segment of (rows, newest second) each, in lane 0."""
    at = log.version()[0]
    for rows, ts in segments:
        with log.writer(ahead=-1) as writer:
            writer.append(block(0, at, rows, ts * SECOND))
        at += rows
