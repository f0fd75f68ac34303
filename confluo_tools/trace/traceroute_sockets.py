"""Raw sockets for traceroutes with a flow's own five-tuple, and which addresses may be probed at all.  raw(7), ip(7).

sockets = open_sockets()          needs CAP_NET_RAW; nothing else here does
prober = sockets.prober(wake=fd)
reach = Allowed(only=["10.0.0.0/8"]); reach.refusal(4, destination)
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.core.trace.traceroute_prober import TracerouteProber
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.trace.flow_table import NumberMap

BUFFER = 32 << 20  # bytes for ICMP errors that come in while we send: about 1 KiB of kernel memory each
SEND_BUFFER = 4 << 20
_ICMP_FILTER, _HDRINCL6 = 1, 36
_RCVBUFFORCE, _SNDBUFFORCE = 33, 32
KINDS = ("loopback", "broadcast", "multicast", "foreign")


class Sockets:
    """``send4``, ``send6``: packets with our headers out.  ``icmp4``, ``icmp6``: ICMP errors in.  None: not there."""

    def __init__(self) -> None:
        self.send4: socket.socket | None = None
        self.send6: socket.socket | None = None
        self.icmp4: socket.socket | None = None
        self.icmp6: socket.socket | None = None

    def versions(self) -> list[int]:
        return [v for v, s in ((4, self.send4), (6, self.send6)) if s is not None]

    def prober(self, wake: int = -1, aliases: NumberMap | None = None, **settings: Any) -> TracerouteProber:
        """What traces flows through them.  They stay open as long as it is used."""
        fds = [s.fileno() if s is not None else -1 for s in (self.send4, self.send6, self.icmp4, self.icmp6)]
        return TracerouteProber(fds[0], fds[1], fds[2], fds[3], wake, aliases=aliases, **settings)

    def close(self) -> None:
        for s in (self.send4, self.send6, self.icmp4, self.icmp6):
            if s is not None:
                s.close()

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_sockets() -> Sockets:
    """All sockets that this host can have.  Raises ConfluoError: they are not allowed."""
    found = Sockets()
    try:
        found.send4 = _open(socket.AF_INET, socket.IPPROTO_RAW, SEND_BUFFER, _SNDBUFFORCE)
        found.icmp4 = _open(socket.AF_INET, socket.IPPROTO_ICMP, BUFFER, _RCVBUFFORCE)
        found.icmp4.setsockopt(
            socket.SOL_RAW if hasattr(socket, "SOL_RAW") else 255,
            _ICMP_FILTER,
            struct.pack("=I", ~(1 << 3 | 1 << 11) & 0xFFFFFFFF),
        )
        try:
            found.send6 = _open(socket.AF_INET6, socket.IPPROTO_RAW, SEND_BUFFER, _SNDBUFFORCE)
            found.send6.setsockopt(socket.IPPROTO_IPV6, _HDRINCL6, 1)
            found.icmp6 = _open(socket.AF_INET6, socket.IPPROTO_ICMPV6, BUFFER, _RCVBUFFORCE)
            block = bytearray(b"\xff" * 32)  # struct icmp6_filter: a set bit is a type that is not passed
            for kind in (1, 3):
                block[0] &= ~(1 << kind)
            found.icmp6.setsockopt(socket.IPPROTO_ICMPV6, _ICMP_FILTER, bytes(block))
        except OSError as e:
            if e.errno not in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
                raise
            found.send6 = None  # a kernel without IPv6
    except PermissionError:
        found.close()
        hint = "run it as root, or give it the capability CAP_NET_RAW"
        raise ConfluoError("raw sockets are not allowed", hint=hint) from None
    except OSError as e:
        found.close()
        raise ConfluoError(f"no raw sockets: {e.strerror}") from None
    return found


def _open(family: int, protocol: int, buffer: int, force: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    plain = socket.SO_SNDBUF if force == _SNDBUFFORCE else socket.SO_RCVBUF
    try:
        made.setsockopt(socket.SOL_SOCKET, force, buffer)
    except OSError:
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, plain, buffer)
    if protocol == socket.IPPROTO_RAW:  # sends only: what comes in is not ours to keep
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    return made


class Allowed:
    """Which flows may be probed: they start here, and end at an address of ``only`` (prefixes; none: anywhere).

    ``also``: kinds of addresses (`KINDS`) that are left out unless listed here.  Raises UsageError.
    """

    def __init__(self, only: Sequence[str] = (), also: Sequence[str] = ()) -> None:
        import ipaddress

        for kind in also:
            if kind not in KINDS:
                raise UsageError(
                    f"unknown kind of address '{kind}'", where="--allow", hint=f"the kinds are {', '.join(KINDS)}"
                )
        self.also = set(also)
        self._only: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
        for text in only:
            try:
                net = ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise UsageError(f"'{text}' is not a prefix", where="--only", hint="write e.g. 10.0.0.0/8") from None
            self._only[net.version].append((int(net.network_address), int(net.netmask)))
        self._limited = bool(only)
        self._known: dict[bytes, str] = {}
        self._ours: dict[bytes, bool] = {}

    def refusal(self, version: int, src: bytes, dst: bytes) -> str:
        """Why a flow is not probed; '' when it may be."""
        why = self._known.get(dst)
        if why is None:
            if len(self._known) > 1 << 16:
                self._known.clear()
            why = self._known[dst] = self._about(version, dst)
        if why or "foreign" in self.also:
            return why
        ours = self._ours.get(src)
        if ours is None:
            if len(self._ours) > 1 << 12:
                self._ours.clear()
            ours = self._ours[src] = is_local(version, src)
        return "" if ours else "foreign"

    def _about(self, version: int, dst: bytes) -> str:
        kind = kind_of(version, dst) or ("loopback" if is_local(version, dst) else "")
        if kind and kind not in self.also:
            return kind
        if self._limited:
            number = int.from_bytes(dst, "big")
            if not any(number & mask == net for net, mask in self._only[version]):
                return "not among --only"
        return ""


def kind_of(version: int, address: bytes) -> str:
    """'' for an address of one host; else loopback, broadcast (also unassigned ones), multicast."""
    if version == 4:
        if address[0] == 127:
            return "loopback"
        if address[0] in range(224, 240):
            return "multicast"
        return "broadcast" if address[0] == 0 or address[0] >= 240 else ""  # of a subnet: the kernel refuses it
    if address[0] == 0xFF:
        return "multicast"
    if address[:10] == bytes(10) and address[10:12] == b"\xff\xff":  # IPv4 in disguise
        return kind_of(4, address[12:]) or "foreign"
    if address == bytes(15) + b"\1":
        return "loopback"
    return "broadcast" if address == bytes(16) else ""


def is_local(version: int, address: bytes) -> bool:
    """Whether this host (this network namespace) has the address."""
    if kind_of(version, address) in ("multicast", "broadcast"):
        return False
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            text = socket.inet_ntop(family, address)
            probe.bind((text, 0))
            probe.connect((text, 9))  # sends nothing; refuses the broadcast addresses of subnets, to which one may bind
    except OSError as e:
        return e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.EACCES)
    return True
