"""Bar: `confluo-replay explain` follows at least 5 million packets a second on one core.  Prints TSV.

    .venv/bin/python bench/explain.py [--packets 300000] [--many 3000000]

The rules alone, over blocks in memory: the connections of bench/tcp.py (1, 1,000 and 100,000 of them, one segment in
100 lost and sent again); 100,000 connections also with 30 packets each.  Then the whole command on one capture, next
to `confluo-query --analyze tcp`.
Best of three.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tcp import write
from timing import ROOT, header, row, run

from confluo_tools.core.replay.explainer import Explainer
from confluo_tools.formats.pcap.files import Captures
from confluo_tools.replay.explain.packet_schemas import with_sack


def rules(path: Path, gap: int) -> tuple[float, int, int]:
    """Best CPU seconds to explain the blocks of a capture, how many packets they are, and how many labels they got."""
    blocks = list(Captures([str(path)], with_sack()))
    best, labels = float("inf"), 0
    for _ in range(3):
        explainer = Explainer(with_sack().layout, gap, max_flows=1 << 17)
        start = time.process_time()
        for block in blocks:
            explainer.feed(block)
        explainer.finish()
        best = min(best, time.process_time() - start)
        labels = explainer.labels
    return best, sum(b.rows for b in blocks), labels


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast confluo-replay explain is.")
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--many", type=int, default=3_000_000, help="packets of the longest capture")
    chosen = parser.parse_args()
    header("what", "flows", "packets", "labels", "seconds", "ns_a_packet", "million_a_second")

    def print_row(what: str, flows: int, n: int, labels: int, seconds: float) -> None:
        row(what, flows, n, labels, seconds, seconds / n * 1e9, n / seconds / 1e6)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pcap"
        cases = [(flows, chosen.packets) for flows in (1, 1_000, 100_000)] + [(100_000, chosen.many)]
        for flows, packets in cases:
            write(path, packets, flows)
            for gap in (1, 1000):
                seconds, n, labels = rules(path, gap * 1_000_000)
                print_row(f"rules, --gap {gap}ms", flows, n, labels, seconds)
        write(path, chosen.packets, 1_000)
        for name, words in {
            "confluo-replay explain --by cause": ["confluo-replay", "explain", str(path), "--by", "cause", "-T"],
            "confluo-query --analyze tcp --count": ["confluo-query", str(path), "tcp", "--analyze", "tcp", "--count"],
        }.items():
            command = [str(ROOT / "bin" / words[0]), *words[1:]]
            print_row(name, 1_000, chosen.packets, 0, min(run(command).cpu for _ in range(3)))


if __name__ == "__main__":
    main()
