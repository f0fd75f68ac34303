"""Packets of two points paired by the core: what a made-up path did to each packet is what is reported of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.stream.packet_pairs import USED, PacketPairs
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.schema import builtin

PACKETS = builtin("packet").project(n for n in USED if n in builtin("packet"))
PASSAGE = builtin("passage").layout
TIMEOUT = 50_000
A, B, BOTH = 1, 2, 3


class Sent(NamedTuple):
    """A packet of a made-up path: times at the points, None: not seen there."""

    number: int
    flow: int
    a: int | None
    b: int | None


class Reported(NamedTuple):
    ts: int
    seen: int
    delay: int
    reordered: int
    number: int
    port: int


def expected(packets: Sequence[Sent]) -> list[Reported]:
    """The report on each packet, from its definition."""
    out, paired = [], []
    for p in packets:
        if p.a is not None and p.b is not None and abs(p.b - p.a) <= TIMEOUT:
            paired.append(p)
            continue
        out += [Reported(t, seen, 0, 0, p.number, p.flow) for t, seen in ((p.a, A), (p.b, B)) if t is not None]
    latest: dict[int, int] = {}
    for p in sorted(paired, key=lambda p: max(p.a, p.b)):  # type: ignore[type-var]
        assert p.a is not None
        assert p.b is not None
        first = min(p.a, p.b)
        behind = first < latest.get(p.flow, first)
        latest[p.flow] = max(first, latest.get(p.flow, first))
        out.append(Reported(first, BOTH, p.b - p.a, int(behind), p.number, p.flow))
    return sorted(out)


def rows_at(packets: Sequence[Sent], point: int, six: bool) -> list[dict[str, object]]:
    ends = address_columns("src", "fd00::1" if six else "10.0.0.1") | address_columns(
        "dst", "fd00::2" if six else "10.0.0.2"
    )
    times = sorted((t, p.number, p.flow) for p in packets if (t := (p.b if point else p.a)) is not None)
    return [
        {"ts": t, "proto": 17, "src_port": flow, "dst_port": 53, "ip_id": n, "payload_len": 9, **ends}
        for t, n, flow in times
    ]


def reported(core: PacketPairs, now: int | None) -> list[Reported]:
    names = ("ts", "seen", "delay", "reordered", "ip_id", "src_port")
    columns = [PASSAGE.index(name) for name in names]
    return [Reported(*(block.get(c, r) for c in columns)) for block in core.until(now) for r in range(block.rows)]


def run(packets: Sequence[Sent], pieces: Sequence[int], offset: int = 0, six: bool = False) -> list[Reported]:
    """What the core reports when the points come in turns, ``pieces`` rows at a time."""
    core = PacketPairs(PACKETS.layout, PASSAGE, timeout=TIMEOUT, lateness=0, offset=offset)
    left = [rows_at(packets, 0, six), rows_at(packets, 1, six)]
    out, turn = [], 0
    while any(left):
        n = pieces[turn % len(pieces)] if pieces else 3
        point = turn % 2
        part, left[point] = left[point][:n], left[point][n:]
        if part:
            core.take(block_of_rows(PACKETS, part), point)
        if all(left) and core.mark is not None:
            out += reported(core, core.mark)
        turn += 1
    out += reported(core, None)
    assert (core.late, core.forgotten, core.waiting) == (0, 0, 0)
    return sorted(out)


@st.composite
def paths(draw: st.DrawFn) -> list[Sent]:
    out = []
    times = draw(st.lists(st.integers(0, 400), unique=True, max_size=40))
    later = draw(st.permutations(range(1000, 1000 + 80)))  # no two packets at once: then there is one order only
    for number, t in enumerate(times):
        fate = draw(st.sampled_from(("both", "both", "both", "a", "b")))
        back = draw(st.booleans())
        first, second = t * 1000, t * 1000 + draw(st.integers(0, TIMEOUT // 1000 + 5)) * 1000 + later[number]
        a, b = (second, first) if back else (first, second)
        out.append(
            Sent(number, 2 * draw(st.integers(0, 2)) + back, a if fate != "b" else None, b if fate != "a" else None)
        )
    return out


@given(paths(), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans(), st.integers(-(10**6), 10**6))
def test_each_packet_is_reported_once_and_right(packets: list[Sent], pieces: list[int], six: bool, ahead: int) -> None:
    moved = [p._replace(b=None if p.b is None else p.b + ahead) for p in packets]
    assert run(moved, pieces, ahead, six) == expected(packets)


@given(st.lists(st.booleans(), max_size=30))
def test_packets_that_are_equal_are_counted(came: list[bool]) -> None:
    """IPv6 and many UDP packets have no number: as many are lost as are missing."""
    core = PacketPairs(PACKETS.layout, PASSAGE, timeout=TIMEOUT, lateness=0)
    for point, count in ((0, len(came)), (1, sum(came))):
        rows = [{"ts": 10 * i + point, "proto": 17, "ip_version": 4, "src_port": 1} for i in range(count)]
        if rows:
            core.take(block_of_rows(PACKETS, rows), point)
    found = Counter(r.seen for r in reported(core, None))
    assert (found[BOTH], found[A], found[B]) == (sum(came), len(came) - sum(came), 0)


def test_memory_is_bounded_and_what_is_forgotten_is_counted() -> None:
    core = PacketPairs(PACKETS.layout, PASSAGE, timeout=TIMEOUT, lateness=0, most=16)
    packets = [Sent(i, 1, i, None) for i in range(100)]
    core.take(block_of_rows(PACKETS, rows_at(packets, 0, False)), 0)
    assert (core.waiting, core.forgotten) == (16, 84)
    assert [r.number for r in reported(core, None)] == list(range(84, 100))
    assert core.waiting == 0


def test_columns_are_checked() -> None:
    with pytest.raises(KeyError, match="proto"):
        PacketPairs(PASSAGE.__class__([("ts", 8, 8, 1)]), PASSAGE, timeout=1, lateness=0)
    with pytest.raises(ValueError, match="other columns"):
        PacketPairs(PACKETS.layout, PACKETS.layout, timeout=1, lateness=0)
