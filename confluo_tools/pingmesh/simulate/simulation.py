"""Simulation of the probes of a fleet with network faults: records as Pingmesh agents write them, and of the faults.

`pingmesh.plan.graphs` decides which servers probe each other.  Paths cross ToR, leaf and spine by a hash of the
five-tuple, as with ECMP; lost SYNs are retried as by Linux; latencies are drawn from tables.  All numbers are integers:
the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from typing import TYPE_CHECKING

from confluo_tools.core.base.random import Random
from confluo_tools.core.pingmesh.probe_simulator import ProbeSimulator
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import packed_address
from confluo_tools.pingmesh.plan.graphs import PingmeshPlan, PlanRules

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.network.fleet import Fleet
    from confluo_tools.schema import Schema

CERTAIN = 1 << 63  # probability 1; probabilities are integers
BLOCK_ROWS = 65536
MILLISECOND = 10**6
SECOND = 10**9
_FAULTS = 3  # streams of random numbers
_DISTANCES = 4
_OCTAVES = 26
_FAULT_KIND = 18  # of schema/probe.yaml

# ns of a round trip at the quantile 1 - 2**-k: minimum, median, 99.2 %, 99.9 %, 99.99 %, ...
_POD = {0: 90_000, 1: 200_000, 7: 1_100_000, 10: 4_000_000, 13: 20_000_000, 17: 100_000_000, 25: 500_000_000}
_DC = {0: 120_000, 1: 260_000, 7: 1_300_000, 10: 5_000_000, 13: 25_000_000, 17: 120_000_000, 25: 600_000_000}
_HOST = {0: 8_000, 1: 30_000, 7: 400_000, 10: 3_000_000, 13: 15_000_000, 17: 60_000_000, 25: 200_000_000}
_FACTOR = {0: 32_768, 1: 65_536, 7: 131_072, 13: 262_144, 25: 524_288}  # 65536 is 1
_BUSY = {0: 6_554, 1: 65_536, 7: 655_360, 13: 1_310_720, 25: 2_621_440}


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault.  ``number``: in schema/probe.yaml; ``at``: kinds of places; ``rate`` (of 2**63), ``delay`` (ns):
    defaults; ``one``: without a number, one switch of the place has the fault, not all.
    """

    number: int
    at: tuple[str, ...]
    rate: int = 0
    delay: int = 0
    one: bool = False


