"""Bar: flow records at 10 million packets a second on one core, and 4 million flows at once in 1 GB.  Prints TSV.

    .venv/bin/python bench/flows.py [--packets 300000] [--peer-packets 300000] [--flows 4000000]

First the table alone, over blocks in memory: the traffic of bench/tcp.py (1, 1,000 and 100,000 connections, interleaved
at random), then packets of 100,000, a million and 4 million connections, at random and in turn: in turn,
each finds the flow that had no packet for the longest time.  Memory is that of the table alone.  Then whole commands on
one capture: flow records of confluo-query, nfpcapd with nfdump -B, and `tshark -z conv,tcp`; the ratio is to
confluo-query.  Best of three, CPU time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tcp import write
from timing import ROOT, header, row, run

from confluo_tools.core.block.block import Block
from confluo_tools.core.flows.conn_table import ConnTable
from confluo_tools.formats.pcap import open_captures, packet_schema
from confluo_tools.multilog.query.flow_records import conn_table

ROWS = 1 << 16
PACKETS = packet_schema(offset=False, snap=0)


def kernel(path: Path) -> tuple[float, int]:
    """Best CPU seconds to follow the flows of a capture, and how many packets they are."""
    with open_captures([str(path)]) as captures:
        blocks: list[Block] = list(captures)
        schema = captures.schema
    best = float("inf")
    for _ in range(3):
        table = conn_table(schema)
        start = time.process_time()
        for block in blocks:
            follow(table, block)
        best = min(best, time.process_time() - start)
    return best, sum(b.rows for b in blocks)


def follow(table: ConnTable, block: Block) -> None:
    for _ in table.process(block):
        pass


def in_turn(flows: int) -> Iterator[Block]:
    """One packet of each flow."""
    for start in range(0, flows, ROWS):
        yield acks(np.arange(start, min(start + ROWS, flows)), start)


def at_random(flows: int, packets: int) -> Iterator[Block]:
    """Packets of flows at random."""
    rng = np.random.default_rng(1)
    for start in range(0, packets, ROWS):
        yield acks(rng.integers(0, flows, ROWS), flows + start)


def acks(flow: NDArray[np.int64], start: int) -> Block:
    """A packet of each of these flows, ``start`` ns after the first one."""
    constant = {"ip_version": bytes([4]) * ROWS, "proto": bytes([6]) * ROWS}
    constant |= {"dst_ip": array("I", [0xC0000201]) * ROWS, "dst_port": array("H", [443]) * ROWS}
    constant |= {"tcp_flags": array("H", [16]) * ROWS, "ip_len": array("I", [40]) * ROWS}
    columns = constant | {
        "ts": array("q", range(10**18 + start, 10**18 + start + ROWS)),
        "src_ip": (0x0A000000 + flow).astype("<u4"),
        "src_port": (1024 + flow // ROWS).astype("<u2"),
    }
    return Block.wrap(PACKETS.layout, len(flow), [columns.get(c.name) for c in PACKETS.columns])


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def many(flows: int) -> tuple[float, float, int]:
    """ns a packet of all flows in turn and at random, with all of them in the table, and the memory of the table."""
    before, table = resident(), conn_table(PACKETS, flows)
    for block in in_turn(flows):
        follow(table, block)
    memory = resident() - before
    return cost(table, in_turn(flows)), cost(table, at_random(flows, 4_000_000)), memory


def cost(table: ConnTable, blocks: Iterator[Block]) -> float:
    """CPU time of a packet in ns."""
    packets, seconds = 0, 0.0
    for block in blocks:
        start = time.process_time()
        follow(table, block)
        seconds += time.process_time() - start
        packets += block.rows
    return seconds / packets * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast flow records are, and how large.")
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--peer-packets", type=int, default=300_000)
    parser.add_argument("--flows", type=int, default=4_000_000)
    asked = parser.parse_args()
    header("what", "flows", "packets", "seconds", "ns_a_packet", "million_a_second", "bytes_a_flow", "ratio")

    def tell(what: str, flows: int, n: int, seconds: float, size: float = 0, ratio: float = 0) -> None:
        row(what, flows, n, seconds, seconds / n * 1e9, n / seconds / 1e6, size, ratio)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pcap"
        for flows in (asked.flows, 1_000_000, 100_000):  # first: memory that others have freed would be used again
            turn, chance, memory = many(flows)
            size = memory / flows if flows == asked.flows else 0
            tell("table, in turn", flows, flows, turn * flows / 1e9, size)
            tell("table, at random", flows, 4_000_000, chance * 4e-3)
        for flows in (1, 1_000, 100_000):
            write(path, asked.packets, flows)
            seconds, n = kernel(path)
            tell("table", flows, n, seconds)
        n = asked.peer_packets
        write(path, n, 1_000)
        words = {"confluo-query --flows": [[str(ROOT / "bin" / "confluo-query"), str(path), "--flows", "-T"]]}
        if shutil.which("nfpcapd"):
            out = Path(folder) / "nf"
            out.mkdir()
            collect = ["nfpcapd", "-r", str(path), "-l", str(out)]
            words["nfpcapd, nfdump -B"] = [collect, ["nfdump", "-R", str(out), "-q", "-B", "-o", "csv"]]
        if shutil.which("tshark"):
            words["tshark -z conv,tcp"] = [["tshark", "-n", "-q", "-r", str(path), "-z", "conv,tcp"]]
        ours = 0.0
        for name, commands in words.items():
            seconds = min(sum(run(command).cpu for command in commands) for _ in range(3))
            ours = ours or seconds
            tell(name, 1_000, n, seconds, 0, seconds / ours)


if __name__ == "__main__":
    main()
