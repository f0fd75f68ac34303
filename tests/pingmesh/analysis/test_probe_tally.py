"""The probe tally: what is counted where, against a twin that goes row by row."""

from __future__ import annotations

from functools import partial
from math import ceil, isnan, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Picks
from confluo_tools.core.pingmesh.probe_tally import ProbeTally
from confluo_tools.errors import ConfluoError, SchemaError, UsageError
from confluo_tools.pingmesh.analysis import probe_tally
from confluo_tools.pingmesh.analysis.probe_tally import Cell, WindowTally, overflow_drops
from confluo_tools.schema import Schema, builtin
from twin_probe_tally import SCHEMA, Rows, block, probe, quantile, twin

COUNTS = Cell.__slots__[:14]
MS = 1_000_000
SECOND = 1000 * MS


def same(cell: Cell, expected: dict[str, Any], limits: int = 0, close: float = 0.0) -> None:
    for name in COUNTS:
        assert getattr(cell, name) == expected.get(name, 0), name
    assert cell.above[:limits] == tuple(expected.get(f"above{i + 1}", 0) for i in range(limits))
    assert cell.samples == len(expected["rtt"])
    for name, of, q in (
        ("p50", "rtt", 500_000),
        ("p99", "rtt", 990_000),
        ("p999", "rtt", 999_000),
        ("seen50", "seen", 500_000),
        ("seen99", "seen", 990_000),
    ):
        value = getattr(cell, name)
        if not expected[of]:
            assert isnan(value)
        else:
            assert value == pytest.approx(quantile(expected[of], q), rel=close, abs=0)


def test_what_is_counted_where() -> None:
    rows = [probe() for _ in range(7)]
    rows += [probe(rtt=0, retries=1, hint=1), probe(rtt=0, retries=2, hint=2), probe(rtt=0, retries=1, notes=4)]
    rows += [probe(outcome=o, rtt=0) for o in (2, 2, 3, 4, 5, 6, 7)]
    rows += [probe(kind=16, src_pod="z"), probe(kind=17, outcome=0), probe(kind=18, fault=1)]
    [(start, key, cell)] = probe_tally.tally(Rows(rows))
    assert (start, key) == (5, ("a", "b"))
    assert (cell.ok, cell.dropped, cell.overflow, cell.forward, cell.reverse) == (10, 2, 1, 1, 1)
    assert (cell.timeout, cell.refused, cell.unreachable, cell.reset, cell.local, cell.garbled) == (2, 1, 1, 1, 1, 1)
    assert (cell.probes, cell.failed, cell.drop_rate, cell.failed_rate) == (16, 6, 0.2, 6 / 16)
    assert (cell.samples, cell.p50, cell.seen99) == (7, 1000.0, 3000.0)
    assert cell.host_share == pytest.approx(2 / 3)


def test_windows_begin_at_their_multiples() -> None:
    rows = [probe(ts=t, rtt=t + 20) for t in (0, 9, 10, 19, 35, -1)]
    assert [(w, c.ok, c.p99) for w, _, c in probe_tally.tally(Rows(rows), window=10)] == [
        (-10, 1, 19.0),
        (0, 2, 29.0),
        (10, 2, 39.0),
        (30, 1, 55.0),
    ]


