"""Servers that did not answer for a while, judged before the network: their drops are not the network's.

A program that is stopped, or a host that is off, makes all SYNs to one server fail until it is back.  Probes that wait
then succeed after a retransmission, and look like packets that the network dropped.  The host cannot report the
overflow of a listen queue while the program that reports it is the one that is stopped.

The drops of probes from and to a server are its own when

* they come together: while the server is silent, probe after probe is lost.  Random losses are spread over the window;
* several other servers see them: a black hole of a pair has one;
* the other servers on the same ToR, which share all of the network with it but one cable, do not have as many.

`silent_servers` takes counts and times; it has no state.  A server without neighbours on its ToR is never judged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp
from typing import NamedTuple

from confluo_tools.pingmesh.analysis.sla import FALSE_ALARM, binomial_tail

MIN_DROPS = 3
RATIO = 5.0  # minimum ratio of the share of lost probes to that of all other probes
TOGETHER = 1e-4  # maximum chance that random losses are as close together
NEAR = 1e-2  # maximum chance that the neighbours would lose so few, if the ToR were the cause
CLOSE = 1.6  # mean intervals between probes: closer losses are next to each other
DENSE = 0.5  # minimum share of lost probes while a server is silent
AT_ONCE = 3.0  # maximum: where all servers probe at the same instant, one lost round is a moment, not a silence


class LostProbe(NamedTuple):
    """One probe that was answered only after a retransmission or, if it ``failed``, not at all."""

    ts: int
    src: str
    dst: str
    failed: bool = False


class LostProbes(NamedTuple):
    """Probes that were ``answered``, of these those ``dropped`` (after a retransmission), and those that ``failed``."""

    answered: int = 0
    dropped: int = 0
    failed: int = 0

    @property
    def lost(self) -> int:
        return self.dropped + self.failed

    @property
    def probes(self) -> int:
        return self.answered + self.failed

    @property
    def rate(self) -> float:
        return self.lost / self.probes if self.probes else 0.0

    def minus(self, other: LostProbes) -> LostProbes:
        return LostProbes(*(a - b for a, b in zip(self, other, strict=True)))


class SilentServer(NamedTuple):
    """A server that did not answer for a while.  ``own``: probes from and to it; ``neighbours``: from and to the other
    servers on its ToR, without it; ``runs``: how often it was silent; ``drops``: numbers of its drops.
    """

    server: str
    own: LostProbes
    neighbours: LostProbes
    runs: int
    drops: tuple[int, ...]


def silent_servers(
    pairs: Mapping[tuple[str, str], tuple[int, int]],
    drops: Sequence[LostProbe],
    pod_of: Mapping[str, Hashable],
    begin: int,
    end: int,
) -> list[SilentServer]:
    """Servers that were silent for a while between ``begin`` and ``end`` (ns), most drops first.

    ``pairs``: {(source, target): (answered, failed) probes}.  ``drops``: lost probes; those that failed may be left
    out.  ``pod_of``: pod of each server; a server with an unknown pod ('', None) is not judged.  Time is linear in
    pairs, and in lost probes for each server found.
    """
    left: dict[str, set[int]] = {}
    for number, drop in enumerate(drops):
        for server in {drop.src, drop.dst}:
            left.setdefault(server, set()).add(number)
    candidates = {s for s, numbers in left.items() if len(numbers) >= MIN_DROPS and pod_of.get(s)}
    if not candidates:
        return []
    sums = _Sums(pairs, drops, pod_of, candidates)
    found = []
    while candidates:
        server = max(candidates, key=lambda s: (len(left[s]), s))
        candidates.remove(server)
        numbers = sorted(left[server], key=lambda i: drops[i].ts)
        silent = _judge(server, numbers, drops, sums, begin, end)
        if silent is None:
            continue
        found.append(silent)
        sums.remove(server)
        for i in numbers:
            for other in {drops[i].src, drops[i].dst} - {server}:
                left[other].discard(i)
        candidates = {s for s in candidates if len(left[s]) >= MIN_DROPS}
    return found


def _judge(
    server: str, numbers: Sequence[int], drops: Sequence[LostProbe], sums: _Sums, begin: int, end: int
) -> SilentServer | None:
    own, neighbours, others = sums.own(server), sums.neighbours(server), sums.others(server)
    if not neighbours.probes or not own.probes:
        return None
    partners = {drops[i].src if drops[i].dst == server else drops[i].dst for i in numbers}
    if len(partners) < 2 or 2 * len(partners) < min(len(numbers), sums.partners(server)):
        return None
    runs = _runs([drops[i].ts for i in numbers], own.probes, sums.pairs(server), begin, end)
    if runs is None or own.rate < RATIO * others.rate or own.rate < 2 * neighbours.rate:
        return None
    if _chance(own, others) >= FALSE_ALARM or _chance(own, neighbours) >= NEAR:
        return None
    return SilentServer(server, own, neighbours, runs, tuple(numbers))


def _runs(times: Sequence[int], probes: int, pairs: int, begin: int, end: int) -> int | None:
    """How often the server was silent, from the times of its lost probes (sorted); None: random losses look so, too.

    Between the first and the last loss of a run, at least half of the probes are lost (`DENSE`).
    """
    k, whole = len(times), max(end - begin, 1)
    mean = whole / probes  # time between two probes from or to the server
    gaps = [b - a for a, b in pairwise(times)]
    breaks = [gap for gap in gaps if gap > CLOSE * mean * pairs]  # each pair was probed in between
    lasted = times[-1] - times[0] - sum(breaks) + (1 + len(breaks)) * mean
    if not DENSE <= k * mean / lasted <= AT_ONCE:
        return None
    close = 1 - exp(-CLOSE * k / probes)  # that the next of k random losses is near
    dense = binomial_tail(sum(gap <= CLOSE * mean for gap in gaps), k - 1, close)
    longest = max([*gaps, times[0] - begin, end - times[-1]]) / whole
    pause = k * (1 - min(longest, 1.0)) ** k  # that k random losses leave such a pause
    return 1 + len(breaks) if min(dense, pause) < TOGETHER else None


def _chance(own: LostProbes, other: LostProbes) -> float:
    """The chance that this number of lost probes are the server's if all probes are lost alike."""
    return binomial_tail(own.lost, own.lost + other.lost, own.probes / (own.probes + other.probes))


