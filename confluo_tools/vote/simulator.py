"""Simulated path records: flows through a Clos with links that drop packets, and the truth (007, section 6).

The parameters are those of the authors' simulator.  Where that differs from its own description it is followed only
on request: see `QUIRKS`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from confluo_tools.core.base.random import Random
from confluo_tools.core.vote.clos_simulator import ClosSimulator
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.network.topology import Clos
    from confluo_tools.schema import Schema

CERTAIN = 1 << 63  # probabilities are integers: the same bytes on every machine
KINDS = ("host-tor", "tor-t1", "t1-t2", "t2-t1", "t1-tor", "tor-host")  # as pyx/vote/clos_simulator.pyx numbers them
FABRIC = (1, 2, 3, 4)
HEALTHY = ("none", "bare", "path")
HOLES = ("none", "pairs", "flows")
QUIRKS = {"last-hop": 1, "two-draws": 2, "culprit": 4}
CLUSTER = CERTAIN // 10  # a further link that fails is one of the same switch
BLOCK_ROWS = 65536
_FAILURES = 2  # stream of random numbers
_HOT = 3


def probability(value: float) -> int:
    """A chance from 0 to 1 as the simulator has it."""
    return min(max(int(value * CERTAIN), 0), CERTAIN)


@dataclass(frozen=True)
class ClosSettings:
    """What is simulated; the defaults are the paper's, with one failed link.  Probabilities are of 2**63.

    ``rates``: from, to, of the first failed link, the second, ...; the last holds for all others too.
    ``where``: kinds of links (see `KINDS`) that fail; ``devices``: switches that fail as a whole;
    ``fail``: links and switches (a link from a node to itself) by number, each with its rate or None for one drawn.
    ``connections`` of a host in an epoch and ``packets`` of a flow: from, to.  ``pareto``: most flows are small.
    ``hot_tors``, ``skew``: this number of ToRs is the destination of this share of the flows.
    ``healthy``: what is written of flows without loss.  ``quirks``: sum of `QUIRKS`.
    ``cap``: flows of a host that are traced in an epoch, 0 for all.  ``silence``: the chance that a switch of a path
    does not answer.  ``deaths``: flows connect, time out and die as those of TCP do, lost acknowledgements count, and
    probes of traces are lost, too.  ``holes``: of `HOLES`; failures drop all packets of a share of the flows, in place
    of a share of all packets.  Times in ns.
    """

    seed: int = 1
    failures: int = 1
    where: Sequence[int] = FABRIC
    devices: int = 0
    fail: Sequence[tuple[int, int, int | None]] = ()
    rates: Sequence[tuple[int, int]] = ((probability(1e-4), probability(1e-2)),)
    noise: int = probability(1e-6)
    connections: tuple[int, int] = (60, 60)
    packets: tuple[int, int] = (1, 100)
    pareto: bool = False
    hot_tors: int = 0
    skew: int = 0
    healthy: int = 0
    quirks: int = 0
    cap: int = 0
    silence: int = 0
    deaths: bool = False
    holes: int = 0
    epochs: int = 1
    length: int = 30 * 10**9
    start: int = 1767225600 * 10**9  # 2026-01-01


class ClosSimulation:
    """``failed``: (from, to, rate) of what drops, as node numbers; a switch is a link from itself to itself.

    Raises UsageError for what cannot be: more failures than links, a network of one ToR.
    """

    def __init__(self, clos: Clos, settings: ClosSettings) -> None:
        self.clos, self.settings = clos, settings
        s = settings
        try:
            self.core = ClosSimulator(clos.pods, clos.tors, clos.t1s, clos.t2s, clos.hosts, clos.first_host, s.seed)
            self.core.set_noise(s.noise)
            self.core.set_flows(*s.connections, *s.packets, s.pareto, s.healthy, s.quirks, s.cap)
            self.core.set_silence(s.silence)
            self.core.set_deaths(s.deaths, s.holes)
            hot = Random(s.seed, _HOT)
            tors = list(range(self.core.all_tors))
            if not 0 <= s.hot_tors <= len(tors):
                raise UsageError(f"{s.hot_tors} hot ToRs of {len(tors)}", where="--hot-tors")
            self.core.set_hot([tors.pop(hot.below(len(tors))) for _ in range(s.hot_tors)], s.skew)
        except ValueError as e:
            raise UsageError(f"cannot be simulated: {e}") from None
        except OverflowError:
            raise UsageError(f"cannot be simulated: {clos}: too many") from None
        self._random = Random(s.seed, _FAILURES)
        self.failed: list[tuple[int, int, float]] = []
        for a, b, given in s.fail:
            self._fail(a, b, given)
        self._fail_devices(s.devices)
        self._fail_links(s.failures)

    # -- what fails ---------------------------------------------------------------------------------------------

    def _rate(self) -> int:
        low, high = self.settings.rates[min(len(self.failed), len(self.settings.rates) - 1)]
        return low + self._random.below(high - low + 1)

    def _fail(self, a: int, b: int, given: int | None) -> None:
        rate = self._rate() if given is None else given
        if a == b:
            into = [place for (_, to), place in self._places.items() if to == a]
            if not into or a >= self.clos.first_host:
                raise UsageError(f"no switch {a} in this network", where="--fail")
            for kind, number in into:
                self.core.fail(kind, number, rate, a)
        elif (a, b) in self._places:
            self.core.fail(*self._places[a, b], rate)
        else:
            raise UsageError(f"no link from {a} to {b} in this network", where="--fail")
        self.failed.append((a, b, rate / CERTAIN))

    @cached_property
    def _places(self) -> dict[tuple[int, int], tuple[int, int]]:
        return {self.core.link(k, i): (k, i) for k in range(len(KINDS)) for i in range(self.core.count(k))}

    def _fail_devices(self, n: int) -> None:
        left = list(range(1, self.clos.switches + 1))
        for a, b, _ in self.failed:
            if a == b and a in left:
                left.remove(a)
        if n > len(left):
            raise UsageError(f"{n} switches cannot fail: there are {len(left)}", where="--devices")
        for _ in range(n):
            device = left.pop(self._random.below(len(left)))
            self._fail(device, device, None)

    def _fail_links(self, n: int) -> None:
        # Each failure is of any kind with equal chance; see CLUSTER for those of one kind.
        core, where = self.core, list(dict.fromkeys(self.settings.where))
        left = {kind: core.count(kind) for kind in where}
        for kind in where:
            left[kind] -= sum(core.rate_of(kind, i)[1] for i in range(core.count(kind))) if self.failed else 0
        if n > min(sum(left.values()), BLOCK_ROWS - len(self.failed)):
            raise UsageError(f"{n} links cannot fail: there are {sum(left.values())}", where="--failures")
        before: dict[int, int] = {}
        for _ in range(n):
            kinds = [kind for kind in where if left[kind]]
            kind = kinds[self._random.below(len(kinds))]
            if kind in before and self._random.below(CERTAIN) < CLUSTER:
                near = self._same_switch(kind, before[kind])
            else:
                near = []
            if near:
                number = near[self._random.below(len(near))]
            else:
                number = self._random.below(core.count(kind))
                while core.rate_of(kind, number)[1]:
                    number = self._random.below(core.count(kind))
            rate = self._rate()
            core.fail(kind, number, rate)
            before[kind], left[kind] = number, left[kind] - 1
            self.failed.append((*core.link(kind, number), rate / CERTAIN))

    def _same_switch(self, kind: int, number: int) -> list[int]:
        switch = self.core.link(kind, number)[0]
        return [
            i
            for i in range(self.core.count(kind))
            if self.core.link(kind, i)[0] == switch and not self.core.rate_of(kind, i)[1]
        ]

    # -- records ------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> Schema:
        from confluo_tools.schema import builtin

        path = builtin("path")
        return path.project([f.name for f in path.fields if not f.optional])

    def truth(self) -> Block:
        """A record of each failed link and switch."""
        from confluo_tools.core.block.block import Staging

        block = Staging(self.schema.layout, max(len(self.failed), 1))
        for name, code, values in (
            ("ts", "q", [self.settings.start] * len(self.failed)),
            ("kind", "B", [2] * len(self.failed)),
            ("link_a", "I", [a for a, _, _ in self.failed]),
            ("link_b", "I", [b for _, b, _ in self.failed]),
            ("rate", "d", [rate for _, _, rate in self.failed]),
        ):
            struct.pack_into(f"<{len(values)}{code}", block.writable(block.layout.index(name)), 0, *values)
        block.publish(len(self.failed))
        return block

    def blocks(self) -> Iterator[Block]:
        """The truth, then the flows of each epoch in the order of time.  A block is valid until the next."""
        if self.failed:
            yield self.truth()
        for number in range(self.settings.epochs):
            yield from self.epoch(number)

    def epoch(self, number: int) -> Iterator[Block]:
        """The flows of one epoch."""
        from confluo_tools.core.block.block import Staging

        s = self.settings
        self.core.begin(number, s.start + number * s.length, s.length)
        block = Staging(self.schema.layout, BLOCK_ROWS if s.healthy else BLOCK_ROWS // 8)
        while self.core.more:
            if self.core.fill(block):
                yield block
