"""Messages on a control socket: JSON objects, one a line, of bounded size.

Requests are ``{"do": "status"}`` and ``{"do": "set", "flows": TEXT}``.  The answer is a `Look`,
``{"changed": [LINE...]}`` or ``{"error": {"what": TEXT, "where": TEXT, "hint": TEXT}}``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.remote.frame_codec import get
from confluo_tools.stream.stage_counts import MAX_NAME, STAGES, StageCount

MAX_REQUEST = 1 << 20  # bytes of a line
MAX_ANSWER = 16 << 20
MAX_ROWS = 65536  # stages of a run
MAX_TEXT = 4096  # characters of a line that is printed
MAX_PATH = 107  # bytes of the path of a socket: unix(7)


class Look(NamedTuple):
    """The stages of a run at one instant.  ``ts``: ns since 1970; ``at``: ns of a clock that is never set."""

    run: str
    host: str
    pid: int
    ts: int
    at: int
    rows: list[StageCount]

    def message(self) -> dict[str, Any]:
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def encode(value: dict[str, Any]) -> bytes:
    import json

    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def look(message: dict[str, Any]) -> Look:
    """The `Look` in an answer.  Raises ValueError."""
    rows = get(message, "rows", list)
    if len(rows) > MAX_ROWS:
        raise ValueError("invalid 'rows' in message")
    return Look(
        run=_text(message, "run"),
        host=_text(message, "host"),
        pid=_count(message, "pid"),
        ts=_count(message, "ts"),
        at=_count(message, "at"),
        rows=[_row(row) for row in rows],
    )


def lines(message: dict[str, Any], key: str) -> list[str]:
    """A list of lines.  Raises ValueError."""
    found = get(message, key, list)
    if len(found) > MAX_ROWS or not all(isinstance(line, str) for line in found):
        raise ValueError(f"invalid '{key}' in message")
    return [line[:MAX_TEXT] for line in found]


def error(message: dict[str, Any]) -> ConfluoError:
    """The error in an answer.  Raises ValueError."""
    found = get(message, "error", dict)
    what, where, hint = (get(found, key, str, "")[:MAX_TEXT] for key in ("what", "where", "hint"))
    return ConfluoError(what or "failed", where=where, hint=hint)


def _row(value: Any) -> StageCount:
    if not isinstance(value, dict):
        raise ValueError("invalid 'rows' in message")
    stage = get(value, "stage", str)
    if stage not in STAGES:
        raise ValueError("invalid 'stage' in message")
    counters = StageCount._fields[2:]
    return StageCount(stage, _text(value, "name"), *(_count(value, key, 0) for key in counters))


def _text(value: dict[str, Any], key: str) -> str:
    return str(get(value, key, str))[:MAX_NAME]


def _count(value: dict[str, Any], key: str, default: Any = ...) -> int:
    found: int = get(value, key, int, default)
    if found < 0:
        raise ValueError(f"invalid '{key}' in message")
    return found


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name of ``path`` that the address of a socket has room for."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def peer(sock: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end: SO_PEERCRED of unix(7)."""
    import struct

    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
