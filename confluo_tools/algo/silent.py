"""Silent random packet drops: which layer of the network loses packets, and between whom to look for the switch.

After Pingmesh (SIGCOMM 2015), section on silent drops: no counter of a switch shows them, only that some pairs of
servers need a second SYN more often than others.  Which pairs these are tells the layer: those of one ToR, of one
podset, all that cross podsets (the spine), or data centres.  Which switch it is, the paper finds with traceroutes by
hand; here the flows that lost a packet go to confluo-trace and confluo-vote with their ports.

A place *explains* the losses by as much as it makes them likelier that the pairs crossing it have a drop rate of their
own: twice that logarithm is Wilks' statistic.  And all parts of it have to drop alike, as in the podset rule of black
holes: two bad ToRs are no bad podset.  The best place is taken, its pairs are set aside, and the rest is asked
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

from confluo_tools.algo import bursts
from confluo_tools.algo.blackholes import Place
from confluo_tools.algo.sla import wilson

# A drop rate that is a fault, when it is that for sure (95 %).  1e-4 to 1e-5 are normal, the paper's incident had 2e-3.
ABOVE = 5e-4
RATIO = 2.0  # and so many times that of the others
GAIN = 12.0  # and so much likelier (logarithm): once in 10^6 by chance alone
FAR = 0.3  # of its rate, at which a part of a place is not like the others
SURE = 3.3  # standard errors
MOST = 8  # places that are named

LAYERS = ("tor", "podset", "leaf", "spine", "wan", "all")


class Count(NamedTuple):
    """Probes that were answered, those of them that had lost a packet before, and probes that were not answered."""

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
class Finding:
    """A place that drops packets.

    ``layer``: tor; leaf (between pods, of or to the podset), podset (within its pods, too); spine (between podsets of
    the data centre, and to others); wan (between two of them: ``other``); all: everywhere.  ``inside``: pairs that go
    through it, ``outside``: the others.  ``gain``: logarithm of how much likelier the losses are with it.
    """

    layer: str
    place: Place
    inside: Count
    outside: Count
    gain: float
    other: str = ""


Key = tuple[str, Place, str]  # layer, place, the other data centre
Cells = Mapping[tuple[Place, Place], Count]  # by pods of source and destination


def locate(
    cells: Cells, *, above: float = ABOVE, ratio: float = RATIO, gain: float = GAIN, most: int = MOST
) -> list[Finding]:
    """Places that drop packets, the one that explains most first.  Time grows with the cells."""
    left = {pair: count for pair, count in cells.items() if count.ok}
    found: list[Finding] = []
    sums: dict[Key, list[int]] = {}
    parts: dict[Key, dict[object, list[int]]] = {}

    def add(pair: tuple[Place, Place], count: Count, sign: int) -> None:
        for key in crossed(*pair):
            for its in (sums.setdefault(key, [0, 0, 0]),
                        parts.setdefault(key, {}).setdefault(_part(key, *pair), [0, 0, 0])):  # fmt: skip
                for i, n in enumerate(count):
                    its[i] += sign * n

    for pair, count in left.items():
        add(pair, count, 1)
    total = _sum(left.values())
    while left and len(found) < most:
        best: tuple[float, int, Finding] | None = None
        for (layer, place, other), its in sums.items():
            inside, outside = Count(*its), total.minus(Count(*its))
            if not outside.ok or inside.rate < ratio * outside.rate:
                continue
            if wilson(inside.dropped, inside.ok)[0] < above:
                continue
            # of two that the same pairs cross the lower one: it is less to take apart
            rank = likelier(inside, outside), -LAYERS.index(layer)
            if rank[0] >= gain and (best is None or rank > best[:2]) and _even(
                inside.rate, parts[layer, place, other].values()
            ):
                best = (*rank, Finding(layer, place, inside, outside, rank[0], other))
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
            found.append(Finding("all", Place(), total, Count(), 0.0))
    return found


def judge(
    cells: Cells, times: Mapping[tuple[Place, Place], Sequence[int]], begin: int, end: int, *,
    above: float = ABOVE, ratio: float = RATIO, lasting: int = bursts.LASTING,
) -> list[tuple[Finding, bursts.Course]]:  # fmt: skip
    """Places that dropped packets from ``begin`` to ``end`` (ns), and how: those that go on first, then those that
    began too late to tell, then bursts.  ``times`` of the drops of each cell.
    """
    left, when = dict(cells), {pair: sorted(its) for pair, its in times.items()}
    moments: dict[Key, tuple[Finding, bursts.Course]] = {}
    for _ in range(MOST):
        steady = []
        found = locate(left, above=above, ratio=ratio)
        short = []
        aside: set[tuple[Place, Place]] = set()  # what goes through places that explain more, as in `locate`
        for finding in found:
            through = [pair for pair in when if pair not in aside and crosses(finding, *pair)]
            aside.update(through)
            drops = [t for pair in through for t in when[pair]]
            course = bursts.course(drops, begin, end, lasting)
            if course.state == bursts.STEADY:
                steady.append((finding, course))
                continue
            moments.setdefault((finding.layer, finding.place, finding.other), (finding, course))
            spans = bursts.apart(drops, begin, end, lasting) or [(course.begin, course.end)]
            short.append((finding, spans))
        if not short:
            break
        for finding, spans in short:
            _without(left, when, finding, spans, max(end - begin, 1))
    lasts = {(finding.layer, finding.place, finding.other) for finding, _ in steady}
    rest = [one for key, one in moments.items() if key not in lasts]
    rest.sort(key=lambda one: (one[1].state != bursts.NEW, -one[0].gain))
    return steady + rest


def _without(
    cells: dict[tuple[Place, Place], Count], when: dict[tuple[Place, Place], list[int]], finding: Finding,
    spans: Sequence[tuple[int, int]], whole: int,
) -> None:  # fmt: skip
    """Take these times off the cells that go through the place."""
    share = max(0.0, 1 - sum(high - low for low, high in spans) / whole)
    for pair in [pair for pair in cells if crosses(finding, *pair)]:
        ok, dropped, failed = cells[pair]
        its = when.get(pair, [])
        kept = [t for t in its if not any(low <= t < high for low, high in spans)]
        when[pair] = kept
        cells[pair] = Count(round(ok * share), max(dropped - len(its) + len(kept), 0), failed)


def crossed(a: Place, b: Place) -> list[Key]:
    """The places that packets between servers of these pods go through."""
    keys = [("tor", place, "") for place in dict.fromkeys((a, b)) if place.pod]
    podsets = [podset for podset in dict.fromkeys((_above(a), _above(b))) if podset.podset]
    keys += [("podset", podset, "") for podset in podsets]
    if a != b:
        keys += [("leaf", podset, "") for podset in podsets]
    if a.dc != b.dc:
        first, second = sorted((a.dc, b.dc))
        keys.append(("wan", Place("", "", first), second))
        keys += [("spine", Place("", "", dc), "") for dc in (first, second)]
    elif len(podsets) > 1:
        keys.append(("spine", Place("", "", a.dc), ""))
    return keys


def _part(key: Key, a: Place, b: Place) -> object:
    """Which part of a place these pairs go through: all parts of it should drop alike, or it is not this place."""
    layer, place, _ = key
    if layer == "spine":
        return frozenset((_above(a), _above(b)))
    if layer in ("leaf", "podset"):
        inside = [pod for pod in (a, b) if _above(pod) == place]
        return frozenset(inside)
    return ""


def _even(rate: float, parts: Iterable[Sequence[int]]) -> bool:
    """Whether no part has a rate that is far below, for sure."""
    return all(not ok or wilson(dropped, ok, SURE)[1] >= FAR * rate for ok, dropped, _ in parts)


def likelier(inside: Count, outside: Count) -> float:
    """Logarithm of the ratio of likelihoods: two drop rates, against one for all."""
    both = inside.plus(outside)
    return _likelihood(inside) + _likelihood(outside) - _likelihood(both)


def _likelihood(count: Count) -> float:
    k, n = min(count.dropped, count.ok), count.ok
    return sum(part * log(part / n) for part in (k, n - k) if part)


def _above(place: Place) -> Place:
    return Place("", place.podset, place.dc)


def _sum(counts: Iterable[Count]) -> Count:
    total = Count()
    for count in counts:
        total = total.plus(count)
    return total


class Worst(NamedTuple):
    """A pair of servers, and the drop rate that it has at least."""

    src: str
    dst: str
    probes: Count
    least: float


def worst(pairs: Iterable[tuple[str, str, Count]], top: int, *, z: float = 1.96) -> list[Worst]:
    """The pairs with the highest drop rates, judged by the lower end of each one's interval."""
    found = [Worst(src, dst, count, wilson(count.dropped, count.ok, z)[0]) for src, dst, count in pairs
             if count.dropped]  # fmt: skip
    found.sort(key=lambda pair: (-pair.least, -pair.probes.dropped, pair.src, pair.dst))
    return found[:top]


def crosses(finding: Finding, a: Place, b: Place) -> bool:
    """Whether packets between servers of these pods go through the place."""
    return finding.layer == "all" or (finding.layer, finding.place, finding.other) in crossed(a, b)


def picture(cells: Cells) -> dict[str, Count]:
    """Sums by how far the probes go: in the pod, in the podset, in the data centre, beyond."""
    found = {name: Count() for name in ("pod", "podset", "dc", "wan")}
    for (a, b), count in cells.items():
        far = "pod" if a == b else "podset" if _above(a) == _above(b) else "dc" if a.dc == b.dc else "wan"
        found[far] = found[far].plus(count)
    return found
