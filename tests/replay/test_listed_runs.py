"""Rows that list their events: written as confluo-replay-record(1) says, they are read as single events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_recording import ends_of, place

from confluo_tools.core.replay.recording_rows import listed_sums
from confluo_tools.errors import FormatError
from confluo_tools.replay.recording.kinds import Call, Kind, Note

SLOT, SENT_SLOT = 2048, 8192
Row = dict[str, Any]
number = st.one_of(st.integers(0, 3), st.integers(0, 4095))
marks = st.sampled_from([0, 1, 2, 3])
NOTES = {0: 0, 1: Note.CE, 2: Note.MERGED, 3: Note.CE | Note.MERGED}


def encoded(numbers: Iterable[int]) -> bytes:
    return b"".join(bytes([n]) if n < 240 else bytes([240 + n // 256, n % 256]) for n in numbers)


packets = st.lists(
    st.tuples(number, number, st.one_of(st.just(0), st.integers(1, 255)), marks), min_size=1, max_size=31
)
rows_of_packets = st.lists(
    st.tuples(packets, st.integers(0, 1 << 40), st.integers(1, 50), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(rows_of_packets, st.sampled_from([Kind.RX, Kind.TX]))
def test_packets_come_back(values: list[Any], kind: Kind) -> None:
    """With relative rows among absolute ones, from two ends that alternate."""
    rows: list[Row] = []
    wanted: list[tuple[int, ...]] = []
    tx = rx = ip_id = 0
    for listed, start, segments, ahead, absolute in values:
        slot = SENT_SLOT if kind == Kind.TX else SLOT
        mine, ts = tx if kind == Kind.TX else rx, start * slot
        other = (rx if kind == Kind.TX else tx) + ahead
        row = {"tx": mine, "rx": other} if kind == Kind.TX else {"rx": mine, "tx": other}
        before = {"tx": tx, "rx": rx, "ip_id": ip_id}
        ip_id = ip_id + 7 * ahead & 0xFFFF
        row |= {"kind": kind, "ts": ts, "ip_id": ip_id, "segments": segments, "count": len(listed), "gap": 7 * ahead}
        notes = Note.LISTED
        for n, (gap, between, size, mark) in enumerate(listed):
            ts, other = ts + gap * slot * (n > 0), other + between * (n > 0 and kind == Kind.RX)
            mark *= kind == Kind.RX
            notes |= NOTES[mark]
            places = (mine + n, other) if kind == Kind.TX else (other, mine + n)
            if kind == Kind.TX:
                places = (mine + n, row["rx"])
            wanted.append((ts, *places, ip_id, size or segments, NOTES[mark], 0 if n else 7 * ahead, 1))
            ip_id = ip_id + (size or segments) & 0xFFFF
        if kind == Kind.TX:
            tx, rx = mine + len(listed), row["rx"]
        else:
            tx, rx = other, mine + len(listed)
        if not absolute:
            notes |= Note.RELATIVE
            row |= {name: row[name] - before[name] & (0xFFFF if name == "ip_id" else 0xFFFFFFFF) for name in before}
        row |= {"gaps": encoded(p[0] for p in listed[1:]), "sizes": bytes(p[2] for p in listed), "notes": notes}
        if kind == Kind.RX:
            row |= {"tx_gaps": encoded(p[1] for p in listed[1:]), "marks": bytes(p[3] for p in listed)}
        rows += [place() | row, place(cookie=2) | row]
    for end in ends_of(rows):
        runs = end.received if kind == Kind.RX else end.sent
        names = ("ts", "tx", "rx", "ip_id", "segments", "notes", "gap", "count")
        assert list(zip(*(runs[name] for name in names), strict=True)) == wanted
        assert (len(runs), runs.events) == (len(wanted), len(wanted))
        assert list(runs.expanded("ip_id")) == [w[3] for w in wanted]


events = st.lists(st.tuples(number, number, number, number), min_size=1, max_size=31)
rows_of_events = st.lists(
    st.tuples(events, st.integers(0, 1 << 40), st.sampled_from([5, 7]), st.booleans()), min_size=1, max_size=8
)


@given(rows_of_events)
def test_events_come_back(values: list[Any]) -> None:
    rows: list[Row] = []
    wanted: list[tuple[int, ...]] = []
    before: dict[int, dict[str, int]] = {}
    for place_, (listed, start, size, absolute) in enumerate(values):
        at = dict.fromkeys(("tx", "rx", "number"), place_ * 100_000)
        row: Row = {"kind": Kind.CALL, "call": Call.SEND, "bytes": size, "ts": start * SLOT, "count": len(listed), **at}
        notes, ts = Note.LISTED, start * SLOT
        if size in before and not absolute:
            notes |= Note.RELATIVE
            row |= {name: at[name] - before[size][name] & 0xFFFFFFFF for name in at}
        for n, (gap, *steps) in enumerate(listed):
            if n:
                ts += gap * SLOT
                at = {name: value + step for (name, value), step in zip(at.items(), steps, strict=True)}
            wanted.append((ts, *at.values(), Call.SEND, size, 0, 1))
        before[size] = at
        lists = [encoded(event[i] for event in listed[1:]) for i in range(4)]
        row |= dict(zip(("gaps", "tx_gaps", "rx_gaps", "number_gaps"), lists, strict=True))
        rows += [place() | row | {"notes": notes}, place(cookie=2) | row | {"notes": notes}]
    for end in ends_of(rows):
        names = ("ts", "tx", "rx", "number", "call", "bytes", "notes", "count")
        assert list(zip(*(end.events[name] for name in names), strict=True)) == wanted
        assert (len(end.events), end.events.events) == (len(wanted), len(wanted))


def test_a_count_beyond_its_list_is_damage() -> None:
    for kind in (Kind.TX, Kind.RX, Kind.CALL):  # no array of this length is made
        (end,) = ends_of([place() | {"kind": kind, "count": 1 << 24, "notes": Note.LISTED}])
        runs = {Kind.TX: end.sent, Kind.RX: end.received, Kind.CALL: end.events}[kind]
        with pytest.raises(FormatError, match="the recording is damaged"):
            len(runs)
    for count, gaps in ((65, b""), (64, bytes([255] * 64)), (2, bytes(63) + b"\xff")):
        row = place() | {"kind": Kind.TX, "count": count, "notes": Note.LISTED, "gaps": gaps}
        (end,) = ends_of([row])
        if count == 2:
            assert len(end.sent) == 2
        else:
            with pytest.raises(FormatError, match="the recording is damaged"):
                len(end.sent)
    with pytest.raises(OverflowError):
        listed_sums(b"\xff" * 64, memoryview((34).to_bytes(8, "little")).cast("q"))


@pytest.mark.parametrize("kind", [Kind.TX, Kind.RX, Kind.CALL])
def test_an_end_lists_all_of_its_events_or_none(kind: Kind) -> None:
    rows = [place() | {"kind": kind, "count": 1, "notes": notes} for notes in (Note.LISTED, 0)]
    (end,) = ends_of(rows)
    runs = {Kind.TX: end.sent, Kind.RX: end.received, Kind.CALL: end.events}[kind]
    with pytest.raises(FormatError, match="only some rows list their events"):
        runs.expanded("ts")
