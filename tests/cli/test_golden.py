"""Golden answers: queries of the example captures, compared with tcpdump and tshark.

Each question goes three ways: to the capture itself, to a MultiLog without indexes and to one with them.
"""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions import ROOT, Shell

DATA = ROOT / "examples" / "data"
INDEXES = "src_ip,dst_ip,src_port,dst_port,proto,tcp_flags,vlan,len,ts"

# (capture, our expression, pcap-filter of tcpdump or '', display filter of tshark or '')
QUESTIONS = [
    ("campus", "tcp", "tcp", "tcp"),
    ("campus", "udp", "udp", "udp && !icmp && !icmpv6"),
    ("campus", "icmp", "icmp", "icmp"),
    ("campus", "icmp6", "", "icmpv6"),  # pcap-filter(7) does not look behind a hop-by-hop header
    ("campus", "arp", "arp", "arp"),
    ("campus", "ip6", "ip6", "ipv6"),
    ("campus", "ip", "ip", "ip"),
    ("campus", "host 10.1.0.13", "host 10.1.0.13", "ip.addr == 10.1.0.13 || arp.src.proto_ipv4 == 10.1.0.13"),
    (
        "campus",
        "src net 10.1.0.0/24 and tcp port 443",
        "src net 10.1.0.0/24 and tcp port 443",
        "ip.src == 10.1.0.0/24 && tcp.port == 443",
    ),
    (
        "campus",
        "src_ip in 10.1.0.0/24 && (src_port == 443 || dst_port == 443) && tcp",
        "",
        "ip.src == 10.1.0.0/24 && tcp.port == 443",
    ),
    ("campus", "dst net fd00:2::/64", "dst net fd00:2::/64", ""),  # tshark also looks at quoted headers
    ("campus", "portrange 20-25", "portrange 20-25", "tcp.port in {20..25}"),
    (
        "campus",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "ip && tcp.flags.syn == 1 && tcp.flags.ack == 0",
    ),
    ("campus", "(tcp_flags & 0x12) == 0x02", "", "tcp.flags.syn == 1 && tcp.flags.ack == 0"),
    ("campus", "tcp_flags has rst", "", "tcp.flags.reset == 1"),
    ("campus", "tcp_flags has ece|cwr", "", "tcp.flags.ece == 1 && tcp.flags.cwr == 1"),
    ("campus", "ecn == 2 && dscp == 0", "", "ip.dsfield.ecn == 2 && ip.dsfield.dscp == 0"),
    ("campus", "dscp == 46", "ip[1] & 0xfc == 184", "ip.dsfield.dscp == 46"),
    ("campus", "greater 1000", "greater 1000", "frame.len >= 1000"),
    ("campus", "less 60", "less 60", "frame.len <= 60"),
    ("campus", "cap_len < len", "", "frame.cap_len < frame.len"),
    ("campus", "not tcp and not udp", "not tcp and not udp", "!tcp && (!udp || icmp || icmpv6)"),
    ("campus", "udp port 53 or icmp", "udp port 53 or icmp", ""),
    (
        "campus",
        "tcp_mss == 1460 && tcp_wscale == 10",
        "",
        "tcp.options.mss_val == 1460 && tcp.options.wscale.shift == 10",
    ),
    ("campus", "src_port > dst_port && tcp", "", "tcp.srcport > tcp.dstport"),
    ("campus", "ttl in {63, 64} && ip", "ip[8] >= 63 and ip[8] <= 64", ""),
    ("campus", "src_ip like 10.*.0.12", "ip src 10.1.0.12", "ip.src == 10.1.0.12"),
    ("campus", "port 9999", "port 9999", "tcp.port == 9999"),
    ("loss", "tcp_opts has sack", "", "ip && tcp.options.sack_le"),  # those of IPv6 are cut at 96 bytes
    ("loss", "payload_len == 0 && tcp", "", "tcp.len == 0"),
    ("loss", "len > 1500 && ip6", "ip6 and greater 1501", "ipv6 && frame.len > 1500"),
    ("reorder", "tcp_ack == 0 && tcp", "", "tcp.ack_raw == 0 && tcp"),
    ("vlan", "vlan == 10", "vlan 10", ""),
    ("vlan", "vlan == 10 || vlan == 20", "", "vlan && !ieee8021ad"),
    ("vlan", "vlan == 100 && vlan2 == 30", "vlan 100 and vlan 30", "ieee8021ad.id == 100 && vlan.id == 30"),
    ("vlan", "vlan_count == 2", "", "ieee8021ad"),
    ("vlan", "tcp", "vlan and (tcp or (vlan and tcp))", "tcp"),
    ("vlan", "icmp6", "", "icmpv6"),
    ("tunnel", "tunnel == vxlan && vni == 42", "udp port 4789", "vxlan.vni == 42"),
    ("tunnel", "tunnel == gre && vni == 7", "proto 47", "gre.key == 7"),
    ("tunnel", "tunnel == ipip", "proto 4", "ip.proto == 4"),
    ("tunnel", "vni == 99", "udp port 6081", "geneve.vni == 99"),
    ("tunnel", "tcp", "tcp", ""),  # the outermost header decides
    ("raw", "udp port 53", "udp port 53", "dns"),
    ("raw", "icmp_type == 8", "icmp[0] == 8", "icmp.type == 8"),
    ("cooked", "tcp port 80", "", "tcp.port == 80 && !icmp && !icmpv6"),
    ("cooked", "arp", "", "arp"),
    ("links", "iface == 0", "", "frame.interface_id == 0"),
    ("links", "frag_offset > 0", "", "ip.frag_offset > 0 || ipv6.fraghdr.offset > 0"),
    ("links", "ip_flags has mf", "", "ip.flags.mf == 1 || ipv6.fraghdr.more == 1"),
    ("links", "icmp_type == 11 && icmp", "", "icmp.type == 11"),
    ("links", "icmp6 && icmp_type == 1 && icmp_code == 4", "", "icmpv6.type == 1 && icmpv6.code == 4"),
]
NO_REASSEMBLY = ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"]


