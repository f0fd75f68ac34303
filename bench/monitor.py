"""Triggers every millisecond over live data: `.venv/bin/python bench/monitor.py [SECONDS [ROWS_PER_MS]]`.

Bars: one pass over 1,000 triggers, each with a filter and a COUNT of its own, < 70 us, and < 4 % of a core at a period
of 1 ms (the paper's figures; the public original takes 3.5 ms and 51-70 %).  Records of 64 bytes are written by another
process; addresses of a /24 and ten ports; filters are the five templates of the paper's figure 8 (reference: section
3.4).  Columns: `pass` is what judging all triggers takes; `tick_share` that as a share of a core; `row_ns` is what
keeping all aggregates up to date takes for each row, filters included; `feed_share` the share of a core for that;
`cpu_share` the whole process: the loop, its sleep and finding new rows too.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import time
from typing import Any

from timing import header, row

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.monitor.alerts import AlertBlocks
from confluo_tools.monitor.engine import TriggerEngine
from confluo_tools.monitor.language import parse_trigger
from confluo_tools.monitor.watch import LiveWatch, LogWatch
from confluo_tools.schema import builtin

SCHEMA = builtin("header64")
NET = 0x0A000000
PORTS = range(1, 11)
MS = 10**6


def condition(i: int, rng: random.Random) -> str:
    """A filter like the i-th of q1 .. q5."""
    a, b = (f"10.0.0.{rng.randrange(256)}" for _ in range(2))
    p, q = rng.choice(PORTS), rng.choice(PORTS)
    return [
        f"src_ip == {a} and dst_ip == {b}",
        f"dst_ip == {a}",
        f"src_ip == {a} and dst_port == {p}",
        f"src_ip == {a} and dst_ip == {b} and src_port == {p} and dst_port == {q}",
        f"src_ip == {a} or dst_ip == {a}",
    ][i % 5]


def write(path: str, per_ms: int, seconds: float) -> None:
    """The other process: a number of rows each millisecond, with the current time."""
    rng = random.Random(3)
    layout, n = SCHEMA.layout, per_ms * 64
    columns: list[Any] = [None] * layout.n

    def put(name: str, code: str, values: list[int]) -> None:
        columns[layout.index(name)] = struct.pack(f"<{len(values)}{code}", *values)

    put("src_ip", "I", [NET + rng.randrange(256) for _ in range(n)])
    put("dst_ip", "I", [NET + rng.randrange(256) for _ in range(n)])
    put("src_port", "H", [rng.choice(PORTS) for _ in range(n)])
    put("dst_port", "H", [rng.choice(PORTS) for _ in range(n)])
    put("len", "I", [rng.randrange(64, 1500) for _ in range(n)])
    ts, end, turn = layout.index("ts"), time.monotonic() + seconds, 0
    widths = [layout.describe(i)[2] * layout.describe(i)[3] for i in range(layout.n)]
    with multilog.open(path) as log, log.writer() as writer:
        while time.monotonic() < end:
            if per_ms:
                at = turn % 64 * per_ms
                parts = [
                    None if c is None else c[at * w : (at + per_ms) * w] for c, w in zip(columns, widths, strict=True)
                ]
                parts[ts] = struct.pack("<q", time.time_ns()) * per_ms
                writer.append(Block.wrap(layout, per_ms, parts))
            turn += 1
            time.sleep(0.001)


def measure(name: str, texts: list[str], per_ms: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "live.ml")
        multilog.create(path, SCHEMA).close()
        child = os.fork()
        if child == 0:
            write(path, per_ms, seconds + 0.7)
            os._exit(0)
        time.sleep(0.3)
        with multilog.open(path, readonly=True) as log:
            engine = TriggerEngine(SCHEMA, [parse_trigger(t, SCHEMA) for t in texts], lag=10 * MS)
            watch = LogWatch(log, engine, AlertBlocks(engine), lambda tick, block: None)
            watch.begin(time.time_ns() - 10 * MS)
            live = LiveWatch(watch, 10 * MS)
            passes: list[int] = []
            feeding = [0, 0]
            tick, take = engine.tick, engine.take

            def timed_tick(t: int) -> Any:
                start = time.perf_counter_ns()
                events = tick(t)
                passes.append(time.perf_counter_ns() - start)
                return events

            def timed_take(*args: Any) -> int:
                start = time.perf_counter_ns()
                n = take(*args)
                feeding[0] += time.perf_counter_ns() - start
                feeding[1] += n
                return n

            engine.tick, engine.take = timed_tick, timed_take  # type: ignore[method-assign, assignment]
            begin, cpu = time.perf_counter_ns(), time.process_time_ns()
            while time.perf_counter_ns() - begin < seconds * 1e9:
                pause = live.step()
                if pause > 0:
                    time.sleep(pause)
            wall, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
        os.waitpid(child, 0)
    passes.sort()
    n = len(passes)
    row(
        name,
        len(texts),
        per_ms,
        n,
        passes[n // 2] / 1e3,
        passes[n * 99 // 100] / 1e3,
        sum(passes) / wall,
        feeding[0] / max(feeding[1], 1),
        feeding[0] / wall,
        cpu / wall,
        watch.events,
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    per_ms = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    rng = random.Random(1)
    header(
        "case",
        "triggers",
        "rows_per_ms",
        "ticks",
        "pass_us_p50",
        "pass_us_p99",
        "tick_share",
        "row_ns",
        "feed_share",
        "cpu_share",
        "alerts",
    )
    for n in (1, 10, 100, 1000):
        texts = [f"t{i}: count > 3 over 10ms every 1ms where {condition(i, rng)}" for i in range(n)]
        measure("live", texts, per_ms, seconds)
    measure("idle", texts, 0, seconds)
    mixed = [
        f"m{i}: {c} over 10ms every 1ms where {condition(i, rng)}"
        for i, c in enumerate(["sum(len) > 4k", "avg(len) > 1k and count > 2", "max(len) > 1400", "rate > 900"] * 250)
    ]
    measure("mixed", mixed, per_ms, seconds)
    measure("by key", ["k: sum(len) > 60k over 100ms every 1ms by src_ip, dst_port"], per_ms, seconds)
    measure(
        "slow",
        ["d: distinct(src_ip) > 10 over 100ms every 10ms", "p: p99(len) > 1490 over 100ms every 10ms"],
        per_ms,
        seconds,
    )


if __name__ == "__main__":
    main()
