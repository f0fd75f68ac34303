"""Packets that hosts sent, and which of them were lost, from recordings, replays and captures of the hosts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools import units
from confluo_tools.replay.queues.block_columns import BlockColumns
from confluo_tools.replay.queues.sent_packets import WIRE, QueueFlow, SentPackets
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple, pair_ends
from confluo_tools.replay.recording.connection import arrivals
from confluo_tools.schema.types import fold6

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.network.topology import Topology

TCP = 6
HEADERS = 40  # bytes of IPv4 and TCP; IPv6 has 20 more
TIMESTAMPS = 12  # bytes of the option, padded
MIN_FRAME = 64 + 20  # bytes on the wire


class Collector:
    """Collects packets from inputs; ``packets`` are those of hosts of the topology, in the order of their times.

    ``guessed`` packets have a size that is not recorded: their end's mean.  ``unknown`` flows have a host that is not
    in the topology, and are left out.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._found = SentPackets()
        self._numbers: dict[QueueFlow, int | None] = {}
        self._captured: dict[_Identity, _Sighting] = {}
        self._captures: list[set[int]] = []  # the hosts that may have made it
        self._pairs: dict[tuple[int, int], bool] = {}
        self.guessed = self.unknown = 0

    def add_recording(self, ends: Iterable[ConnectionEnd]) -> None:
        """Packets of both ends of each connection; without the other end nothing is known to be lost."""
        connections, alone = pair_ends(ends)
        for connection in connections:
            for sender, receiver in ((connection.client, connection.server), (connection.server, connection.client)):
                got = {number for number in arrivals(sender, receiver) if number >= 0} if receiver.received else None
                self._add_end(sender, got)
        for lone in alone:
            self._add_end(lone.end, None)

    def _add_end(self, end: ConnectionEnd, arrived: set[int] | None) -> None:
        number = self._number(_queue_flow(self._topology, end.flow))
        if number is None:
            return
        times = end.sent.expanded("ts") if end.sent else end.headers_sent.expanded("ts")
        segments = end.sent.expanded("segments") if end.sent else array("I", [1]) * len(times)
        known = len(end.headers_sent) == len(times)
        if not known:
            self.guessed += sum(max(1, n) for n in segments)
        sizes = _header_sizes(end) if known else [_mean_size(end, sum(segments) or 1)] * len(times)
        lost = arrived is not None
        for i, (time, size, count) in enumerate(zip(times, sizes, segments, strict=True)):
            for _ in range(max(1, count)):
                self._found.add(time, max(size, MIN_FRAME), number, lost and i not in arrived)  # type: ignore[operator]

    def add_capture(self, reader: Reader) -> None:
        """Packets of a capture.  Its host is the one that all its packets have at one of their ends.

        A packet in two captures arrived; one in only one of them was lost, if there is a capture of each of its ends.
        """
        ends: Counter[int] = Counter()
        rows = 0
        for block in reader:
            columns = BlockColumns(block, reader.name)
            ts, src, dst, version, proto = (columns[n] for n in ("ts", "src_ip", "dst_ip", "ip_version", "proto"))
            sport, dport, size = columns["src_port"], columns["dst_port"], columns["ip_len"]
            ip_id, seq, payload = columns["ip_id"], columns["tcp_seq"], columns["payload_len"]
            for i in range(block.rows):
                if not version[i]:
                    continue
                rows += 1
                ends[src[i]] += 1
                ends[dst[i]] += 1
                six = (columns.bytes_of("src_ip6", i), columns.bytes_of("dst_ip6", i)) if version[i] == 6 else ()
                flow = QueueFlow(
                    self._topology.node(src[i]),
                    self._topology.node(dst[i]),
                    version[i],
                    proto[i],
                    src[i],
                    dst[i],
                    sport[i],
                    dport[i],
                    *six,
                )
                self._sight(_Identity(flow, ip_id[i], seq[i], payload[i]), ts[i], size[i], reader.name)
        self._captures.append({self._topology.node(address) for address, count in ends.items() if count == rows})

    def _sight(self, identity: _Identity, time: int, size: int, where: str) -> None:
        # The same identity may come back: identifications are 16 bits.  Then each capture has it as often.
        while True:
            before = self._captured.get(identity)
            if before is None:
                self._captured[identity] = _Sighting(time, size, [where])
                return
            if where not in before.places:
                before.places.append(where)
                before.time = min(before.time, time)
                return
            identity = identity._replace(again=identity.again + 1)

    @property
    def packets(self) -> SentPackets:
        """All packets so far, by time."""
        for identity, sighting in self._captured.items():
            number = self._number(identity.flow)
            if number is not None:
                lost = len(sighting.places) < 2 and self._both_captured(identity.flow.src, identity.flow.dst)
                self._found.add(sighting.time, max(sighting.size + WIRE, MIN_FRAME), number, lost)
        self._captured.clear()
        found = self._found
        order = sorted(range(len(found)), key=found.times.__getitem__)
        return SentPackets(
            found.flows,
            array("q", [found.times[i] for i in order]),
            array("I", [found.sizes[i] for i in order]),
            array("I", [found.flow_of[i] for i in order]),
            array("B", [found.lost[i] for i in order]),
        )

    def _both_captured(self, src: int, dst: int) -> bool:
        # By two captures: one that has packets of two hosts only may be of either.
        known = self._pairs.get((src, dst))
        if known is None:
            ours = {i for i, hosts in enumerate(self._captures) if src in hosts}
            theirs = {i for i, hosts in enumerate(self._captures) if dst in hosts}
            known = self._pairs[src, dst] = bool(ours and theirs) and len(ours | theirs) > 1
        return known

    def _number(self, flow: QueueFlow) -> int | None:
        if flow not in self._numbers:
            hosts = self._topology.tor_of
            if flow.src in hosts and flow.dst in hosts and flow.src != flow.dst:
                self._numbers[flow] = len(self._found.flows)
                self._found.flows.append(flow)
            else:
                self._numbers[flow] = None
                self.unknown += 1
        return self._numbers[flow]


