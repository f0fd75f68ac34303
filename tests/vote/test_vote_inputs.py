"""What confluo-vote reads of other programs: packets of tshark; and what a topology says of ECMP."""

from __future__ import annotations

import csv
import gzip
import lzma
import os
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import dpkt
import pytest

import nic_lab
import trace_lab
from confluo_tools import multilog
from confluo_tools.inputs.open import open_one
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, Topology, make_clos, make_topology
from netns import Lab
from running import run


def rows(path: Path, fields: str) -> list[list[str]]:
    done = run("confluo-convert", path, "-T", "--no-header", "-f", fields)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


# ---------------------------------------------------------------- tshark

COLUMNS = (
    "frame.time_epoch",
    "ip.src",
    "ip.dst",
    "ip.id",
    "icmp.type",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.hlim",
    "icmpv6.type",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq_raw",
    "tcp.len",
    "tcp.analysis.retransmission",
    "tcp.analysis.spurious_retransmission",
)
ME, PEER = b"\x0a\x00\x00\x01", b"\x0a\x00\x07\x02"
ME6, PEER6 = bytes.fromhex("20010db8" + "00" * 11 + "01"), bytes.fromhex("20010db8" + "00" * 11 + "02")
NEEDS_TSHARK = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")


def printed(capture: Path, columns: Iterable[str] = COLUMNS) -> bytes:
    """The output of tshark with the options in confluo-vote(1)."""
    return subprocess.run(
        [
            "tshark",
            "-r",
            capture,
            "-Y",
            "tcp or icmp.type == 11 or icmpv6.type == 3",
            "-T",
            "fields",
            "-E",
            "header=y",
            *[word for name in columns for word in ("-e", name)],
        ],
        capture_output=True,
        check=True,
    ).stdout


def captured(path: Path, packets: list[bytes]) -> Path:
    with open(path, "wb") as f:
        writer = dpkt.pcap.Writer(f, linktype=101)
        for i, packet in enumerate(packets):
            writer.writepkt(packet, ts=100.0 + i * 0.3)
    return path


def tcp(seq: int, data: bytes, ttl: int = 64, ip_id: int = 0, port: int = 5000) -> bytes:
    segment = dpkt.tcp.TCP(sport=port, dport=80, seq=seq, ack=1, flags=dpkt.tcp.TH_ACK, data=data)
    return bytes(dpkt.ip.IP(src=ME, dst=PEER, p=6, ttl=ttl, id=ip_id, data=segment))


def exceeded(router: bytes, ttl: int, port: int = 5000) -> bytes:
    body = bytes(8) + tcp(1, b"", 1, ttl, port)[:28]
    body = b"\x0b\0" + dpkt.in_cksum(b"\x0b\0" + body[2:]).to_bytes(2) + body[4:]
    return bytes(dpkt.ip.IP(src=router, dst=ME, p=1, data=body, len=20 + len(body)))


def tcp6(seq: int, data: bytes, hlim: int = 64, port: int = 5000) -> bytes:
    segment = bytes(dpkt.tcp.TCP(sport=port, dport=80, seq=seq, ack=1, flags=dpkt.tcp.TH_ACK, data=data))
    return b"\x60\0\0\0" + len(segment).to_bytes(2) + bytes([6, hlim]) + ME6 + PEER6 + segment


def exceeded6(router: bytes, seq: int, port: int = 5000) -> bytes:
    quote = tcp6(seq, b"", 1, port)
    body = b"\x03\0\0\0" + bytes(4) + quote
    total = dpkt.in_cksum(router + ME6 + len(body).to_bytes(4) + b"\0\0\0\x3a" + body)
    body = body[:2] + total.to_bytes(2) + body[4:]
    return b"\x60\0\0\0" + len(body).to_bytes(2) + bytes([58, 64]) + router + ME6 + body


def router6(number: int) -> bytes:
    return bytes.fromhex("20010db8ffff") + bytes(9) + bytes([number])


@NEEDS_TSHARK
def test_losses_and_paths_from_what_tshark_prints(tmp_path: Path) -> None:
    packets = [tcp(1 + 100 * i, b"x" * 100) for i in range(10)]
    packets += [tcp(201, b"x" * 100), tcp(1, b"", 1, 1), exceeded(b"\x0a\x09\x00\x01", 1)]
    packets += [exceeded(b"\x0a\x09\x00\x03", 3), exceeded(b"\x0a\x09\x00\x05", 1, 5001)]
    four = captured(tmp_path / "x.pcap", packets)
    path = f"{0x0A090001},0,{0x0A090003}"
    old = tuple(name for name in COLUMNS if "v6" not in name and name not in ("tcp.seq_raw", COLUMNS[-1]))
    for columns in COLUMNS, old:
        (tmp_path / "x.tsv").write_bytes(printed(four, columns))
        assert rows(tmp_path / "x.tsv", "src_ip,dst_ip,src_port,dst_port,proto,sent,lost,hops,path") == [
            ["10.0.0.1", "10.0.7.2", "5000", "80", "tcp", "11", "1", "3", path]
        ]
        done = run("confluo-vote", tmp_path / "x.tsv", "--floor", "0", "-T", "--no-header", "-f", "link_a,link_b")
        assert done.stdout.splitlines()[0] == b"10.0.0.1\t10.9.0.1"


