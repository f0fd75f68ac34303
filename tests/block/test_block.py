"""Blocks and picks against plain Python lists."""

from __future__ import annotations

import gc
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Layout, Picks, Staging

FORMATS = {1: "B", 2: "H", 3: "I", 4: "Q", 5: "b", 6: "h", 7: "i", 8: "q", 9: "f", 10: "d"}
SIZES = {code: struct.calcsize(f) for code, f in FORMATS.items()}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, int, list[list[object]], list[bytes | None]]:
    """A random layout with random values: (layout, rows, values by column, buffers)."""
    rows = draw(st.sampled_from([0, 1, 2, 63, 64, 65, 200]))
    columns, values, buffers = [], [], []
    for i in range(draw(st.integers(1, 5))):
        code = draw(st.integers(1, 11))
        count = draw(st.sampled_from([1, 1, 3]))
        size = SIZES[code] if code != 11 else draw(st.integers(1, 20))
        raw = draw(st.binary(min_size=rows * size * count, max_size=rows * size * count))
        if code in (9, 10):
            raw = struct.pack(f"<{rows * count}{FORMATS[code]}", *(float(b) for b in raw[: rows * count]))
        columns.append((f"c{i}", code, size, count))
        elements: list[object] = (
            [raw[k * size : (k + 1) * size] for k in range(rows * count)]
            if code == 11
            else list(struct.unpack(f"<{rows * count}{FORMATS[code]}", raw))
        )
        values.append(elements if count == 1 else [tuple(elements[r * 3 : r * 3 + 3]) for r in range(rows)])
        buffers.append(raw)
    return Layout(columns), rows, values, buffers


@given(tables(), st.randoms(use_true_random=False))
def test_values_take_and_slice_are_those_of_the_lists(table: tuple, random) -> None:
    layout, rows, values, buffers = table
    block = Block.wrap(layout, rows, buffers, lane=3, base=7)
    chosen = sorted(random.sample(range(rows), random.randint(0, rows)))
    taken = block.take(Picks.of(rows, chosen))
    start = random.randint(0, rows)
    part = block.slice(start, random.randint(0, rows - start))
    for i, column in enumerate(values):
        assert [block.get(i, r) for r in range(rows)] == column
        assert bytes(block.buffer(i)) == buffers[i]
        assert [taken.get(i, r) for r in range(len(taken))] == [column[r] for r in chosen]
        assert [part.get(i, r) for r in range(len(part))] == column[start : start + len(part)]
    assert (part.base, part.lane, len(taken)) == (7 + start, 3, len(chosen))


@given(st.sets(st.integers(0, 65535), max_size=200))
def test_picks_keep_their_rows(chosen: set[int]) -> None:
    picks = Picks.of(65536, sorted(chosen))
    assert len(picks) == len(chosen)
    assert picks.tolist() == sorted(chosen)


def test_all_rows_of_a_full_block() -> None:
    picks = Picks.of(65536)
    assert len(picks) == 65536
    assert picks.tolist() == list(range(65536))


@pytest.mark.parametrize("chosen", [[3, 3], [4, 2], [10], [-1]])
def test_picks_refuse_rows_out_of_order_or_range(chosen: list[int]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Picks.of(10, chosen)


def test_picks_of_a_larger_block_are_refused() -> None:
    block = Block.wrap(Layout([("a", 1, 1, 1)]), 2, [b"ab"])
    with pytest.raises(ValueError, match="another block"):
        block.take(Picks.of(5, [4]))


def test_a_short_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="column a: 3 bytes for 4 rows"):
        Block.wrap(Layout([("a", 1, 1, 1)]), 4, [b"abc"])


def test_an_absent_column_reads_as_zeros() -> None:
    layout = Layout([("a", 4, 8, 1), ("b", 11, 300, 1)])
    block = Block.wrap(layout, 65536, [None, None])
    assert (block.get(0, 65535), block.get(1, 65535)) == (0, bytes(300))


def test_a_block_lives_as_long_as_a_view_of_it() -> None:
    view = Block.wrap(Layout([("a", 1, 1, 1)]), 3, [b"abc"]).slice(1, 2).buffer(0)
    gc.collect()
    assert bytes(view) == b"bc"
    assert view.readonly


def test_projection_by_name() -> None:
    block = Block.wrap(Layout([("a", 1, 1, 1), ("b", 2, 2, 1)]), 2, [b"xy", b"\1\0\2\0"])
    out = block.project(Layout([("b", 2, 2, 1), ("new", 4, 8, 1)]))
    assert [(out.get(0, r), out.get(1, r)) for r in range(2)] == [(1, 0), (2, 0)]
    with pytest.raises(ValueError, match="another type"):
        block.project(Layout([("a", 2, 2, 1)]))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=100))
@settings(max_examples=30)
def test_staging_is_written_published_and_cleared(numbers: list[int]) -> None:
    staging = Staging(Layout([("a", 3, 4, 1), ("b", 1, 1, 1)]), 100)
    staging.writable(0)[: 4 * len(numbers)] = struct.pack(f"<{len(numbers)}I", *numbers)
    staging.publish(len(numbers))
    assert [staging.get(0, r) for r in range(len(staging))] == numbers
    staging.clear()
    assert len(staging) == 0
    staging.publish(100)
    assert not any(staging.buffer(0))
    with pytest.raises(ValueError, match="101 rows"):
        staging.publish(101)


@pytest.mark.parametrize("bad", [(0, 1, 1), (12, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 256), (11, 65536, 1)])
def test_layouts_are_checked(bad: tuple[int, int, int]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Layout([("a", *bad)])
