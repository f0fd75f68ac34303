"""Routes and interfaces of a host, where they decide how TCP sends."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from confluo_tools.errors import ConfluoError
from confluo_tools.replay.record.host_settings import device_segments, ip
from confluo_tools.replay.recording.route_metrics import METRICS, ROUTE

MAX_DEVICES, MAX_ROUTES = 64, 256
NAME, TEXT = 32, 64  # bytes of a name and of a text in a recording
DEFAULT_SEGMENTS, DEFAULT_MTU = 65535, 1500
_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_OFFLOADS = {"tso": 0x1E, "gro": 0x2B}  # ETHTOOL_GTSO, ETHTOOL_GGRO
_TYPES = ("local", "broadcast", "multicast", "anycast", "blackhole", "unreachable", "prohibit", "throw")


def network_settings() -> dict[str, str]:
    """{name: value} of the network namespace of this thread, where it is not as usual.

    ``route:PREFIX``: metrics as in ip-route(8).  ``gso:NAME``: most segments of a packet that the interface gets;
    ``mtu:NAME``, bytes; ``gro:NAME``, ``tso:NAME``: 0 where this offload is off.
    """
    found: dict[str, str] = {}
    with suppress(ConfluoError):  # no ip(8)
        found |= dict(_routes())
    names = [name for _, name in socket.if_nameindex() if name != "lo"][:MAX_DEVICES]
    for name in names:
        with suppress(ConfluoError, OSError):
            found |= _device(name)
    return {name: value for name, value in found.items() if len(name) <= NAME and len(value) <= TEXT}


def _routes() -> Iterator[tuple[str, str]]:
    for family in ("-4", "-6"):
        for line in ip(family, "-o", "route", "show", "table", "all").splitlines()[:MAX_ROUTES]:
            words = [word for word in line.split() if word != "lock"]
            if not words or words[0] in _TYPES:
                continue
            pairs = [f"{a} {b}" for a, b in pairwise(words) if a in METRICS]
            if pairs:
                anywhere = "0.0.0.0/0" if family == "-4" else "::/0"
                yield ROUTE + (anywhere if words[0] == "default" else words[0]), " ".join(pairs)


def _device(name: str) -> dict[str, str]:
    found = {}
    segments = device_segments(name)
    if 0 < segments < DEFAULT_SEGMENTS:
        found[f"gso:{name}"] = str(segments)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        asked = struct.pack("16si20x", os.fsencode(name), 0)
        (mtu,) = struct.unpack_from("i", fcntl.ioctl(s.fileno(), _SIOCGIFMTU, asked), 16)
        if mtu != DEFAULT_MTU:
            found[f"mtu:{name}"] = str(mtu)
        for offload, command in _OFFLOADS.items():
            value = array.array("B", struct.pack("II", command, 1))
            request = struct.pack("16sQ16x", os.fsencode(name), value.buffer_info()[0])
            fcntl.ioctl(s.fileno(), _SIOCETHTOOL, request)
            if not struct.unpack("II", value)[1]:
                found[f"{offload}:{name}"] = "0"
    return found
