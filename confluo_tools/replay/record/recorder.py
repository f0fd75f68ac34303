"""The sources of a recording, their reading, and the rows that come out."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from confluo_tools.core.replay.header_reader import HeaderReader
from confluo_tools.errors import ConfluoError
from confluo_tools.kernel import bpf
from confluo_tools.kernel.interfaces import find
from confluo_tools.kernel.packet_tap import Tap
from confluo_tools.kernel.socket_option_trace import SocketOptionTrace
from confluo_tools.kernel.tick import tick_phase
from confluo_tools.replay.record.machine import Machine
from confluo_tools.replay.record.setting_rows import SettingRows
from confluo_tools.replay.record.trace_events import HRTIMERS, OPTION, TIMERS, RecorderTrace
from confluo_tools.replay.recording.kinds import RECORDING_SHIFT, Timer
from confluo_tools.replay.recording.row_batch import RowBatch

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

SNAP = 160  # bytes of each packet: all headers
RING, BLOCK, RETIRE = 16 << 20, 64 << 10, 10  # bytes, bytes, ms: the recorder may sleep for 2.5 s
ADDRESSES = 4096  # addresses that are remembered as local or not
LATE, RECENT = 20_000_000, 3_000_000_000  # ns that a packet may be newer, and older, than its reading
_STEP = 1_000_000  # ns by which the wall clock may move against the other one without being a step


class ConnectionRecorder:
    """Records the TCP connections of the network namespace of this thread.

    ``schema`` of the rows; ``ports``: only connections with one of them, if there are any.
    `begin` starts, then call `poll` regularly; it returns blocks.  Raises ConfluoError.
    """

    tick = 0.02  # s between two readings

    def __init__(self, schema: Schema, *, ports: frozenset[int], headers: bool, interface: str = "any") -> None:
        self.schema = schema
        self._rows = RowBatch(schema)
        try:
            self.trace = RecorderTrace(ports)
        except ConfluoError as e:
            raise ConfluoError(e.what, where=e.where, hint=e.hint or "run it with sudo") from None
        try:
            self.tap = Tap(find(interface), RING, RETIRE, SNAP, BLOCK)
        except BaseException:
            self.trace.close()
            raise
        self.options: SocketOptionTrace | None = None
        self.without_options = ""  # why they are not recorded
        try:
            self.options = SocketOptionTrace()
        except ConfluoError as e:
            self.without_options = e.what
        self._program = _filter(ports)
        self.base = wall_offset()
        self._headers = HeaderReader([self.tap.ring])
        self._cookies = recording_number() << RECORDING_SHIFT
        self.machine = Machine(
            self._rows.append,
            is_local,
            base=self.base,
            timers=_timer_functions(),
            phase=tick_phase,
            follow=self.trace.follow,
            sizes=_socket_sizes(),
            ports=ports,
            headers=headers,
            cookies=self._cookies,
        )
        self._ports = ports
        self._settings = SettingRows(self._cookies)
        self._lost = 0
        self.steps = 0  # of the wall clock

    def due(self) -> bool:
        return True

    def begin(self) -> None:
        self.tap.bind(promiscuous=False)
        bpf.attach(self.tap.socket.fileno(), self._program)
        self.trace.begin()
        self.machine.options.ask_listeners(self._ports)
        self._settings.begin(options=self.options is not None)

    def poll(self, *, last: bool = False) -> Iterator[Block]:
        """Read what came, and return the rows that are complete.  ``last``: of all that is left."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        moved = wall_offset() - self.base
        for row in self._settings.rows(now, self.base):
            self._rows.append(row)
        packets = self._headers.read()
        if abs(moved) > _STEP:  # the stamps of packets follow the wall clock, those of events do not
            packets = restamped(packets, self.base, self.base + moved, now)
            self.base += moved
            self.steps += 1
            self.machine.clock_step(moved, now)
        events = self.trace.read()
        if self.options is not None:
            events += [(o.ts, OPTION, *o[1:]) for o in self.options.read()]
        self.machine.feed(events, packets, now)
        lost = self.lost()
        if lost > self._lost:
            self.machine.lost(lost - self._lost, now)
            self._lost = lost
        if last:
            self.machine.finish(now)
        else:
            self.machine.step(now)
        yield from self._rows.blocks(now, last=last)

    @property
    def packets(self) -> int:
        return self._headers.packets

    @property
    def live(self) -> int:
        """Ends that are recorded now."""
        return self.machine.live

    @property
    def made(self) -> int:
        """Ends so far."""
        return self.machine.made

    @property
    def events(self) -> int:
        return self.machine.events

    def lost(self) -> int:
        """Trace events and packets that the kernel dropped because a buffer was full."""
        self.tap.count()
        options = self.options.lost() if self.options is not None else 0
        return self.trace.lost() + self.tap.dropped + options

    def close(self) -> None:
        if self.options is not None:
            self.options.close()
        self.tap.socket.close()
        self.trace.close()


def restamped(packets: list[tuple[Any, ...]], old: int, new: int, now: int) -> list[tuple[Any, ...]]:
    """Packets that were read when the wall clock had been set, with stamps of the new clock.

    ``old``, ``new``: wall clock less monotonic clock, before and after.  A stamp that would be in the future, or long
    ago, is one of the old clock.
    """
    found = []
    for p in packets:
        ago = now - (p[0] - new)
        found.append(p if -LATE < ago < RECENT else (p[0] - old + new, *p[1:]))
    return found


def recording_number() -> int:
    """A number for this recording: settings of its host are found by it when recordings are read together."""
    return int.from_bytes(os.urandom(4), "big") >> 1 | 1


def wall_offset() -> int:
    """Wall clock less monotonic clock, ns: the best of a few readings."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        found = (after - before, wall - (before + after) // 2)
        best = min(best, found) if best else found
    assert best is not None
    return best[1]


@lru_cache(ADDRESSES)
def is_local(address: bytes) -> bool:
    """Whether an address is one of this network namespace: a socket can be bound to it."""
    family = socket.AF_INET6 if len(address) == 16 else socket.AF_INET
    scope = (0, 0) if family == socket.AF_INET6 else ()
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
        try:
            s.bind((socket.inet_ntop(family, address), 0, *scope))
        except OSError:
            return False
    return True


def _filter(ports: frozenset[int]) -> bytes:
    text = " or ".join(f"port {n}" for n in sorted(ports))
    return bpf.compile(f"tcp and ({text})" if text else "tcp", None, SNAP)


def _timer_functions() -> dict[int, Timer]:
    """{address in the kernel: timer}; empty where the kernel hides addresses."""
    kinds = (Timer.WRITE, Timer.DELACK, Timer.KEEPALIVE, Timer.SACK_ACK, Timer.PACE)
    names = dict(zip((*TIMERS, *HRTIMERS), kinds, strict=True))
    found = {}
    with suppress(OSError), open("/proc/kallsyms", encoding="ascii", errors="replace") as f:
        for address, name in re.findall(rf"^([0-9a-f]+) \w ({'|'.join(names)})$", f.read(), re.M):
            if int(address, 16):
                found[int(address, 16)] = names[name]
    return found


def _socket_sizes() -> tuple[int, int]:
    """Bytes of a TCP socket of IPv4 and of IPv6 in the kernel."""
    sizes = []
    for name, usual in (("TCP", 2304), ("TCPv6", 2432)):
        try:
            with open(f"/sys/kernel/slab/{name}/object_size", encoding="ascii") as f:
                sizes.append(int(f.read()))
        except (OSError, ValueError):
            sizes.append(usual)
    return sizes[0], sizes[1]
