"""The predicate engine against plain Python, on every instruction set, with and without zone maps."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twin_leaves as twin
from confluo_tools.core.block import zone_map
from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.query import predicate
from confluo_tools.core.query.predicate import Program
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
    InByteRanges,
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

INTEGERS = {1: "B", 2: "H", 3: "I", 4: "Q", 5: "b", 6: "h", 7: "i", 8: "q"}
DTYPE = {1: "u1", 2: "u2", 3: "u4", 4: "u8", 5: "i1", 6: "i2", 7: "i4", 8: "i8", 9: "f4", 10: "f8"}
SIZE = {1: 1, 2: 2, 3: 4, 4: 8, 5: 1, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8}
EDGES = [0, 1, 2, 63, 64, 65, 127, 128, 130]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1e-45, 3.4028234663852886e38, 1e300, 0.1]


@pytest.fixture(scope="module", autouse=True)
def _best_after():
    yield
    predicate.use_instruction_set(None)


def sets():
    """The instruction sets of this machine; all must agree."""
    found = []
    for name in ("portable", "avx2", "avx512"):
        try:
            predicate.use_instruction_set(name)
        except ValueError:
            continue
        found.append(name)
    predicate.use_instruction_set(None)
    return found


SETS = sets()


def numbers(code):
    low, high = twin.BOUNDS[code]
    near = [low, low + 1, -1, 0, 1, 2, 3, 7, 8, 255, 256, high - 1, high]
    return st.one_of(st.sampled_from([v for v in near if low <= v <= high]), st.integers(low, high))


def real(code):
    if code == 9:
        return st.one_of(st.sampled_from(FLOATS), st.floats(width=32)).map(as_f32)
    return st.one_of(st.sampled_from(FLOATS), st.floats())


def as_f32(x):
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def values(code, size):
    if code == 11:
        few = st.lists(st.sampled_from(b"\0ab\xff"), min_size=size, max_size=size).map(bytes)
        return st.one_of(few, st.just(b"\0" * size), st.binary(min_size=size, max_size=size))
    return numbers(code) if code <= 8 else real(code)


@st.composite
def blocks(draw):
    """(block, [(code, size, count)]): 1 to 4 columns of any types."""
    columns = []
    for _ in range(draw(st.integers(1, 4))):
        code = draw(st.integers(1, 11))
        size = draw(st.sampled_from([1, 3, 8, 16, 17])) if code == 11 else SIZE[code]
        count = draw(st.sampled_from([1, 1, 1, 2, 3, 8])) if code != 11 else 1
        columns.append((code, size, count))
    rows = draw(st.one_of(st.sampled_from(EDGES), st.integers(0, 200)))
    buffers = []
    for code, size, count in columns:
        pool = draw(st.lists(values(code, size), min_size=1, max_size=6))
        picked = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=12))
        flat = [pool[picked[(i * 7 + i // 5) % len(picked)]] for i in range(rows * count)]
        if code == 11:
            buffers.append(b"".join(flat))
        else:
            buffers.append(np.array(flat, dtype=DTYPE[code]).tobytes() if flat else b"")
    layout = Layout([(f"c{i}", *c) for i, c in enumerate(columns)])
    return Block.wrap(layout, rows, buffers), columns


def masks(code):
    top = twin.BOUNDS[code][1] - twin.BOUNDS[code][0]
    return st.one_of(st.none(), st.integers(0, top), st.sampled_from([0, 1, 0x12, top, top >> 1, top ^ 0xFF, top ^ 1]))


def pairs(draw, bounds, gap):
    """Sorted, disjoint ranges; of numbers, also not adjacent."""
    some = sorted(draw(st.lists(bounds, min_size=2, max_size=draw(st.sampled_from([2, 6, 40])))))
    out = []
    for lo, hi in zip(some[::2], some[1::2], strict=False):
        if not out or (lo >= out[-1][1] + gap if isinstance(lo, int) else lo > out[-1][1]):
            out.append((lo, hi))
    return tuple(out)


@st.composite
def list_leaf(draw, columns):
    """A test of an element, the length or a sequence of a column of numbers."""
    col = draw(st.sampled_from([i for i, c in enumerate(columns) if c[0] != 11]))
    code, _, count = columns[col]
    what = draw(st.sampled_from(["element", "length", EXACT, STARTS, RUN, BEFORE]))
    if what == "element":
        return ListElement(col, draw(st.integers(-count, count - 1)), draw(value_leaf(columns, col)))
    if what == "length":
        return ListLength(col, pairs(draw, st.integers(0, count + 1), 2))
    value = numbers(code) if code <= 8 else st.sampled_from([1.0, -1.0, 1.5, math.inf, 0.1])
    items = draw(st.lists(st.tuples(value, value).map(sorted).map(tuple), min_size=1, max_size=count))
    return ListSequence(col, what, tuple((lo, hi) for lo, hi in items if not lo <= 0 <= hi) or ((1, 1),))


@st.composite
def leaf(draw, columns):
    if draw(st.integers(0, 3)) == 0 and any(c[0] != 11 for c in columns):
        return draw(list_leaf(columns))
    col = draw(st.integers(0, len(columns) - 1))
    code, size, count = columns[col]
    if draw(st.integers(0, 4)) == 0 and count == 1:
        others = [i for i, c in enumerate(columns) if c[2] == 1 and (c[0] == 11) == (code == 11)]
        others = [i for i in others if code != 11 or columns[i][1] == size]
        mask = draw(masks(code)) if code <= 8 else None
        return Pair(draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="])), col, draw(st.sampled_from(others)), mask)
    if code == 11:
        if draw(st.booleans()):
            part = st.sampled_from([b"*", b"?", b"a", b"b", b"\0", b"\xff", b"ab"])
            return Glob(col, b"".join(draw(st.lists(part, max_size=5))))
        if draw(st.booleans()):
            return InByteRanges(col, pairs(draw, values(code, size), 1))
        lo = draw(values(code, size))
        hi = lo if draw(st.booleans()) else draw(values(code, size))
        return Bytes(col, lo, hi, draw(st.one_of(st.none(), values(code, size))))
    return draw(value_leaf(columns, col))


@st.composite
def value_leaf(draw, columns, col):
    """A test of the numbers in a column."""
    code = columns[col][0]
    if code > 8:
        lo, hi = sorted([draw(real(10)), draw(real(10))], key=lambda x: (x != x, x))
        return FRange(col, lo, hi, draw(st.booleans()), draw(st.booleans()))
    if draw(st.booleans()):
        some = draw(st.sets(numbers(code), min_size=1, max_size=draw(st.sampled_from([1, 3, 20, 60]))))
        return InSet(col, tuple(sorted(some)), draw(masks(code)))
    if draw(st.booleans()):
        return InRanges(col, pairs(draw, numbers(code), 2))
    lo, hi = sorted([draw(numbers(code)), draw(numbers(code))])
    return Range(col, lo, hi, draw(masks(code)))


def trees(columns):
    test = leaf(columns).flatmap(lambda t: st.sampled_from([t, Not(t)]))
    base = st.one_of(test, test, test, st.booleans().map(Const))

    def group(inner):
        items = st.lists(inner, max_size=4).map(tuple)
        return st.sampled_from([And, Or]).flatmap(lambda kind: items.map(kind))

    return st.recursive(base, group, max_leaves=8)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_tree_over_any_block(data):
    block, columns = data.draw(blocks())
    tree = data.draw(trees(columns))
    expected = twin.select(tree, block)
    zoned = zone_map.zoned(block)
    wider = zone_map.zoned(block, dict.fromkeys(range(0, len(columns), 2), (0, 2**64 - 1)))
    chosen = data.draw(st.sets(st.integers(0, max(len(block) - 1, 0)), max_size=40)) if len(block) else set()
    for name in SETS:
        predicate.use_instruction_set(name)
        program = Program(tree, block.layout)
        for one in (block, zoned, wider):
            assert program.select(one).tolist() == expected, name
            assert program.count(one) == len(expected)
            assert program.possible(one) or not expected
        picks = Picks.of(len(block), sorted(chosen))
        assert program.refine(block, picks) == len(picks)
        assert picks.tolist() == [row for row in expected if row in chosen]
        every = Picks.of(len(block))
        program.refine(zoned, every)
        assert every.tolist() == expected


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 4095, 65535, 65536])
@pytest.mark.parametrize("code", range(1, 9))
def test_ranges_at_every_row_count(code, rows):
    rng = np.random.default_rng(code * 100000 + rows)
    low, high = twin.BOUNDS[code]
    data = rng.integers(low, high, rows, dtype=DTYPE[code], endpoint=True)
    data[: rows // 2] = rng.choice(np.array([low, low + 1, 0, 1, high - 1, high], dtype=DTYPE[code]), rows // 2)
    block = Block.wrap(Layout([("x", code, SIZE[code], 1)]), rows, [data.tobytes()])
    for lo, hi in [(low, low), (high, high), (low, high), (0, 0), (low + 1, high - 1), (0, high // 3), (low // 2, 0)]:
        expected = np.flatnonzero((data >= lo) & (data <= hi)).tolist()
        for name in SETS:
            predicate.use_instruction_set(name)
            assert Program(Range(0, lo, hi), block.layout).select(block).tolist() == expected
            inverse = Program(Not(Range(0, lo, hi)), block.layout).select(block)
            assert len(inverse) == rows - len(expected)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 65535, 65536])
@pytest.mark.parametrize("code", range(1, 9))
def test_sets_at_every_row_count(code, rows):
    rng = np.random.default_rng(code * 7 + rows)
    low, high = twin.BOUNDS[code]
    pool = np.unique(
        np.concatenate(
            [
                rng.integers(low, high, 300, dtype=DTYPE[code], endpoint=True),
                np.array([low, 0, 1, high], dtype=DTYPE[code]),
            ]
        )
    )
    data = rng.choice(pool, rows)
    block = Block.wrap(Layout([("x", code, SIZE[code], 1)]), rows, [data.tobytes()])
    for size in (1, 8, 9, len(pool) // 2):
        some = np.sort(rng.choice(pool, min(size, len(pool)), replace=False))
        expected = np.flatnonzero(np.isin(data, some)).tolist()
        for name in SETS:
            predicate.use_instruction_set(name)
            assert Program(InSet(0, tuple(map(int, some))), block.layout).select(block).tolist() == expected


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 65535, 65536])
@pytest.mark.parametrize("code", [9, 10])
def test_floats_with_nan_and_both_zeros(code, rows):
    rng = np.random.default_rng(rows)
    pool = np.array([as_f32(x) if code == 9 else x for x in FLOATS]).astype(DTYPE[code])
    data = rng.choice(pool, rows)
    block = zone_map.zoned(Block.wrap(Layout([("x", code, SIZE[code], 1)]), rows, [data.tobytes()]))
    wide = data.astype("f8")
    inf = math.inf
    for lo, hi in [(0.0, 0.0), (-0.0, 0.0), (-inf, inf), (1.0, 1.0), (0.1, 1.0), (-inf, 0.0), (math.nan, 1.0)]:
        for lo_open in (False, True):
            for hi_open in (False, True):
                expected = (wide > lo if lo_open else wide >= lo) & (wide < hi if hi_open else wide <= hi)
                for name in SETS:
                    predicate.use_instruction_set(name)
                    test = FRange(0, lo, hi, lo_open, hi_open)
                    assert Program(test, block.layout).select(block).tolist() == np.flatnonzero(expected).tolist()
                    assert Program(Not(test), block.layout).select(block).tolist() == np.flatnonzero(~expected).tolist()


@pytest.mark.parametrize("left", range(1, 11))
@pytest.mark.parametrize("right", range(1, 11))
def test_pairs_of_all_types_compare_by_value(left, right):
    def column(code):
        if code > 8:
            more = [*FLOATS, 2.0**63, 2.0**64, -(2.0**63), 255.0, 2.0**53, -1.5]
            return [as_f32(x) if code == 9 else x for x in more]
        low, high = twin.BOUNDS[code]
        return sorted({low, low + 1, max(low, -1), 0, 1, min(255, high), min(2**53 + 1, high), high - 1, high})

    rows = [(a, b) for a in column(left) for b in column(right)]
    a = np.array([r[0] for r in rows], dtype=DTYPE[left])
    b = np.array([r[1] for r in rows], dtype=DTYPE[right])
    layout = Layout([("a", left, SIZE[left], 1), ("b", right, SIZE[right], 1)])
    block = Block.wrap(layout, len(rows), [a.tobytes(), b.tobytes()])
    for op in ("==", "!=", "<", "<=", ">", ">="):
        for mask in [None, 0xF0, 1] if left <= 8 else [None]:
            for tree in (Pair(op, 0, 1, mask), Not(Pair(op, 0, 1, mask))):
                expected = twin.select(tree, block)
                for name in SETS:
                    predicate.use_instruction_set(name)
                    assert Program(tree, block.layout).select(zone_map.zoned(block)).tolist() == expected, (op, mask)


def test_unsigned_below_zero_and_above_all_hold_nowhere():
    # The original under-ran a buffer on `b < 0` for an unsigned column (anchor study, defect 7).
    block = Block.wrap(Layout([("b", 2, 2, 1)]), 3, [np.array([0, 1, 65535], "u2").tobytes()])
    assert Program(Range(0, -5, -1), block.layout).select(block).tolist() == []
    assert Program(Range(0, 70000, 80000), block.layout).select(block).tolist() == []
    assert Program(Not(Range(0, -5, -1)), block.layout).select(block).tolist() == [0, 1, 2]


def test_zone_maps_decide_whole_blocks():
    data = np.arange(1000, 2000, dtype="u4")
    block = zone_map.zoned(Block.wrap(Layout([("x", 3, 4, 1)]), 1000, [data.tobytes()]))
    for tree, rows, key in [
        (Range(0, 0, 999), 0, "zone_none"),
        (Range(0, 1000, 1999), 1000, "zone_all"),
        (Not(Range(0, 5, 10)), 1000, "zone_all"),
        (InSet(0, (1, 5, 7000)), 0, "zone_none"),
    ]:
        program = Program(tree, block.layout)
        assert len(program.select(block)) == rows
        assert Program(tree, block.layout).possible(block) == (rows > 0)
        seen = program.describe()
        assert (seen[key], seen["by_scan"], seen["rows_in"]) == (1, 0, 0)
    program = Program(Range(0, 0, 1500), block.layout)
    assert len(program.select(block)) == 501
    assert program.describe()["by_scan"] == 1


def test_and_stops_at_an_empty_mask_and_narrows_a_sparse_one():
    rows = 65536
    ports = np.arange(rows, dtype="u2")
    text = np.zeros(rows, dtype="S16")
    text[12345] = b"needle"
    layout = Layout([("port", 2, 2, 1), ("text", 11, 16, 1)])
    block = Block.wrap(layout, rows, [ports.tobytes(), text.tobytes()])
    program = Program(And((Glob(1, b"n*d?e"), Range(0, 12000, 13000))), layout)
    assert program.select(block).tolist() == [12345]
    steps = {type(s["leaf"]).__name__: s for s in program.describe()["items"]}
    assert steps["Glob"]["rows_in"] == 1001
    program = Program(And((Glob(1, b"n*d?e"), Range(0, 5, 5), Not(Range(0, 5, 5)))), layout)
    assert program.select(block).tolist() == []


def test_a_mask_that_keeps_high_bits_uses_zone_maps():
    data = np.arange(0x0A000000, 0x0A000000 + 5000, dtype="u4")
    block = zone_map.zoned(Block.wrap(Layout([("ip", 3, 4, 1)]), 5000, [data.tobytes()]))
    program = Program(Range(0, 0x0B000000, 0x0B000000, 0xFF000000), block.layout)
    assert len(program.select(block)) == 0
    assert program.describe()["zone_none"] == 1


def test_deep_and_wide_trees():
    layout = Layout([("x", 3, 4, 1)])
    block = Block.wrap(layout, 300, [np.arange(300, dtype="u4").tobytes()])
    tree = Range(0, 7, 7)
    for i in range(98):
        tree = (And if i % 2 else Or)((tree, Range(0, i, 300) if i % 2 else Range(0, i * 2, i * 2)))
    assert Program(tree, layout).select(block).tolist() == twin.select(tree, block)
    for _ in range(10):
        tree = And((Or((tree, Range(0, 1, 1))), Range(0, 0, 500)))
    with pytest.raises(ValueError, match="too deeply"):
        Program(tree, layout)
    wide = Or(tuple(Range(0, 3 * i, 3 * i) for i in range(2000)))
    assert Program(wide, layout).select(block).tolist() == list(range(0, 300, 3))


@pytest.mark.parametrize(
    "tree",
    [
        Range(9, 0, 1),
        Range(1, 0, 1),
        FRange(0, 0.0, 1.0),
        Bytes(1, b"ab", b"ab"),
        Glob(0, b"*"),
        Pair("==", 0, 1),
        Pair("~", 0, 0),
        Pair("<", 0, 2),
        "x == 1",
        Pair("<", 0, 77),
    ],
)
def test_trees_that_do_not_fit_the_layout(tree):
    layout = Layout([("n", 3, 4, 1), ("b", 11, 4, 1), ("l", 3, 4, 2)])
    with pytest.raises((ValueError, AttributeError)):
        Program(tree, layout)


def test_a_block_of_other_columns_is_refused():
    program = Program(Range(0, 1, 1), Layout([("n", 3, 4, 1)]))
    with pytest.raises(ValueError, match="other columns"):
        program.select(Block.wrap(Layout([("n", 2, 2, 1)]), 0, [b""]))


def test_steps_are_timed_when_asked():
    layout = Layout([("n", 3, 4, 1)])
    block = Block.wrap(layout, 65536, [np.arange(65536, dtype="u4").tobytes()])
    program = Program(Range(0, 10, 20), layout)
    program.select(block)
    assert program.describe()["ns"] == 0
    program.timed = True
    program.select(block)
    assert program.describe()["ns"] > 0
    assert (program.blocks, program.rows, program.chosen) == (2, 131072, 22)