ROW = st.fixed_dictionaries(
    {
        "ts": st.integers(-40, 40) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
        "kind": st.sampled_from([0, 1, 1, 1, 2, 3, 5, 15, 16, 17, 255]),
        "outcome": st.sampled_from([0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
        "rtt": st.integers(-3, 3) | st.integers(1, 10_000),
        "elapsed": st.sampled_from([0, 0, 1, 5, 990, 1000, 1300, 2999, 3000, 3500, 1 << 62]),
        "retries": st.sampled_from([0, 0, 0, 1, 2, 255]),
        "hint": st.integers(0, 2),
        "notes": st.sampled_from([0, 0, 4, 5, 3]),
        "src": st.sampled_from(["", "a", "b" * 32]),
        "src_pod": st.sampled_from(["p1", "p2"]),
        "dst_port": st.integers(0, 2),
    }
)
BY = st.lists(st.sampled_from(["src", "src_pod", "dst_port", "kind", "dst_pod"]), unique=True, max_size=4)
SIGNATURES: list[list[tuple[int, int, int]]] = [[], [(990, 1300, 1), (2999, 3001, 2), (900, 1 << 63, 0)]]


@given(
    st.lists(st.lists(ROW, max_size=12), max_size=4),
    BY,
    st.sampled_from([0, 1, 7, 1 << 62]),
    st.sampled_from([(), (100,), (3, 2000, 0)]),
    st.sampled_from(SIGNATURES),
)
def test_against_the_twin(
    parts: list[list[dict[str, Any]]], by: list[str], window: int, limits: tuple[int, ...], signature: Any
) -> None:
    parts = [[r for r in rows if r["ts"] // (window or 1) * window >= -(1 << 63)] for rows in parts]
    parts = [rows for rows in parts if rows]
    reader = Rows(*parts)
    expected = twin([r for rows in parts for r in rows], by, window, limits, signature)
    found = list(probe_tally.tally(reader, by, window=window, limits=limits, signature=signature))
    assert len(found) == len(expected)
    assert found == sorted(found, key=lambda f: f[:2])
    for start, key, cell in found:
        same(cell, expected[start if window else 0, key], len(limits))


@given(st.lists(st.integers(1, 1 << 40), min_size=500, max_size=530), st.integers(1, 3))
def test_many_samples_are_counted_by_bucket(values: list[int], times: int) -> None:
    rows = [probe(rtt=v, elapsed=v + 5) for v in values * times]
    [(_, _, cell)] = probe_tally.tally(Rows(rows))
    same(cell, twin(rows, ("src_pod", "dst_pod"))[0, ("a", "b")], close=0.0 if len(rows) <= 512 else 1 / 256)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=700))
def test_intervals_of_quantiles_are_of_ranks(values: list[int]) -> None:
    [(_, _, cell)] = probe_tally.tally(Rows([probe(rtt=v) for v in values]))
    ordered, n = sorted(values), len(values)
    for name, q, z in (
        ("p50_low", 0.5, -1.96),
        ("p50_high", 0.5, 1.96),
        ("p99_low", 0.99, -1.96),
        ("p99_high", 0.99, 1.96),
    ):
        rank = ceil(round(n * q + z * sqrt(n * q * (1 - q)), 9))
        if 1 <= rank <= n:
            assert getattr(cell, name) == pytest.approx(ordered[rank - 1], rel=1 / 256 if n > 512 else 0)
        else:
            assert isnan(getattr(cell, name))


def test_many_groups_and_picks() -> None:
    rows = [probe(ts=t, src_pod=f"p{t % 997}", dst_pod=f"p{t % 31}", rtt=t + 1) for t in range(60_000)]
    tally = WindowTally(SCHEMA, ("src_pod", "dst_pod"), window=1000)
    half = Picks.of(len(rows), range(0, len(rows), 2))
    tally.update(block(rows), half)
    expected = twin(rows[::2], ("src_pod", "dst_pod"), 1000)
    assert tally.windows() == list(range(0, 60_000, 1000))
    assert tally.probes == 30_000
    n = 0
    for start in tally.windows():
        for key, cell in tally.cells(start):
            same(cell, expected[start, key])
            n += 1
    assert n == len(expected) == 30_000
    tally.pop(0)
    assert tally.windows()[0] == 1000
    with pytest.raises(KeyError):
        tally.keys(0)


@given(st.lists(ROW, min_size=1, max_size=60), st.data())
def test_groups_joined(rows: list[dict[str, Any]], data: Any) -> None:
    tally = WindowTally(SCHEMA, ("src", "dst_port"), limits=(50,))
    tally.update(block(rows))
    if not tally.windows():
        return
    keys = tally.keys(0)
    probe_filter = data.draw(st.lists(st.integers(0, len(keys) - 1), unique=True))
    [(name, cell)] = tally.cells(0, [(("all",), probe_filter)])
    wanted = {keys[i] for i in probe_filter}
    some = [r for r in rows if (r["src"], r["dst_port"]) in wanted]
    assert name == ("all",)
    expected = twin(some, (), limits=(50,))
    same(cell, expected[0, ()] if expected else {"rtt": [], "seen": []}, 1)


def test_columns_are_the_cells() -> None:
    rows = [probe(src_pod=f"p{i % 3}", rtt=i + 1, retries=i % 5 == 0, outcome=1 + (i % 7 == 0)) for i in range(100)]
    tally = WindowTally(SCHEMA, ("src_pod",), limits=(10, 20, 30, 40))
    tally.update(block(rows))
    found = tally.cells(0)
    for i, (_, cell) in enumerate(found):
        for name in (*COUNTS, "samples", *probe_tally.RTT, *probe_tally.SEEN):
            assert found.column(name)[i] == pytest.approx(getattr(cell, name), nan_ok=True)
        assert tuple(found.column(n)[i] for n in ("above", "above2", "above3", "above4")) == cell.above


def test_keys_of_all_types() -> None:
    row = probe(src_ip=0x0A000001, ip_version=4, dst_ip6=bytes(15) + b"\1", dst_port=443, dscp=3, list=1 << 63, src="é")
    by = ("src_ip", "dst_ip", "dst_port", "dscp", "list", "src", "kind", "ts")
    [(_, key, _)] = probe_tally.tally(Rows([row]), by)
    assert key == ("10.0.0.1", "::1", 443, 3, 1 << 63, "é", 1, 5)


@given(
    st.lists(ROW, min_size=1, max_size=60),
    st.sampled_from(["src", "src_pod"]),
    st.dictionaries(st.sampled_from(["", "a", "b" * 32, "p1", "x"]), st.integers(1, 1 << 60)),
)
def test_classes_of_names(rows: list[dict[str, Any]], name: str, classes: dict[str, int]) -> None:
    tally = WindowTally(SCHEMA, ("kind", name, "dst_pod"), classes={name: classes})
    tally.update(block(rows))
    expected = twin([r | {name: classes.get(r[name], 0)} for r in rows], ("kind", name, "dst_pod"))
    found = dict(iter(tally.cells(0))) if tally.windows() else {}
    assert {key for _, key in expected} == found.keys()
    for key, cell in found.items():
        same(cell, expected[0, key])


def host(start: int, elapsed: int, overflows: int, name: str = "b1", **more: Any) -> dict[str, Any]:
    """What a host writes at the end of ``elapsed``."""
    return {"ts": start + elapsed, "kind": 16, "elapsed": elapsed, "overflows": overflows, "src": name} | more


def test_overflows_of_the_target_are_no_drops_of_the_network() -> None:
    late = {"rtt": 0, "retries": 1, "elapsed": 1010 * MS, "hint": 1}
    rows = [probe(ts=i * SECOND, dst="b1", **late) for i in range(10)]
    rows += [probe(ts=3 * SECOND, dst="b2", **late)]
    hosts = [host(0, 2 * SECOND, 2), host(5 * SECOND, 1 * SECOND, 99), host(8 * SECOND, 10 * SECOND, 1)]
    for order in (rows + hosts, hosts + rows, rows[::-1] + hosts[::-1]):
        [(_, _, cell)] = probe_tally.tally(Rows(order), ())
        # 0 and 1 by the first, 4, 5 and 6 overlap the second, 7 takes the one of the third
        assert (cell.ok, cell.dropped, cell.overflow, cell.forward) == (11, 5, 6, 5)
    back = [row | {"hint": 2} for row in rows]  # the SYN-ACK was lost: the target's host had room
    [(_, _, cell)] = probe_tally.tally(Rows([*back, *hosts]), ())
    assert (cell.dropped, cell.overflow, cell.reverse) == (11, 0, 11)
    rows = [probe(ts=i * SECOND, dst_ip=7, **late) for i in range(3)]
    [(_, _, cell)] = probe_tally.tally(
        Rows([*rows, host(0, 9 * SECOND, 2, src_ip=7)]), ("kind",), where="dst_ip == 0.0.0.7"
    )
    assert (cell.dropped, cell.overflow) == (1, 2)


def test_overflows_are_spent_once_over_windows() -> None:
    rows = [probe(ts=t * SECOND, dst="b", rtt=0, retries=1, elapsed=SECOND) for t in (8, 9, 10, 11)]
    found = probe_tally.tally(Rows([*rows, host(5 * SECOND, 10 * SECOND, 3, "b")]), (), window=10 * SECOND)
    assert [(c.dropped, c.overflow) for _, _, c in found] == [(0, 2), (1, 1)]


DROPS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(1, 2), st.integers(0, 2)), max_size=12)
SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 3), st.integers(0, 2)), max_size=6)


