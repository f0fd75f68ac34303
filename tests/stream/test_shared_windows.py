"""Windows that several workers fold: the result is that of one function that sees all rows in their order."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.inputs.open import open_records
from confluo_tools.kafka.byte_writer import ByteWriter
from confluo_tools.schema import Schema
from confluo_tools.stream import collector
from confluo_tools.stream.collector import StreamCollector
from confluo_tools.stream.flows_file import FlowsReader
from confluo_tools.stream.lane_input import InputLane
from function_lab import FunctionRun, cut

SECOND = 10**9
START = 1_700_000_000 * SECOND
SCHEMA = Schema.from_dict(
    {
        "schema": "row",
        "fields": [
            {"name": "ts", "type": "time"},
            {"name": "len", "type": "u16"},
            {"name": "host", "type": "u8"},
            {"name": "flow_hash", "type": "u32"},
        ],
    }
)
FUNCTIONS: list[dict[str, Any]] = [
    {"aggregate": {"agg": "count, sum(len), avg(len), stddev(len), min(len), p90(len)", "by": "host", "every": "1s"}},
    {"aggregate": {"agg": "count, distinct(host), distinct~(len), rate(len)", "every": "1s", "late": "3s"}},
    {"histogram": {"field": "len", "bins": "0..1500/100", "every": "1s"}},
]
# Steps of the clock of the rows: forward, back, and far away.
steps = st.one_of(st.integers(-SECOND // 2, SECOND), st.sampled_from([0, 5 * SECOND, 3600 * SECOND, -400 * SECOND]))


class SharedRun:
    """A collector of one flow with a function; each part of the rows has its own number of workers."""

    def __init__(self, folder: Path, function: dict[str, Any], workers: int) -> None:
        self.file, self.function = folder / "out.messages", function
        reader = FlowsReader(SCHEMA, str(self.file))
        self.collector = StreamCollector(
            reader, reader.text(self.text(workers)), self.place, lanes=1, workers=1, wait=True, finite=True
        )
        self.lane = InputLane("rows", self.collector)
        self.collector.start()

    def place(self, to: str, schema: Schema, pipeline: int) -> ByteWriter:
        return ByteWriter(to, schema)

    def text(self, workers: int) -> str:
        return f"flows: [{{name: f, functions: [{{filter: len > 0}}, {self.function}], workers: {workers}}}]"

    def rows(self) -> list[tuple[Any, ...]]:
        self.collector.close()
        for c in self.collector.rows():
            if c.stage != "function" or c.name == "f/windows":
                assert (c.taken, c.queued) == (c.given + c.filtered + c.dropped, 0), c
        return read(str(self.file)) if self.file.stat().st_size else []


def read(path: str) -> list[tuple[Any, ...]]:
    with open_records([path]) as records:
        return [tuple(b.get(c, r) for c in range(b.layout.n)) for b in records for r in range(b.rows)]


def block_of(rows: list[tuple[int, int, int, int]]) -> Block:
    t, out = START, []
    for step, length, host, flow in rows:
        t += step
        out.append({"ts": t, "len": length, "host": host, "flow_hash": flow})
    [block] = blocks_of_rows(SCHEMA, out)
    return block


def expected(function: dict[str, Any], block: Block) -> list[tuple[Any, ...]]:
    run = FunctionRun(function, SCHEMA)
    length = SCHEMA.index("len")
    picks = Picks.of(block.rows, [i for i in range(block.rows) if block.get(length, i)])
    assert not len(picks) or run.stage.write(block, picks)
    run.finish()
    return [tuple(b.get(c, r) for c in range(b.layout.n)) for b in run.blocks for r in range(b.rows)]


@settings(max_examples=25)
@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.tuples(steps, st.integers(0, 1600), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_any_number_of_workers_gives_what_one_function_gives(
    function: dict[str, Any], rows: list[Any], parts: list[tuple[int, int]]
) -> None:
    """The number of workers changes while windows are open."""
    block = block_of(rows)
    with tempfile.TemporaryDirectory() as folder:
        run = SharedRun(Path(folder), function, parts[0][1])
        for turn, piece in enumerate(cut(block, [size for size, _ in parts])):
            run.collector.change(run.text(parts[turn % len(parts)][1]))
            assert run.lane.write(piece)
        found = run.rows()
    assert found == expected(function, block)


def test_more_windows_than_slots_wait_for_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 windows of a millisecond with a row each, in one block, by three workers with short queues."""
    monkeypatch.setattr(collector, "QUEUE", 4096)
    random = Random(3)
    function = {"aggregate": {"agg": "count, sum(len)", "every": "1ms", "late": "0"}}
    block = block_of([(1_000_000, random.randrange(1, 100), 1, random.randrange(1000)) for _ in range(5_000)])
    run = SharedRun(tmp_path, function, 3)
    assert run.lane.write(block)
    found = run.rows()
    assert len(found) == 5_000
    assert found == expected(function, block)


def test_several_lanes_count_every_row(tmp_path: Path) -> None:
    """Lanes are behind one another by some rows; three workers; queues that never drop."""
    out = tmp_path / "out.messages"
    reader = FlowsReader(SCHEMA, str(out))
    words = "{agg: 'count, sum(len)', by: host, every: 1s, late: 20s}"
    text = f"flows: [{{name: f, functions: [{{aggregate: {words}}}], workers: 3}}]"
    run = StreamCollector(
        reader, reader.text(text), lambda to, schema, pipeline: ByteWriter(to, schema), lanes=2, workers=1, wait=False
    )
    run.start()
    random = Random(5)
    blocks = [
        block_of(
            [(SECOND // 100, random.randrange(1500), random.randrange(4), random.randrange(99)) for _ in range(900)]
        )
        for _ in range(2)
    ]

    def lane(number: int) -> None:
        for piece in cut(blocks[number], [50]):
            assert run.classifiers[number].write(piece)

    threads = [threading.Thread(target=lane, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    want: dict[tuple[int, int], list[int]] = {}
    for block in blocks:
        for row in range(block.rows):
            t, length, host = (block.get(SCHEMA.index(name), row) for name in ("ts", "len", "host"))
            entry = want.setdefault((t // SECOND * SECOND, host), [0, 0])
            entry[0] += 1
            entry[1] += length
    found = read(str(out))
    assert sorted(found) == sorted((*key, *value) for key, value in want.items())
