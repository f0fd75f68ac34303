"""A whole capture command against its peers, the file in page cache.

usage: bench/capture.py CAPTURE.pcap [ROUNDS]      (make one with bench/make_capture.py; 5 million packets or more)

Prints TSV: command, packets, seconds of wall clock and CPU (medians), packets per second, and how many times
faster confluo-capture is (median of the ratios of neighbouring runs; above 1 we are faster).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from timing import ROOT, header, in_turn, median, ratio, row, run

from make_capture import count

FIELDS = [
    "frame.time_epoch",
    "frame.len",
    "frame.cap_len",
    "ip.version",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ip.ttl",
    "ip.id",
    "ip.len",
    "ip.dsfield.ecn",
    "ip.dsfield.dscp",
    "ip.flags",
    "ip.frag_offset",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq_raw",
    "tcp.ack_raw",
    "tcp.flags",
    "tcp.window_size_value",
    "tcp.len",
    "udp.srcport",
    "udp.dstport",
    "icmp.type",
    "icmp.code",
    "eth.src",
    "eth.dst",
    "eth.type",
    "vlan.id",
    "mpls.label",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "ipv6.hlim",
]


def main(capture: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="confluo-bench-") as scratch:
        log, copy = Path(scratch) / "x.ml", Path(scratch) / "x.pcap"
        ours = [str(ROOT / "bin/confluo-capture"), "-r", str(capture), "-w", str(log), "-q"]

        def gone() -> None:
            shutil.rmtree(log, ignore_errors=True)
            copy.unlink(missing_ok=True)

        commands = {
            "confluo-capture": partial(run, ours, gone),
            "confluo-capture 4 indexes": partial(run, [*ours, "--index", "src_ip,dst_ip,src_port,dst_port"], gone),
            "tcpdump -w": partial(run, ["tcpdump", "-n", "-r", str(capture), "-w", str(copy)], gone),
        }
        results = in_turn(commands, rounds)
        gone()
        if shutil.which("tshark"):
            fields = [word for f in FIELDS for word in ("-e", f)]
            tshark = run(["tshark", "-n", "-r", str(capture), "-T", "fields", *fields])
            results["tshark -T fields"] = [tshark] * rounds
    packets = count(capture)
    header("command", "packets", "wall_s", "cpu_s", "packets_per_s", "confluo_is_faster_by")
    for name, runs in results.items():
        wall = median(runs, "wall")
        row(name, packets, wall, median(runs, "cpu"), packets / wall, ratio(results["confluo-capture"], runs))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 5)
