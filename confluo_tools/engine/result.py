"""Results: what a run of units gave, as bytes with a checksum."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.engine.partial import Partial

MAGIC = b"CFPART\0\1"
_HEAD = struct.Struct("<8sIQQ")  # magic, checksum of the rest, bytes of the JSON, bytes of the state

Problems = list[tuple[str, str]]  # (path, what is wrong)


class Result(NamedTuple):
    """``rows`` that were selected, of ``scanned`` in archives; what is to be said.

    ``state``: of another process; of this one it is the partial itself.

    ``left_out``: parts with rows that are missing; ``unused``: parts of views that were not used.
    """

    rows: int
    state: bytes | Partial
    left_out: Problems
    unused: Problems
    scanned: int

    def encode(self) -> bytes:
        """The result as bytes."""
        return _packed([self.rows, self.left_out, self.unused, self.scanned], self.dumped)

    @property
    def dumped(self) -> bytes:
        """The state as bytes."""
        return self.state if isinstance(self.state, bytes) else self.state.dump()

    def merge_into(self, partial: Partial) -> None:
        """Add the state to ``partial``.  Raises ValueError if it is not valid."""
        if isinstance(self.state, bytes):
            partial.merge(self.state)
        else:
            partial.absorb(self.state)


def encode_error(error: ConfluoError) -> bytes:
    """An error of the worker as the bytes of a result."""
    return _packed({"what": error.what, "where": error.where, "hint": error.hint}, b"")


def decode(data: bytes | bytearray | memoryview) -> Result:
    """The result in ``data``.  Raises ValueError if it is damaged; ConfluoError: the error that it reports."""
    data = memoryview(data)
    if len(data) < _HEAD.size:
        raise ValueError("a result was cut off")
    magic, crc, size, state = _HEAD.unpack_from(data)
    if magic != MAGIC or len(data) != _HEAD.size + size + state or zlib.crc32(data[12:]) != crc:
        raise ValueError("a result is damaged")
    head = json.loads(bytes(data[_HEAD.size : _HEAD.size + size]))
    if isinstance(head, dict):
        raise ConfluoError(head["what"], where=head["where"], hint=head["hint"])
    rows, left_out, unused, scanned = head
    problems = [[(path, what) for path, what in some] for some in (left_out, unused)]
    return Result(rows, bytes(data[_HEAD.size + size :]), problems[0], problems[1], scanned)


def _packed(head: Any, state: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    rest = struct.pack("<QQ", len(text), len(state)) + text
    return b"".join((MAGIC, zlib.crc32(state, zlib.crc32(rest)).to_bytes(4, "little"), rest, state))
