"""Switch queues with a heap, and one event for each arrival and each departure: the obvious way."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


class TwinPort(NamedTuple):
    switch: int | None  # None: of a host
    ps_per_byte: int
    delay: int


class TwinSwitch(NamedTuple):
    buffer: int
    alpha: Fraction | None  # None: each queue has the buffer for itself


class TwinPacket(NamedTuple):
    time: int
    size: int
    route: Sequence[int]
    tagged: bool = False


class TwinRow(NamedTuple):
    time: int
    packet: int
    port: int
    queue: int
    used: int
    leaves: int  # 0: dropped
    dropped: bool


@dataclass
class _State:
    free_at: int = 0
    queue: int = 0


def replay(
    switches: Sequence[TwinSwitch],
    ports: Sequence[TwinPort],
    packets: Sequence[TwinPacket],
    *,
    slack: int | None = None,
    until_sent: bool = True,
) -> list[TwinRow]:
    """What each packet sees at each switch, by (time, packet).  ``slack``: only tagged packets are dropped."""
    state = [_State() for _ in ports]
    rows: list[TwinRow] = []
    # At one time frames leave first, then packets arrive in the order of their numbers.
    heap: list[tuple[int, int, int, int, int]] = []  # time, 0 leaves or 1 arrives, packet, hop, size
    for number in sorted(range(len(packets)), key=lambda n: (packets[n].time, n)):
        packet = packets[number]
        port, own = ports[packet.route[0]], state[packet.route[0]]
        own.free_at = max(packet.time, own.free_at) + packet.size * port.ps_per_byte
        if len(packet.route) > 1:
            heap.append((own.free_at + port.delay, 1, number, 1, packet.size))
    heapq.heapify(heap)
    while heap:
        now, arrives, number, hop, size = heapq.heappop(heap)
        at = packets[number].route[hop]
        port, own = ports[at], state[at]
        if not arrives:
            own.queue -= size
            continue
        assert port.switch is not None
        used = sum(s.queue for s, p in zip(state, ports, strict=True) if p.switch == port.switch)
        full = not _fits(switches[port.switch], own.queue, used, size + (slack or 0))
        dropped = full and (slack is None or packets[number].tagged)
        leaves = 0
        if not dropped:
            start = max(now, own.free_at)
            own.free_at = leaves = start + size * port.ps_per_byte
            own.queue += size
            heapq.heappush(heap, (leaves if until_sent else start, 0, number, hop, size))
            if hop + 1 < len(packets[number].route):
                heapq.heappush(heap, (leaves + port.delay, 1, number, hop + 1, size))
        rows.append(TwinRow(now, number, at, own.queue - (0 if dropped else size), used, leaves, dropped))
    return rows


def _fits(switch: TwinSwitch, queue: int, used: int, size: int) -> bool:
    if switch.alpha is None:
        return queue + size <= switch.buffer
    return used + size <= switch.buffer and queue + size <= switch.alpha * (switch.buffer - used)
