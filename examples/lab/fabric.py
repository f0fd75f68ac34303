"""All switches of a lab in one process: frames from veth ends, through queues, on to other switches or veth ends.

Each output port has a queue for each of eight priorities, the higher always first; what finds its queue full is
dropped (tail drop).  Time inside is that of the events, not that of the wake-ups, so that a late wake-up shifts
nothing: a packet leaves when the one before it has left, whenever that is noticed.
"""

from __future__ import annotations

import heapq
import json
import random
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from net import punctual
from topology import Rule, Topology
from wire import is_data, priority, stamp


class Deliver(Protocol):
    """Takes a frame at a time."""

    def __call__(self, now: float, frame: bytes) -> None: ...


PRIORITIES = 8
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263
SO_TIMESTAMPNS = 35
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
CONTROL = socket.CMSG_SPACE(16)
BUFFER = 8 << 20
IDLE = 0.2  # s


class Port:
    """One direction of a link: queue, transmitter, and who gets the frames at its other end."""

    def __init__(self, clock: Clock, rate: float, limit: int, delay: float, deliver: Deliver) -> None:
        self.clock, self.limit, self.delay, self.deliver = clock, limit, delay, deliver
        self.per_byte = 8 / rate if rate else 0.0
        self.queues: list[deque[bytes]] = [deque() for _ in range(PRIORITIES)]
        self.busy = False
        self.sent = self.dropped = self.deepest = 0

    def depth(self, frame: bytes) -> int:
        """Packets that wait before this one in the queue of its priority."""
        return len(self.queues[priority(frame)])

    def offer(self, now: float, frame: bytes) -> None:
        queue = self.queues[priority(frame)]
        if len(queue) >= self.limit:
            self.dropped += 1
            return
        queue.append(frame)
        self.deepest = max(self.deepest, len(queue))
        if not self.busy:
            self._start(now)

    def _start(self, now: float) -> None:
        for queue in reversed(self.queues):
            if queue:
                frame = queue.popleft()
                self.busy = True
                self.sent += 1
                done = now + (len(frame) + 24) * self.per_byte  # preamble, checksum and gap take time too
                if self.per_byte == 0 and self.delay == 0:
                    self.busy = False
                    self.deliver(now, frame)
                    return
                self.clock.at(done, self._done)
                self.clock.at(done + self.delay, partial(self.deliver, frame=frame))
                return
        self.busy = False

    def _done(self, now: float) -> None:
        self.busy = False
        self._start(now)


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    def at(self, when: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def run(self, now: float) -> float | None:
        """Do what was due until ``now``; when the next thing is due."""
        while self._events and self._events[0][0] <= now:
            when, _, what = heapq.heappop(self._events)
            what(when)
        return self._events[0][0] if self._events else None


class Fault:
    """A rule at work."""

    def __init__(self, rule: Rule, begun: float, to: bytes, source: bytes) -> None:
        self.rule, self.to, self.source = rule, to, source
        self.begin = begun + rule.after
        self.next = self.begin
        self.left = self.hits = 0
        self._random = random.Random(f"{rule.at} {rule.to} {rule.one_in}")

    def strikes(self, now: float, frame: bytes) -> bool:
        if now < self.begin or frame[:6] != self.to or not is_data(frame):
            return False
        if self.source and frame[6:12] != self.source:
            return False
        rule = self.rule
        if rule.every:
            if now >= self.next:
                self.left = rule.packets
                self.next += rule.every * (1 + (now - self.next) // rule.every)
            struck = self.left > 0
            self.left -= struck
        else:
            struck = self._random.randrange(rule.one_in) == 0
        self.hits += struck
        return struck


class Switch:
    def __init__(self, name: str, number: int, room: int) -> None:
        self.name, self.number, self.room = name, number, room
        self.ports: dict[str, Port] = {}  # by the neighbour's name
        self.table: dict[bytes, str] = {}  # MAC address of a host -> neighbour
        self.faults: list[Fault] = []

    def forward(self, now: float, frame: bytes) -> None:
        out = self.table.get(frame[:6])
        if out is None:
            return  # broadcasts: hosts know each other without asking
        for fault in self.faults:
            if fault.strikes(now, frame):
                if not fault.rule.via:
                    return
                out = fault.rule.via
        port = self.ports[out]
        port.offer(now, stamp(frame, self.number, port.depth(frame), self.room))


class Fabric:
    """Runs in the namespace in which the veth ends of all switches are."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.clock = topology, Clock()
        self.switches = {name: Switch(name, number, topology.room) for name, number in topology.switches.items()}
        self.sockets: dict[int, tuple[socket.socket, Port]] = {}
        self.uplinks: dict[str, Port] = {}
        self.stopped = False
        macs = {name: bytes.fromhex(host.mac.replace(":", "")) for name, host in topology.hosts.items()}
        for name, switch in self.switches.items():
            for neighbour, link in topology.neighbours(name):
                if neighbour in self.switches:
                    deliver: Deliver = self.switches[neighbour].forward
                else:
                    deliver = self._open(neighbour, switch, link.rate, link.delay)
                switch.ports[neighbour] = Port(self.clock, link.rate, link.queue, link.delay, deliver)
            switch.table = {macs[host]: via for host, via in topology.next_hops(name).items()}
        begun = time.monotonic()
        for rule in topology.drops:
            source = macs[rule.source] if rule.source else b""
            self.switches[rule.at].faults.append(Fault(rule, begun, macs[rule.to], source))

    def _open(self, host: str, switch: Switch, rate: float, delay: float) -> Deliver:
        """The veth end of a host: what comes from it passes a port of its own, the network card of the host."""
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        end.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        end.bind((host, 0))
        end.setblocking(False)
        self.uplinks[host] = Port(self.clock, rate, 10_000, delay, switch.forward)
        self.sockets[end.fileno()] = end, self.uplinks[host]

        def deliver(now: float, frame: bytes) -> None:
            with suppress(OSError):  # the host went down, or takes no more
                end.send(frame)

        return deliver

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        fds = list(self.sockets)
        wait = 0.0
        while not self.stopped:
            readable = select.select(fds, [], [], wait)[0]
            now = time.monotonic()
            realtime = time.time() - now
            for fd in readable:
                self._take(*self.sockets[fd], realtime)
            due = self.clock.run(now)  # all that has come until then is among the events
            wait = IDLE if due is None else min(max(due - time.monotonic(), 0.0), IDLE)

    def _take(self, end: socket.socket, port: Port, realtime: float) -> None:
        """The frames that wait at a veth end become events at the times when the kernel took them."""
        while True:
            try:
                frame, control, _, _ = end.recvmsg(65536, CONTROL)
            except OSError:
                return
            second, nanosecond = struct.unpack("qq", control[0][2])
            self.clock.at(second + nanosecond / 1e9 - realtime, partial(port.offer, frame=frame))

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = True

    def counts(self) -> dict[str, object]:
        """What happened, for the report and the tests."""
        ports = {
            f"{name} to {neighbour}": {"sent": port.sent, "dropped": port.dropped, "deepest": port.deepest}
            for name, switch in self.switches.items()
            for neighbour, port in switch.ports.items()
        }
        faults = [
            {"at": f.rule.at, "to": f.rule.to, "via": f.rule.via, "packets": f.hits}
            for switch in self.switches.values()
            for f in switch.faults
        ]
        return {"ports": ports, "faults": faults}


def main(topology: Topology, ready: Path, counts: Path) -> None:
    """``ready`` is written once frames are taken, ``counts`` at the end."""
    fabric = Fabric(topology)
    with punctual():
        ready.write_text("ready\n")
        fabric.run()
    counts.write_text(json.dumps(fabric.counts()))
