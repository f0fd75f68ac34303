"""What the theorems of 007 promise for a network: how often hosts may trace, which good links look bad, how surely.

Notation of the paper: npod pods of n0 ToRs and n1 T1s, n2 T2s, H hosts at a ToR; q is the chance that a flow to
another ToR, all equally likely, leaves its pod.  Probabilities are of a connection unless it says packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log1p

from confluo_tools.algo.topology import T1, T2, TOR, Clos, Topology, as_clos

BOUNDS = ("full", "paper")
T_MAX = 100.0  # ICMP messages a second that a switch sends


def crossing(clos: Clos) -> float:
    """q: the chance that a flow to another ToR leaves its pod."""
    others = clos.tors * clos.pods - 1
    return clos.tors * (clos.pods - 1) / others if others else 0.0


# -- Theorem 1: traceroutes a second and host, such that no switch answers more than T_max ----------------------


def trace_rate_paper(clos: Clos, t_max: float = T_MAX) -> float:
    """C_t of Theorem 1 as it stands: only the links upward from a switch are counted, and at a T2 those of one pod."""
    second = inf
    if clos.pods > 1:
        second = clos.t2s * (clos.tors * clos.pods - 1) / (clos.tors * (clos.pods - 1))
    return t_max / (clos.tors * clos.hosts) * min(clos.t1s, second)


def trace_rate_full(clos: Clos, t_max: float = T_MAX) -> float:
    """C_t such that every switch sends at most ``t_max`` messages, all probes that reach it counted."""
    return t_max / max(answers(clos, 1.0).values())


def trace_rate(topology: Topology, t_max: float = T_MAX, bound: str = "full") -> float:
    """C_t of any network; ``bound``: full or paper, which needs a Clos (ValueError if it is none)."""
    clos = as_clos(topology)
    if bound == "paper":
        if clos is None:
            raise ValueError("Theorem 1 as it stands is about a Clos")
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
    return {
        TOR: 2 * per_tor,  # of its own hosts' flows, and of those to them
        T1: clos.tors * per_tor * (1 + q) / clos.t1s,
        T2: clos.pods * clos.tors * per_tor * q / clos.t2s,
    }


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


# -- Lemma 2: votes for good and bad links ----------------------------------------------------------------------


def pods_needed(clos: Clos) -> float:
    """Pods that Lemma 2 asks for; inf when n0 < n2, where it says nothing."""
    n0, n1, n2 = clos.tors, clos.t1s, clos.t2s
    if n0 < n2:
        return inf
    if n0 == n2:
        return inf if n0 > 1 else 1 + max(n0 / n1, 1)
    return 1 + max(n0 / n1, n2 * (n0 - 1) / (n0 * (n0 - n2)), 1)


def used(clos: Clos, level: int) -> float:
    """The chance that a connection uses a given link of level 1 (ToR and T1) or 2 (T1 and T2), in one direction."""
    if level == 1:
        return 1 / (clos.tors * clos.t1s * clos.pods)
    return crossing(clos) / (clos.t1s * clos.t2s * clos.pods)


def bad_votes(clos: Clos, r_b: float) -> float:
    """(10a): a bad link gets a vote of a connection with at least this chance; r_b: that it makes one retransmit."""
    return r_b * used(clos, 1)


def good_votes(clos: Clos, k: int, r_b: float, r_g: float) -> float:
    """(10b): a good link gets a vote of a connection with at most this chance, with ``k`` bad links."""
    return used(clos, 2) * ((4 - k / clos.tors) * r_g + k / clos.tors * r_b)


# -- Theorems 2 and 3: the ranking is right ---------------------------------------------------------------------


def most_bad_links(clos: Clos) -> float:
    """k_max: the theorems hold for fewer bad links than this."""
    far = clos.tors * (clos.pods - 1)
    return clos.t2s * (clos.tors * clos.pods - 1) / far if far else inf


def alpha(clos: Clos, k: int) -> float:
    """How many times more often a bad link must make a connection retransmit than a good one; inf from k_max on."""
    n0, far = clos.tors, clos.pods - 1
    if k >= most_bad_links(clos):
        return inf
    return n0 * (4 * n0 - k) * far / (clos.t2s * (n0 * clos.pods - 1) - n0 * far * k)


def retransmits(p: float, packets: float) -> float:
    """The chance that a link that drops a packet with chance ``p`` drops one of so many."""
    return -expm1(packets * log1p(-p)) if p < 1 else 1.0


def good_drops(clos: Clos, k: int, p_b: float, least: float, most: float) -> float:
    """Drop rate of good links up to which the ranking is right, when bad ones drop ``p_b`` or more (packets) and
    connections have from ``least`` to ``most`` packets (Theorem 2).
    """
    times = alpha(clos, k)
    return retransmits(p_b, least) / (times * most) if times else 1.0


def divergence(a: float, b: float) -> float:
    """D(a || b) of two coins, in nats."""
    first = a * log(a / b) if a else 0.0
    second = (1 - a) * log((1 - a) / (1 - b)) if a < 1 else 0.0
    return first + second


def misranked(v_b: float, v_g: float, n: int, d: float | None = None) -> float:
    """eps: the chance that one good link gets more votes of ``n`` connections than one bad (Theorem 3, (13a), (13b)).

    ``v_b``, ``v_g``: their chances of a vote of a connection; ``d``: at most (v_b - v_g) / (v_b + v_g), the default.
    1 when v_g is not below v_b.  For all pairs multiply by k (L - k), of L links.
    """
    if not v_g < v_b:
        return 1.0
    if d is None:
        d = (v_b - v_g) / (v_b + v_g)
    good = exp(-n * divergence((1 + d) * v_g, v_g)) if v_g else 0.0
    return min(1.0, good + exp(-n * divergence((1 - d) * v_b, v_b)))


def misranked_best(v_b: float, v_g: float, n: int) -> float:
    """The same tails with a threshold of one's own for each: where both are as small (not in the paper).

    2 exp(-n D(t || v_g)) with t such that D(t || v_g) = D(t || v_b).
    """
    return min(1.0, 2 * exp(-n * _exponent(v_b, v_g))) if v_g < v_b else 1.0


def _exponent(v_b: float, v_g: float) -> float:
    if v_b >= 1:
        return inf if v_g == 0 else -log(v_g)
    if v_g == 0:
        return -log1p(-v_b)  # a bad link gets no vote at all
    rest = log1p(-v_g) - log1p(-v_b)
    return divergence(rest / (log(v_b / v_g) + rest), v_g)


def connections_needed(v_b: float, v_g: float, eps: float) -> float:
    """Connections after which `misranked_best` is at most ``eps``; inf when it never is."""
    if not v_g < v_b:
        return inf
    return float(max(1, ceil(log(2 / eps) / _exponent(v_b, v_g))))


@dataclass(frozen=True)
class Promise:
    """What Theorems 2 and 3 say about a network with ``k`` bad links; see `promise`."""

    k: int
    alpha: float
    good_drops: float  # of a packet
    bad_votes: float  # of a connection
    good_votes: float
    misranked: float  # one pair of links
    misranked_best: float
    misranked_any: float  # any pair
    connections: float  # for a chance of 5 % that any pair is


def promise(clos: Clos, k: int, p_b: float, p_g: float, packets: tuple[float, float], n: int) -> Promise:
    """For ``k`` links that drop ``p_b`` and others that drop at most ``p_g`` (packets), connections of so many packets
    (from, to), and ``n`` of them.
    """
    r_b, r_g = retransmits(p_b, packets[0]), min(1.0, packets[1] * p_g)
    v_b, v_g = bad_votes(clos, r_b), good_votes(clos, k, r_b, r_g)
    pairs = k * (fabric_links(clos) - k)
    one = misranked_best(v_b, v_g, n)
    return Promise(
        k, alpha(clos, k), good_drops(clos, k, p_b, *packets), v_b, v_g, misranked(v_b, v_g, n), one,
        min(1.0, one * pairs), connections_needed(v_b, v_g, 0.05 / pairs) if pairs > 0 else inf,
    )  # fmt: skip


def fabric_links(clos: Clos) -> int:
    """L: directed links between switches."""
    return clos.links - 2 * clos.all_hosts
