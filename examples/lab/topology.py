"""The description of a lab: a YAML file with hosts, switches, links, faults and flows.  README.md explains each key."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Mistake(Exception):
    """What is wrong with the description, in one line."""


@dataclass
class Host:
    name: str
    number: int  # its addresses end in it

    @property
    def ip4(self) -> str:
        return f"10.99.0.{self.number}"

    @property
    def ip6(self) -> str:
        return f"fd00:99::{self.number:x}"

    @property
    def mac(self) -> str:
        return f"02:99:00:00:00:{self.number:02x}"


@dataclass
class Link:
    """``rate`` in bit/s (0: no limit), ``queue`` in packets a priority, ``delay`` in seconds: of the switch program.

    ``shape`` and ``loss``: of the kernel (tbf, nftables), on the way to the first end, which is a host.
    """

    ends: tuple[str, str]
    rate: float = 0.0
    queue: int = 1000
    delay: float = 0.0
    shape: dict[str, str] = field(default_factory=dict)
    loss: int = 0  # one packet in N


@dataclass
class Rule:
    """A fault of switch ``at``: packets to host ``to`` (from ``source``, if given) are dropped or take a way around."""

    at: str
    to: str
    source: str = ""
    every: float = 0.0  # s between bursts of drops
    packets: int = 1  # of a burst
    one_in: int = 0  # random, of a fixed seed
    via: str = ""  # the neighbour that they are sent to instead of being dropped
    after: float = 0.0  # s, from the beginning of the traffic


@dataclass
class Flow:
    source: str
    to: str
    port: int
    count: int = 1
    rate: float = 0.0  # bit/s; 0: as much as TCP can
    dscp: int = 0
    start: float = 0.0  # s after the traffic began
    stop: float = 0.0  # 0: at its end
    ip: int = 4


@dataclass
class Topology:
    name: str
    hosts: dict[str, Host]
    switches: dict[str, int]  # name -> the number that it writes into packets
    links: list[Link]
    drops: list[Rule]
    flows: list[Flow]
    duration: float
    congestion: str
    room: int  # places for switches that the first one leaves in a packet

    def neighbours(self, name: str) -> list[tuple[str, Link]]:
        return [(link.ends[1 - i], link) for link in self.links for i in (0, 1) if link.ends[i] == name]

    def next_hops(self, switch: str) -> dict[str, str]:
        """For each host, the neighbour of ``switch`` that leads there on a shortest path."""
        found: dict[str, str] = {}
        seen, waiting = {switch}, deque((n, n) for n, _ in self.neighbours(switch))
        while waiting:
            name, first = waiting.popleft()
            if name in seen:
                continue
            seen.add(name)
            if name in self.hosts:
                found[name] = first
            else:
                waiting.extend((n, first) for n, _ in self.neighbours(name))
        return found


def load(path: str) -> Topology:
    """Raises Mistake, OSError."""
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as e:
        raise Mistake(f"{path}: is not YAML: {' '.join(str(e).split())}") from None
    try:
        return parse(data)
    except Mistake as e:
        raise Mistake(f"{path}: {e}") from None
    except (TypeError, ValueError, AttributeError, KeyError) as e:
        raise Mistake(f"{path}: is not the description of a lab: {e}") from None


def parse(data: Any) -> Topology:
    if not isinstance(data, dict) or "hosts" not in data:
        raise Mistake("there are no hosts")
    _only(data, "a lab", "lab", "hosts", "switches", "links", "faults", "flows", "duration", "congestion", "room")
    hosts = {str(name): Host(str(name), i) for i, name in enumerate(data["hosts"], 1)}
    switches = {str(name): int(number) for name, number in (data.get("switches") or {}).items()}
    for name in [*hosts, *switches]:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,7}", name):
            raise Mistake(f"'{name}' is not a name; write a letter and up to seven letters and digits")
    if set(hosts) & set(switches) or len(hosts) > 200:
        raise Mistake("names must be unique, and 200 hosts are enough")
    links = [_link(entry, hosts, switches) for entry in data.get("links") or []]
    for name in hosts:
        if sum(name in link.ends for link in links) != 1:
            raise Mistake(f"host '{name}' needs one link")
    faults = [_rule(entry, hosts, switches) for entry in data.get("faults") or []]
    flows = [_flow(entry, hosts) for entry in data.get("flows") or []]
    return Topology(
        str(data.get("lab", "lab")),
        hosts,
        switches,
        links,
        faults,
        flows,
        seconds(data.get("duration", "3s")),
        str(data.get("congestion", "reno")),
        int(data.get("room", 3)),
    )


def _only(entry: Any, what: str, *known: str) -> None:
    if not isinstance(entry, dict):
        raise Mistake(f"{what} is described by keys and values, not by {entry!r}")
    for key in entry:
        if key not in known:
            raise Mistake(f"{what} has no '{key}'; there are {', '.join(known)}")


def _known(name: Any, *places: Any) -> str:
    if not any(name in place for place in places):
        raise Mistake(f"there is no '{name}'")
    return str(name)


def _link(entry: Any, hosts: Any, switches: Any) -> Link:
    _only(entry, "a link", "ends", "rate", "queue", "delay", "shape", "loss")
    ends = [_known(end, hosts, switches) for end in entry["ends"]]
    if len(ends) != 2 or ends[0] == ends[1]:
        raise Mistake(f"a link has two ends, not {entry['ends']}")
    if all(end in hosts for end in ends) and {"rate", "queue", "delay"} & entry.keys():
        raise Mistake(f"only a switch has a rate, queue or delay; {ends[0]} to {ends[1]} has shape and loss")
    shape = {str(k): str(v) for k, v in (entry.get("shape") or {}).items()}
    link = Link(
        (ends[0], ends[1]),
        bits(entry.get("rate", 0)),
        int(entry.get("queue", 1000)),
        seconds(entry.get("delay", 0)),
        shape,
        _one_in(entry.get("loss")),
    )
    if (link.shape or link.loss) and ends[0] not in hosts:
        raise Mistake("shape and loss are for links that begin with a host")
    return link


def _rule(entry: Any, hosts: Any, switches: Any) -> Rule:
    _only(entry, "a fault", "at", "to", "from", "every", "packets", "share", "via", "after")
    rule = Rule(
        _known(entry["at"], switches),
        _known(entry["to"], hosts),
        entry.get("from", ""),
        seconds(entry.get("every", 0)),
        int(entry.get("packets", 1)),
        _one_in(entry.get("share")),
        entry.get("via", ""),
        seconds(entry.get("after", 0)),
    )
    if rule.source:
        _known(rule.source, hosts)
    if rule.via:
        _known(rule.via, switches)
    if not (rule.every or rule.one_in):
        raise Mistake("a fault happens 'every' so often, or to a 'share' of the packets")
    return rule


def _flow(entry: Any, hosts: Any) -> Flow:
    _only(entry, "a flow", "from", "to", "port", "count", "rate", "dscp", "start", "stop", "ip")
    return Flow(
        _known(entry["from"], hosts),
        _known(entry["to"], hosts),
        int(entry["port"]),
        int(entry.get("count", 1)),
        bits(entry.get("rate", 0)),
        int(entry.get("dscp", 0)),
        seconds(entry.get("start", 0)),
        seconds(entry.get("stop", 0)),
        int(entry.get("ip", 4)),
    )


def bits(value: Any) -> float:
    """'10Mbit' -> bit/s."""
    found = re.fullmatch(r"([\d.]+)\s*([kmg]?)(?:bit)?(?:/s)?", str(value).strip().lower())
    if not found:
        raise Mistake(f"'{value}' is not a rate; write for example 10Mbit")
    return float(found[1]) * UNITS[found[2]]


def seconds(value: Any) -> float:
    """'100ms' -> s."""
    found = re.fullmatch(r"([\d.]+)\s*(us|ms|s)?", str(value).strip().lower())
    if not found:
        raise Mistake(f"'{value}' is not a time; write for example 100ms")
    return float(found[1]) * TIMES[found[2] or "s"]


def _one_in(value: Any) -> int:
    if value is None:
        return 0
    found = re.fullmatch(r"1/(\d+)", str(value).strip())
    if not found or not int(found[1]):
        raise Mistake(f"'{value}' is not a share; write for example 1/50")
    return int(found[1])
