"""Lemma 2 and Theorem 2 of 007: how many votes good and bad links get, and how likely a wrong ranking is.

Theorem 1 is `confluo_tools.network.traceroute_rate`.

Notation of the paper: npod pods of n0 ToRs and n1 T1s, n2 T2s, H hosts at a ToR; q is the chance that a flow to
another ToR, all equally likely, leaves its pod.  Probabilities are of a connection unless it says packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log1p

from confluo_tools.network.topology import Clos
from confluo_tools.network.traceroute_rate import crossing

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


def max_bad_links(clos: Clos) -> float:
    """k_max: the theorems hold for fewer bad links than this."""
    far = clos.tors * (clos.pods - 1)
    return clos.t2s * (clos.tors * clos.pods - 1) / far if far else inf


def alpha(clos: Clos, k: int) -> float:
    """How many times more often a bad link must make a connection retransmit than a good one; inf from k_max on."""
    n0, far = clos.tors, clos.pods - 1
    if k >= max_bad_links(clos):
        return inf
    return n0 * (4 * n0 - k) * far / (clos.t2s * (n0 * clos.pods - 1) - n0 * far * k)


def retransmits(p: float, packets: float) -> float:
    """The probability that a link with drop rate ``p`` drops one of ``packets`` packets."""
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
    """For ``k`` links that drop ``p_b``, others that drop at most ``p_g`` (of packets), and ``n`` connections of
    ``packets`` (from, to).
    """
    r_b, r_g = retransmits(p_b, packets[0]), min(1.0, packets[1] * p_g)
    v_b, v_g = bad_votes(clos, r_b), good_votes(clos, k, r_b, r_g)
    pairs = k * (fabric_links(clos) - k)
    one = misranked_best(v_b, v_g, n)
    return Promise(
        k,
        alpha(clos, k),
        good_drops(clos, k, p_b, *packets),
        v_b,
        v_g,
        misranked(v_b, v_g, n),
        one,
        min(1.0, one * pairs),
        connections_needed(v_b, v_g, 0.05 / pairs) if pairs > 0 else inf,
    )


def fabric_links(clos: Clos) -> int:
    """L: directed links between switches."""
    return clos.links - 2 * clos.all_hosts
