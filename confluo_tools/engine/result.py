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
_SIZE = struct.Struct("<Q")  # bytes of the JSON

Problems = list[tuple[str, str]]  # (path, what is wrong)


class Result(NamedTuple):
    """``rows`` that were selected, of ``scanned`` in archives; what is to be said.

    ``state``: of another process; of this one it is the partial itself.

    ``left_out``: parts with rows that are missing; ``unused``: parts of views that were not used.
    """

    rows: int
    state: bytes | memoryview | Partial
    left_out: Problems
    unused: Problems
    scanned: int

    def encode(self) -> bytes:
        """The result as bytes."""
        return _packed(self._head, self.dumped)

    def pieces(self) -> list[bytes]:
        """The result for another process of this host: `of_pieces` takes them, one after the other."""
        text = _text(self._head)
        state = [self.state] if isinstance(self.state, bytes | memoryview) else self.state.pieces()
        return [_SIZE.pack(len(text)), text, *state]

    @property
    def _head(self) -> list[Any]:
        return [self.rows, self.left_out, self.unused, self.scanned]

    @property
    def dumped(self) -> bytes | memoryview:
        """The state as bytes."""
        return self.state if isinstance(self.state, bytes | memoryview) else self.state.dump()

    def merge_into(self, partial: Partial) -> None:
        """Add the state to ``partial``.  Raises ValueError if it is not valid."""
        if isinstance(self.state, bytes | memoryview):
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
    return _result(head, bytes(data[_HEAD.size + size :]))


def of_pieces(data: memoryview) -> Result:
    """The result that `Result.pieces` gave; its state is a part of ``data``."""
    (size,) = _SIZE.unpack_from(data)
    after = _SIZE.size + size
    return _result(json.loads(bytes(data[_SIZE.size : after])), data[after:])


def _result(head: Any, state: bytes | memoryview) -> Result:
    rows, left_out, unused, scanned = head
    problems = [[(path, what) for path, what in some] for some in (left_out, unused)]
    return Result(rows, state, problems[0], problems[1], scanned)


def _text(head: Any) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


def _packed(head: Any, state: bytes | memoryview) -> bytes:
    text = _text(head)
    rest = struct.pack("<QQ", len(text), len(state)) + text
    return b"".join((MAGIC, zlib.crc32(state, zlib.crc32(rest)).to_bytes(4, "little"), rest, state))
