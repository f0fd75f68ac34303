"""Flow records of exporters a second on one core, from memory and over UDP, next to nfcapd.  Prints TSV.

    .venv/bin/python bench/exporters.py [--datagrams 20000] [--rounds 3]

First the decoder alone: each datagram of NetFlow v5 (30 records), NetFlow v9 and IPFIX (24 each) and sFlow (8 samples)
is decoded again and again.  Then the same NetFlow v9 over loopback into confluo-capture and into nfcapd: CPU seconds of
the collector by record that it stored, and what its socket dropped.  Best CPU time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from timing import ROOT

sys.path[:0] = [str(ROOT / "tests" / "support")]

from confluo_tools.core.capture.flow_exports import FlowExports
from confluo_tools.schema import builtin
from flow_exporters import (
    Element,
    Template,
    data_set,
    flow_sample,
    ipfix,
    mapped,
    number,
    raw_header,
    sflow,
    template_set,
    v5,
    v9,
)

SIZES = {8: 4, 12: 4, 15: 4, 10: 2, 14: 2, 2: 4, 1: 4, 22: 4, 21: 4, 7: 2, 11: 2, 6: 1, 4: 1, 5: 1, 16: 4, 17: 4}
FLOW = Template(256, [Element(id, size) for id, size in SIZES.items()])
FRAME = bytes.fromhex("020000000002020000000001080045000054000100004006") + bytes(80)
TICKS = os.sysconf("SC_CLK_TCK")


def datagrams() -> dict[str, tuple[bytes, int, bool]]:
    """Datagram, its records, whether it is sFlow."""
    rows = [[number(i + n, size) for n, size in enumerate(SIZES.values())] for i in range(24)]
    out = {"NetFlow v5": (v5([{"packets": i, "proto": 6} for i in range(30)]), 30, False)}
    for name, is_ipfix in (("NetFlow v9", False), ("IPFIX", True)):
        sets = [template_set([FLOW], ipfix=is_ipfix), data_set(FLOW, rows)]
        out[name] = (ipfix(sets) if is_ipfix else v9(sets), 24, False)
    return out | {"sFlow": (sflow([flow_sample([raw_header(FRAME, 1000)])] * 8), 8, True)}


def alone(name: str, datagram: bytes, records: int, is_sflow: bool, n: int, rounds: int) -> None:
    best, source = float("inf"), mapped("192.0.2.1")
    for _ in range(rounds):
        decoder = FlowExports(builtin("netflow").layout)
        start = time.process_time()
        for _ in range(n):
            decoder.add(datagram, source, 1, 1, sflow=is_sflow)
            while decoder.ready:
                decoder.take()
        best = min(best, time.process_time() - start)
    print(f"decode {name}", f"{n / best / 1e6:.2f}", f"{n * records / best / 1e6:.2f}", "-", sep="\t", flush=True)


def numbered(n: int) -> Iterator[bytes]:
    """``n`` datagrams of NetFlow v9 with their numbers; every 20th has the template."""
    rows = [[number(i + k, size) for k, size in enumerate(SIZES.values())] for i in range(24)]
    data = data_set(FLOW, rows)
    with_template, without = bytearray(v9([template_set([FLOW], ipfix=False), data])), bytearray(v9([data]))
    for i in range(n):
        datagram = without if i % 20 else with_template
        datagram[12:16] = i.to_bytes(4, "big")
        yield datagram


def collector(name: str, command: list[str], port: int, n: int) -> None:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while socket_of(port) is None and time.monotonic() < end:
        time.sleep(0.05)
    start = cpu(child.pid)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in numbered(n):
            sock.sendto(datagram, ("127.0.0.1", port))
    while (state := socket_of(port)) and state[0] and time.monotonic() < end:
        time.sleep(0.01)
    used, dropped = max(cpu(child.pid) - start, 1 / TICKS), state[1] if state else 0
    child.send_signal(signal.SIGTERM)
    child.wait(30)
    got = n - dropped
    print(name, f"{got / used / 1e6:.2f}", f"{got * 24 / used / 1e6:.2f}", dropped, sep="\t", flush=True)


def socket_of(port: int) -> tuple[int, int] | None:
    """Bytes that wait in a UDP socket, and datagrams that it dropped."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].partition(":")[2], 16) == port:
            return int(words[4].partition(":")[2], 16), int(words[-1])
    return None


def cpu(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datagrams", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("case", "M datagrams/s", "M records/s", "dropped", sep="\t")
    for name, (datagram, records, is_sflow) in datagrams().items():
        alone(name, datagram, records, is_sflow, given.datagrams, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        log = ["confluo-capture", "-q", "--netflow", "127.0.0.1:29551", "-w", f"{folder}/flows.ml"]
        collector("UDP, confluo-capture", [str(ROOT / "bin" / log[0]), *log[1:]], 29551, given.datagrams)
        if shutil.which("nfcapd"):
            command = [
                "nfcapd",
                "-w",
                folder,
                "-l",
                folder,
                "-p",
                "29552",
                "-b",
                "127.0.0.1",
                "-t",
                "3600",
                "-B",
                "33554432",
            ]
            collector("UDP, nfcapd", command, 29552, given.datagrams)


if __name__ == "__main__":
    main()
