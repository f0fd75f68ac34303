"""A log that is written and watched by clocks of our own."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluo_tools import multilog
from confluo_tools.monitor.alerts import AlertBlocks, AlertLog
from confluo_tools.monitor.engine import TriggerEngine
from confluo_tools.monitor.language import parse_trigger
from confluo_tools.monitor.watch import LiveWatch, LogWatch
from confluo_tools.schema import builtin
from monitor_writer import rows_of

MS, SECOND = 10**6, 10**9
START = 1_700_000_000 * SECOND
TEXTS = [
    "a: count > 5 over 10ms every 1ms",
    "b: sum(len) > 1500 over 20ms every 2ms by dst_port clear count < 1 repeat 15ms",
    "c: count < 1 over 12ms every 1ms for 9ms rearm 40ms",
    "d: distinct(dst_port) > 2 over 10ms every 5ms by src_ip",
    "e: count < 1 over 30ms every 3ms by src_ip",
]
END = START + 1500 * MS


def bursts(seed: int, most: int = 1400) -> list[tuple[int, int, int, int]]:
    """(ts, len, dst_port, src_ip) in bursts with pauses."""
    rng = random.Random(seed)
    rows, t = [], START + 5 * MS
    while t < START + most * MS:
        for _ in range(rng.randrange(1, 40)):
            rows.append((t, rng.randrange(1500), rng.choice([80, 443, 22, 53]), rng.choice([1, 2, 3])))
            t += rng.randrange(0, 3 * MS)
        t += rng.randrange(5, 90) * MS
    return rows


def kept(path: Path) -> list[tuple[Any, ...]]:
    """The alerts of a log, in its order."""
    out = []
    with multilog.open(path, readonly=True) as found:
        at = [found.schema.index(n) for n in ("ts", "trigger", "event", "key_id", "value", "rows", "key")]
        for block in found.blocks():
            out += [tuple(str(block.get(i, row)) for i in at) for row in range(block.rows)]
    return out


class TornError(Exception):
    """A monitor died in the middle of a tick."""


class Monitor:
    """What the command does for a replay, in this process.  ``tear``: alerts of a tick before it ends."""

    def __init__(self, log: Path, alerts: Path, since: int = START, texts: Sequence[str] = TEXTS) -> None:
        self.tear = -1
        self.source = multilog.open(log, readonly=True)
        triggers = [parse_trigger(t, self.source.schema) for t in texts]
        self.engine = TriggerEngine(self.source.schema, triggers, seed=self.source.uuid)
        self.alerts = AlertLog(str(alerts), self.source)
        self.watch = LogWatch(self.source, self.engine, AlertBlocks(self.engine), self.keep)
        earlier = self.alerts.earlier(triggers)
        self.watch.begin(since, earlier if earlier is not None and earlier.tick >= since else None)

    def keep(self, tick: int, block: Any) -> None:
        if self.tear >= 0:
            if self.tear:
                self.alerts.append(block.slice(0, min(self.tear, block.rows)))
            raise TornError
        self.alerts.append(block)

    def die(self) -> None:
        """Let go of everything and tidy up nothing."""
        if self.alerts._writer is not None:
            self.alerts._writer.stop()
        os.close(self.alerts._lock)
        self.source.close()


class Clocks:
    """A wall clock that is set, and one that is not."""

    def __init__(self) -> None:
        self.now, self.up = START, 10**15

    def go(self, ns: int) -> None:
        self.now += ns
        self.up += ns


class Lab:
    """A log that is written and watched by such clocks."""

    def __init__(self, folder: Path, texts: list[str]) -> None:
        self.log = multilog.create(folder / "x.ml", builtin("header64"))
        self.writer = self.log.writer(ahead=-1)
        self.source = multilog.open(folder / "x.ml", readonly=True)
        self.engine = TriggerEngine(
            self.source.schema, [parse_trigger(t, self.source.schema) for t in texts], lag=10 * MS
        )
        self.told: list[tuple[int, str, int]] = []
        self.said: list[str] = []
        self.clocks = Clocks()
        self.watch = LogWatch(self.source, self.engine, AlertBlocks(self.engine), self.tell)
        self.watch.begin(START)
        self.live = LiveWatch(
            self.watch, 10 * MS, clock=lambda: self.clocks.now, steady=lambda: self.clocks.up, note=self.said.append
        )

    def tell(self, tick: int, block: Any) -> None:
        schema = builtin("alert")
        for row in range(block.rows):
            name = block.get(schema.index("trigger"), row).rstrip(b"\0").decode()
            self.told.append((tick - START, name, block.get(schema.index("event"), row)))

    def add(self, ts: int, n: int = 1) -> None:
        self.writer.append(rows_of([ts] * n, [100] * n, [80] * n))

    def run(self, ms: int, rows: bool = True, skew: int = 0) -> None:
        """Write one row per millisecond for some milliseconds."""
        for _ in range(ms):
            self.clocks.go(MS)
            if rows:
                self.add(self.clocks.now + skew)
            self.live.step()

    def close(self) -> None:
        self.writer.close()
        self.source.close()
        self.log.close()
