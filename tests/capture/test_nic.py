"""Live captures in namespaces, held against tcpdump and tshark on the same traffic."""

from __future__ import annotations

import gzip
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.errors import ConfluoError
from confluo_tools.formats.pcap import open_captures, packet_schema
from confluo_tools.kernel import bpf, interfaces
from netns import Lab, Space
from nic_lab import capture, end_all, frame, rows, send, table, tcpdump, wait_for
from running import BIN, CAMPUS, completed, environment

pytestmark = [pytest.mark.net, pytest.mark.root]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    end_all()


def campus() -> list[bytes]:
    """The frames of the example capture that an interface takes."""
    data = gzip.decompress(CAMPUS.read_bytes())
    frames, at = [], 24
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return [f for f in frames if 60 <= len(f) <= 1514]


def tagged() -> list[bytes]:
    """VLAN tags that the kernel takes out of the packet, and inner ones that it leaves there."""
    return [
        frame(dport=80),
        frame(dport=81, tags=[(0x8100, 5)]),
        frame(dport=82, tags=[(0x88A8, 7), (0x8100, 9)]),
        frame(dport=83, tags=[(0x8100, 0x6005)]),
        frame(dport=84, tags=[(0x8100, 5), (0x8100, 6)], size=1400),
    ]


def by_tshark(path: Path, *names: str) -> list[tuple[str, ...]]:
    """The first value of each field of each packet."""
    words = [w for name in names for w in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-n", "-r", path, "-T", "fields", "-E", "occurrence=f", *words], capture_output=True, check=True
    )
    return [tuple(line.split("\t")) for line in done.stdout.decode().split("\n")[:-1]]


def number(text: str) -> int:
    return int(text, 0) if text else 0


