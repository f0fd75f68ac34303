"""Random expressions on a MultiLog, planned with and without indexes: the rows are those of plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twin_expr
from confluo_tools import multilog
from confluo_tools.expr import compile
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from expr_strategies import NOW, PACKET, comparisons, conditions, packet_rows, primitives

ROWS = [row for seed in range(10) for row in packet_rows(seed)]
TIMES = (165, 3)  # how often all of them were appended to lane 0 and lane 1: 66,000 rows fill a block and more
INDEXED = ("src_ip", "dst_ip", "src_port", "dst_port", "proto", "tcp_flags", "ip_version", "vlan", "ts", "len")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("planned") / "packets.ml"
    made = multilog.create(path, PACKET, segment_blocks=1)
    block = twin_expr.block_of(PACKET, ROWS)
    writers = [made.writer() for _ in TIMES]
    for writer, times in zip(writers, TIMES, strict=True):
        for _ in range(times):
            writer.append(block)
    for writer in writers:
        writer.close()
    for field in INDEXED:
        views.build(made, views.add_index(made, field))
    return made


@settings(max_examples=150, deadline=None)
@given(st.one_of(primitives(), comparisons(PACKET), conditions(st.one_of(primitives(), comparisons(PACKET)))))
def test_planned_rows_are_those_of_the_twin(log: Any, text: str) -> None:
    expr = compile(text, PACKET, now_ns=NOW)
    meaning = twin_expr.Meaning(PACKET, NOW)
    once = np.array([meaning.holds(expr.syntax, row) for row in ROWS])
    expected = [np.flatnonzero(np.tile(once, times)) for times in TIMES]
    for use_indexes in (True, False):
        found: list[list[int]] = [[] for _ in TIMES]
        for block, picks in QueryPlan(log, None, expr, use_indexes=use_indexes):
            found[block.lane] += [block.base + row for row in picks.tolist()]
        for lane, rows in enumerate(expected):
            assert found[lane] == rows.tolist(), (use_indexes, lane)
        assert QueryPlan(log, None, expr, use_indexes=use_indexes).count() == sum(map(len, expected))
