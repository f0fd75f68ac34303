"""Black holes: pairs of healthy servers that cannot reach each other, and the ToR, or the layer, that they point at.

After Pingmesh (SIGCOMM 2015), section on black holes.  A *type 1* hole eats all packets between two addresses, a *type
2* hole those of some ports between them, for ever and a day: unlike random loss, trying again does not help.

    symptom of a pair   healthy A cannot reach healthy B, though A reaches C and C reaches B
    score of a ToR      share of its healthy servers that show the symptom
    podset rule         only part of a podset's ToRs are candidates: those; all of them: the fault is above them

Ours are: health is asked for at the time of each failure; type 2 is told from random loss by what the kernel's retries
say of it; pairs that a worse ToR explains count for no other one (`judge`, ``literal``: they do, as in the paper);
what one server explains is not laid at its ToR's door; and a verdict needs a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log

from confluo_tools.algo.sla import binomial_tail, wilson

THRESHOLD = 0.5  # score from which a ToR is a candidate; the paper does not tell its own
GROUP = 3  # servers of a ToR, or nothing is said of it
LEAST = (5, 3)  # failures from which a pair has the symptom: of type 1, of type 2
HEALTHY = 0.2  # share of a server's probes that are answered while it is well
TRIES = 3  # SYNs of a probe at least: TCP_SYNCNT is 2
SURE = 1e-3  # chance that random loss looks like a type 2 hole, for one pair
STEADY = 0.6  # of the time since it opened, or until it was closed, a hole has to be seen
MOSTLY = 2 / 3  # of a pod's symptoms that have to do with one server, when it is the server
CUT = 0.02  # share of a place's probes that get out when it is cut off
BUDGET = 20  # ToRs that are proposed a day
CHANCE = 0.99  # of a blind spot: what was not seen then may be there

TYPE1, TYPE2 = 1, 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is; '' is not known."""

    pod: str = ""
    podset: str = ""
    dc: str = ""


@dataclass(slots=True)
class Pair:
    """What probes from ``src`` to ``dst`` met in a window.

    ``reached``: probes that the target answered, between ``first`` and ``last`` (ns); ``retried`` of them after SYNs
    were sent again.  ``failures``: (time, source port) of those that were not answered while both ends were healthy;
    ``unclear``: number of the others.  ``answered``: ports that failed at one time and worked at another.
    """

    src: str
    dst: str
    reached: int = 0
    retried: int = 0
    first: int = 0
    last: int = 0
    failures: list[tuple[int, int]] = field(default_factory=list)
    unclear: int = 0
    answered: frozenset[int] = frozenset()

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def ports(self) -> list[int]:
        """Source ports that were never answered, in order."""
        return sorted({port for _, port in self.failures if port} - self.answered)


def type_of(
    pair: Pair, *, least: tuple[int, int] = LEAST, tries: int = TRIES, sure: float = SURE, loss: float = 0.0
) -> int:
    """`TYPE1`, `TYPE2`, or 0: what failed says nothing of a hole.

    A hole may open or close within the window; failures in a row with answers before and after are an outage, and
    several of these are a link that goes up and down.  ``loss``: share of probes that fail between pairs of these
    servers where some do not: by chance all of this pair's may.
    """
    k = pair.failed
    if not k:
        return 0
    begin, end = min(pair.failures)[0], max(pair.failures)[0]
    if not pair.reached or pair.last < begin or pair.first > end:
        return TYPE1 if k >= least[0] and loss**k < sure else 0
    if k < least[1] or len(pair.ports) < min(k, least[1]):
        return 0
    if not scattered(pair):
        return 0
    return TYPE2 if chance_of_loss(k, pair.retried, pair.reached, tries) < sure else 0


def scattered(pair: Pair) -> bool:
    """Whether failures come one by one, as ports are drawn, and not in the few runs of a link that was down at times.

    Failures closer than 1.6 of the pair's mean interval are one run.  If a share f of its probes fails, k failures
    make about 1 + (k - 1) (1 - f) of them; half of that is enough.
    """
    times = sorted(ts for ts, _ in pair.failures)
    k, probes = len(times), len(times) + pair.reached + pair.unclear
    whole = max(times[-1], pair.last) - min(times[0], pair.first)
    near = 1.6 * whole / max(probes - 1, 1)
    runs = 1 + sum(b - a > near for a, b in pairwise(times))
    return runs >= max(2.0, (1 + (k - 1) * (1 - k / probes)) / 2)


def chance_of_loss(failed: int, retried: int, reached: int, tries: int = TRIES) -> float:
    """How likely it is that random loss lets so many fail.

    Of the probes that lost their first packet, ``failed`` lost the other ``tries`` - 1 as well.  By chance each does
    so with the power of the loss rate, which is at most its upper bound (three standard errors).
    """
    hit = failed + retried
    rate = wilson(hit, reached + failed, 3.0)[1]
    return binomial_tail(failed, hit, rate ** (tries - 1))


