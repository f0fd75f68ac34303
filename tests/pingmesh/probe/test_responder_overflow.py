"""A target with a full queue looks like loss in the network: confluo-pingmesh probe reads the responder's counters.

Real loss stays loss even while other sockets of that host overflow.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netns import Space
from running import completed

pytestmark = [pytest.mark.net, pytest.mark.root]
ROOT = Path(__file__).resolve().parents[3]
PINGMESH = str(ROOT / "bin" / "confluo-pingmesh")
PORT = 8765


@contextmanager
def responder(space: Space, *words: Any) -> Iterator[subprocess.Popen[bytes]]:
    it = space.popen(PINGMESH, "respond", "--listen", f"{space.address}:{PORT}", *words, stderr=subprocess.PIPE)
    try:
        assert it.stderr is not None
        assert b"answering on" in it.stderr.readline()
        yield it
    finally:
        it.kill()
        it.communicate()


def stop(it: subprocess.Popen[bytes]) -> None:
    it.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 60
    while "State:\tT" not in Path(f"/proc/{it.pid}/status").read_text():
        assert time.monotonic() < end, "it does not stop"
        time.sleep(0.005)


def fill(a: Space, address: str, port: int, n: int = 4) -> list[socket.socket]:
    """Connections that are not accepted, more than fit into a queue for one."""
    with a.inside():
        sockets = [socket.socket() for _ in range(n)]
        for s in sockets:
            s.setblocking(False)
            s.connect_ex((address, port))
    return sockets


def begun(a: Space, address: str, log: Path, *words: Any) -> subprocess.Popen[bytes]:
    """A probe command that has had its first answers."""
    it = a.popen(PINGMESH, "probe", address, "-i", "250ms", "--lab", "-w", log, *words, stderr=subprocess.PIPE)
    for _ in range(1000):
        if (log / "control").exists() and query(log, "outcome == ok", "--count")[0] != "0":
            return it
        time.sleep(0.02)
    raise AssertionError(it.communicate())


def query(log: Path, *words: Any) -> list[str]:
    done = completed([ROOT / "bin" / "confluo-query", log, *words], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def told(host: Path, counter: str) -> int:
    """The sum of a counter in the records of the target's host, after one more of them."""
    before = int(query(host, "--count")[0])
    for _ in range(200):
        if int(query(host, "--count")[0]) > before:
            break
        time.sleep(0.05)
    return int(query(host, "--agg", f"sum({counter})", "-T", "--no-header")[0])


def judged(log: Path) -> tuple[int, int]:
    """What confluo-pingmesh sla makes of it: drops of the network, and of the target's host."""
    done = completed([PINGMESH, "sla", log, "--by", "all", "-J"], capture_output=True, text=True, check=False)
    (row,) = map(json.loads, done.stdout.splitlines())
    return row["dropped"], row["overflow"]


def dropped(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in query(log, "retries > 0", "-J", "-f", "retries,notes,rtt,outcome")]


def test_the_target_overflows(pair: tuple[Space, Space], tmp_path: Path) -> None:
    """Backlog 1, and no accept for half a second."""
    a, b = pair
    log = tmp_path / "probes.ml"
    host = tmp_path / "host.ml"
    with responder(b, "--backlog", "1", "-w", host, "--every", "200ms") as it:
        probe = begun(a, b.address, log, "-c", 24)
        stop(it)
        held = fill(a, b.address, PORT)
        time.sleep(0.8)
        it.send_signal(signal.SIGCONT)
        _, err = probe.communicate(timeout=30)
        for s in held:
            s.close()
        assert told(host, "overflows") > 0
    rows = dropped(log)
    assert len(rows) >= 2
    assert {row["outcome"] for row in rows} == {"ok"}
    assert {row["rtt"] for row in rows} == {0}
    assert [row for row in rows if "overflow" not in row["notes"]] == [], err
    assert judged(log) == (0, len(rows))


def test_the_network_loses_while_others_overflow(pair: tuple[Space, Space], tmp_path: Path) -> None:
    """Each connection's first SYN is lost on the way; meanwhile another socket of the target's host overflows, which
    explains no drop.
    """
    a, b = pair
    log = tmp_path / "probes.ml"
    host = tmp_path / "host.ml"
    with responder(b, "--backlog", "16", "-w", host, "--every", "200ms"):
        probe = begun(a, b.address, log, "-c", 24)
        b.run(
            "nft",
            "add table ip lossy; add set ip lossy seen { type inet_service; flags dynamic; };"
            "add chain ip lossy i { type filter hook input priority 0; };"
            f"add rule ip lossy i tcp dport {PORT} tcp flags & (syn | ack) == syn"
            " add @seen { tcp sport limit rate 1/day burst 1 packets } drop",
        )
        try:
            with b.inside():
                other = socket.create_server((b.address, 9), backlog=1)
            held = fill(a, b.address, 9, 40)
            _, err = probe.communicate(timeout=30)
            for s in (*held, other):
                s.close()
            assert told(host, "listen_drops") > 0
            assert told(host, "overflows") == 0  # of the responder's own sockets
        finally:
            b.run("nft", "delete table ip lossy")
    rows = dropped(log)
    assert len(rows) >= 3
    assert {row["outcome"] for row in rows} == {"ok"}
    assert [row for row in rows if "overflow" in row["notes"]] == [], err
    assert judged(log) == (len(rows), 0)
