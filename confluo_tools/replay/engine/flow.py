"""Flows as text: 10.0.0.1:4711-10.0.0.2:8080/tcp, [fd00::1]:4711-[fd00::2]:8080/tcp."""

from __future__ import annotations

import re
import socket

from confluo_tools.errors import UsageError
from confluo_tools.replay.recording import FiveTuple

_END = r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):(\d{1,5})"
_FLOW = re.compile(rf"{_END}-{_END}(?:/tcp)?$")


def parse_flow(text: str) -> FiveTuple:
    """The five-tuple of a flow.  Raises UsageError."""
    match = _FLOW.match(text)
    try:
        if match is None:
            raise ValueError
        six, four, port, peer_six, peer_four, peer_port = match.groups()
        if (six is None) != (peer_six is None) or max(int(port), int(peer_port)) > 65535:
            raise ValueError
        family = socket.AF_INET if six is None else socket.AF_INET6
        ends = [
            socket.inet_ntop(family, socket.inet_pton(family, address))
            for address in (six or four, peer_six or peer_four)
        ]
    except (ValueError, OSError):
        hint = "write it as 10.0.0.1:4711-10.0.0.2:8080/tcp or [fd00::1]:4711-[fd00::2]:8080/tcp"
        raise UsageError(f"'{text[:80]}' is not a flow", where="--flow", hint=hint) from None
    return FiveTuple(4 if family == socket.AF_INET else 6, ends[0], int(port), ends[1], int(peer_port))
