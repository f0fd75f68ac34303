"""Made-up traffic for experiments: flows with the sizes of a web search workload, and incasts (DETER, section 5.4).

There are no answers: senders transmit a window of packets in each round-trip time, and take no notice of drops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

from confluo_tools.replay.queues.sent_packets import WIRE, QueueFlow, SentPackets

# Sizes of flows in bytes and the share of the flows up to them (DCTCP, SIGCOMM 2010, figure 4, as commonly tabulated)
WEB_SEARCH = (
    (0, 0.0),
    (10_000, 0.15),
    (20_000, 0.2),
    (30_000, 0.3),
    (50_000, 0.4),
    (80_000, 0.53),
    (200_000, 0.6),
    (1_000_000, 0.7),
    (2_000_000, 0.8),
    (5_000_000, 0.9),
    (10_000_000, 0.97),
    (30_000_000, 1.0),
)
PAYLOAD = 1460
FRAME = 1500 + WIRE
ROUND_TRIP = 50_000  # ns
FIRST_WINDOW, LAST_WINDOW = 10, 64  # packets; doubles with each round trip
JITTER = 1000  # ns: a packet is up to so much later than the link would allow
INCAST_SERVERS, INCAST_SIZE = 40, 250_000
INCAST_WINDOW, INCAST_ROUND_TRIP = 8, 250_000
INCAST_JITTER = 10_000  # ns between the first answer and the last


def make_traffic(
    hosts: Sequence[int],
    address_of: Mapping[int, int],
    *,
    length: int,
    load: float,
    incasts: float,
    speed: int,
    seed: int,
    start: int = 0,
) -> SentPackets:
    """Packets that ``hosts`` send each other within ``length`` ns from ``start`` on.

    ``load`` is the share of the hosts' ``speed`` (bits a second) that flows between random pairs use; ``incasts`` the
    number of incasts a second: a host asks 40 others at once, and each answers with 250 kB.
    """
    rng = random.Random(seed)
    traffic = _Traffic(hosts, address_of, 8e9 / speed, start, start + length, rng)
    left = load * len(hosts) * speed / 8e9 * length  # bytes
    while left > 0:
        src, dst = rng.sample(hosts, 2)
        left -= traffic.flow(src, dst, _size(rng), start + rng.randrange(length), FIRST_WINDOW, LAST_WINDOW, ROUND_TRIP)
    at = float(start)
    while incasts:
        at += rng.expovariate(incasts) * 1e9
        if at >= start + length:
            break
        client, *servers = rng.sample(hosts, min(INCAST_SERVERS + 1, len(hosts)))
        for server in servers:
            begin = int(at) + rng.randrange(INCAST_JITTER)
            traffic.flow(server, client, INCAST_SIZE, begin, INCAST_WINDOW, INCAST_WINDOW, INCAST_ROUND_TRIP)
    return traffic.packets


def expected_packets(hosts: int, length: int, load: float, incasts: float, speed: int) -> float:
    """About how many packets `make_traffic` makes."""
    return load * hosts * speed * length / 8e9 / FRAME + incasts * length / 1e9 * INCAST_SERVERS * INCAST_SIZE / PAYLOAD


class _Traffic:
    def __init__(
        self,
        hosts: Sequence[int],
        address_of: Mapping[int, int],
        byte_time: float,
        start: int,
        end: int,
        rng: random.Random,
    ) -> None:
        self._address, self._gap, self._end, self._rng = address_of, round(FRAME * byte_time), end, rng
        self.packets = SentPackets()

    def flow(self, src: int, dst: int, size: int, start: int, window: int, most: int, round_trip: int) -> int:
        """Add a flow; its bytes on the wire."""
        packets, number = self.packets, len(self.packets.flows)
        port = 1024 + number % 60_000
        packets.flows.append(QueueFlow(src, dst, 4, 6, self._address[src], self._address[dst], port, 80))
        time, left, random_of = start, size // PAYLOAD + 1, self._rng.random
        sent = 0
        while left and time < self._end:
            for _ in range(min(window, left)):
                if time >= self._end:
                    break
                packets.add(time, FRAME, number)
                time += self._gap + int(random_of() * JITTER)
                sent += 1
            left -= min(window, left)
            window = min(2 * window, most)
            time += round_trip
        return sent * FRAME


def _size(rng: random.Random) -> int:
    share = rng.random()
    for (small, below), (large, above) in pairwise(WEB_SEARCH):
        if share <= above:
            return int(small + (large - small) * (share - below) / (above - below))
    return WEB_SEARCH[-1][0]
