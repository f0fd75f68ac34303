"""Answers of flows do not depend on the number of their workers: a real capture, and the same rows counted here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluo_tools.formats.pcap import open_captures
from confluo_tools.inputs.open import open_records
from confluo_tools.kafka.byte_writer import ByteWriter
from confluo_tools.schema import Schema
from confluo_tools.stream.collector import StreamCollector
from confluo_tools.stream.flows_file import FlowsReader
from confluo_tools.stream.lane_input import InputLane
from running import CAMPUS

FLOWS = """flows:
- name: tenth
  to: kafka://here/tenth
  fields: ts,len
  functions: [filter: len > 100, sample: 1/10]
  workers: %d
  continue: true
- name: even
  to: kafka://here/even
  match: tcp
  functions: [sample: {rate: 100/s}]
  workers: %d
  continue: true
- name: talkers
  to: kafka://here/talkers
  functions: [aggregate: {agg: 'count, sum(len), distinct(dst_ip)', by: src_ip, every: 1s, late: 10s}, sample: 1/3]
  workers: %d
  continue: true
- name: sizes
  to: kafka://here/sizes
  functions: [histogram: {field: len, bins: 0..1500/100, every: 1s, late: 10s}]
  workers: %d
"""


def answers(folder: Path, workers: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each flow, sorted."""
    folder.mkdir()

    def open_place(to: str, schema: Schema, pipeline: int) -> ByteWriter:
        return ByteWriter(str(folder / f"{to.rpartition('/')[2]}.{pipeline}.messages"), schema)

    with open_captures([str(CAMPUS)]) as captures:
        reader = FlowsReader(captures.schema, "kafka://here/rows")
        flows = reader.text(FLOWS % ((workers,) * 4))
        collector = StreamCollector(reader, flows, open_place, lanes=1, workers=workers, wait=True, finite=True)
        lane = InputLane("rows", collector)
        collector.start()
        for block in captures:
            assert lane.write(block)
        collector.close()
        files = {flow.name: [str(p) for p in folder.glob(f"{flow.name}.*")] for flow in flows}
    assert len(files["even"]) == len(files["tenth"]) == workers
    return {name: rows(found) for name, found in files.items()}


def rows(paths: list[str]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for path in paths:
        with open_records([path]) as records:
            for block in records:
                found += [tuple(block.get(c, r) for c in range(block.layout.n)) for r in range(block.rows)]
    return sorted(found)


def test_one_two_and_four_workers_give_the_same(tmp_path: Path) -> None:
    one, two, four = (answers(tmp_path / str(n), n) for n in (1, 2, 4))
    assert one == two == four
    assert all(len(found) > 5 for found in one.values()), {name: len(found) for name, found in one.items()}
    with open_captures([str(CAMPUS)]) as captures:
        columns = [captures.schema.index(name) for name in ("ts", "len")]
        packets = [tuple(b.get(c, r) for c in columns) for b in captures for r in range(b.rows)]
    assert one["tenth"] == sorted([p for p in packets if p[1] > 100][::10])
