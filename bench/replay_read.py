"""Reading back a day of a busy server: a recording of 100 million packets of signals.  Prints TSV.

    .venv/bin/python bench/replay_read.py [--packets 100_000_000]

The recording has the rows that the writers of the recorder make for the requests and responses of 64 connections at a
time, with jitter, copied to other clients and times until there are enough packets.  `one` reads one connection, as
`confluo-replay --flow` does; `all` collects the rows of all connections and says which ones can be replayed.  Wall
seconds, the best of three, and the peak of memory, each in a process of its own.  `count` and `calls` are
`confluo-query --count`, and the number of calls by call.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from timing import ROOT, header, row

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.recording import FiveTuple, RunWriter, read_ends
from confluo_tools.replay.recording.kinds import Call, Kind, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter
from confluo_tools.schema import Schema, builtin

AT_ONCE, EXCHANGES, RESPONSE = 64, 300, 8  # connections, of each; packets of a response
CLIENT, SERVER = "10.2.0.1", "10.0.0.1"
QUERIES = {"count": ["--count"], "calls": ["kind == call", "--agg", "sum(count)", "--by", "call"]}
START = 1_760_000_000 * 10**9
DAY = 86_400 * 10**9


def connection(number: int, rng: random.Random, rows: list[dict[str, Any]]) -> int:
    """Append the rows of the server's end; returns the number of its packets."""
    place = address_columns("src", SERVER) | address_columns("dst", CLIENT)
    place |= {"src_port": 8080, "dst_port": number, "proto": 6, "cookie": number + 1, "role": Role.SERVER}

    def emit(row: dict[str, Any]) -> None:
        rows.append({**place, "count": 1, **row})

    events, got, sent = RunWriter(emit), PacketRunWriter(Kind.RX, emit), PacketRunWriter(Kind.TX, emit)
    ts, tx, rx, n, identity = START + rng.randrange(10**7), 0, 0, 0, rng.randrange(1 << 16)
    emit({"kind": Kind.BEGIN, "ts": ts})
    for name in ("began", "phase", "isn", "mss", "wscale", "sack", "timestamps"):
        emit({"kind": Kind.SETTING, "ts": ts, "name": name, "value": rng.randrange(1 << 30)})
    for _ in range(EXCHANGES):
        ts += 2_000_000 + rng.randrange(500_000)
        got.add(ts, tx, rx, identity + rx & 0xFFFF)
        rx += 1
        for call, size in ((Call.RECV, 100), (Call.SEND, 1448 * RESPONSE)):
            ts += 4_000 + rng.randrange(6_000)
            events.add({"kind": Kind.CALL, "ts": ts, "number": n, "tx": tx, "rx": rx, "call": call, "bytes": size})
            n += 1
        for place_ in range(RESPONSE):
            ts += 12_000 + rng.randrange(300)
            sent.add(ts, tx, rx, tx & 0xFFFF)
            tx += 1
            if place_ % 2:
                got.add(ts + 100_000 + rng.randrange(20_000), tx, rx, identity + rx & 0xFFFF)
                rx += 1
        if tx % (64 * 16) < RESPONSE:
            emit({"kind": Kind.DIGEST, "ts": ts, "tx": tx, "count": 16, "digest": tuple(range(16))})
    for writer in (events, got, sent):
        writer.flush()
    emit({"kind": Kind.END, "ts": ts + 1, "tx": tx, "rx": rx})
    return tx + rx


def copy(schema: Schema, template: Block, number: int, copies: int) -> Block:
    """The template for other clients, at another time."""
    buffers: list[Any] = [template.buffer(i) for i in range(len(schema.layout.names))]
    for name, code, add in (
        ("ts", "q", DAY // copies * number),
        ("dst_ip", "I", number),
        ("cookie", "Q", number * AT_ONCE),
    ):
        i = schema.layout.index(name)
        buffers[i] = array(code, [value + add for value in array(code, bytes(buffers[i]))])
    return Block.wrap(schema.layout, template.rows, buffers)


def write(path: Path, packets: int) -> tuple[int, int]:
    """Packets and rows of a new recording."""
    schema, rng, rows = builtin("recording"), random.Random(7), []
    schema = schema.project([f.name for f in schema.fields if not f.optional])
    each = sum(connection(number, rng, rows) for number in range(AT_ONCE))
    rows.sort(key=lambda r: r["ts"])
    parts = [block_of_rows(schema, rows[i : i + 65536]) for i in range(0, len(rows), 65536)]
    copies = max(packets // each, 1)
    with multilog.create(path, schema, lanes=1, sync="none") as log, log.writer() as lane:
        for number in range(copies):
            for part in parts:
                lane.append(copy(schema, part, number, copies))
    return copies * each, copies * len(rows)


def read(path: str, what: str) -> str:
    """Read in a process of its own: seconds, MB of memory, ends, inputs; of queries the lines they print."""
    start = time.monotonic()
    if what in QUERIES:
        words = [ROOT / "bin/confluo-query", path, *QUERIES[what]]
        printed = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        return f"{time.monotonic() - start:.2f}\t{peak}\t{printed.count(10)}\t"
    flow = FiveTuple(4, CLIENT, 7, SERVER, 8080) if what == "one" else None
    with open_records([path]) as reader:
        ends = read_ends(reader, flow)
    inputs = sum(end.events.events for end in ends)
    taken = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"{taken:.2f}\t{peak}\t{len(ends)}\t{inputs}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=int, default=100_000_000)
    parser.add_argument("--read", nargs=2, metavar=("PATH", "WHAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(read(*args.read))
        return
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        path = Path(folder) / "day.ml"
        packets, rows = write(path, args.packets)
        size = sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())
        header("read", "packets", "rows", "log_GB", "seconds", "peak_MB", "ends", "inputs")
        for what in (*QUERIES, "one", "all"):
            words = [sys.executable, __file__, "--read", str(path), what]
            done = [subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(3)]
            best = min(done, key=lambda text: float(text.split()[0]))
            row(what, packets, rows, f"{size / 1e9:.2f}", *best.rstrip("\n").split("\t"))


if __name__ == "__main__":
    main()
