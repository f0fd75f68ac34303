"""Snapshots: what they cost the writer, how long a log is frozen, how long many hosts take.

usage: bench/snapshot.py [SECONDS]     (of each measurement; 1)

Bars: a snapshot every 1 ms lowers append throughput by less than 2 %; freeze to thaw of a local log below 20 us; for
1, 8, 32 and 128 logs over pipes the paper has 180 us for few and 1.2 ms for 128, connections excluded (section 5.1,
on as many machines; here all processes share the cores of one); the first row of a remote query comes within one
round trip plus the time to the first match.

`append`: one writer of 64-byte rows in a process of its own, alone and with a coordinator that takes a snapshot every
1 ms, in turn: ns a row, and by how much snapshots slow it (median of the rounds' ratios).
`local`: Cut.snap of logs with active writers: freeze to thaw in microseconds.
`pipes`: one log behind each pair of pipes, with the server of confluo-serve in a process of its own: microseconds until
all had frozen, and until all had thawed.
`first row`: milliseconds from the question to the first row, through a pipe that delays each way by 10 ms.

Prints TSV: what, of how many, the median, the 99th percentile and the maximum of the measurements.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.freeze import LogFreeze
from confluo_tools.core.multilog.lane import append_repeatedly
from confluo_tools.core.multilog.snapshot_round import SnapshotRound
from confluo_tools.expr import compile as compile_expr
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import parse
from confluo_tools.remote.connect import Connection
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest
from confluo_tools.remote.server import QueryServer
from confluo_tools.schema import Field, Schema
from remote_lab import tool

ROW = Schema("row", [Field("ts", "time"), *(Field(f"f{i}", "u64") for i in range(7))])
BATCH, ROWS = 1024, 4_000_000
ROUNDS = 7


def block() -> Block:
    chance = np.random.default_rng(1)
    return Block.wrap(ROW.layout, 4096, [chance.integers(0, 256, 4096 * 8, np.uint8).tobytes() for _ in ROW.columns])


def figures(what: str, n: int, values: Sequence[float]) -> None:
    """A line: median, 99th percentile, largest."""
    ordered = sorted(values)
    row(what, n, float(median(ordered)), float(ordered[len(ordered) * 99 // 100]), float(ordered[-1]), len(ordered))


def forked(work: object, *args: object) -> int:
    """The pid of a child that does this."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)  # type: ignore[operator]
    finally:
        os._exit(0)


def snapshots(path: Path, seconds: float) -> None:
    """One every millisecond."""
    cut = LogFreeze([multilog.open(path).control])
    due = time.perf_counter()
    while True:
        cut.snap()
        due += 0.001
        time.sleep(max(due - time.perf_counter(), 0))


def appended(path: Path, data: Block, frozen: bool) -> float:
    """ns a row."""
    shutil.rmtree(path, ignore_errors=True)
    log = multilog.create(path, ROW)
    with log.writer() as writer:
        append_repeatedly(writer, data, 64, BATCH)
        child = forked(snapshots, path, 0.0) if frozen else 0
        try:
            time.sleep(0.05)
            start = time.perf_counter()
            append_repeatedly(writer, data, ROWS // BATCH, BATCH)
            return (time.perf_counter() - start) * 1e9 / ROWS
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def write_on(path: Path, data: Block) -> None:
    with multilog.open(path).writer() as writer:
        while True:
            append_repeatedly(writer, data, 8, 32)
            time.sleep(0.0005)


def served(path: Path) -> tuple[int, int, int]:
    """(pid, to write, to read): a server with this log open, waiting for a FREEZE."""
    there, back = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(there[1])
            os.close(back[0])
            QueryServer(there[0], back[1]).run()
        finally:
            os._exit(0)
    os.close(there[0])
    os.close(back[1])
    os.write(there[1], frame_codec.hello("bench") + frame_codec.frame(frame_codec.OPEN, {"logs": [str(path)]}))
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(back[0], 1)
    kind, size = frame_codec.parse_head(os.read(back[0], 8))
    assert kind == frame_codec.OPENED
    os.read(back[0], size)
    return pid, there[1], back[0]


def through_pipes(folder: Path, n: int, seconds: float) -> None:
    paths = [folder / f"p{i}.ml" for i in range(n)]
    for path in paths:
        if not path.exists():
            multilog.create(path, ROW).writer().close()
    peers = []
    for path in paths:
        pid, out, back = served(path)
        os.set_inheritable(out, False)
        peers.append((pid, out, back))
    around = SnapshotRound(None, [(out, back) for _, out, back in peers])
    frozen, total = [], []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        answers, _ = around.snap(1_000_000_000)
        if not all(a.held for a in answers):
            continue
        frozen.append(around.freeze_ns / 1000)
        total.append(around.total_ns / 1000)
        time.sleep(0.001)
    figures("pipes, frozen us", n, frozen)
    figures("pipes, thawed us", n, total)
    for pid, out, back in peers:
        os.close(back)
        os.kill(pid, signal.SIGKILL)  # later children hold its pipes, too
        os.waitpid(pid, 0)
        os.close(out)


def first_rows(folder: Path, path: Path, n: int) -> None:
    took = []
    for _ in range(n):
        address = parse(f"slow10:{path}")
        assert address is not None
        peer = Connection(address, tool(folder))
        peer.greet()
        reader = RemoteReader(peer, QueryRequest("f0 >= 0"))
        start = time.perf_counter()
        reader.ask()
        reader.ready()
        next(iter(reader.select(compile_expr("f0 >= 0", reader.schema))))
        took.append((time.perf_counter() - start) * 1000)
        reader.close()
    figures("first row over 20 ms, ms", 1, took)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    data = block()
    header("what", "logs", "median", "p99", "largest", "measurements")
    try:
        path = folder / "a.ml"
        alone, both = [], []
        for i in range(ROUNDS + 1):
            one, two = appended(path, data, False), appended(path, data, True)
            if i:
                alone.append(one)
                both.append(two)
        figures("append alone, ns a row", 1, alone)
        figures("append, a snapshot every ms, ns a row", 1, both)
        row("slower by %", 1, 100 * (median(b / a for a, b in zip(alone, both, strict=True)) - 1), "-", "-", ROUNDS)
        first_rows(folder, path, 5)
        for n in (1, 8, 64):
            paths = [folder / f"l{i}.ml" for i in range(n)]
            for one_path in paths:
                if not one_path.exists():
                    multilog.create(one_path, ROW)
            writers = [forked(write_on, p, data) for p in paths[:2]]
            cut = LogFreeze([multilog.open(p).control for p in paths])
            frozen = []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                if cut.snap():
                    frozen.append(cut.ns / 1000)
                time.sleep(0.0005)
            figures("local, freeze to thaw us", n, frozen)
            for pid in writers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for n in (1, 8, 32, 128):
            through_pipes(folder, n, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
