"""Recordings in Python: events become runs and rows, and come back from them; two ends become a connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.replay.recording import ConnectionEnd, RecordingReader, Runs, RunWriter, pair_ends, read_ends
from confluo_tools.replay.recording.arrivals import arrivals, arrived_segments
from confluo_tools.replay.recording.kinds import Call, Kind, Note, Role, Timer
from confluo_tools.schema import builtin

SCHEMA = builtin("recording")
FIELDS = ("kind", "ts", "number", "tx", "rx", "call", "bytes", "flags", "timer")


def place(a: str = "10.0.0.1", b: str = "10.0.0.2", ports: tuple[int, int] = (4711, 80), **more: Any) -> dict[str, Any]:
    """The columns that name an end."""
    return (
        address_columns("src", a)
        | address_columns("dst", b)
        | {"src_port": ports[0], "dst_port": ports[1], "cookie": 1, "proto": 6, "role": Role.CLIENT}
        | more
    )


def ends_of(rows: Iterable[Mapping[str, Any]]) -> list[ConnectionEnd]:
    """The ends that a reader finds in these rows."""
    return read_ends([block_of_rows(SCHEMA, list(rows))])


calls = st.fixed_dictionaries(
    {"kind": st.just(Kind.CALL), "call": st.sampled_from([Call.SEND, Call.RECV]), "bytes": st.sampled_from([-11, 0, 9])}
)
timers = st.fixed_dictionaries({"kind": st.just(Kind.TIMER), "timer": st.sampled_from([Timer.WRITE, Timer.DELACK])})
gaps = st.tuples(st.one_of(calls, timers), st.integers(0, 60_000), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(gaps, max_size=40), st.integers(1, 4), st.sampled_from([0, 1, 5_000, 20_000]))
def test_events_come_back_from_their_runs(steps: list[Any], times: int, threshold: int) -> None:
    """A pattern that repeats, with jitter of its times, is written as runs and read again."""
    events: list[dict[str, Any]] = []
    ts, tx, rx = 10**18, 0, 0
    for what, wait, sent, received in steps * times:
        ts, tx, rx = ts + wait, tx + sent, rx + received
        events.append({**what, "ts": ts, "number": len(events), "tx": tx, "rx": rx})
    rows: list[dict[str, Any]] = []
    writer = RunWriter(rows.append, threshold)
    for event in events:
        writer.add(event)
    writer.flush()
    if not events:
        assert rows == []
        return
    (end,) = ends_of([place() | row for row in rows])
    assert end.events.events == len(events)
    found = list(zip(*end.events.in_order(*FIELDS), strict=True))
    for event, row in zip(events, found, strict=True):
        back = dict(zip(FIELDS, row, strict=True))
        assert abs(back.pop("ts") - event["ts"]) <= threshold
        assert back == {name: event.get(name, 0) for name in FIELDS if name != "ts"}


runs = st.fixed_dictionaries(
    {"count": st.integers(1, 3), "notes": st.sampled_from([0, Note.WAITS]), "bytes": st.sampled_from([5, 7])}
    | dict.fromkeys(("tx", "rx", "number"), st.integers(0, 0xFFFFFFFF))
    | dict.fromkeys(("tx_step", "rx_step", "number_step"), st.integers(0, 9))
)


@given(st.lists(st.tuples(runs, st.booleans()), max_size=30))
def test_relative_runs_of_events_are_read_as_absolute_ones(rows: list[tuple[dict[str, int], bool]]) -> None:
    """Written as confluo-replay-record(1) says: from where the next event of the run before of the same event is."""
    written: list[dict[str, int]] = []
    before: dict[tuple[int, int], dict[str, int]] = {}  # where it is, and the steps
    for ts, (run, absolute) in enumerate(rows):
        last = before.get((run["notes"], run["bytes"]))
        row, after = {**run, "kind": Kind.CALL, "call": Call.SEND, "ts": ts}, {}
        for name in ("tx", "rx", "number"):
            step = 0 if last is None or absolute else last[f"{name}_step"]
            step = run[f"{name}_step"] if run["count"] > 1 else step
            after |= {name: run[name] + run["count"] * step, f"{name}_step": step}
            if last is not None and not absolute:
                row |= {name: (run[name] - last[name]) % 2**32, "notes": run["notes"] | Note.RELATIVE}
        before[run["notes"], run["bytes"]] = after
        written.append(place() | row)
    for end in ends_of(written):
        for name in ("tx", "rx", "number", "notes", "bytes"):
            assert list(end.events[name]) == [run[name] for run, _ in rows], name


def test_a_steady_pattern_is_a_few_rows() -> None:
    rows: list[dict[str, Any]] = []
    writer = RunWriter(rows.append)
    for i in range(1000):
        at = {"ts": i * 1_000_000 + i % 3 * 100, "tx": i, "rx": i}
        writer.add({"kind": Kind.CALL, "call": Call.RECV, "bytes": 100, "number": 2 * i, **at})
        writer.add({"kind": Kind.CALL, "call": Call.SEND, "bytes": 200, "number": 2 * i + 1, **at})
    writer.flush()
    assert [(r["call"], r["count"], r["number_step"]) for r in rows] == [(Call.RECV, 1000, 2), (Call.SEND, 1000, 2)]


def packets(ids: list[int], kind: Kind, **more: Any) -> list[dict[str, Any]]:
    """Rows of packets with these IP identifications, one row each."""
    index = "rx" if kind == Kind.RX else "tx"
    rows = [{"kind": kind, "count": 1, "ts": i, index: i, "ip_id": n, "segments": 1} for i, n in enumerate(ids)]
    return [place(**more) | row for row in rows]


def test_arrivals_are_numbers_of_sent_packets() -> None:
    sent = [7, 65533, 65534, 65535, 0, 1, 2, 3]
    kept = [7, 65533, 65535, 65534, 0, 2, 99, 3]  # 1 lost, two in another order, one that nobody sent
    a, b = place(), place("10.0.0.2", "10.0.0.1", (80, 4711), role=Role.SERVER, cookie=2)
    client, server = ends_of([r | a for r in packets(sent, Kind.TX)] + [r | b for r in packets(kept, Kind.RX)])
    assert list(arrivals(client, server)) == [0, 1, 3, 2, 4, 6, -1, 7]


@given(
    st.integers(0, 0xFFFF),
    st.lists(st.integers(1, 45), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 45), st.booleans()), min_size=1, max_size=200),
)
def test_devices_split_merge_and_lose_segments(first: int, sent: list[int], cuts: list[tuple[int, bool]]) -> None:
    """Against a list of all segments: devices cut it at other places, and lose some of the pieces."""
    segments = [(packet, place) for packet, count in enumerate(sent) for place in range(count)]
    rows, at = [], 0
    for packet, count in enumerate(sent):
        rows.append(place() | _packet(Kind.TX, packet, first + at, count))
        at += count
    expected, at = [], 0
    for size, lost in cuts:
        piece = segments[at : at + size]
        if piece and not lost:
            rows.append(_SERVER | _packet(Kind.RX, len(expected), first + at, len(piece)))
            expected.append(piece)
        at += size
    if not expected:
        return
    client, server = ends_of(rows)
    found = []
    for packet, start, count in arrived_segments(client, server):
        begin = sum(sent[:packet]) + start
        found.append(segments[begin : begin + (count or sent[packet])])
    assert found == expected


def _packet(kind: Kind, number: int, ip_id: int, segments: int) -> dict[str, Any]:
    index = "rx" if kind == Kind.RX else "tx"
    row = {"kind": kind, "count": 1, "ts": number, index: number, "ip_id": ip_id & 0xFFFF}
    return row | {"segments": segments}


_SERVER = place("10.0.0.2", "10.0.0.1", (80, 4711), role=Role.SERVER, cookie=2)


def test_a_run_of_identifications_wraps_around() -> None:
    row = place() | {"kind": Kind.TX, "count": 4, "ip_id": 65534, "segments": 1, "tx": 0}
    (end,) = ends_of([row])
    assert list(end.sent.expanded("ip_id")) == [65534, 65535, 0, 1]
    assert list(end.sent.expanded("tx")) == [0, 0, 0, 0]  # the number of the first packet


def test_settings_of_two_hosts_that_are_read_together() -> None:
    """A client and a server with other settings, in logs that are merged: each end has those of its host."""
    rows: list[dict[str, Any]] = []
    for host, ends in ((1, ("10.0.0.1", "10.0.0.2")), (2, ("10.0.0.2", "10.0.0.1"))):
        cookie = host << 32
        rows.append({"kind": Kind.SETTING, "ts": host, "cookie": cookie, "count": 1, "name": "tick", "value": host})
        rows.append(place(*ends, cookie=cookie | 1) | {"kind": Kind.BEGIN, "ts": 5, "count": 1})
    found = ends_of(sorted(rows, key=lambda row: row["ts"]))
    assert {end.flow.src: end.setting("tick") for end in found} == {"10.0.0.1": 1, "10.0.0.2": 2}


def settings(isn: int, peer: int) -> list[dict[str, Any]]:
    return [{"kind": Kind.SETTING, "name": n, "value": v, "count": 1} for n, v in (("isn", isn), ("peer_isn", peer))]


def test_ends_are_paired_by_sequence_numbers_when_ports_are_used_again() -> None:
    rows: list[dict[str, Any]] = []
    for number, (isn, peer) in enumerate([(1000, 2000), (5000, 9000)]):
        rows += [place(cookie=number) | row for row in settings(isn, peer)]
    for number, (isn, peer) in enumerate([(9000, 5000), (2000, 1000), (1, 2)]):
        server = place("10.0.0.2", "10.0.0.1", (80, 4711), role=Role.SERVER, cookie=number)
        rows += [server | row for row in settings(isn, peer)]
    connections, alone = pair_ends(ends_of(rows))
    assert [(c.client.setting("isn"), c.server.setting("isn")) for c in connections] == [(1000, 2000), (5000, 9000)]
    assert [(str(end.flow), why) for end, why in alone] == [
        ("10.0.0.2:80-10.0.0.1:4711/tcp", "the recording of its other end is missing")
    ]


def test_what_cannot_be_replayed_says_why() -> None:
    begin = place() | {"kind": Kind.BEGIN, "count": 1, "ts": 5, "notes": Note.EARLIER}
    end = place() | {"kind": Kind.END, "count": 1, "ts": 9, "tx": 3, "rx": 2, "text": "GSO was on"}
    lost = place() | {"kind": Kind.LOST, "count": 17}
    (found,) = ends_of([begin, lost, end])
    assert found.problems == [
        "GSO was on",
        "it began before the recording",
        "17 events were lost",
        "3 packets were sent, the recording has 0",
        "2 packets were received, the recording has 0",
    ]


def test_ipv6_ends_have_their_addresses() -> None:
    rows = [place("2001:db8::1", "fe80::2") | {"kind": Kind.BEGIN, "count": 1, "ts": 1}]
    assert str(ends_of(rows)[0].flow) == "[2001:db8::1]:4711-[fe80::2]:80/tcp"


@pytest.mark.parametrize("count", [0, (1 << 32) - 1])
def test_counts_that_cannot_be_are_refused(count: int) -> None:
    with pytest.raises(FormatError, match="the recording is damaged"):
        ends_of([place() | {"kind": Kind.RX, "count": count}])


def test_times_that_do_not_fit_are_refused() -> None:
    runs = Runs(("ts", "step", "count"))
    runs.append({"ts": (1 << 63) - 1, "step": 1 << 62, "count": 3})
    with pytest.raises(FormatError, match="ts of a run does not fit"):
        runs.expanded("ts")


def test_other_records_are_refused() -> None:
    reader = RecordingReader()
    with pytest.raises(SchemaError, match="no recording: it lacks"):
        reader.add(block_of_rows(builtin("probe"), [{"ts": 1}]))
