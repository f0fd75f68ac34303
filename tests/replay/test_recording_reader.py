"""Reading recordings: rows come to their ends as in a reader of one row at a time, and damage is one clear error."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_recording import SCHEMA, ends_of, place

from confluo_tools.core.replay.recording_rows import expand_runs
from confluo_tools.errors import ConfluoError
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.replay.engine.script import script_of
from confluo_tools.replay.recording import RunWriter, pair_ends, read_ends, relative_headers, relative_runs
from confluo_tools.replay.recording.connection import MAX_INPUTS
from confluo_tools.replay.recording.kinds import ORDERED, Call, Kind, Note, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter

Row = dict[str, Any]
PLACES = [
    place(),
    place(cookie=2),
    place("10.0.0.2", "10.0.0.1", (80, 4711), role=Role.SERVER),
    place("10.0.0.1", "10.0.0.3"),
    place("2001:db8::1", "2001:db8::2"),
    place("2001:db8::1", "2001:db8::3"),
]

rows_of_ends = st.lists(
    st.tuples(st.integers(0, len(PLACES) - 1), st.sampled_from(list(Kind)), st.integers(0, 1 << 31)), max_size=80
)


@given(rows_of_ends, st.integers(1, 40))
def test_rows_come_to_their_ends(rows: list[tuple[int, Kind, int]], size: int) -> None:
    """In blocks of any size; compared with a dictionary of lists."""
    made: list[Row] = [
        PLACES[end] | {"kind": kind, "ts": n, "tx": value, "count": 1 + n % 3}
        for n, (end, kind, value) in enumerate(rows)
    ]
    wanted: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    names = {Kind.RX: "received", Kind.TX: "sent", Kind.SENT: "headers_sent", Kind.RECEIVED: "headers_received"}
    names |= dict.fromkeys(ORDERED, "events")
    for (end, kind, _), row in zip(rows, made, strict=True):
        wanted[end][names.get(kind, "")].append(row)
    found = read_ends([block_of_rows(SCHEMA, made[i : i + size]) for i in range(0, len(made), size)])
    assert len(found) == len(wanted)
    for got, tables in zip(found, wanted.values(), strict=True):
        for name in names.values():
            runs, expected = getattr(got, name), tables[name]
            assert len(runs) == len(expected)
            assert list(runs["ts"]) == [row["ts"] for row in expected]
            assert list(runs["tx"]) == [row["tx"] for row in expected]
            headers = name.startswith("headers")
            assert runs.events == sum(1 if headers else row["count"] for row in expected)


@given(rows_of_ends)
def test_a_flow_is_read_alone(rows: list[tuple[int, Kind, int]]) -> None:
    made = [PLACES[end] | {"kind": kind, "ts": n, "count": 1, "tx": value} for n, (end, kind, value) in enumerate(rows)]
    host = {"kind": Kind.SETTING, "count": 1, "name": "tick", "value": 4_000_000}
    blocks = [block_of_rows(SCHEMA, [*made, host])]
    every = read_ends(blocks)
    for end in every:
        alone = [e for e in every if e.flow in (end.flow, end.flow.reversed)]
        found = read_ends(blocks, end.flow)
        assert [(e.flow, e.cookie, e.settings, e.role) for e in found] == [
            (e.flow, e.cookie, e.settings, e.role) for e in alone
        ]
        assert [list(e.events["ts"]) for e in found] == [list(e.events["ts"]) for e in alone]


def test_a_column_of_another_type_is_refused() -> None:
    from confluo_tools.core.block.block import Block, Layout
    from confluo_tools.errors import SchemaError

    columns = [(c.name, 3 if c.name == "tx" else c.code, c.size, c.count) for c in SCHEMA.columns]
    at = [name for name, *_ in columns].index("rx")
    columns[at] = ("rx", 4, 8, 1)
    row = [bytes([Kind.RX]) if name == "kind" else bytes(size * count) for name, _, size, count in columns]
    with pytest.raises(SchemaError, match="column rx has another type"):
        read_ends([Block.wrap(Layout(columns), 1, row)])


@given(
    st.lists(
        st.tuples(
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.one_of(st.integers(0, 5), st.integers(0, 50)),
            st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 62), 1 << 62), st.integers(-9, 9)),
        ),
        max_size=10,
    ),
    st.booleans(),
)
def test_runs_are_expanded_as_by_hand(runs: list[tuple[int, int, int]], steps: bool) -> None:
    from array import array

    wanted = [value + i * (step if steps else 0) for value, count, step in runs for i in range(count)]
    columns = [array("q", column) for column in zip(*runs, strict=True)] or [array("q")] * 3
    fits = all(-(1 << 63) <= value < 1 << 63 for value in wanted)
    try:
        assert list(expand_runs(columns[0], columns[1], columns[2] if steps else None)) == wanted
    except OverflowError:
        assert not fits
    else:
        assert fits


packets_sent = st.lists(
    st.tuples(
        *[st.integers(0, (1 << 32) - 1)] * 2,
        st.integers(0, 70_000),
        st.integers(0, 511),
        *[st.integers(0, (1 << 32) - 1)] * 3,
        st.integers(0, 65535),
        st.integers(0, 5),
        st.integers(-3, 9),
    ),
    min_size=1,
    max_size=30,
)
HEADER = ("seq", "ack", "len", "tcp_flags", "window", "tsval", "tsecr", "ip_id")


@given(packets_sent, st.sampled_from([Kind.SENT, Kind.RECEIVED]), st.integers(1, 9))
def test_relative_headers_come_back(packets: list[Any], kind: Kind, whole: int) -> None:
    """Any values; with absolute rows among them; from rows of two ends that alternate."""
    mine, other = ("tx", "rx") if kind == Kind.SENT else ("rx", "tx")
    writers = [relative_headers.RelativeHeaders(kind) for _ in range(2)]
    rows, wanted, ts, processed = [], [], 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative_headers, "WHOLE", whole + 1)
        for n, (*values, more, wait) in enumerate(packets):
            ts, processed = ts + wait, processed + more
            header = dict(zip(HEADER, values, strict=True)) | {"kind": kind, "ts": ts, mine: n, other: processed}
            wanted.append(header)
            for writer, common in zip(writers, PLACES, strict=False):
                rows.append(common | {"count": 1} | writer.row(header))
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    for end in ends_of(rows):
        runs = end.headers_sent if kind == Kind.SENT else end.headers_received
        for name in (*HEADER, mine, other):
            assert list(runs[name]) == [header[name] for header in wanted]


runs_of_packets = st.lists(
    st.tuples(
        st.integers(1, 1000),
        *[st.integers(0, (1 << 32) - 1)] * 2,
        st.integers(0, 65535),
        st.integers(0, 50),
        st.sampled_from([0, Note.CE, Note.MERGED]),
    ),
    min_size=1,
    max_size=30,
)
RUN = ("count", "tx", "rx", "ip_id", "segments", "notes")


@given(runs_of_packets, st.sampled_from([Kind.TX, Kind.RX]), st.integers(1, 9))
def test_relative_runs_come_back(values: list[Any], kind: Kind, whole: int) -> None:
    """Any values; with absolute rows among them; from rows of two ends that alternate."""
    writers = [relative_runs.RelativeRuns(kind) for _ in range(2)]
    wanted = [dict(zip(RUN, run, strict=True)) for run in values]
    rows: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative_runs, "WHOLE", whole)
        for n, run in enumerate(wanted):
            for writer, common in zip(writers, PLACES, strict=False):
                rows.append(common | {"kind": kind, "ts": n} | writer.row(run))
    relative = [bool(row["notes"] & Note.RELATIVE) for row in rows[::2]]
    assert relative == [n % whole != 0 for n in range(len(wanted))]
    for end in ends_of(rows):
        found = end.sent if kind == Kind.TX else end.received
        for name in RUN:
            assert list(found[name]) == [run[name] for run in wanted]


def test_runs_of_packets_say_little() -> None:
    """Where nothing is lost, no column that counts packets has other values than zero."""
    rows: list[Row] = []
    sent = relative_runs.RelativeRuns(Kind.TX)
    writer = PacketRunWriter(Kind.TX, lambda run: rows.append(sent.row(run)))
    for n in range(50):
        writer.add(n * n * 100_000, n, 7, 1000 + 2 * n, segments=2)
    writer.flush()
    assert len(rows) > 10
    assert all((row["tx"], row["rx"], row["ip_id"]) == (0, 0, 0) for row in rows[1:])


# ---------------------------------------------------------------- hostile recordings


def whole_connection() -> list[Row]:
    """The rows of both ends of a connection that can be replayed."""
    rows: list[Row] = []
    isn = {"client": (100, 200), "server": (200, 100)}
    for name, common in (("client", PLACES[0]), ("server", PLACES[2])):
        mine: list[Row] = [{"kind": Kind.BEGIN, "ts": 10**18}]
        values = {"isn": isn[name][0], "peer_isn": isn[name][1], "mss": 1460, "began": 10**12, "phase": 5}
        mine += [{"kind": Kind.SETTING, "ts": 10**18, "name": key, "value": v} for key, v in values.items()]
        sent, came = PacketRunWriter(Kind.TX, mine.append), PacketRunWriter(Kind.RX, mine.append)
        events = RunWriter(mine.append)  # type: ignore[arg-type]
        late = 10**6 * (name == "server")
        for n in range(40):
            sent.add(10**18 + n * 10**6 + late, n, n, n)
            came.add(10**18 + n * 10**6 + 500_000 + late, n + 1, n, n)
            call = {"kind": Kind.CALL, "call": Call.SEND if n % 2 else Call.RECV, "bytes": 100, "number": n}
            events.add(call | {"ts": 10**18 + n * 10**6 + late, "tx": n, "rx": n})
        for writer in (sent, came, events):
            writer.flush()
        mine.append({"kind": Kind.DIGEST, "ts": 10**18, "digest": (1,)})
        mine.append({"kind": Kind.END, "ts": 10**18 + 41 * 10**6 + late, "tx": 40, "rx": 40})
        rows += [{**common, "count": 1, **row} for row in mine]
    return rows


WHOLE = whole_connection()
RANGES = {c.name: (c.code, c.size) for c in SCHEMA.columns if c.code <= 8 and c.count == 1}
numbers = st.one_of(
    st.sampled_from(
        [0, 1, -1, (1 << 16) - 1, 1 << 26, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63)]
    ),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
mutations = st.lists(
    st.tuples(st.integers(0, len(WHOLE) - 1), st.sampled_from(sorted(RANGES)), numbers), min_size=1, max_size=6
)


def fitting(name: str, value: int) -> int:
    """The value in the bits of its column."""
    code, size = RANGES[name]
    value &= (1 << 8 * size) - 1
    return value - (1 << 8 * size) if code >= 5 and value >> (8 * size - 1) else value


def test_the_connection_can_be_replayed() -> None:
    connections, alone = pair_ends(ends_of(WHOLE))
    assert (len(connections), alone, connections[0].problems) == (1, [], [])
    assert len(script_of(connections[0]).steps[0]) == 81


@settings(max_examples=300)
@given(mutations, st.sets(st.integers(0, len(WHOLE) - 1), max_size=3), st.integers(0, len(WHOLE)), st.booleans())
@example([(0, "ts", -(1 << 63))], set(), 1, False)  # found once: times that are 292 years apart
def test_damaged_rows_are_one_error_or_a_connection(
    changes: list[tuple[int, str, int]], gone: set[int], cut: int, twice: bool
) -> None:
    """Rows with other values, missing rows, a recording that is cut off, rows that are there twice."""
    rows = [dict(row) for row in WHOLE]
    for at, name, value in changes:
        rows[at][name] = fitting(name, value)
    rows = [row for n, row in enumerate(rows) if n not in gone]
    rows = rows[:cut] if cut % 3 == 0 else rows
    rows += rows[:5] if twice else []
    try:
        connections, alone = pair_ends(ends_of(rows))
    except ConfluoError:
        return
    assert all(lone.why for lone in alone)
    for connection in connections:
        if connection.problems:
            continue
        try:
            script = script_of(connection)
        except ConfluoError:
            continue
        for end, steps in zip((connection.client, connection.server), script.steps, strict=True):
            assert len(steps) <= end.packets_received + end.events.events + 1
            assert all(a.at <= b.at for a, b in pairwise(steps))


def test_huge_counts_are_not_expanded() -> None:
    """A row says that it is 67 million calls: the connection is refused, and its events are never made."""
    rows = [dict(row) for row in WHOLE]
    call = next(row for row in rows if row["kind"] == Kind.CALL)
    call["count"] = (1 << 26) - 100
    call["number_step"] = 0
    connections, _ = pair_ends(ends_of(rows))
    assert any(f"are more than the {MAX_INPUTS} of a replay" in why for why in connections[0].problems)
    rows.append(dict(call))
    with pytest.raises(ConfluoError, match="the recording is damaged"):
        ends_of(rows)


def test_a_recording_with_a_gap_says_so() -> None:
    lost = PLACES[0] | {"kind": Kind.LOST, "count": 17, "notes": Note.CUT}
    connections, _ = pair_ends(ends_of([*WHOLE, lost]))
    assert connections[0].problems == ["client: 17 events were lost"]
