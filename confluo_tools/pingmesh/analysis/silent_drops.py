"""Silent random packet drops: find the layer of the network that loses packets, and the pairs of servers behind it.

After Pingmesh (SIGCOMM 2015), section on silent drops: no counter of a switch shows them; some pairs of servers
need a second SYN more often than others.  These pairs give the layer: all of one ToR, of one podset, all that cross
podsets (the spine), or data centres.  The paper finds the switch with traceroutes by hand; here the flows that lost a
packet go to confluo-trace and confluo-vote with their ports.

A place *explains* the losses by the log likelihood ratio of two drop rates (pairs that cross the place, and all others)
against one; twice that is Wilks' statistic.  All parts of the place have to drop alike, as in the podset rule of
black holes: two bad ToRs are not a bad podset.  The best place is taken, its pairs are set aside, and the search is
repeated on the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

from confluo_tools.pingmesh.analysis import loss_bursts
from confluo_tools.pingmesh.analysis.blackholes import NetworkPlace
from confluo_tools.pingmesh.analysis.sla import wilson

# Minimum drop rate of a fault, with 95 % confidence.  1e-4 to 1e-5 are normal; the paper's incident had 2e-3.
ABOVE = 5e-4
RATIO = 2.0  # minimum ratio to the rate of the others
GAIN = 12.0  # minimum log likelihood ratio: once in 10^6 by chance alone
FAR = 0.3  # a part with less than this share of the place's rate is not like the others
SURE = 3.3  # standard errors
MAX_FINDINGS = 8

LAYERS = ("tor", "podset", "leaf", "spine", "wan", "all")


class Count(NamedTuple):
    """Probes answered (``ok``), of these those that had lost a packet (``dropped``), and probes not answered."""

    ok: int = 0
    dropped: int = 0
    failed: int = 0

    def plus(self, other: Count) -> Count:
        return Count(self.ok + other.ok, self.dropped + other.dropped, self.failed + other.failed)

    def minus(self, other: Count) -> Count:
        return Count(self.ok - other.ok, self.dropped - other.dropped, self.failed - other.failed)

    @property
    def rate(self) -> float:
        """Drop rate, 0 without probes."""
        return self.dropped / self.ok if self.ok else 0.0


@dataclass(frozen=True, slots=True)
class DropFinding:
    """A place that drops packets.

    ``layer``: tor; leaf (between pods, from or to the podset); podset (within its pods, too); spine (between podsets
    of the data centre, and to others); wan (between two data centres, the second is ``other``); all (everywhere).
    ``inside``: pairs that cross it, ``outside``: the others.  ``gain``: log likelihood ratio.
    """

    layer: str
    place: NetworkPlace
    inside: Count
    outside: Count
    gain: float
    other: str = ""


Key = tuple[str, NetworkPlace, str]  # layer, place, the other data centre
Cells = Mapping[tuple[NetworkPlace, NetworkPlace], Count]  # by pods of source and destination


def locate(
    cells: Cells, *, above: float = ABOVE, ratio: float = RATIO, gain: float = GAIN, max_findings: int = MAX_FINDINGS
) -> list[DropFinding]:
    """Places that drop packets, the one that explains most first.  Time is linear in the number of cells."""
    left = {pair: count for pair, count in cells.items() if count.ok}
    found: list[DropFinding] = []
    sums: dict[Key, list[int]] = {}
    parts: dict[Key, dict[object, list[int]]] = {}

    def add(pair: tuple[NetworkPlace, NetworkPlace], count: Count, sign: int) -> None:
        for key in crossed(*pair):
            for counts in (
                sums.setdefault(key, [0, 0, 0]),
                parts.setdefault(key, {}).setdefault(_part(key, *pair), [0, 0, 0]),
            ):
                for i, n in enumerate(count):
                    counts[i] += sign * n

    for pair, count in left.items():
        add(pair, count, 1)
    total = _sum(left.values())
    while left and len(found) < max_findings:
        best: tuple[float, int, DropFinding] | None = None
        for (layer, place, other), counts in sums.items():
            inside, outside = Count(*counts), total.minus(Count(*counts))
            if not outside.ok or inside.rate < ratio * outside.rate:
                continue
            if wilson(inside.dropped, inside.ok)[0] < above:
                continue
            # of two places that the same pairs cross take the lower one: fewer switches to check
            rank = likelihood_gain(inside, outside), -LAYERS.index(layer)
            if (
                rank[0] >= gain
                and (best is None or rank > best[:2])
                and _even(inside.rate, parts[layer, place, other].values())
            ):
                best = (*rank, DropFinding(layer, place, inside, outside, rank[0], other))
        if best is None:
            break
        finding = best[2]
        found.append(finding)
        total = finding.outside
        for pair in [pair for pair in left if crosses(finding, *pair)]:
            add(pair, left.pop(pair), -1)
    if not found:
        total = _sum(cells.values())
        if wilson(total.dropped, total.ok)[0] >= above:
            found.append(DropFinding("all", NetworkPlace(), total, Count(), 0.0))
    return found


def judge(
    cells: Cells,
    times: Mapping[tuple[NetworkPlace, NetworkPlace], Sequence[int]],
    begin: int,
    end: int,
    *,
    above: float = ABOVE,
    ratio: float = RATIO,
    lasting: int = loss_bursts.LASTING,
) -> list[tuple[DropFinding, loss_bursts.LossPeriod]]:
    """Places that dropped packets from ``begin`` to ``end`` (ns), with their periods: steady ones first, then those
    that began too late to decide, then bursts.  ``times``: of the drops of each cell, ns.
    """
    left, when = dict(cells), {pair: sorted(pair_times) for pair, pair_times in times.items()}
    moments: dict[Key, tuple[DropFinding, loss_bursts.LossPeriod]] = {}
    for _ in range(MAX_FINDINGS):
        steady = []
        found = locate(left, above=above, ratio=ratio)
        short = []
        aside: set[tuple[NetworkPlace, NetworkPlace]] = set()  # pairs that cross a place that explains more
        for finding in found:
            through = [pair for pair in when if pair not in aside and crosses(finding, *pair)]
            aside.update(through)
            drops = [t for pair in through for t in when[pair]]
            period = loss_bursts.loss_period(drops, begin, end, lasting)
            if period.state == loss_bursts.STEADY:
                steady.append((finding, period))
                continue
            moments.setdefault((finding.layer, finding.place, finding.other), (finding, period))
            spans = loss_bursts.burst_periods(drops, begin, end, lasting) or [(period.begin, period.end)]
            short.append((finding, spans))
        if not short:
            break
        for finding, spans in short:
            _without(left, when, finding, spans, max(end - begin, 1))
    lasts = {(finding.layer, finding.place, finding.other) for finding, _ in steady}
    rest = [found for key, found in moments.items() if key not in lasts]
    rest.sort(key=lambda found: (found[1].state != loss_bursts.NEW, -found[0].gain))
    return steady + rest


def _without(
    cells: dict[tuple[NetworkPlace, NetworkPlace], Count],
    when: dict[tuple[NetworkPlace, NetworkPlace], list[int]],
    finding: DropFinding,
    spans: Sequence[tuple[int, int]],
    whole: int,
) -> None:
    """Remove these spans from the cells that cross the place."""
    share = max(0.0, 1 - sum(high - low for low, high in spans) / whole)
    for pair in [pair for pair in cells if crosses(finding, *pair)]:
        ok, dropped, failed = cells[pair]
        drops = when.get(pair, [])
        kept = [t for t in drops if not any(low <= t < high for low, high in spans)]
        when[pair] = kept
        cells[pair] = Count(round(ok * share), max(dropped - len(drops) + len(kept), 0), failed)


def crossed(a: NetworkPlace, b: NetworkPlace) -> list[Key]:
    """The places that packets between servers of these pods cross."""
    keys = [("tor", place, "") for place in dict.fromkeys((a, b)) if place.pod]
    podsets = [podset for podset in dict.fromkeys((_above(a), _above(b))) if podset.podset]
    keys += [("podset", podset, "") for podset in podsets]
    if a != b:
        keys += [("leaf", podset, "") for podset in podsets]
    if a.dc != b.dc:
        first, second = sorted((a.dc, b.dc))
        keys.append(("wan", NetworkPlace("", "", first), second))
        keys += [("spine", NetworkPlace("", "", dc), "") for dc in (first, second)]
    elif len(podsets) > 1:
        keys.append(("spine", NetworkPlace("", "", a.dc), ""))
    return keys


def _part(key: Key, a: NetworkPlace, b: NetworkPlace) -> object:
    """The part of a place that these pairs cross; all parts of a faulty place drop alike."""
    layer, place, _ = key
    if layer == "spine":
        return frozenset((_above(a), _above(b)))
    if layer in ("leaf", "podset"):
        inside = [pod for pod in (a, b) if _above(pod) == place]
        return frozenset(inside)
    return ""


def _even(rate: float, parts: Iterable[Sequence[int]]) -> bool:
    """Whether no part has a rate significantly below `FAR` times ``rate``."""
    return all(not ok or wilson(dropped, ok, SURE)[1] >= FAR * rate for ok, dropped, _ in parts)


def likelihood_gain(inside: Count, outside: Count) -> float:
    """Log likelihood ratio of two drop rates against one for all."""
    both = inside.plus(outside)
    return _likelihood(inside) + _likelihood(outside) - _likelihood(both)


def _likelihood(count: Count) -> float:
    k, n = min(count.dropped, count.ok), count.ok
    return sum(part * log(part / n) for part in (k, n - k) if part)


def _above(place: NetworkPlace) -> NetworkPlace:
    return NetworkPlace("", place.podset, place.dc)


def _sum(counts: Iterable[Count]) -> Count:
    total = Count()
    for count in counts:
        total = total.plus(count)
    return total


class WorstPair(NamedTuple):
    """A pair of servers, and the lower bound of its drop rate."""

    src: str
    dst: str
    probes: Count
    min_rate: float


def worst(pairs: Iterable[tuple[str, str, Count]], top: int, *, z: float = 1.96) -> list[WorstPair]:
    """The ``top`` pairs with the highest drop rates, by the lower bound of each one's interval."""
    found = [
        WorstPair(src, dst, count, wilson(count.dropped, count.ok, z)[0]) for src, dst, count in pairs if count.dropped
    ]
    found.sort(key=lambda pair: (-pair.min_rate, -pair.probes.dropped, pair.src, pair.dst))
    return found[:top]


def crosses(finding: DropFinding, a: NetworkPlace, b: NetworkPlace) -> bool:
    """Whether packets between servers of these pods cross the place."""
    return finding.layer == "all" or (finding.layer, finding.place, finding.other) in crossed(a, b)


def by_distance(cells: Cells) -> dict[str, Count]:
    """Sums by distance of the probes: within the pod, the podset, the data centre, or beyond."""
    found = {name: Count() for name in ("pod", "podset", "dc", "wan")}
    for (a, b), count in cells.items():
        distance = "pod" if a == b else "podset" if _above(a) == _above(b) else "dc" if a.dc == b.dc else "wan"
        found[distance] = found[distance].plus(count)
    return found