def test_fields_are_those_that_tshark_sees(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """The same packets through tcpdump's ring and through ours; tags that the kernel took out are back."""
    a, b = pair
    sent = [*campus()[:1500], *tagged()]
    theirs, ours = (
        tcpdump(b, "-w", tmp_path / "x.pcap", "--time-stamp-precision", "nano"),
        capture(b, "-i", "v0", "-w", tmp_path / "log"),
    )
    assert send(a, sent) == len(sent)
    wait_for(tmp_path / "log", len(sent))
    status, _, err = ours.end()
    assert status == 130
    assert err.startswith(b"confluo-capture: %d packets received, %d kept" % (len(sent), len(sent)))
    assert b" 0 dropped by the kernel" in err
    time.sleep(0.3)
    theirs.end()
    truth = by_tshark(
        tmp_path / "x.pcap",
        "frame.time_epoch",
        "frame.len",
        "ip.src",
        "ip.ttl",
        "ip.id",
        "tcp.srcport",
        "udp.dstport",
        "tcp.seq_raw",
        "tcp.flags",
        "vlan.id",
        "ieee8021ad.id",
        "eth.src",
    )
    mine = table(
        tmp_path / "log",
        "ts",
        "len",
        "cap_len",
        "vlan",
        "src_ip",
        "ip_version",
        "tunnel",
        "ttl",
        "ip_id",
        "src_port",
        "dst_port",
        "proto",
        "tcp_seq",
        "tcp_flags",
        "eth_src",
        "iface",
        "notes",
    )
    assert len(truth) == len(mine) == len(sent)
    compared = 0
    for (when, length, src, ttl, ident, tcp, udp, seq, flags, vlan, outer, mac), got in zip(truth, mine, strict=True):
        seconds, _, rest = when.partition(".")
        assert got[0] == int(seconds) * 10**9 + int(rest.ljust(9, "0")[:9])
        assert got[1] == number(length)
        assert got[2] == min(number(length), 256 + 4 * (got[3] > 0))
        assert got[3] == number(outer or vlan)
        assert f"{got[14]:012x}" == mac.replace(":", "")
        assert got[15] == 2
        if got[6] or got[16] & 2:  # inside a tunnel, or malformed: the two differ (docs/oracles.md)
            continue
        compared += 1
        if got[5] == 4:
            octets = got[4].to_bytes(4, "big")
            assert (".".join(map(str, octets)), got[7], got[8]) == (src, number(ttl), number(ident))
        if tcp:
            assert (got[9], got[12], got[13]) == (number(tcp), number(seq), number(flags))
        if udp and got[11] == 17:
            assert got[10] == number(udp)
    assert compared > 1000
    assert [r[3] for r in mine[-5:]] == [0, 5, 7, 5, 5]


def test_packets_are_those_of_tcpdump_byte_by_byte(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    sent = [*tagged(), *campus()[:300], frame(size=1514)]
    theirs = tcpdump(b, "-U", "-w", tmp_path / "x.pcap")
    ours = capture(b, "-i", "v0", "-s", "2000", "-o", "pcap", "-w", tmp_path / "y.pcap", "--duration", "2s")
    send(a, sent)
    assert ours.wait()[0] == 0
    theirs.end()
    frames = [read_frames(tmp_path / name) for name in ("x.pcap", "y.pcap")]
    assert frames[0] == frames[1] == sent


def read_frames(path: Path) -> list[bytes]:
    data, frames, at = path.read_bytes(), [], 24
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return frames


FILTERS = ["tcp port 80", "udp and greater 100", "vlan 5", "vlan and udp", "not ip", "tcp[tcpflags] & tcp-syn != 0"]


def test_kernel_filters_take_what_those_of_tcpdump_take(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    theirs = [tcpdump(b, "-w", tmp_path / f"{i}.pcap", text) for i, text in enumerate(FILTERS)]
    ours = [capture(b, "-i", "v0", "-w", tmp_path / f"{i}.ml", "--bpf", text) for i, text in enumerate(FILTERS)]
    send(a, [*campus()[:800], *tagged(), *(frame(proto=6, dport=80, ident=i) for i in range(7))])
    time.sleep(0.5)
    counts = []
    for i, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert our.end()[0] == 130
        _, _, err = their.end()
        captured = re.search(rb"(\d+) packets captured", err)
        assert captured is not None
        counts.append(int(captured[1]))
        assert rows(tmp_path / f"{i}.ml") == counts[-1], FILTERS[i]
    assert min(counts) > 0
    assert counts[2:4] == [3, 2]  # two of the four have another tag below the first


def test_an_expression_on_top_and_a_limit(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    one = capture(b, "-i", "v0", "-w", tmp_path / "one", "--bpf", "udp", "dst_port == 7", "--stats")
    two = capture(b, "-i", "v0", "-w", tmp_path / "two", "-c", "50", "--lanes", "2", "--fanout", "rr")
    tsv = capture(b, "-i", "v0", "-T", "-f", "dst_port,iface", "-c", "3", "dst_port == 7", out=subprocess.PIPE)
    some = capture(b, "-i", "v0", "-w", tmp_path / "some", "--sample-packets", "1/10")
    time_is_over = capture(b, "-i", "v0", "-w", tmp_path / "none", "--duration", "100ms", "dst_port == 9")
    send(a, [frame(dport=7 + i % 2, ident=i) for i in range(200)] + [frame(proto=6, dport=7)])
    assert two.wait()[0] == 0
    assert len(table(tmp_path / "two", "ts")) == 50
    status, out, _ = tsv.wait()
    assert (status, out.decode().splitlines()[2:]) == (0, ["7\t2"] * 3)
    wait_for(tmp_path / "one", 100)
    status, _, err = one.end()
    assert status == 130
    assert b"200 packets received, 100 kept, 100 filtered" in err
    assert table(tmp_path / "one", "proto", "dst_port") == [(17, 7)] * 100
    wait_for(tmp_path / "some", 21)
    assert some.end()[0] == 130
    assert len(table(tmp_path / "some", "ts")) == 21
    assert time_is_over.wait()[0] == 0


@pytest.mark.parametrize("how", ["hash", "cpu", "rr"])
def test_lanes_share_the_packets(tmp_path: Path, pair: tuple[Space, Space], how: str) -> None:
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--lanes", "3", "--fanout", how)
    sent = [frame(sport=1000 + i % 40, dport=9, ident=i) for i in range(1200)]
    sent += [frame(sport=9, dport=1000 + i % 40, ident=1200 + i) for i in range(40)]
    send(a, sent)
    wait_for(tmp_path / "log", len(sent))
    assert ours.end()[0] == 130
    assert sorted(r[0] for r in table(tmp_path / "log", "ip_id")) == list(range(len(sent)))
    done = completed([BIN / "confluo-info", "-T", tmp_path / "log"], capture_output=True, env=environment())
    shares = [int(n) for n in re.findall(rb"lanes\.\d\.rows\t(\d+)", done.stdout)]
    assert sum(shares) == len(sent)  # lanes without rows are not listed
    if how == "rr":
        assert len(shares) == 3
        assert max(shares) - min(shares) <= 1
    if how == "hash":
        assert len(shares) > 1
        assert flows_are_whole(tmp_path / "log")


def flows_are_whole(path: Path) -> bool:
    """Whether no flow, in its two directions, has packets in two lanes."""
    lanes: dict[int, set[int]] = {}
    with multilog.open(path, readonly=True) as log:
        column = log.schema.index("flow_hash")
        for block in log.blocks():
            for i in range(block.rows):
                lanes.setdefault(int(block.get(column, i)), set()).add(block.lane)
    return all(len(found) == 1 for found in lanes.values())


def test_rows_of_an_idle_interface_appear(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """One packet and then nothing: the kernel hands its block over by time."""
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log")
    for n in (1, 2, 3):
        send(a, [frame()])
        wait_for(tmp_path / "log", n, 5.0)
    assert ours.end()[0] == 130


def test_loopback_and_any(tmp_path: Path, lab: Lab) -> None:
    """On lo every packet passes twice, and counts once; `any` is all interfaces, with the number of each."""
    a, b = lab.pair()
    everything = capture(b, "-i", "any", "-w", tmp_path / "any")
    only_tcp = capture(b, "-i", "any", "--bpf", "tcp or vlan 5", "-w", tmp_path / "tcp")
    both = capture(b, "-i", "lo", "-i", "v0", "-w", tmp_path / "both")
    theirs = tcpdump(b, "-w", tmp_path / "lo.pcap", interface="lo")
    send(a, [frame(dport=5, ident=i) for i in range(10)] + tagged()[1:2] + [frame(proto=6)])
    b.run(
        "python3",
        "-c",
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "[s.sendto(b'x', ('127.0.0.1', 4000 + i)) for i in range(20)]",
    )
    time.sleep(0.5)
    captured = re.search(rb"(\d+) packets captured", theirs.end()[2])
    assert captured is not None
    for live in (everything, only_tcp, both):
        assert live.end()[0] == 130
    udp = [r[1:] for r in table(tmp_path / "any", "proto", "iface", "dst_port") if r[0] == 17]
    assert sorted(r[1] for r in udp if r[0] == 1) == list(range(4000, 4020))
    assert sorted(r[1] for r in udp if r[0] == 2) == [5] * 10 + [81]
    assert sum(r[0] == 1 for r in table(tmp_path / "both", "iface")) == int(captured[1])
    assert sorted(table(tmp_path / "both", "iface", "len")) == sorted(table(tmp_path / "any", "iface", "len"))
    assert sorted(table(tmp_path / "tcp", "proto", "vlan")) == [(6, 0), (17, 5)]


def test_interfaces_without_a_link_header(tmp_path: Path, lab: Lab) -> None:
    """A tun device gives IP packets as they are."""
    import fcntl

    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun")
    space = lab.space()
    with space.inside():
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"t0", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
    try:
        space.ip("link", "set", "t0", "up")
        ours = capture(space, "-i", "t0", "-w", tmp_path / "log", "--bpf", "udp port 53")
        everything = capture(space, "-i", "any", "-w", tmp_path / "any", "--bpf", "udp port 53")
        os.write(tun, frame(dport=53)[14:])
        os.write(tun, frame(dport=54)[14:])
        for log, live in ((tmp_path / "log", ours), (tmp_path / "any", everything)):
            wait_for(log, 1)
            live.end()
            assert table(log, "link_type", "dst_port", "len", "eth_src") == [(101, 53, 50, 0)]
    finally:
        os.close(tun)


def test_list_of_interfaces(pair: tuple[Space, Space]) -> None:
    _, b = pair
    done = b.run(BIN / "confluo-capture", "-D", env=environment())
    lines = done.stdout.decode().splitlines()
    assert [line.split()[1] for line in lines] == ["lo", "v0", "any"]
    assert "loopback" in lines[0]
    assert "Ethernet" in lines[1]


MISTAKES: list[tuple[list[str], str]] = [
    (["-i", "nosuch0", "-T"], "nosuch0: there is no such interface; confluo-capture -D lists them"),
    (["-i", "v0", "-T", "--bpf", "tcp prt 80"], "--bpf: 'tcp prt 80' is not a pcap-filter: "),
    (["-i", "v0", "-T", "--timestamps", "hardware"], "v0: this interface has no hardware timestamps for all packets; "),
    (["-i", "v0", "-T", "--timestamps", "mine"], "--timestamps: not 'mine'; there are host, hardware"),
    (["-i", "v0", "-T", "--ring", "1k"], "--ring: a ring of 1k is not possible; 128KiB to 1GiB are"),
    (["-i", "v0", "-T", "--fanout", "luck"], "--fanout: not 'luck'; there are hash, cpu, rr"),
    (["-i", "v0", "-r", "x"], "-r is for files; confluo-capture(1)"),
    (["-r", "x", "-Z", "nobody"], "-Z is for live captures; confluo-capture(1)"),
    (["-i", "v0", "-T", "-Z", "nosuchuser"], "-Z: unknown user 'nosuchuser'"),
    (["-i", "v0", "-T", "--keep", "1h"], "--keep is for a MultiLog; write one with -w LOG"),
    (["-i", "v0", "-w", "log", "--keep", "much"], "--keep: 'much' is neither a time nor a size; "),
    (["-i", "v0", "-w", "log", "--lanes", "70"], "--lanes: 70 lanes exceed the limit; use at most 64"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES)
def test_mistakes_are_told_in_a_line(tmp_path: Path, pair: tuple[Space, Space], words: list[str], line: str) -> None:
    done = pair[1].run(BIN / "confluo-capture", *words, check=False, cwd=tmp_path, env=environment())
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"confluo-capture: {line}")
    assert done.stderr.count(b"\n") == 1
    assert os.listdir(tmp_path) == []


def test_without_libpcap_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise OSError

    monkeypatch.setattr(bpf.ctypes, "CDLL", none)
    with pytest.raises(ConfluoError, match=r"libpcap is not installed; install it .*libpcap0\.8"):
        bpf.compile("tcp", bpf.ETHERNET, 256)


def test_names_of_interfaces_are_checked() -> None:
    for name in ("", "x" * 16, "ä" * 8):
        with pytest.raises(ConfluoError, match="is not an interface name"):
            interfaces.find(name)


def test_the_ring_parses_as_the_reader_of_files_does(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """All columns but those that tell where a packet came from; with a ring of many small batches."""
    a, b = pair
    theirs = tcpdump(b, "-U", "-w", tmp_path / "x.pcap", "-s", "256", "--time-stamp-precision", "nano")
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--immediate", "--ring", "1MiB")
    sent = campus()[1500:3500]
    for start in range(0, len(sent), 500):  # less than the ring has room for
        wait_for(tmp_path / "log", start + send(a, sent[start : start + 500]))
    ours.end()
    time.sleep(0.2)
    theirs.end()
    schema = packet_schema(offset=False)
    names = [c.name for c in schema.columns if c.name != "iface"]
    with open_captures([str(tmp_path / "x.pcap")], schema) as read:
        truth = [tuple(block.get(schema.index(n), i) for n in names) for block in read for i in range(block.rows)]
    assert table(tmp_path / "log", *names) == truth


def test_other_commands_read_it_while_it_runs(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """Indexes and filters added before, during and by the capture are kept up to its end."""
    a, b = pair
    log = tmp_path / "log"
    ours = capture(b, "-i", "v0", "-w", log, "--index", "dst_port", "--lanes", "2")
    send(a, [frame(dport=i % 10, sport=i) for i in range(500)])
    wait_for(log, 500)
    done = completed(
        [BIN / "confluo-index", log, "add", "filter", "sevens", "dst_port == 7"],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count = [BIN / "confluo-query", log, "dst_port == 7", "--count"]
    assert completed(count, capture_output=True, env=environment()).stdout == b"50\n"
    send(a, [frame(dport=7, sport=i) for i in range(50)])
    wait_for(log, 550)
    assert ours.end()[0] == 130
    assert completed(count, capture_output=True, env=environment()).stdout == b"100\n"
    told = completed([BIN / "confluo-info", "-T", log], capture_output=True, env=environment()).stdout.decode()
    assert re.findall(r"covered\t(\d+)", told) == ["550", "550"]


def test_counts_on_request_and_in_the_log(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log")
    send(a, [frame()] * 30)
    wait_for(tmp_path / "log", 30)
    ours.child.send_signal(signal.SIGUSR1)
    assert ours.hear(b"packets received").startswith(b"confluo-capture: 30 packets received, 30 kept, 0 filtered")
    assert ours.child.poll() is None
    assert ours.end(signal.SIGTERM)[0] == 143
    told = completed([BIN / "confluo-info", "-T", tmp_path / "log"], capture_output=True, env=environment())
    facts = dict(line.split("\t", 1) for line in told.stdout.decode().splitlines())
    wanted = {"interfaces": "v0", "received": "30", "kept": "30", "dropped": "0", "missed": "0", "ended": "signal"}
    assert {name: facts[f"captures.0.{name}"] for name in wanted} == wanted
