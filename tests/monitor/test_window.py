"""Windows, triggers and their events against tests/support/twin_triggers.py, which looks at all rows at every tick."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.monitor.window import GridTicks, GridWindows, RowFeed
from confluo_tools.core.query.shared_filters import SharedFilters
from confluo_tools.expr import compile
from confluo_tools.monitor.engine import TriggerEngine
from confluo_tools.monitor.language import parse_trigger
from confluo_tools.schema import builtin
from monitor_writer import rows_of
from twin_triggers import MS, SPECS, Row, Spec, Twin

START = 1_700_000_000 * 10**9
HEADER = builtin("header64")
FIRST = -(1 << 63)


def block(rows: list[Row]) -> Block:
    """Rows of header64."""
    made = rows_of([r["ts"] for r in rows], [r["len"] for r in rows], [r["dst_port"] for r in rows])
    columns: list[Any] = [bytes(made.buffer(i)) for i in range(HEADER.layout.n)]
    columns[HEADER.layout.index("src_port")] = struct.pack(f"<{len(rows)}H", *(r["src_port"] for r in rows))
    return Block.wrap(HEADER.layout, len(rows), columns)


def engine(specs: list[Spec]) -> TriggerEngine:
    return TriggerEngine(HEADER, [parse_trigger(s.text, HEADER) for s in specs], seed=b"12345678")


def told(e: TriggerEngine, found: Any) -> list[tuple[int, str, str, tuple[int, ...], int]]:
    """Events in the terms of the twin: keys of one or two ports."""
    return [
        (x.tick, e.triggers[x.trigger].name, x.kind, struct.unpack(f"<{len(x.key) // 2}H", x.key), x.rows)
        for x in found
    ]


# A burst: how long after the last tick, how long, which ports.
rows_at_once = st.lists(
    st.tuples(st.integers(0, 12 * MS), st.integers(0, 1500), st.sampled_from([80, 443]), st.sampled_from([1, 2, 3])),
    max_size=6,
)
steps = st.lists(st.one_of(st.just([]), st.just([]), rows_at_once), min_size=10, max_size=60)


@settings(max_examples=60, deadline=None)
@given(steps=steps, which=st.sets(st.sampled_from(range(len(SPECS))), min_size=1))
def test_events_are_those_of_all_rows_at_every_tick(steps: list[Any], which: set[int]) -> None:
    specs = [SPECS[i] for i in sorted(which)]
    e, twin = engine(specs), Twin(specs, START)
    e.start(START)
    rows: list[Row] = []
    got: list[Any] = []
    expected: list[Any] = []
    for step in steps:
        new = [{"ts": e.clock + after, "len": n, "dst_port": d, "src_port": s} for after, n, d, s in step]
        if new:
            assert e.take(block(new), 0, len(new), FIRST, e.clock + e.head) == len(new)
        rows += new
        t = e.next
        got += told(e, e.tick(t))
        in_order = sorted(rows, key=lambda r: r["ts"])  # sorted() is stable: ties stay as they came
        expected += twin.tick(t, in_order)
    # Within a tick the order is that of triggers, then keys by hash: compare as sets of one tick.
    assert sorted(got) == sorted(expected)
    assert [g[0] for g in got] == sorted(g[0] for g in got)


@settings(max_examples=40, deadline=None)
@given(steps=steps, window=st.integers(1, 12), period=st.integers(1, 7), late=st.integers(0, 15))
def test_values_of_windows_with_rows_that_come_late(steps: list[Any], window: int, period: int, late: int) -> None:
    kinds = ["sum", "sum", "min", "max", "real", "sum"]
    grid = GridWindows(window * MS, period * MS, 10**9, kinds, [])
    texts = ["len > 500", "dst_port == 80", "", "src_port == 1 and len < 900"]
    tests = [
        lambda r: r["len"] > 500,
        lambda r: r["dst_port"] == 80,
        lambda r: True,
        lambda r: r["src_port"] == 1 and r["len"] < 900,
    ]
    bank = SharedFilters([compile(t, HEADER).tree for t in texts], HEADER.layout)
    col = HEADER.layout.index("len")
    puts = [(0, 0, 0, -1), (1, 0, 1, col), (2, 0, 2, col), (3, 0, 3, col), (3, 0, 4, col), (2, 0, 5, -1)]
    feed = RowFeed(bank, [grid], puts, [], HEADER.layout.index("ts"))
    grid.start(START)
    clock, rows = START, []
    came_late = 0
    for step in steps:
        new = [{"ts": clock + after - late * MS, "len": n, "dst_port": d, "src_port": s} for after, n, d, s in step]
        if new:
            feed.take_rows(block(new), 0, len(new), FIRST, clock + 10**9, clock)
        # What no later window could see is lost; it is not part of the truth either.
        rows += [r for r in new if r["ts"] // grid.grain * grid.grain >= grid.next - grid.period - grid.window]
        came_late += sum(r["ts"] < clock for r in new)
        t = grid.next
        assert GridTicks([grid]).tick(t) is None
        clock = t
        inside = [[r["len"] for r in rows if t - grid.window <= r["ts"] < t and f(r)] for f in tests]
        expected = [
            len(inside[0]),
            sum(inside[1]),
            min(inside[2], default=math.nan),
            max(inside[3], default=math.nan),
            sum(inside[3]),
            len(inside[2]),
        ]
        assert grid.values() == pytest.approx(expected, nan_ok=True, rel=0, abs=0)
    assert feed.late == came_late


def test_original_defect_9() -> None:
    """The 2nd aggregate of a filter, and the 2nd trigger on one aggregate, fire like the first ones."""
    texts = [
        "one: count > 2 over 10ms every 1ms where dst_port == 80",
        "two: sum(len) > 100 over 10ms every 1ms where dst_port == 80",
        "three: sum(len) > 250 over 10ms every 1ms where dst_port == 80",
        "four: count > 2 over 10ms every 1ms where dst_port == 443",
    ]
    e = TriggerEngine(HEADER, [parse_trigger(t, HEADER) for t in texts])
    e.start(START)
    rows = [{"ts": START + i, "len": 100, "dst_port": 80, "src_port": 1} for i in range(3)]
    e.take(block(rows), 0, 3, FIRST, START + 10**9)
    events = e.tick(e.next)
    assert [(e.triggers[x.trigger].name, x.kind, x.value, x.rows) for x in events] == [
        ("one", "fire", 3, 3),
        ("two", "fire", 300, 3),
        ("three", "fire", 300, 3),
    ]


def test_sums_of_floats_leave_nothing_behind() -> None:
    """1e20 that came and went must not hide what comes after, as it would in a running sum."""
    from confluo_tools.schema import Field, Schema

    schema = Schema("floats", [Field("ts", "time"), Field("x", "f64")])
    e = TriggerEngine(schema, [parse_trigger("s: sum(x) > 0.5 over 2ms every 1ms", schema)])
    e.start(START)
    values = [1e20, 1.0, 0.0, 0.0, 0.75]
    ts = struct.pack("<5q", *(START + i * MS for i in range(5)))
    e.take(Block.wrap(schema.layout, 5, [ts, struct.pack("<5d", *values)]), 0, 5, FIRST, START + 10**9)
    found = [(x.kind, x.value) for _ in range(6) for x in e.tick(e.next)]
    assert found == [("fire", 1e20), ("clear", 0.0), ("fire", 0.75)]


def test_keys_are_forgotten_and_bounded() -> None:
    trigger = parse_trigger("k: count > 1 over 2ms every 1ms by src_port", HEADER)
    e = TriggerEngine(HEADER, [trigger], max_keys=100)
    e.start(START)
    for step in range(50):
        rows = [{"ts": e.clock + i, "len": 1, "dst_port": 1, "src_port": step * 1000 + i} for i in range(90)]
        e.take(block(rows), 0, 90, FIRST, e.clock + 10**9)
        e.tick(e.next)
    keyed = e.windows[0].keyed
    assert keyed is not None
    assert keyed.keys <= 100
    assert e.dropped > 0  # two milliseconds of keys are more than there is room for: that is counted
    for _ in range(5):
        e.tick(e.next)
    assert keyed.keys == 0


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (lambda: GridWindows(0, 1, 0, [], []), "a window of 0 ns"),
        (lambda: GridWindows(10, 0, 0, [], []), "every 0 ns"),
        (lambda: GridWindows(10, 10, 0, ["median"], []), "not in tuple"),
        (lambda: GridWindows(10**9, 10**6, 0, ["sum"], [([(1, 1)], [])]), "step 0 of a condition: 1, 1"),
        (lambda: GridWindows(10**9, 10**6, 0, ["sum"], [([(2, 0)], [])]), "nothing to work on"),
        (lambda: GridWindows(10**9, 10**6, 0, ["sum"], [([(0, 1.0)] * 70 + [(2, 0)] * 69, [])]), "too deep"),
        (lambda: GridWindows(10**9, 10**6, 0, ["sum"], [([(0, 1.0)] * 2, [])]), "one value"),
    ],
)
def test_impossible_windows_are_refused(bad: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        bad()
