"""The order of result rows, next to numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.block.result_table import Rows
from confluo_tools.schema import Field, Schema

SCHEMA = Schema("sample", [Field("ts", "time"), Field("id", "u32"), Field("f", "f64"), Field("row", "u64")])
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([255, 4095, 4096, 4097, 9000]))
STEPS = st.sampled_from([1, 3, 1 << 20, 10**10])
WIDTHS = st.sampled_from([1, 2, 200, 1 << 11, 1 << 29])


def rows_of(columns: list[Any]) -> Rows:
    """Rows with these columns, in two blocks."""
    rows = len(columns[0])
    pieces = []
    for part in (slice(0, rows // 2), slice(rows // 2, rows)):
        n = len(columns[0][part])
        if n:
            pieces.append((Block.wrap(SCHEMA.layout, n, [c[part].tobytes() for c in columns]), 0))
    return Rows.of(SCHEMA.layout, pieces)


@settings(deadline=None)
@given(
    rows=SIZES,
    step=STEPS,
    width=WIDTHS,
    ids=WIDTHS,
    seed=st.integers(0, 2**32 - 1),
    order=st.permutations([0, 1, 2]),
    down=st.tuples(*[st.booleans()] * 3),
    used=st.integers(1, 3),
)
def test_the_order_is_that_of_a_stable_sort(
    rows: int, step: int, width: int, ids: int, seed: int, order: list[int], down: tuple[bool, ...], used: int
) -> None:
    random = np.random.default_rng(seed)
    ts = (random.integers(-width, width, rows, "<i8") * step + random.integers(0, 5)).astype("<i8")
    columns = [ts, random.integers(0, ids, rows, "<u4"), random.integers(-3, 3, rows) / 2, np.arange(rows, dtype="<u8")]
    table = rows_of(columns)
    chosen = [(column, down[column]) for column in order[:used]]
    table.sort(chosen)
    ranks = [-columns[column].astype("f16") if descending else columns[column] for column, descending in chosen]
    expected = np.lexsort(ranks[::-1])
    found = np.concatenate([np.frombuffer(block.buffer(3), "<u8") for block in table.blocks()])
    assert (found == expected).all()


def test_times_far_from_each_other() -> None:
    """Steps of the whole range of 64 bits."""
    low, high = -(2**63), 2**63 - 1
    times = np.array([high, 0, low, high, -1, low + 1] * 1000, "<i8")
    table = rows_of([times, np.zeros(6000, "<u4"), np.zeros(6000), np.arange(6000, dtype="<u8")])
    table.sort([(0, False)])
    found = np.concatenate([np.frombuffer(block.buffer(0), "<i8") for block in table.blocks()])
    assert (found == np.sort(times)).all()
