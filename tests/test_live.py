"""Live captures in namespaces that are thrown away, beside tcpdump on the same interface."""

from __future__ import annotations

import gzip
import os
import random
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import store
from confluo_tools.store import captures, views
from tests import netns
from tests.running import BIN, ROOT, environment

FRAMES = 2000
STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture
def wire() -> Iterator[tuple[netns.Space, netns.Space]]:
    with netns.Lab() as lab:
        try:
            yield lab.pair()
        finally:
            while STARTED:
                child = STARTED.pop()
                if child.poll() is None:
                    child.kill()
                child.communicate()


def frames(number: int = FRAMES) -> list[bytes]:
    data = gzip.decompress((ROOT / "examples" / "data" / "campus.pcap.gz").read_bytes())
    found, at = [], 24
    while at + 16 <= len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        found.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    short = [f for f in found if 14 <= len(f) <= 1514]
    return [short[i % len(short)] for i in range(number)]


def send(space: netns.Space, data: Sequence[bytes], pause: float = 0.0) -> None:
    with space.inside(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind(("v0", 0))
        for frame in data:
            out.send(frame)
            if pause:
                time.sleep(pause)


class Running:
    """A capture of v0 in a namespace that has begun."""

    def __init__(self, space: netns.Space, *words: Any, waits: bytes = b"capturing from", argv: Any = ()) -> None:
        command = [*argv, BIN / "confluo-capture", "-i", "v0", *words] if not argv or words else list(argv)
        self.child = space.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        STARTED.append(self.child)
        self.said = b""
        self.hear(waits)

    def hear(self, what: bytes) -> None:
        assert self.child.stderr is not None
        end = time.monotonic() + 30
        while what not in self.said:
            ready, _, _ = select.select([self.child.stderr], [], [], max(end - time.monotonic(), 0))
            data = os.read(self.child.stderr.fileno(), 4096) if ready else b""
            if not data:
                pytest.fail(f"no '{what.decode()}' in: {self.said.decode()}")
            self.said += data

    def end(self, number: int = signal.SIGINT) -> int:
        self.child.send_signal(number)
        _, err = self.child.communicate(timeout=60)
        self.said += err
        return self.child.returncode


def rows_of(log: Path, *names: str) -> list[tuple[Any, ...]]:
    with store.open(log, readonly=True) as opened:
        numbers = [opened.schema.index(n) for n in names]
        return [tuple(b.get(i, r) for i in numbers) for b in opened.blocks() for r in range(b.rows)]


def wait_for(log: Path, rows: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if store.is_log(log):
            with store.open(log, readonly=True) as opened:
                if opened.version().rows >= rows:
                    return
        time.sleep(0.01)
    pytest.fail(f"{rows} rows did not appear")


def test_the_same_packets_as_tcpdump(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    log, theirs = tmp_path / "live.ml", tmp_path / "theirs.pcap"
    dump = Running(
        b, argv=["tcpdump", "-i", "v0", "-U", "-B", "65536", "-Z", "root", "--nano", "-w", theirs, "udp or tcp"],
        waits=b"listening on",
    )  # fmt: skip
    mine = Running(b, "-w", log, "--index", "dst_port", "udp or tcp")
    send(a, frames())
    wait_for(log, sum(f[12:14] == b"\x08\x00" and f[23] in (6, 17) for f in frames()))
    assert mine.end() == 130
    size, end = -1, time.monotonic() + 20
    while size != theirs.stat().st_size and time.monotonic() < end:  # tcpdump gets its last block a second later
        size = theirs.stat().st_size
        time.sleep(1.5)
    dump.end()
    again = tmp_path / "theirs.ml"
    subprocess.run([BIN / "confluo-capture", "-r", theirs, "-w", again, "-q"], check=True, env=environment())
    with store.open(log, readonly=True) as opened:
        names = [c.name for c in opened.schema.columns if c.name not in ("cap_len", "iface", "notes")]
    expected = rows_of(again, *names)
    assert len(expected) > FRAMES // 2
    assert rows_of(log, *names) == expected
    with store.open(log, readonly=True) as opened:
        (view,) = views.indexes(opened)
        assert views.coverage(opened, view, opened.version())[0] == len(expected)


@pytest.mark.parametrize("fanout", ["hash", "rr"])
def test_lanes_share_the_packets(wire: Any, tmp_path: Path, fanout: str) -> None:
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log, "--lanes", 2, "--fanout", fanout)
    send(a, frames())
    wait_for(log, FRAMES)
    assert mine.end() == 130
    with store.open(log, readonly=True) as opened:
        tails = opened.version().tails
        lanes = [{b.get(opened.schema.index("flow_hash"), r) for b in opened.blocks() if b.lane == lane
                  for r in range(b.rows)} for lane in (0, 1)]  # fmt: skip
    assert sum(tails) == FRAMES
    assert min(tails[:2]) > 0
    if fanout == "hash":  # packets of a flow stay together; both directions of it may not
        with_ports = set(rows_of(log, "src_ip", "dst_ip", "src_port", "dst_port", "proto"))
        assert len(lanes[0]) + len(lanes[1]) <= len(with_ports)


@pytest.mark.parametrize("text", ["udp port 53", "tcp[tcpflags] & tcp-syn != 0", "host 10.1.0.13", "greater 100"])
def test_the_kernel_filters_as_tcpdump_does(wire: Any, tmp_path: Path, text: str) -> None:
    a, b = wire
    log, sent = tmp_path / "live.ml", tmp_path / "sent.pcap"
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    sent.write_bytes(head + b"".join(struct.pack("<IIII", 0, 0, len(f), len(f)) + f for f in frames()))
    done = subprocess.run(["tcpdump", "-nr", sent, text], capture_output=True, check=True)
    want = len(done.stdout.splitlines())
    assert 0 < want < FRAMES
    mine = Running(b, "-w", log, "--bpf", text)
    send(a, frames())
    wait_for(log, want)
    assert mine.end() == 130
    assert len(rows_of(log, "ts")) == want


def test_a_wrong_kernel_filter_is_told(wire: Any, tmp_path: Path) -> None:
    done = wire[1].run(
        BIN / "confluo-capture", "-i", "v0", "-w", tmp_path / "x", "--bpf", "port bogus beans", check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(b"confluo-capture: ")
    assert done.stderr.count(b"\n") <= 3
    assert not (tmp_path / "x").exists()


def test_few_packets_appear_soon(wire: Any, tmp_path: Path) -> None:
    """The ring's block is far from full: the kernel hands it over by time."""
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log)
    send(a, frames(3))
    wait_for(log, 3)
    send(a, frames(2))
    wait_for(log, 5)
    assert mine.end() == 130


def test_counts_on_demand_and_in_the_log(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log)
    send(a, frames(300))
    wait_for(log, 300)
    mine.child.send_signal(signal.SIGUSR1)
    mine.hear(b"300 packets received, 300 kept")
    assert mine.end() == 130
    assert mine.said.count(b"300 packets received") == 2
    (record,) = captures.captures(log)
    assert (record["packets_received"], record["kept"], record["dropped_by_the_kernel"]) == (300, 300, 0)
    assert record["interfaces"] == {"v0": record["interfaces"]["v0"]}
    assert record["ended"] == "signal"


def test_what_a_full_ring_drops_is_counted(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log, "--ring", "128KiB")
    mine.child.send_signal(signal.SIGSTOP)
    send(a, frames(5000))
    mine.child.send_signal(signal.SIGCONT)
    mine.hear(b"packets were dropped")
    assert mine.end() == 130
    (record,) = captures.captures(log)
    kept = len(rows_of(log, "ts"))
    assert record["dropped_by_the_kernel"] > 0
    assert kept + record["dropped_by_the_kernel"] == 5000


def test_an_interface_goes_down_and_comes_back(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log)
    send(a, frames(10))
    wait_for(log, 10)
    b.ip("link", "set", "v0", "down")
    mine.hear(b"down")
    b.ip("link", "set", "v0", "up")
    mine.hear(b"up")
    send(a, frames(10))
    wait_for(log, 20)
    assert mine.end() == 130


def test_an_interface_that_vanishes_ends_it(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log, "--wait", "500ms")
    send(a, frames(10))
    wait_for(log, 10)
    b.ip("link", "del", "v0")
    assert mine.child.wait(30) == 2
    mine.hear(b"v0: has vanished and did not come back; the packets before are kept")
    assert len(rows_of(log, "ts")) == 10


def test_privileges_are_given_up(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o011)
    log = tmp_path / "live.ml"
    mine = Running(b, "-w", log, "-Z", "nobody")
    send(a, frames(10))
    wait_for(log, 10)
    status = Path(f"/proc/{mine.child.pid}/status").read_text()
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert {*fields["Uid"].split()} == {str(log.stat().st_uid)} != {"0"}
    assert fields["Groups"].split() in ([], [fields["Gid"].split()[0]])
    assert all(int(fields[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    assert mine.end() == 130


def test_who_may_not_capture_is_told_how(wire: Any, tmp_path: Path) -> None:
    done = wire[1].run(
        "setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw", BIN / "confluo-capture", "-i", "v0",
        "-w", tmp_path / "x", check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 2
    assert b"setpriv" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "x").exists()


def test_killed_at_any_instant(wire: Any, tmp_path: Path) -> None:
    """No row that a reader has seen is lost, the next capture goes on, and indexes stay exact."""
    a, b = wire
    log = tmp_path / "live.ml"
    seen = 0
    for turn in range(5):
        mine = Running(b, "-w", log, "--append", "--index", "dst_port")
        send(a, frames(200))
        time.sleep(random.Random(turn).random() * 0.05)
        if store.is_log(log):
            with store.open(log, readonly=True) as opened:
                seen = max(seen, opened.version().rows)
        mine.child.kill()
        mine.child.wait()
        with store.open(log, readonly=True) as opened:
            assert seen <= opened.version().rows <= 200 * (turn + 1)
            seen = opened.version().rows
    done = subprocess.run(
        [BIN / "confluo-query", log, "dst_port == 53", "--count"], capture_output=True, env=environment(), check=False
    )
    ports = rows_of(log, "dst_port")
    assert int(done.stdout) == sum(port == 53 for (port,) in ports)
    verified = subprocess.run(
        [BIN / "confluo-info", "--verify", log], capture_output=True, env=environment(), check=False
    )
    assert verified.returncode == 0, verified.stderr


def test_live_packets_in_a_pipe(wire: Any, tmp_path: Path) -> None:
    a, b = wire
    mine = Running(b, "-o", "tsv", "-f", "len,src_port", "-c", "50", "udp")
    send(a, frames())
    out, _ = mine.child.communicate(timeout=30)
    assert mine.child.returncode == 0
    assert len(out.splitlines()) == 52
