"""Packets that hosts sent, and which of them were lost, from recordings, replays and captures of the hosts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluo_tools import units
from confluo_tools.core.replay.capture_packets import CapturePackets
from confluo_tools.core.replay.packet_store import MAX_PACKETS, PacketStore
from confluo_tools.core.replay.recorded_packets import RecordedPackets
from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.replay.queues.sent_packets import WIRE, QueueFlow, SentPackets
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple, RecordingReader, pair_ends
from confluo_tools.schema.types import fold6

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader
    from confluo_tools.network.topology import Topology

TCP = 6
HEADERS = {4: 40, 6: 60}  # bytes of IP and TCP headers without options, by version
TIMESTAMPS = 12  # bytes of the option, padded
MIN_FRAME = 64 + 20  # bytes on the wire
NO_FLOW = 0xFFFFFFFF


class Collector:
    """Collects packets from inputs; ``packets`` are those of hosts of the topology, in the order of their times.

    ``derived`` packets have a size that is not recorded and follows from the calls.  ``unknown`` flows have a host
    that is not in the topology, and are left out.  ``unmatched`` directions of connections have both ends recorded,
    but not which packets were lost: IPv6 without headers.
    Raises FormatError for more than ``most`` packets.
    """

    def __init__(self, topology: Topology, most: int = MAX_PACKETS) -> None:
        self._topology = topology
        self._store = PacketStore(most)
        self._recorded, self._recordings = RecordedPackets(), RecordingReader()
        self._captured = CapturePackets(most)
        self._captures: list[set[int]] = []  # the hosts that may have made it
        self._hosts: list[tuple[int, int]] = []  # numbers in the topology, by flow of the captures
        self._flows: list[QueueFlow] = []
        self._numbers: dict[QueueFlow, int] = {}
        self._pairs: dict[tuple[int, int], bool] = {}
        self.unknown = self.unmatched = 0

    @property
    def derived(self) -> int:
        return self._recorded.derived

    @property
    def split(self) -> int:
        """Captured packets that were larger than the segments of their connection."""
        return self._captured.split

    def add_recording(self, blocks: Iterable[Block]) -> None:
        """Packets of both ends of each connection; without the other end nothing is known to be lost."""
        for block in blocks:
            self._recordings.add(block)

    def add_capture(self, reader: Reader) -> None:
        """Packets of a capture.  Its host is the one that all its packets have at one of their ends.

        A packet in two captures arrived; one in only one of them was lost, if there is a capture of each of its ends.
        """
        core = self._captured
        core.begin()
        for block in reader:
            try:
                with _bounded():
                    core.add(block)
            except KeyError as e:
                raise SchemaError(f"has no column {e}", where=reader.name) from None
        node = self._topology.node
        self._hosts += [(node(flow[2]), node(flow[3])) for flow in core.flows[len(self._hosts) :]]
        ends: Counter[int] = Counter()
        for flow, packets in zip(core.flows, core.packets_of_flows(), strict=True):
            ends[flow[2]] += packets
            ends[flow[3]] += packets
        self._captures.append({node(address) for address, count in ends.items() if count == core.rows})

    @property
    def packets(self) -> SentPackets:
        """All packets so far, by time."""
        with _bounded():
            self._settle()
            return SentPackets(self._flows, *self._store.by_time())

    def _settle(self) -> None:
        connections, alone = pair_ends(self._recordings.settled())
        for connection in connections:
            client, server = connection.client, connection.server
            self._add_end(client, server)
            self._add_end(server, client)
        for lone in alone:
            self._add_end(lone.end, None)
        numbers, both = array("I"), array("B")
        for (src, dst), flow in zip(self._hosts, self._captured.flows, strict=True):
            number = self._number(QueueFlow(src, dst, *flow))
            numbers.append(NO_FLOW if number is None else number)
            both.append(self._both_captured(src, dst))
        self._captured.settle(self._store, numbers, both, WIRE, MIN_FRAME)

    def _add_end(self, end: ConnectionEnd, peer: ConnectionEnd | None) -> None:
        number = self._number(_queue_flow(self._topology, end.flow))
        if number is None:
            return
        timestamps = bool(end.setting("timestamps") and end.setting("peer_timestamps"))
        mss = min((end.setting(name) for name in ("mss", "peer_mss") if end.setting(name)), default=0)
        known = self._recorded.collect(
            self._store,
            number,
            end,
            peer,
            mss=mss - TIMESTAMPS if mss and timestamps else mss,
            headers=HEADERS[end.flow.version],
            timestamps=timestamps,
        )
        self.unmatched += peer is not None and not known and end.flow.version == 6

    def _both_captured(self, src: int, dst: int) -> bool:
        # By two captures: one that has packets of two hosts only may be of either.
        known = self._pairs.get((src, dst))
        if known is None:
            ours = {i for i, hosts in enumerate(self._captures) if src in hosts}
            theirs = {i for i, hosts in enumerate(self._captures) if dst in hosts}
            known = self._pairs[src, dst] = bool(ours and theirs) and len(ours | theirs) > 1
        return known

    def _number(self, flow: QueueFlow) -> int | None:
        number = self._numbers.get(flow, -1)
        if number == -1:
            hosts = self._topology.tor_of
            if flow.src in hosts and flow.dst in hosts and flow.src != flow.dst:
                number = len(self._flows)
                self._flows.append(flow)
            else:
                number = NO_FLOW
                self.unknown += 1
            self._numbers[flow] = number
        return None if number == NO_FLOW else number


@contextmanager
def _bounded() -> Iterator[None]:
    try:
        yield
    except OverflowError as e:
        raise FormatError(str(e), hint="choose a part of them with confluo-query") from None
    except ValueError as e:
        raise FormatError(str(e)) from None


def _queue_flow(topology: Topology, flow: FiveTuple) -> QueueFlow:
    (src, src6), (dst, dst6) = _address(flow.src), _address(flow.dst)
    ports = flow.src_port, flow.dst_port
    return QueueFlow(topology.node(src), topology.node(dst), flow.version, TCP, src, dst, *ports, src6, dst6)


def _address(text: str) -> tuple[int, bytes]:
    six = units.try_ip6(text) if ":" in text else None
    return (fold6(six), six) if six is not None else (units.try_ip4(text) or 0, b"")