@NEEDS_TSHARK
def test_losses_and_paths_over_ipv6(tmp_path: Path) -> None:
    """The hop is what the probe left with, whatever program sent it; only probes that left are believed."""
    packets = [tcp6(1 + 100 * i, b"x" * 100) for i in range(10)] + [tcp6(201, b"x" * 100)]
    packets += [tcp6(0x70000 + hop * 37, b"", hop) for hop in (1, 2, 3)]
    packets += [exceeded6(router6(hop), 0x70000 + hop * 37) for hop in (3, 1)]
    packets += [exceeded6(router6(9), 0x12345672), exceeded6(router6(8), 0x70025, 5001)]  # not requested
    (tmp_path / "x.tsv").write_bytes(printed(captured(tmp_path / "x.pcap", packets)))
    assert rows(tmp_path / "x.tsv", "ip_version,src_ip,dst_ip,src_port,dst_port,sent,lost,hops") == [
        ["6", "2001:db8::1", "2001:db8::2", "5000", "80", "11", "1", "3"]
    ]
    done = run("confluo-vote", tmp_path / "x.tsv", "-T", "--no-header", "-f", "link_a,link_b")
    assert set(done.stdout.splitlines()) == {b"2001:db8::1\t2001:db8:ffff::1", b"2001:db8:ffff::3\t2001:db8::2"}


@NEEDS_TSHARK
@pytest.mark.net
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
def test_paths_from_a_capture_are_those_that_the_tracer_found(tmp_path: Path) -> None:
    with Lab() as lab, ExitStack() as stack:
        net = trace_lab.chain(lab, 3, six=True)
        here = net.spaces["a"]
        flows = []
        dump = nic_lab.tcpdump(here, "-w", tmp_path / "x.pcap", interface="r1")
        for six in (False, True):
            server = stack.enter_context(trace_lab.tcp_server(net.spaces["b"], net.host("b", six), 443))
            with here.inside():
                client = stack.enter_context(socket.create_connection((net.host("b", six), 443), timeout=10))
            there = stack.enter_context(server.accept()[0])
            client.sendall(b"x" * 5000)
            there.recv(5000, socket.MSG_WAITALL)
            flows.append((net.host("a", six), net.host("b", six), client.getsockname()[1], 443))
        traced, _ = trace_lab.trace(here, trace_lab.records(flows), "--rate", "1000")
        dump.end()
    (tmp_path / "x.tsv").write_bytes(printed(tmp_path / "x.pcap"))
    found = rows(tmp_path / "x.tsv", "src_ip,src_port,sent,path,path6")
    assert len(found) == 2
    for src, port, sent, path, packed in found:
        (its,) = [r for r in traced if r["src_ip"] == src]
        assert (str(its["src_port"]), len(its["path"])) == (port, 3)
        assert path == ",".join(map(str, its["path"]))
        assert packed == (its["path6"] or "-")
        assert (":" in src) == packed.startswith(r"\xfd\x88")
        assert int(sent) >= 1