@given(DROPS, SPANS)
def test_overflows_explain_no_more_than_they_are(drops: Any, spans: Any) -> None:
    drops = [(a, a + d, r, t, i) for i, (a, d, r, t) in enumerate(drops)]
    spans = list({(a, a + d, n, t): (a, a + d, n, [t]) for a, d, n, t in spans}.values())
    found = overflow_drops(drops, spans, {})
    assert len(set(found)) == len(found)
    for target in range(3):
        mine = [s for s in spans if s[3] == [target]]
        taken = [d for d in drops if d[4] in found and d[3] == target]
        assert sum(d[2] for d in taken) < sum(s[2] for s in mine) + 2 * len(mine) or not taken
        for d in taken:
            assert any(s[0] <= d[1] and d[0] <= s[1] for s in mine)
        # of one span, it is as many as could be
        if len(mine) == 1:
            [(begin, end, n, _)] = mine
            near = [d for d in drops if d[3] == target and begin <= d[1] and d[0] <= end]
            assert bool(taken) == bool(near)
            assert sum(d[2] for d in taken) >= min(n, sum(d[2] for d in near))


def test_what_is_no_probe() -> None:
    other = Rows()
    other.schema = builtin("packet")
    with pytest.raises(SchemaError, match="kind 'packet', not probes"):
        list(probe_tally.tally(other))
    with pytest.raises(UsageError, match="no field 'pod'"):
        list(probe_tally.tally(Rows([probe()]), ("pod",)))
    reader = Rows()
    reader.schema = SCHEMA.project([f.name for f in SCHEMA.fields if f.name != "outcome"])
    with pytest.raises(SchemaError, match="has no field 'outcome'"):
        list(probe_tally.tally(reader))


