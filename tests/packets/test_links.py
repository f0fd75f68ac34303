"""Every link type and encapsulation that is parsed, in captures made here, against tshark and tcpdump."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import make_links
import oracle_packets
from confluo_tools.expr import compile
from confluo_tools.formats.pcap import open_captures
from confluo_tools.schema.link_types import LINK_TYPES
from forked_commands import run_forked

needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
needs_tcpdump = pytest.mark.skipif(not shutil.which("tcpdump"), reason="no tcpdump here")
NOT_IN_TSHARK = (166, 219)  # 4.0 has no dissector for these link types
# tcpdump's BPF expects an address and a control byte before the protocol of PPP, and looks at no Frame Relay port.
NOT_IN_BPF = {9: ("tcp", "udp", "icmp", "ip", "ip6"), 107: ("tcp", "udp", "icmp")}
INNER = 32  # of notes
WORDS = ("tcp", "udp", "icmp", "ip", "ip6")


def rows(path: Path, decap: str = "outer") -> list[oracle_packets.OurRow]:
    with open_captures([str(path)], decap=decap) as captures:
        found = [oracle_packets.OurRow(block, i) for block in captures for i in range(block.rows)]
    assert not captures.warnings
    return found


def count(path: Path, expression: str, decap: str = "outer") -> int:
    with open_captures([str(path)], decap=decap) as captures:
        program = compile(expression, captures.schema).program
        return sum(len(program.select(block)) for block in captures)


def tcpdump(path: Path, expression: str) -> int | None:
    """Packets that match; None: the expression is refused for this link type."""
    done = subprocess.run(["tcpdump", "-n", "--count", "-r", path, expression], capture_output=True, text=True)
    found = re.match(r"(\d+) packets?", done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def tshark_count(path: Path, expression: str) -> int:
    done = subprocess.run(["tshark", "-n", "-r", path, "-Y", expression], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def compare(path: Path) -> None:
    """Each field of the outermost and innermost headers equals tshark's."""
    live, outer, inner = oracle_packets.tshark(path), rows(path), rows(path, "inner")
    assert len(live) == len(outer) == len(inner) > 0
    wrong = []
    for i, (row, out, inn) in enumerate(zip(live, outer, inner, strict=True), 1):
        theirs = (("outer", out, oracle_packets.outer(row)), ("inner", inn, oracle_packets.innermost(row, inn)))
        for mode, mine, known in theirs:
            wrong += [
                f"packet {i}, {mode}: {field} is {mine[field]}, tshark says {value} ({row['frame.protocols'][0]})"
                for field, value in known.items()
                if mine[field] != value
            ]
    assert not wrong, "\n".join(wrong[:20])


def test_every_parsed_link_type_is_made() -> None:
    same = {12: 101, 14: 101}  # numbers of other systems for raw IP
    assert {same.get(number, number) for number in LINK_TYPES} == set(make_links.LINKS)


def made(link: int, word: str) -> int:
    """Packets of `make_links.PLAIN` that the word finds in a capture of the link type."""
    protocols, at, version = {6: "tcp", 17: "udp", 1: "icmp"}, {0x0800: 9, 0x86DD: 6}, {0x0800: "ip", 0x86DD: "ip6"}
    packets = [p for p in make_links.PLAIN if make_links.ONLY.get(link, p[0]) == p[0]]
    return sum(word in (protocols[packet[at[kind]]], version[kind]) for kind, packet in packets)


@pytest.mark.parametrize("link", make_links.LINKS)
def test_link_types(link: int, tmp_path: Path) -> None:
    """Found by us, by tshark and by tcpdump alike."""
    path = make_links.write(tmp_path / "x.pcap", make_links.frames(link), link)
    assert all(row["ip_version"] and not row["notes"] for row in rows(path))
    assert [count(path, word) for word in WORDS] == [made(link, word) for word in WORDS]


