"""Patterns of drops where some blocks are green by chance: what explains all counts, judged by their likelihood.

A block has a few thousand probes and, at a fault of one packet in a thousand, a few drops; one of twelve such blocks is
green by chance now and then.  `likely_pattern` is the second look at a map without a known pattern:

- ``ToR failure``: all cells from and to one pod drop alike, and without them the map is green.  In a small podset only
  the podset's own block is red, because its pod is a small part of all others;
- ``spine failure`` and ``podset failure``: most blocks of the pattern are red, and no other block of it is
  improbably green at their common rate.

The pattern must be 20 times as likely as any other; else the map stays unclassified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import NamedTuple

from confluo_tools.pingmesh.analysis.sla import binomial_tail
from confluo_tools.pingmesh.heatmap.patterns import (
    BACKGROUND,
    CHANCE,
    FAILURE,
    LETTERS,
    RED,
    SPINE,
    TOR,
    Pattern,
    PatternFinding,
    at_least,
    drop_colour,
)

MARGIN = log(20)  # minimum difference of log likelihoods to the next pattern
GREEN_BY_CHANCE = 1e-3  # minimum chance of the drops of a block, or fewer, at the rate of its pattern


class Drops(NamedTuple):
    """Answered probes (``ok``), and of these those that were dropped."""

    ok: int = 0
    dropped: int = 0

    def plus(self, other: Drops) -> Drops:
        return Drops(self.ok + other.ok, self.dropped + other.dropped)

    def minus(self, other: Drops) -> Drops:
        return Drops(self.ok - other.ok, self.dropped - other.dropped)

    @property
    def rate(self) -> float:
        return self.dropped / self.ok if self.ok else 0.0

    @property
    def likelihood(self) -> float:
        """Logarithm, at the best rate."""
        k, n = min(self.dropped, self.ok), self.ok
        return sum(part * log(part / n) for part in (k, n - k) if part)

    def may_have(self, rate: float) -> bool:
        """Whether as few drops are probable at this rate."""
        return 1 - binomial_tail(self.dropped + 1, self.ok, rate) >= GREEN_BY_CHANCE


def likely_pattern(
    pattern: Pattern,
    ok: Sequence[int],
    dropped: Sequence[int],
    groups: Sequence[tuple[int, int]],
    pods: Sequence[str],
    green: float,
    red: float,
) -> Pattern:
    """The pattern that explains a map of drops without a name, or ``pattern``.

    ``ok`` and ``dropped``: cell by cell, row by row; ``groups``: (first, after) of each podset; ``pods``: names of the
    rows, empty if they are not pods.
    """
    n, letters = groups[-1][1] if groups else 0, pattern.blocks

    def of(rows: Iterable[int], columns: Sequence[int]) -> Drops:
        cells = [i * n + j for i in rows for j in columns]
        return Drops(sum(ok[c] for c in cells), sum(dropped[c] for c in cells))

    def is_red(drops: Drops) -> bool:
        return drop_colour(drops.ok, drops.dropped, green, red) == RED

    ranges = [range(*group) for group in groups]
    blocks = [[of(rows, columns) for columns in ranges] for rows in ranges]
    every = [(i, j) for i in range(len(groups)) for j in range(len(groups))]
    all_ = _sum(blocks[i][j] for i, j in every)
    found: list[tuple[float, PatternFinding | None]] = []  # None: does not explain the map

    shapes = [(SPINE, "", {(i, j) for i, j in every if i != j})]
    shapes += [(FAILURE, name, {(i, j) for i, j in every if k in (i, j)}) for k, name in enumerate(pattern.podsets)]
    for name, podset, cross in shapes if len(groups) > 1 else ():
        inside = [(blocks[i][j], letters[i][j]) for i, j in cross if letters[i][j] != LETTERS[-1]]
        both = _sum(drops for drops, _ in inside)
        rest = all_.minus(both) if inside else all_
        possible = (
            is_red(both)
            and 2 * sum(letter == "R" for _, letter in inside) > len(inside)
            and all(letters[i][j] in ("G", LETTERS[-1]) for i, j in set(every) - cross)
            and all(letter != "W" and drops.may_have(both.rate) for drops, letter in inside)
        )
        found.append((both.likelihood + rest.likelihood, PatternFinding(name, podset) if possible else None))

    whole = range(n)
    for (first, after), podset in zip(groups, pattern.podsets, strict=True) if pods else ():
        for pod in range(first, after) if after - first > 1 else ():
            parts = [of([pod], columns).plus(of([i for i in columns if i != pod], [pod])) for columns in ranges]
            inside_ = _sum(parts)
            rest = all_.minus(inside_)
            possible = (
                is_red(inside_)
                and rest.ok > 0
                and (rest.rate < green or at_least(rest.dropped, rest.ok * BACKGROUND) >= CHANCE)
                and not any("W" in line for line in letters)
                and all(part.may_have(inside_.rate) for part in (*parts, of([pod], whole), of(whole, [pod])))
            )
            one = PatternFinding(TOR, podset, pod=pods[pod]) if possible else None
            found.append((inside_.likelihood + rest.likelihood, one))
    found.sort(key=lambda one: one[0], reverse=True)
    if not found or found[0][1] is None or (len(found) > 1 and found[0][0] - found[1][0] < MARGIN):
        return pattern
    return Pattern((found[0][1],), pattern.podsets, letters)


def _sum(drops: Iterable[Drops]) -> Drops:
    total = Drops()
    for one in drops:
        total = total.plus(one)
    return total
