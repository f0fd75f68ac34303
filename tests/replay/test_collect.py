"""Packets from recordings and captures: losses and sizes, against brute force and against captures of real traffic."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.replay.packet_store import PacketStore
from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.formats.block_builder import address_columns, block_of_rows, blocks_of_rows
from confluo_tools.formats.reader import Reader
from confluo_tools.network.topology import Topology
from confluo_tools.network.topology_file import parse_network
from confluo_tools.replay.queues.collect import Collector
from confluo_tools.replay.queues.sent_packets import SentPackets
from confluo_tools.replay.recording.kinds import Call, Kind, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter
from confluo_tools.schema import builtin

A, B = "10.0.0.2", "10.3.1.3"
A6, B6 = "fd00::1:2", "fd00::2:3"
WIRE = 38
IPV6 = f"""topology: 1
switches: {{r: {{level: tor, pod: p}}}}
dcs: {{d: {{s: {{p: {{a: '{A6}', b: '{B6}'}}}}}}}}
links: []
"""


def fat_tree(k: int) -> Topology:
    return parse_network(f"topology: 1\nfat_tree: {k}\n", "fat.yaml").topology()


class Rows(Reader):
    """Rows as an input."""

    def __init__(self, kind: str, rows: list[dict[str, Any]], name: str = "rows") -> None:
        super().__init__(name)
        self.schema, self._rows = builtin(kind), rows

    def blocks(self) -> Any:
        yield block_of_rows(self.schema, self._rows)


# -- captures ---------------------------------------------------------------------------------------------------


def packet(src: str, dst: str, ts: int, ip_id: int, size: int = 1000) -> dict[str, Any]:
    row = {"ts": ts, "proto": 6, "src_port": 1000, "dst_port": 80, "ip_id": ip_id, "ip_len": size, "tcp_seq": ip_id}
    return row | address_columns("src", src) | address_columns("dst", dst)


def test_captures_of_both_ends_show_what_was_lost() -> None:
    a, b, outside = "10.0.0.2", "10.3.1.3", "192.0.2.1"
    sent = [packet(a, b, 100 * n, n) for n in range(6)]
    back = [packet(b, a, 1000 + n, 50 + n, 40) for n in range(2)]
    ours = Rows("packet", [*sent, packet(b, a, 3000, 51, 40), packet(a, outside, 5, 99)], "a.pcap")
    theirs = Rows("packet", [packet(a, b, 100 * n + 70, n) for n in (0, 1, 3, 5)] + back, "b.pcap")
    for inputs in ((ours, theirs), (theirs, ours)):
        collector = Collector(fat_tree(4))
        for reader in inputs:
            collector.add_capture(reader)
        found = collector.packets
        assert collector.unknown == 1
        rows = list(zip(found.times, found.sizes, found.lost, strict=True))
        assert rows == [*((100 * n, 1038, int(n in (2, 4))) for n in range(6)), (1000, 84, 1), (1001, 84, 0)]


def test_a_capture_of_one_end_alone_shows_no_losses() -> None:
    collector = Collector(fat_tree(4))
    collector.add_capture(Rows("packet", [packet("10.0.0.2", "10.3.1.3", 5, 1)]))
    assert list(collector.packets.lost) == [0]


def captured(found: SentPackets) -> list[tuple[int, int, int, int]]:
    rows = zip(found.times, found.sizes, [found.flows[f].src_port for f in found.flow_of], found.lost, strict=True)
    return sorted(rows)


@st.composite
def sightings(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Captures of two hosts, sometimes a third one: packets with identities that come back."""
    one = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1000))
    found = []
    for _ in range(draw(st.integers(2, 3))):
        rows = []
        for port, ip_id, seq, ts in draw(st.lists(one, max_size=25)):
            rows.append(packet(A, B, ts, ip_id, 100) | {"src_port": 1000 + port, "tcp_seq": seq})
        found.append(rows)
    return found


