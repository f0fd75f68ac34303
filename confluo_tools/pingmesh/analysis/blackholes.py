"""Black holes: pairs of healthy servers that cannot reach each other, and the ToR or layer that explains them.

After Pingmesh (SIGCOMM 2015), section on black holes.  A *type 1* hole drops all packets between two addresses, a
*type 2* hole those of some ports between them, until the switch is reloaded: unlike random loss, a retry does not help.

    symptom of a pair   healthy A cannot reach healthy B, though A reaches C and C reaches B
    score of a ToR      share of its healthy servers that show the symptom
    podset rule         some ToRs of a podset are candidates: those; all of them: the fault is above them

Differences from the paper: a server must be healthy at the time of each failure; the kernel's retries separate type 2
from random loss; pairs that a worse ToR explains count for no other ToR (with ``literal`` of `judge` they do, as in the
paper); symptoms that one server explains do not count for its ToR; a verdict needs a minimum group of servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log
from typing import NamedTuple

from confluo_tools.pingmesh.analysis.sla import binomial_tail, wilson

THRESHOLD = 0.5  # minimum score of a candidate ToR; the paper gives no value
GROUP = 3  # minimum servers of a ToR for a verdict
MIN_FAILURES = (5, 3)  # minimum failures of a pair with a symptom: of type 1, of type 2
HEALTHY = 0.2  # minimum share of a healthy server's probes that are answered
TRIES = 3  # minimum SYNs of a probe: TCP_SYNCNT is 2
SURE = 1e-3  # chance that random loss looks like a type 2 hole, for one pair
STEADY = 0.6  # minimum share of the time, since a hole opened or until it closed, in which it shows
MOSTLY = 2 / 3  # minimum share of a pod's symptoms that involve one server, if that server is the cause
CUT = 0.02  # maximum share of a place's probes that leave it when it is cut off
BUDGET = 20  # proposals a day
CHANCE = 0.99  # chance that a hole is met, for blind spots

TYPE1, TYPE2 = 1, 2


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """Place of a server, or of a group of servers; '' is unknown, or not part of it."""

    pod: str = ""
    podset: str = ""
    dc: str = ""


@dataclass(slots=True)
class ServerPair:
    """Results of the probes from ``src`` to ``dst`` in a window.

    ``reached``: probes that the target answered, between ``first`` and ``last`` (ns); ``retried``: of these, after
    a SYN retransmission.  ``failures``: (time, source port) of probes not answered while both ends were healthy;
    ``unclear``: number of the other failures.  ``answered``: ports that failed at one time and worked at another.
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
        """Source ports without any answer, in order."""
        return sorted({port for _, port in self.failures if port} - self.answered)


def type_of(
    pair: ServerPair,
    *,
    min_failures: tuple[int, int] = MIN_FAILURES,
    tries: int = TRIES,
    sure: float = SURE,
    loss: float = 0.0,
) -> int:
    """Symptom of a pair: `TYPE1`, `TYPE2`, or 0 for none.

    A hole may open or close within the window.  Failures in a row with answers before and after are an outage;
    several outages are a flapping link.  ``loss``: share of probes that fail between pairs of these servers where
    some probes fail; by chance all probes of this pair may.
    """
    k = pair.failed
    if not k:
        return 0
    begin, end = min(pair.failures)[0], max(pair.failures)[0]
    if not pair.reached or pair.last < begin or pair.first > end:
        return TYPE1 if k >= min_failures[0] and loss**k < sure else 0
    if k < min_failures[1] or len(pair.ports) < min(k, min_failures[1]):
        return 0
    if not scattered(pair):
        return 0
    return TYPE2 if chance_of_loss(k, pair.retried, pair.reached, tries) < sure else 0


