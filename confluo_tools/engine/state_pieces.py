"""A state that consists of other states, as bytes: their number, their lengths, and the states."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def pack(pieces: Sequence[bytes]) -> bytes:
    """The pieces as bytes."""
    return b"".join([struct.pack(f"<{len(pieces) + 1}Q", len(pieces), *map(len, pieces)), *pieces])


def unpack(data: bytes | memoryview, number: int | None = None) -> list[bytes]:
    """The pieces, which must be ``number``.  Raises ValueError."""
    if len(data) < 8:
        raise ValueError("the state of a share is cut off")
    (n,) = struct.unpack_from("<Q", data)
    if n > len(data) // 8 - 1 or (number is not None and n != number):
        raise ValueError("the state of a share has another number of parts")
    sizes = struct.unpack_from(f"<{n}Q", data, 8)
    at = 8 * n + 8
    if at + sum(sizes) != len(data):
        raise ValueError("the state of a share has another length")
    out = []
    for size in sizes:
        out.append(bytes(data[at : at + size]))
        at += size
    return out
