"""The query plan finds the same rows as numpy, with complete, partial, damaged and without indexes."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import index_lab as lab
from confluo_tools import expr, multilog
from confluo_tools.errors import UsageError
from confluo_tools.expr.leaves import (
    BEFORE,
    EXACT,
    RUN,
    STARTS,
    And,
    Bytes,
    Const,
    FRange,
    Glob,
    InRanges,
    InSet,
    ListElement,
    ListLength,
    ListSequence,
    Not,
    Or,
    Pair,
    Range,
)
from confluo_tools.expr.simplify import merge
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.schema import Field, Schema

COLUMN = {c.name: i for i, c in enumerate(lab.SCHEMA.columns)}
ID = COLUMN["id"]
SIZES = (200_000, 70_001, 300)


class Tree:
    """The compiled expression."""

    def __init__(self, tree):
        self.tree = tree

    def within(self, since, until):
        return Tree(And((Range(COLUMN["ts"], since, until - 1), self.tree)))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    log, lanes = lab.make(tmp_path_factory.mktemp("plan") / "lab.ml", SIZES)
    return log, lab.joined(lanes)


def ids(pairs):
    out = []
    for block, picks in pairs:
        out.append(np.frombuffer(block.buffer(ID), "u8")[picks.tolist()])
    return np.concatenate(out) if out else np.zeros(0, "u8")


def check(log, columns, tree):
    want = columns["id"][lab.holds(tree, columns)]
    reader = views.ViewReader(log)  # for repeated queries: the postings are mapped
    for use, many in ((False, None), (True, None), (True, reader), (True, reader)):
        plan = QueryPlan(log, None, Tree(tree), columns=[ID], use_indexes=use, reader=many)
        assert np.array_equal(ids(plan), want), use
        assert QueryPlan(log, None, Tree(tree), use_indexes=use, reader=many).count() == len(want), use


def constants(name):
    return {
        "ts": st.integers(lab.START - 10**7, lab.START + 210_000_000),
        "src": st.one_of(st.integers(0x0A000000 - 2, 0x0A000000 + 70), st.sampled_from([lab.fold6(a) for a in lab.V6])),
        "port": st.sampled_from([0, 1, 22, 53, 80, 81, 443, 8080, 65534, 65535]),
        "len": st.integers(30, 1600),
        "temp": st.integers(-45, 65),
        "kind": st.integers(0, 4),
        "path": st.sampled_from([*range(8), *range(99, 166)]),
    }[name]


@st.composite
def of_list(draw):
    """A test of an element, the length or a sequence.  An element test may hold for zero: an absent element."""
    path, kind = COLUMN["path"], draw(st.sampled_from([ListElement, ListLength, ListSequence, ListSequence]))
    if kind is ListLength:
        return ListLength(path, tuple(merge(draw(st.sampled_from([[(0, 0)], [(1, 2)], [(3, 3)], [(0, 1), (3, 3)]])))))
    if kind is ListElement:
        lo, hi = sorted([draw(constants("path")), draw(constants("path"))])
        test = draw(st.sampled_from([Range(path, lo, lo), Range(path, lo, hi), InSet(path, tuple({lo, hi}))]))
        return ListElement(path, draw(st.integers(-3, 2)), test)
    first = draw(st.lists(st.sampled_from([1, 2, 5, 100, 101, 130]), min_size=1, max_size=3))
    items = tuple([(v, v + draw(st.sampled_from([0, 0, 3, 60]))) for v in first])
    return ListSequence(path, draw(st.sampled_from([EXACT, STARTS, RUN, BEFORE])), items)


@st.composite
def leaf(draw):
    names = ["ts", "src", "port", "port", "len", "temp", "kind", "path", "load", "name", "src6", "pair", "list"]
    name = draw(st.sampled_from(names))
    if name == "load":
        lo, hi = sorted([draw(st.integers(-6, 6)) / 2, draw(st.integers(-6, 6)) / 2])
        return FRange(COLUMN[name], lo, hi, draw(st.booleans()), draw(st.booleans()))
    if name == "name":
        if draw(st.booleans()):
            return Glob(COLUMN[name], draw(st.sampled_from([b"eth?", b"veth*", b"*1*", b"lo", b"*", b"", b"e*0"])))
        lo, hi = sorted(draw(st.sampled_from([b"eth0", b"lo", b"veth123", b"veth124", b"", b"zz"])) for _ in range(2))
        return Bytes(COLUMN[name], lo.ljust(12, b"\0"), hi.ljust(12, b"\0"))
    if name == "src6":
        address = draw(st.sampled_from([*lab.V6, bytes(16)]))
        return Bytes(COLUMN[name], address, address)
    if name == "list":
        return draw(of_list())
    if name == "pair":
        a, b = draw(st.sampled_from([("len", "port"), ("temp", "kind"), ("port", "len"), ("temp", "load")]))
        return Pair(draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="])), COLUMN[a], COLUMN[b])
    mask = draw(st.sampled_from([None, None, 1, 0xF0, 0xFFF0])) if name in ("src", "port", "len", "kind") else None
    if mask is None and draw(st.booleans()):
        some = draw(st.sets(constants(name), min_size=1, max_size=draw(st.sampled_from([2, 30]))))
        if draw(st.booleans()):
            return InRanges(COLUMN[name], tuple(merge((v, v + v % 3) for v in some)))
        return InSet(COLUMN[name], tuple(sorted(some)), mask)
    lo, hi = sorted([draw(constants(name)), draw(constants(name))])
    lo = hi if draw(st.booleans()) else lo
    return Range(COLUMN[name], lo & mask if mask else lo, hi & mask if mask else hi, mask)


def trees():
    base = leaf().flatmap(lambda t: st.sampled_from([t, t, Not(t)]))

    def group(inner):
        items = st.lists(inner, min_size=1, max_size=4).map(tuple)
        return st.sampled_from([And, Or]).flatmap(lambda kind: items.map(kind))

    return st.recursive(base, group, max_leaves=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), fields=st.sets(st.sampled_from(lab.INDEXABLE)), seed=st.integers(0, 1 << 30))
def test_any_tree_with_any_indexes(world, tmp_path, tree, fields, seed):
    log, columns = world
    dice = random.Random(seed)
    shutil.rmtree(os.path.join(log.path, "views"), ignore_errors=True)
    for field in fields:
        bucket = dice.choice([None, 1, 10, 1_000_000]) if field in ("ts", "port", "len", "temp", "path") else None
        update = dice.random() < 0.9
        view = views.add_index(log, field, bucket)
        if update:
            views.bring_up_to_date(log, view)
        if not update:  # an older watermark
            early = multilog.Version([dice.randrange(rows + 1) for rows in log.version().tails])
            with views.maintaining(view):
                views.update(log, view, version=early)
        if dice.random() < 0.2:  # one file missing or damaged
            for path in sorted(Path(view.path).rglob("*.idx"))[:2]:
                if dice.random() < 0.5:
                    os.unlink(path)
                else:
                    with open(path, "r+b") as f:
                        for _ in range(20):
                            f.seek(dice.randrange(os.path.getsize(path)))
                            f.write(bytes([dice.randrange(256)]))
    check(log, columns, tree)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), since=constants("ts"), length=st.integers(1, 10**8), data=st.data())
def test_order_and_time_ranges_and_older_versions(world, tree, since, length, data):
    log, columns = world
    for field in data.draw(st.sets(st.sampled_from(lab.INDEXABLE), max_size=3)):
        if all(view.field != field for view in views.indexes(log)):
            views.build(log, views.add_index(log, field))
    hit = lab.holds(tree, columns) & (columns["ts"] >= since) & (columns["ts"] < since + length)
    version = multilog.Version([data.draw(st.integers(0, rows)) for rows in log.version().tails])
    row = columns["id"] & np.uint64((1 << 40) - 1)
    lane = (columns["id"] >> np.uint64(40)).astype(int)
    hit &= row < np.array(version.tails + (0,) * 300)[lane]
    plan = QueryPlan(log, version, Tree(tree), since, since + length, columns=[ID])
    assert np.array_equal(ids(plan), columns["id"][hit])
    assert plan.count() == hit.sum()
    chosen = {k: v[hit] for k, v in columns.items()}
    order = np.lexsort((chosen["id"], chosen["ts"]))  # rows of equal time by lane, then by row number
    want = chosen["id"][order][:40_000].tolist()
    got = []
    for block, picks in QueryPlan(log, version, Tree(tree), since, since + length).ordered():
        got.extend(np.frombuffer(block.buffer(ID), "u8")[picks.tolist()].tolist())
        if len(got) >= len(want):  # -c N: stop here
            break
    assert got[: len(want)] == want


def test_ordered_rows_are_copied_whole(world):
    log, columns = world
    tree = Range(COLUMN["port"], 53, 53)
    seen = 0
    order = {int(v): i for i, v in enumerate(columns["id"].tolist())}
    for block, picks in QueryPlan(log, None, Tree(tree)).ordered():
        for k in (0, len(picks) - 1):
            i = order[block.get(ID, k)]
            assert block.get(COLUMN["ts"], k) == columns["ts"][i]
            assert block.get(COLUMN["src6"], k) == columns["src6"][i].tobytes()
            assert block.get(COLUMN["name"], k).rstrip(b"\0") == columns["name"][i]
            assert block.get(COLUMN["path"], k) == tuple(columns["path"][i].tolist())
        seen += len(picks)
    assert seen == int((columns["port"] == 53).sum())


# The four defects of the original's indexes (anchor study, section 4).


def small(tmp_path, kind="u32", values=range(100), **more):
    schema = Schema("r", [Field("ts", "time"), Field("b", kind), *more.get("fields", ())])
    log = multilog.create(tmp_path / "d.ml", schema)
    values = list(values)
    from confluo_tools.core.block.block import Block

    code = {"u32": "u4", "i32": "i4", "u16": "u2"}[kind]
    ts = np.arange(len(values), dtype="i8") * 250_000 + lab.START
    with log.writer() as writer:
        writer.append(Block.wrap(schema.layout, len(values), [ts.tobytes(), np.array(values, code).tobytes()]))
    return log


def answers(log, text):
    found = []
    for use in (False, True):
        plan = QueryPlan(log, None, expr.compile(text, log.schema), use_indexes=use)
        found.append([block.get(1, row) for block, picks in plan for row in picks.tolist()])
        assert plan.count() == len(found[-1])
    assert found[0] == found[1]
    return found[1]


def test_defect_5_a_timestamp_index_finds_its_rows(tmp_path):
    log = small(tmp_path, values=range(1000))
    views.build(log, views.add_index(log, "ts"))
    seconds = f"{lab.START // 10**9}"
    assert len(answers(log, f"ts >= @{seconds}")) == 1000
    assert answers(log, f"ts >= @{seconds}.001 && ts < @{seconds}.002") == [4, 5, 6, 7]
    assert answers(log, f"ts == @{seconds}.00125") == [5]


def test_defect_6_bounds_of_a_bucketed_index_are_exact(tmp_path):
    log = small(tmp_path)
    views.build(log, views.add_index(log, "b", 10))
    assert answers(log, "b > 5") == list(range(6, 100))
    assert answers(log, "b < 15") == list(range(15))
    assert answers(log, "b in 9..10") == [9, 10]
    assert answers(log, "b == 29 || b == 30 || b == 31") == [29, 30, 31]
    assert answers(log, "!(b > 5 && b < 95)") == [*range(6), *range(95, 100)]


def test_defect_7_below_zero_on_an_indexed_unsigned_column(tmp_path):
    log = small(tmp_path)
    views.build(log, views.add_index(log, "b", 10))
    assert answers(log, "b < 0") == []
    assert answers(log, "b <= 0") == [0]
    assert answers(log, "b >= 0") == list(range(100))
    assert answers(log, "b > 4294967295") == []


def test_defect_7_negative_values_in_buckets(tmp_path):
    log = small(tmp_path, "i32", range(-50, 50))
    views.build(log, views.add_index(log, "b", 10))
    assert answers(log, "b < 0") == list(range(-50, 0))
    assert answers(log, "b >= -15 && b < -5") == list(range(-15, -5))
    assert answers(log, "b < -2147483648") == []


def test_defect_8_an_index_added_late_covers_the_past(tmp_path):
    log, lanes = lab.make(tmp_path / "late.ml", (100_000,))
    text = "port == 53"
    want = int((lanes[0]["port"] == 53).sum())
    assert QueryPlan(log, None, expr.compile(text, log.schema)).count() == want
    view = views.build(log, views.add_index(log, "port"))
    assert views.coverage(log, view, log.version())[:2] == (100_000, 100_000)
    with log.writer() as writer:
        more = lab.rows(9, 0, 100_000, 100_000)
        lab.append(writer, more)
        want += int((more["port"] == 53).sum())
        assert QueryPlan(log, None, expr.compile(text, log.schema)).count() == want  # the tail is scanned
    views.build(log, views.add_index(log, "port"))
    plan = QueryPlan(log, None, expr.compile(text, log.schema))
    assert plan.count() == want
    assert plan.explain()["indexes"][0]["blocks"] == 4


def test_ipv6_goes_by_the_fold_and_is_verified(world):
    log, columns = world
    shutil.rmtree(os.path.join(log.path, "views"), ignore_errors=True)
    views.build(log, views.add_index(log, "src"))
    for i in range(len(lab.V6)):
        e = expr.compile(f"src == 2001:db8::{i:x}", log.schema)
        plan = QueryPlan(log, None, e)
        assert plan.count() == int((columns["src6"] == np.frombuffer(lab.V6[i], "u1")).all(axis=1).sum())
    # A row with the same hash but another address: only the address decides.
    assert QueryPlan(log, None, expr.compile("src == 2001:db8::99", log.schema)).count() == 0


def test_count_by_postings_touches_no_row(world):
    log, columns = world
    shutil.rmtree(os.path.join(log.path, "views"), ignore_errors=True)
    views.build(log, views.add_index(log, "port"))
    plan = QueryPlan(log, None, expr.compile("port == 443", log.schema))
    assert plan.count() == int((columns["port"] == 443).sum())
    (step,) = plan.explain()["steps"]
    assert (step["by_scan"], step["by_list"], step["rows_in"]) == (0, 0, 0)
    assert step["by_index"] == plan.explain()["blocks"]
    assert step["text"] == "port == 443"
    assert 0.1 < step["selectivity"] < 0.2


def test_explain_names_what_decided(world):
    log, columns = world
    plan = QueryPlan(log, None, expr.compile("kind == 1 && len < 50", log.schema), timed=True)
    n = plan.count()
    assert n == int(((columns["kind"] == 1) & (columns["len"] < 50)).sum())
    told = plan.explain()
    assert told["version_rows"] == sum(SIZES)
    assert told["matched"] == n
    assert told["ns"] > 0
    steps = {s["text"]: s for s in told["steps"]}
    assert steps["kind == 1"]["zone_none"] + steps["kind == 1"]["zone_all"] > 0
    assert steps["and"]["op"] == "and"


def test_a_range_of_time_needs_a_time(tmp_path):
    log = multilog.create(tmp_path / "n.ml", Schema("n", [Field("x", "u8")]))
    with pytest.raises(UsageError, match="has no time"):
        QueryPlan(log, None, None, 0, 5)
    assert QueryPlan(log).count() == 0
    assert list(QueryPlan(log).ordered()) == []


def test_everything_is_every_row(world):
    log, columns = world
    assert QueryPlan(log).count() == sum(SIZES)
    assert np.array_equal(ids(QueryPlan(log, columns=[ID])), columns["id"])
    assert QueryPlan(log, None, Tree(Const(False))).count() == 0


def test_damaged_blocks_are_left_out_with_a_warning(tmp_path):
    log, lanes = lab.make(tmp_path / "bad.ml", (150_000,))
    columns = lanes[0]
    views.build(log, views.add_index(log, "len"))
    segment = log.segments()[0]
    buffer = segment.block(1).buffer(COLUMN["port"])
    with open(segment.path, "rb") as f:
        at = f.read().index(bytes(buffer[:200]))
    with open(segment.path, "r+b") as f:
        f.seek(at + 1000)
        f.write(b"\xde\xad")
    tree = And((Range(COLUMN["port"], 443, 443), Range(COLUMN["temp"], 0, 5)))
    good = lab.holds(tree, columns)
    good[65536:131072] = False
    for use in (False, True):
        fresh = multilog.open(log.path)
        plan = QueryPlan(fresh, None, Tree(tree), columns=[ID], use_indexes=use)
        assert np.array_equal(ids(plan), columns["id"][good])
        assert plan.damaged == 1
        assert any("port" in what for _, what in plan.warnings)
        fresh = multilog.open(log.path)
        plan = QueryPlan(fresh, None, Tree(tree), use_indexes=use)
        assert plan.count() == good.sum()
        assert plan.damaged == 1
    # The damaged column is not read: no error.
    fresh = multilog.open(log.path)
    plan = QueryPlan(fresh, None, Tree(Range(COLUMN["len"], 64, 64)), columns=[ID])
    assert len(ids(plan)) == int((columns["len"] == 64).sum())
    assert plan.damaged == 0
    # A column that the caller reads is verified.
    plan = QueryPlan(fresh, None, Tree(Range(COLUMN["len"], 64, 64)))
    hit = columns["len"] == 64
    assert sum(len(p) for _, p in plan) == int(hit.sum() - hit[65536:131072].sum())
    assert plan.damaged == 1


def test_what_is_damaged_is_not_indexed_as_sound(tmp_path):
    log, lanes = lab.make(tmp_path / "bad.ml", (150_000,))
    segment = log.segments()[0]
    with open(segment.path, "rb") as f:
        at = f.read().index(bytes(segment.block(0).buffer(COLUMN["port"])[:200]))
    with open(segment.path, "r+b") as f:
        f.seek(at)
        f.write(b"\xff\xff\xff\xff\xff\xff")
    fresh = multilog.open(log.path)
    views.build(fresh, views.add_index(fresh, "port"))
    plan = QueryPlan(multilog.open(log.path), None, Tree(Range(COLUMN["port"], 22, 22)))
    assert plan.count() == int((lanes[0]["port"][65536:] == 22).sum())
    assert plan.damaged == 1


def test_memory_does_not_grow_with_the_log(tmp_path):
    # Maps of segments behind the cursor are released once there are more than a few.
    log, _ = lab.make(tmp_path / "m.ml", (65536 * 24,), segment_blocks=2)
    from confluo_tools.multilog.query import plan as module

    def mapped():
        with open("/proc/self/smaps_rollup") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("Rss:")) * 1024

    size = 65536 * 2 * log.schema.layout.row_bytes
    before, kept = mapped(), module.KEEP_ONE
    module.KEEP_ONE = 2 * size
    most = 0
    try:
        for block, picks in QueryPlan(log):
            assert len(picks) == len(block)
            sum(bytes(block.buffer(i))[::4096].count(0) for i in range(len(log.schema.columns)))
            most = max(most, mapped() - before)
    finally:
        module.KEEP_ONE = kept
    assert most < 6 * size < 12 * size


def test_merged_blocks_that_are_kept_stay_as_they_are(world):
    log, columns = world
    kept, seen = [], []
    for block, picks in QueryPlan(log, None, Tree(Range(COLUMN["port"], 0, 80))).ordered():
        view = block.buffer(ID)
        kept.append(block if len(kept) % 2 else view)
        seen.append(bytes(view))
        assert len(picks) == len(block)
    assert len(kept) > 4
    assert [bytes(k if isinstance(k, memoryview) else k.buffer(ID)) for k in kept] == seen
    assert sum(map(len, seen)) // 8 == int((columns["port"] <= 80).sum())
