"""The captures of examples/data hold what their README promises, as tshark sees it; and can be recorded again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data"

# file: (least number of packets, {display filter: least number of packets it matches})
PROMISES: dict[str, tuple[int, dict[str, int]]] = {
    "campus.pcap.gz": (
        4000,
        {
            "tcp.analysis.retransmission": 5,
            "tcp.analysis.duplicate_ack": 5,
            "tcp.flags.reset == 1": 300,
            "ip.src == 10.1.0.13 && tcp.flags == 2": 300,
            "dns": 200,
            "icmp.type == 8": 15,
            "icmp.type == 3 && icmp.code == 3": 1,
            "icmpv6.type == 128": 10,
            "arp": 2,
            "ipv6": 300,
            "ip.dsfield.dscp == 46": 10,
            "ip.dsfield.ecn > 0": 50,
            "frame.cap_len < frame.len": 500,
        },
    ),
    "loss.pcap.gz": (
        3000,
        {
            "ip && tcp.analysis.retransmission": 10,
            "ipv6 && tcp.analysis.retransmission": 5,
            "tcp.analysis.duplicate_ack": 10,
            "tcp.options.sack_le": 10,
        },
    ),
    "reorder.pcap.gz": (
        1000,
        {"tcp.analysis.lost_segment": 10, "tcp.analysis.out_of_order || tcp.analysis.retransmission": 10},
    ),
    "vlan.pcap.gz": (
        300,
        {
            "vlan.id == 10 && !ieee8021ad": 50,
            "vlan.id == 20 && !ieee8021ad": 50,
            "ieee8021ad.id == 100 && vlan.id == 30": 50,
            "vlan && ipv6": 5,
            "vlan && arp": 2,
        },
    ),
    "tunnel.pcap.gz": (
        300,
        {
            "vxlan.vni == 42 && tcp": 50,
            "vxlan && icmpv6": 5,
            "gre.key == 7 && tcp": 50,
            "ip.proto == 4 && tcp": 50,
            "geneve.vni == 99 && tcp": 50,
        },
    ),
    "raw.pcap.gz": (80, {"tcp": 50, "dns": 10, "icmp": 5}),
    "cooked.pcap.gz": (500, {"sll": 500, "sll.pkttype == 4": 100, "arp": 4, "ipv6": 100}),
    "links.pcapng.gz": (
        300,
        {
            "frame.interface_id == 0": 100,
            "frame.interface_id == 1": 100,
            "ip.flags.mf == 1": 2,
            "ipv6.fraghdr.more == 1": 2,
            "icmp.type == 11": 1,
            "icmp.type == 3 && icmp.code == 1": 1,
            "icmpv6.type == 1 && icmpv6.code == 4": 1,
        },
    ),
    "exports.pcap.gz": (100, {"udp.dstport == 2055": 30, "udp.dstport == 4739": 20, "udp.dstport == 6343": 20}),
}
OURS = re.compile(r"10\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.|127\.|0\.0\.0\.0$|fd00:|fe80:|ff0|::1$|::$")


def tshark(path: Path, *options: str) -> list[str]:
    if not shutil.which("tshark"):
        pytest.skip("tshark is not installed; bin/check installs it as root")
    command = ["tshark", "-n", "-r", str(path), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def broken_promises(folder: Path, name: str) -> list[str]:
    """What of PROMISES does not hold for a file."""
    least, filters = PROMISES[name]
    wanted = {"frame": least, **filters}
    table = tshark(folder / name, "-q", "-z", ",".join(["io,stat,0", *wanted]))
    cells = next(line for line in table if "<>" in line).strip("|").split("|")  # interval, frames, bytes, frames ...
    counts = [int(cell) for cell in cells[1::2]]
    return [
        f"{expr}: {count} < {want}" for (expr, want), count in zip(wanted.items(), counts, strict=True) if count < want
    ]


@pytest.mark.parametrize("name", PROMISES)
def test_shows_what_the_readme_says(name: str) -> None:
    assert broken_promises(DATA, name) == []


@pytest.mark.parametrize("name", PROMISES)
def test_holds_only_our_own_addresses(name: str) -> None:
    fields = [
        "-T",
        "fields",
        "-e",
        "ip.src",
        "-e",
        "ip.dst",
        "-e",
        "ipv6.src",
        "-e",
        "ipv6.dst",
        "-e",
        "arp.src.proto_ipv4",
        "-e",
        "arp.dst.proto_ipv4",
    ]
    seen = {address for line in tshark(DATA / name, *fields) for address in re.split(r"[\t,]", line) if address}
    assert seen
    assert [address for address in sorted(seen) if not OURS.match(address)] == []


def test_every_file_has_its_promise_and_its_row() -> None:
    files = {p.name for p in DATA.iterdir()} - {"README.md"}
    assert files == set(PROMISES)
    assert set(re.findall(r"^\| `([^`]+)`", (DATA / "README.md").read_text(), re.M)) == files


def test_small_enough_to_ship() -> None:
    sizes = {p.name: p.stat().st_size for p in DATA.iterdir()}
    assert max(sizes.values()) < 300_000
    assert sum(sizes.values()) < 1_500_000


@pytest.fixture
def recorder() -> list[str]:
    """The command that records, or a skip that says what it lacks."""
    if os.geteuid():
        pytest.skip("namespaces need root")
    if missing := [tool for tool in ("ip", "nft", "tcpdump", "dumpcap", "sysctl", "unshare") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    trial = ["unshare", "-n", "ip", "link", "add", "t0", "type", "vxlan", "id", "1", "dstport", "4789"]
    if subprocess.run(trial, capture_output=True, check=False).returncode or not Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no namespaces, no VXLAN or no /dev/net/tun")
    return [sys.executable, str(ROOT / "examples" / "record-data")]


def namespaces_of(pid: int) -> list[str]:
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return [line for line in names.splitlines() if line.startswith(f"cfl{pid}-")]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.net
def test_can_be_recorded_again(recorder: list[str], tmp_path: Path) -> None:
    with subprocess.Popen([*recorder, str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
    wanted = set(PROMISES)
    if not (shutil.which("softflowd") and shutil.which("pmacctd")):
        wanted.remove("exports.pcap.gz")  # the script says so
    assert {p.name for p in tmp_path.iterdir()} == wanted
    assert {name: broken for name in wanted if (broken := broken_promises(tmp_path, name))} == {}
    assert namespaces_of(process.pid) == []


@pytest.mark.root
@pytest.mark.net
def test_a_stopped_recording_leaves_nothing(recorder: list[str], tmp_path: Path) -> None:
    with subprocess.Popen([*recorder, str(tmp_path), "vlan"], stderr=subprocess.DEVNULL) as process:
        while not namespaces_of(process.pid):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        process.terminate()
    assert process.returncode == 143
    assert namespaces_of(process.pid) == []
    assert list(tmp_path.iterdir()) == []