def scattered(pair: ServerPair) -> bool:
    """Whether failures are spread like random ports, not in the few runs of a link that was down at times.

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
    """Probability that random loss makes ``failed`` or more probes fail.

    Of the probes that lost their first packet, ``failed`` lost the other ``tries`` - 1 as well.  By chance each does
    so with probability rate ** (tries - 1); the rate is its upper bound (three standard errors).
    """
    hit = failed + retried
    rate = wilson(hit, reached + failed, 3.0)[1]
    return binomial_tail(failed, hit, rate ** (tries - 1))


# Blind spots: only the probes that ECMP sends to a path meet a hole on it.


def probes_for_one(paths: int, chance: float = CHANCE) -> int:
    """Distinct source ports until a given one of ``paths`` equal paths has been tried."""
    return 1 if paths <= 1 else ceil(log(1 - chance) / log(1 - 1 / paths))


def probes_for_all(paths: int, chance: float = CHANCE) -> int:
    """Distinct source ports until all paths have been tried (coupon collector)."""
    seen = [1.0] + [0.0] * paths  # chance that i paths have been tried
    probes = 0
    while seen[paths] < chance:
        probes += 1
        for i in range(paths, 0, -1):
            seen[i] = seen[i] * i / paths + seen[i - 1] * (paths - i + 1) / paths
        seen[0] = 0.0
    return probes


def paths_seen(ports: int, chance: float = CHANCE) -> int:
    """Largest number of equal paths for which ``ports`` probes try a given one with probability ``chance``."""
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
    """Share of the time in which a place has failures: 1 for a hole, low for a flapping link.

    The window from ``begin`` to ``end`` is split into ``pieces``.  The result is the number of pieces with failures,
    divided by the number that as many failures at random times would hit; counted from the first failure on or up
    to the last one, whichever gives more.
    """
    best = 0.0
    for low, high in ((min(times), end), (begin, max(times))):
        span = max(high - low, 1)
        parts = max(1, ceil(pieces * span / max(end - begin, 1)))
        seen = len({min((t - low) * parts // span, parts - 1) for t in times})
        best = max(best, seen / (parts * (1 - (1 - 1 / parts) ** len(times))))
    return min(best, 1.0)


# Places that explain the symptoms


@dataclass(slots=True)
class BlackholeVerdict:
    """A place that explains symptoms.

    ``what``: tor, leaf, spine, upper (leaf or spine), server, pod_cut, podset_cut.  ``score``: share of its
    ``servers`` that have a symptom (``shown``); ``literal``: the score with the pairs that other places explain.
    ``pairs``: number that it explains, ``type1`` and ``type2`` of them.  ``steady``: see `steadiness`.  ``action``:
    propose (a reload), notify, few (the group is too small), later (`ration`), done (proposed before on this day).
    """

    what: str
    place: NetworkPlace
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
    symptoms: Sequence[PlacedSymptom] = field(default=(), repr=False, compare=False)  # that it explains


class Symptom(NamedTuple):
    """A pair, and the type of its symptom."""

    pair: ServerPair
    type: int


class PlacedSymptom(NamedTuple):
    """A symptom, and the places of source and target."""

    pair: ServerPair
    type: int
    src: NetworkPlace
    dst: NetworkPlace

    @property
    def servers(self) -> tuple[str, str]:
        return self.pair.src, self.pair.dst


def judge(
    symptoms: Sequence[Symptom],
    healthy: Iterable[str],
    place_of: Mapping[str, NetworkPlace],
    crossing: Mapping[NetworkPlace, tuple[int, int]] | None = None,
    *,
    threshold: float = THRESHOLD,
    group: int = GROUP,
    literal: bool = False,
) -> list[BlackholeVerdict]:
    """Places that explain the symptoms: proposals first, then by score.

    ``healthy``: servers that were healthy at some time.  ``place_of``: places of all servers.  ``crossing``:
    {pod, or podset (a place without a pod): (answered, failed) probes that cross its border}.
    """
    members: dict[NetworkPlace, set[str]] = {}
    for name in healthy:
        place = place_of.get(name, NetworkPlace())
        if place.pod:
            members.setdefault(place, set()).add(name)
    live = [
        PlacedSymptom(pair, kind, _place(pair.src, place_of), _place(pair.dst, place_of)) for pair, kind in symptoms
    ]
    index = _SymptomIndex(live, members)
    whole = {pod: index.score(pod) for pod in members}
    found: list[BlackholeVerdict] = []
    while True:
        candidates, servers = _candidates(_SymptomIndex(live, members), threshold, group, literal)
        upper = None if literal else _full_podset(candidates, members, group)
        if upper is None:
            break
        found.append(_upper(upper, live, members))
        live = [symptom for symptom in live if upper not in (_above(symptom.src), _above(symptom.dst))]
    by_podset: dict[NetworkPlace, list[BlackholeVerdict]] = {}
    for verdict in candidates:
        verdict.literal = whole[verdict.place]
        by_podset.setdefault(_above(verdict.place), []).append(verdict)
    for podset, verdicts in by_podset.items():
        if literal and _full_podset(verdicts, members, group) == podset:
            found.append(_upper(podset, live, members))
            continue
        alone = sum(_above(pod) == podset for pod in members) == 1
        for verdict in verdicts:
            verdict.steady = _steady(verdict.symptoms)
            few, unsure = verdict.servers < group, alone or verdict.steady < STEADY
            verdict.action = "few" if few else "notify" if unsure else "propose"
            found.append(verdict)
    _merge_spines(found, {_above(pod) for pod in members})
    _cut_off(found, crossing or {})
    found += servers
    order = {"propose": 0, "notify": 1, "few": 2}
    return sorted(
        found, key=lambda v: (order[v.action], -v.score, -v.pairs, v.place.dc, v.place.podset, v.place.pod, v.server)
    )


def explains(verdict: BlackholeVerdict, pair: ServerPair, place_of: Mapping[str, NetworkPlace]) -> bool:
    """Whether the verdict explains the symptom of this pair."""
    if verdict.what == "server":
        return verdict.server in (pair.src, pair.dst)
    a, b = _place(pair.src, place_of), _place(pair.dst, place_of)
    if verdict.what == "spine":
        return verdict.place.dc in (a.dc, b.dc) and _above(a) != _above(b)
    return verdict.place in (a, b) if verdict.place.pod else verdict.place in (_above(a), _above(b))


def ration(verdicts: Iterable[BlackholeVerdict], *, budget: int = BUDGET, before: Iterable[NetworkPlace] = ()) -> int:
    """Limit proposals to ``budget`` a day, minus those made ``before``; the budget that remains."""
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


def _place(name: str, place_of: Mapping[str, NetworkPlace]) -> NetworkPlace:
    return place_of.get(name, NetworkPlace())


def _above(place: NetworkPlace) -> NetworkPlace:
    """The podset of a place."""
    return NetworkPlace("", place.podset, place.dc)


class _SymptomIndex:
    """Symptoms by pod, without those that are explained already."""

    def __init__(self, live: Sequence[PlacedSymptom], members: Mapping[NetworkPlace, set[str]]) -> None:
        self.live, self.members = live, members
        self.at: dict[NetworkPlace, set[int]] = {}  # {pod: numbers of its symptoms}
        self.hits: dict[NetworkPlace, dict[str, int]] = {}  # {pod: {healthy server: symptoms}}
        for number, (pair, _, a, b) in enumerate(live):
            for place in {a, b} & members.keys():
                self.at.setdefault(place, set()).add(number)
                hits = self.hits.setdefault(place, {})
                for name in {pair.src, pair.dst} & members[place]:
                    hits[name] = hits.get(name, 0) + 1

    def symptoms(self, pod: NetworkPlace) -> list[PlacedSymptom]:
        return [self.live[number] for number in sorted(self.at.get(pod, ()))]

    def score(self, pod: NetworkPlace, without: str = "") -> float:
        """Share of the pod's healthy servers with a symptom that does not involve the server ``without``."""
        shown = self.hits.get(pod, {}).keys()
        group = self.members[pod] - {without}
        if without:
            servers = [s.servers for s in self.symptoms(pod) if without not in s.servers]
            shown = {name for ends in servers for name in ends} & group  # type: ignore[assignment]
        return len(shown) / len(group) if group else 0.0

    def take(self, numbers: Iterable[int]) -> set[NetworkPlace]:
        """Remove these symptoms; the pods that had them."""
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

    def busiest(self, pod: NetworkPlace) -> tuple[str, list[int]]:
        """The server that most of the pod's symptoms involve, and their numbers."""
        numbers: dict[str, list[int]] = {}
        for number in sorted(self.at[pod]):
            for name in self.live[number].servers:
                numbers.setdefault(name, []).append(number)
        name = max(numbers, key=lambda name: (len(numbers[name]), name))
        return name, numbers[name]