class _Identity(NamedTuple):
    flow: QueueFlow
    ip_id: int
    seq: int
    payload: int
    again: int = 0


class _Sighting:
    __slots__ = ("places", "size", "time")

    def __init__(self, time: int, size: int, places: list[str]) -> None:
        self.time, self.size, self.places = time, size, places


def _queue_flow(topology: Topology, flow: FiveTuple) -> QueueFlow:
    (src, src6), (dst, dst6) = _address(flow.src), _address(flow.dst)
    ports = flow.src_port, flow.dst_port
    return QueueFlow(topology.node(src), topology.node(dst), flow.version, TCP, src, dst, *ports, src6, dst6)


def _address(text: str) -> tuple[int, bytes]:
    six = units.try_ip6(text) if ":" in text else None
    return (fold6(six), six) if six is not None else (units.try_ip4(text) or 0, b"")


def _header_sizes(end: ConnectionEnd) -> list[int]:
    headers = HEADERS + (20 if end.flow.version == 6 else 0) + WIRE
    rows = zip(end.headers_sent["len"], end.headers_sent["tsval"], end.sack_sent, strict=True)
    return [
        headers + size + (TIMESTAMPS if tsval else 0) + (4 + 4 * len(sack) if sack else 0) for size, tsval, sack in rows
    ]


def _mean_size(end: ConnectionEnd, packets: int) -> int:
    # The payload that the calls sent, spread over all packets.
    events = end.events
    counts, calls, sent = events["count"], events["call"], events["bytes"]
    total = sum(n * b for kind, n, call, b in zip(events["kind"], counts, calls, sent, strict=True)
                if kind == 4 and call == 3 and b > 0)  # fmt: skip
    return HEADERS + WIRE + min(total // packets, 1460)
