"""Flow records against tshark, nfdump and tcptrace: packets, bytes, retransmissions, round trips of each conversation.

docs/flows.md names the differences.
"""

from __future__ import annotations

import csv
import gzip
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from ipaddress import ip_address
from pathlib import Path

import pytest
from conftest import DATA, ROOT

import oracle_tcp
from flow_rows import Row, conversations, flows_of, tshark_conversations
from oracle_packets import lines, live_lines

JUMBO = {"tcpdump_bigtcp_ipv6_hbh.pcap"}  # tshark has no length of a jumbogram
EXAMPLES = ("campus.pcap", "reorder.pcap", "vlan.pcap")  # tshark has no ports of the cut segments of loss.pcap
Sums = Counter[tuple[str, ...]]


def names(pattern: str) -> list[str]:
    return sorted(p.name[: -len(pattern)] for p in (DATA / "pcaps" / "truth").glob(f"*{pattern}")) or ["none"]


@cache
def capture(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(gzip.decompress((ROOT / "examples" / "data" / f"{name}.gz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.mark.parametrize("proto", [6, 17], ids=["tcp", "udp"])
@pytest.mark.parametrize("name", names(".packets.tsv.gz"))
def test_conversations_equal_tshark(pcaps: Path, name: str, proto: int) -> None:
    """Packets and IP bytes each way of each TCP stream and UDP conversation; segments sent again or out of order."""
    found = conversations(flows_of(pcaps / name), proto)
    expected = tshark_conversations(lines(pcaps / "truth" / f"{name}.packets.tsv.gz"), proto)
    if name in JUMBO:
        found, expected = (
            Counter(frozenset((end, way._replace(bytes=0)) for end, way in ways) for ways in side.elements())
            for side in (found, expected)
        )
    assert found == expected


@pytest.mark.parametrize("name", names(".conv.txt.gz"))
def test_conversations_of_big_captures_equal_tshark(pcaps: Path, name: str) -> None:
    """`tshark -z conv,tcp`: frames each way."""
    text = gzip.decompress((pcaps / "truth" / f"{name}.conv.txt.gz").read_bytes()).decode()
    assert frames_of(text, "TCP") == frames(flows_of(pcaps / name), 6)


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_equal_tshark(folder: Path, name: str) -> None:
    path = capture(name, folder)
    command = ["tshark", "-n", "-q", "-r", str(path), "-z", "conv,tcp", "-z", "conv,udp"]
    command += ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = flows_of(path)
    for proto, title in ((6, "TCP"), (17, "UDP")):
        expected = frames_of(text, title)
        assert frames(rows, proto) == expected
        assert expected or (name, proto) != ("campus.pcap", proto)
    if name == "campus.pcap":
        assert conversations(rows, 17) == tshark_conversations(live_lines(path), 17)


def frames_of(text: str, title: str) -> Sums:
    """Lines `A:PORT <-> B:PORT  frames bytes ...` as {(A, port, packets from A, B, port, packets from B): number}."""
    part = text.partition(f"{title} Conversations")[2].partition("=====")[0]
    found: Sums = Counter()
    for line in part.splitlines():
        match = re.match(r"(\S+):(\d+)\s+<-> (\S+):(\d+)\s+(\d+) .*?(?:bytes|kB|MB)\s+(\d+) ", line)
        if match:
            a, a_port, b, b_port, to_a, to_b = match.groups()
            found[ordered((a, a_port, to_b), (b, b_port, to_a))] += 1
    return found


def ordered(*ends: tuple[str, str, str]) -> tuple[str, ...]:
    return tuple(word for end in sorted(ends) for word in end)


def frames(rows: list[Row], proto: int) -> Sums:
    return Counter(
        ordered(*((r[f"{e}_ip"], str(r[f"{e}_port"]), str(r[f"{e}_packets"])) for e in ("src", "dst")))
        for r in rows
        if r["proto"] == proto and (r["src_port"] or r["dst_port"])
    )


@pytest.mark.skipif(not shutil.which("nfpcapd"), reason="needs nfdump; bin/check installs it as root")
@pytest.mark.parametrize("name", ["campus.pcap", "reorder.pcap"])
def test_examples_equal_bidirectional_nfdump(folder: Path, tmp_path: Path, name: str) -> None:
    """`nfdump -B`: packets and IP bytes of both ways, by five-tuple; a later SYN of the same ports is no new flow."""
    path = capture(name, folder)
    subprocess.run(["nfpcapd", "-r", path, "-l", tmp_path], capture_output=True, check=True)
    command = ["nfdump", "-R", tmp_path, "-q", "-N", "-B", "-6", "-o", "csv", "proto tcp or proto udp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs: Counter[tuple[str, str, str, str]] = Counter()
    for line in done.stdout.splitlines():
        word = line.split(",")
        if word[7:8] in (["TCP"], ["UDP"]):
            for (a, a_port), (b, b_port), packets, size in (
                ((word[3], word[5]), (word[4], word[6]), word[11], word[12]),
                ((word[4], word[6]), (word[3], word[5]), word[13], word[14]),
            ):
                theirs[word[7], f"{a} {a_port}", f"{b} {b_port}", "packets"] += int(packets)
                theirs[word[7], f"{a} {a_port}", f"{b} {b_port}", "bytes"] += int(size)
    ours: Counter[tuple[str, str, str, str]] = Counter()
    for r in flows_of(path):
        if r["proto"] in (6, 17):
            for a, b in (("src", "dst"), ("dst", "src")):
                ends = f"{r[f'{a}_ip']} {r[f'{a}_port']}", f"{r[f'{b}_ip']} {r[f'{b}_port']}"
                for what in ("packets", "bytes"):
                    ours["TCP" if r["proto"] == 6 else "UDP", *ends, what] += r[f"{a}_{what}"]
    assert +ours == +theirs
    assert ours


# Connections that tcptrace cuts elsewhere: a SYN that was sent again, times that go back, ports used again.
OTHER_CUTS = {"ndpi_rtsp_sll_rtx.pcapng", "pcpp_pcapng_example.pcapng", "tcpdump_timestamp_invalid_micro.pcap"}
# Lengths of headers that are larger than the packet, and of jumbograms.
OTHER_LENGTHS = {"ndpi_fuzz_2006_be.pcap", "tcpdump_bigtcp_ipv6_hbh.pcap"}
# Of these it counts keep-alives, a byte that is sent again, as data; or segments of reordered paths otherwise.
OTHER_PACKETS = {"ndpi_sites_multi_if.pcapng", "zeek_ipv6_atomic_frag.pcap"}  # IPv6 with extension headers
OTHER_RETRANSMISSIONS = {
    "big_mlab_ndt7_146k.pcap": 1,
    "big_zeek_echo_82k.pcap": 22,
    "ndpi_fuzz_2006_be.pcap": 2,
    "pcpp_many_protocols_4709.pcap": 56,
    "zeek_http_206_b.pcap": 1,
}


@pytest.mark.parametrize("name", [n for n in names(".tcptrace.csv.gz") if n not in OTHER_PACKETS])
def test_connections_equal_tcptrace(pcaps: Path, name: str) -> None:
    """Packets, payload, resets, zero windows and segments sent again or out of order, each way."""
    theirs, other = tcptrace(pcaps / "truth" / f"{name}.tcptrace.csv.gz"), 0
    mine: dict[frozenset[tuple[str, int]], list[Row]] = {}
    for row in flows_of(pcaps / name):
        if row["proto"] == 6:
            ends = frozenset({(row["src_ip"], row["src_port"]), (row["dst_ip"], row["dst_port"])})
            mine.setdefault(ends, []).append(row)
    for ends, connections in theirs.items():
        rows = mine[ends]
        assert len(rows) == len(connections) or name in OTHER_CUTS, ends
        if len(rows) != len(connections):
            continue
        for (a, t), m in zip(connections, rows, strict=True):
            first = "src" if (m["src_ip"], m["src_port"]) == a else "dst"
            for end, way in ((first, "a2b"), ("src" if first == "dst" else "dst", "b2a")):
                assert m[f"{end}_packets"] == t[f"total_packets_{way}"]
                assert m[f"{end}_resets"] == t[f"resets_sent_{way}"]
                assert m[f"{end}_payload"] == t[f"actual_data_bytes_{way}"] or name in OTHER_LENGTHS
                assert m[f"{end}_zero_windows"] == t[f"zero_win_adv_{way}"] or name in OTHER_LENGTHS
                again = t[f"rexmt_data_pkts_{way}"] + t[f"outoforder_pkts_{way}"]
                other += m[f"{end}_retx"] + m[f"{end}_ooo"] != again
    assert other == OTHER_RETRANSMISSIONS.get(name, 0)


def tcptrace(path: Path) -> dict[frozenset[tuple[str, int]], list[tuple[tuple[str, int], dict[str, int]]]]:
    """{ends: [(end a, numbers)]} in the order of the connections.  Without addresses that it prints in a wrong way."""
    text = [line for line in gzip.open(path, "rt").read().splitlines() if line and not line.startswith("#")]
    found: dict[frozenset[tuple[str, int]], list[tuple[tuple[str, int], dict[str, int]]]] = {}
    for raw in csv.DictReader(text):
        row = {k.strip(): v.strip() for k, v in raw.items() if k}
        try:
            a, b = ((str(ip_address(_short(row[f"host_{e}"]))), int(row[f"port_{e}"])) for e in "ab")
        except ValueError:
            continue
        numbers = {k: int(v) for k, v in row.items() if v.lstrip("-").isdigit()}
        found.setdefault(frozenset({a, b}), []).append((a, numbers))
    return found


def _short(address: str) -> str:
    return ":".join(group.lstrip("0") or ("0" if group else "") for group in address.split(":"))


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
def test_round_trips_equal_tshark(folder: Path) -> None:
    """The two round trips of the handshake together are tshark's initial RTT."""
    path = capture("campus.pcap", folder)
    theirs: Counter[int] = Counter()
    seen = set()
    for t in oracle_tcp.tshark(path):
        irtt = oracle_tcp.delta(t["tcp.analysis.initial_rtt"])
        if irtt and t["tcp.stream"] not in seen:
            seen.add(t["tcp.stream"])
            theirs[irtt] += 1
    rows = [r for r in flows_of(path) if r["ack_rtt"]]
    again = [r for r in rows if r["src_retx"] + r["dst_retx"]]  # of two SYNs, tshark takes the later one
    mine = Counter(r["syn_rtt"] + r["ack_rtt"] for r in rows if r not in again)
    assert mine.total() > len(again)
    assert not mine - theirs