def _candidates(
    index: _SymptomIndex, threshold: float, group: int, literal: bool
) -> tuple[list[BlackholeVerdict], list[BlackholeVerdict]]:
    """(ToRs with a score of at least the threshold, servers that explain the symptoms of such a ToR)."""
    tors: list[BlackholeVerdict] = []
    servers: list[BlackholeVerdict] = []
    if literal:
        for pod in index.members:
            if (score := index.score(pod)) >= threshold:
                tors.append(_verdict(pod, score, index))
        return tors, servers
    scores = {pod: index.score(pod) for pod in index.at}
    while scores:
        pod = max(scores, key=lambda p: (scores[p], len(index.at[p]), p.dc, p.podset, p.pod))
        score = scores[pod]
        if score < threshold or not index.at.get(pod):
            break
        name, numbers = index.busiest(pod)
        if len(numbers) >= MOSTLY * len(index.at[pod]) and index.score(pod, name) < threshold:
            explained = [index.live[number] for number in numbers]
            others = {end for symptom in explained for end in symptom.servers} - {name}
            if len(others) >= group:
                home = next(s.src if s.pair.src == name else s.dst for s in explained)
                servers.append(_counted(BlackholeVerdict("server", home, name, 1.0, 1.0, 1, 1), explained))
        else:
            numbers = sorted(index.at[pod])
            tors.append(_verdict(pod, score, index))
            del scores[pod]
        touched = index.take(numbers)
        for place in touched & scores.keys():
            scores[place] = index.score(place)
    return tors, servers


