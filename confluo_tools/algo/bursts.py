"""Losses in time: those of a switch that drops at random go on, those of a congestion are over after moments.

A silent random drop of the paper (Pingmesh, SIGCOMM 2015) lasts until somebody takes the switch out; reloading does not
help.  So what lost packets only for moments is no such fault, however many it lost.  A window is looked at as counts
in pieces of equal length.  While there is a stretch of pieces that has far more losses than the others (by a ratio of
likelihoods that uniform losses do not come to, and at least three times their rate), the losses are those of the
stretch, and it is looked at in finer pieces.  What is left lasted for some time; and within that time losses that
come all the time are in so many pieces: if they are in far fewer, they came in bursts, too small to be seen one by
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import exp, lgamma, log, log1p
from typing import NamedTuple

LASTING = 300 * 10**9  # ns: what goes on for so long is no burst
PART = 4  # nor what goes on for one part in so many of all that was watched
GAIN = 12.0  # logarithm of how much likelier a stretch makes the losses: of uniform ones, one window in a thousand
CONTRAST = 3.0  # its rate, by that of the rest
PIECES = (20, 60)
ROUNDS = 8  # a stretch of a stretch of ...: 20^8 of them are beyond every clock
HELD = 0.6  # of the pieces that uniform losses are in
SURE = 1e-3  # chance that uniform losses are in so few
FEWEST = 4  # losses that can be a burst

STEADY, BURST, NEW = "steady", "burst", "new"


class Course(NamedTuple):
    """``state``: steady, burst, or new (it began so late that it is too early to tell); from ``begin`` to ``end`` (ns)
    it lasted, or that is all that was watched; ``held``: pieces of that time with losses, by those that uniform losses
    are in.
    """

    state: str
    begin: int
    end: int
    held: float


def course(times: Sequence[int], begin: int, end: int, lasting: int = LASTING) -> Course:
    """How these losses (ns) went on in a window.  ``lasting``: from when on it is steady, at most a quarter of it.

    0: everything is.
    """
    low, high, its = begin, max(end, begin + 1), sorted(times)
    for _ in range(ROUNDS):
        found = stretch(counts(its, low, high))
        if found is None:
            break
        first, last, pieces = found
        whole = high - low
        low, high = low + first * whole // pieces, low + -(-last * whole // pieces)
        its = [t for t in its if low <= t < high]
        if high - low <= pieces:
            break
    held, chance = spread(counts(its, low, high))
    if not lasting:
        return Course(STEADY, low, high, held)
    if held < HELD and chance < SURE:
        return Course(BURST, low, high, held)
    if high - low >= min(lasting, (end - begin) // PART):
        return Course(STEADY, low, high, held)
    return Course(NEW if high + (high - low) // PART >= end else BURST, low, high, held)


def apart(times: Iterable[int], begin: int, end: int, lasting: int = LASTING) -> list[tuple[int, int]]:
    """From when to when there were bursts, one after the other; what lasts is left."""
    left = sorted(times)
    found: list[tuple[int, int]] = []
    while len(left) >= FEWEST:
        one = course(left, begin, end, lasting)
        if one.state == STEADY:
            break
        found.append((one.begin, one.end))
        left = [t for t in left if not one.begin <= t < one.end]
    return found


def counts(times: Sequence[int], begin: int, end: int) -> list[int]:
    """Losses of each piece: about three a piece, if there are so many."""
    pieces = min(max(PIECES[0], len(times) // 3), PIECES[1])
    found = [0] * pieces
    for t in times:
        found[min(max((t - begin) * pieces // (end - begin), 0), pieces - 1)] += 1
    return found


def stretch(found: Sequence[int]) -> tuple[int, int, int] | None:
    """(first, after the last, number of all pieces) of the stretch that stands out most, or None."""
    sums = [0, *accumulate(found)]
    n, k = len(found), sums[-1]
    best: tuple[float, int, int] | None = None
    for first in range(n):
        for last in range(first + 1, n + 1):
            long, inside = last - first, sums[last] - sums[first]
            if long == n or inside * (n - long) < CONTRAST * (k - inside) * long:
                continue
            gain = _likelihood(inside, long) + _likelihood(k - inside, n - long) - _likelihood(k, n)
            if gain >= GAIN and (best is None or gain > best[0]):
                best = gain, first, last
    return None if best is None else (best[1], best[2], n)


def spread(found: Sequence[int]) -> tuple[float, float]:
    """Pieces that have their part of the losses (a third of the mean, and one at least), by those that uniform losses
    give it to; and the chance that these give it to so few.
    """
    n, k = len(found), sum(found)
    if not k:
        return 0.0, 1.0
    part = max(1, -(-k // (3 * n)))
    seen = sum(count >= part for count in found)
    share = 1.0 - sum(_binomial(i, k, 1 / n) for i in range(part))
    # pieces take losses from each other: independent ones are in so few at least as often
    return min(1.0, seen / (n * share)), min(1.0, sum(_binomial(i, n, share) for i in range(seen + 1)))


def _likelihood(k: int, n: int) -> float:
    return k * log(k / n) if k else 0.0


def _binomial(i: int, n: int, p: float) -> float:
    if p >= 1:
        return float(i == n)
    return exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p)) if i <= n else 0.0
