"""Theorem 1 of 007: traceroutes per second and host for which no switch exceeds its ICMP rate.

Notation of the paper: npod pods of n0 ToRs and n1 T1s, n2 T2s, H hosts per ToR; q is the probability that a flow to
another ToR, all equally likely, leaves its pod.
"""

from __future__ import annotations

from math import inf

from confluo_tools.network.topology import T1, T2, TOR, Clos, Topology, as_clos

BOUNDS = ("full", "paper")
T_MAX = 100.0  # ICMP messages per second that a switch sends


def crossing(clos: Clos) -> float:
    """q: the chance that a flow to another ToR leaves its pod."""
    others = clos.tors * clos.pods - 1
    return clos.tors * (clos.pods - 1) / others if others else 0.0


# -- Theorem 1: traceroutes per second and host for which no switch sends more than T_max ----------------------


def trace_rate_paper(clos: Clos, t_max: float = T_MAX) -> float:
    """C_t of Theorem 1 as printed: it counts only the links upward from a switch, and at a T2 those of one pod."""
    second = inf
    if clos.pods > 1:
        second = clos.t2s * (clos.tors * clos.pods - 1) / (clos.tors * (clos.pods - 1))
    return t_max / (clos.tors * clos.hosts) * min(clos.t1s, second)


def trace_rate_full(clos: Clos, t_max: float = T_MAX) -> float:
    """C_t for which each switch sends at most ``t_max`` messages per second, counting all probes that reach it."""
    return t_max / max(answers(clos, 1.0).values())


def trace_rate(topology: Topology, t_max: float = T_MAX, bound: str = "full") -> float:
    """C_t of any network.  ``bound``: full, or paper; paper requires a Clos, else ValueError."""
    clos = as_clos(topology)
    if bound == "paper":
        if clos is None:
            raise ValueError("is not a Clos, as Theorem 1 of the paper requires")
        return trace_rate_paper(clos, t_max)
    if clos is not None:
        return trace_rate_full(clos, t_max)
    most = max(answers_at(topology, 1.0).values(), default=0.0)
    return t_max / most if most else inf


def link_rates(clos: Clos, c_t: float) -> tuple[float, float]:
    """(5), (6): traceroutes a second over a link upward of level 1 and of level 2."""
    first = clos.hosts * c_t / clos.t1s
    return first, clos.tors / (clos.t1s * clos.t2s) * crossing(clos) * clos.hosts * c_t


def answers(clos: Clos, c_t: float) -> dict[int, float]:
    """Messages a second of a switch of each level (TOR, T1, T2) when each host traces ``c_t`` flows a second."""
    q, per_tor = crossing(clos), clos.hosts * c_t
    found = {
        TOR: 2 * per_tor,  # of its own hosts' flows, and of those to them
        T1: clos.tors * per_tor * (1 + q) / clos.t1s,
    }
    if clos.t2s:  # a leaf-spine network has none
        found[T2] = clos.pods * clos.tors * per_tor * q / clos.t2s
    return found


def answers_at(topology: Topology, c_t: float) -> dict[int, float]:
    """Messages a second of each switch of any network, when flows go to all other ToRs with hosts alike (ECMP)."""
    hosts = {tor: n for tor, n in topology.hosts_at().items() if n}
    load = dict.fromkeys(topology.neighbours, 0.0)
    for dst in hosts:
        far = topology.distances(dst)
        coming = {tor: n * c_t / (len(hosts) - 1) for tor, n in hosts.items() if tor != dst and tor in far}
        for a in sorted(far, key=far.__getitem__, reverse=True):
            here = coming.get(a, 0.0)
            if not here:
                continue
            load[a] += here
            onward = [b for b in topology.neighbours[a] if far.get(b) == far[a] - 1]
            for b in onward:
                coming[b] = coming.get(b, 0.0) + here / len(onward)
    return load
