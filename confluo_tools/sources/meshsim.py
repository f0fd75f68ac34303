"""Probe records of a fleet whose network has faults, and the truth about them: what agents of Pingmesh would have seen.

Who probes whom is `algo.pinglists`'s mesh.  Paths go over ToR, leaf, spine by a hash of the five-tuple, as ECMP sends
them; lost SYNs are sent again when Linux would; latencies are drawn from tables.  All of it is integers: a seed gives
the same bytes on every machine.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from typing import TYPE_CHECKING

from confluo_tools.algo.pinglists import Plan, Rules
from confluo_tools.core.closim import Random
from confluo_tools.core.meshsim import Meshsim
from confluo_tools.errors import UsageError
from confluo_tools.formats.build import packed_address

if TYPE_CHECKING:
    from confluo_tools.algo.fleet import Fleet
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema

CERTAIN = 1 << 63  # probabilities are integers
BLOCK_ROWS = 65536
MILLISECOND = 10**6
SECOND = 10**9
_FAULTS = 3  # streams of random numbers
_DISTANCES = 4
_OCTAVES = 26
_FAULT_KIND = 18  # of schema/probe.yaml

# ns where the tail is 2**-k: the least, median, 99.2 %, 99.9 %, 99.99 %, ... of a round trip.
_POD = {0: 90_000, 1: 200_000, 7: 1_100_000, 10: 4_000_000, 13: 20_000_000, 17: 100_000_000, 25: 500_000_000}
_DC = {0: 120_000, 1: 260_000, 7: 1_300_000, 10: 5_000_000, 13: 25_000_000, 17: 120_000_000, 25: 600_000_000}
_HOST = {0: 8_000, 1: 30_000, 7: 400_000, 10: 3_000_000, 13: 15_000_000, 17: 60_000_000, 25: 200_000_000}
_FACTOR = {0: 32_768, 1: 65_536, 7: 131_072, 13: 262_144, 25: 524_288}  # 65536 is 1
_BUSY = {0: 6_554, 1: 65_536, 7: 655_360, 13: 1_310_720, 25: 2_621_440}


@dataclass(frozen=True)
class Kind:
    """``number``: in schema/probe.yaml; ``at``: what it may befall; ``rate`` (of 2**63), ``delay`` (ns): usual ones;
    ``one``: without a number it is one of the switches there that is at fault, not all.
    """

    number: int
    at: tuple[str, ...]
    rate: int = 0
    delay: int = 0
    one: bool = False


KINDS = {
    "podset_down": Kind(1, ("podset",)),
    "podset_failure": Kind(2, ("podset",), delay=6 * MILLISECOND),
    "spine_drops": Kind(3, ("dc",), rate=CERTAIN // 100, one=True),
    "blackhole1": Kind(4, ("pod", "podset", "dc", "pair"), rate=CERTAIN // 20),
    "blackhole2": Kind(5, ("pod", "podset", "dc", "pair"), rate=CERTAIN // 20),
    "congestion": Kind(6, ("dc", "podset", "dcs"), rate=CERTAIN // 5000, delay=4 * MILLISECOND),
    "tor_drops": Kind(7, ("pod",), rate=CERTAIN // 100),
    "host_slow": Kind(8, ("server", "pod"), rate=CERTAIN // 50, delay=20 * MILLISECOND),
    "leaf_drops": Kind(9, ("podset",), rate=CERTAIN // 100, one=True),
    "server_down": Kind(10, ("server",)),
}


@dataclass(frozen=True)
class Fault:
    """``place``: a pod, podset, data centre or server, ``A>B`` for a pair of servers or data centres, ``PLACE/N`` for
    one of its switches (from 1), ``PLACE/all``; "": drawn.  ``rate`` of 2**63, ``delay`` ns; None: the kind's own.
    From ``start`` (ns from the beginning) for ``length`` (None: to the end).
    """

    kind: str
    place: str = ""
    rate: int | None = None
    delay: int | None = None
    start: int = 0
    length: int | None = None


@dataclass(frozen=True)
class Settings:
    """``span``, ``interval`` of a pair, ``hosts`` (between two records of a server's counters; 0: none): ns.
    ``noise``: by level (pod, dc, wan) the chance that a handshake loses a packet, of 2**63.
    ``linear``: Linux's tcp_syn_linear_timeouts is 4, not 0.  ``payload``: echoed, 0 for connections alone.
    ``leaves`` of a podset, ``spines`` of a data centre.
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
class Placed:
    """A fault with its place: numbers of servers, of devices; ``names``: fields of its record of truth."""

    fault: Fault
    kind: Kind
    servers: tuple[int, ...]
    devices: tuple[int, ...]
    pair: tuple[int, int] | None
    names: dict[str, str]
    detail: str


class Simulation:
    """``placed``: the faults.  Raises UsageError for those that cannot be in this fleet."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self.fleet, self.settings = fleet, settings
        s = settings
        self._pods, self._podsets = list(fleet.pods), list(fleet.dc_of)
        self._dcs = list(dict.fromkeys(fleet.dc_of.values()))
        pod = {name: i for i, name in enumerate(self._pods)}
        podset = {name: i for i, name in enumerate(self._podsets)}
        dc = {name: i for i, name in enumerate(self._dcs)}
        self._number = {server.name: i for i, server in enumerate(fleet.servers)}
        try:
            self.core = Meshsim(
                [(podset[at], dc[fleet.dc_of[at]]) for at in (fleet.podset_of[p] for p in self._pods)],
                (len(podset), len(dc)),
                (_bytes(self._pods), _bytes(self._podsets), _bytes(self._dcs)),
                [(pod[x.pod], *packed_address(x.address), x.port, x.name.encode()) for x in fleet.servers],
                s.leaves, s.spines, s.seed,
            )  # fmt: skip
            self.core.set_tables([latencies(t) for t in (_POD, _DC, _DC, _HOST, _FACTOR, _BUSY)])
            self.core.set_noise(*s.noise)
            self.core.set_kernel(s.linear, s.payload, s.seed)
            self._lists()
        except ValueError as e:
            raise UsageError(f"cannot be simulated: {e}") from None
        far = Random(s.seed, _DISTANCES)
        for a in range(len(dc)):
            for b in range(a):
                self.core.set_distance(a, b, 5 * MILLISECOND + far.below(55 * MILLISECOND))
        self._random = Random(s.seed, _FAULTS)
        self.placed = [self._place(fault) for fault in s.faults]

    def _lists(self) -> None:
        plan = Plan(self.fleet, Rules(per_podset=self.settings.per_podset))
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

    def _place(self, fault: Fault) -> Placed:
        kind = KINDS.get(fault.kind)
        if kind is None:
            raise UsageError(f"no fault '{fault.kind[:60]}'", where="--fault", hint=f"there are {', '.join(KINDS)}")
        place, _, which = fault.place.partition("/")
        what, place = self._find(kind, fault, place)
        if (fault.rate or 0) > CERTAIN or (fault.delay or 0) > 60 * SECOND:
            raise UsageError(f"'{fault.kind}' has a rate above 1, or a delay above a minute", where="--fault")
        if fault.start >= self.settings.span or fault.length == 0:
            said = "lasts for no time" if fault.length == 0 else "begins when all is over"
            hint = "from=TIME is within --span, for=TIME above 0"
            raise UsageError(f"'{fault.kind}' {said}", where="--fault", hint=hint)
        core = self.core
        servers: tuple[int, ...] = ()
        devices: tuple[int, ...] = ()
        pair, names, detail = None, {}, place
        first_leaf = core.pods
        first_spine = first_leaf + core.podsets * core.leaves
        first_podset = first_spine + core.dcs * core.spines
        if what == "server":
            s = self.fleet.server(place)
            servers, names = (self._number[place],), {"src": place, **self._up(s.pod)}
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
            devices, names = (self._pods.index(place),), self._up(place)
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
        return Placed(fault, kind, servers, devices, pair, names, detail)

    def _find(self, kind: Kind, fault: Fault, place: str) -> tuple[str, str]:
        # What a place is, of what this kind of fault may befall; one that is not told is drawn.
        known: dict[str, Sequence[str]] = {"pod": self._pods, "podset": self._podsets, "dc": self._dcs}
        if not place:
            what = kind.at[0]
            some = known[what] if what in known else [s.name for s in self.fleet.servers]
            return what, some[self._random.below(len(some))]
        a, pair, b = place.partition(">")
        for what in kind.at:
            if (what == "server" and place in self._number) or place in known.get(what, ()):
                return what, place
            if pair and a != b and ((what == "pair" and a in self._number and b in self._number)
                                    or (what == "dcs" and a in self._dcs and b in self._dcs)):  # fmt: skip
                return what, place
        wanted = {"pair": "two servers A>B", "dcs": "two data centres A>B", "dc": "data centre"}
        some = next((known[w][0] for w in kind.at if w in known), self.fleet.servers[0].name)
        raise UsageError(f"'{fault.place[:60]}' is no place of this fleet for {fault.kind}", where="--fault",
                         hint=f"it befalls a {' or '.join(wanted.get(w, w) for w in kind.at)}, e.g. {some}")

    def _up(self, pod: str) -> dict[str, str]:
        podset = self.fleet.podset_of[pod]
        return {"src_pod": pod, "src_podset": podset, "src_dc": self.fleet.dc_of[podset]}

    def _switches(
        self, fault: Fault, kind: Kind, which: str, first: int, n: int, name: str
    ) -> tuple[tuple[int, ...], str]:
        if which == "all" or (not which and not kind.one):
            return tuple(range(first, first + n)), f"all {name} switches"
        number = int(which) if which.isascii() and which.isdigit() and len(which) < 9 else 0
        if not which:
            number = self._random.below(n) + 1
        if not 1 <= number <= n:
            hint = f"they are 1 to {n}, or all"
            raise UsageError(f"no such switch as '{fault.place[:60]}'", where="--fault", hint=hint)
        return (first + number - 1,), f"{name} {number}"

    def _times(self, placed: Placed) -> tuple[int, int]:
        f, s = placed.fault, self.settings
        start = s.start + f.start
        return start, s.start + s.span if f.length is None else min(start + f.length, s.start + s.span)

    def _break(self, at: int) -> None:
        # What is broken at a time.
        self.core.heal()
        for placed in self.placed:
            start, end = self._times(placed)
            if not start <= at < end:
                continue
            f, kind = placed.fault, placed.kind
            rate = kind.rate if f.rate is None else f.rate
            delay = kind.delay if f.delay is None else f.delay
            hole1, hole2 = f.kind == "blackhole1", f.kind == "blackhole2"
            if placed.pair is not None:
                self.core.break_pair(*placed.pair, CERTAIN if hole1 else rate)
            if f.kind in ("podset_down", "server_down"):
                for i in placed.servers:
                    self.core.break_server(i, True, 0, 0)
            elif f.kind == "host_slow":
                for i in placed.servers:
                    self.core.break_server(i, False, rate, delay)
            else:
                for i in placed.devices:
                    self.core.break_device(
                        i, 0 if hole1 or hole2 else rate, rate if hole1 else 0, rate if hole2 else 0, delay
                    )

    # -- records ------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> Schema:
        from confluo_tools.schema import builtin

        return builtin("probe")

    def truth(self) -> Block:
        """A record of each fault."""
        from confluo_tools.core.block import Staging

        n = len(self.placed)
        block = Staging(self.schema.layout, max(n, 1))
        times = [self._times(p) for p in self.placed]
        rates = [(p.kind.rate if p.fault.rate is None else p.fault.rate) / CERTAIN for p in self.placed]
        rates = [1.0 if p.pair and p.fault.kind == "blackhole1" else rate
                 for p, rate in zip(self.placed, rates, strict=True)]  # fmt: skip
        for name, code, values in (
            ("ts", "q", [start for start, _ in times]), ("kind", "B", [_FAULT_KIND] * n),
            ("elapsed", "q", [max(end - start, 0) for start, end in times]),
            ("fault", "B", [p.kind.number for p in self.placed]), ("rate", "d", rates),
        ):  # fmt: skip
            struct.pack_into(f"<{n}{code}", block.writable(block.layout.index(name)), 0, *values)
        for row, p in enumerate(self.placed):
            for name, text in (*p.names.items(), ("detail", p.detail)):
                i = block.layout.index(name)
                width = block.layout.describe(i)[2]
                struct.pack_into(f"{width}s", block.writable(i), row * width, text.encode()[:width])
        block.publish(n)
        return block

    def blocks(self) -> Iterator[Block]:
        """The truth, then probes in the order of time, and between them the servers' counters.  A block is valid
        until the next.
        """
        from confluo_tools.core.block import Staging

        s, core = self.settings, self.core
        if self.placed:
            yield self.truth()
        end = s.start + s.span
        changes = sorted({t for placed in self.placed for t in self._times(placed) if s.start < t < end})
        counts = range(s.start + s.hosts, end + 1, s.hosts) if s.hosts else range(0)
        block = Staging(self.schema.layout, BLOCK_ROWS)
        self._break(s.start)
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
                self._break(stop)

    def _hosts(self, at: int) -> Iterator[Block]:
        from confluo_tools.core.block import Staging

        block = Staging(self.schema.layout, min(BLOCK_ROWS, self.core.n))
        while self.core.hosts(block, at, self.settings.hosts):
            yield block


def latencies(knots: dict[int, int]) -> list[int]:
    """A value for each tail 2**-k from those that are given: between them it grows by the same factor."""
    from decimal import Decimal, localcontext

    found = []
    with localcontext(prec=28):  # the same everywhere, which math.exp need not be
        for k in range(_OCTAVES):
            low = max(i for i in knots if i <= k)
            high = min(i for i in knots if i >= k)
            part = Decimal(k - low) / max(high - low, 1)
            found.append(int((Decimal(knots[high]) / knots[low]) ** part * knots[low]))
    return found


def _bytes(names: Sequence[str]) -> list[bytes]:
    return [name.encode() for name in names]
