"""What the tests of confluo-retx share: real TCP over links that drop, and what the sockets themselves counted."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import netns
from confluo_tools import multilog
from confluo_tools.schema import builtin
from netns import Lab, Space
from nic_lab import Live
from running import BIN

RETX = BIN / "confluo-retx"
TCP_INFO = 11
COUNTED = ("sent", "lost", "retrans", "dsack", "events", "bytes")


class Truth(NamedTuple):
    """What a socket's own TCP_INFO said when all was acknowledged."""

    retrans: int
    dsack: int
    data: int
    bytes: int
    cookie: int

    @property
    def lost(self) -> int:
        return max(self.retrans - self.dsack, 0)


def tcp_info(s: socket.socket) -> Truth:
    info = s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 512)
    (cookie,) = struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, 57, 8))
    word = lambda at: struct.unpack_from("I", info, at)[0]  # noqa: E731
    return Truth(word(100), word(216), word(156), struct.unpack_from("Q", info, 200)[0], cookie)


def state(s: socket.socket) -> int:
    return s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0]


def net(lab: Lab) -> tuple[Space, Space]:
    """Two namespaces, IPv4 and IPv6, one packet a buffer, so that one traced event is one packet.

    The retransmission timer waits for a second: on a busy machine an acknowledgement may come late, and what is
    sent again by then is not a loss.  (Linux 6.11; before it, 200 ms.)
    """
    a, b = lab.pair()
    for number, space in enumerate((a, b), 1):
        space.run(
            "sh", "-c", "! [ -e /proc/sys/net/ipv4/tcp_rto_min_us ] || echo 1000000 >/proc/sys/net/ipv4/tcp_rto_min_us"
        )
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/disable_ipv6")
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/accept_dad")
        space.ip("addr", "add", f"fd00:77::{number}/64", "dev", "v0", "nodad")
        space.ip("link", "set", "v0", "gso_max_segs", "1")
    return a, b


def rules(space: Space, text: str) -> None:
    subprocess.run(space.argv("nft", "-f", "-"), input=text.encode(), check=True, capture_output=True)


def drop(space: Space, how: str = "numgen random mod 100 < 3", match: str = "tcp dport 5001") -> None:
    """Packets that come in through v0 and match are dropped, this share of them, and counted."""
    rules(
        space,
        f"table netdev t {{ chain c {{ type filter hook ingress device v0 priority 0; {match} {how} "
        "counter drop; }; }",
    )


def duplicates(space: Space) -> int:
    """Segments that came twice to a namespace and that it reported to the sender (DSACK)."""
    names, values = (line.split() for line in space.run("head", "-n", "2", "/proc/net/netstat").stdout.splitlines())
    count = dict(zip(names, values, strict=True))
    return int(count[b"TCPDSACKOldSent"]) + int(count[b"TCPDSACKOfoSent"])


class Server:
    """Reads whatever comes to a port of a namespace, of IPv6 and IPv4; a context."""

    def __init__(self, space: Space, port: int = 5001) -> None:
        with space.inside():
            self._socket = socket.socket(socket.AF_INET6)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.bind(("::", port))
        self._socket.listen(1024)
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                peer = self._socket.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._read, args=(peer,))
            thread.start()
            self._threads.append(thread)

    @staticmethod
    def _read(peer: socket.socket) -> None:
        with peer:
            try:
                while peer.recv(1 << 16):
                    pass
            except OSError:
                pass

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for thread in self._threads:
            thread.join(20)


_ports = itertools.count(netns.PORTS)


def connect(space: Space, address: str, port: int = 5001, mapped: bool = False) -> socket.socket:
    six = ":" in address or mapped
    with space.inside():
        s = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    s.settimeout(60)
    s.bind(("::" if six else "", next(_ports)))  # the kernel may give one port to a flow of IPv4 and one of IPv6
    s.connect((f"::ffff:{address}" if mapped else address, port))
    return s


def settle(s: socket.socket) -> None:
    """Until the other end has everything, the FIN too: then nothing is counted any more."""
    s.shutdown(socket.SHUT_WR)
    end = time.monotonic() + 50
    while state(s) in (1, 4) and time.monotonic() < end:
        time.sleep(0.01)


def transfer(
    space: Space,
    address: str,
    size: int = 150_000,
    port: int = 5001,
    mapped: bool = False,
    pieces: int = 1,
    pause: float = 0.0,
) -> tuple[int, Truth]:
    """(port of our end, what the socket counted)."""
    with connect(space, address, port, mapped) as s:
        mine = s.getsockname()[1]
        for _ in range(pieces):
            s.sendall(bytes(size // pieces))
            time.sleep(pause)
        settle(s)
        return mine, tcp_info(s)


def at_once(jobs: Iterable[Callable[[], tuple[int, Truth]]]) -> dict[int, Truth]:
    """All of them in threads; by port."""
    found: dict[int, Truth] = {}

    def one(job: Callable[[], tuple[int, Truth]]) -> None:
        port, truth = job()
        found[port] = truth

    jobs = list(jobs)
    threads = [threading.Thread(target=one, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(jobs)
    return found


def retx(space: Space | None, *words: Any, host: Space | None = None, **more: Any) -> Live:
    """A confluo-retx --follow that is at work."""
    where = ("--netns", space.name) if space is not None else ()
    return Live(host or _Here(), RETX, "--follow", *where, *words, ready=b"following", **more)


class _Here(Space):
    """The namespace of the test itself: commands run as they are."""

    def __init__(self) -> None:
        super().__init__("")

    def argv(self, *words: Any) -> list[str]:
        return list(map(str, words))


def read(log: Path) -> list[dict[str, Any]]:
    """All rows, as dicts."""
    names = [c.name for c in builtin("retx").columns]
    found = []
    with multilog.open(log, readonly=True) as opened:
        for block in opened.blocks():
            columns = [opened.schema.index(n) for n in names]
            found += [{n: block.get(c, i) for n, c in zip(names, columns, strict=True)} for i in range(block.rows)]
        assert opened.damage == []
    return found


def totals(rows: Iterable[dict[str, Any]], key: str = "src_port") -> dict[Any, Counter[str]]:
    """Sums over the records of each flow."""
    found: dict[Any, Counter[str]] = {}
    for row in rows:
        found.setdefault(row[key], Counter()).update({n: row[n] for n in COUNTED})
    return found


def wait(log: Path, wanted: Callable[[list[dict[str, Any]]], bool], seconds: float = 15.0) -> list[dict[str, Any]]:
    end = time.monotonic() + seconds
    while True:
        rows = read(log) if multilog.is_log(log) else []
        if wanted(rows):
            return rows
        assert time.monotonic() < end, rows
        time.sleep(0.02)
