"""Is it the network?  What probes say of some servers and a span of time, weighed.

Pingmesh (SIGCOMM 2015): when neither drop rate nor P99 of a service's servers moved, it is not the network, and about
half of what is reported as one is not.  Both are the kernel's numbers here, so that slow programs do not move them.
What hosts do is looked at apart:

* answers of a host that has no room for connections (overflows) are no drops of the network;
* programs that wait long while the kernel does not (`seen99`) wait for their own host;
* servers that answer nobody are down, if they are silent, too; if they probe, and reach nobody, they are cut off.
  Where nobody at all of a pod answers, hosts and network look the same.

`weigh` is given counts of groups (`store.mesh.Cell`), in the span and, if there are any, before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Protocol

from confluo_tools.algo import sla
from confluo_tools.algo.sla import BAD, DEAD, FEW, NONE, OK, Counted, Rule, make_rule, wilson

NETWORK, SERVER, UNREACHABLE, HOSTS = "network", "one_server", "unreachable", "hosts"
NOT_NETWORK, NOT_ENOUGH, NO_PROBES = "not_network", "not_enough_probes", "no_probes"
VERDICTS = (NETWORK, SERVER, UNREACHABLE, HOSTS, NOT_NETWORK, NOT_ENOUGH, NO_PROBES)

RISEN = "risen"  # a state of evidence: below the threshold, and yet more than before by more than chance
SOURCE, TARGET = "from its servers", "to its servers"
BESIDE, BESIDE_TO = "from neighbours", "to neighbours"
REST = "all others"
DOWN = 0.95  # of the probes to a server fail: it is down
LEAST_DOWN = 5  # probes, at least
FAILED = 0.01  # of the probes fail: somebody cannot reach somebody
FOLD = 3.0  # a rate has risen when it is so many times what it was


class Group(Counted, Protocol):
    """What is looked at: `store.mesh.Cell`."""

    overflow: int
    seen99: float
    p50: float
    p50_low: float
    p50_high: float

    @property
    def host_share(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number: ``what`` group, ``metric``, its value (a rate, or ns) with interval, the ``limit``, the value
    ``before`` (nan: not known), the probes it is of, and what it says: a state of `algo.sla`, or `RISEN`.
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
class Verdict:
    """``verdict``: one of `VERDICTS`; ``why`` in words; ``where``: how far it reaches; the evidence."""

    verdict: str
    why: str
    where: str
    evidence: tuple[Evidence, ...]
    servers: tuple[str, ...] = field(default=())


def weigh(
    groups: Mapping[str, Group],
    before: Mapping[str, Group],
    servers: Mapping[str, tuple[Group | None, Group | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[Group]] = lambda name: (),
    pods: Mapping[str, tuple[Sequence[str], Group | None]] | None = None,
    far: Mapping[str, tuple[Group, Group | None]] | None = None,
) -> Verdict:
    """What the probes of a service say.

    ``groups`` and ``before``: what probes `SOURCE`, `TARGET`, `BESIDE`, `BESIDE_TO` and `REST` met in the span, and
    before it; groups may be missing.  ``servers``: of each server of the service the probes from and to it, or None.
    ``rules``: about drop and quantiles.  ``without``: the first two groups without all pairs of one server.
    ``pods``, as far as they are known: of each the servers of the service, and the probes to all others in it.
    ``far``: probes between its data centres and others, now and before, by a name; they change no verdict, because
    nobody knows whether the service goes there, but are told.
    """
    found = _weigh(groups, before, servers, rules, without, pods)
    bad = [e for what, (now, then) in (far or {}).items() for e in _far(what, now, then, rules)]
    if not bad:
        return found
    said: dict[str, list[str]] = {}
    for e in bad:
        said.setdefault(_NAMES[e.metric], []).append(e.what)
    words = "; ".join(f"{name} {_some(places)}" for name, places in said.items())
    join = "and" if found.verdict in (NETWORK, SERVER) else "but"
    return replace(found, why=f"{found.why}; {join} between data centres: {words}", evidence=(*found.evidence, *bad))


def _far(what: str, now: Group, then: Group | None, rules: Sequence[Rule]) -> list[Evidence]:
    """What is bad of probes between two data centres.  Time is mostly distance there: only a rise counts."""
    found = [e for e in _evidence(what, now, then, [r for r in rules if r.metric == "drop"]) if e.state == BAD]
    failed = _failed(what, now, then)
    late = next((r for r in rules if r.metric == "p99"), None)
    if late is not None and then is not None and then.samples:
        limit = then.p50 + late.threshold
        if now.p50_low > limit:
            found.append(Evidence(what, "p50", now.p50, now.p50_low, now.p50_high, limit, then.p50, now.samples, BAD))
    return [*found, *([failed] if failed.state == BAD else [])]


def _weigh(
    groups: Mapping[str, Group],
    before: Mapping[str, Group],
    servers: Mapping[str, tuple[Group | None, Group | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[Group]],
    pods: Mapping[str, tuple[Sequence[str], Group | None]] | None,
) -> Verdict:
    evidence = tuple(e for what, group in groups.items() for e in _evidence(what, group, before.get(what), rules))
    own = [e for e in evidence if e.what in (SOURCE, TARGET) and e.metric in {r.metric for r in rules}]
    if not any(e.probes for e in own) and not any(to is not None and to.probes for _, to in servers.values()):
        return Verdict(NO_PROBES, "its servers neither probed nor were probed", "", evidence)
    bad = [e for e in own if e.state == BAD]
    if bad:
        return _network(bad, evidence, groups, servers, rules, without, bool(pods))
    down = tuple(sorted(name for name, (_, to) in servers.items() if to is not None and _down(to)))
    if down:
        return _silent(down, evidence, servers, pods or {})
    if any(e.what == TARGET and e.metric == "failed" and e.state == BAD for e in evidence):
        rule = make_rule("failed", FAILED)
        some = tuple(sorted(n for n, (_, to) in servers.items() if to is not None and rule.judge(to).state == BAD))
        of = f"{_some(some)}" if 0 < len(some) < len(servers) else "its servers"
        what = "it was" if len(some) == 1 < len(servers) else "servers that were"
        why = f"some cannot reach {of}, others can: a black hole, or {what} down for a while"
        return Verdict(UNREACHABLE, why, "", evidence, some if len(some) < len(servers) else ())
    hosts = [e for e in evidence if e.metric in ("overflow", "seen99") and e.state == BAD]
    if hosts:
        return Verdict(HOSTS, ", ".join(dict.fromkeys(_NAMES[e.metric] for e in hosts)), "", evidence)
    if any(e.state in (FEW, NONE, DEAD) for e in own):
        few = min((e for e in own if e.state in (FEW, NONE, DEAD)), key=lambda e: e.probes)
        enough = next(r.test.enough() for r in rules if r.metric == few.metric)
        why = f"{few.probes:,} probes {few.what} are too few to show it; {enough:,} would do"
        return Verdict(NOT_ENOUGH, why if few.probes < enough else "so few probes would not show it", "", evidence)
    why = "neither drop rate nor latency of its servers is above the limit"
    if risen := [e for e in own if e.state == RISEN]:
        why += f"; but more than before: {', '.join(dict.fromkeys(f'{e.metric} {e.what}' for e in risen))}"
    if deaf := [e for e in evidence if e.what == SOURCE and e.metric == "failed" and e.state == BAD]:
        why += f"; but {100 * deaf[0].value:.2g} % of the probes from its servers failed: others do not answer"
    return Verdict(NOT_NETWORK, why, "", evidence)


def _silent(
    down: tuple[str, ...],
    evidence: tuple[Evidence, ...],
    servers: Mapping[str, tuple[Group | None, Group | None]],
    pods: Mapping[str, tuple[Sequence[str], Group | None]],
) -> Verdict:
    """Servers answer nobody: are they off, or cut off?"""
    dark = [pod for pod, (its, beside) in pods.items() if set(its) <= set(down)
            and (_down(beside) if beside is not None and beside.probes else len(its) > 1)]  # fmt: skip
    cut = tuple(name for name in down if (own := servers[name][0]) is not None and _down(own))
    if cut:
        why = f"{len(cut)} of {len(servers)} servers did probe, but reached nobody and answered nobody: {_some(cut)}; "
        if dark:
            return Verdict(NETWORK, f"{why}all of {_some(dark)} is cut off", "its pods", evidence, cut)
        why += "they are cut off" if len(cut) > 1 else "its link, or the machine"
        return Verdict(*((NETWORK, why, "its servers only") if len(cut) > 1 else (SERVER, why, "one server")),
                       evidence, cut)  # fmt: skip
    why = f"{len(down)} of {len(servers)} servers answer nobody: {_some(down)}"
    if dark:
        why += f"; all of {_some(dark)} is silent: no power there, or the ToR switch is down"
        return Verdict(UNREACHABLE, why, "its pods", evidence, down)
    return Verdict(HOSTS, why, "", evidence, down)


def _network(
    bad: Sequence[Evidence],
    evidence: tuple[Evidence, ...],
    groups: Mapping[str, Group],
    servers: Mapping[str, tuple[Group | None, Group | None]],
    rules: Sequence[Rule],
    without: Callable[[str], Sequence[Group]],
    known: bool,
) -> Verdict:
    """It is: but of one server, of its pods (if they are known), of all?"""
    words = ", ".join(dict.fromkeys(f"{_NAMES[e.metric]} {e.what}" for e in bad))
    if len(servers) > 1:
        worst = max(sorted(servers), key=lambda name: _worth(servers[name], rules))
        rest = without(worst)
        alone = _stands_out(servers[worst], [groups[w] for w in (BESIDE, BESIDE_TO, REST) if w in groups], bad, rules)
        if alone and rest and all(rule.judge(group).state == OK for group in rest for rule in rules):
            why = f"{words}; without {worst} there is nothing: its link, or the machine"
            return Verdict(SERVER, why, "one server", evidence, (worst,))
    metrics = {r.metric for r in rules}
    reached = {e.what for e in evidence if e.state == BAD and e.metric in metrics}
    near = "its pods" if reached & {BESIDE, BESIDE_TO} else "its servers only"
    far = "other pods, too" if known else "others, too"
    where = far if REST in reached else near
    return Verdict(NETWORK, words, where, evidence)


def _stands_out(
    pair: tuple[Group | None, Group | None], others: Sequence[Group], bad: Sequence[Evidence], rules: Sequence[Rule]
) -> bool:
    """Whether a server has more of what is bad than others, who are no part of the service: by more than chance."""
    for rule in rules:
        if not any(e.metric == rule.metric for e in bad):
            continue
        own = max((judged for group in pair if group is not None and (judged := rule.judge(group)).n),
                  key=lambda judged: wilson(judged.hits, judged.n)[0], default=None)  # fmt: skip
        for judged in map(rule.judge, others):
            if own is not None and judged.n and sla.binomial_tail(
                own.hits, own.hits + judged.hits, own.n / (own.n + judged.n)
            ) >= sla.FALSE_ALARM:
                return False
    return True


def _worth(pair: tuple[Group | None, Group | None], rules: Sequence[Rule]) -> float:
    """How far above the limits a server is, by what is sure."""
    most = 0.0
    for group in pair:
        for rule in rules:
            if group is not None and (judged := rule.judge(group)).n:
                sure, _ = wilson(judged.hits, judged.n)
                most = max(most, sure / rule.test.aim)
    return most


_NAMES = {
    "drop": "too many drops", "p50": "P50 too long", "p99": "P99 too long", "p999": "P99.9 too long",
    "failed": "too many failures", "overflow": "listening sockets without room",
    "seen99": "programs waited for their host",
}  # fmt: skip


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _evidence(what: str, group: Group, before: Group | None, rules: Sequence[Rule]) -> list[Evidence]:
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
    if what in (SOURCE, TARGET, BESIDE_TO):
        found.append(_failed(what, group, before))
    if what == TARGET:
        found.append(_overflow(group, before, next((r for r in rules if r.metric == "drop"), None)))
    limit = next((r for r in rules if r.metric == "p99"), None)
    if what == SOURCE and limit is not None and group.samples:
        slow = group.seen99 > limit.threshold and limit.judge(group).state in (OK, FEW)
        past = before.seen99 if before is not None else nan
        found.append(Evidence(what, "seen99", group.seen99, nan, nan, limit.threshold, past, group.samples,
                              BAD if slow and group.samples >= limit.test.enough() else OK))  # fmt: skip
    return found


def _failed(what: str, group: Group, before: Group | None) -> Evidence:
    judged = make_rule("failed", FAILED).judge(group)
    past = before.failed / before.probes if before is not None and before.probes else nan
    return Evidence(what, "failed", judged.value, *wilson(judged.hits, judged.n), FAILED, past, judged.n, judged.state)


def _overflow(group: Group, before: Group | None, rule: Rule | None) -> Evidence:
    k, n = group.overflow, group.ok
    rate = rule if rule is not None else make_rule("drop", 1e-3)
    bad = n > 0 and k / n > rate.threshold and k >= rate.test.needed(n)
    past = before.overflow / before.ok if before is not None and before.ok else nan
    state = BAD if bad else NONE if n == 0 else OK
    return Evidence(TARGET, "overflow", k / n if n else nan, *wilson(k, n), rate.threshold, past, n, state)


def _risen(k: int, n: int, k0: int, n0: int) -> bool:
    """k of n against k0 of n0 before: given k + k0, k is binomial if nothing changed."""
    if n == 0 or n0 == 0 or k / n < FOLD * k0 / n0:
        return False
    return sla.binomial_tail(k, k + k0, n / (n + n0)) < sla.FALSE_ALARM


def _down(group: Group) -> bool:
    return group.probes >= LEAST_DOWN and group.failed >= DOWN * group.probes