KINDS = {
    "podset_down": FaultKind(1, ("podset",)),
    "podset_failure": FaultKind(2, ("podset",), delay=6 * MILLISECOND),
    "spine_drops": FaultKind(3, ("dc",), rate=CERTAIN // 100, one=True),
    "blackhole1": FaultKind(4, ("pod", "podset", "dc", "pair"), rate=CERTAIN // 20),
    "blackhole2": FaultKind(5, ("pod", "podset", "dc", "pair"), rate=CERTAIN // 20),
    "congestion": FaultKind(6, ("dc", "podset", "dcs"), rate=CERTAIN // 5000, delay=4 * MILLISECOND),
    "tor_drops": FaultKind(7, ("pod",), rate=CERTAIN // 100),
    "host_slow": FaultKind(8, ("server", "pod"), rate=CERTAIN // 50, delay=20 * MILLISECOND),
    "leaf_drops": FaultKind(9, ("podset",), rate=CERTAIN // 100, one=True),
    "server_down": FaultKind(10, ("server",)),
}


@dataclass(frozen=True)
class Fault:
    """A fault.  ``place``: a pod, podset, data centre or server, ``A>B`` for a pair of servers or data centres,
    ``PLACE/N`` for one of its switches (from 1), ``PLACE/all``; "": random.  ``rate`` of 2**63, ``delay`` ns; None: the
    default of the kind.  From ``start`` (ns after the beginning) for ``length`` (None: to the end).
    """

    kind: str
    place: str = ""
    rate: int | None = None
    delay: int | None = None
    start: int = 0
    length: int | None = None


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of a simulation.  ``span``, ``interval`` of a pair, ``hosts`` (interval of the records of a server's
    counters; 0: none): ns.  ``noise``: probability, of 2**63, that a handshake loses a packet, by level (pod, dc, wan).
    ``linear``: tcp_syn_linear_timeouts is 4, not 0.  ``payload``: bytes echoed, 0: connect only.
    ``leaves``: per podset, ``spines``: per data centre.
    """

    seed: int = 1
    start: int = 1767225600 * SECOND  # 2026-01-01
    span: int = 600 * SECOND
    interval: int = 10 * SECOND
    hosts: int = 60 * SECOND
    faults: Sequence[Fault] = ()
    noise: tuple[int, int, int] = (CERTAIN // 100_000, CERTAIN // 25_000, CERTAIN // 10_000)
    linear: bool = True
    payload: int = 0
    leaves: int = 4
    spines: int = 8
    per_podset: int = 2


@dataclass(frozen=True)
class PlacedFault:
    """A fault at its place: numbers of servers and devices; ``names``: fields of its record."""

    fault: Fault
    kind: FaultKind
    servers: tuple[int, ...]
    devices: tuple[int, ...]
    pair: tuple[int, int] | None
    names: dict[str, str]
    detail: str


class ProbeSimulation:
    """A simulation; ``placed``: its faults.  Raises UsageError for a fault that this fleet cannot have."""

    def __init__(self, fleet: Fleet, settings: SimulationSettings) -> None:
        self.fleet, self.settings = fleet, settings
        s = settings
        self._pods, self._podsets = list(fleet.pods), list(fleet.dc_of)
        self._dcs = list(dict.fromkeys(fleet.dc_of.values()))
        pod = {name: i for i, name in enumerate(self._pods)}
        podset = {name: i for i, name in enumerate(self._podsets)}
        dc = {name: i for i, name in enumerate(self._dcs)}
        self._number = {server.name: i for i, server in enumerate(fleet.servers)}
        try:
            self.core = ProbeSimulator(
                [(podset[at], dc[fleet.dc_of[at]]) for at in (fleet.podset_of[p] for p in self._pods)],
                (len(podset), len(dc)),
                (_bytes(self._pods), _bytes(self._podsets), _bytes(self._dcs)),
                [(pod[x.pod], *packed_address(x.address), x.port, x.name.encode()) for x in fleet.servers],
                s.leaves,
                s.spines,
                s.seed,
            )
            self.core.set_tables([latencies(t) for t in (_POD, _DC, _DC, _HOST, _FACTOR, _BUSY)])
            self.core.set_noise(*s.noise)
            self.core.set_kernel(s.linear, s.payload, s.seed)
            self._lists()
        except ValueError as e:
            raise UsageError(f"cannot simulate: {e}") from None
        far = Random(s.seed, _DISTANCES)
        for a in range(len(dc)):
            for b in range(a):
                self.core.set_distance(a, b, 5 * MILLISECOND + far.below(55 * MILLISECOND))
        self._random = Random(s.seed, _FAULTS)
        self.placed = [self._place(fault) for fault in s.faults]

    def _lists(self) -> None:
        plan = PingmeshPlan(self.fleet, PlanRules(per_podset=self.settings.per_podset))
        parts: dict[object, int] = {}
        packed: list[bytes] = []
        lists: list[list[int]] = []
        for server in self.fleet.servers:
            its = []
            for part in plan.parts(server):
                if part[0] == "vip":
                    continue
                if part not in parts:
                    parts[part] = len(packed)
                    packed.append(array("I", [self._number[t.name] for t, _ in plan.targets(part)]).tobytes())
                its.append(parts[part])
            lists.append(its)
        self.core.set_lists(packed, lists)

    # -- faults -------------------------------------------------------------------------------------------------

    def _place(self, fault: Fault) -> PlacedFault:
        kind = KINDS.get(fault.kind)
        if kind is None:
            raise UsageError(f"unknown fault '{fault.kind[:60]}'", where="--fault", hint=f"use {', '.join(KINDS)}")
        place, _, which = fault.place.partition("/")
        what, place = self._find(kind, fault, place)
        if (fault.rate or 0) > CERTAIN or (fault.delay or 0) > 60 * SECOND:
            raise UsageError(f"'{fault.kind}' has a rate above 1 or a delay above 1m", where="--fault")
        if fault.start >= self.settings.span or fault.length == 0:
            problem = "has length 0" if fault.length == 0 else "begins after the end of the simulation"
            hint = "from=TIME must be within --span, for=TIME above 0"
            raise UsageError(f"'{fault.kind}' {problem}", where="--fault", hint=hint)
        core = self.core
        servers: tuple[int, ...] = ()
        devices: tuple[int, ...] = ()
        pair, names, detail = None, {}, place
        first_leaf = core.pods
        first_spine = first_leaf + core.podsets * core.leaves
        first_podset = first_spine + core.dcs * core.spines
        if what == "server":
            s = self.fleet.server(place)
            servers, names = (self._number[place],), {"src": place, **self._place_fields(s.pod)}
            detail = f"server {place}"
        elif what == "pair":
            a, b = (self.fleet.server(name) for name in place.split(">"))
            pair, names = (self._number[a.name], self._number[b.name]), {"src": a.name, "dst": b.name}
            detail = f"from {a.name} to {b.name}"
        elif what == "dcs":
            a_, b_ = place.split(">")
            devices = (first_podset + core.podsets + self._dcs.index(a_) * core.dcs + self._dcs.index(b_),)
            names, detail = {"src_dc": a_, "dst_dc": b_}, f"from {a_} to {b_}"
        elif what == "pod":
            devices, names = (self._pods.index(place),), self._place_fields(place)
            detail = f"ToR of {place}"
            if kind.number == KINDS["host_slow"].number:
                servers = tuple(self._number[s.name] for s in self.fleet.pods[place])
                detail = f"servers of {place}"
        elif what == "podset":
            names = {"src_podset": place, "src_dc": self.fleet.dc_of[place]}
            at = self._podsets.index(place)
            if fault.kind == "podset_down":
                servers = tuple(self._number[s.name] for s in self.fleet.servers if s.podset == place)
                detail = f"podset {place}"
            elif fault.kind == "podset_failure":
                devices, detail = (first_podset + at,), f"podset {place}"
            else:
                devices, detail = self._switches(fault, kind, which, first_leaf + at * core.leaves, core.leaves, "leaf")
                detail += f" of {place}"
        else:
            names = {"src_dc": place}
            at = self._dcs.index(place)
            devices, detail = self._switches(fault, kind, which, first_spine + at * core.spines, core.spines, "spine")
            detail += f" of {place}"
        return PlacedFault(fault, kind, servers, devices, pair, names, detail)

    def _find(self, kind: FaultKind, fault: Fault, place: str) -> tuple[str, str]:
        # Kind and name of a place that this kind of fault can have; a random one by default.
        known: dict[str, Sequence[str]] = {"pod": self._pods, "podset": self._podsets, "dc": self._dcs}
        if not place:
            what = kind.at[0]
            some = known[what] if what in known else [s.name for s in self.fleet.servers]
            return what, some[self._random.below(len(some))]
        a, pair, b = place.partition(">")
        for what in kind.at:
            if (what == "server" and place in self._number) or place in known.get(what, ()):
                return what, place
            if (
                pair
                and a != b
                and (
                    (what == "pair" and a in self._number and b in self._number)
                    or (what == "dcs" and a in self._dcs and b in self._dcs)
                )
            ):
                return what, place
        wanted = {"pair": "two servers A>B", "dcs": "two data centres A>B", "dc": "data centre"}
        some = next((known[w][0] for w in kind.at if w in known), self.fleet.servers[0].name)
        raise UsageError(
            f"invalid place '{fault.place[:60]}' for {fault.kind}",
            where="--fault",
            hint=f"give a {' or '.join(wanted.get(w, w) for w in kind.at)} of this fleet, e.g. {some}",
        )

    def _place_fields(self, pod: str) -> dict[str, str]:
        podset = self.fleet.podset_of[pod]
        return {"src_pod": pod, "src_podset": podset, "src_dc": self.fleet.dc_of[podset]}

    def _switches(
        self, fault: Fault, kind: FaultKind, which: str, first: int, n: int, name: str
    ) -> tuple[tuple[int, ...], str]:
        if which == "all" or (not which and not kind.one):
            return tuple(range(first, first + n)), f"all {name} switches"
        number = int(which) if which.isascii() and which.isdigit() and len(which) < 9 else 0
        if not which:
            number = self._random.below(n) + 1
        if not 1 <= number <= n:
            raise UsageError(f"unknown switch '{fault.place[:60]}'", where="--fault", hint=f"use 1 to {n}, or all")
        return (first + number - 1,), f"{name} {number}"

    def _times(self, placed: PlacedFault) -> tuple[int, int]:
        f, s = placed.fault, self.settings
        start = s.start + f.start
        return start, s.start + s.span if f.length is None else min(start + f.length, s.start + s.span)

    def _set_faults(self, at: int) -> None:
        # Set the faults of a time.
        self.core.clear_faults()
        for placed in self.placed:
            start, end = self._times(placed)
            if not start <= at < end:
                continue
            f, kind = placed.fault, placed.kind
            rate = kind.rate if f.rate is None else f.rate
            delay = kind.delay if f.delay is None else f.delay
            hole1, hole2 = f.kind == "blackhole1", f.kind == "blackhole2"
            if placed.pair is not None:
                self.core.fault_pair(*placed.pair, CERTAIN if hole1 else rate)
            if f.kind in ("podset_down", "server_down"):
                for i in placed.servers:
                    self.core.fault_server(i, True, 0, 0)
            elif f.kind == "host_slow":
                for i in placed.servers:
                    self.core.fault_server(i, False, rate, delay)
            else:
                for i in placed.devices:
                    self.core.fault_device(
                        i, 0 if hole1 or hole2 else rate, rate if hole1 else 0, rate if hole2 else 0, delay
                    )

    # -- records ------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> Schema:
        from confluo_tools.schema import builtin

        return builtin("probe")

    def truth(self) -> Block:
        """The records of the faults."""
        from confluo_tools.core.block.block import Staging

        n = len(self.placed)
        block = Staging(self.schema.layout, max(n, 1))
        times = [self._times(p) for p in self.placed]
        rates = [(p.kind.rate if p.fault.rate is None else p.fault.rate) / CERTAIN for p in self.placed]
        rates = [
            1.0 if p.pair and p.fault.kind == "blackhole1" else rate for p, rate in zip(self.placed, rates, strict=True)
        ]
        for name, code, values in (
            ("ts", "q", [start for start, _ in times]),
            ("kind", "B", [_FAULT_KIND] * n),
            ("elapsed", "q", [max(end - start, 0) for start, end in times]),
            ("fault", "B", [p.kind.number for p in self.placed]),
            ("rate", "d", rates),
        ):
            struct.pack_into(f"<{n}{code}", block.writable(block.layout.index(name)), 0, *values)
        for row, p in enumerate(self.placed):
            for name, text in (*p.names.items(), ("detail", p.detail)):
                i = block.layout.index(name)
                width = block.layout.describe(i)[2]
                struct.pack_into(f"{width}s", block.writable(i), row * width, text.encode()[:width])
        block.publish(n)
        return block

    def blocks(self) -> Iterator[Block]:
        """Records of the faults, then of probes in time order with the counters of servers in between.

        A block is valid until the next one.
        """
        from confluo_tools.core.block.block import Staging

        s, core = self.settings, self.core
        if self.placed:
            yield self.truth()
        end = s.start + s.span
        changes = sorted({t for placed in self.placed for t in self._times(placed) if s.start < t < end})
        counts = range(s.start + s.hosts, end + 1, s.hosts) if s.hosts else range(0)
        block = Staging(self.schema.layout, BLOCK_ROWS)
        self._set_faults(s.start)
        core.begin(s.start, s.interval)
        began = s.start
        last = s.start
        for stop in merge(changes, counts, [end]):
            if stop == last:
                continue
            last, rows = stop, 0
            while began < stop:
                rows = core.fill(block, stop, rows)
                if rows == block.capacity:
                    yield block
                    rows = 0
                if not core.more:
                    began += s.interval
                    core.begin(began, s.interval)
                elif core.now >= stop:
                    break
            if rows:
                yield block
            if stop in counts:
                yield from self._hosts(stop)
            if stop in changes:
                self._set_faults(stop)

    def _hosts(self, at: int) -> Iterator[Block]:
        from confluo_tools.core.block.block import Staging

        block = Staging(self.schema.layout, min(BLOCK_ROWS, self.core.n))
        while self.core.fill_hosts(block, at, self.settings.hosts):
            yield block


def latencies(knots: dict[int, int]) -> list[int]:
    """The values at the quantiles 1 - 2**-k, interpolated geometrically between the given ones."""
    from decimal import Decimal, localcontext

    found = []
    with localcontext(prec=28):  # the same on all machines, unlike math.exp
        for k in range(_OCTAVES):
            low = max(i for i in knots if i <= k)
            high = min(i for i in knots if i >= k)
            part = Decimal(k - low) / max(high - low, 1)
            found.append(int((Decimal(knots[high]) / knots[low]) ** part * knots[low]))
    return found


def _bytes(names: Sequence[str]) -> list[bytes]:
    return [name.encode() for name in names]
