"""What is probed in tests: servers in threads, written without anything of ours, and the records as dictionaries."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.core.block.block import Staging
from confluo_tools.core.pingmesh.echo_prober import EchoProber
from confluo_tools.schema import builtin

if TYPE_CHECKING:
    from netns import Space

SCHEMA = builtin("probe")
MAGIC = b"CPM1"
TCP, ECHO, UDP, ICMP = 1, 2, 5, 6
MS = 1_000_000
SECOND = 1_000_000_000
# Of nft: how often a set lets through, and which packets.
LIMIT = "limit rate 1/day burst {} packets"
SYN = "tcp flags & (syn|ack) == syn"
SYN_ACK = "tcp flags & (syn|ack) == (syn|ack)"


def pinger(**settings: Any) -> EchoProber:
    return EchoProber(SCHEMA.layout, **({"seed": 1, "lab": True, "jitter": 0.0} | settings))


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def records(block: Staging) -> list[dict[str, Any]]:
    """Values of all columns: enums by name, flags as sets of names, text as str, IPv6 as bytes in NAME6."""
    found = []
    for row in range(block.rows):
        out: dict[str, Any] = {}
        for i, name in enumerate(SCHEMA.layout.names):
            value = block.get(i, row)
            kind, names = (SCHEMA[name].type.kind, SCHEMA[name].names) if name in SCHEMA else ("", {})
            if kind == "enum":
                value = names.get(value, value)
            elif kind == "flags":
                value = {text for bit, text in names.items() if value & bit}
            elif kind == "text":
                value = value.rstrip(b"\0").decode()
            out[name] = value
        found.append(out)
    return found


def probe(p: EchoProber, seconds: float = 20.0, capacity: int = 16384) -> list[dict[str, Any]]:
    """All records until nothing is left to do."""
    block = Staging(SCHEMA.layout, capacity)
    end = time.monotonic_ns() + int(seconds * 1e9)
    while p.active and time.monotonic_ns() < end and block.rows < capacity:
        p.run(block, end)
    return records(block)


def lose(space: Space, rules: str) -> None:
    """``rules``: lines of the chains ``in`` and ``out``, after 'in: ' and 'out: '."""
    chains = {"in": ["type filter hook input priority 0;"], "out": ["type filter hook output priority 0;"]}
    for line in rules.splitlines():
        where, _, rule = line.strip().partition(": ")
        if rule:
            chains[where].append(rule)
    text = "table inet loss { "
    for name in ("lost", "lost2"):
        text += f"set {name} {{ type inet_service; size 65535; flags dynamic; }}\n"
    for name, lines in chains.items():
        text += f"chain {name} {{\n" + "\n".join(lines) + "\n}\n"
    space.run("nft", text + "}")


def restore(space: Space) -> None:
    space.run("nft", "delete table inet loss", check=False)


class Targets:
    """A context: TCP that echoes, UDP that answers as the wire format says, on one port of ``address``.

    Made in the namespace that the thread is in.  ``mangle``: what becomes of an answer's bytes; None: no answer.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0, *, backlog: int = 4096, accept: bool = True) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.tcp = socket.create_server((address, port), family=family, backlog=backlog)
        self.port: int = self.tcp.getsockname()[1]
        self.udp = socket.socket(family, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.udp.bind((address, self.port))
        self.address = packed(address)
        self.mangle: Any = lambda data: data
        self.copies = 1
        self.think = 0.0  # s between receiving and sending
        self.seen: list[tuple[Any, bytes]] = []  # datagrams
        self.sent: list[Any] = []  # who was answered
        self.accepted = 0
        self._threads = [threading.Thread(target=self._udp, daemon=True)]
        if accept:
            self._threads.append(threading.Thread(target=self._tcp, daemon=True))

    def __enter__(self) -> Targets:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for one in (self.tcp, self.udp):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def _tcp(self) -> None:
        while True:
            try:
                connection, _ = self.tcp.accept()
            except OSError as e:
                if e.errno in (9, 22):
                    return
                continue
            self.accepted += 1
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            while data := connection.recv(65536):
                data = self.mangle(data)
                if data is None:
                    return
                connection.sendall(data)

    def _udp(self) -> None:
        while True:
            try:
                data, sender = self.udp.recvfrom(70000)
            except OSError:
                return
            if not data:
                return
            t2 = time.time_ns()
            self.seen.append((sender, data))
            if self.think:
                time.sleep(self.think)
            answer = self.mangle(data[:32] + struct.pack(">QQ", t2, time.time_ns()) + data[48:])
            for _ in range(self.copies if answer is not None else 0):
                with suppress(OSError):
                    self.udp.sendto(answer, sender)
            self.sent.append(sender)
