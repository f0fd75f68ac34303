"""Listen addresses in text: 127.0.0.1:8443, [::1]:8443, :8443."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from confluo_tools.errors import ConfluoError, UsageError


def parse(text: str, where: str, port: int | None = None, host: str = "::") -> tuple[str, int]:
    """Host and port of ``text``; without them ``host`` (all addresses of IPv4 and IPv6) and ``port``.

    Raises UsageError.
    """
    hint = "write e.g. 127.0.0.1:8443, [::1]:8443 or :8443"
    address, colon, digits = text.rpartition(":")
    if text.endswith("]") or not colon or (":" in address and not address.startswith("[")):
        address, colon, digits = text, "", ""
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else -1 if colon else port
    if number is None or not 0 <= number < 65536:
        raise UsageError(f"'{text[:60]}' has no port", where=where, hint=hint)
    try:
        return str(ip_address(address)) if address else host, number
    except ValueError:
        raise UsageError(f"'{text[:60]}' is not an address and a port", where=where, hint=hint) from None


def loopback(host: str) -> bool:
    return ip_address(host).is_loopback


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening TCP socket; ``::`` accepts IPv4 as well.  Raises ConfluoError."""
    return _bound(host, port, socket.SOCK_STREAM, backlog)


def datagrams(host: str, port: int) -> socket.socket:
    """A UDP socket that receives what is sent there; ``::`` accepts IPv4 as well.  Raises ConfluoError."""
    return _bound(host, port, socket.SOCK_DGRAM)


def _bound(host: str, port: int, kind: socket.SocketKind, backlog: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if host == "::" and not socket.has_dualstack_ipv6():
        family, host = socket.AF_INET, "0.0.0.0"
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:  # of UDP it would let another process take the port as well
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        # getaddrinfo keeps the scope of fe80::1%eth0
        sock.bind(socket.getaddrinfo(host, port, family, kind, 0, socket.AI_NUMERICHOST)[0][4])
        if backlog:
            sock.listen(backlog)
    except OSError as e:
        sock.close()
        raise ConfluoError(f"cannot listen: {e.strerror}", where=show(host, port)) from None
    return sock


def show(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