def test_more_windows_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluo_tools.core.pingmesh.probe_tally.ProbeTally", partial(ProbeTally, max_windows=5))
    with pytest.raises(ConfluoError, match="windows and groups exceed the memory; read less"):
        list(probe_tally.tally(Rows([probe(ts=t) for t in range(6)]), window=1))


def test_rows_that_say_nothing_are_counted_apart() -> None:
    tally = WindowTally(SCHEMA, ())
    tally.update(block([probe(kind=0), probe(outcome=0), probe(outcome=8), probe(kind=16, outcome=0)]))
    assert (tally.probes, tally.unknown, tally.windows()) == (0, 3, [])


def test_the_core_refuses() -> None:
    layout = SCHEMA.layout
    with pytest.raises(ValueError, match="no column"):
        ProbeTally(layout, [[9999]])
    with pytest.raises(ValueError, match="key exceeds"):
        ProbeTally(layout, [[SCHEMA.index("detail")]] * 3)
    with pytest.raises(ValueError, match="too many limits"):
        ProbeTally(layout, [], limits=range(5))
    with pytest.raises(ValueError, match="exceeds 32 bytes"):
        ProbeTally(layout, [[SCHEMA.index("detail")]], classes={SCHEMA.index("detail"): {b"a": 1}})
    tally = ProbeTally(layout, [[SCHEMA.index("src_pod")]])
    other = Schema("probe", [SCHEMA["ts"]])
    with pytest.raises(ValueError, match="another layout"):
        tally.update(Rows([probe()]).blocks().__next__().project(other.layout))
    with pytest.raises(ValueError, match="another block"):
        tally.update(block([probe()]), Picks.of(2))
    tally.update(block([probe(retries=1, rtt=0)]))
    few = ProbeTally(layout, [], 10, max_windows=2)
    few.update(block([probe(ts=0), probe(ts=10)]))
    with pytest.raises(MemoryError):
        few.update(block([probe(ts=20)]))
    few.pop(0)
    few.update(block([probe(ts=20)]))
    assert few.windows() == [10, 20]
    large = ProbeTally(layout, [[SCHEMA.index("src_port")]], max_bytes=1 << 20)
    part = block([probe(src_port=i, rtt=i) for i in range(6000)])
    for _ in range(15):
        large.update(part)
    with pytest.raises(MemoryError):
        large.update(part)
    assert large.memory() > 6000 * 8 * 16 * 2
    tally.mark_overflow(0, [0])
    with pytest.raises(ValueError, match="marked already"):
        tally.mark_overflow(0, [0])
    with pytest.raises(IndexError):
        tally.mark_overflow(0, [1])
    with pytest.raises(IndexError):
        tally.counts(0, (), (), [[1]])
