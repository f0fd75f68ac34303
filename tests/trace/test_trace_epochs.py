"""When epochs end: by the clock, by records, in silence.  The prober is a list; nothing is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from confluo_tools.core.block.block import Block
from confluo_tools.core.trace.flow_table import NumberMap
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import builtin
from confluo_tools.trace import engine
from confluo_tools.trace.token_bucket import TokenBucket
from confluo_tools.trace.traceroute_sockets import Allowed

SCHEMA = builtin("path")
SECOND = 1_000_000_000


class Prober:
    """Every traceroute ends at once, after one hop."""

    room, holding = True, 0

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("probes", "answers", "forged", "stray", "duplicates", "bad", "unsent"), 0)
        self.started: list[int] = []

    def start(self, which: int, *words: object) -> bool:
        self.started.append(which)
        return True

    def finished(self) -> list[tuple[int, int, list[int], bytes, str, int, int]]:
        done = [(which, 1, [7], bytes(16), "there", 0, 1000) for which in self.started]
        self.started.clear()
        return done

    def run(self, milliseconds: int) -> None:
        time.sleep(min(milliseconds, 5) / 1000)

    def reach(self, to: bytes) -> int:
        return 0

    def forget(self) -> None:
        pass


def flows(ts: int, *ports: int) -> Block:
    row = {"ts": ts, "ip_version": 4, "proto": 6, "src_ip": 0x0A000001, "dst_ip": 0x0A000002, "dst_port": 443}
    return block_of_rows(SCHEMA, [row | {"src_port": port, "lost": 1} for port in ports])


@contextmanager
def running(epoch: int, *, rate: float = 1e6, since: int = -(1 << 62)) -> Iterator[tuple[Any, list[int], list[str]]]:
    """(engine, numbers of hops that it has written, what it has said) with an input that stays open."""
    hops: list[int] = []
    said: list[str] = []

    def write(block: Block) -> None:
        hops.extend(block.get(block.layout.index("hops"), i) for i in range(block.rows))

    it = engine.TraceEngine(
        TokenBucket(rate, 1 if rate < 1 else 1000),
        Allowed(also=("foreign",)),
        None,
        SCHEMA,
        write,
        said.append,
        epoch=epoch,
        healthy=False,
        max_flows=100,
        tors=NumberMap(),
        tors_known=False,
        since=since,
    )
    it.prober = Prober()  # type: ignore[assignment]
    it.schema_of(SCHEMA.layout, "test")
    thread = threading.Thread(target=it.run)
    thread.start()
    try:
        yield it, hops, said
    finally:
        it.stop()
        thread.join(30)
        assert not thread.is_alive()


def until(hops: list[int], n: int) -> None:
    end = time.monotonic() + 30
    while len(hops) < n:
        assert time.monotonic() < end, hops
        time.sleep(0.002)


def test_an_epoch_that_was_over_when_its_record_was_read() -> None:
    """As on a busy machine; once its records stayed in memory until another one came, or for ever."""
    with running(SECOND // 5) as (it, hops, said):
        it.put(flows((time.time_ns() // (SECOND // 5) - 1) * (SECOND // 5), 1))  # the epoch before
        until(hops, 1)
        figures = it.figures()
    assert (hops, said) == ([1], [])
    assert figures["records read"] == 1


def test_flows_that_are_too_late_to_be_traced_are_counted() -> None:
    with running(100 * SECOND, rate=0.001) as (it, hops, said):
        it.put(flows((time.time_ns() // (100 * SECOND) - 1) * 100 * SECOND, 1, 2, 3))
        until(hops, 3)
        assert it.figures()["read after their epoch"] == 3
        assert it.figures()["capped"] in (0, 2)  # until the epoch is put away
    assert sorted(hops) == [0, 0, 1]
    assert said == ["2 flows were not traced: their records were read after the end of their epoch"]


def test_an_epoch_of_another_time_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a year ago in a pipe that stays open."""
    monkeypatch.setattr(engine, "QUIET", SECOND // 20)
    with running(SECOND // 20) as (it, hops, said):
        it.put(flows(1_700_000_000 * SECOND, 1))
        until(hops, 1)
        it.put(flows(1_700_000_000 * SECOND + SECOND, 1))
        until(hops, 2)
    assert said == []


def test_records_before_the_first_time_are_counted() -> None:
    since = 1_700_000_000 * SECOND
    with running(SECOND, since=since) as (it, hops, _):
        it.put(flows(since - 1, 1, 2))
        it.put(flows(since, 3))
        it.put(flows(since - 1, 4))
        it.put(None)
        until(hops, 1)
        assert it.figures()["before --since"] == 3
