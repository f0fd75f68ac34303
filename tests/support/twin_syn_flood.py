"""SYN floods in plain Python, from the definition, with all connections and targets in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SYN, RST, ACK = 2, 4, 16


class Packet(NamedTuple):
    ts: int
    src: str
    dst: str
    sport: int
    dport: int
    flags: int


class Change(NamedTuple):
    """An alert that begins (``fires``) or ends at ``tick``; ``port`` -1: of the whole address."""

    tick: int
    fires: bool
    dst: str
    port: int
    attempts: int
    completed: int


class Attempt:
    """An attempt to connect, by its first SYN."""

    def __init__(self, ts: int, dst: str, port: int) -> None:
        self.ts, self.dst, self.port, self.completed = ts, dst, port, False


def attempts_of(packets: Sequence[Packet], timeout: int) -> list[Attempt]:
    """The attempts of all connections."""
    found: list[Attempt] = []
    last: dict[tuple[str, int, str, int], Attempt] = {}
    for p in packets:
        ends = p.src, p.sport, p.dst, p.dport
        known = last.get(ends)
        if p.flags & (SYN | ACK) == SYN:
            if known is None or abs(p.ts - known.ts) > timeout:
                last[ends] = Attempt(p.ts, p.dst, p.dport)
                found.append(last[ends])
        elif p.flags & (SYN | RST | ACK) == ACK and known is not None and 0 <= p.ts - known.ts <= timeout:
            known.completed = True
    return found


def alerts(
    packets: Sequence[Packet], *, window: int, step: int, timeout: int, threshold: int, ratio: float, clear: float
) -> list[Change]:
    """All changes, in the order of `Change`.  ``packets``: in order, at least within connections."""
    if not packets:
        return []
    found = attempts_of(packets, timeout)
    targets = {(a.dst, a.port) for a in found} | {(a.dst, -1) for a in found}
    firing: set[tuple[str, int]] = set()
    out = []
    tick = min(p.ts for p in packets) // step * step
    end = (max(p.ts for p in packets) // step + 1) * step
    while tick <= end:
        for dst, port in targets:
            mine = [a for a in found if tick - window <= a.ts < tick and a.dst == dst and port in (-1, a.port)]
            attempts, completed = len(mine), sum(a.completed for a in mine)
            half = attempts - completed
            if (dst, port) not in firing and half >= threshold and half >= ratio * attempts:
                firing.add((dst, port))
                out.append(Change(tick, True, dst, port, attempts, completed))
            elif (dst, port) in firing and (half < clear * threshold or half < clear * ratio * attempts):
                firing.remove((dst, port))
                out.append(Change(tick, False, dst, port, attempts, completed))
        tick += step
    return sorted(out)
