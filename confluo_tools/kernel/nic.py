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

from confluo_tools.core.block.block import Block
from confluo_tools.core.packets.packet import Packets
from confluo_tools.errors import ConfluoError, SchemaError, UsageError
from confluo_tools.formats.pcap.files import packet_schema
from confluo_tools.kernel import bpf
from confluo_tools.kernel.interfaces import ANY, Interface, find, is_up, missed, use_hardware_time
from confluo_tools.kernel.lane_rings import LanePump
from confluo_tools.kernel.packet_tap import Tap

if TYPE_CHECKING:
    from confluo_tools.core.kernel.ring import BlockSink
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
        hop_ns: bool = False,
        seconds: float | None = None,
        wait: float = 10.0,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.schema = schema if schema is not None else packet_schema(offset=False, snap=snap)
        self.warnings: list[str] = []
        self.lanes, self.gone = lanes, ""
        self._promiscuous, self._inner, self._patience = promiscuous, decap == "inner", wait
        self._hop_ns = hop_ns
        self._notify = notify or (lambda line: None)
        self.idle: Callable[[], None] = lambda: None  # called when no packet has come for a while
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

    def _bind(self, taps: list[Tap]) -> None:
        # Bind the sockets of one interface, one per lane.
        group = -1
        for tap in taps:
            tap.bind(self._promiscuous)
            if self.lanes > 1:
                group = tap.join(group, self._fanout)

    def __enter__(self) -> Nic:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def begin(self) -> None:
        """Start to receive packets."""
        for interface in self.interfaces:
            if interface.index and not is_up(interface.index):
                interface.up = False
                self._notify(f"{interface.name}: is down; its packets will be captured when it is up")
        for tap in self._all():
            self._reset(tap)
            bpf.attach(tap.socket.fileno(), self._programs[tap.interface.name])
        if self._seconds is not None:
            self._end = time.monotonic() + self._seconds

    def _all(self) -> list[Tap]:
        return [tap for lane in self.taps for tap in lane]

    def _reset(self, tap: Tap) -> int:
        return tap.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def packets(self) -> Packets:
        """A packet parser for the schema of this capture."""
        rows = max(min(ROWS, (1 << 22) // self.schema.layout.row_bytes), 16)
        try:
            return Packets(self.schema.layout, inner=self._inner, rows=rows, hop_ns=self._hop_ns)
        except ValueError as e:
            raise SchemaError(str(e), where=f"schema '{self.schema.kind}'") from None

    def pump(self, lane: int | None = None, sink: BlockSink | None = None) -> LanePump:
        """The pump of one lane (None: of all).  With ``sink`` use its `run`, else its `next`."""
        taps = self._all() if lane is None else self.taps[lane]
        pump = LanePump([tap.ring for tap in taps], self.packets(), self.wake, sink)
        self.pumps.append(pump)
        return pump

    def __iter__(self) -> Iterator[Block]:
        pump = self.pump()
        while not self._stop and not self.gone:
            left = self._end - time.monotonic() if self._end else TICK
            block = pump.next(max(int(min(left, TICK) * 1000), 0))
            if block is not None:
                yield block
            else:
                self.idle()
            if pump.failed:
                self.clear()
            self.look()
        self.stop_input()
        pump.go()
        while (block := pump.next(self.settled)) is not None:
            yield block

    @property
    def settled(self) -> int:
        """ms after `stop_input` until a ring gets no more packets."""
        return 2 * self.retire + 2

    def clear(self) -> None:
        """Read the pending errors of the sockets: until they are read, waiting for packets returns at once."""
        for tap in self._all():
            self._reset(tap)

    def look(self) -> None:
        """Check time limit and interfaces; call it often.  Sets ``gone`` when all have been away for `wait` seconds.

        Raises BrokenPipeError: the reader of ``output`` has ended.
        """
        now = time.monotonic()
        if self._end and now >= self._end:
            self.stop()
        if now < self._next_look:
            return
        self._next_look = now + TICK
        if self._output is not None and self._output.poll(0):
            raise BrokenPipeError(errno.EPIPE, "the reader has ended")
        for number, interface in enumerate(self.interfaces):
            if interface.name != ANY:
                self._look_at(number, interface, now)
        lost = [i for i in self.interfaces if i.lost_since and now - i.lost_since >= self._patience]
        if lost and len(lost) == len(self.interfaces):
            self.gone = ", ".join(i.name for i in lost)

    def _look_at(self, number: int, interface: Interface, now: float) -> None:
        name = interface.name
        if not interface.lost_since:
            up = None if self.taps[0][number].lost else is_up(interface.index)
            if up is None:
                interface.lost_since = now
                self._notify(f"{name}: has vanished; the packets before are kept")
            elif up != interface.up:
                interface.up = up
                self._notify(
                    f"{name}: {'is up again' if up else 'went down; packets are captured again when it is up'}"
                )
            return
        try:
            self._take_up(number, interface, find(name))
        except ConfluoError:
            return  # not yet
        self._notify(f"{name}: is there again")

    def _take_up(self, number: int, interface: Interface, again: Interface) -> None:
        # Another interface now has the name, maybe with another link type.  Raises ConfluoError: retry later.
        if self._hardware:
            use_hardware_time(again)
        if again.link != interface.link:
            self._programs[again.name] = self._program(again)
        before = [lane[number] for lane in self.taps]
        fresh = before
        if self.lanes > 1:  # sockets that share packets cannot be bound a second time
            fresh = []
        else:
            before[0].interface = again
        try:
            while len(fresh) < self.lanes:
                fresh.append(self._tap(again))
            self._bind(fresh)
            for tap in fresh:
                self._reset(tap)
                bpf.attach(tap.socket.fileno(), self._programs[again.name])
        except (ConfluoError, OSError) as e:
            for tap in fresh if fresh is not before else ():
                tap.socket.close()
            raise e if isinstance(e, ConfluoError) else ConfluoError(str(e), where=again.name) from None
        self.interfaces[number] = again
        again.up = bool(is_up(again.index))
        if fresh is before:
            return
        for number_of_lane, (old, new) in enumerate(zip(before, fresh, strict=True)):
            self._replaced.append(old)
            self.taps[number_of_lane][number] = new
            for pump in self.pumps:
                pump.replace(old.ring, new.ring, old.mark_done)

    def stop(self) -> None:
        """End the capture after the packets received so far.  Signal-safe: a handler may call it."""
        self._stop = True
        for pump in self.pumps:
            pump.stop()
        os.eventfd_write(self.wake, 1)

    @property
    def stopping(self) -> bool:
        return self._stop

    def stop_input(self) -> None:
        """Drop all further packets in the kernel."""
        for tap in self._all():
            with suppress(OSError):
                bpf.attach(tap.socket.fileno(), bpf.DROP)
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake)

    def drops(self) -> NicDrops:
        taps = self._all()
        for tap in [*taps, *self._replaced]:
            tap.count()
        for tap in [t for t in self._replaced if t.done]:
            self._replaced.remove(tap)
            tap.socket.close()
            counted = tap.packets, tap.dropped, tap.frozen, tap.ring.counts[2]
            self._counted = [a + b for a, b in zip(self._counted, counted, strict=True)]
        taps += self._replaced
        for name, (last, total) in self._missed.items():
            now = missed(name)  # restarts at zero when the interface is created again
            self._missed[name] = now, total + (now - last if now >= last else now)
        packets, dropped, frozen, _ = self._counted
        return NicDrops(
            packets + sum(t.packets for t in taps),
            dropped + sum(t.dropped for t in taps),
            frozen + sum(t.frozen for t in taps),
            sum(total for _, total in self._missed.values()),
        )

    @property
    def bytes_read(self) -> int:
        return sum(pump.packets.wire_bytes for pump in self.pumps)

    @property
    def counts(self) -> dict[str, int]:
        """Bytes on the wire, packets per parser note, drops of the kernel and of the NIC."""
        found: dict[str, int] = {"wire_bytes": self.bytes_read, "truncated": 0, "malformed": 0, "bad": 0}
        for pump in self.pumps:
            for name, n in pump.packets.counts.items():
                found[name] = found.get(name, 0) + n
        drops = self.drops()
        found["bad"] = self._counted[3] + sum(tap.ring.counts[2] for tap in [*self._all(), *self._replaced])
        return found | {"dropped": drops.dropped, "missed": drops.missed, "frozen": drops.frozen}

    def close(self) -> None:
        for tap in [*self._all(), *self._replaced]:
            tap.socket.close()
        if self.wake >= 0:
            os.close(self.wake)
            self.wake = -1


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
