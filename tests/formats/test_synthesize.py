"""-o pcap --synthesize: tshark reads from the headers that were built what it reads from the capture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from confluo_tools.core.packets.packet import Packets
from confluo_tools.core.packets.pcap import Capture
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.formats.pcap.synthesize import COMMENT, HeaderFields, frame
from confluo_tools.schema.link_types import ETHERNET, RAW_IP
from running import CAMPUS, DATA, run

FIELDS = (
    "frame.time_epoch",
    "frame.len",
    "eth.src",
    "eth.dst",
    "vlan.id",
    "ip.src",
    "ip.dst",
    "ip.len",
    "ip.id",
    "ip.flags",
    "ip.frag_offset",
    "ip.ttl",
    "ip.dsfield",
    "ip.proto",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.hlim",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq_raw",
    "tcp.ack_raw",
    "tcp.flags",
    "tcp.window_size_value",
    "tcp.len",
    "tcp.hdr_len",
    "tcp.options.mss_val",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
)


def tshark(path: Path | str, *fields: str) -> list[str]:
    words = [word for field in fields for word in ("-e", field)]
    # The first of each field only: what an ICMP error quotes is payload.
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "occurrence=f", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
@pytest.mark.parametrize("name", ["campus.pcap.gz", "vlan.pcap.gz", "loss.pcap.gz"])
def test_tshark_reads_the_fields_of_the_capture(name: str, tmp_path: Path) -> None:
    capture, out = DATA / name, tmp_path / "out.pcapng"
    chosen = "tcp or udp"
    done = run("confluo-query", capture, chosen, "-o", "pcap", "--synthesize", "-w", out)
    assert (done.returncode, done.stderr) == (0, b"")
    captured = tmp_path / "captured.pcap"
    assert run("confluo-query", capture, chosen, "-o", "pcap", "--source", capture, "-w", captured).returncode == 0
    rows = tshark(out, *FIELDS)
    assert len(rows) > 50
    assert rows == tshark(captured, *FIELDS)
    assert set(tshark(out, "ip.checksum.status")) <= {"", "1", "2"}  # not bad
    lengths = [line.split("\t") for line in tshark(out, "frame.cap_len", "frame.len")]
    assert all(int(cap) <= 14 + 8 + 60 + 60 for cap, _ in lengths)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_checksums_are_right_where_all_bytes_are_known(tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    assert run("confluo-query", CAMPUS, "payload_len == 0", "-o", "pcap", "--synthesize", "-w", out).returncode == 0
    words = ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    command = ["tshark", "-r", str(out), *words, "-Y", "ip.checksum.status == 0 or udp.checksum.status == 0"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""


def test_the_file_says_that_packets_are_synthesized(tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    assert run("confluo-convert", CAMPUS, "-c", "3", "-o", "pcap", "--synthesize", "-w", out).returncode == 0
    data = out.read_bytes()
    assert data[:4] == b"\x0a\x0d\x0d\x0a"
    assert data.count(COMMENT.encode()) == 2
    assert run("confluo-query", out, "--count").stdout == b"3\n"


def test_an_empty_output_is_a_capture(tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    assert run("confluo-query", CAMPUS, "len == 1", "-o", "pcap", "--synthesize", "-w", out).returncode == 1
    assert run("confluo-query", out, "--count").stdout == b"0\n"


def test_kept_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    log, ours, theirs = tmp_path / "kept.ml", tmp_path / "ours.pcapng", tmp_path / "theirs.pcap"
    run("confluo-capture", "-q", "-r", CAMPUS, "-s", "64", "-w", log)
    assert run("confluo-query", log, "tcp", "-o", "pcap", "--synthesize", "-w", ours).returncode == 0
    assert run("confluo-query", log, "tcp", "-o", "pcap", "-w", theirs).returncode == 0
    frames = [[f[0:1] + f[2:4] + f[5:] for f in Capture(p.read_bytes()).frames_of()] for p in (ours, theirs)]
    assert frames[0] == frames[1]
    assert COMMENT.encode() not in ours.read_bytes()[200:]


def test_what_cannot_be_synthesized_is_refused(tmp_path: Path) -> None:
    done = run("confluo-query", CAMPUS, "-o", "pcap", "--synthesize", "--source", CAMPUS)
    assert (done.returncode, done.stderr) == (
        2,
        b"confluo-query: --source and --synthesize exclude each other; --source writes the captured packets\n",
    )
    done = run("confluo-convert", CAMPUS, "-J", "--synthesize")
    assert (done.returncode, done.stderr) == (2, b"confluo-convert: --synthesize: is for -o pcap and pcapng\n")
    done = run("confluo-query", "-", "-o", "pcap", stdin=CAMPUS.read_bytes())  # not a file that can be read again
    assert done.returncode == 2
    assert b"or build headers with --synthesize" in done.stderr


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("proto", [1, 6, 17, 58, 132, 47])
@pytest.mark.parametrize("link", [ETHERNET, 113])
def test_the_parser_reads_what_was_built(version: int, proto: int, link: int) -> None:
    record = HeaderFields()
    size = 4 if version == 4 else 16
    record.src, record.dst = bytes(range(1, size + 1)), bytes(range(101, size + 101))
    record.len, record.ip_version, record.proto, record.payload_len = 1500, version, proto, 1000
    record.ttl, record.dscp, record.ecn, record.link_type = 63, 46, 1, link
    if proto in (6, 17, 132):
        record.src_port, record.dst_port = 1234, 443
    if proto == 6:
        record.tcp_seq, record.tcp_ack, record.tcp_flags, record.tcp_window = 2**32 - 5, 77, 0x118, 501
        record.tcp_opts, record.tcp_mss, record.tcp_wscale, record.tcp_tsval = 0b10111, 1460, 7, 99
    if proto in (1, 58):
        record.icmp_type, record.icmp_code = 3, 1
    number, data = frame(record)
    assert number == (ETHERNET if link == ETHERNET else RAW_IP)
    packets = Packets(packet_schema().layout, rows=1)
    packets.add(data, link_type=number, length=1500)
    block = packets.take()
    row = {name: block.get(i, 0) for i, name in enumerate(block.layout.names)}
    for name in ("len", "ip_version", "proto", "payload_len", "ttl", "dscp", "ecn", "src_port", "dst_port"):
        assert row[name] == getattr(record, name), name
    for name in ("tcp_seq", "tcp_ack", "tcp_flags", "tcp_window", "tcp_opts", "tcp_mss", "tcp_wscale", "icmp_type"):
        assert row[name] == getattr(record, name), name