def capture(name: str) -> Path:
    (path,) = DATA.glob(f"{name}.pcap*.gz")
    return path


class Captures(Shell):
    """A folder with NAME.pcap (the capture), NAME.ml and NAME-indexed.ml of each that a test asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._counts: dict[str, dict[str, int]] = {}

    def make(self, name: str) -> None:
        path = self.folder / f"{name}.pcap"
        if path.exists():
            return
        path.write_bytes(gzip.decompress(capture(name).read_bytes()))
        command = (
            f"confluo-capture -q -r {name}.pcap -w {name}.ml && "
            f"confluo-capture -q -r {name}.pcap -w {name}-indexed.ml --index {INDEXES}"
        )
        status, printed = self.run(command)
        assert status == 0, "\n".join(printed)

    def tshark_counts(self, name: str) -> dict[str, int]:
        """Packets of a capture for which each display filter holds: one run a capture."""
        if name not in self._counts:
            filters = sorted({shown for file, _, _, shown in QUESTIONS if file == name and shown})
            command = ["tshark", "-n", *NO_REASSEMBLY, "-r", f"{name}.pcap", "-q"]
            command += ["-z", ",".join(["io,stat,0", *filters])]
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
            row = next(line for line in done.stdout.splitlines() if "<>" in line)
            cells = row.strip("|").split("|")[1::2]
            self._counts[name] = {shown: int(cell) for shown, cell in zip(filters, cells, strict=True)}
        return self._counts[name]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    return Captures(tmp_path_factory.mktemp("golden"))


def ask(shell: Shell, where: str, expression: str) -> int:
    status, printed = shell.run(f"confluo-query -q {where} -e '{expression}' --count")
    (number,) = printed
    assert status == (0 if int(number) else 1)
    return int(number)


@pytest.mark.parametrize(("name", "ours", "pcap_filter", "shown"), QUESTIONS, ids=lambda part: str(part)[:30])
def test_counts_as_tcpdump_and_tshark(shell: Captures, name: str, ours: str, pcap_filter: str, shown: str) -> None:
    shell.make(name)
    truths = {}
    if pcap_filter and shutil.which("tcpdump"):
        done = subprocess.run(
            ["tcpdump", "-n", "-r", f"{name}.pcap", "--count", pcap_filter],
            cwd=shell.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        truths["tcpdump"] = int((done.stdout + done.stderr).split(" packet")[0].split()[-1])
    if shown and shutil.which("tshark"):
        truths["tshark"] = shell.tshark_counts(name)[shown]
    if not truths:
        pytest.skip("neither tcpdump nor tshark is installed; bin/check installs them as root")
    answers = {where: ask(shell, where, ours) for where in (f"{name}.pcap", f"{name}.ml", f"{name}-indexed.ml")}
    assert {*answers.values()} == {*truths.values()}, f"{answers} {truths}"


def test_sums_by_host_as_tshark(shell: Captures) -> None:
    if not shutil.which("tshark"):
        pytest.skip("tshark is not installed; bin/check installs it as root")
    shell.make("campus")
    fields = [word for field in ("ip.src", "ipv6.src", "arp.src.proto_ipv4", "frame.len") for word in ("-e", field)]
    done = subprocess.run(
        ["tshark", "-n", "-r", "campus.pcap", "-T", "fields", "-E", "occurrence=f", *fields],
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    truth: dict[str, list[int]] = defaultdict(list)
    for line in done.stdout.splitlines():
        four, six, arp, length = line.split("\t")
        truth[four or six or arp].append(int(length))
    command = "confluo-query campus-indexed.ml --agg 'count, sum(len), min(len), max(len), avg(len)' --by src_ip -J"
    status, printed = shell.run(command)
    assert status == 0
    answers = {row.pop("src_ip"): row for row in map(json.loads, printed)}
    assert answers.keys() == truth.keys()
    for host, lengths in truth.items():
        row = answers[host]
        assert (row["count"], row["sum_len"], row["min_len"], row["max_len"]) == (
            len(lengths),
            sum(lengths),
            min(lengths),
            max(lengths),
        )
        assert row["avg_len"] == pytest.approx(sum(lengths) / len(lengths))


def packets(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(nanoseconds, length on the wire, bytes) of a pcap made on this machine."""
    magic = struct.unpack_from("<I", data)[0]
    scale = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[magic]
    at = 24
    while at < len(data):
        seconds, fraction, size, length = struct.unpack_from("<IIII", data, at)
        yield seconds * 10**9 + fraction * scale, length, data[at + 16 : at + 16 + size]
        at += 16 + size