@given(sightings())
def test_packets_of_one_identity_are_told_apart_by_their_times(captures: list[list[dict[str, Any]]]) -> None:
    """From the last: a packet that arrived is the last one that was sent before it; with equal counts, the n-th."""
    collector = Collector(fat_tree(4))
    times = defaultdict[tuple[int, ...], list[list[int]]](list)  # of each identity, by capture
    for number, rows in enumerate(captures):
        away = packet((A, B, B)[number], "192.0.2.1", 0, 7)  # shows which host made the capture
        collector.add_capture(Rows("packet", [*rows, away], str(number)))
        its = defaultdict[tuple[int, ...], list[int]](list)
        for row in rows:
            its[row["src_port"], row["ip_id"], row["tcp_seq"]].append(row["ts"])
        for identity, seen in its.items():
            times[identity].append(seen)
    want = []
    for identity, seen in times.items():
        longest = max(seen, key=len)
        if len(seen) == 2 and len(seen[0]) != len(seen[1]) and min(map(len, seen)) > 0:
            arrived = list(min(seen, key=len))
            for i in reversed(range(len(longest))):
                got = bool(arrived) and (longest[i] <= arrived[-1] or len(arrived) == i + 1)
                if got:
                    arrived.pop()
                want.append((longest[i], 138, identity[0], int(not got)))
            continue
        for i in range(len(longest)):
            together = [its[i] for its in seen if len(its) > i]
            want.append((min(together), 138, identity[0], int(len(together) < 2)))
    assert captured(collector.packets) == sorted(want)


def test_what_arrived_is_what_was_sent_last() -> None:
    """IPv6: the first of two equal packets was lost, the second is the same data sent again."""
    network = parse_network(IPV6, "r.yaml").topology()

    def data(ts: int, seq: int) -> dict[str, Any]:
        return packet(A6, B6, ts, 0, 560) | {"tcp_seq": seq, "payload_len": 500}

    collector = Collector(network)
    sent = [data(0, 1), data(10, 501), data(20, 1001), data(300, 501), data(310, 1501)]
    collector.add_capture(Rows("packet", [*sent, packet(A6, "2001:db8::1", 5, 0)], "a"))
    came = [data(100, 1), data(120, 1001), data(400, 501), data(410, 1501)]
    collector.add_capture(Rows("packet", [*came, packet(B6, "2001:db8::1", 5, 0)], "b"))
    assert list(collector.packets.lost) == [0, 1, 0, 0, 0]


def test_packets_of_segmentation_offload_are_split() -> None:
    """The sender hands four segments to its card at once; the receiver sees them alone or merged."""
    syn = packet(A, B, 0, 1, 60) | {"tcp_flags": 2, "tcp_mss": 1460, "tcp_seq": 10, "tcp_tsval": 1}
    back = packet(B, A, 1, 1, 60) | {"src_port": 80, "dst_port": 1000, "tcp_flags": 18, "tcp_mss": 1400, "tcp_tsval": 1}

    def data(ts: int, first: int, size: int) -> dict[str, Any]:
        row = packet(A, B, ts, 2 + first, 52 + size) | {"tcp_seq": 11 + 1388 * first, "payload_len": size}
        return row | {"tcp_tsval": 9}

    ours = [syn, back, data(5, 0, 3 * 1388 + 100), packet(A, "192.0.2.1", 0, 9)]
    theirs = [syn, back, data(7, 0, 1388), data(8, 2, 1388 + 100), packet(B, "192.0.2.1", 0, 9)]
    collector = Collector(fat_tree(4))
    collector.add_capture(Rows("packet", ours))
    collector.add_capture(Rows("packet", theirs))
    found = captured(collector.packets)
    assert found[2:] == [(5, 152 + WIRE, 1000, 0), *[(5, 1440 + WIRE, 1000, 0)] * 2, (5, 1440 + WIRE, 1000, 1)]
    assert collector.split == 2