class _Sums:
    """Probes by server and pod; only pods of candidates are counted."""

    def __init__(
        self,
        pairs: Mapping[tuple[str, str], tuple[int, int]],
        drops: Iterable[LostProbe],
        pod_of: Mapping[str, Hashable],
        candidates: Iterable[str],
    ) -> None:
        dropped: dict[tuple[str, str], int] = {}
        for drop in drops:
            if not drop.failed:
                dropped[drop.src, drop.dst] = dropped.get((drop.src, drop.dst), 0) + 1
        self._pod_of = pod_of
        wanted = {pod_of[s] for s in candidates}
        self._in: dict[Hashable, dict[tuple[str, str], LostProbes]] = {pod: {} for pod in wanted}
        for (src, dst), (answered, failed) in pairs.items():
            counts = LostProbes(answered, dropped.get((src, dst), 0), failed)
            for pod in {pod_of.get(src), pod_of.get(dst)} & wanted:
                self._in[pod][src, dst] = counts
        answered, failed = (sum(column) for column in zip(*pairs.values(), strict=True))
        self._all = LostProbes(answered, sum(dropped.values()), failed)

    def _of(self, server: str) -> dict[tuple[str, str], LostProbes]:
        return self._in[self._pod_of[server]]

    def remove(self, server: str) -> None:
        """Leave out the probes from and to a server that is found."""
        self._all = self.others(server)
        for pairs in self._in.values():
            for pair in [pair for pair in pairs if server in pair]:
                del pairs[pair]

    def own(self, server: str) -> LostProbes:
        return _sum(counts for pair, counts in self._of(server).items() if server in pair)

    def neighbours(self, server: str) -> LostProbes:
        return _sum(counts for pair, counts in self._of(server).items() if server not in pair)

    def others(self, server: str) -> LostProbes:
        return self._all.minus(self.own(server))

    def pairs(self, server: str) -> int:
        return sum(server in pair for pair in self._of(server))

    def partners(self, server: str) -> int:
        return len({end for pair in self._of(server) if server in pair for end in pair} - {server})


def _sum(counts: Iterable[LostProbes]) -> LostProbes:
    columns = list(zip(*counts, strict=True))
    return LostProbes(*map(sum, columns)) if columns else LostProbes()
