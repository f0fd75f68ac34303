"""Frames of the protocol of confluo serve, by hand."""

from __future__ import annotations

import struct
from typing import Any

from confluo_tools import multilog
from confluo_tools.remote import frame_codec

HELLO = frame_codec.hello("test")
SECOND = 1_000_000_000


def query(path: Any, **more: Any) -> bytes:
    return frame_codec.frame(frame_codec.QUERY, {"path": str(path), **more})


def freeze(mark: int, ns: int = SECOND) -> bytes:
    return frame_codec.head(frame_codec.FREEZE, 16) + struct.pack("<QQ", mark, ns)


def thaw(mark: int) -> bytes:
    return frame_codec.head(frame_codec.THAW, 8) + struct.pack("<Q", mark)


def opened(*paths: Any) -> bytes:
    return frame_codec.frame(frame_codec.OPEN, {"logs": [str(p) for p in paths]})


def frozen(log: multilog.Log) -> int:
    return sum(log.control.lane(i)["freezes"] for i in range(log.control.claimed))
