"""What the functions of flows.yaml cost: nanoseconds of CPU per record, in one thread, for batches of 1024 packets.

    .venv/bin/python bench/stream_functions.py [--seconds 1]

The packets are 5000 flows of 2000 hosts, 5 us apart.  `copy` gathers the columns of telemetry as a lane does for a
batch: what a packet costs before any function.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.stream.stage import StreamStage
from confluo_tools.schema import builtin
from confluo_tools.stream.functions import read
from confluo_tools.stream.telemetry import TELEMETRY

BATCH = 1024
BATCHES = 256
STEP = 5000  # ns between packets
FUNCTIONS = [
    ("filter", "len > 1400"),
    ("filter", "tcp_flags has syn and dst_port in (80, 443)"),
    ("sample", "1/10"),
    ("sample", {"share": "1/10", "by": "flow"}),
    ("sample", {"rate": "1/s"}),
    ("sample", {"rate": "100/s"}),
    ("sample", {"rate": "100k/s"}),
    ("histogram", {"field": "len", "bins": "0..1500/100", "every": "100ms"}),
    ("histogram", {"field": "len", "bins": "log2", "every": "100ms"}),
    ("histogram", {"field": "len - payload_len", "bins": "0..100/4", "every": "100ms"}),
    ("histogram", {"field": "src_port", "bins": "0..65536/1024", "every": "100ms"}),
    ("aggregate", {"agg": "count", "every": "100ms"}),
    ("aggregate", {"agg": "count, sum(len)", "by": "src_ip", "every": "100ms"}),
    ("aggregate", {"agg": "count, sum(len)", "by": "src_ip", "every": "100ms", "late": "100ms"}),
    ("aggregate", {"agg": "count, sum(len)", "by": "flow", "every": "100ms"}),
    ("aggregate", {"agg": "count, p99(len), distinct(src_ip)", "by": "dst_port", "every": "100ms"}),
]


def packets() -> tuple[list[Block], object]:
    packet = builtin("packet")
    schema = packet.project([f.name for f in packet.fields if f.name in TELEMETRY])
    random = Random(1)
    rows = BATCH * BATCHES
    flows = [
        (random.randrange(1, 2000), random.randrange(1, 2000), random.randrange(65536), random.choice([80, 443, 22]))
        for _ in range(5000)
    ]
    chosen = [random.randrange(5000) for _ in range(rows)]
    values = {
        "ts": array("q", range(1_700_000_000 * 10**9, 1_700_000_000 * 10**9 + rows * STEP, STEP)),
        "len": array("I", [random.choice([64, 64, 1500, 1500, random.randrange(64, 1500)]) for _ in range(rows)]),
        "ip_version": array("B", [4]) * rows,
        "proto": array("B", [6]) * rows,
        "src_ip": array("I", [flows[k][0] for k in chosen]),
        "dst_ip": array("I", [flows[k][1] for k in chosen]),
        "src_port": array("H", [flows[k][2] for k in chosen]),
        "dst_port": array("H", [flows[k][3] for k in chosen]),
        "tcp_flags": array("H", [random.choice([2, 16, 16, 16, 24]) for _ in range(rows)]),
        "flow_hash": array("I", [(k + 1) * 2654435761 % 2**32 for k in chosen]),
    }
    values["payload_len"] = array("I", [max(n - 54, 0) for n in values["len"]])
    whole = [values.get(c.name, bytes(c.size * c.count * rows)) for c in schema.columns]
    views = [memoryview(column).cast("B") for column in whole]
    blocks = []
    for at in range(0, rows, BATCH):
        widths = [c.size * c.count for c in schema.columns]
        parts = [view[at * w : (at + BATCH) * w] for view, w in zip(views, widths, strict=True)]
        blocks.append(Block.wrap(schema.layout, BATCH, parts))
    return blocks, schema


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1)
    seconds = parser.parse_args().seconds
    blocks, schema = packets()
    print("function\twords\tns_a_record\trecords_out_%", flush=True)
    took, rows = 0.0, 0
    half = Picks.of(BATCH, range(0, BATCH, 2))
    while took < seconds:
        start = time.process_time()
        for block in blocks:
            block.take(half)
        took += time.process_time() - start
        rows += len(half) * len(blocks)
    print(f"copy\t\t{1e9 * took / rows:.2f}\t100", flush=True)
    for word, value in FUNCTIONS:
        took, rows, given = 0.0, 0, 0
        while took < seconds:
            stage = read(word, value, schema, "bench").stage(schema)
            stage.then(StreamStage(stage.layout))
            start = time.process_time()
            for block in blocks:
                stage.write(block)
            stage.end()
            took += time.process_time() - start
            rows += stage.taken
            given += stage.given
        print(f"{word}\t{value}\t{1e9 * took / rows:.2f}\t{100 * given / rows:.2f}", flush=True)


if __name__ == "__main__":
    main()
