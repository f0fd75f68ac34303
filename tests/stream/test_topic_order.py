"""Blocks of partitions that come at different speeds are released by time, and each once."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import Field, Schema
from confluo_tools.stream.services import topic_order
from confluo_tools.stream.services.topic_order import TopicOrder

SCHEMA = Schema("t", [Field("ts", "time", "ns")])
LAST = (1 << 63) - 1


def block(*times: int) -> Block:
    return block_of_rows(SCHEMA, [{"ts": t} for t in times])


def times(found: Iterable[Block]) -> list[list[int]]:
    return [[b.get(0, r) for r in range(b.rows)] for b in found]


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=3), max_size=12), st.randoms())
def test_rows_come_by_time_however_partitions_are_read(messages: list[list[int]], random: Random) -> None:
    """Partition 0 and 1, each in order; the mark is the time of the one that is behind."""
    flat = [sorted(t for m in messages[side::2] for t in m) for side in (0, 1)]
    parts = [[flat[side][i : i + 2] for i in range(0, len(flat[side]), 2)] for side in (0, 1)]
    order, out = TopicOrder(0), []
    reached = [-1, -1]
    while any(parts):
        side = random.choice([s for s in (0, 1) if parts[s]])
        part = parts[side].pop(0)
        reached[side] = part[-1] if parts[side] else LAST
        order.add(block(*part))
        out += times(order.ready(min(r for s, r in enumerate(reached) if flat[s])))
    out += times(order.ready(LAST))
    starts = [b[0] for b in out]
    assert starts == sorted(starts)
    assert sorted(t for b in out for t in b) == sorted(t for part in flat for t in part)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    order = TopicOrder(0)
    monkeypatch.setattr(topic_order, "MAX_ROWS", 4)
    for t in range(10):
        order.add(block(100 - t))
        assert times(order.ready(-1)) == ([] if t < 4 else [[100 - t]])
