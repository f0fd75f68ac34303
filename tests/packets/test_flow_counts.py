"""Packets and bytes of each flow against nfdump, which sees the example captures through its own parser."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from running import DATA, run

PROTO = {"6": "tcp", "17": "udp"}
Counts = dict[tuple[str, ...], tuple[int, int]]  # protocol, source, port, destination, port -> packets, bytes of IP


def nfdump(capture: Path, folder: Path, expression: str) -> Counts:
    folder.mkdir()
    subprocess.run(["nfpcapd", "-r", capture, "-l", folder], capture_output=True, check=True)
    command = ["nfdump", "-R", folder, "-q", "-N", "-6", "-A", "proto,srcip,srcport,dstip,dstport"]
    command += ["-o", "fmt:%pr,%sa,%sp,%da,%dp,%pkt,%byt", f"(proto tcp or proto udp) and ({expression})"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Counts = {}
    for line in done.stdout.splitlines():
        proto, *flow, packets, size = (word.strip() for word in line.split(","))
        found[PROTO[proto], *flow] = int(packets), int(size)
    return found


def ours(capture: Path, expression: str) -> Counts:
    key = "proto,src_ip,src_port,dst_ip,dst_port"
    words = ("--agg", "count, sum(ip_len)", "--by", key, "-T", "--no-header")
    done = run("confluo-query", capture, f"(tcp || udp) && ({expression})", *words)
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    return {tuple(row[:5]): (int(row[5]), int(row[6])) for row in rows}


@pytest.mark.skipif(not shutil.which("nfpcapd"), reason="needs nfdump; bin/check installs it as root")
@pytest.mark.parametrize(
    ("name", "theirs", "mine", "flows"),
    [
        ("campus.pcap", "any", "len > 0", 1000),
        ("reorder.pcap", "any", "len > 0", 2),
        ("raw.pcap", "any", "len > 0", 4),
        ("loss.pcap", "ipv4", "ip", 2),  # it leaves out IPv6 segments with options that are cut
        ("vlan.pcap", "any", "!(net 10.30.0.0/16 || ip6 net fd00:30::/64)", 8),  # and frames with two tags
        ("tunnel.pcap", "not net 10.44.0.0/24", "len > 0", 16),  # and it follows IP in IP
    ],
)
def test_packets_and_bytes_of_each_flow(tmp_path: Path, name: str, theirs: str, mine: str, flows: int) -> None:
    capture = tmp_path / name
    capture.write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    expected = nfdump(capture, tmp_path / "flows", theirs)
    assert ours(capture, mine) == expected
    assert len(expected) >= flows
