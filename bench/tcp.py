"""Bar: `--analyze tcp` follows at least 5 million packets a second on one core.  Prints TSV.

    .venv/bin/python bench/tcp.py [--packets 300000] [--tshark-packets 100000] [--no-tshark]

First the kernels alone, over blocks in memory: TCP conversations (1, 1,000 and 100,000 of them, interleaved at random,
one segment in 100 lost and sent again, an ACK for every second one) and the state `maxseq` over the same rows.
Then whole commands on one capture: tshark printing its flags of each packet, and confluo-query printing ours.
Best of three.
"""

from __future__ import annotations

import argparse
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from timing import ROOT, header, row, run

from confluo_tools.core.block.block import Block
from confluo_tools.formats.pcap import open_captures
from confluo_tools.multilog.query.derived_fields import Analysis

SIZE = 1448
MASK = 0xFFFFFFFF


def packets(n: int, flows: int, seed: int = 1) -> Iterator[tuple[int, bytes]]:
    """(ns, frame cut to 54 bytes of headers): bulk transfers from many servers, as a client's side sees them."""
    rng = random.Random(seed)
    sent = [rng.getrandbits(32) for _ in range(flows)]
    acked, due, lost = list(sent), [0] * flows, [0] * flows
    now = 10**18
    for _ in range(n):
        now += rng.randrange(100, 2000)
        f = rng.randrange(flows)
        client, port = 0x0A000000 + f % 65536, 1024 + f // 65536
        if due[f] >= 2:
            due[f], acked[f] = 0, lost[f] or sent[f]
            yield now, frame(client, 0xC0000201, port, 443, 1, acked[f], 0)
            continue
        due[f] += 1
        if lost[f] and rng.random() < 0.3:
            seq, lost[f] = lost[f], 0
        else:
            seq = sent[f]
            sent[f] = (seq + SIZE) & MASK
            if not lost[f] and rng.random() < 0.01:
                lost[f] = seq
                seq, sent[f] = sent[f], (sent[f] + SIZE) & MASK
        yield now, frame(0xC0000201, client, 443, port, seq, 2, SIZE)


def frame(src: int, dst: int, sport: int, dport: int, seq: int, ack: int, size: int) -> bytes:
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 40 + size, 0, 0x4000, 64, 6, 0, src, dst)
    return bytes(12) + b"\x08\0" + ip + struct.pack(">HHIIBBHHH", sport, dport, seq, ack, 0x50, 16, 65000, 0, 0)


def write(path: Path, n: int, flows: int) -> None:
    with path.open("wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 54, 1))
        for ts, data in packets(n, flows):
            size = 14 + struct.unpack_from(">H", data, 16)[0]
            f.write(struct.pack("<IIII", ts // 10**9, ts % 10**9, len(data), size) + data)


def kernel(path: Path, spec: str) -> tuple[float, int]:
    """Best CPU seconds to analyse the blocks of a capture, and how many packets they are."""
    with open_captures([str(path)]) as captures:
        blocks: list[Block] = list(captures)
        schema = captures.schema
    best = float("inf")
    for _ in range(3):
        analysis = Analysis(schema, spec)
        start = time.process_time()
        for block in blocks:
            analysis.apply(block)
        best = min(best, time.process_time() - start)
    return best, sum(b.rows for b in blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast --analyze tcp is.")
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--tshark-packets", type=int, default=100_000)
    parser.add_argument("--no-tshark", action="store_true")
    asked = parser.parse_args()
    header("what", "flows", "packets", "seconds", "ns_a_packet", "million_a_second")

    def tell(what: str, flows: int, n: int, seconds: float) -> None:
        row(what, flows, n, seconds, seconds / n * 1e9, n / seconds / 1e6)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pcap"
        for flows in (1, 1_000, 100_000):
            write(path, asked.packets, flows)
            for spec in ("tcp", "maxseq"):
                seconds, n = kernel(path, spec)
                tell(f"--analyze {spec}", flows, n, seconds)
        n = asked.tshark_packets
        write(path, n, 1_000)
        query = [str(ROOT / "bin" / "confluo-query"), str(path), "--analyze", "tcp", "-f", "tcp_analysis", "-T"]
        words = {"confluo-query": query}
        if not asked.no_tshark and shutil.which("tshark"):
            words["tshark"] = [
                "tshark",
                "-n",
                "-r",
                str(path),
                "-T",
                "fields",
                "-e",
                "tcp.analysis.flags",
                "-e",
                "tcp.analysis.retransmission",
                "-e",
                "tcp.analysis.out_of_order",
            ]
        for name, command in words.items():
            tell(name, 1_000, n, min(run(command).cpu for _ in range(3)))


if __name__ == "__main__":
    main()
