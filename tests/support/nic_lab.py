"""What the tests of live captures share: captures that run in a namespace, and what goes over the wire to them."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluo_tools import multilog
from netns import Space
from running import BIN, environment

CAPTURE = BIN / "confluo-capture"


_alive: list[Live] = []


def end_all() -> None:
    """Whatever a test that failed has left behind."""
    while _alive:
        live = _alive.pop()
        if live.child.poll() is None:
            live.child.kill()
            live.child.wait()
        for stream in (live.child.stdout, live.child.stderr):
            if stream is not None:
                stream.close()


class Live:
    """A command that runs in a namespace until `end`; it has said on stderr that it is at work."""

    def __init__(
        self,
        space: Space,
        *words: Any,
        ready: bytes = b"",
        prefix: Sequence[str] = (),
        out: Any = None,
        stdin_fd: int = subprocess.DEVNULL,
        **more: Any,
    ) -> None:
        self.child = space.popen(
            *prefix,
            *words,
            stdin=stdin_fd,
            stderr=subprocess.PIPE,
            env=environment(),
            stdout=subprocess.DEVNULL if out is None else out,
            **more,
        )
        self.said = b""
        _alive.append(self)
        if ready:
            self.hear(ready)

    def hear(self, words: bytes, seconds: float = 20.0) -> bytes:
        """Wait until it has said that on stderr, and what it said up to the end of that line."""
        assert self.child.stderr is not None
        fd, end, start = self.child.stderr.fileno(), time.monotonic() + seconds, len(self.said)
        while words not in self.said[start:] or not self.said.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise AssertionError(f"{words!r} was not said, but {self.said!r}")
            piece = os.read(fd, 65536)
            if not piece:
                raise AssertionError(f"it ended with {self.child.wait()}: {self.said!r}")
            self.said += piece
        return self.said[start:]

    def end(self, number: int = signal.SIGINT) -> tuple[int, bytes, bytes]:
        """(status, stdout, what it still said on stderr)."""
        if self.child.poll() is None:
            self.child.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, bytes, bytes]:
        out, err = self.child.communicate(timeout=60)
        self.said += err
        return self.child.returncode, out or b"", err


def capture(space: Space, *words: Any, **more: Any) -> Live:
    """A confluo-capture that takes packets from now on."""
    return Live(space, CAPTURE, *words, ready=b"capturing from", **more)


def tcpdump(space: Space, *words: Any, interface: str = "v0") -> Live:
    """One that drops nothing and writes at once: small slots, many of them."""
    size = () if "-s" in words else ("-s", "2048")
    return Live(
        space,
        "tcpdump",
        "-i",
        interface,
        "-Z",
        "root",
        "--immediate-mode",
        "-B",
        "16384",
        *size,
        *words,
        ready=b"istening on",
    )


def send(space: Space, frames: Iterable[bytes], interface: str = "v0") -> int:
    """Frames as they are out of an interface; how many."""
    with space.inside(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as s:
        s.bind((interface, 0))
        n = 0
        for n, one in enumerate(frames, 1):
            if n % 100 == 0:
                settle()
            s.send(one)
        return n


def settle(seconds: float = 5.0) -> None:
    """Until the CPUs have looked at packets that wait: beyond 1,000 of them, the kernel drops what comes to a CPU.

    All namespaces share these queues, so whatever else is tested here fills them, too.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rows = [line.split() for line in Path("/proc/net/softnet_stat").read_text().splitlines()]
        if all(len(row) < 12 or int(row[11], 16) < 300 for row in rows):
            return
        time.sleep(0.001)


def frame(
    *,
    sport: int = 1000,
    dport: int = 53,
    proto: int = 17,
    tags: Sequence[tuple[int, int]] = (),
    size: int = 64,
    ident: int = 0,
) -> bytes:
    """An Ethernet frame from 10.77.0.1 to .2 with (tag protocol, VLAN id) tags before it."""
    up = struct.pack(">HHHH", sport, dport, size - 34, 0)
    if proto == 6:
        up = struct.pack(">HHIIBBHHH", sport, dport, ident, 0, 0x50, 2, 8192, 0, 0)
    body = up + bytes(max(size - 34 - len(up), 0))
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), ident & 0xFFFF, 0, 64, proto, 0, b"\nM\0\1", b"\nM\0\2")
    head = b"\2\0\0\1\0\2" + b"\2\0\0\1\0\1" + b"".join(struct.pack(">HH", *tag) for tag in tags)
    return head + b"\x08\0" + ip + body


def rows(log: Path) -> int:
    if not multilog.is_log(log):
        return 0
    with multilog.open(log, readonly=True) as opened:
        return opened.version().rows


def wait_for(log: Path, n: int, seconds: float = 20.0) -> None:
    """Wait until other processes can read N rows."""
    end = time.monotonic() + seconds
    while rows(log) < n:
        assert time.monotonic() < end, f"{rows(log)} of {n} rows"
        time.sleep(0.01)


def table(log: Path, *names: str) -> list[tuple[Any, ...]]:
    """Columns of all rows, lane by lane."""
    found = []
    with multilog.open(log, readonly=True) as opened:
        columns = [opened.schema.index(n) for n in names]
        for block in opened.blocks():
            found += [tuple(block.get(c, i) for c in columns) for i in range(block.rows)]
        assert opened.damage == []
    return found