@needs_tshark
@pytest.mark.parametrize("link", [n for n in make_links.LINKS if n not in NOT_IN_TSHARK])
def test_link_types_equal_tshark(link: int, tmp_path: Path) -> None:
    compare(make_links.write(tmp_path / "x.pcap", make_links.frames(link), link))


@needs_tcpdump
@pytest.mark.parametrize("link", make_links.LINKS)
def test_link_types_equal_tcpdump(link: int, tmp_path: Path) -> None:
    path = make_links.write(tmp_path / "x.pcap", make_links.frames(link), link)
    for word in WORDS:
        theirs = tcpdump(path, word)
        if word in NOT_IN_BPF.get(link, ()):
            assert theirs == 0
        elif theirs is not None:
            assert count(path, word) == theirs, word


@needs_tshark
@pytest.mark.parametrize("form", range(len(make_links.FRAME_RELAY)))
def test_forms_of_frame_relay(form: int, tmp_path: Path) -> None:
    every = [make_links.FRAME_RELAY[form](packet) for packet in make_links.PLAIN]
    path = make_links.write(tmp_path / "x.pcap", every, 107)
    compare(path)
    assert count(path, "tcp") == 2


@needs_tcpdump
def test_addresses_of_fddi(tmp_path: Path) -> None:
    path = make_links.write(tmp_path / "x.pcap", make_links.frames(10), 10)
    for address in ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"):
        for side in ("", "src ", "dst "):
            assert count(path, f"ether {side}host {address}") == tcpdump(path, f"ether {side}host {address}")


def test_fragments_and_exceptions_of_arcnet(tmp_path: Path) -> None:
    packet = make_links.PLAIN[0][1]
    first, later = (b"\1\2\xd4" + bytes([flag]) + b"\0\7" + packet for flag in (5, 6))
    exception = b"\1\2\xd4\xff\xff\xff\xd4\0\0\7" + packet
    old = b"\1\2\xf0" + packet
    path = make_links.write(tmp_path / "x.pcap", [first, later, exception, old], 7)
    assert [row["proto"] for row in rows(path)] == [6, 0, 6, 6]
    assert [row["notes"] for row in rows(path)] == [0, 4, 0, 0]


def test_pktap_of_pktap_and_of_unknown_links(tmp_path: Path) -> None:
    frame = make_links.ethernet(make_links.PLAIN[0])
    every = [make_links.pktap(make_links.pktap(frame, 1), 258), make_links.pktap(frame, 195)]
    path = make_links.write(tmp_path / "x.pcap", every, 258)
    with open_captures([str(path)]) as captures:
        assert [oracle_packets.OurRow(block, i)["notes"] for block in captures for i in range(block.rows)] == [8, 8]


# -- 802.11 ---------------------------------------------------------------------------------------------------------


@needs_tcpdump
@pytest.mark.parametrize("link", [105, 127])
def test_addresses_of_802_11_equal_tcpdump(link: int, tmp_path: Path) -> None:
    """Data and management frames have a source and a destination; control frames have neither."""
    every = make_links.wlan_frames()
    path = make_links.write(tmp_path / "x.pcap", [make_links.radiotap(f) if link == 127 else f for f in every], link)
    for n in range(1, 6):
        for side in ("", "src ", "dst "):
            expression = f"ether {side}host 02:00:00:00:00:0{n}"
            assert count(path, expression) == tcpdump(path, expression), expression
    assert count(path, "ether host 02:00:00:00:00:01") > 12
    assert not any(row["notes"] for row in rows(path))


