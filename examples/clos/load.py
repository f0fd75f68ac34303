"""TCP load between the hosts of a Clos, from one process that opens sockets in their namespaces.

A flow sends N bytes, waits until the other end has read them and closed, and reads its kernel counters (TCP_INFO).
Only a few flows run at a time, with small windows: the kernel's queue behind a veth pair holds 1000 packets per
processor, and its drops are not counted.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

import net
from clos import Clos
from topology import Mistake

PORT = 5001
PARALLEL = 24
WINDOW = 32768  # maximum bytes in flight per flow: 22 packets
PATIENCE = 120.0  # s without a finished flow
PIECE = b"x" * 65536
RTT, TOTAL_RETRANS, SEGS_OUT, DSACK_DUPS = 68, 100, 136, 216  # offsets in struct tcp_info


@dataclass
class Flow:
    """``retrans``, ``dsack``, ``sent`` (packets) and ``rtt`` (µs): of the sender, by TCP_INFO."""

    source: str
    to: str
    src_ip: str
    dst_ip: str
    src_port: int
    dst_port: int
    bytes: int
    sent: int = 0
    retrans: int = 0
    dsack: int = 0
    rtt: int = 0
    done: bool = False

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.src_ip, self.src_port, self.dst_ip, self.dst_port


def choose(plan: Clos, count: int, size: int, seed: int, ip: int = 4, first_port: int = 20000) -> list[Flow]:
    """``count`` flows of ``size`` bytes, between random hosts of different racks; the same for the same seed."""
    dice = random.Random(seed)
    hosts = plan.host_nodes()
    flows = []
    for number in range(count):
        source = dice.choice(hosts)
        to = dice.choice([host for host in hosts if host.tor != source.tor] or [h for h in hosts if h is not source])
        ends = (source.ip4, to.ip4) if ip == 4 else (source.ip6, to.ip6)
        flows.append(Flow(source.name, to.name, *ends, first_port + number, PORT, size))
    return flows


class Run:
    """All flows of a load; `go` returns when they have ended.

    ``give_up``: close flows that have not ended after that many seconds, and leave them undone; 0: never.
    """

    def __init__(self, state: net.State, flows: Iterable[Flow], parallel: int, give_up: float = 0) -> None:
        self.state, self.waiting, self.parallel, self.give_up = state, deque(flows), parallel, give_up
        self.began: dict[socket.socket, float] = {}
        self.events = selectors.DefaultSelector()
        self.listeners: dict[tuple[str, str, int], socket.socket] = {}
        self.left: dict[socket.socket, int] = {}  # bytes that a sender has still to send
        self.flows: dict[socket.socket, Flow] = {}
        self.takers: set[socket.socket] = set()

    def go(self) -> None:
        for flow in self.waiting:
            self._listen(flow)
        last = time.monotonic()
        while self.waiting or self.flows:
            while self.waiting and len(self.flows) < self.parallel:
                self._begin(self.waiting.popleft())
            for key, mask in self.events.select(1.0):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one in self.flows:
                    if self._send(one, mask):
                        last = time.monotonic()
                elif one in self.takers:
                    self._take(one)
                else:
                    self._accept(one)
            if self._drop_late():
                last = time.monotonic()
            if time.monotonic() - last > PATIENCE:
                raise Mistake(f"{len(self.flows)} flows do not end, for example {next(iter(self.flows.values()))}")

    def close(self) -> None:
        for one in (*self.flows, *self.takers, *self.listeners.values()):
            one.close()
        self.events.close()

    def _drop_late(self) -> bool:
        """Give up flows that have taken too long; return True when there was one."""
        before = time.monotonic() - self.give_up
        late = [one for one, began in self.began.items() if began < before] if self.give_up else []
        for one in late:
            self._finish(one)
        return bool(late)

    def _listen(self, flow: Flow) -> None:
        key = flow.to, flow.dst_ip, flow.dst_port
        if key in self.listeners:
            return
        with net.inside(self.state.space(flow.to)):
            one = socket.socket(_family(flow), socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)  # the kernel doubles it for its own overhead
        one.bind((flow.dst_ip, flow.dst_port))
        one.listen(1024)
        one.setblocking(False)
        self.listeners[key] = one
        self.events.register(one, selectors.EVENT_READ)

    def _begin(self, flow: Flow) -> None:
        with net.inside(self.state.space(flow.source)):
            one = socket.socket(_family(flow), socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.bind((flow.src_ip, flow.src_port))
        one.setblocking(False)
        one.connect_ex((flow.dst_ip, flow.dst_port))
        self.flows[one], self.left[one], self.began[one] = flow, flow.bytes, time.monotonic()
        self.events.register(one, selectors.EVENT_WRITE)

    def _send(self, one: socket.socket, mask: int) -> bool:
        """Continue with a sender; return True when it has finished."""
        flow = self.flows[one]
        try:
            if mask & selectors.EVENT_WRITE:
                self.left[one] -= one.send(PIECE[: self.left[one]])
                if self.left[one]:
                    return False
                one.shutdown(socket.SHUT_WR)
                self.events.modify(one, selectors.EVENT_READ)
                return False
            flow.done = one.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            pass  # the flow stays unfinished
        self._finish(one)
        return True

    def _finish(self, one: socket.socket) -> None:
        """Store the counters of a sender, and close it."""
        flow = self.flows[one]
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        flow.rtt, flow.retrans, flow.sent, flow.dsack = (
            struct.unpack_from("I", info, at)[0] for at in (RTT, TOTAL_RETRANS, SEGS_OUT, DSACK_DUPS)
        )
        self._end(one)
        del self.flows[one], self.left[one], self.began[one]

    def _accept(self, listener: socket.socket) -> None:
        try:
            one, _ = listener.accept()
        except OSError:
            return
        one.setblocking(False)
        self.takers.add(one)
        self.events.register(one, selectors.EVENT_READ)

    def _take(self, one: socket.socket) -> None:
        try:
            if one.recv(1 << 18):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.takers.remove(one)
        self._end(one)

    def _end(self, one: socket.socket) -> None:
        self.events.unregister(one)
        one.close()


def _family(flow: Flow) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in flow.dst_ip else socket.AF_INET


def run(state: net.State, flows: list[Flow], parallel: int = PARALLEL, give_up: float = 0) -> list[Flow]:
    """Run all flows to their end and store their counters in them; see `Run` for ``give_up``."""
    work = Run(state, flows, parallel, give_up)
    try:
        work.go()
    finally:
        work.close()
    return flows


TYPES = "text(8) text(8) ip ip u16 u16 u64 u32 u32 u32 u32 bool"


def table(flows: list[Flow]) -> str:
    """Write flows as TSV that the commands read."""
    lines = ["#fields\t" + "\t".join(one.name for one in fields(Flow)), "#types\t" + "\t".join(TYPES.split())]
    for flow in flows:
        lines.append("\t".join(str(int(x) if isinstance(x, bool) else x) for x in astuple(flow)))
    return "\n".join(lines) + "\n"
