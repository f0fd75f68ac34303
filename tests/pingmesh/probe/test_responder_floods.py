"""The answering side of probes when it is made to suffer: it holds no more than it said, and goes on answering."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder, make_room

TOKEN = 0x1122334455667788
HERE = [ListenAddress("127.0.0.1", 0)]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def works(port: int) -> None:
    """Payload comes back, and so does a datagram."""
    with connect(port) as s:
        s.sendall(b"\0are you there")
        assert s.recv(100) == b"\0are you there"


def datagram(seq: int, token: int = TOKEN, size: int = 48) -> bytes:
    return struct.pack(">IIQIIQQQ", 0x43504D31, 0, token, seq, 0, 0, 0, 0).ljust(size, b"\0")


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(1500):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("never happened")


def was_reset(s: socket.socket) -> bool:
    s.settimeout(10)
    try:
        return s.recv(10) == b""
    except ConnectionResetError:
        return True


def test_the_least_active_makes_room() -> None:
    with Responder(HERE, capacity=10) as it:
        idle = [connect(it.port) for _ in range(10)]
        wait_for(lambda: it.counts["open"] == 10)
        idle[0].sendall(b"\0")  # the oldest, and not the least active any more
        assert idle[0].recv(1) == b"\0"
        more = [connect(it.port) for _ in range(9)]
        wait_for(lambda: it.counts["evicted"] == 9)
        assert all(was_reset(s) for s in idle[1:])
        idle[0].sendall(b"\0")
        assert idle[0].recv(1) == b"\0"
        works(it.port)
        assert it.counts["open"] <= 10
        for s in (*idle, *more):
            s.close()


def test_who_says_nothing_is_ended() -> None:
    with Responder(HERE, idle=0.2) as it, connect(it.port) as a, connect(it.port) as b:
        b.sendall(b"GET /pi")
        assert was_reset(a)
        assert was_reset(b)
        wait_for(lambda: (it.counts["idle"], it.counts["open"]) == (2, 0))


def test_who_goes_on_for_ever_is_ended() -> None:
    """One byte at a time, never idle."""
    with Responder(HERE, idle=5, life=0.3) as it, connect(it.port) as s:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            _drip(s)
        wait_for(lambda: (it.counts["idle"], it.counts["open"]) == (1, 0))


def _drip(s: socket.socket) -> None:
    for _ in range(1000):
        s.sendall(b"\0")
        s.recv(10)
        time.sleep(0.01)


def test_datagrams_of_strangers_keep_nobody_waiting() -> None:
    with Responder(HERE, tokens=[TOKEN]) as it:
        over = threading.Event()

        def flood() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.connect(("127.0.0.1", it.port))
                data = datagram(0, token=1, size=200)
                while not over.is_set():
                    s.send(data)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_for(lambda: it.counts["token"] > 1000)
            for _ in range(50):
                works(it.port)
        finally:
            over.set()
            thread.join()
        assert it.counts["datagrams"] == 0


@pytest.mark.parametrize("rate", [30, 200])
def test_no_more_than_the_rate_is_looked_at(rate: int) -> None:
    """A burst, then the rate; a batch counts as a whole.  Connections have their own rate."""
    with Responder(HERE, tokens=[TOKEN], rate=rate) as it, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        start = time.monotonic()
        s.connect(("127.0.0.1", it.port))
        for n in range(500):
            s.send(datagram(n))
        works(it.port)
        most = 0
        while it.counts["datagrams"] < 120:  # it goes on, too: one batch after the other
            time.sleep(0.01)
            most = it.counts["datagrams"]
            assert most <= rate * (time.monotonic() - start + 0.1) + 32
            if rate == 30 and time.monotonic() > start + 1.5:
                assert most > 32
                break


@pytest.mark.parametrize("capacity", [0, 65001, -1])
def test_capacities_that_are_refused(capacity: int) -> None:
    with pytest.raises(UsageError, match="1 to 65000"):
        Responder(HERE, capacity=capacity)


def test_capacity_is_what_the_host_allows() -> None:
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from confluo_tools.pingmesh.probe.responder import *
it = Responder([ListenAddress("127.0.0.1", 0)], capacity=65000)
print(it.capacity)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert 150 <= int(done.stdout) <= 300 - 64


def test_room_is_asked_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert make_room(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def responding(*words: str) -> Iterator[tuple[int, int]]:
    """A process of its own: its pid and port."""
    argv = [
        Path(__file__).resolve().parents[3] / "bin" / "confluo-pingmesh",
        "respond",
        "--listen",
        "127.0.0.1:0",
        *words,
    ]
    it = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert it.stderr is not None
        line = it.stderr.readline()
        yield it.pid, int(line.partition("127.0.0.1:")[2].partition(";")[0])
        assert it.poll() is None
    finally:
        it.kill()
        it.communicate()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_host_without_descriptors() -> None:
    """Other parts of the process took those that were kept for connections: the oldest give theirs."""
    script = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from confluo_tools.pingmesh.probe.responder import *
it = Responder([ListenAddress("127.0.0.1", 0)], idle=60)
taken = [os.dup(0) for _ in range(150)]
it.start()
print(it.port, it.capacity, flush=True)
sys.stdin.readline()
print(it.counts["no_room"], it.counts["evicted"], flush=True)
os.close(taken.pop())
"""
    it = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert it.stdout is not None
    port, capacity = map(int, it.stdout.readline().split())
    assert capacity > 110
    held = []
    for _ in range(200):
        held.append(connect(port))
    for _ in range(20):
        works(port)
    for s in held:
        s.close()
    out, _ = it.communicate("\n", timeout=20)
    no_room, evicted = map(int, out.split())
    assert no_room >= 100
    assert evicted >= 100


