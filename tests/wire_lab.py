"""Frames of the protocol of confluo serve, by hand."""

from __future__ import annotations

import struct
from typing import Any

from confluo_tools import store
from confluo_tools.remote import wire

HELLO = wire.hello("test")
SECOND = 1_000_000_000


def query(path: Any, **more: Any) -> bytes:
    return wire.frame(wire.QUERY, {"path": str(path), **more})


def freeze(mark: int, ns: int = SECOND) -> bytes:
    return wire.head(wire.FREEZE, 16) + struct.pack("<QQ", mark, ns)


def thaw(mark: int) -> bytes:
    return wire.head(wire.THAW, 8) + struct.pack("<Q", mark)


def opened(*paths: Any) -> bytes:
    return wire.frame(wire.OPEN, {"logs": [str(p) for p in paths]})


def frozen(log: store.Log) -> int:
    return sum(log.control.lane(i)["freezes"] for i in range(log.control.claimed))
