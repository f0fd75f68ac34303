"""Probabilities of ECMP: that a flow crosses a link, and that it does if it crosses another one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from confluo_tools.network.topology import Link, Topology


class Routes:
    """Cached probabilities for a topology.  ``switches``: for switches, as (a, a), instead of links."""

    def __init__(self, topology: Topology, switches: bool = False) -> None:
        self.topology, self.switches = topology, switches
        self._shares: dict[Link, dict[Link, float]] = {}
        self._grouped: dict[Link, list[tuple[float, array[int]]]] = {}
        self._given: dict[Link, dict[Link, float]] = {}

    def between(self, src_tor: int, dst_tor: int) -> dict[Link, float]:
        """The probability that a flow between two ToRs crosses each link between switches (or each switch)."""
        pair = src_tor, dst_tor
        found = self._shares.get(pair)
        if found is None:
            if self.switches:
                found = {(n, n): f for n, f in self.topology.visits(src_tor, dst_tor).items()}
            else:
                found = self.topology.shares(src_tor, dst_tor)
            self._shares[pair] = found
        return found

    def pairs(self, wanted: Iterable[Link]) -> dict[Link, list[tuple[float, array[int]]]]:
        """`between` of each of these pairs in the topology; links of equal probability are grouped together."""
        known = self.topology.neighbours
        return {pair: self._grouped_between(pair) for pair in wanted if pair[0] in known and pair[1] in known}

    def _grouped_between(self, pair: Link) -> list[tuple[float, array[int]]]:
        found = self._grouped.get(pair)
        if found is None:
            groups: dict[float, array[int]] = {}
            for (a, b), f in self.between(*pair).items():
                groups.setdefault(f, array("Q")).append(a if self.switches else a << 32 | b)
            found = self._grouped[pair] = sorted(groups.items())
        return found

    def given(self, link: Link, hosts: Iterable[Link] = ()) -> Mapping[Link, float]:
        """P(k | link): the probability that a flow through ``link`` also crosses k, for equally likely pairs of ToRs.

        Of the links of hosts, only those in ``hosts`` are in it.
        """
        found = self._given.get(link)
        if found is None:
            found = self._given[link] = self._given_links(link)
        tor_of, size = self.topology.tor_of, self.topology.hosts_at()
        out = dict(found)
        a, b = link
        for x, y in hosts:
            tor = tor_of.get(x, tor_of.get(y))
            if tor is None or (x, y) == link:
                continue
            up = x in tor_of
            ends = found.get((-1, tor) if up else (tor, -1), 0.0)
            same_host = (a in tor_of and up) or (b in tor_of and not up)
            if not same_host:
                out[x, y] = ends / max(size.get(tor, 1), 1)
        return {k: f for k, f in out.items() if k != link and -1 not in k}

    def _given_links(self, link: Link) -> dict[Link, float]:
        # (-1, tor) and (tor, -1) are the first and last link of the flow.
        t = self.topology
        tors = t.tors
        sources = [t.tor_of[link[0]]] if link[0] in t.tor_of else tors
        targets = [t.tor_of[link[1]]] if link[1] in t.tor_of else tors
        total, sums = 0.0, dict[Link, float]()
        fabric = not (self.switches or link[0] in t.tor_of or link[1] in t.tor_of)
        for s in sources:
            for d in targets:
                if s == d:
                    continue
                if fabric and not t.on_the_way(s, *link, d):
                    continue  # most pairs: skip computing their shares
                shares = t.shares(s, d)
                if self.switches:
                    chance, crossed = self._switch(shares, link[0], s, d)
                elif link[0] in t.tor_of or link[1] in t.tor_of:
                    chance, crossed = (1.0, shares) if shares else (0.0, {})
                else:
                    chance = shares.get(link, 0.0)
                    crossed = along(shares, link) if chance else {}
                if not chance:
                    continue
                total += chance
                for k, f in crossed.items():
                    sums[k] = sums.get(k, 0.0) + chance * f
                for k in ((-1, s), (d, -1)):
                    sums[k] = sums.get(k, 0.0) + chance
        return {k: f / total for k, f in sums.items()} if total else {}

    def _switch(self, shares: Mapping[Link, float], node: int, s: int, d: int) -> tuple[float, dict[Link, float]]:
        chance = self.topology.visits(s, d).get(node, 0.0)
        if not chance:
            return 0.0, {}
        visits: dict[Link, float] = {(s, s): 1.0, (d, d): 1.0}
        for (a, b), f in _before(shares, node).items():
            visits[a, a] = visits.get((a, a), 0.0) + f if a != s else 1.0
            assert b is not None
        for (_, b), f in _after(shares, node).items():
            visits[b, b] = visits.get((b, b), 0.0) + f if b != d else 1.0
        return chance, visits


def along(shares: Mapping[Link, float], link: Link) -> dict[Link, float]:
    """P(k | link) for one pair of ToRs, from the shares of their flows."""
    return {**_before(shares, link[0]), link: 1.0, **_after(shares, link[1])}


def _after(shares: Mapping[Link, float], node: int) -> dict[Link, float]:
    # The links after `node`: split in proportion to the shares of its onward links.
    out: dict[int, list[tuple[Link, float]]] = {}
    for k, f in shares.items():
        out.setdefault(k[0], []).append((k, f))
    found: dict[Link, float] = {}
    here = {node: 1.0}
    while here:
        there: dict[int, float] = {}
        for a, chance in here.items():
            links = out.get(a, ())
            whole = sum([f for _, f in links])
            for k, f in links:
                found[k] = found.get(k, 0.0) + chance * f / whole
                there[k[1]] = there.get(k[1], 0.0) + chance * f / whole
        here = there
    return found


def _before(shares: Mapping[Link, float], node: int) -> dict[Link, float]:
    turned = _after({(b, a): f for (a, b), f in shares.items()}, node)
    return {(b, a): f for (a, b), f in turned.items()}
