"""What confluo-vote reads of other programs: packets of tshark; and what a topology says of ECMP."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import dpkt
import pytest

from confluo_tools import store
from confluo_tools.algo.routes import Routes
from confluo_tools.algo.topology import Clos, Topology, make_clos, make_topology
from confluo_tools.cli.records import open_one
from tests.running import run


def rows(path: Path, fields: str) -> list[list[str]]:
    done = run("confluo-convert", path, "-T", "--no-header", "-f", fields)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


# ---------------------------------------------------------------- tshark

COLUMNS = ("frame.time_epoch", "ip.src", "ip.dst", "ip.id", "icmp.type", "tcp.srcport", "tcp.dstport", "tcp.len",
           "tcp.analysis.retransmission")  # fmt: skip
ME, PEER = b"\x0a\x00\x00\x01", b"\x0a\x00\x07\x02"


def tcp(seq: int, data: bytes, ttl: int = 64, ip_id: int = 0, port: int = 5000) -> dpkt.ip.IP:
    segment = dpkt.tcp.TCP(sport=port, dport=80, seq=seq, ack=1, flags=dpkt.tcp.TH_ACK, data=data)
    return dpkt.ip.IP(src=ME, dst=PEER, p=6, ttl=ttl, id=ip_id, data=segment)


def exceeded(router: bytes, ttl: int, port: int = 5000) -> dpkt.ip.IP:
    quote = bytes(tcp(1, b"", 1, ttl, port))[:28]
    message = dpkt.icmp.ICMP(type=11, code=0, data=dpkt.icmp.ICMP.TimeExceed(data=dpkt.ip.IP(quote)))
    message.data = dpkt.icmp.ICMP.TimeExceed()
    return dpkt.ip.IP(src=router, dst=ME, p=1, data=bytes(dpkt.icmp.ICMP(type=11, code=0))[:4] + bytes(4) + quote)


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_losses_and_paths_from_what_tshark_prints(tmp_path: Path) -> None:
    packets = [tcp(1 + 100 * i, b"x" * 100) for i in range(10)]
    packets += [tcp(201, b"x" * 100), tcp(1, b"", 1, 1), exceeded(b"\x0a\x09\x00\x01", 1)]
    packets += [exceeded(b"\x0a\x09\x00\x03", 3), exceeded(b"\x0a\x09\x00\x05", 1, 5001)]
    with open(tmp_path / "x.pcap", "wb") as f:
        writer = dpkt.pcap.Writer(f, linktype=101)
        for i, packet in enumerate(packets):
            if isinstance(packet.data, bytes):  # an ICMP message, whose checksum is ours to make
                body = packet.data
                body = body[:2] + dpkt.in_cksum(body).to_bytes(2) + body[4:]
                packet = dpkt.ip.IP(src=packet.src, dst=packet.dst, p=1, data=body)
                packet.len = 20 + len(body)
            writer.writepkt(bytes(packet), ts=100.0 + i * 0.3)
    printed = subprocess.run(
        ["tshark", "-r", tmp_path / "x.pcap", "-Y", "tcp or icmp.type == 11", "-T", "fields", "-E", "header=y",
         *[word for name in COLUMNS for word in ("-e", name)]], capture_output=True, check=True)  # fmt: skip
    (tmp_path / "x.tsv").write_bytes(printed.stdout)
    path = f"{0x0A090001},0,{0x0A090003}"
    assert rows(tmp_path / "x.tsv", "src_ip,dst_ip,src_port,dst_port,proto,sent,lost,hops,path") == [
        ["10.0.0.1", "10.0.7.2", "5000", "80", "tcp", "11", "1", "3", path]]  # fmt: skip
    done = run("confluo-vote", tmp_path / "x.tsv", "--floor", "0", "-T", "--no-header", "-f", "link_a,link_b")
    assert done.stdout.splitlines()[0] == b"10.0.0.1\t10.9.0.1"


def test_what_tshark_did_not_print(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("frame.time_epoch\tip.src\n1.5\t10.0.0.1\n")
    done = run("confluo-vote", path)
    assert done.returncode == 2
    assert b"has no column ip.dst; tshark -e ip.dst prints it" in done.stderr
    wrong, right = "1.5\thello\t10.0.0.1\t\t\t1\t2\t3\t", "1.5\t10.0.0.1\t10.0.0.2\t\t\t1\t2\t3\t1"
    path.write_text("\t".join(COLUMNS) + f"\n{wrong}\n\n{right}\n")
    done = run("confluo-convert", path, "-T", "--no-header", "-f", "sent,lost")
    assert (done.returncode, done.stdout) == (2, b"1\t1\n")
    assert b"line 2: '1.5\\thello" in done.stderr.replace(b"\t", b"\\t")


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
    made = ("--tors", "10", "--t1s", "4", "--t2s", "4", "--hosts", "20", "--seed", "3", "--failures", "4",
            "--rate", "0.5%..1%")  # fmt: skip
    paths = tmp_path / "paths.arrows"
    assert run("confluo-vote", "simulate", *made, "--write-topology", net, "-w", paths).returncode == 0
    found = []
    for adjust in ("flows", "ecmp"):
        done = run("confluo-vote", paths, "--topology", net, "--adjust", adjust, "--top", "0", "-T", "--no-header",
                   "-f", "link_a,link_b,truth")  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        found.append({line for line in done.stdout.splitlines() if line.endswith(b"failed")})
    assert len(found[0]) == 4
    assert found[1] == found[0]


def test_flows_without_paths_are_judged_by_their_tors(tmp_path: Path) -> None:
    """--healthy ecmp of records that say no paths of flows without loss, against the paths themselves."""
    net, given = tmp_path / "net.yaml", []
    for healthy in ("bare", "path"):
        paths = tmp_path / f"{healthy}.arrows"
        assert run("confluo-vote", "simulate", "--hosts", "10", "--failures", "3", "--seed", "5", "--healthy", healthy,
                   "--write-topology", net, "--force", "-w", paths).returncode == 0  # fmt: skip
        how = "ecmp" if healthy == "bare" else "path"
        done = run("confluo-vote", paths, "--topology", net, "--model", "mle", "--healthy", how, "--score", "-T",
                   "--no-header", "-f", "failed,right,blamed,p_good")  # fmt: skip
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
        done = run("confluo-vote", "simulate", "--tors", "4", "--hosts", "4", "--t1s", "2", "--t2s", "2", "--failures",
                   "1", "--rate", "1%", "--seed", seed, "-w", parts[-1])  # fmt: skip
        assert done.returncode == 0
    before = run("confluo-vote", *parts, "-T")
    assert run("confluo-snapshot", *parts, "-w", tmp_path / "then.yaml").returncode == 0
    with store.open(parts[0]) as log, log.writer() as writer:
        for block in open_one(str(parts[1])):
            writer.append(block)
    assert run("confluo-vote", *parts, "-T").stdout != before.stdout
    then = run("confluo-vote", "--at", tmp_path / "then.yaml", "-T")
    assert (then.returncode, then.stdout, then.stderr) == (0, before.stdout, b"")
    for words, hint in (([parts[0]], "leave the other inputs out"), (["--follow"], "leave --follow out")):
        done = run("confluo-vote", "--at", tmp_path / "then.yaml", *words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert hint in done.stderr.decode()
