"""The compiled queue engine against a heap with an event for each arrival and departure, per packet and hop."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.replay.queue_engine import RULE, TAGS, QueueEngine, QueueRows, time_order
from confluo_tools.replay.queues.score import queue_differences
from twin_queues import TwinPacket, TwinPort, TwinRow, TwinSwitch, replay

SWITCHES = 3
HOSTS = 4


def engine(switches: list[TwinSwitch], ports: list[TwinPort], routes: list[list[int]], **more: bool) -> QueueEngine:
    starts = [0]
    for route in routes:
        starts.append(starts[-1] + len(route))
    return QueueEngine(
        array("Q", [s.buffer for s in switches]),
        array("I", [int((s.alpha or 0) * 1024) for s in switches]),
        array("I", [0xFFFFFFFF if p.switch is None else p.switch for p in ports]),
        array("I", [p.ps_per_byte for p in ports]),
        array("q", [p.delay for p in ports]),
        array("I", [port for route in routes for port in route]),
        array("I", starts),
        **more,
    )


def run(
    its: QueueEngine,
    packets: list[TwinPacket],
    flows: list[int],
    slack: int | None = None,
    room: int = 7,
    sharers: list[list[tuple[int, int]]] | None = None,
    **more_options: int,
) -> list[TwinRow]:
    times = array("q", [p.time for p in packets])
    its.load(
        times,
        array("I", [p.size for p in packets]),
        array("I", flows),
        time_order(times),
        array("B", [p.tagged for p in packets]),
        decide=RULE if slack is None else TAGS,
        slack=slack or 0,
        **more_options,  # type: ignore[arg-type]
    )
    rows, found, more = QueueRows(room), list[TwinRow](), True
    while more:
        more = its.advance(rows)
        for i in range(rows.count):
            its_flags = rows.flags[i]
            if sharers is not None:
                four = zip(rows.sharer[4 * i : 4 * i + 4], rows.share[4 * i : 4 * i + 4], strict=True)
                sharers.append([(flow - 1, size) for flow, size in four if flow])
            found.append(
                TwinRow(
                    rows.time[i],
                    rows.packet[i],
                    rows.port[i],
                    rows.queue[i],
                    rows.used[i],
                    rows.leaves[i],
                    bool(its_flags & 1),
                )
            )
    assert its.events == len(found)
    assert its.drops == sum(row.dropped for row in found)
    return found


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[TwinSwitch], list[TwinPort], list[list[int]]]:
    """Hosts, switches in a line, routes between hosts; speeds and delays that differ, buffers of a few frames."""
    alpha = st.sampled_from([None, Fraction(1, 2), Fraction(1), Fraction(4)])
    switches = [TwinSwitch(draw(st.integers(0, 12_000)), draw(alpha)) for _ in range(SWITCHES)]
    speed = st.sampled_from([80, 800, 8000])
    delay = st.sampled_from([0, 1000, 1_000_000])
    ports = [TwinPort(None, draw(speed), draw(delay)) for _ in range(HOSTS)]
    at: list[list[int]] = []
    for switch in range(SWITCHES):
        at.append([])
        for _ in range(draw(st.integers(1, 3))):
            at[switch].append(len(ports))
            ports.append(TwinPort(switch, draw(speed), draw(delay)))
    routes = []
    for _ in range(draw(st.integers(1, 4))):
        way = draw(st.lists(st.integers(0, SWITCHES - 1), max_size=3, unique=True))
        routes.append([draw(st.integers(0, HOSTS - 1)), *(draw(st.sampled_from(at[n])) for n in way)])
    return switches, ports, routes


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TwinSwitch], list[TwinPort], list[list[int]], list[TwinPacket], list[int]]:
    switches, ports, routes = draw(networks())
    time = st.one_of(st.integers(0, 100), st.sampled_from([0, 1_000_000, 50_000_000, 1 << 45]), st.integers(0, 10**8))
    size = st.sampled_from([1, 84, 84, 1538])
    packets, flows = [], []
    for at, its, flow, tagged in draw(
        st.lists(st.tuples(time, size, st.integers(0, len(routes) - 1), st.booleans()), max_size=60)
    ):
        packets.append(TwinPacket(at, its, routes[flow], tagged))
        flows.append(flow)
    return switches, ports, routes, packets, flows


@given(cases(), st.booleans())
def test_each_packet_sees_what_it_sees_in_the_twin(case: tuple, until_sent: bool) -> None:  # type: ignore[type-arg]
    switches, ports, routes, packets, flows = case
    found = run(engine(switches, ports, routes, until_sent=until_sent), packets, flows)
    assert found == replay(switches, ports, packets, until_sent=until_sent)


@given(cases(), st.sampled_from([0, 1538, 7690]))
def test_tagged_packets_are_dropped_where_there_is_little_room(case: tuple, slack: int) -> None:  # type: ignore[type-arg]
    switches, ports, routes, packets, flows = case
    found = run(engine(switches, ports, routes), packets, flows, slack)
    assert found == replay(switches, ports, packets, slack=slack)
    assert all(packets[row.packet].tagged for row in found if row.dropped)


def burst(packets: int) -> tuple[list[TwinSwitch], list[TwinPort], list[list[int]], list[TwinPacket], list[int]]:
    """Four hosts at 100 Gb/s that send through one port of 100 Mb/s: its queue is longer than the calendar."""
    switches = [TwinSwitch(1 << 30, Fraction(4))]
    ports = [*(TwinPort(None, 80, 1000) for _ in range(4)), TwinPort(0, 80_000, 1000), TwinPort(0, 80, 1000)]
    switches.append(TwinSwitch(1 << 20, Fraction(1)))
    ports.append(TwinPort(1, 80, 1000))
    routes = [[n, 4, 6] for n in range(4)]
    sent = [TwinPacket(n // 4 * 123_040, 1538, routes[n % 4]) for n in range(packets)]
    return switches, ports, routes, sent, [n % 4 for n in range(packets)]


@given(cases(), st.integers(1, 3))
def test_who_is_in_the_queue(case: tuple, every: int) -> None:  # type: ignore[type-arg]
    """From the rows alone: the frames of a queue are those that came to its port and have not left."""
    switches, ports, routes, packets, flows = case
    its = engine(switches, ports, routes)
    sharers: list[list[tuple[int, int]]] = []
    found = run(its, packets, flows, name_flows=True, sample=every, sharers=sharers)
    contents = its.contents()
    kept = 0
    for i, row in enumerate(found):
        shares: Counter[int] = Counter()
        for earlier in found[:i]:
            if earlier.port == row.port and not earlier.dropped and earlier.leaves > row.time:
                shares[flows[earlier.packet]] += packets[earlier.packet].size
        assert sum(shares.values()) == row.queue
        largest = sorted(shares.values(), reverse=True)[:4]
        assert [size for _, size in sharers[i]] == largest
        assert all(shares[flow] == size for flow, size in sharers[i])
        if row.packet % every == 0:
            hop = packets[row.packet].route.index(row.port) - 1
            assert contents[row.packet, hop] == shares
            kept += 1
    assert kept == len(contents)


@given(cases(), st.lists(st.integers(-2000, 2000), max_size=60), st.integers(1, 3))
def test_the_queue_difference_of_two_replays(case: tuple, errors: list[int], every: int) -> None:  # type: ignore[type-arg]
    """Section 5.4 of the paper: the bytes of each flow in the queue, once for each packet and hop of both replays."""
    switches, ports, routes, packets, flows = case
    its = engine(switches, ports, routes)
    wrong = [
        packet._replace(time=max(0, packet.time + error))
        for packet, error in itertools.zip_longest(packets, errors[: len(packets)], fillvalue=0)
    ]
    contents, seen = [], []
    for some in (packets, wrong):
        run(its, some, flows, sample=every)
        contents.append(its.contents())
        rows = replay(switches, ports, some)
        seen.append({(row.packet, row.port): (i, row) for i, row in enumerate(rows) if row.packet % every == 0})
        seen[-1] = {key: in_queue(rows, i, flows, packets) for key, (i, _) in seen[-1].items()}
    want = []
    for key in seen[0].keys() & seen[1].keys():
        want.append(sum(abs(seen[0][key][flow] - seen[1][key][flow]) for flow in range(len(routes))))
    assert queue_differences(*contents) == sorted(want)


def in_queue(rows: list[TwinRow], at: int, flows: list[int], packets: list[TwinPacket]) -> Counter[int]:
    """Bytes of each flow in the queue that a row of the twin saw: frames that came before it and leave after it."""
    found: Counter[int] = Counter()
    for row in rows[:at]:
        if row.port == rows[at].port and not row.dropped and row.leaves > rows[at].time:
            found[flows[row.packet]] += packets[row.packet].size
    return found


def test_a_queue_that_is_longer_than_the_calendar() -> None:
    switches, ports, routes, packets, flows = burst(600)
    assert run(engine(switches, ports, routes), packets, flows, room=1000) == replay(switches, ports, packets)


def test_the_same_packets_again_give_the_same_rows() -> None:
    switches, ports, routes, packets, flows = burst(200)
    its = engine(switches, ports, routes)
    assert run(its, packets, flows) == run(its, packets, flows, room=64)


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, (1 << 61) - 1))))
def test_time_order_is_stable(times: list[int]) -> None:
    assert list(time_order(array("q", times))) == sorted(range(len(times)), key=times.__getitem__)


def test_what_does_not_fit_together_is_refused() -> None:
    switches, ports = [TwinSwitch(1000, Fraction(1))], [TwinPort(None, 800, 0), TwinPort(0, 800, 0)]
    with pytest.raises(ValueError, match="begin at a host"):
        engine(switches, ports, [[1, 1]])
    with pytest.raises(ValueError, match="empty"):
        engine(switches, ports, [[]])
    with pytest.raises(ValueError, match="speed"):
        engine(switches, [TwinPort(None, 0, 0)], [])
    its = engine(switches, ports, [[0, 1]])
    with pytest.raises(ValueError, match="packet"):
        run(its, [TwinPacket(0, 0, [0, 1])], [0])
    with pytest.raises(ValueError, match="packet"):
        run(its, [TwinPacket(0, 84, [0, 1])], [1])
    with pytest.raises(ValueError, match="time"):
        time_order(array("q", [-1]))
