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
    """One packet socket with its ring: the packets of one interface for one lane."""

    def __init__(self, interface: Interface, size: int, retire: int, snap: int) -> None:
        self.interface = interface
        self.packets = self.dropped = self.frozen = 0
        self.done = False  # replaced and empty
        self.socket = _packet_socket(interface)
        try:
            block = _block_size(size, snap)
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
            return Packets(self.schema.layout, inner=self._inner, rows=rows)
        except ValueError as e:
            raise SchemaError(str(e), where=f"schema '{self.schema.kind}'") from None

    def pump(self, lane: int | None = None, sink: LaneSink | None = None) -> LanePump:
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