def test_too_many_packets_are_refused() -> None:
    rows = [packet(A, B, n, n) for n in range(11)]
    collector = Collector(fat_tree(4), most=10)
    with pytest.raises(FormatError, match="more than 10 packets"):
        collector.add_capture(Rows("packet", rows))
    runs = [{"kind": Kind.TX, "ts": 0, "step": 1, "count": 11, "segments": 1}]
    collector = Collector(fat_tree(4), most=10)
    collector.add_recording([block_of_rows(builtin("recording"), end_rows(A, B, Role.CLIENT, runs))])
    with pytest.raises(FormatError, match="more than 10 packets"):
        _ = collector.packets
    assert PacketStore().by_time()[0].typecode == "q"


def test_a_capture_without_a_field_is_refused() -> None:
    with pytest.raises(SchemaError, match="no column 'ip_len'"):
        Collector(fat_tree(4)).add_capture(Rows("queue", [{"ts": 1}]))


# -- recordings -------------------------------------------------------------------------------------------------


def end_rows(src: str, dst: str, role: Role, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ports = {"src_port": 1000, "dst_port": 80} if role == Role.CLIENT else {"src_port": 80, "dst_port": 1000}
    base = {"cookie": 1, "proto": 6, "role": role} | ports | address_columns("src", src) | address_columns("dst", dst)
    return [base | {"count": 1} | row for row in rows]


def test_recordings_of_both_ends_show_what_was_lost() -> None:
    a, b = "10.0.0.2", "10.3.1.3"
    client = [
        {"kind": Kind.BEGIN, "ts": 1},
        {"kind": Kind.TX, "ts": 1000, "step": 100, "count": 5, "ip_id": 7, "segments": 1},
        {"kind": Kind.END, "ts": 9000, "tx": 5},
    ]
    client += [{"kind": Kind.SENT, "ts": 1000 + 100 * n, "tx": n, "len": 100 * n, "tsval": 1} for n in range(5)]
    server = [
        {"kind": Kind.BEGIN, "ts": 2},
        {"kind": Kind.RX, "ts": 1500, "step": 100, "count": 2, "ip_id": 7, "segments": 1},
        {"kind": Kind.RX, "ts": 1900, "count": 1, "ip_id": 10, "segments": 1, "gap": 1},
        {"kind": Kind.END, "ts": 9000, "rx": 3},
    ]
    rows = end_rows(a, b, Role.CLIENT, client) + end_rows(b, a, Role.SERVER, server)
    collector = Collector(fat_tree(4))
    collector.add_recording([block_of_rows(builtin("recording"), rows)])
    found = collector.packets
    assert list(found.times) == [1000, 1100, 1200, 1300, 1400]
    assert list(found.lost) == [0, 0, 1, 0, 1]
    assert list(found.sizes) == [90, 190, 290, 390, 490]
    assert collector.derived == 0
    alone = Collector(fat_tree(4))
    only = [row for row in end_rows(a, b, Role.CLIENT, client) if row["kind"] != Kind.SENT]
    alone.add_recording([block_of_rows(builtin("recording"), only)])
    assert list(alone.packets.lost) == [0] * 5
    assert alone.derived == 5


def recorded(rows: list[dict[str, Any]]) -> Collector:
    collector = Collector(fat_tree(4))
    collector.add_recording(blocks_of_rows(builtin("recording"), rows))
    return collector


def runs(kind: Kind, packets: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Rows of packets (time, IP identification, segments)."""
    rows: list[dict[str, Any]] = []
    writer = PacketRunWriter(kind, lambda row: rows.append(dict(row)))
    for n, (time, ip_id, segments) in enumerate(packets):
        counts = (n, 0) if kind == Kind.TX else (0, n)
        writer.add(time, *counts, ip_id & 0xFFFF, segments)
    writer.flush()
    return rows


BEGIN: dict[str, Any] = {"kind": Kind.BEGIN, "ts": 1}
END: dict[str, Any] = {"kind": Kind.END, "ts": 1 << 40}


@given(
    st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=80),
    st.integers(0, 65535),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_segments_that_did_not_arrive_were_lost(
    fates: list[int], first: int, segments: int, rng: random.Random, ended: bool
) -> None:
    """0 arrives, 1 is lost, 2 arrives late; packets of several segments arrive one by one."""
    sent = [(1000 * n, first + n * segments, segments) for n in range(len(fates))]
    order, arrived = [], set()
    for n, fate in enumerate(fates):
        for k in range(segments):
            if fate != 1 or rng.random() < 0.3:
                order.append((n + (3 * rng.random() if fate == 2 else 0), n, k))
                arrived.add((n, k))
    got = [(10**7 + i, first + n * segments + k, 1) for i, (_, n, k) in enumerate(sorted(order))]
    client = [BEGIN, *runs(Kind.TX, sent), END]
    server = [BEGIN, *runs(Kind.RX, got), *([END] if ended else [])]
    collector = recorded(end_rows(A, B, Role.CLIENT, client) + end_rows(B, A, Role.SERVER, server))
    found = collector.packets
    last = max(arrived, default=(-1, 0))
    every = [(n, k) for n in range(len(fates)) for k in range(segments)]
    want = [int(bool(arrived) and key not in arrived and (ended or key < last)) for key in every]
    assert list(found.lost) == want
    assert list(found.times) == sorted(found.times)


def test_losses_when_identifications_wrap_several_times() -> None:
    rng = random.Random(4)
    lost = set(rng.sample(range(300_000), 900))
    sent = [{"kind": Kind.TX, "ts": 0, "step": 10, "count": 300_000, "ip_id": 5, "segments": 1}]
    got, start = [], 0
    for at in [*sorted(lost), 300_000]:
        if at > start:
            got.append({"kind": Kind.RX, "ts": 1, "count": at - start, "ip_id": (5 + start) & 0xFFFF, "segments": 1})
        start = at + 1
    rows = end_rows(A, B, Role.CLIENT, [BEGIN, *sent, END]) + end_rows(B, A, Role.SERVER, [BEGIN, *got, END])
    found = recorded(rows).packets
    assert {i for i, its in enumerate(found.lost) if its} == lost


def test_sizes_follow_from_calls() -> None:
    """SYN, acknowledgement, 5000 bytes, one packet again, an acknowledgement, 100 bytes as two calls, FIN."""
    settings = [
        {"kind": Kind.SETTING, "name": b"mss", "value": 1460},
        {"kind": Kind.SETTING, "name": b"peer_mss", "value": 1012},
        {"kind": Kind.SETTING, "name": b"timestamps", "value": 1},
        {"kind": Kind.SETTING, "name": b"peer_timestamps", "value": 1},
    ]
    sent = (
        [(100 * n, 10 + n, 1) for n in range(2)]
        + [(200, 12, 4), (300, 16, 1)]
        + [(400 + 100 * n, 17 + n, 1) for n in range(4)]
    )
    done = [
        {"kind": Kind.CALL, "call": Call.SEND, "bytes": 50, "count": 2, "tx": 6, "tx_step": 0},
        {"kind": Kind.CALL, "call": Call.RECV, "bytes": 77, "tx": 2},
        {"kind": Kind.CALL, "call": Call.SEND, "bytes": -11, "tx": 2},
        {"kind": Kind.CALL, "call": Call.SEND, "bytes": 4500, "tx": 2},
        {"kind": Kind.RETRANSMIT, "tx": 4},
    ]
    collector = recorded(end_rows(A, B, Role.CLIENT, [BEGIN, *settings, *done, *runs(Kind.TX, sent), END]))
    found = collector.packets
    head = 40 + 12 + WIRE
    sizes = [60 + WIRE, head, *[head + 1000] * 4, head + 500, head + 1000, head, head + 100, head]
    assert list(found.sizes) == sizes
    assert collector.derived == len(sizes)


def test_sizes_and_losses_of_ipv6_come_from_headers() -> None:
    """Equal headers: the second packet is the first one again."""
    headers = [(0, 0, 2), (1, 0, 16), (1, 500, 24), (501, 300, 24), (1, 500, 24), (801, 5000, 24)]
    client = [BEGIN, {"kind": Kind.TX, "ts": 10, "step": 10, "count": len(headers), "segments": 0}, END]
    server = [BEGIN, {"kind": Kind.RX, "ts": 15, "step": 10, "count": 4, "segments": 0}, END]
    mss = {"kind": Kind.SETTING, "name": b"mss", "value": 2000}
    client.append(mss)

    def header(kind: Kind, n: int, seq: int, size: int, flags: int) -> dict[str, Any]:
        return {"kind": kind, "ts": 10 + 10 * n, "seq": seq, "len": size, "tcp_flags": flags, "tsval": 1}

    client += [header(Kind.SENT, n, *its) for n, its in enumerate(headers)]
    server += [header(Kind.RECEIVED, n, *headers[at]) for n, at in enumerate((0, 1, 3, 4))]
    rows = end_rows(A6, B6, Role.CLIENT, client) + end_rows(B6, A6, Role.SERVER, server)
    network = parse_network(IPV6, "r.yaml").topology()
    collector = Collector(network)
    collector.add_recording([block_of_rows(builtin("recording"), rows)])
    found = collector.packets
    assert list(found.lost) == [0, 0, 1, 0, 0, 1, 1, 1]
    head = 60 + 12 + WIRE
    assert list(found.sizes) == [60 + 20 + WIRE, head, *(head + n for n in (500, 300, 500, 2000, 2000, 1000))]
    assert (collector.derived, collector.unmatched) == (0, 0)
    without = Collector(network)
    kinds = (Kind.SENT, Kind.RECEIVED)
    without.add_recording([block_of_rows(builtin("recording"), [row for row in rows if row["kind"] not in kinds])])
    assert sum(without.packets.lost) == 0
    assert without.unmatched == 1


def test_sizes_come_from_the_headers_of_the_peer() -> None:
    client = [BEGIN, *runs(Kind.TX, [(10 * n, n, 1) for n in range(4)]), END]
    server = [BEGIN, *runs(Kind.RX, [(10 * n, n, 1) for n in (0, 1, 3)]), END]
    server += [{"kind": Kind.RECEIVED, "ts": n, "len": n, "tcp_flags": 16} for n in (700, 800, 900)]
    collector = recorded(end_rows(A, B, Role.CLIENT, client) + end_rows(B, A, Role.SERVER, server))
    found = collector.packets
    assert list(found.sizes) == [778, 878, 84, 978]
    assert list(found.lost) == [0, 0, 1, 0]
    assert collector.derived == 1


@pytest.mark.parametrize(
    "row",
    [
        {"kind": Kind.TX, "count": (1 << 26) + 1},
        {"kind": Kind.TX, "count": 0},
        {"kind": Kind.TX, "count": 1 << 26, "segments": 65535},
        {"kind": Kind.CALL, "call": Call.SEND, "bytes": 9, "count": 1 << 27},
    ],
)
def test_counts_that_cannot_be_are_refused(row: dict[str, Any]) -> None:
    packets = {"kind": Kind.TX, "ts": 5, "count": 1, "segments": 1}
    with pytest.raises(FormatError, match="the recording is damaged"):
        _ = recorded(end_rows(A, B, Role.CLIENT, [packets, row])).packets


def test_wrong_steps_do_no_harm() -> None:
    big = (1 << 63) - 1
    rows = [{"kind": Kind.TX, "ts": big, "step": big, "count": 3, "segments": 1}]
    rows += [
        {"kind": Kind.CALL, "call": Call.SEND, "bytes": big, "count": 9, "tx": 4_000_000_000, "tx_step": big >> 40}
    ]
    rows += [{"kind": Kind.RETRANSMIT, "tx": 0xFFFFFFFF, "count": 5}]
    with pytest.raises(FormatError, match="apart"):
        _ = recorded(end_rows(A, B, Role.CLIENT, rows)).packets
