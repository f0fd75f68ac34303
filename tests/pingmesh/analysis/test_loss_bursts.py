"""Losses in time: what lasts and what is over, against drawn ones; the arithmetic against scipy."""

from __future__ import annotations

from random import Random

import pytest
import scipy  # loads scipy.stats at its first use
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confluo_tools.pingmesh.analysis import loss_bursts
from confluo_tools.pingmesh.analysis.loss_bursts import BURST, NEW, STEADY, burst_periods, loss_period

SECOND, MINUTE = 10**9, 60 * 10**9
SPAN = 10 * MINUTE


def drawn(seed: int, *parts: tuple[int, int, int]) -> list[int]:
    """(how many, from, to) in seconds, uniformly."""
    r = Random(seed)
    return [r.randrange(low * SECOND, high * SECOND) for count, low, high in parts for _ in range(count)]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**9), st.integers(1, 400))
def test_uniform_losses_are_steady(seed: int, count: int) -> None:
    """One of a thousand may look like a stretch of its own; then it lasts for most of the time."""
    found = loss_period(drawn(seed, (count, 0, 600)), 0, SPAN)
    assert found.state == STEADY


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**9), st.integers(10, 400), st.integers(1, 60), st.integers(0, 540), st.integers(0, 10))
def test_a_burst_is_one_wherever_it_is(seed: int, count: int, long: int, start: int, noise: int) -> None:
    times = drawn(seed, (count, start, start + long), (min(noise, count // 10), 0, 600))
    found = loss_period(times, 0, SPAN)
    assert found.state in (BURST, NEW) if start + long > 480 else found.state == BURST
    inside = sum(found.begin <= t < found.end for t in times if start * SECOND <= t < (start + long) * SECOND)
    assert inside > 0.5 * count  # of one with gaps, the largest part
    assert found.end - found.begin < (long + 120) * SECOND  # pieces are 30 s, and noise may be near


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("parts", "state"),
    [
        (((40, 300, 600), (4, 0, 300)), STEADY),  # began in the middle
        (((40, 0, 300), (4, 300, 600)), STEADY),  # was repaired
        (((60, 120, 360),), STEADY),  # and both
        (((40, 560, 600), (4, 0, 560)), NEW),
        (((40, 0, 40), (4, 40, 600)), BURST),
        (((200, 0, 600), (300, 200, 400)), STEADY),  # worse at times, but no burst: the rest is half of it
        (tuple((10, at, at + 2) for at in range(15, 600, 60)), BURST),
    ],
)
def test_when_it_began_and_when_it_was_over(parts: tuple[tuple[int, int, int], ...], state: str, seed: int) -> None:
    assert loss_period(drawn(seed, *parts), 0, SPAN).state == state


def test_a_day_and_a_second_are_looked_at_alike() -> None:
    """Half a minute of a day is a burst, three hours are not; in four seconds of a lab, one second lasts."""
    day = 86400
    assert loss_period(drawn(1, (300, 40_000, 40_030), (200, 0, day)), 0, day * SECOND).state == BURST
    hours = loss_period(drawn(2, (3000, 40_000, 50_800), (200, 0, day)), 0, day * SECOND)
    assert hours.state == STEADY
    assert abs(hours.begin - 40_000 * SECOND) < 600 * SECOND
    assert abs(hours.end - 50_800 * SECOND) < 600 * SECOND
    assert loss_period([t // 1000 for t in drawn(3, (40, 1000, 3000))], 0, 4 * SECOND).state == STEADY


def test_the_limit_is_ones_own() -> None:
    times = drawn(4, (100, 100, 200))
    assert [loss_period(times, 0, SPAN, lasting).state for lasting in (0, 60 * SECOND, 300 * SECOND)] == [
        STEADY,
        STEADY,
        BURST,
    ]


def covered(spans: list[tuple[int, int]]) -> int:
    """The time in at least one of the spans, ns: one that is found later may contain others."""
    total, until = 0, 0
    for low, high in sorted(spans):
        total += max(high - max(low, until), 0)
        until = max(until, high)
    return total


@settings(deadline=None, max_examples=50)
@example(44, [30, 32, 31, 33, 36, 34, 35, 37])
@given(st.integers(0, 10**9), st.lists(st.integers(1, 58), unique=True, min_size=1, max_size=8))
def test_each_burst_is_set_aside_and_what_lasts_is_left(seed: int, at: list[int]) -> None:
    parts = [(60, 10 * i, 10 * i + 3) for i in at]
    times = drawn(seed, *parts, (30, 0, 600))
    spans = burst_periods(times, 0, SPAN)
    left = [t for t in times if not any(low <= t < high for low, high in spans)]
    assert loss_period(left, 0, SPAN).state == STEADY or len(left) < loss_bursts.FEWEST
    assert covered(spans) < (10 * (max(at) - min(at)) + 60) * SECOND
    assert len(left) < 30 + 60 * len(at) * 0.2


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40))
def test_the_spread_is_that_of_scipy(counts: list[int]) -> None:
    held, chance = loss_bursts.spread(counts)
    n, k = len(counts), sum(counts)
    if not k:
        assert (held, chance) == (0.0, 1.0)
        return
    part = max(1, -(-k // (3 * n)))
    share = float(scipy.stats.binom.sf(part - 1, k, 1 / n))
    seen = sum(c >= part for c in counts)
    assert held == pytest.approx(min(1, seen / (n * share)), rel=1e-6)
    assert chance == pytest.approx(min(1, float(scipy.stats.binom.cdf(seen, n, share))), rel=1e-6, abs=1e-12)


@given(st.lists(st.integers(0, 60), min_size=3, max_size=14))
def test_the_stretch_is_the_likeliest_of_all(counts: list[int]) -> None:
    """Tried one by one, with the logarithms of multinomial likelihoods."""
    from math import log

    n, k = len(counts), sum(counts)
    best, where = 0.0, None
    for first in range(n):
        for last in range(first + 1, n + 1):
            inside, long = sum(counts[first:last]), last - first
            if long == n or inside * (n - long) < loss_bursts.CONTRAST * (k - inside) * long:
                continue
            p = inside / k if k else 0
            gain = sum(
                c * log(q / pieces * n) for c, q, pieces in ((inside, p, long), (k - inside, 1 - p, n - long)) if c
            )
            if gain >= loss_bursts.GAIN and gain > best + 1e-9:
                best, where = gain, (first, last, n)
    found = loss_bursts.stretch(counts)
    assert (found is None) == (where is None)
    if found is not None and found != where:
        first, last, _ = found
        inside, long = sum(counts[first:last]), last - first
        rest = (k - inside) * log((k - inside) / k / (n - long) * n) if k > inside else 0
        assert inside * log(inside / k / long * n) + rest == pytest.approx(best)