def _verdict(pod: NetworkPlace, score: float, index: _SymptomIndex) -> BlackholeVerdict:
    symptoms = index.symptoms(pod)
    verdict = BlackholeVerdict("tor", pod, "", score, score, len(index.members[pod]), len(index.hits[pod]))
    verdict.symptoms = symptoms
    return _counted(verdict, symptoms)


def _counted(verdict: BlackholeVerdict, symptoms: Sequence[PlacedSymptom]) -> BlackholeVerdict:
    """The verdict with the number of pairs that it explains."""
    types = [symptom.type for symptom in symptoms]
    verdict.pairs, verdict.type1, verdict.type2 = len(types), types.count(TYPE1), types.count(TYPE2)
    return verdict


def _steady(symptoms: Sequence[PlacedSymptom]) -> float:
    times = [ts for symptom in symptoms for ts, _ in symptom.pair.failures]
    if not times:
        return 1.0
    ends = [t for s in symptoms if s.pair.reached for t in (s.pair.first, s.pair.last)]
    return steadiness(times, min([min(times), *ends]), max([max(times), *ends]))


def _full_podset(
    candidates: Sequence[BlackholeVerdict], members: Mapping[NetworkPlace, set[str]], group: int
) -> NetworkPlace | None:
    """The podset in which all ToRs with a group (two or more) are candidates; of several the one with most pairs."""
    pairs = {verdict.place: verdict.pairs for verdict in candidates}
    podsets: dict[NetworkPlace, list[NetworkPlace]] = {}
    for pod, servers in members.items():
        if len(servers) >= group:
            podsets.setdefault(_above(pod), []).append(pod)
    full = [podset for podset, pods in podsets.items() if len(pods) > 1 and all(pod in pairs for pod in pods)]
    return max(
        full, key=lambda podset: (sum(pairs[p] for p in podsets[podset]), podset.dc, podset.podset), default=None
    )


def _upper(
    podset: NetworkPlace, live: Sequence[PlacedSymptom], members: Mapping[NetworkPlace, set[str]]
) -> BlackholeVerdict:
    """Verdict on the layer above the ToRs of a podset: its leaf switches, if pairs within it have symptoms, too."""
    symptoms = [symptom for symptom in live if podset in (_above(symptom.src), _above(symptom.dst))]
    inside = any(_above(s.src) == _above(s.dst) and s.src != s.dst for s in symptoms)
    servers = set().union(*(names for pod, names in members.items() if _above(pod) == podset))
    shown = {name for symptom in symptoms for name in symptom.servers} & servers
    what = "leaf" if inside else "upper"
    verdict = BlackholeVerdict(what, podset, "", len(shown) / len(servers), 0.0, len(servers), len(shown))
    verdict.steady = _steady(symptoms)
    return _counted(verdict, symptoms)


def _merge_spines(found: list[BlackholeVerdict], podsets: set[NetworkPlace]) -> None:
    """Merge verdicts on several podsets, each with symptoms only towards others, into one on the spine."""
    for dc in {podset.dc for podset in podsets}:
        above = [v for v in found if v.what == "upper" and v.place.dc == dc]
        if not above or sum(podset.dc == dc for podset in podsets) < 3:
            continue
        if len(above) == 1:
            above[0].what = "leaf"  # the others reach each other over the same spines
            continue
        servers, shown = sum(v.servers for v in above), sum(v.shown for v in above)
        merged = BlackholeVerdict("spine", NetworkPlace("", "", dc), "", shown / servers, 0.0, servers, shown)
        merged.steady = max(v.steady for v in above)
        for name in ("pairs", "type1", "type2"):
            setattr(merged, name, sum(getattr(v, name) for v in above))
        found[:] = [v for v in found if v not in above] + [merged]


def _cut_off(found: Iterable[BlackholeVerdict], crossing: Mapping[NetworkPlace, tuple[int, int]]) -> None:
    """Change verdicts on places that reach no server outside: these are cut off and have no black hole."""
    for verdict in found:
        reached, failed = crossing.get(verdict.place, (0, 0))
        if failed and reached < CUT * (reached + failed) and verdict.what in ("tor", "leaf", "upper"):
            verdict.what = "pod_cut" if verdict.what == "tor" else "podset_cut"
            verdict.action = "notify"
