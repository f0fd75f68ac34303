"""Packet sockets with TPACKET_V3 rings.  packet(7), packet_mmap of the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from contextlib import suppress

from confluo_tools.core.kernel.ring import Ring
from confluo_tools.errors import ConfluoError
from confluo_tools.kernel import bpf
from confluo_tools.kernel.interfaces import ANY, Interface

_ALL = 0x0003  # ETH_P_ALL
_PACKET = 263  # SOL_PACKET and its options
_MEMBERSHIP, _RX_RING, _STATISTICS, _VERSION, _RESERVE = 1, 5, 6, 10, 12
_FANOUT, _UNIQUE, _IGNORE_OUTGOING = 18, 0x2000, 23
_V3 = 2
_PROMISCUOUS = 1


class Tap:
    """One packet socket with its ring: the packets of one interface for one lane.

    ``size``: bytes of the ring, in blocks of ``block`` (0: large ones).  The kernel hands over a block that is not full
    after ``retire`` ms, so ``size`` / ``block`` * ``retire`` is how long a reader may be away.
    """

    def __init__(self, interface: Interface, size: int, retire: int, snap: int, block: int = 0) -> None:
        self.interface = interface
        self.packets = self.dropped = self.frozen = 0
        self.done = False  # replaced and empty
        self.socket = _packet_socket(interface)
        try:
            block = block or _block_size(size, snap)
            count = max(size // block, 2)
            self.socket.setsockopt(_PACKET, _VERSION, _V3)
            self.socket.setsockopt(_PACKET, _RESERVE, 16)
            with suppress(OSError):  # since Linux 4.20; before, the ring skips them
                if interface.loopback:
                    self.socket.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)
            request = struct.pack("IIIIIII", block, count, 2048, block // 2048 * count, retire, 0, 0)
            try:
                self.socket.setsockopt(_PACKET, _RX_RING, request)
                self.ring = Ring(self.socket.fileno(), block, count)
            except OSError as e:
                why = f"no memory for a ring of {size} bytes" if e.errno == errno.ENOMEM else f"no ring: {e.strerror}"
                raise ConfluoError(why, where=interface.name, hint="use a smaller --ring") from None
            bpf.attach(self.socket.fileno(), bpf.DROP)  # before bind: no packet may arrive yet
        except BaseException:
            self.socket.close()
            raise

    def bind(self, promiscuous: bool) -> None:
        """Bind the socket to its interface."""
        interface = self.interface
        try:
            _bind(self.socket.fileno(), interface.index)
            if promiscuous and interface.index and not interface.loopback:
                member = struct.pack("IHH8s", interface.index, _PROMISCUOUS, 0, b"")
                self.socket.setsockopt(_PACKET, _MEMBERSHIP, member)
        except OSError as e:
            raise ConfluoError(f"cannot be captured: {e.strerror}", where=interface.name) from None

    def join(self, group: int, kind: int) -> int:
        """Join a fanout group; ``group`` -1 creates one.  Returns its number."""
        try:
            if group < 0:
                self.socket.setsockopt(_PACKET, _FANOUT, (kind | _UNIQUE) << 16)
                return self.socket.getsockopt(_PACKET, _FANOUT) & 0xFFFF
            self.socket.setsockopt(_PACKET, _FANOUT, group | kind << 16)
        except OSError as e:
            why = f"its packets cannot be shared among lanes: {e.strerror}"
            raise ConfluoError(why, where=self.interface.name, hint="use --lanes 1") from None
        return group

    def mark_done(self) -> None:
        self.done = True

    @property
    def lost(self) -> bool:
        """Whether its interface was removed, even if a new one has the same number."""
        return self.interface.name != ANY and not self.socket.getsockname()[0]

    def count(self) -> None:
        """Add the kernel counters since the last call (the kernel resets them at each read)."""
        with suppress(OSError):
            packets, dropped, frozen = struct.unpack("III", self.socket.getsockopt(_PACKET, _STATISTICS, 12))
            self.packets += packets
            self.dropped += dropped
            self.frozen += frozen


def _bind(fd: int, index: int) -> None:
    # Bind by number (0: all interfaces): the bind of Python accepts only names.
    libc = ctypes.CDLL(None, use_errno=True)
    address = struct.pack("HHiHBB8s", socket.AF_PACKET, socket.htons(_ALL), index, 0, 0, 0, b"")
    if libc.bind(fd, address, len(address)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _block_size(ring: int, snap: int) -> int:
    # Large blocks, because each one costs a wake-up; at least eight, each with room for the longest packet.
    size = 1 << 20
    while size > 64 << 10 and (size * 8 > ring or ring % size):
        size //= 2
    while size < snap + 4096:
        size *= 2
    return size


def _packet_socket(interface: Interface) -> socket.socket:
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    except PermissionError:
        hint = (
            "run it with sudo (and -Z USER), or: sudo setpriv --reuid=$USER --regid=$(id -g) --init-groups "
            "--inh-caps=+net_raw --ambient-caps=+net_raw confluo-capture ..."
        )
        raise ConfluoError("capturing needs the capability CAP_NET_RAW", where=interface.name, hint=hint) from None
    except OSError as e:
        raise ConfluoError(f"no packet sockets: {e.strerror}", where=interface.name) from None
