"""Losses in time: a switch that drops packets at random goes on; congestion ends after moments.

A silent random drop (Pingmesh, SIGCOMM 2015, section on silent drops) lasts until the switch is taken out of service;
a reload does not help.  A place that lost packets only for moments has no such fault, however many it lost.

A window is split into pieces of equal length, and losses are counted in each.  If some stretch of pieces has far
more losses than the rest (a likelihood ratio that uniform losses do not reach, and at least three times their rate),
the window is cut down to that stretch and split again, into finer pieces.  The remaining time is how long the losses
lasted.  Within it, steady losses hit an expected number of pieces; losses in far fewer pieces came in bursts too small
to be found one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import exp, lgamma, log, log1p
from typing import NamedTuple

LASTING = 300 * 10**9  # ns: maximum length of a burst
PART = 4  # nor are losses that last for 1/PART of the window
GAIN = 12.0  # minimum log likelihood ratio of a stretch; uniform losses reach it in one window of a thousand
CONTRAST = 3.0  # minimum ratio of its rate to that of the rest
PIECES = (20, 60)  # minimum and maximum
ROUNDS = 8  # maximum cuts: 20^8 pieces are finer than any clock
HELD = 0.6  # minimum share of the pieces that uniform losses would hit
SURE = 1e-3  # chance that uniform losses hit so few pieces
FEWEST = 4  # minimum losses of a burst

STEADY, BURST, NEW = "steady", "burst", "new"


class LossPeriod(NamedTuple):
    """How long losses lasted: from ``begin`` to ``end`` (ns), at most the window.

    ``state``: steady, burst, or new (began too late in the window to decide).  ``held``: pieces of that time with
    losses, divided by the pieces that uniform losses would hit.
    """

    state: str
    begin: int
    end: int
    held: float


def loss_period(times: Sequence[int], begin: int, end: int, lasting: int = LASTING) -> LossPeriod:
    """The period of losses at ``times`` (ns) in a window.

    ``lasting``: minimum length (ns) of steady losses, capped at a quarter of the window; 0: all losses are steady.
    """
    low, high, losses = begin, max(end, begin + 1), sorted(times)
    for _ in range(ROUNDS):
        found = stretch(counts(losses, low, high))
        if found is None:
            break
        first, last, pieces = found
        whole = high - low
        low, high = low + first * whole // pieces, low + -(-last * whole // pieces)
        losses = [t for t in losses if low <= t < high]
        if high - low <= pieces:
            break
    held, chance = spread(counts(losses, low, high))
    if not lasting:
        return LossPeriod(STEADY, low, high, held)
    if held < HELD and chance < SURE:
        return LossPeriod(BURST, low, high, held)
    if high - low >= min(lasting, (end - begin) // PART):
        return LossPeriod(STEADY, low, high, held)
    return LossPeriod(NEW if high + (high - low) // PART >= end else BURST, low, high, held)


def burst_periods(times: Iterable[int], begin: int, end: int, lasting: int = LASTING) -> list[tuple[int, int]]:
    """(begin, end) of each burst among losses, found one after the other until the rest is steady."""
    left = sorted(times)
    found: list[tuple[int, int]] = []
    while len(left) >= FEWEST:
        period = loss_period(left, begin, end, lasting)
        if period.state == STEADY:
            break
        found.append((period.begin, period.end))
        left = [t for t in left if not period.begin <= t < period.end]
    return found


def counts(times: Sequence[int], begin: int, end: int) -> list[int]:
    """Losses in each piece of a window; the number of pieces gives about three losses a piece, within `PIECES`."""
    pieces = min(max(PIECES[0], len(times) // 3), PIECES[1])
    found = [0] * pieces
    for t in times:
        found[min(max((t - begin) * pieces // (end - begin), 0), pieces - 1)] += 1
    return found


def stretch(found: Sequence[int]) -> tuple[int, int, int] | None:
    """(first, after the last, number of pieces) of the stretch with the highest likelihood ratio, or None."""
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
    """(pieces with at least a third of the mean losses, and one, divided by the number that uniform losses give;
    chance that uniform losses give so few).
    """
    n, k = len(found), sum(found)
    if not k:
        return 0.0, 1.0
    part = max(1, -(-k // (3 * n)))
    seen = sum(count >= part for count in found)
    share = 1.0 - sum(_binomial(i, k, 1 / n) for i in range(part))
    # pieces are not independent; independent pieces would give so few at least as often, so this bounds the chance
    return min(1.0, seen / (n * share)), min(1.0, sum(_binomial(i, n, share) for i in range(seen + 1)))


def _likelihood(k: int, n: int) -> float:
    return k * log(k / n) if k else 0.0


def _binomial(i: int, n: int, p: float) -> float:
    if p >= 1:
        return float(i == n)
    return exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p)) if i <= n else 0.0
