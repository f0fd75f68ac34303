"""Connections over a routed path with a real drop-tail queue, recorded at both ends.

with Lab() as lab:
    path = routed(lab, rate="50mbit", limit=30_000)
    both = record(path, tmp_path, bulk(2_000_000))
"""

from __future__ import annotations

import fcntl
import signal
import socket
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from netns import Lab, Space
from running import popen

ROOT = Path(__file__).resolve().parents[2]
PORT = 5201
SIOCETHTOOL, ETHTOOL_STSO, ETHTOOL_SGRO = 0x8946, 0x1F, 0x2C
RECORDER = str(ROOT / "bin/confluo-replay-record")

SERVER = """
import socket, sys
s = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True)
print("listening", flush=True)
"""
SINK = (
    SERVER
    + """
c, _ = s.accept()
n = 0
while data := c.recv(65536):
    n += len(data)
c.close()
print(n)
"""
)
BULK = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
left = int(sys.argv[3])
while left:
    left -= c.send(bytes(min(65536, left)))
c.close()
"""
SOURCE = (
    SERVER
    + """
c, _ = s.accept()
left = int(c.recv(100))
while left:
    left -= c.send(bytes(min(65536, left)))
c.close()
"""
)
FETCH = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.send(sys.argv[3].encode())
while c.recv(65536): pass
c.close()
"""


class RoutedPath(NamedTuple):
    """``client`` - ``router`` - ``server``; the queue is at v1 of the router, towards the server."""

    client: Space
    router: Space
    server: Space


def routed(
    lab: Lab, *, rate: str = "100mbit", limit: int = 60_000, version: int = 4, towards: str = "server"
) -> RoutedPath:
    """Three namespaces in a row; data ``towards`` an end pass a queue of ``limit`` bytes that drops at its tail."""
    client, router, server = lab.space("c"), lab.space("r"), lab.space("s")
    lab.link(client, router, ("v0", "v0"), net="10.78.1")
    lab.link(server, router, ("v0", "v1"), net="10.78.2")
    client.address, server.address = "10.78.1.1", "10.78.2.1"
    router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    client.ip("route", "add", "default", "via", "10.78.1.2")
    server.ip("route", "add", "default", "via", "10.78.2.2")
    if version == 6:
        _add_ipv6(client, router, server)
    device = "v1" if towards == "server" else "v0"
    router.run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "3000", "limit", limit)
    return RoutedPath(client, router, server)


def _add_ipv6(client: Space, router: Space, server: Space) -> None:
    for space in (client, router, server):
        space.run("sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 0 >$f; done")
    router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
    for n, (space, device) in enumerate(((client, "v0"), (server, "v1")), 1):
        sides = (space, "v0", f"fd78:{n}::1"), (router, device, f"fd78:{n}::2")
        macs = [place.run("cat", f"/sys/class/net/{name}/address").stdout.decode().strip() for place, name, _ in sides]
        for (place, name, address), mac, (*_, other) in zip(sides, reversed(macs), reversed(sides), strict=True):
            place.ip("addr", "add", f"{address}/64", "dev", name, "nodad")
            place.ip("neigh", "replace", other, "lladdr", mac, "dev", name, "nud", "permanent")
        space.ip("route", "add", "default", "via", sides[1][2])
        space.address = sides[0][2]


def merging(path: RoutedPath) -> None:
    """Let the server's device merge segments (GRO) that come within 150 us."""
    # A veth device merges only what comes from one that does not send packets of several segments.
    for space, device, command, on in ((path.router, "v1", ETHTOOL_STSO, 0), (path.server, "v0", ETHTOOL_SGRO, 1)):
        words = array("I", (command, on))
        with space.inside(), socket.socket() as s:
            fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", device.encode(), words.buffer_info()[0]))
    path.server.run("sh", "-c", "echo 150000 >/sys/class/net/v0/gro_flush_timeout")


def recorder(space: Space, log: Path, *command: Any, options: tuple[str, ...] = (), **more: Any) -> Any:
    """confluo-replay-record run of ``command`` in a namespace, as a process."""
    words = [RECORDER, "run", "-q", "-w", str(log), "--netns", space.name, *options, "--", *map(str, command)]
    return popen(words, stdout=subprocess.PIPE, text=True, **more)


def record(
    path: RoutedPath, folder: Path, client: str, *arguments: Any, server: str = SINK, options: tuple[str, ...] = ()
) -> tuple[Path, Path]:
    """Record one run of a client and its server, both Python programs: the logs of client and server."""
    logs = folder / "client.ml", folder / "server.ml"
    with ExitStack() as stack:
        listen = (sys.executable, "-c", server, PORT)
        there = stack.enter_context(recorder(path.server, logs[1], *listen, options=options))
        stack.callback(there.kill)
        assert there.stdout.readline() == "listening\n"
        connect = (sys.executable, "-c", client, path.server.address, PORT, *arguments)
        here = stack.enter_context(recorder(path.client, logs[0], *connect, options=options))
        stack.callback(here.kill)
        assert here.wait(60) == 0
        assert there.wait(60) == 0
    return logs


@contextmanager
def dumped(path: RoutedPath, folder: Path) -> Iterator[None]:
    """tcpdump at both ends, from before the body to after its last packet: client.pcap and server.pcap."""
    processes = []
    with ExitStack() as stack:
        for name, space in (("client", path.client), ("server", path.server)):
            words = ("tcpdump", "-i", "v0", "-s", "128", "-B", "8192", "-U", "--immediate-mode", "-w")
            process = stack.enter_context(space.popen(*words, folder / f"{name}.pcap", "tcp", stderr=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stderr is not None
            assert b"listening" in process.stderr.readline()
            processes.append(process)
        yield
        for name in ("client", "server"):
            wait_for_all(folder / f"{name}.pcap")
        for process in processes:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def mark_some(path: RoutedPath, every: int, family: str = "ip") -> None:
    """Both ends use ECN, and the router marks one of ``every`` data packets.  ``family``: ip or ip6."""
    for space in (path.client, path.server):
        space.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_ecn")
    mark = f"table {family} t {{ chain c {{ type filter hook forward priority 0; "
    mark += f"tcp dport {PORT} {family} ecn ect0 numgen inc mod {every} == 5 {family} ecn set ce; }}; }}"
    path.router.run("nft", "-f", "-", stdin=None, input=mark.encode())


def wait_for_all(path: Path) -> None:
    """Until tcpdump has written what it has: the file does not grow any more."""
    limit, sizes = time.monotonic() + 20, [-1, -2]
    while len(set(sizes[-8:])) > 1 and time.monotonic() < limit:
        time.sleep(0.05)
        sizes.append(path.stat().st_size)
