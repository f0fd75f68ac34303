"""Half-open connections by target: the compiled counting against plain Python; bounded, and however rows are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import units
from confluo_tools.core.stream.syn_flood import USED, SynFlood
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.schema import builtin
from twin_syn_flood import ACK, RST, SYN, Change, Packet, alerts

PACKETS = builtin("packet").project(n for n in USED if n in builtin("packet"))
WINDOW, STEP, TIMEOUT, LATENESS = 100, 10, 30, 15
LIMITS = {"threshold": 4, "ratio": 0.5, "clear": 0.5}


def rows_of(packets: Iterable[Packet]) -> list[dict[str, object]]:
    return [
        {
            "ts": p.ts,
            "proto": 6,
            "src_port": p.sport,
            "dst_port": p.dport,
            "tcp_flags": p.flags,
            **address_columns("src", p.src),
            **address_columns("dst", p.dst),
        }
        for p in packets
    ]


def flood(**more: int) -> SynFlood:
    return SynFlood(PACKETS.layout, WINDOW, timeout=TIMEOUT, lateness=LATENESS, **LIMITS, **more)


def changes(packets: Sequence[Packet], cuts: Iterable[int] = (), core: SynFlood | None = None) -> list[Change]:
    """What the core finds when the rows come in blocks that end at ``cuts``."""
    core = flood() if core is None else core
    rows, out, start = rows_of(packets), [], 0
    for end in [*sorted(cuts), len(rows)]:
        if rows[start:end]:
            core.take(block_of_rows(PACKETS, rows[start:end]))
        out += core.events()
        start = end
    core.finish()
    out += core.events()
    return sorted(
        Change(tick, fires, units.format_ip(address, address6 or bytes(16), version), port, attempts, completed)
        for fires, tick, _, address, address6, version, port, _, attempts, completed, _, _ in out
    )


def expected(packets: Sequence[Packet]) -> list[Change]:
    return alerts(packets, window=WINDOW, step=STEP, timeout=TIMEOUT, **LIMITS)  # type: ignore[arg-type]


ADDRESSES = ("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::1:2")


@st.composite
def traffic(draw: st.DrawFn) -> list[Packet]:
    """Few ends, so that everything meets: SYNs again, ports used again, answers late or from the other side."""
    out, ts = [], draw(st.integers(-200, 200))
    for _ in range(draw(st.integers(0, 40))):
        ts += draw(st.sampled_from((0, 0, 1, 1, 3, 9, 31, 70)))
        six = draw(st.booleans())
        a, b = (ADDRESSES[2:] if six else ADDRESSES[:2])[:: draw(st.sampled_from((1, -1)))]
        flags = draw(st.sampled_from((SYN, SYN, SYN, SYN, ACK, ACK, SYN | ACK, RST, RST | ACK, 0)))
        client, server = draw(st.integers(1, 5)), draw(st.sampled_from((80, 443)))
        ports = (server, client) if draw(st.integers(0, 5)) == 0 else (client, server)
        out.append(Packet(ts, a, b, *ports, flags))
    return out


@given(traffic(), st.sets(st.integers(0, 40), max_size=5))
def test_it_finds_what_the_definition_says(packets: list[Packet], cuts: set[int]) -> None:
    assert changes(packets, [c for c in cuts if c <= len(packets)]) == expected(packets)


@given(traffic(), st.lists(st.integers(0, LATENESS), min_size=40, max_size=40))
def test_connections_may_be_late_within_the_lateness(packets: list[Packet], delays: list[int]) -> None:
    """Each connection is delayed as a whole, as a partition of a topic is."""
    ends = {p: tuple(sorted([(p.src, p.sport), (p.dst, p.dport)])) for p in packets}
    delay = dict(zip(sorted(set(ends.values())), delays, strict=False))
    late = sorted(packets, key=lambda p: p.ts + delay[ends[p]])
    core = flood()
    assert changes(late, core=core) == expected(packets)
    assert core.counts["late"] == 0


def test_an_alert_does_not_flap() -> None:
    """A rate around the threshold: one beginning and one end, not one for each crossing."""
    packets, number = [], 0
    for step in range(40):
        if step % 2:
            packets.append(Packet(step * STEP, "10.0.0.9", "10.0.0.1", number := number + 1, 80, SYN))
    packets.append(Packet(1000, "10.0.0.9", "10.0.0.1", 1, 1, ACK))
    seen = [(c.port, c.fires) for c in changes(packets)]
    assert seen == [(-1, True), (80, True), (-1, False), (80, False)]


def test_a_flood_of_forged_sources_needs_no_more_memory() -> None:
    """With room for 64 attempts and 16 targets: the flooded one is found among many others."""
    core = flood(attempts=64, targets=16)
    packets = []
    for i in range(2000):
        packets.append(Packet(i, f"10.{i % 200}.{i // 200}.7", "10.0.0.1", i, 80, SYN))
        packets.append(Packet(i, "10.0.0.3", f"172.16.{i % 250}.{i // 250}", 1, 80, SYN))
    found = changes(packets, range(0, 4000, 100), core)
    assert [(c.dst, c.port) for c in found] == [("10.0.0.1", -1), ("10.0.0.1", 80)]
    assert core.counts["targets"] == 16
    assert core.counts["displaced"] > 0
    assert core.counts["evicted"] > 1900


def test_time_that_jumps_ends_alerts() -> None:
    """A clock that steps by years: the alerts end where they would have ended, at once."""
    packets = [Packet(i, "10.0.0.2", "10.0.0.1", i, 80, SYN) for i in range(10)]
    near, far = (Packet(ts, "10.0.0.2", "10.0.0.1", 99, 80, ACK) for ts in (300, 10**18))
    found = changes([*packets, far])
    assert found == expected([*packets, near])
    assert [(c.port, c.fires) for c in found] == [(-1, True), (80, True), (-1, False), (80, False)]


def test_old_rows_are_late() -> None:
    core = flood()
    packets = [Packet(1000, "10.0.0.2", "10.0.0.1", 1, 80, SYN), Packet(10, "10.0.0.2", "10.0.0.1", 2, 80, SYN)]
    assert changes(packets, core=core) == []
    assert core.counts["late"] == 1


def test_columns_are_checked() -> None:
    with pytest.raises(KeyError, match="tcp_flags"):
        SynFlood(builtin("probe").layout, WINDOW, timeout=1, lateness=0, **LIMITS)
    with pytest.raises(ValueError, match="steps"):
        SynFlood(PACKETS.layout, WINDOW, timeout=10**9, lateness=0, **LIMITS)
