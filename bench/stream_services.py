"""Records a second of each service of confluo-stream, from blocks in memory: no input, no output.

    .venv/bin/python bench/stream_services.py [--rows 2000000] [--rounds 3]

mixed: 20,000 connections, data and acknowledgements, 3 % SYNs.  flood: SYNs from random addresses to one server.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from timing import header, row

from confluo_tools.formats.block_builder import block_of
from confluo_tools.schema import builtin
from confluo_tools.stream.services.loss import LossService
from confluo_tools.stream.services.synflood import SynFloodService
from confluo_tools.stream.services.tcp_rate import TcpRateService
from confluo_tools.stream.services.top import TopService

ROWS = 65536
SECOND = 10**9
GAP = 1000  # ns between packets
FLOWS = 20_000
NAMES = "ts len ip_version proto src_ip dst_ip src_port dst_port ip_id payload_len tcp_seq tcp_ack tcp_flags tcp_window"
SCHEMA = builtin("packet").project([*NAMES.split(), "tcp_opts", "tcp_tsval", "tcp_tsecr"])


def blocks(kind: str, rows: int) -> list[Any]:
    rng, out = Random(1), []
    sent = [0] * FLOWS
    for start in range(0, rows, ROWS):
        n = range(ROWS)
        columns: dict[str, Any] = {"ts": [(start + i) * GAP for i in n], "ip_version": [4] * ROWS, "proto": [6] * ROWS}
        columns["len"] = [1054] * ROWS
        if kind == "flood":
            columns |= {"src_ip": [rng.getrandbits(32) for _ in n], "dst_ip": [167772161] * ROWS}
            columns |= {"src_port": [rng.getrandbits(16) for _ in n], "dst_port": [80] * ROWS, "tcp_flags": [2] * ROWS}
        else:
            flow = [rng.randrange(FLOWS) for _ in n]
            columns |= {"src_ip": [1000 + f % 500 for f in flow], "dst_ip": [5000 + f % 37 for f in flow]}
            columns |= {"src_port": [1024 + f for f in flow], "dst_port": [443] * ROWS}
            columns["tcp_flags"] = [2 if rng.random() < 0.03 else 16 for _ in n]
            columns["tcp_seq"] = seqs = array("I")
            for f in flow:
                seqs.append(sent[f])
                sent[f] = sent[f] + 1000 & 0xFFFFFFFF
            columns |= {"payload_len": [1000] * ROWS, "tcp_opts": [16] * ROWS}
            columns |= {"tcp_tsval": [(start + i) // 1000 for i in n], "tcp_tsecr": [1] * ROWS}
        columns["ip_id"] = [start + i & 0xFFFF for i in n]
        out.append(block_of(SCHEMA, columns, ROWS))
    return out


class Points:
    """Both points see all packets, block by block."""

    def __init__(self) -> None:
        self.point, self.time = 0, 0

    def mark(self) -> int:
        return self.time


def synflood(given: list[Any]) -> int:
    service = SynFloodService(
        SCHEMA, 1000, 10 * SECOND, ratio=0.5, clear=0.5, timeout=3 * SECOND, lateness=SECOND, host="bench"
    )
    return run(service, given)


def tcp_rate(given: list[Any]) -> int:
    return run(TcpRateService(SCHEMA, window=SECOND, lateness=SECOND), given)


def top(given: list[Any]) -> int:
    return run(TopService(SCHEMA, "src_ip", "bytes", most=10, window=SECOND, lateness=SECOND), given)


def loss(given: list[Any]) -> int:
    points = Points()
    service = LossService([SCHEMA, SCHEMA], points, window=SECOND, timeout=SECOND // 10, lateness=SECOND // 10)
    for block in given:
        for points.point in (0, 1):
            points.time = block.get(0, block.rows - 1) if points.point else points.time
            service.take(block, None)
    service.finish(True)
    return 2 * sum(block.rows for block in given)


def run(service: Any, given: list[Any]) -> int:
    for block in given:
        service.take(block, None)
        for _ in service.results():
            pass
    service.finish(True)
    return sum(block.rows for block in given)


def cases(rows: int) -> Iterator[tuple[str, str, Callable[[list[Any]], int], list[Any]]]:
    mixed, flood = blocks("mixed", rows), blocks("flood", rows)
    yield "synflood", "mixed", synflood, mixed
    yield "synflood", "flood", synflood, flood
    yield "loss", "mixed", loss, mixed
    yield "tcp-rate", "mixed", tcp_rate, mixed
    yield "top", "mixed", top, mixed
    yield "top", "flood", top, flood


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    header("service", "traffic", "records", "M_records_s", "cpu_ns_a_record")
    for name, traffic, call, given in cases(args.rows):
        rates, costs, count = [], [], 0
        for _ in range(args.rounds):
            start, cpu = time.perf_counter(), time.process_time()
            count = call(given)
            rates.append(count / (time.perf_counter() - start) / 1e6)
            costs.append((time.process_time() - cpu) / count * 1e9)
        row(name, traffic, count, statistics.median(rates), statistics.median(costs))


if __name__ == "__main__":
    main()
