"""Where the time went: causes summed over messages, as in the paper's tables 2 and 3."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

SIZES = ((10_000, "to 10 kB"), (100_000, "to 100 kB"), (1_000_000, "to 1 MB"), (10_000_000, "to 10 MB"))
LARGEST = "above 10 MB"
HANDSHAKE = "handshake"
RETRANSMISSION = 2
COUNTED = (1, RETRANSMISSION)  # events with a time that counts: gap, retransmission


class Labelled(NamedTuple):
    """A row of the schema `explanation`, as far as it matters here.  ``place``: its columns to copy."""

    flow: int
    message: int
    event: int
    cause: int
    duration: int
    place: tuple[Any, ...]


class Judged(NamedTuple):
    """A row of the schema `message`, as far as it matters here."""

    flow: int
    message: int
    bytes: int
    main: int
    slowdown: float


@dataclass(slots=True)
class CauseTally:
    messages: int = 0
    events: int = 0
    time: int = 0
    longest: int = -1
    place: tuple[Any, ...] = ()


def size_class(size: int) -> str:
    return next((name for limit, name in SIZES if size <= limit), LARGEST)


def slowest(messages: Iterable[Judged], share: float) -> set[tuple[int, int]]:
    """(flow, message) of the slowest share of the messages by slowdown, at least one."""
    from heapq import nlargest
    from math import ceil

    judged = [m for m in messages if m.slowdown > 0]
    worst = nlargest(max(ceil(len(judged) * share), 1), judged, key=lambda m: m.slowdown)
    return {(m.flow, m.message) for m in worst}


def tally_causes(
    rows: Iterable[Labelled], messages: Iterable[Judged], by_size: bool
) -> Iterator[tuple[str, int, CauseTally, float]]:
    """(size class, cause, sums, share in the time of its size class), largest time first.

    Delayed acknowledgements count as events; their time is that of the gaps that they caused.
    """
    found: dict[tuple[str, int], CauseTally] = defaultdict(CauseTally)
    sizes = {}
    for m in messages:
        sizes[m.flow, m.message] = size = size_class(m.bytes) if by_size else ""
        if m.main:
            found[size, m.main].messages += 1
    for row in rows:
        size = sizes.get((row.flow, row.message), HANDSHAKE if by_size else "")
        if not row.message and row.event != RETRANSMISSION:
            continue  # between two messages
        one = found[size, row.cause]
        one.events += 1
        if row.event in COUNTED:
            one.time += row.duration
            if row.duration > one.longest:
                one.longest, one.place = row.duration, row.place
    total: dict[str, int] = defaultdict(int)
    for (size, _), one in found.items():
        total[size] += one.time
    order = [HANDSHAKE, *(name for _, name in SIZES), LARGEST, ""]
    for (size, cause), one in sorted(found.items(), key=lambda item: (order.index(item[0][0]), -item[1].time)):
        yield size, cause, one, one.time / total[size] if total[size] else 0.0
