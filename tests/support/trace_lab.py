"""Networks for the tests of confluo-trace: routers that are namespaces, and what they really forwarded."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from netns import Lab, Space
from running import BIN, completed, environment

TRACE = BIN / "confluo-trace"
HASH = {
    "net.ipv4.fib_multipath_hash_policy": 3,
    "net.ipv4.fib_multipath_hash_fields": 0x37,
    "net.ipv6.fib_multipath_hash_policy": 3,
    "net.ipv6.fib_multipath_hash_fields": 0x37,
}
HOST = {"net.ipv4.conf.all.rp_filter": 0, "net.ipv4.conf.default.rp_filter": 0, **HASH}
ROUTER = {
    "net.ipv4.ip_forward": 1,
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv4.icmp_errors_use_inbound_ifaddr": 1,
    "net.ipv4.icmp_msgs_per_sec": 100000,
    "net.ipv4.icmp_msgs_burst": 10000,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv6.icmp.ratelimit": 0,
    **HOST,
}


def sysctl(space: Space, **settings: Any) -> None:
    """net__ipv4__ip_forward=1: names with dots written as two underscores."""
    put(space, {name.replace("__", "."): value for name, value in settings.items()})


def put(space: Space, settings: dict[str, Any]) -> None:
    script = "".join(f"echo {value} >/proc/sys/{name.replace('.', '/')}\n" for name, value in settings.items())
    done = space.run("sh", "-c", script, check=False)
    # hash seeds, fields and the like are not in every kernel; forwarding is
    assert space.run("cat", "/proc/sys/net/ipv4/ip_forward").stdout in (b"0\n", b"1\n"), done.stderr


class Net:
    """Hosts and routers with a /31 (and an IPv6 /127) on every link; each device is named after its peer."""

    def __init__(self, lab: Lab, *, six: bool = False) -> None:
        self.lab, self.six = lab, six
        self.spaces: dict[str, Space] = {}
        self.address: dict[tuple[str, str], str] = {}  # (node, peer): the node's address on that link
        self.address6: dict[tuple[str, str], str] = {}
        self._n = 0

    def node(self, name: str, *, router: bool = False, **settings: Any) -> Space:
        space = self.lab.space(name)
        self.spaces[name] = space
        if self.six:
            put(
                space,
                {
                    "net.ipv6.conf.all.disable_ipv6": 0,
                    "net.ipv6.conf.default.disable_ipv6": 0,
                    "net.ipv6.conf.default.accept_dad": 0,
                    "net.ipv6.conf.all.accept_dad": 0,
                },
            )
        put(space, ROUTER if router else HOST)
        if router:
            put(space, {"net.ipv4.fib_multipath_hash_seed": random.randrange(1, 1 << 31)})
        sysctl(space, **settings)
        return space

    def link(self, a: str, b: str) -> None:
        n = self._n = self._n + 1
        one, two = self.spaces[a], self.spaces[b]
        mac = [f"02:77:00:00:{n:02x}:0{side}" for side in (1, 2)]
        one.ip(
            "link",
            "add",
            "name",
            b,
            "address",
            mac[0],
            "type",
            "veth",
            "peer",
            "name",
            a,
            "address",
            mac[1],
            "netns",
            two.name,
        )
        for side, (space, me, peer) in enumerate(((one, a, b), (two, b, a))):
            mine, other = f"10.88.{n}.{side}", f"10.88.{n}.{1 - side}"
            self.address[me, peer] = mine
            space.ip("addr", "add", f"{mine}/31", "dev", peer)
            space.ip("link", "set", "dev", peer, "up")
            space.ip("neigh", "add", other, "lladdr", mac[1 - side], "dev", peer, "nud", "permanent")
            if self.six:
                mine6, other6 = f"fd88::{n:x}:{side}", f"fd88::{n:x}:{1 - side}"
                self.address6[me, peer] = mine6
                space.ip("-6", "addr", "add", f"{mine6}/127", "dev", peer, "nodad")
                space.ip("-6", "neigh", "add", other6, "lladdr", mac[1 - side], "dev", peer, "nud", "permanent")

    def route(self, at: str, to: str, via: Sequence[str]) -> None:
        """At a node, the way to the addresses of host ``to`` (of its first link; or 'default') is over these peers."""
        families = [(self.address, "", 32)] + ([(self.address6, "-6", 128)] if self.six else [])
        for table, flag, bits in families:
            where = "default" if to == "default" else f"{next(v for (n, _), v in table.items() if n == to)}/{bits}"
            words = [w for peer in via for w in ("nexthop", "via", table[peer, at], "dev", peer)]
            self.spaces[at].ip(*([flag] if flag else []), "route", "replace", where, *words)

    def host(self, name: str, six: bool = False) -> str:
        """The address of a host."""
        table = self.address6 if six else self.address
        return next(v for (n, _), v in table.items() if n == name)

    def nodes(self, six: bool = False) -> dict[str, str]:
        """{address: node}."""
        return {v: n for (n, _), v in (self.address6 if six else self.address).items()}


def chain(lab: Lab, length: int, *, six: bool = False) -> Net:
    """a - r1 - ... - rN - b."""
    net = Net(lab, six=six)
    names = ["a", *(f"r{i + 1}" for i in range(length)), "b"]
    for name in names:
        net.node(name, router=name not in "ab")
    for one, two in pairwise(names):
        net.link(one, two)
    for i, name in enumerate(names):
        if i < len(names) - 1:
            net.route(name, "b", [names[i + 1]]) if name != names[-2] else None
        if i > 1:
            net.route(name, "a", [names[i - 1]])
    for i, name in enumerate(names[1:-1], 1):  # routers reach every link: their ICMP errors go home
        if i > 1:
            net.route(name, "default", [names[i - 1]])
    return net


def fabric(lab: Lab, width: int = 4, *, six: bool = False, senders: int = 1) -> Net:
    """a hosts - x (ToR) - m1..mN - y (ToR) - b: ECMP over the middles in both directions."""
    net = Net(lab, six=six)
    middles = [f"m{i + 1}" for i in range(width)]
    for name in ("a", "x", *middles, "y", "b"):
        net.node(name, router=name not in "ab")
    net.link("a", "x")
    for m in middles:
        net.link("x", m)
        net.link(m, "y")
    net.link("y", "b")
    net.route("a", "default", ["x"])
    net.route("b", "default", ["y"])
    net.route("x", "b", middles)
    net.route("y", "a", middles)
    net.route("y", "default", ["m1"])
    for m in middles:
        net.route(m, "b", ["y"])
        net.route(m, "a", ["x"])
    return net


def records(
    flows: Sequence[tuple[str, str, int, int]],
    *,
    lost: Sequence[int] | int = 1,
    ts: int = 0,
    step: int = 0,
    rtt: int = 0,
    notes: str = "",
) -> bytes:
    """NDJSON of path records without a path, one a flow (source, destination, their ports)."""
    import json

    counts = [lost] * len(flows) if isinstance(lost, int) else list(lost)
    lines = [
        json.dumps(
            {
                "ts": moment(ts + i * step),
                "kind": "flow",
                "ip_version": 6 if ":" in a else 4,
                "proto": "tcp",
                "notes": notes,
                "src_ip": a,
                "dst_ip": b,
                "src_port": s,
                "dst_port": d,
                "sent": 100,
                "lost": counts[i],
                "retrans": counts[i],
                "rtt": rtt,
            }
        )
        for i, (a, b, s, d) in enumerate(flows)
    ]
    return "\n".join(lines).encode() + b"\n"


def moment(ns: int) -> str:
    """The time ``seconds`` after an instant of 2023, in the form of NDJSON."""
    from confluo_tools.units import format_time

    return format_time(1_700_000_010_000_000_000 + ns)


def stream(data: bytes) -> bytes:
    """NDJSON of path records as a record stream."""
    done = completed(
        [BIN / "confluo-convert", "-i", "ndjson", "--schema", "path", "-", "-o", "stream"],
        input=data,
        capture_output=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def trace(space: Space, data: bytes, *words: Any, status: int | None = 0) -> tuple[list[dict[str, Any]], str]:
    """(records, what it said on stderr) of a confluo-trace in a namespace with these records on stdin."""
    import json

    done = completed(
        space.argv(TRACE, *words, "-o", "ndjson"),
        input=stream(data),
        capture_output=True,
        env=environment(),
        check=False,
        timeout=100,
    )
    assert status is None or done.returncode == status, (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def counter(space: Space, name: str, group: str = "TcpExt") -> int:
    """One of the kernel's counters: of /proc/net/netstat or /proc/net/snmp."""
    text = space.run("cat", "/proc/net/netstat", "/proc/net/snmp").stdout.decode().splitlines()
    for head, values in pairwise(text):
        if head.startswith(f"{group}: ") and values.startswith(f"{group}: ") and name in head.split():
            return int(values.split()[head.split().index(name)])
    raise KeyError(name)


def tcp_server(space: Space, address: str, port: int) -> socket.socket:
    """A listening socket in there."""
    with space.inside():
        made = socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=512
        )
    return made


def namespace_of(space: Space) -> Path:
    return Path("/run/netns") / space.name
