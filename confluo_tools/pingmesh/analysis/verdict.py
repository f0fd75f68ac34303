"""Is it the network?  A verdict from the probes of some servers in a span of time.

Pingmesh (SIGCOMM 2015): if neither drop rate nor P99 of a service's servers rose, the network is not the cause; about
half of the problems blamed on the network are not.  Both numbers are the kernel's here, so slow programs do not change
them.  Faults of hosts are judged apart:

* connections that a full listen queue of the target drops (overflows) are not drops of the network;
* programs that wait long while the kernel does not (`seen99`) wait for their own host;
* if a server did not answer for a while, but its neighbours on the same ToR did (`silent_servers`), the fault is its
  own, and the probes that it lost are not in the counts;
* servers that answer no probe are down if they send none either; if they send probes and none is answered, they are
  cut off.  Where no server of a pod answers, a fault of the hosts and one of the network look the same.

`assess` takes counts of groups (`pingmesh.analysis.probe_tally.Cell`) in the span and, if known, before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Protocol

from confluo_tools.pingmesh.analysis import sla
from confluo_tools.pingmesh.analysis.silent_servers import SilentServer
from confluo_tools.pingmesh.analysis.sla import BAD, DEAD, FEW, NONE, OK, Rule, RuleCounts, make_rule, wilson

NETWORK, SERVER, UNREACHABLE, HOSTS = "network", "one_server", "unreachable", "hosts"
NOT_NETWORK, NOT_ENOUGH, NO_PROBES = "not_network", "not_enough_probes", "no_probes"
VERDICTS = (NETWORK, SERVER, UNREACHABLE, HOSTS, NOT_NETWORK, NOT_ENOUGH, NO_PROBES)

RISEN = "risen"  # state of evidence: below the threshold, but significantly above the value before
SOURCE, TARGET = "from its servers", "to its servers"
NEIGHBOURS, TO_NEIGHBOURS = "from neighbours", "to neighbours"
REST = "all others"
DOWN = 0.95  # minimum share of failed probes to a server that is down
MIN_DOWN_PROBES = 5
FAILED = 0.01  # share of failed probes above which some servers cannot be reached
FOLD = 3.0  # minimum ratio of a rate that has risen to its value before


class GroupCounts(RuleCounts, Protocol):
    """The counts of a group: `pingmesh.analysis.probe_tally.Cell`."""

    overflow: int
    seen99: float
    p50: float
    p50_low: float
    p50_high: float

    @property
    def host_share(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number: ``what`` (the group), ``metric``, its value (a rate, or ns) with interval, the ``limit``, the value
    ``before`` (nan: unknown), the number of ``probes``, and a ``state`` of `pingmesh.analysis.sla`, or `RISEN`.
    """

    what: str
    metric: str
    value: float
    low: float
    high: float
    limit: float
    before: float
    probes: int
    state: str


@dataclass(frozen=True)
class NetworkVerdict:
    """``verdict``: one of `VERDICTS`; ``why``: the reason in words; ``where``: its extent; the evidence."""

    verdict: str
    why: str
    where: str
    evidence: tuple[Evidence, ...]
    servers: tuple[str, ...] = field(default=())


