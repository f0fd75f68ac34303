"""Network interfaces: names, link types, state, counters of missed packets."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

from confluo_tools.errors import ConfluoError
from confluo_tools.schema.link_types import BY_HARDWARE, COOKED, describe_link

ANY = "any"
UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
_GET_FLAGS, _GET_HARDWARE, _ETHTOOL, _SET_STAMPS = 0x8913, 0x8927, 0x8946, 0x89B0


@dataclass
class Interface:
    """``link``: LINKTYPE_ number of its frames.  ``index`` 0: all interfaces."""

    name: str
    index: int
    link: int
    loopback: bool = False
    up: bool = True
    lost_since: float = 0.0  # time when it vanished


def _ioctl(what: int, name: str, data: bytes = b"") -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
        return fcntl.ioctl(s, what, struct.pack("16s24s", name.encode(), data))


def flags(name: str) -> int:
    found: tuple[int] = struct.unpack_from("H", _ioctl(_GET_FLAGS, name), 16)
    return found[0]


def find(name: str) -> Interface:
    """The interface of this name, or ``any``.  Raises ConfluoError when it does not exist."""
    if name == ANY:
        return Interface(ANY, 0, COOKED)
    if len(name.encode()) > 15 or not name:
        raise ConfluoError("is not an interface name", where=name, hint="confluo-capture -D lists them")
    try:
        index = socket.if_nametoindex(name)
        hardware: tuple[int] = struct.unpack_from("H", _ioctl(_GET_HARDWARE, name), 16)
        loopback = bool(flags(name) & LOOPBACK)
    except OSError:
        raise ConfluoError("there is no such interface", where=name, hint="confluo-capture -D lists them") from None
    return Interface(name, index, BY_HARDWARE.get(hardware[0], COOKED), loopback)


def is_up(index: int) -> bool | None:
    """Whether the interface of this number is up, also after a rename; None when it does not exist."""
    try:
        return bool(flags(socket.if_indextoname(index)) & UP)
    except OSError:
        return None


def missed(name: str) -> int:
    """Packets that the NIC dropped for lack of buffers since boot; 0 when it has no such counters."""
    total = 0
    for counter in ("rx_missed_errors", "rx_fifo_errors"):
        try:
            with open(f"/sys/class/net/{name}/statistics/{counter}", "rb") as f:
                total += int(f.read())
        except (OSError, ValueError):
            pass
    return total


def describe_all() -> list[tuple[str, str, str, str]]:
    """(number, name, link layer, state) of every interface, and of ``any``."""
    rows = []
    for index, name in socket.if_nameindex():
        try:
            found, now = find(name), flags(name)
        except (ConfluoError, OSError):
            continue  # it was just removed
        state = ["up" if now & UP else "down"]
        if now & UP and not now & RUNNING:
            state.append("no carrier")
        if found.loopback:
            state.append("loopback")
        rows.append((str(index), name, describe_link(found.link), ", ".join(state)))
    return [*rows, ("0", ANY, "each interface's own", "all of them, also those that come later")]


def use_hardware_time(interface: Interface) -> None:
    """Let the NIC stamp the packets that it receives.  Raises ConfluoError when it cannot."""
    name = interface.name
    hint = "--timestamps host takes the kernel's clock"
    if name == ANY:
        raise ConfluoError("hardware timestamps are those of one NIC", where=name, hint="name it with -i")
    info = array.array("I", [0x41, *[0] * 10])  # ETHTOOL_GET_TS_INFO: so_timestamping, phc_index, tx_types, ...
    try:
        _ioctl(_ETHTOOL, name, struct.pack("P", info.buffer_info()[0]))
        able = info[1] & 0x44 == 0x44 and info[7] & 0b10  # RX_HARDWARE, RAW_HARDWARE; the filter 'all'
    except OSError:
        able = False
    if not able:
        raise ConfluoError("this interface has no hardware timestamps for all packets", where=name, hint=hint)
    config = array.array("i", [0, 0, 1])  # no flags, not for sending, all received packets
    try:
        _ioctl(_SET_STAMPS, name, struct.pack("P", config.buffer_info()[0]))
    except OSError as e:
        if e.errno == errno.EPERM:
            raise ConfluoError("hardware timestamps need the capability CAP_NET_ADMIN", where=name, hint=hint) from None
        raise ConfluoError(f"has no hardware timestamps: {os.strerror(e.errno or 0)}", where=name, hint=hint) from None
