"""Frames: the messages of a connection to `confluo serve`, see docs/protocol.md.

A frame is a u32 (size of its body, at most 1 MiB), a kind, three zero bytes, and the body.
All received values are checked before use, sizes first.
"""

from __future__ import annotations

import os

from confluo_tools.core.multilog.freeze import FREEZE, FROZEN, HEAD_BYTES, MAX_FRAME, THAW, THAWED
from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.remote.ssh_process import ABILITIES, HELLO, PROTOCOL, hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ABILITIES", "FREEZE", "FROZEN", "HEAD_BYTES", "HELLO", "MAX_FRAME", "PROTOCOL", "THAW", "THAWED", "hello"]

HELLO_BYTES = 128  # at most
OPEN, QUERY, VIEWS, ARCHIVE = 1, 4, 5, 6  # client to server
OPENED, META, DATA, PARTIAL, END, ERROR, WARN, NOTE, ALIVE = 65, 68, 69, 70, 71, 72, 73, 74, 75  # server to client
KINDS = {
    OPEN: "open",
    QUERY: "query",
    VIEWS: "views",
    ARCHIVE: "archive",
    FREEZE: "freeze",
    THAW: "thaw",
    OPENED: "opened",
    META: "meta",
    DATA: "data",
    PARTIAL: "partial",
    END: "end",
    ERROR: "error",
    WARN: "warn",
    NOTE: "note",
    ALIVE: "alive",
    FROZEN: "frozen",
    THAWED: "thawed",
}
MAX_TEXT = 4096  # characters of a received message that are printed
MAX_DEPTH = 40  # levels of nested values in a body


def parse_hello(line: bytes) -> tuple[int, str, frozenset[str]]:
    """(protocol, version of the program, abilities beyond the first version of the protocol).  Raises ValueError."""
    if not line.startswith(HELLO) or not line.endswith(b"\n"):
        raise ValueError("no hello")
    words = line[len(HELLO) : -1].decode("ascii").split(" ")
    if len(words) < 2 or not words[0].isdigit() or len(words[0]) > 4 or not words[1].isprintable():
        raise ValueError("no hello")
    return int(words[0]), words[1], frozenset(words[2:])


def head(kind: int, size: int) -> bytes:
    return size.to_bytes(4, "little") + bytes((kind, 0, 0, 0))


def parse_head(data: bytes) -> tuple[int, int]:
    """(kind, size of the body).  Raises ValueError for an invalid header."""
    size, kind = int.from_bytes(data[:4], "little"), data[4]
    if kind not in KINDS or data[5:8] != b"\0\0\0":
        raise ValueError("invalid frame header")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes is too long")
    return kind, size


def frame(kind: int, value: Any) -> bytes:
    """A frame with a JSON body."""
    body = _encoded(value)
    if len(body) > MAX_FRAME:
        raise FormatError(f"a message of {len(body)} bytes is too long to send")
    return head(kind, len(body)) + body


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.  Raises ValueError."""
    import json

    try:
        value = json.loads(body.decode("utf-8", "surrogateescape"), parse_constant=_no_constant)
        if b"\\u" in body:
            _encoded(value)  # half of a surrogate pair could not be sent back in an error
    except (ValueError, RecursionError):
        raise ValueError("message is not JSON") from None
    if not isinstance(value, dict) or not _flat(value, MAX_DEPTH):
        raise ValueError("message is not an object")
    return value


def _encoded(value: Any) -> bytes:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _flat(value: Any, depth: int) -> bool:
    if isinstance(value, dict | list):
        return depth > 0 and all(_flat(v, depth - 1) for v in (value.values() if isinstance(value, dict) else value))
    return True


def get(message: dict[str, Any], key: str, kind: type, default: Any = ...) -> Any:
    """A value of a message, checked for its type.  Raises ValueError."""
    value = message.get(key, default)
    if value is ...:
        raise ValueError(f"message without '{key}'")
    if value is default:
        return value
    if not isinstance(value, kind) or (isinstance(value, int) and kind is int and not _integer(value)):
        raise ValueError(f"invalid '{key}' in message")
    return value


def _integer(value: int) -> bool:
    return not isinstance(value, bool) and abs(value) < 1 << 64


def texts(message: dict[str, Any], key: str, most: int = 1024) -> list[str]:
    value = get(message, key, list)
    if len(value) > most or not all(isinstance(v, str) and len(v) <= MAX_TEXT for v in value):
        raise ValueError(f"invalid '{key}' in message")
    return list(value)


def numbers(value: Any, most: int, limit: int) -> tuple[int, ...]:
    """A list of integers from 0 below ``limit``.  Raises ValueError."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("invalid numbers in message")
    if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < limit for v in value):
        raise ValueError("invalid numbers in message")
    return tuple(value)


def error_of(e: ConfluoError) -> dict[str, Any]:
    """An error as the body of an ERROR frame."""
    return {"what": e.what[:MAX_TEXT], "where": e.where[:MAX_TEXT], "hint": e.hint[:MAX_TEXT], "kind": type(e).__name__}


def write(fd: int, *pieces: bytes | memoryview) -> None:
    """Write all pieces.  Raises OSError."""
    left = [memoryview(p).cast("B") for p in pieces if len(p)]
    while left:
        done = os.writev(fd, left[:64])
        while left and done >= len(left[0]):
            done -= len(left[0])
            del left[0]
        if done:
            left[0] = left[0][done:]