def assess(
    groups: Mapping[str, GroupCounts],
    before: Mapping[str, GroupCounts],
    servers: Mapping[str, tuple[GroupCounts | None, GroupCounts | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[GroupCounts]] = lambda name: (),
    pods: Mapping[str, tuple[Sequence[str], GroupCounts | None]] | None = None,
    far: Mapping[str, tuple[GroupCounts, GroupCounts | None]] | None = None,
    silent: Sequence[SilentServer] = (),
) -> NetworkVerdict:
    """The verdict on a service.

    ``groups`` and ``before``: counts of the probes `SOURCE`, `TARGET`, `NEIGHBOURS`, `TO_NEIGHBOURS` and `REST` in the
    span, and before it; groups may be missing.  ``servers``: {server of the service: (probes from it, to it)}.
    ``rules``: about drop and quantiles.  ``without``: the first two groups without all pairs of one server.
    ``pods``, if known: {pod: (servers of the service in it, probes to all other servers in it)}.
    ``far``: {name: (now, before)} of probes between the service's data centres and others.  They are reported, but do
    not change the verdict: it is unknown whether the service sends traffic there.  ``silent``: servers, of the service
    or not, that did not answer for a while.
    """
    found = _assess(groups, before, servers, rules, without, pods, silent)
    own = [s for s in silent if s.server not in found.servers]
    if own and found.verdict not in (HOSTS, NO_PROBES):
        join = "but" if found.verdict in (NOT_NETWORK, NOT_ENOUGH) else "and"
        found = replace(found, why=f"{found.why}; {join} {_silence(own)}")
    bad = [e for what, (now, then) in (far or {}).items() for e in _far(what, now, then, rules)]
    if not bad:
        return found
    by_metric: dict[str, list[str]] = {}
    for e in bad:
        by_metric.setdefault(_NAMES[e.metric], []).append(e.what)
    words = "; ".join(f"{name} {_listed(places)}" for name, places in by_metric.items())
    join = "and" if found.verdict in (NETWORK, SERVER) else "but"
    return replace(found, why=f"{found.why}; {join} between data centres: {words}", evidence=(*found.evidence, *bad))


def _far(what: str, now: GroupCounts, then: GroupCounts | None, rules: Sequence[Rule]) -> list[Evidence]:
    """Bad evidence between two data centres.  Latency there is mostly distance: only a rise counts."""
    found = [e for e in _evidence(what, now, then, [r for r in rules if r.metric == "drop"]) if e.state == BAD]
    failed = _failed(what, now, then)
    late = next((r for r in rules if r.metric == "p99"), None)
    if late is not None and then is not None and then.samples:
        limit = then.p50 + late.threshold
        if now.p50_low > limit:
            found.append(Evidence(what, "p50", now.p50, now.p50_low, now.p50_high, limit, then.p50, now.samples, BAD))
    return [*found, *([failed] if failed.state == BAD else [])]


def _assess(
    groups: Mapping[str, GroupCounts],
    before: Mapping[str, GroupCounts],
    servers: Mapping[str, tuple[GroupCounts | None, GroupCounts | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[GroupCounts]],
    pods: Mapping[str, tuple[Sequence[str], GroupCounts | None]] | None,
    silent: Sequence[SilentServer],
) -> NetworkVerdict:
    evidence = tuple(e for what, group in groups.items() for e in _evidence(what, group, before.get(what), rules))
    own = [e for e in evidence if e.what in (SOURCE, TARGET) and e.metric in {r.metric for r in rules}]
    if not any(e.probes for e in own) and not any(to is not None and to.probes for _, to in servers.values()):
        return NetworkVerdict(NO_PROBES, "no probes from or to its servers", "", evidence)
    bad = [e for e in own if e.state == BAD]
    if bad:
        return _network(bad, evidence, groups, servers, rules, without, bool(pods))
    down = tuple(sorted(name for name, (_, to) in servers.items() if to is not None and _down(to)))
    if down:
        return _silent(down, evidence, servers, pods or {})
    own_silent = [s for s in silent if s.server in servers]
    if own_silent:
        return NetworkVerdict(HOSTS, _silence(own_silent), "", evidence, tuple(s.server for s in own_silent))
    if any(e.what == TARGET and e.metric == "failed" and e.state == BAD for e in evidence):
        rule = make_rule("failed", FAILED)
        unreachable = tuple(
            sorted(n for n, (_, to) in servers.items() if to is not None and rule.judge(to).state == BAD)
        )
        targets = f"{_listed(unreachable)}" if 0 < len(unreachable) < len(servers) else "its servers"
        what = "it was" if len(unreachable) == 1 < len(servers) else "servers were"
        why = f"some servers cannot reach {targets}, others can: a black hole, or {what} down for a while"
        return NetworkVerdict(UNREACHABLE, why, "", evidence, unreachable if len(unreachable) < len(servers) else ())
    hosts = [e for e in evidence if e.metric in ("overflow", "seen99") and e.state == BAD]
    if hosts:
        return NetworkVerdict(HOSTS, ", ".join(dict.fromkeys(_NAMES[e.metric] for e in hosts)), "", evidence)
    if any(e.state in (FEW, NONE, DEAD) for e in own):
        few = min((e for e in own if e.state in (FEW, NONE, DEAD)), key=lambda e: e.probes)
        enough = next(r.test.enough() for r in rules if r.metric == few.metric)
        why = f"{few.probes:,} probes {few.what} are too few to decide; {enough:,} are needed"
        return NetworkVerdict(
            NOT_ENOUGH, why if few.probes < enough else "the probes are too few to decide", "", evidence
        )
    why = "neither drop rate nor latency of its servers is above the limit"
    if risen := [e for e in own if e.state == RISEN]:
        why += f"; but higher than before: {', '.join(dict.fromkeys(f'{e.metric} {e.what}' for e in risen))}"
    if deaf := [e for e in evidence if e.what == SOURCE and e.metric == "failed" and e.state == BAD]:
        why += f"; but {100 * deaf[0].value:.2g} % of the probes from its servers failed: other servers do not answer"
    return NetworkVerdict(NOT_NETWORK, why, "", evidence)


def _silence(silent: Sequence[SilentServer]) -> str:
    """What was seen of servers that did not answer for a while."""
    words = []
    for s in silent[:3]:
        own, near = s.own, s.neighbours
        words.append(
            f"{s.server} did not answer for a while (lost {own.lost:,} of {own.probes:,} probes; "
            f"its neighbours on the same ToR {near.lost:,} of {near.probes:,})"
        )
    return ", ".join(words) + (f" and {len(silent) - 3} more servers" if len(silent) > 3 else "")


def _silent(
    down: tuple[str, ...],
    evidence: tuple[Evidence, ...],
    servers: Mapping[str, tuple[GroupCounts | None, GroupCounts | None]],
    pods: Mapping[str, tuple[Sequence[str], GroupCounts | None]],
) -> NetworkVerdict:
    """Verdict on servers that answer no probe: down, or cut off."""
    dark = [
        pod
        for pod, (names, others) in pods.items()
        if set(names) <= set(down) and (_down(others) if others is not None and others.probes else len(names) > 1)
    ]
    cut = tuple(name for name in down if (own := servers[name][0]) is not None and _down(own))
    if cut:
        why = (
            f"{len(cut)} of {len(servers)} servers sent probes, but none from or to them was answered: {_listed(cut)}; "
        )
        if dark:
            return NetworkVerdict(NETWORK, f"{why}all of {_listed(dark)} is cut off", "its pods", evidence, cut)
        answering = [
            pod for pod, (names, others) in pods.items() if others is not None and others.ok and set(names) & set(cut)
        ]
        if len(cut) > 1 and len({name for pod in answering for name in pods[pod][0]} & set(cut)) == len(cut):
            why += "their neighbours on the same ToRs answer: the cause is their links or the machines"
            return NetworkVerdict(HOSTS, why, "", evidence, cut)
        why += "they are cut off" if len(cut) > 1 else "the cause is its link or the machine"
        return NetworkVerdict(
            *((NETWORK, why, "its servers only") if len(cut) > 1 else (SERVER, why, "one server")), evidence, cut
        )
    why = f"{len(down)} of {len(servers)} servers answer no probe: {_listed(down)}"
    if dark:
        why += f"; all of {_listed(dark)} is silent: its power or its ToR switch is down"
        return NetworkVerdict(UNREACHABLE, why, "its pods", evidence, down)
    return NetworkVerdict(HOSTS, why, "", evidence, down)


def _network(
    bad: Sequence[Evidence],
    evidence: tuple[Evidence, ...],
    groups: Mapping[str, GroupCounts],
    servers: Mapping[str, tuple[GroupCounts | None, GroupCounts | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[GroupCounts]],
    known: bool,
) -> NetworkVerdict:
    """Verdict on a bad network, with its extent: one server, the service's pods (if ``known``), or others, too."""
    words = ", ".join(dict.fromkeys(f"{_NAMES[e.metric]} {e.what}" for e in bad))
    if len(servers) > 1:
        worst = max(sorted(servers), key=lambda name: _excess(servers[name], rules))
        rest = without(worst)
        alone = _exceeds_others(
            servers[worst], [groups[w] for w in (NEIGHBOURS, TO_NEIGHBOURS, REST) if w in groups], bad, rules
        )
        if alone and rest and all(rule.judge(group).state == OK for group in rest for rule in rules):
            why = f"{words}; without {worst} all is within the limits: the cause is its link or the machine"
            return NetworkVerdict(SERVER, why, "one server", evidence, (worst,))
    metrics = {r.metric for r in rules}
    reached = {e.what for e in evidence if e.state == BAD and e.metric in metrics}
    near = "its pods" if reached & {NEIGHBOURS, TO_NEIGHBOURS} else "its servers only"
    far = "other pods, too" if known else "others, too"
    where = far if REST in reached else near
    return NetworkVerdict(NETWORK, words, where, evidence)


def _exceeds_others(
    pair: tuple[GroupCounts | None, GroupCounts | None],
    others: Sequence[GroupCounts],
    bad: Sequence[Evidence],
    rules: Sequence[Rule],
) -> bool:
    """Whether a server is significantly worse than servers outside the service, in the metrics that are bad."""
    for rule in rules:
        if not any(e.metric == rule.metric for e in bad):
            continue
        own = max(
            (judged for group in pair if group is not None and (judged := rule.judge(group)).n),
            key=lambda judged: wilson(judged.hits, judged.n)[0],
            default=None,
        )
        for judged in map(rule.judge, others):
            if (
                own is not None
                and judged.n
                and sla.binomial_tail(own.hits, own.hits + judged.hits, own.n / (own.n + judged.n)) >= sla.FALSE_ALARM
            ):
                return False
    return True


def _excess(pair: tuple[GroupCounts | None, GroupCounts | None], rules: Sequence[Rule]) -> float:
    """How far a server exceeds the limits: lower bound of its rate, as a multiple of the rate to detect."""
    highest = 0.0
    for group in pair:
        for rule in rules:
            if group is not None and (judged := rule.judge(group)).n:
                low, _ = wilson(judged.hits, judged.n)
                highest = max(highest, low / rule.test.aim)
    return highest


_NAMES = {
    "drop": "too many drops",
    "p50": "P50 too high",
    "p99": "P99 too high",
    "p999": "P99.9 too high",
    "failed": "too many failures",
    "overflow": "full listen queues",
    "seen99": "programs delayed by their own host",
}


def _listed(names: Sequence[str], max_names: int = 5) -> str:
    more = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {more} more" if more > 0 else "")


def _evidence(what: str, group: GroupCounts, before: GroupCounts | None, rules: Sequence[Rule]) -> list[Evidence]:
    found = []
    for rule in rules:
        judged = rule.judge(group)
        then = rule.judge(before) if before is not None else None
        state = judged.state
        if rule.metric == "drop":
            low, high = wilson(judged.hits, judged.n)
            if state in (OK, FEW) and then is not None and _risen(judged.hits, judged.n, then.hits, then.n):
                state = RISEN
        else:
            low, high = (float(getattr(group, f"{rule.metric}_{end}", nan)) for end in ("low", "high"))
        past = then.value if then is not None else nan
        found.append(Evidence(what, rule.metric, judged.value, low, high, rule.threshold, past, judged.n, state))
    if what in (SOURCE, TARGET, TO_NEIGHBOURS):
        found.append(_failed(what, group, before))
    if what == TARGET:
        found.append(_overflow(group, before, next((r for r in rules if r.metric == "drop"), None)))
    limit = next((r for r in rules if r.metric == "p99"), None)
    if what == SOURCE and limit is not None and group.samples:
        slow = group.seen99 > limit.threshold and limit.judge(group).state in (OK, FEW)
        past = before.seen99 if before is not None else nan
        found.append(
            Evidence(
                what,
                "seen99",
                group.seen99,
                nan,
                nan,
                limit.threshold,
                past,
                group.samples,
                BAD if slow and group.samples >= limit.test.enough() else OK,
            )
        )
    return found


def _failed(what: str, group: GroupCounts, before: GroupCounts | None) -> Evidence:
    judged = make_rule("failed", FAILED).judge(group)
    past = before.failed / before.probes if before is not None and before.probes else nan
    return Evidence(what, "failed", judged.value, *wilson(judged.hits, judged.n), FAILED, past, judged.n, judged.state)


def _overflow(group: GroupCounts, before: GroupCounts | None, rule: Rule | None) -> Evidence:
    k, n = group.overflow, group.ok
    rate = rule if rule is not None else make_rule("drop", 1e-3)
    bad = n > 0 and k / n > rate.threshold and k >= rate.test.needed(n)
    past = before.overflow / before.ok if before is not None and before.ok else nan
    state = BAD if bad else NONE if n == 0 else OK
    return Evidence(TARGET, "overflow", k / n if n else nan, *wilson(k, n), rate.threshold, past, n, state)


def _risen(k: int, n: int, k0: int, n0: int) -> bool:
    """Whether k of n is significantly above k0 of n0 before: given k + k0, k is binomial if nothing changed."""
    if n == 0 or n0 == 0 or k / n < FOLD * k0 / n0:
        return False
    return sla.binomial_tail(k, k + k0, n / (n + n0)) < sla.FALSE_ALARM


def _down(group: GroupCounts) -> bool:
    return group.probes >= MIN_DOWN_PROBES and group.failed >= DOWN * group.probes