def in_truth(folder: Path, name: str) -> dict[tuple[str, str, str, str], list[int]]:
    """Flows -> what was sent again and for nothing, of a table of all fields that tshark once printed."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    with gzip.open(folder / "truth" / f"{name}.tcpanalysis.tsv.gz", "rt") as f:
        for row in csv.DictReader(f, delimiter="\t"):
            src, dst = row["ip.src"] or row["ipv6.src"], row["ip.dst"] or row["ipv6.dst"]
            if int(row["tcp.len"] or 0) and row["tcp.analysis.retransmission"]:
                both = found.setdefault((src, dst, row["tcp.srcport"], row["tcp.dstport"]), [0, 0])
                both[0] += 1
                both[1] += bool(row["tcp.analysis.spurious_retransmission"])
    return found


@NEEDS_TSHARK
@pytest.mark.slow
@pytest.mark.parametrize("name", ["big_mlab_ndt7_146k.pcap", "big_zeek_echo_82k.pcap"])
def test_flows_of_a_capture_are_those_that_wireshark_found(tmp_path: Path, pcaps: Path, name: str) -> None:
    (tmp_path / "x.tsv").write_bytes(printed(pcaps / name))
    done = rows(tmp_path / "x.tsv", "src_ip,dst_ip,src_port,dst_port,retrans,dsack,lost,sent")
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for a, b, c, d, *counts in done:
        its = found.setdefault((a, b, c, d), [0, 0, 0, 0])
        found[a, b, c, d] = [x + int(y) for x, y in zip(its, counts, strict=True)]
    assert all(again == nothing + lost for again, nothing, lost, _ in found.values())
    assert {flow: its[:2] for flow, its in found.items() if its[0]} == in_truth(pcaps, name)
    sent: dict[tuple[str, str], int] = {}
    for (_, _, sport, dport), its in found.items():
        sent[sport, dport] = sent.get((sport, dport), 0) + its[3]
    with open(tmp_path / "x.tsv") as f:
        packets = [row for row in csv.DictReader(f, delimiter="\t") if int(row["tcp.len"] or 0)]
    assert sent == Counter((row["tcp.srcport"], row["tcp.dstport"]) for row in packets)


def test_what_tshark_did_not_print(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    for header, column in (
        ("frame.time_epoch\tip.src", "ip.dst"),
        ("frame.time_epoch\tipv6.dst", "ipv6.src"),
        ("ip.src", "ip.dst"),
        ("\t".join([*COLUMNS]).replace("ip.id", "x"), "ip.id"),
        ("\t".join([*COLUMNS]).replace("tcp.seq_raw", "x"), "tcp.seq_raw"),
        ("\t".join([*COLUMNS]).replace("frame.time_epoch", "x"), "frame.time_epoch"),
    ):
        path.write_text(header + "\n1.5\t10.0.0.1\n")
        done = run("confluo-vote", "-i", "tshark", path)
        assert done.returncode == 2
        assert f"has no column {column}; tshark -e {column} prints it".encode() in done.stderr
    columns = ("frame.time_epoch", "ip.src", "ip.dst", "tcp.srcport", "tcp.dstport", "tcp.len", COLUMNS[-2])
    packets = [
        "1.5\thello\t10.0.0.1\t1\t2\t3\t",
        "",
        "1.5\t10.0.0.1\t10.0.0.2\t1\t2\t3\t1",
        "99999999999\t10.0.0.1\t10.0.0.2\t1\t2\t3\t",
        "\x00\xff",
        "1.5\t\t\t1\t2\t3",
        "1.6\t10.0.0.1\t10.0.0.2\t1\t2\t3",
    ]
    path.write_text("\n".join(["\t".join(columns), *packets, ""]))
    done = run("confluo-convert", path, "-T", "--no-header", "-f", "sent,lost")
    assert (done.returncode, done.stdout) == (2, b"2\t1\n")
    told = done.stderr.replace(b"\t", b" ").splitlines()
    assert [line.split(b": ")[2] for line in told[:3]] == [b"line 2", b"line 5", b"line 6"]
    assert b"1 packets have no address in the columns: left out; tshark -e ipv6.src -e ipv6.dst" in told[3]


# ---------------------------------------------------------------- ECMP, given a link


def counted(net: Topology, link: tuple[int, int]) -> dict[tuple[int, int], float]:
    """P(k | link) by walking every path between every two ToRs."""
    whole, out = 0.0, dict[tuple[int, int], float]()
    for s in net.tors:
        for d in net.tors:
            paths = list(net.paths(s, d)) if s != d else []
            for path in paths:  # all paths of a Clos between two ToRs are alike
                links = list(pairwise(path))
                if link in links:
                    whole += 1 / len(paths)
                    for k in links:
                        out[k] = out.get(k, 0.0) + 1 / len(paths)
    return {k: n / whole for k, n in out.items() if k != link}


ODD = make_topology([(1, 3), (2, 3), (2, 4), (1, 4), (4, 5), (6, 4)], {100: 1, 101: 2, 102: 5, 103: 6})


@pytest.mark.parametrize("net", [make_clos(Clos(2, 3, 2, 3, 2)), make_clos(Clos(3, 2, 3, 2, 1)), ODD])
def test_shares_given_a_link_are_those_of_all_paths(net: Topology) -> None:
    routes = Routes(net)
    for link in net.links():
        if link[0] in net.neighbours and link[1] in net.neighbours:
            want = counted(net, link)
            got = {k: f for k, f in routes.given(link).items() if f > 1e-12}
            assert got == {k: pytest.approx(f) for k, f in want.items()}, link


def test_shares_of_hosts_given_a_link() -> None:
    net = make_clos(Clos(2, 2, 2, 2, 4))
    routes = Routes(net)
    tor, t1 = net.tors[0], net.neighbours[net.tors[0]][0]
    hosts = [(h, t) for h, t in net.tor_of.items()] + [(t, h) for h, t in net.tor_of.items()]
    given = routes.given((tor, t1), hosts)
    ups = {h: given.get((h, t), 0.0) for h, t in net.tor_of.items()}
    assert sum(ups.values()) == pytest.approx(1)
    assert {f for h, f in ups.items() if net.tor_of[h] == tor} == {0.25}
    assert sum(given.get((t, h), 0.0) for h, t in net.tor_of.items()) == pytest.approx(1)
    up = next((h, t) for h, t in net.tor_of.items())
    assert all(routes.given(up, hosts).get((h, t), 0.0) == 0 for h, t in net.tor_of.items())


def test_adjusting_by_ecmp_finds_what_removing_flows_finds(tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    made = (
        "--tors",
        "10",
        "--t1s",
        "4",
        "--t2s",
        "4",
        "--hosts",
        "20",
        "--seed",
        "3",
        "--failures",
        "4",
        "--rate",
        "0.5%..1%",
    )
    paths = tmp_path / "paths.arrows"
    assert run("confluo-vote", "simulate", *made, "--write-topology", net, "-w", paths).returncode == 0
    found = []
    for adjust in ("flows", "ecmp"):
        done = run(
            "confluo-vote",
            paths,
            "--topology",
            net,
            "--adjust",
            adjust,
            "--top",
            "0",
            "-T",
            "--no-header",
            "-f",
            "link_a,link_b,truth",
        )
        assert (done.returncode, done.stderr) == (0, b"")
        found.append({line for line in done.stdout.splitlines() if line.endswith(b"failed")})
    assert len(found[0]) == 4
    assert found[1] == found[0]


def test_flows_without_paths_are_judged_by_their_tors(tmp_path: Path) -> None:
    """--healthy ecmp of records that say no paths of flows without loss, against the paths themselves."""
    net, given = tmp_path / "net.yaml", []
    for healthy in ("bare", "path"):
        paths = tmp_path / f"{healthy}.arrows"
        assert (
            run(
                "confluo-vote",
                "simulate",
                "--hosts",
                "10",
                "--failures",
                "3",
                "--seed",
                "5",
                "--healthy",
                healthy,
                "--write-topology",
                net,
                "--force",
                "-w",
                paths,
            ).returncode
            == 0
        )
        how = "ecmp" if healthy == "bare" else "path"
        done = run(
            "confluo-vote",
            paths,
            "--topology",
            net,
            "--model",
            "mle",
            "--healthy",
            how,
            "--score",
            "-T",
            "--no-header",
            "-f",
            "failed,right,blamed,p_good",
        )
        assert (done.returncode, done.stderr) == (0, b"")
        given.append(done.stdout.split())
    assert given[0][:3] == given[1][:3] == [b"3", given[1][1], given[1][1]]
    assert float(given[0][3]) == pytest.approx(float(given[1][3]), rel=0.05)


def test_open_one_knows_a_trace_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(lzma.compress(b"FP 1 2\nFID 1 2 3 4\n"))
    with open_one(str(tmp_path / "x")) as reader:
        assert (reader.format, reader.schema.kind) == ("flock", "path")


def test_a_snapshot_of_several_logs_is_judged_as_it_was(tmp_path: Path) -> None:
    parts = []
    for seed in ("1", "2"):
        parts.append(tmp_path / f"{seed}.ml")
        done = run(
            "confluo-vote",
            "simulate",
            "--tors",
            "4",
            "--hosts",
            "4",
            "--t1s",
            "2",
            "--t2s",
            "2",
            "--failures",
            "1",
            "--rate",
            "1%",
            "--seed",
            seed,
            "-w",
            parts[-1],
        )
        assert done.returncode == 0
    before = run("confluo-vote", *parts, "-T")
    assert run("confluo-snapshot", *parts, "-w", tmp_path / "then.yaml").returncode == 0
    with multilog.open(parts[0]) as log, log.writer() as writer:
        for block in open_one(str(parts[1])):
            writer.append(block)
    assert run("confluo-vote", *parts, "-T").stdout != before.stdout
    then = run("confluo-vote", "--at", tmp_path / "then.yaml", "-T")
    assert (then.returncode, then.stdout, then.stderr) == (0, before.stdout, b"")
    for words, hint in (([parts[0]], "leave the other inputs out"), (["--follow"], "leave --follow out")):
        done = run("confluo-vote", "--at", tmp_path / "then.yaml", *words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert hint in done.stderr.decode()