@pytest.mark.parametrize("name", ["campus", "loss", "vlan", "tunnel", "raw", "cooked"])
@pytest.mark.parametrize("expression", ["", "len > 100 && (udp || tcp_flags has psh)"])
def test_packets_go_back_unchanged(shell: Captures, name: str, expression: str) -> None:
    """-o pcap through the file offset: the very packets of the source by time, and all that match."""
    shell.make(name)
    out = shell.folder / "back.pcap"
    status, printed = shell.run(
        f"confluo-query -q {name}.ml -e '{expression}' -o pcap --source {name}.pcap --force -w back.pcap"
    )
    assert status == 0, "\n".join(printed)
    source, back = (list(packets(path.read_bytes())) for path in (shell.folder / f"{name}.pcap", out))
    source.sort(key=lambda packet: packet[0])  # those of equal time keep their order
    assert len(back) == ask(shell, f"{name}.ml", expression)
    if expression:
        assert not Counter(back) - Counter(source)
        remaining = iter(source)
        assert all(packet in remaining for packet in back)  # a subsequence: nothing reordered
    else:
        assert back == source


def test_packets_of_an_expression_as_tcpdump_writes_them(shell: Captures) -> None:
    if not shutil.which("tcpdump"):
        pytest.skip("tcpdump is not installed; bin/check installs it as root")
    shell.make("campus")
    expression = "host 10.1.0.11 and (tcp port 80 or udp port 53)"
    subprocess.run(
        ["tcpdump", "-n", "-r", "campus.pcap", "-w", "theirs.pcap", expression],
        cwd=shell.folder,
        capture_output=True,
        check=True,
    )
    status, _ = shell.run(
        f"confluo-query -q campus-indexed.ml '{expression}' -o pcap --source campus.pcap -w ours.pcap"
    )
    assert status == 0
    ours, theirs = (list(packets((shell.folder / f"{who}.pcap").read_bytes())) for who in ("ours", "theirs"))
    assert ours == theirs
    assert len(ours) > 100
