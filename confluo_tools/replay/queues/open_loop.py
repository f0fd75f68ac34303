"""A replay of sending times through the queues of a network, without feedback (DETER, section 3.4)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from confluo_tools.core.replay.queue_engine import RULE, TAGS, QueueEngine, QueueRows, picoseconds, time_order
from confluo_tools.replay.queues.ports import PortMap
from confluo_tools.replay.queues.sent_packets import QueueFlow, SentPackets

SLACK = 5 * 1500  # bytes: a packet known to be lost is dropped where the queue is that near to its limit
ROWS = 65536


class OpenLoop:
    """Packets and their routes.  ``paths`` {flow: switches}: instead of the routes of ECMP.

    Flows without a route send nothing: ``unrouted`` is their number, ``unrouted_packets`` that of their packets.
    """

    def __init__(
        self, ports: PortMap, packets: SentPackets, paths: Mapping[QueueFlow, Sequence[int]] | None = None
    ) -> None:
        self.ports, self.packets = ports, packets
        routes, starts = array("I"), array("I", [0])
        self.unrouted = self.unrouted_packets = 0
        without = set()
        for number, flow in enumerate(packets.flows):
            path = (paths or {}).get(flow)
            route = ports.along(flow.src, path, flow.dst) if path else None
            route = route or ports.route(flow.src, flow.dst, hash_of(flow))
            if route is None:
                without.add(number)
                self.unrouted += 1
                route = [0]  # a host's port: the packets go no further
            routes.extend(route)
            starts.append(len(routes))
        if without:
            self.unrouted_packets = sum(flow in without for flow in packets.flow_of)
        self._engine = QueueEngine(*ports.columns(), routes, starts)
        self.base = 0

    def run(
        self,
        times: array[int] | None = None,
        lost: Sequence[int] | None = None,
        *,
        name_flows: bool = False,
        sample: int = 0,
    ) -> Iterator[QueueRows]:
        """Replay; the rows are valid until the next ones.

        ``times``: instead of those of the packets.  ``lost``: these packets are dropped, and no others; None: the
        buffers decide.  The rest is as in `QueueEngine.load`; times of rows are from ``base`` on.
        Raises OverflowError for times that are more than 26 days apart.
        """
        times = times if times is not None else self.packets.times
        if not times:
            return
        self.base = min(times)
        relative = picoseconds(times, self.base)
        self._engine.load(
            relative,
            self.packets.sizes,
            self.packets.flow_of,
            time_order(relative),
            None if lost is None else array("B", lost),
            decide=RULE if lost is None else TAGS,
            slack=0 if lost is None else SLACK,
            name_flows=name_flows,
            sample=sample,
        )
        rows, more = QueueRows(ROWS), True
        while more:
            more = self._engine.advance(rows)
            yield rows

    @property
    def events(self) -> int:
        """Packets at switches, of the last run."""
        return self._engine.events

    @property
    def drops(self) -> int:
        return self._engine.drops

    def contents(self) -> dict[tuple[int, int], dict[int, int]]:
        """{(packet, hop): {flow: bytes}} of the sampled packets of the last run."""
        return self._engine.contents()


def hash_of(flow: QueueFlow) -> int:
    """A number of 64 bits for ECMP."""
    ports = flow.src_port << 24 | flow.dst_port << 8 | flow.proto
    return ((flow.src_ip << 32 | flow.dst_ip) * 0x9FB21C651E98DF25 ^ ports * 0xD6E8FEB86659FD93) & (1 << 64) - 1


def drops_of(rows: Iterator[QueueRows]) -> dict[int, int]:
    """{packet: port that dropped it}; runs the replay to its end."""
    found = {}
    for some in rows:
        flags, packet, port = some.flags, some.packet, some.port
        found.update({packet[i]: port[i] for i in range(some.count) if flags[i] & 1})
    return found
