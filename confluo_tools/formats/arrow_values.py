"""Arrow values made of Python's without pandas: where it is installed, `pa.array` and `pa.scalar` load it for 0.3 s."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from confluo_tools.formats.absent import validity

UNITS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}  # ns


def texts(values: Sequence[bytes | None]) -> Any:
    """An array of UTF-8 texts; None is null."""
    import pyarrow as pa

    ends = array("i", accumulate((len(value or b"") for value in values), initial=0))
    data = b"".join(value for value in values if value)
    bits = None
    if None in values:
        bits = pa.py_buffer(validity(bytes(value is not None for value in values)))
    return pa.Array.from_buffers(pa.utf8(), len(values), [bits, pa.py_buffer(ends), pa.py_buffer(data)])


def text(value: bytes | None) -> Any:
    """A scalar: UTF-8 text, or null."""
    return texts([value])[0]


def numbers(values: Sequence[int], kind: Any) -> Any:
    """An array of integers of the Arrow type ``kind``: int64 or uint64."""
    import pyarrow as pa

    data = array("q" if pa.types.is_signed_integer(kind) else "Q", values)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])