# Blind spots: a hole on one of m equal paths is met only by the probes that ECMP sends there.


def probes_for_one(paths: int, chance: float = CHANCE) -> int:
    """Fresh source ports until a given one of ``paths`` equal paths has been tried."""
    return 1 if paths <= 1 else ceil(log(1 - chance) / log(1 - 1 / paths))


def probes_for_all(paths: int, chance: float = CHANCE) -> int:
    """Fresh source ports until all of them have been tried (coupon collector)."""
    seen = [1.0] + [0.0] * paths  # chance that so many paths have been tried
    probes = 0
    while seen[paths] < chance:
        probes += 1
        for i in range(paths, 0, -1):
            seen[i] = seen[i] * i / paths + seen[i - 1] * (paths - i + 1) / paths
        seen[0] = 0.0
    return probes


def paths_seen(ports: int, chance: float = CHANCE) -> int:
    """Of so many equal paths, ``ports`` probes tried a given one; a hole on one of more may not have been met."""
    if ports < 1:
        return 0
    low, high = 1, max(2, ports)
    while low < high:
        middle = (low + high + 1) // 2
        if probes_for_one(middle, chance) <= ports:
            low = middle
        else:
            high = middle - 1
    return low


def steadiness(times: Collection[int], begin: int, end: int, pieces: int = 20) -> float:
    """How much of the time the failures of a place are there, 1 for those of a hole; low for a link that flaps.

    Parts (of ``pieces`` of the window from ``begin`` to ``end``) that have failures, by those that as many at random
    times would have: from the first failure on, or up to the last one, whichever is more.
    """
    best = 0.0
    for low, high in ((min(times), end), (begin, max(times))):
        span = max(high - low, 1)
        parts = max(1, ceil(pieces * span / max(end - begin, 1)))
        seen = len({min((t - low) * parts // span, parts - 1) for t in times})
        best = max(best, seen / (parts * (1 - (1 - 1 / parts) ** len(times))))
    return min(best, 1.0)


# Who is to blame


@dataclass(slots=True)
class Verdict:
    """A place that the symptoms point at.

    ``what``: tor, leaf, spine, upper (leaf or spine), server, pod_cut, podset_cut.  ``score``: share of ``servers``
    with the symptom, ``shown``; ``literal``: the same with the pairs that others explain.  ``pairs`` that it
    explains, ``type1`` and ``type2`` of them.  ``steady``: see `steadiness`.  ``action``: propose (a reload), notify,
    few (the group is too small), later (`ration`), done (proposed before on this day).
    """

    what: str
    place: Place
    server: str = ""
    score: float = 0.0
    literal: float = 0.0
    servers: int = 0
    shown: int = 0
    pairs: int = 0
    type1: int = 0
    type2: int = 0
    action: str = "notify"
    steady: float = 1.0
    symptoms: Sequence[Live] = field(default=(), repr=False, compare=False)  # that it explains


Symptoms = Sequence[tuple[Pair, int]]  # pairs with the type of their symptom
Live = tuple[Pair, int, Place, Place]  # and where both are


def judge(
    symptoms: Symptoms, healthy: Iterable[str], place_of: Mapping[str, Place],
    crossing: Mapping[Place, tuple[int, int]] | None = None, *,
    threshold: float = THRESHOLD, group: int = GROUP, literal: bool = False,
) -> list[Verdict]:  # fmt: skip
    """Verdicts, the most certain first; proposals before all else.

    ``healthy``: servers that were well at some time; ``place_of`` of every server; ``crossing``: of each pod, and
    of each podset (a place without a pod), probes that cross its border: answered, and failed.
    """
    members: dict[Place, set[str]] = {}
    for name in healthy:
        place = place_of.get(name, Place())
        if place.pod:
            members.setdefault(place, set()).add(name)
    live = [(pair, kind, _place(pair.src, place_of), _place(pair.dst, place_of)) for pair, kind in symptoms]
    board = _Board(live, members)
    whole = {pod: board.score(pod) for pod in members}
    found: list[Verdict] = []
    while True:
        candidates, servers = _candidates(_Board(live, members), threshold, group, literal)
        upper = None if literal else _full_podset(candidates, members, group)
        if upper is None:
            break
        found.append(_upper(upper, live, members, candidates))
        live = [one for one in live if upper not in (_above(one[2]), _above(one[3]))]
    by_podset: dict[Place, list[Verdict]] = {}
    for verdict in candidates:
        verdict.literal = whole[verdict.place]
        by_podset.setdefault(_above(verdict.place), []).append(verdict)
    for podset, its in by_podset.items():
        if literal and _full_podset(its, members, group) == podset:
            found.append(_upper(podset, live, members, its))
            continue
        alone = sum(_above(pod) == podset for pod in members) == 1
        for verdict in its:
            verdict.steady = _steady(verdict.symptoms)
            few, unsure = verdict.servers < group, alone or verdict.steady < STEADY
            verdict.action = "few" if few else "notify" if unsure else "propose"
            found.append(verdict)
    _merge_spines(found, {_above(pod) for pod in members})
    _cut_off(found, crossing or {})
    found += servers
    order = {"propose": 0, "notify": 1, "few": 2}
    return sorted(found, key=lambda v: (order[v.action], -v.score, -v.pairs, v.place.dc, v.place.podset, v.place.pod,
                                        v.server))  # fmt: skip


def explains(verdict: Verdict, pair: Pair, place_of: Mapping[str, Place]) -> bool:
    """Whether the verdict is about the symptom of this pair."""
    if verdict.what == "server":
        return verdict.server in (pair.src, pair.dst)
    a, b = _place(pair.src, place_of), _place(pair.dst, place_of)
    if verdict.what == "spine":
        return verdict.place.dc in (a.dc, b.dc) and _above(a) != _above(b)
    return verdict.place in (a, b) if verdict.place.pod else verdict.place in (_above(a), _above(b))


def ration(verdicts: Iterable[Verdict], *, budget: int = BUDGET, before: Iterable[Place] = ()) -> int:
    """Leave ``budget`` proposals a day, less those made ``before``, to the first ones; how many are left over."""
    known = set(before)
    left = max(0, budget - len(known))
    for verdict in verdicts:
        if verdict.action != "propose":
            continue
        if verdict.place in known:
            verdict.action = "done"
        elif left:
            left -= 1
            known.add(verdict.place)
        else:
            verdict.action = "later"
    return left


def _place(name: str, place_of: Mapping[str, Place]) -> Place:
    return place_of.get(name, Place())


def _above(place: Place) -> Place:
    """Its podset."""
    return Place("", place.podset, place.dc)


class _Board:
    """Symptoms by pod; those that something explains are taken off."""

    def __init__(self, live: Sequence[Live], members: Mapping[Place, set[str]]) -> None:
        self.live, self.members = live, members
        self.at: dict[Place, set[int]] = {}  # numbers of the pod's symptoms
        self.hits: dict[Place, dict[str, int]] = {}  # healthy servers of the pod, by how many of these they have
        for number, (pair, _, a, b) in enumerate(live):
            for place in {a, b} & members.keys():
                self.at.setdefault(place, set()).add(number)
                hits = self.hits.setdefault(place, {})
                for name in {pair.src, pair.dst} & members[place]:
                    hits[name] = hits.get(name, 0) + 1

    def its(self, pod: Place) -> list[Live]:
        return [self.live[number] for number in sorted(self.at.get(pod, ()))]

    def score(self, pod: Place, without: str = "") -> float:
        """Share of the pod's healthy servers with a symptom that has nothing to do with the server ``without``."""
        shown = self.hits.get(pod, {}).keys()
        group = self.members[pod] - {without}
        if without:
            pairs = [pair for pair, _, _, _ in self.its(pod) if without not in (pair.src, pair.dst)]
            shown = {name for pair in pairs for name in (pair.src, pair.dst)} & group  # type: ignore[assignment]
        return len(shown) / len(group) if group else 0.0

    def take(self, numbers: Iterable[int]) -> set[Place]:
        """Take these symptoms off; the pods that had them."""
        touched = set()
        for number in list(numbers):
            pair, _, a, b = self.live[number]
            for place in {a, b} & self.at.keys():
                if number not in self.at[place]:
                    continue
                touched.add(place)
                self.at[place].discard(number)
                hits = self.hits[place]
                for name in {pair.src, pair.dst} & hits.keys():
                    hits[name] -= 1
                    if not hits[name]:
                        del hits[name]
        return touched

    def busiest(self, pod: Place) -> tuple[str, list[int]]:
        """The server that most of the pod's symptoms have to do with, and their numbers."""
        of: dict[str, list[int]] = {}
        for number in sorted(self.at[pod]):
            for name in (self.live[number][0].src, self.live[number][0].dst):
                of.setdefault(name, []).append(number)
        name = max(of, key=lambda name: (len(of[name]), name))
        return name, of[name]


def _candidates(board: _Board, threshold: float, group: int, literal: bool) -> tuple[list[Verdict], list[Verdict]]:
    """ToRs whose score reaches the threshold, and servers that explain what looked like one."""
    tors: list[Verdict] = []
    servers: list[Verdict] = []
    if literal:
        for pod in board.members:
            if (score := board.score(pod)) >= threshold:
                tors.append(_verdict(pod, score, board))
        return tors, servers
    scores = {pod: board.score(pod) for pod in board.at}
    while scores:
        pod = max(scores, key=lambda p: (scores[p], len(board.at[p]), p.dc, p.podset, p.pod))
        score = scores[pod]
        if score < threshold or not board.at.get(pod):
            break
        name, numbers = board.busiest(pod)
        if len(numbers) >= MOSTLY * len(board.at[pod]) and board.score(pod, name) < threshold:
            its = [board.live[number] for number in numbers]
            others = {end for pair, _, _, _ in its for end in (pair.src, pair.dst)} - {name}
            if len(others) >= group:
                home = next(a if pair.src == name else b for pair, _, a, b in its)
                kinds = [kind for _, kind, _, _ in its]
                servers.append(Verdict("server", home, name, 1.0, 1.0, 1, 1, len(its), kinds.count(TYPE1),
                                       kinds.count(TYPE2)))  # fmt: skip
        else:
            numbers = sorted(board.at[pod])
            tors.append(_verdict(pod, score, board))
            del scores[pod]
        touched = board.take(numbers)
        for place in touched & scores.keys():
            scores[place] = board.score(place)
    return tors, servers


def _verdict(pod: Place, score: float, board: _Board) -> Verdict:
    its = board.its(pod)
    kinds = [kind for _, kind, _, _ in its]
    return Verdict("tor", pod, "", score, score, len(board.members[pod]), len(board.hits[pod]), len(its),
                   kinds.count(TYPE1), kinds.count(TYPE2), symptoms=its)  # fmt: skip


def _steady(its: Sequence[Live]) -> float:
    times = [ts for pair, _, _, _ in its for ts, _ in pair.failures]
    if not times:
        return 1.0
    ends = [t for pair, _, _, _ in its if pair.reached for t in (pair.first, pair.last)]
    return steadiness(times, min([min(times), *ends]), max([max(times), *ends]))


def _full_podset(candidates: Sequence[Verdict], members: Mapping[Place, set[str]], group: int) -> Place | None:
    """The podset all of whose ToRs (of two or more with a group) are candidates; of several the one with most pairs."""
    blamed = {verdict.place: verdict.pairs for verdict in candidates}
    podsets: dict[Place, list[Place]] = {}
    for pod, its in members.items():
        if len(its) >= group:
            podsets.setdefault(_above(pod), []).append(pod)
    full = [podset for podset, pods in podsets.items() if len(pods) > 1 and all(pod in blamed for pod in pods)]
    return max(full, key=lambda podset: (sum(blamed[p] for p in podsets[podset]), podset.dc, podset.podset),
               default=None)  # fmt: skip


def _upper(podset: Place, live: Sequence[Live], members: Mapping[Place, set[str]],
           candidates: Sequence[Verdict]) -> Verdict:  # fmt: skip
    """Above the ToRs of this podset: its leaf switches if pairs within it have the symptom, too."""
    its = [one for one in live if podset in (_above(one[2]), _above(one[3]))]
    inside = any(_above(a) == _above(b) and a != b for _, _, a, b in its)
    servers = set().union(*(names for pod, names in members.items() if _above(pod) == podset))
    shown = {name for pair, _, _, _ in its for name in (pair.src, pair.dst)} & servers
    kinds = [kind for _, kind, _, _ in its]
    return Verdict("leaf" if inside else "upper", podset, "", len(shown) / len(servers), 0.0, len(servers), len(shown),
                   len(its), kinds.count(TYPE1), kinds.count(TYPE2), steady=_steady(its))  # fmt: skip


def _merge_spines(found: list[Verdict], podsets: set[Place]) -> None:
    """Several podsets that have the symptom only with others: the switches between them."""
    for dc in {podset.dc for podset in podsets}:
        above = [v for v in found if v.what == "upper" and v.place.dc == dc]
        if not above or sum(podset.dc == dc for podset in podsets) < 3:
            continue
        if len(above) == 1:
            above[0].what = "leaf"  # others reach each other over the same spines
            continue
        servers, shown = sum(v.servers for v in above), sum(v.shown for v in above)
        merged = Verdict("spine", Place("", "", dc), "", shown / servers, 0.0, servers, shown)
        merged.steady = max(v.steady for v in above)
        for name in ("pairs", "type1", "type2"):
            setattr(merged, name, sum(getattr(v, name) for v in above))
        found[:] = [v for v in found if v not in above] + [merged]


def _cut_off(found: Iterable[Verdict], crossing: Mapping[Place, tuple[int, int]]) -> None:
    """What reaches nobody outside is no black hole: it has no way out."""
    for verdict in found:
        reached, failed = crossing.get(verdict.place, (0, 0))
        if failed and reached < CUT * (reached + failed) and verdict.what in ("tor", "leaf", "upper"):
            verdict.what = "pod_cut" if verdict.what == "tor" else "podset_cut"
            verdict.action = "notify"
