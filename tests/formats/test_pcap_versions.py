"""Versions of pcap and pcapng: the order of the lengths, what is refused; against tcpdump and tshark."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import make_capture as make
import make_links
from forked_commands import run_forked

needs_peers = pytest.mark.skipif(not (shutil.which("tcpdump") and shutil.which("tshark")), reason="needs both peers")
FRAMES = [make_links.ethernet(packet) for packet in make_links.PLAIN]
PACKETS = [(1_700_000_000 * 10**9 + i * 10**6, frame) for i, frame in enumerate(FRAMES)]
LENGTHS = [len(frame) + 10 for frame in FRAMES]  # more on the wire than was captured
KNOWN = [((2, 0), True), ((2, 1), True), ((2, 2), True), ((2, 3), True), ((2, 3), False), ((2, 4), False)]


def section(major: int, minor: int) -> bytes:
    return make.block("<", 0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, major, minor, -1))


REFUSED = {
    **{f"{v[0]}.{v[1]}": make.pcap(PACKETS, version=v) for v in ((0, 0), (1, 4), (2, 5), (3, 0), (543, 1))},
    **{f"link {bits:x}": make.pcap(PACKETS, link=bits) for bits in (0x10001, 0x02000001)},
    **{f"pcapng {v[0]}.{v[1]}": section(*v) + make.interface() for v in ((0, 9), (1, 1), (1, 3), (2, 0))},
}
ACCEPTED = {
    "check sequences": make.pcap(PACKETS, link=0x24000001),  # the length of the frame check sequence
    **{f"pcapng 1.{n}": section(1, n) + make.interface() + make.enhanced(1, FRAMES[0]) for n in (0, 2)},
}


@needs_peers
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("version", "wire_first"), [*KNOWN, ((543, 0), True)])
def test_lengths_of_old_versions(version: tuple[int, int], wire_first: bool, order: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    data = make.pcap(PACKETS, order=order, lengths=LENGTHS, version=version, wire_first=wire_first)
    path.write_bytes(data)
    names = ("frame.len", "frame.cap_len", "ip.src")
    command = ["tshark", "-n", "-r", path, "-T", "fields", *(word for name in names for word in ("-e", name))]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ours, whole = run_forked(
        [
            ("query", "x.pcap", "-T", "--no-header", "-f", "len,cap_len,src_ip"),
            ("query", "x.pcap", "-w", "y.pcap", "--source", "x.pcap"),
        ],
        tmp_path,
    )
    rows = [line.split("\t") for line in ours.out.splitlines() if not line.startswith("#")]
    assert [row[:2] for row in rows] == [line.split("\t")[:2] for line in theirs]
    assert [(int(a), int(b)) for a, b, _ in rows] == [(len(f) + 10, len(f)) for f in FRAMES]
    done = subprocess.run(["tcpdump", "-n", "--count", "-r", path, "tcp"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 packets")
    assert (whole.status, whole.err) == (0, "")
    assert all(frame in (tmp_path / "y.pcap").read_bytes() for frame in FRAMES)


@needs_peers
@pytest.mark.parametrize("name", [*REFUSED, *ACCEPTED])
def test_what_tcpdump_refuses_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes({**REFUSED, **ACCEPTED}[name])
    theirs = subprocess.run(["tcpdump", "-n", "--count", "-r", path], capture_output=True, text=True)
    assert (theirs.returncode != 0) == (name in REFUSED)
    query, capture = run_forked([("query", "x.pcap", "--count"), ("capture", "-r", "x.pcap", "-w", "-")], tmp_path)
    for ran in (query, capture):
        assert ran.status == (2 if name in REFUSED else 0), ran
        assert (("reserved bits" if "link" in name else "its version") in ran.err) == (name in REFUSED), ran
        assert ran.err.count("\n") == (name in REFUSED), ran