@pytest.mark.slow
def test_memory_stays_bounded() -> None:
    """Thousands of half requests, of readers who do not read, and the largest datagrams: no more than was said."""
    make_room(3000)
    with responding("--token", f"{TOKEN:x}", "--connections", "2000", "--idle", "60s") as (pid, port):
        works(port)
        before = resident(pid)
        held = []
        for n in range(2500):
            s = connect(port)
            s.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                s.send(b"GET /ping HTTP/1.1\r\nX: " + b"x" * 4000 if n % 2 else bytes(65536))
            held.append(s)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            for n in range(200):
                u.sendto(datagram(n, size=65000), ("127.0.0.1", port))
        works(port)
        assert descriptors(pid) <= 2000 + 64
        assert resident(pid) - before < 24 << 20
        for s in held:
            s.close()
        works(port)
        wait_for(lambda: descriptors(pid) < 100)


@pytest.mark.slow
def test_garbage_of_all_kinds() -> None:
    """Random bytes in random pieces, closed, reset or left alone: it goes on, and forgets them all."""
    with responding("--token", f"{TOKEN:x}", "--connections", "50", "--idle", "200ms") as (pid, port):
        threads = [threading.Thread(target=_garbage, args=(port, seed)) for seed in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        works(port)
        wait_for(lambda: descriptors(pid) < 30)
        with connect(port) as s:
            s.sendall(b"GET /counters HTTP/1.0\r\n\r\n")
            told = json.loads(s.makefile("rb").read().partition(b"\r\n\r\n")[2])
        assert told["connections"] > 1000
        assert min(told[what] for what in ("echoed", "requests", "short", "magic", "token", "overlong")) > 10
        assert told["no_room"] == 0


def _garbage(port: int, seed: int) -> None:
    dice = random.Random(seed)
    starts = [
        b"",
        b"GET ",
        b"GET /ping?size=60000 HTTP/1.1\r\n\r\n",
        b"HEAD /counters HTTP/1.0\n\n",
        b"\x16\x03\x01",
        b"POST /ping HTTP/1.1\r\n",
    ]
    for _ in range(300):
        try:
            s = connect(port)
        except OSError:
            continue
        with s, suppress(OSError):
            s.settimeout(0.002)
            for _ in range(dice.randrange(4)):
                s.send(dice.choice(starts) + dice.randbytes(dice.randrange(5000)))
                if dice.random() < 0.5:
                    s.recv(1000)
            if dice.random() < 0.5:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif dice.random() < 0.5:
                s.shutdown(socket.SHUT_WR)
                s.recv(10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            start = dice.choice([b"CPM1", b"", bytes(60), datagram(0)[:40], datagram(1)])
            u.sendto(start + dice.randbytes(dice.randrange(100)), ("127.0.0.1", port))
