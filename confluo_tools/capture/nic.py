"""Network interfaces as packet records: packet sockets with TPACKET_V3 rings.  packet(7), packet_mmap of the kernel.

nic = open_nic(["eth0"], lanes=2)        sockets, rings and filters exist; all packets are dropped
nic.begin()                              start to receive packets
for block in nic: ...                    one reader, or a pump per lane: nic.pump(0, sink)
nic.stop_input(); nic.counts             drop all packets again; read the counters
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.kernel.interfaces import ANY, Interface, find, is_up, missed, use_hardware_time
from confluo_tools.capture.lane_rings import LanePump
from confluo_tools.core.block.block import Block
from confluo_tools.core.packets.packet import Packets
from confluo_tools.errors import ConfluoError, SchemaError, UsageError
from confluo_tools.formats.pcap.files import packet_schema
from confluo_tools.kernel import bpf
from confluo_tools.kernel.packet_tap import Tap

if TYPE_CHECKING:
    from confluo_tools.core.kernel.ring import LaneSink
    from confluo_tools.schema import Schema

FANOUT = {"hash": 0, "rr": 1, "cpu": 2}
RING = 32 << 20  # bytes of a lane's ring
MIN_RING = 128 << 10
MAX_RING = 1 << 30
HEADERS = 256  # bytes of each packet that the kernel copies, unless -s is larger: enough for all headers
RETIRE = 8  # ms after which the kernel hands over a block that is not full
MAX_LANES = 64
ROWS = 1024
TICK = 0.2  # s between two checks of the interfaces
_PACKET, _TIMESTAMP = 263, 17  # SOL_PACKET and its option


class NicDrops(NamedTuple):
    """Kernel counters of a capture: ``packets`` passed the filter of the kernel, ``dropped`` of them because the ring
    was full, ``frozen`` times it became full; ``missed`` packets were dropped by the NIC.
    """

    packets: int
    dropped: int
    frozen: int
    missed: int


class Nic:
    """Live packets of interfaces.  Iterates as Blocks, like `Captures`; the lanes of a log use one `pump` each instead.

    When an interface is created again, capture resumes: the socket of a single lane is bound again; sockets that
    share packets are replaced with their rings.  ``notify`` gets a line when an interface goes down, returns or
    vanishes.
    """

    live = True
    total_bytes = None
    damaged = False

    def __init__(
        self,
        names: Sequence[str],
        schema: Schema | None = None,
        *,
        lanes: int = 1,
        fanout: str = "hash",
        filter: str = "",
        snap: int = 0,
        ring: int = RING,
        promiscuous: bool = True,
        timestamps: str = "host",
        immediate: bool = False,
        decap: str = "outer",
        seconds: float | None = None,
        wait: float = 10.0,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.schema = schema if schema is not None else packet_schema(offset=False, snap=snap)
        self.warnings: list[str] = []
        self.lanes, self.gone = lanes, ""
        self._promiscuous, self._inner, self._patience = promiscuous, decap == "inner", wait
        self._notify = notify or (lambda line: None)
        self._stop = False
        self._next_look = 0.0
        self._output: select.poll | None = None
        self._seconds, self._end = seconds, 0.0
        self.retire = 1 if immediate else RETIRE
        self.taps: list[list[Tap]] = []  # of each lane
        self.pumps: list[LanePump] = []
        self._replaced: list[Tap] = []
        self._counted = [0] * 4  # packets, dropped, frozen, bad of replaced taps
        self.interfaces = [find(name) for name in dict.fromkeys(names)]
        self._kept = max(HEADERS, snap)
        self._filter, self._ring, self._fanout = filter, ring, FANOUT[fanout]
        self._hardware = timestamps == "hardware"
        for interface in self.interfaces:
            if self._hardware:
                use_hardware_time(interface)
        self._programs = {i.name: self._program(i) for i in self.interfaces}
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self.taps += [[] for _ in range(lanes)]
            for lane in self.taps:
                for interface in self.interfaces:
                    lane.append(self._tap(interface))
            for number in range(len(self.interfaces)):
                self._bind([lane[number] for lane in self.taps])
        except BaseException:
            self.close()
            raise
        self._missed = {i.name: (missed(i.name), 0) for i in self.interfaces}

    def watch_output(self, fd: int) -> None:
        """Let `look` raise BrokenPipeError when the reader of this pipe has ended: no packet may come for long."""
        if stat.S_ISFIFO(os.fstat(fd).st_mode) or stat.S_ISSOCK(os.fstat(fd).st_mode):
            self._output = select.poll()
            self._output.register(fd, 0)  # only POLLERR and POLLHUP

    def _program(self, interface: Interface) -> bytes:
        if not self._filter:
            return bpf.keep(self._kept)
        link = None if interface.name == ANY else interface.link
        return bpf.compile(self._filter, link, self._kept, interface.name)

    def _tap(self, interface: Interface) -> Tap:
        tap = Tap(interface, self._ring, self.retire, self._kept)
        if self._hardware:
            tap.socket.setsockopt(_PACKET, _TIMESTAMP, 1 << 6)  # RAW_HARDWARE
        return tap

    def ring_size(text: str) -> int:
    """Bytes of a ring, a multiple of 64 KiB.  Raises UsageError."""
    from confluo_tools.units import size

    try:
        wanted = size(text)
    except ConfluoError as e:
        raise UsageError(e.what, where="--ring", hint="write it as 64MiB") from None
    if not MIN_RING <= wanted <= MAX_RING:
        raise UsageError(f"a ring of {text} is not possible", where="--ring", hint="128KiB to 1GiB are")
    return -(-wanted // (64 << 10)) * (64 << 10)


def open_nic(names: Sequence[str], schema: Schema | None = None, **options: object) -> Nic:
    """Open interfaces for capture; see `Nic` and confluo-capture(1) for the options."""
    return Nic(names, schema, **options)  # type: ignore[arg-type]