@needs_tshark
def test_addresses_of_802_11_equal_tshark(tmp_path: Path) -> None:
    path = make_links.write(tmp_path / "x.pcap", make_links.wlan_frames(), 105)
    command = ["tshark", "-n", "-r", path, "-T", "fields", "-e", "wlan.sa", "-e", "wlan.da"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = [line.replace(":", "").split("\t") for line in done.stdout.splitlines()]
    ours = [[f"{row[name]:012x}" if row[name] else "" for name in ("eth_src", "eth_dst")] for row in rows(path)]
    assert ours == theirs


def test_cut_frames_of_802_11_are_truncated(tmp_path: Path) -> None:
    every = make_links.wlan_frames()
    path = make_links.write(tmp_path / "x.pcap", [f[: 9 if len(f) == 10 else 15] for f in every], 105)
    assert {row["notes"] for row in rows(path)} == {1}


# -- tunnels --------------------------------------------------------------------------------------------------------


@needs_tshark
@pytest.mark.parametrize("name", make_links.tunnelled())
def test_tunnels_equal_tshark(name: str, tmp_path: Path) -> None:
    path = make_links.write(tmp_path / "x.pcap", make_links.tunnelled()[name])
    compare(path)
    assert all(row["tunnel"] for row in rows(path))
    assert all(row["notes"] & INNER for row in rows(path, "inner"))


def test_what_was_not_followed_is_counted(tmp_path: Path) -> None:
    every = [make_links.ethernet(packet) for packet in make_links.UNREAD.values()]
    path = make_links.write(tmp_path / "x.pcap", [*every, make_links.tunnelled()["l2tp"][0]])
    for decap, stuck in (("outer", 0), ("inner", len(every) - 1)):
        with open_captures([str(path)], decap=decap) as captures:
            tunnels = [oracle_packets.OurRow(block, i)["tunnel"] for block in captures for i in range(block.rows)]
            assert [tunnel != 0 for tunnel in tunnels] == [True] * (len(every) - 1) + [False, True]
            assert captures.counts["not_followed"] == stuck


# -- authentication headers -----------------------------------------------------------------------------------------


@needs_tcpdump
@needs_tshark
@pytest.mark.parametrize("expression", ["ah", "ip proto 51", "ip6 proto 51", "proto ah"])
def test_authentication_headers_are_found(expression: str, tmp_path: Path) -> None:
    every = (*make_links.PLAIN, *make_links.AUTH, (make_links.IP, make_links.AUTH[0][1][:30]))
    path = make_links.write(tmp_path / "x.pcap", [make_links.ethernet(packet) for packet in every])
    theirs = tcpdump(path, expression.replace("proto ah", r"proto \ah"))
    assert count(path, expression) == theirs
    assert count(path, f"not {expression}") == len(every) - theirs
    if expression == "ah":
        assert theirs == tshark_count(path, "ah || ip.proto == 51") == 5


# -- link types that are not parsed ---------------------------------------------------------------------------------


def test_a_link_type_that_is_not_parsed_is_reported_once_per_file(tmp_path: Path) -> None:
    for name, link in (("a.pcap", 195), ("b.pcap", 1), ("c.pcap", 147)):
        make_links.write(tmp_path / name, [make_links.ethernet(p) for p in make_links.PLAIN], link)
    with open_captures([str(tmp_path / f"{n}.pcap") for n in "abc"]) as captures:
        assert sum(block.rows for block in captures) == 15
        assert captures.counts["unknown_link"] == 10
        a, c = captures.warnings
        assert "a.pcap: 5 packets have a link type that is not parsed (195): " in a
        assert "c.pcap: 5 packets have a link type that is not parsed (147): " in c
        assert not captures.damaged


def test_commands_report_what_is_not_parsed(tmp_path: Path) -> None:
    path = make_links.write(tmp_path / "x.pcap", [make_links.ethernet(p) for p in make_links.PLAIN], 195)
    query, capture, capture_info, log_info = run_forked(
        [
            ("query", str(path), "tcp", "--count"),
            ("capture", "-r", str(path), "-w", "x.ml", "--stats"),
            ("info", str(path), "-T"),
            ("info", "x.ml", "-T"),
        ],
        tmp_path,
    )
    remark = "5 packets have a link type that is not parsed (195)"
    assert (query.status, query.out, query.err.count(remark)) == (1, "0\n", 1)
    assert (capture.status, capture.err.count(remark)) == (0, 1)
    assert "5 of link types that are not parsed" in capture.err
    assert "not_parsed\t5\n" in capture_info.out
    assert "not_parsed\t5\n" in log_info.out
