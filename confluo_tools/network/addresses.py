"""Addresses of servers: their canonical text, with or without a port."""

from __future__ import annotations

import re

from confluo_tools import units

_ADDRESS_PORT = re.compile(
    r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[\d.]+))(:(?P<port>[0-9]{1,5}))?|(?P<bare>[0-9A-Fa-f:.]+)"
)


def canonical(text: str) -> str | None:
    """An address in canonical form; None when a server cannot have it (multicast, link-local, unspecified)."""
    four = units.try_ip4(text)
    if four is not None:
        return units.format_ip4(four) if 1 << 24 <= four < 224 << 24 else None
    six = units.try_ip6(text)
    if six is None or six[0] == 255 or six == bytes(16):
        return None
    if six[0] == 0xFE and six[1] & 0xC0 == 0x80:  # link-local: ambiguous without an interface
        return None
    if six[:12] == bytes(10) + b"\xff\xff":
        return canonical(units.format_ip4(int.from_bytes(six[12:], "big")))
    return units.format_ip6(six)


def address_port(text: str, port: int) -> tuple[str, int] | None:
    """Parse ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT; ``port`` is the default.  None when it is malformed."""
    match = _ADDRESS_PORT.fullmatch(text)
    if match is None:
        return None
    if match["port"] is not None:
        port = int(match["port"])
        if not 1 <= port <= 65535:
            return None
    address = canonical(match["six"] or match["bare"] or match["four"])
    return None if address is None else (address, port)
