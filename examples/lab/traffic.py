"""Real TCP between the hosts of a lab, from one process that opens its sockets in their namespaces."""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass

from net import State, inside, punctual
from topology import Flow, Topology

PIECE = 1448  # bytes that a flow with a rate sends at once: one segment
LATE = 0.01  # s that such a flow makes up for; what a busy machine delayed further is not sent as a burst
SMOOTH = 8  # such pieces that it may have under way: a stall must not end in a burst that fills a queue
NEVER = 1e9  # s
PORTS = 40001  # source port of the first flow; the others follow
ANY = b"x" * 65536
CLASS = {4: (socket.IPPROTO_IP, socket.IP_TOS), 6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)}
TOTAL_RETRANS = 100  # offset in struct tcp_info


@dataclass
class Sender:
    flow: Flow
    number: int
    socket: socket.socket
    begin: float = 0.0
    end: float = 0.0
    sent: int = 0

    def due(self, now: float) -> float:
        """Seconds until it has something to send: 0 or less is now."""
        if now < self.begin:
            return self.begin - now
        if now >= self.end:
            return NEVER
        if not self.flow.rate:
            return 0.0
        wait = self.begin + (self.sent + PIECE) * 8 / self.flow.rate - now
        if wait < -LATE:
            self.begin -= wait
        return wait


def run(topology: Topology, state: State, seconds: float) -> list[dict[str, object]]:
    """Run all flows for a time; return what each sent, sent again, and delivered."""
    listeners: dict[tuple[str, int, int], socket.socket] = {}
    senders: list[Sender] = []
    takers: dict[int, tuple[socket.socket, Sender]] = {}
    taken: dict[int, int] = {}
    for flow in topology.flows:
        host = topology.hosts[flow.to]
        family = socket.AF_INET6 if flow.ip == 6 else socket.AF_INET
        where = host.ip6 if flow.ip == 6 else host.ip4
        key = flow.to, flow.port, flow.ip
        if key not in listeners:
            with inside(state.space(flow.to)):
                listeners[key] = socket.create_server((where, flow.port), family=family, backlog=512)
        for number in range(flow.count):
            with inside(state.space(flow.source)):
                out = socket.socket(family, socket.SOCK_STREAM)
            out.setsockopt(*CLASS[flow.ip], flow.dscp << 2)
            out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if flow.rate:
                out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMOOTH * PIECE)
            out.bind(("::" if flow.ip == 6 else "0.0.0.0", PORTS + len(senders)))
            out.settimeout(10)
            out.connect((where, flow.port))
            end, _ = listeners[key].accept()
            end.setsockopt(*CLASS[flow.ip], flow.dscp << 2)  # its acknowledgements
            for one in (out, end):
                one.setblocking(False)
            sender = Sender(flow, number, out)
            senders.append(sender)
            takers[end.fileno()] = end, sender
            taken[id(sender)] = 0
    begun = time.monotonic()
    for sender in senders:
        sender.begin = begun + sender.flow.start
        sender.end = begun + (sender.flow.stop or seconds)
    until = begun + seconds
    with punctual():
        _pump(senders, takers, taken, until)
    report: list[dict[str, object]] = []
    for sender in senders:
        info = sender.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        report.append(
            {
                "from": sender.flow.source,
                "to": sender.flow.to,
                "port": sender.flow.port,
                "source_port": sender.socket.getsockname()[1],
                "dscp": sender.flow.dscp,
                "sent": sender.sent,
                "received": taken[id(sender)],
                "retransmits": struct.unpack_from("I", info, TOTAL_RETRANS)[0],
            }
        )
    for sender in senders:
        sender.socket.close()
    for end, _ in takers.values():
        end.close()
    for listener in listeners.values():
        listener.close()
    return report


def _pump(
    senders: list[Sender], takers: dict[int, tuple[socket.socket, Sender]], taken: dict[int, int], until: float
) -> None:
    full: set[int] = set()  # senders that wait for room
    by_fd = {sender.socket.fileno(): sender for sender in senders}
    reads = list(takers)
    while (now := time.monotonic()) < until:
        wait = until - now
        for fd, sender in by_fd.items():
            if fd in full:
                continue
            due = sender.due(now)
            while due <= 0:
                try:
                    sender.sent += sender.socket.send(ANY[:PIECE] if sender.flow.rate else ANY)
                except BlockingIOError:
                    full.add(fd)
                    break
                due = sender.due(now)
            if fd not in full:
                wait = min(wait, due)
        readable, writable, _ = select.select(reads, list(full), [], max(wait, 0))
        full.difference_update(writable)
        for fd in readable:
            end, sender = takers[fd]
            try:
                taken[id(sender)] += len(end.recv(1 << 18))
            except BlockingIOError:
                continue
