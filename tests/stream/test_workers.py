"""Classifiers and workers: each row goes to its flow and its worker once, and a five-tuple keeps its order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.stream.classifier import Classifier, FlowRoute
from confluo_tools.core.stream.flow_worker import FlowEnd, FlowWorker
from confluo_tools.core.stream.stage import WriterStage
from confluo_tools.expr import compile
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "schema": "packet",
        "fields": [
            {"name": "ts", "type": "time"},
            {"name": "len", "type": "u16"},
            {"name": "flow_hash", "type": "u32"},
        ],
    }
)
BATCH = SCHEMA.project(["flow_hash", "ts"])  # a batch has the columns that its flow needs, in any order


class Want(NamedTuple):
    """A flow of a test: its expression; whether its rows go on to the next flows; the numbers of its workers."""

    match: str
    goes_on: bool
    workers: Sequence[int]


class Pipes:
    """Lanes, workers, and what came out: {(flow, worker): [(flow_hash, ts)]}."""

    def __init__(self, wants: Sequence[Want], lanes: int, workers: int, *, queue: int, wait: bool) -> None:
        self.workers = [FlowWorker(lanes, queue) for _ in range(workers)]
        self.out: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.ends: list[WriterStage] = []
        for number, worker in enumerate(self.workers):
            worker.use([self._end(flow, number) if number in w.workers else None for flow, w in enumerate(wants)])
        self.lanes = [Classifier(SCHEMA.layout, wait=wait) for _ in range(lanes)]
        for lane, classifier in enumerate(self.lanes):
            classifier.use(
                [
                    FlowRoute(
                        SCHEMA.layout,
                        BATCH.layout,
                        flow,
                        [self.workers[n] for n in w.workers],
                        lane,
                        program=compile(w.match, SCHEMA).program if w.match else None,
                        goes_on=w.goes_on,
                        hash_column=SCHEMA.index("flow_hash"),
                    )
                    for flow, w in enumerate(wants)
                ]
            )

    def _end(self, flow: int, worker: int) -> FlowEnd:
        rows = self.out.setdefault((flow, worker), [])

        def write(block: Block) -> None:
            rows.extend((int(block.get(0, i)), int(block.get(1, i))) for i in range(block.rows))

        self.ends.append(WriterStage(BATCH.layout, write))
        return FlowEnd(BATCH.layout, self.ends[-1])

    def run(self, parts: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """Rows (ts, len, flow_hash), one part for each lane, all at the same time."""
        with ExitStack() as stack:
            for worker in self.workers:
                thread = threading.Thread(target=worker.run)
                thread.start()
                stack.callback(thread.join)
                stack.callback(worker.drain)
            threads = [threading.Thread(target=self._feed, args=(n, part)) for n, part in enumerate(parts)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert all(end.problem is None for end in self.ends)
        assert all(queue.rows == queue.batches == 0 for worker in self.workers for queue in worker.queues)

    def _feed(self, lane: int, part: Sequence[tuple[int, int, int]]) -> None:
        for block in blocks_of_rows(SCHEMA, [{"ts": t, "len": n, "flow_hash": h} for t, n, h in part]):
            for start in range(0, block.rows, 700):
                assert self.lanes[lane].write(block.slice(start, min(700, block.rows - start)))


FLOWS = st.lists(
    st.builds(
        Want,
        st.sampled_from(["", "len > 30", "len < 60", "flow_hash == 3", "len > 30 and not flow_hash == 5", "len > 999"]),
        st.booleans(),
        st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(FLOWS, st.integers(1, 3), st.integers(0, 2**32), st.sampled_from([4096, 1 << 16]))
def test_each_row_is_in_the_first_flow_that_it_matches(wants: list[Want], lanes: int, seed: int, queue: int) -> None:
    random = Random(seed)
    # A five-tuple is in one lane, as the kernel shares packets by flow.
    parts = [
        [(t, random.randrange(100), random.randrange(7) * lanes + lane) for t in range(900)] for lane in range(lanes)
    ]
    pipes = Pipes(wants, lanes, 3, queue=queue, wait=True)
    pipes.run(parts)
    expected: dict[tuple[int, int], list[tuple[int, int]]] = {key: [] for key in pipes.out}
    unmatched = 0
    for part in parts:
        for t, n, h in part:
            found = False
            for flow, want in enumerate(wants):
                if want.match and not eval(want.match, {}, {"len": n, "flow_hash": h}):  # Python reads them the same
                    continue
                found = True
                expected[flow, want.workers[h % len(want.workers)]].append((h, t))
                if not want.goes_on:
                    break
            unmatched += not found
    for key, rows in pipes.out.items():
        assert sorted(rows) == sorted(expected[key])
        for h in {h for h, _ in rows}:
            assert [t for other, t in rows if other == h] == [t for other, t in expected[key] if other == h]
    assert sum(c.unmatched for c in pipes.lanes) == unmatched
    assert sum(c.taken for c in pipes.lanes) == 900 * lanes
    for flow in range(len(wants)):
        routes = [c.routes[flow] for c in pipes.lanes]
        total = sum(len(rows) for (number, _), rows in pipes.out.items() if number == flow)
        assert sum(r.taken for r in routes) == sum(r.given for r in routes) == total
        assert sum(r.dropped for r in routes) == 0


def test_a_full_queue_drops_and_counts_by_flow() -> None:
    wants = [Want("len < 50", False, [0]), Want("", False, [1])]
    pipes = Pipes(wants, 1, 2, queue=4096, wait=False)
    rows = [{"ts": t, "len": t % 100, "flow_hash": t} for t in range(5000)]
    [block] = blocks_of_rows(SCHEMA, rows)
    thread = threading.Thread(target=pipes.workers[1].run)  # worker 0 is away
    thread.start()
    for start in range(0, 5000, 50):
        assert pipes.lanes[0].write(block.slice(start, 50))
    late, other = pipes.lanes[0].routes
    queued = pipes.workers[0].queues[0].rows
    assert (late.taken, other.taken) == (2500, 2500)
    assert late.given + late.dropped == 2500
    assert late.dropped > 2000
    assert 0 < queued == late.given
    assert pipes.workers[0].queues[0].free < 4096
    pipes.workers[1].drain()
    thread.join()
    pipes.workers[0].drain()
    pipes.workers[0].run()
    assert [len(pipes.out[key]) for key in ((0, 0), (1, 1))] == [late.given, other.given]
    assert pipes.workers[0].queues[0].free == 4096


def test_a_lane_that_waits_for_room_can_be_stopped() -> None:
    pipes = Pipes([Want("", False, [0])], 1, 1, queue=4096, wait=True)
    [block] = blocks_of_rows(SCHEMA, [{"ts": t, "len": 1, "flow_hash": 1} for t in range(5000)])
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(pipes.lanes[0].write(block)))
    thread.start()
    pipes.lanes[0].stop()
    thread.join()
    [route] = pipes.lanes[0].routes
    assert ended == [False]
    assert route.taken == 5000 == route.given + route.dropped
    assert route.given == pipes.workers[0].queues[0].rows


def test_wrong_columns_are_refused() -> None:
    worker = FlowWorker(1, 1 << 16)
    other = SCHEMA.project(["ts", "len"])
    with pytest.raises(ValueError, match="column flow_hash is missing"):
        FlowRoute(other.layout, BATCH.layout, 0, [worker], 0)
    with pytest.raises(ValueError, match="the hash is not a u32 column"):
        FlowRoute(SCHEMA.layout, BATCH.layout, 0, [worker], 0, hash_column=0)
    with pytest.raises(ValueError, match="the program is for other columns"):
        FlowRoute(other.layout, other.layout, 0, [worker], 0, program=compile("len > 1", SCHEMA).program)
    with pytest.raises(ValueError, match="the block has other columns"):
        Classifier(SCHEMA.layout, wait=True).write(Block(other.layout))
