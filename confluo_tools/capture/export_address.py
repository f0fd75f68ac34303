"""Where exporters send to: the values of --netflow and --sflow."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from confluo_tools.endpoint import listen_address
from confluo_tools.errors import UsageError

MAX_ADDRESSES = 64


class ExportAddress(NamedTuple):
    """An address and a port; ``host`` ``::`` is any address.  ``sflow``: sFlow, else NetFlow and IPFIX."""

    host: str
    port: int
    sflow: bool

    @property
    def packed(self) -> bytes | None:
        """16 bytes, IPv4 as ::ffff:a.b.c.d; None: any."""
        return None if self.host in ("::", "0.0.0.0") else sixteen(self.host)


def sixteen(host: str) -> bytes:
    address = ip_address(host)
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def shown(address: bytes) -> str:
    """The address of 16 bytes as text."""
    six = IPv6Address(address)
    return str(six.ipv4_mapped or six)


def export_addresses(netflow: Sequence[str] | None, sflow: Sequence[str] | None) -> list[ExportAddress]:
    """The addresses of the options.  Raises UsageError."""
    found = []
    for option, texts, is_sflow in (("--netflow", netflow, False), ("--sflow", sflow, True)):
        for text in texts or ():
            host, port = listen_address.parse(text, option)
            found.append(ExportAddress(host, port, is_sflow))
    if len(found) > MAX_ADDRESSES:
        raise UsageError(f"{len(found)} addresses exceed the limit", hint=f"use at most {MAX_ADDRESSES}")
    return found
