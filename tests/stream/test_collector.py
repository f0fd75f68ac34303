"""A collector whose flows change: every record is counted once at each stage, and what stays keeps its state."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from confluo_tools.core.kafka import producer as core
from confluo_tools.core.kafka.topic_sink import TopicSink
from confluo_tools.errors import ConfluoError
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kafka.client import library
from confluo_tools.kafka.message import shape_of
from confluo_tools.kafka.row_writer import WriterCounts
from confluo_tools.schema import Schema
from confluo_tools.stream.collector import StreamCollector
from confluo_tools.stream.flows_file import FlowsReader
from confluo_tools.stream.lane_input import InputLane
from confluo_tools.stream.stage_counts import StageCount

pytest.importorskip("confluent_kafka")
SCHEMA = Schema.from_dict(
    {
        "schema": "row",
        "fields": [
            {"name": "ts", "type": "time"},
            {"name": "len", "type": "u16"},
            {"name": "flow_hash", "type": "u32"},
        ],
    }
)
MOCK = {"test.mock.num.brokers": "1", "log_level": "0"}


class MockOutlet:
    """A topic of librdkafka's own broker, in this process."""

    linger = 1_000_000
    opened = 0

    def __init__(self, to: str, schema: Schema, pipeline: int) -> None:
        if to == "nowhere":
            raise ConfluoError("no broker answers", where=to)
        core.load(library())
        self._producer = core.KafkaProducer(MOCK)
        shape = shape_of(schema, "here", pipeline, 1)
        self.sink = TopicSink(self._producer, self._producer.topic(to), shape, 2, capacity=64, key=-1)
        MockOutlet.opened += 1

    @property
    def counts(self) -> WriterCounts:
        n, lost = self._producer.counts, self.sink.dropped + self.sink.refused
        return WriterCounts(self.sink.rows, n["records_acked"], n["acked"], lost, self._producer.queued)

    def report(self) -> None:
        pass

    def stop(self, number: int = 0) -> None:
        self.sink.stop()

    def close(self) -> None:
        self.sink.flush()
        while self._producer.flush(100):
            pass
        self._producer.poll()


class Run:
    """A collector with one lane."""

    def __init__(self, text: str, workers: int = 1) -> None:
        reader = FlowsReader(SCHEMA, "kafka://x/t")
        self.collector = StreamCollector(reader, reader.text(text), MockOutlet, lanes=1, workers=workers, wait=True)
        self.lane = InputLane("rows", self.collector)
        self.collector.start()

    def give(self, rows: list[tuple[int, int]]) -> None:
        """Rows (len, flow_hash)."""
        for block in blocks_of_rows(SCHEMA, [{"ts": 1, "len": n, "flow_hash": h} for n, h in rows]):
            assert self.lane.write(block)

    def total(self, stage: str, what: str, name: str = "") -> int:
        counts = [c for c in self.collector.rows() if c.stage == stage and (not name or c.name == name)]
        return sum(int(getattr(c, what)) for c in counts)


@pytest.fixture
def run() -> Iterator[Run]:
    yield (made := Run("flows: [{name: a, match: len < 50, functions: [{sample: 1/10}]}]"))
    made.collector.close()


def test_a_function_that_stays_keeps_its_state(run: Run) -> None:
    run.give([(1, 1)] * 15)
    assert run.collector.change("flows: [{name: a, match: len < 60, functions: [{sample: 1/10}]}]") == [
        "flow 'a': changed"
    ]
    run.give([(55, 1)] * 5)
    assert run.collector.change("flows: [{name: a, functions: [{filter: len > 0}, {sample: 1/10}]}]")
    run.give([(1, 1)])
    run.collector.change("flows: [{name: b}]")  # the queues drain
    assert run.total("function", "taken", "a/sample") == 21
    assert run.total("function", "given", "a/sample") == 3  # rows 0, 10 and 20


def test_an_outlet_that_stays_goes_on(run: Run) -> None:
    before = MockOutlet.opened
    run.collector.change("flows: [{name: b, match: len > 90}, {name: a, match: len < 60}]")
    run.collector.change("flows: [{name: a, match: len < 70}, {name: b, match: len > 80}]")
    assert MockOutlet.opened == before + 1
    run.collector.change("flows: [{name: a, match: len < 70, fields: len}]")  # other records: another sequence
    assert MockOutlet.opened == before + 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flows: [{name: a, match: lenn}]", "flow 'a': match: "),
        ("flows: [{name: a}, {name: b, to: nowhere}]", "nowhere: no broker answers"),
        ("flows: 1", "has no list 'flows'"),
    ],
)
def test_a_change_that_is_wrong_changes_nothing(run: Run, text: str, complaint: str) -> None:
    run.give([(1, 1)] * 20)
    with pytest.raises(ConfluoError, match=complaint):
        run.collector.change(text)
    run.give([(1, 1)] * 20)
    run.collector.change("flows: [{name: b}]")
    assert run.total("function", "taken", "a/sample") == 40
    assert run.total("function", "given", "a/sample") == 4


def test_every_row_is_counted_once_whatever_changes() -> None:
    random = Random(7)
    run = Run("flows: [{name: a}]", workers=2)
    flows = [
        "{name: a, match: len < 30, workers: 2}",
        "{name: a, match: len < 40, functions: [{sample: 1/3}]}",
        "{name: b, match: flow_hash < 5, fields: len}",
        "{name: c, match: len > 70, worker: slow, functions: [{filter: len > 80}, {filter: len > 90}]}",
        "{name: d, to: kafka://x/other}",
    ]
    given = 0
    for _ in range(25):
        n = random.randrange(300)
        run.give([(random.randrange(100), random.randrange(10)) for _ in range(n)])
        given += n
        chosen = random.sample(flows, random.randrange(1, 5))
        names = [text.split(",")[0].strip("{}") for text in chosen]
        if len(set(names)) == len(names):
            run.collector.change(f"flows: [{', '.join(chosen)}]")
    run.collector.close()
    counts = run.collector.rows()
    for c in counts:
        assert c.taken == c.given + c.filtered + c.dropped + c.queued, c
        assert c.queued == 0
    assert sum_of(counts, "receive", "taken") == sum_of(counts, "classify", "taken") == given
    in_lanes = sum(c.filtered for c in counts if c.name == "a/sample")
    assert sum_of(counts, "classify", "given") - in_lanes == sum_of(counts, "queue", "taken")
    out = sum_of(counts, "queue", "given") - sum_of(counts, "function", "filtered") + in_lanes
    assert out == sum_of(counts, "send", "taken") == sum_of(counts, "deliver", "given")
    assert {c.name for c in counts if c.stage == "function"} >= {"a/sample", "c/filter", "c/filter.2"}


def sum_of(counts: list[StageCount], stage: str, what: str) -> int:
    return sum(int(getattr(c, what)) for c in counts if c.stage == stage)


def test_records_that_fit_no_queue_are_refused() -> None:
    fields = [{"name": f"f{i}", "type": "bytes(60000)"} for i in range(20)]
    schema = Schema.from_dict({"schema": "row", "fields": [{"name": "ts", "type": "time"}, *fields]})
    reader = FlowsReader(schema, "kafka://x/t")
    run = StreamCollector(
        reader, reader.text("flows: [{name: a, fields: ts}]"), MockOutlet, lanes=1, workers=1, wait=True
    )
    run.start()
    with pytest.raises(ConfluoError, match="flow 'b': the queues are too small for these rows"):
        run.change("flows: [{name: b}]")
    run.close()
