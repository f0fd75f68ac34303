"""Drops on directed links, where they enter a node, and the nftables counters of these drops.

Every directed link has counters per flow: TCP packets that arrived, and packets that were dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import net
from clos import Clos
from spaces import TABLE, WORKERS, nft, watch
from topology import Mistake

SEED = 1  # of the hash of a black hole
Key = tuple[str, int, str, int]  # source address and port, destination address and port


@dataclass
class Seen:
    """Counters of a directed link: packets and drops, in total and per flow.

    ``lost``: drops that TCP must retransmit; ``acks``: dropped acknowledgements without data, which it does not.
    """

    link: tuple[str, str]
    packets: int = 0
    dropped: int = 0
    flows: dict[Key, int] = field(default_factory=dict)
    lost: dict[Key, int] = field(default_factory=dict)
    acks: dict[Key, int] = field(default_factory=dict)


HASHED = {"pairs": "ip saddr . ip daddr", "flows": "ip saddr . ip daddr . tcp sport . tcp dport"}


def rule(share: str) -> str:
    """Parse a drop rate: '1/200' is exactly each 200th packet; '0.5%' is a probability.

    '1/4 pairs' and '1/4 flows' are black holes: all packets of a quarter of the address pairs, or of the five-tuples.
    """
    if found := re.fullmatch(r"1/(\d{1,9}) (pairs|flows)", share):
        if int(found[1]):
            return f"jhash {HASHED[found[2]]} mod {found[1]} seed 0x{SEED:x} == 0"
    elif found := re.fullmatch(r"1/(\d{1,9})", share):
        if int(found[1]):
            return f"numgen inc mod {found[1]} == {int(found[1]) - 1}"
    elif (found := re.fullmatch(r"(\d+(?:\.\d+)?)%", share)) and 0 < float(found[1]) <= 100:
        some = round(float(found[1]) * 10_000)
        return f"numgen random mod 1000000 < {some}" if some < 1_000_000 else ""  # nft refuses what is always true
    raise Mistake(f"'{share}' is not a share of packets; write 1/200, 0.5% or 1/4 flows")


def drop(state: net.State, plan: Clos, source: str, to: str, share: str) -> None:
    """Make the link from ``source`` to ``to`` drop a share of its TCP packets."""
    _known(plan, source, to)
    nft(state.space(to), f"add rule {TABLE} faults_{source} {rule(share)} jump lost_{source}")


def heal(state: net.State, plan: Clos, source: str, to: str) -> None:
    _known(plan, source, to)
    nft(state.space(to), f"flush chain {TABLE} faults_{source}")


def _known(plan: Clos, source: str, to: str) -> None:
    if (source, to) not in plan.directed():
        raise Mistake(
            f"there is no link from '{source}' to '{to}'; there are, for example, "
            + " and ".join(f"{a} {b}" for a, b in plan.directed()[:40:13])
        )


def forget(state: net.State, plan: Clos) -> None:
    """Reset all counters to 0 and remove all drops."""

    def one(name: str) -> None:
        nft(state.space(name), f"delete table {TABLE}\n{watch(peer.name for peer, _, _ in plan.around(name))}")

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, plan.nodes))


def counts(state: net.State, plan: Clos) -> list[Seen]:
    """Counters of every directed link."""

    def one(name: str) -> list[Seen]:
        text = net.run("ip", "netns", "exec", state.space(name), "nft", "-j", "-n", "list", "table", *TABLE.split())
        found = {peer.name: Seen((peer.name, name)) for peer, _, _ in plan.around(name)}
        for entry in json.loads(text)["nftables"]:
            ((kind, what),) = entry.items()
            if kind == "set":
                _read_set(what, found)
            elif kind == "rule":
                _read_rule(what, found)
        return list(found.values())

    with ThreadPoolExecutor(WORKERS) as pool:
        return [seen for part in pool.map(one, plan.nodes) for seen in part]


def _read_set(what: dict[str, Any], found: dict[str, Seen]) -> None:
    for entry in what.get("elem", ()):
        peer, *key = entry["elem"]["val"]["concat"]
        into = {"seen": found[peer].flows, "lost": found[peer].lost, "acks": found[peer].acks}[what["name"][:4]]
        source, source_port, to, to_port = key
        into[source, source_port, to, to_port] = entry["elem"]["counter"]["packets"]


def _read_rule(what: dict[str, Any], found: dict[str, Seen]) -> None:
    kind, _, peer = what["chain"].partition("_")
    for expression in what["expr"]:
        if "counter" in expression:
            if kind == "in":
                found[peer].packets = expression["counter"]["packets"]
            else:
                found[peer].dropped = expression["counter"]["packets"]


def ways(plan: Clos, seen: Iterable[Seen], keys: Iterable[Key]) -> dict[Key, list[str]]:
    """The path of each flow: its nodes, from host to host.

    A flow with packets on two paths, or on an incomplete one, raises Mistake: the fabric is not a Clos.
    """
    hops: dict[Key, list[tuple[str, str]]] = {key: [] for key in keys}
    for one in seen:
        for key in one.flows:
            if key in hops:
                hops[key].append(one.link)
    owner = plan.owner()
    found = {}
    for key, links in hops.items():
        after = dict(links)
        way = [owner[key[0]]]
        while way[-1] in after and len(way) < 16:
            way.append(after[way[-1]])
        if way[-1] != owner[key[2]] or len(links) != len(way) - 1:
            raise Mistake(f"flow {key}: not one way but {links}")
        found[key] = way
    return found
