"""Patterns of drops where blocks are green by chance, and ToRs; cells are drawn at known rates."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from confluo_tools.pingmesh.heatmap import patterns
from confluo_tools.pingmesh.heatmap.drop_patterns import likely_pattern

PODSETS = ["ps1", "ps2", "ps3"]
Rate = Callable[[int, int], float]


def seen(rate: Rate, pods: int, probes: int, seed: int) -> tuple[str, str]:
    """The pattern by colours alone, and by `likely_pattern`; ``rate``: of a cell, by row and column."""
    rng, n = random.Random(seed), 3 * pods
    ok = [probes] * (n * n)
    dropped = [sum(rng.random() < rate(i, j) for _ in range(probes)) for i in range(n) for j in range(n)]
    flat = patterns.drop_colours(ok, dropped, 5e-4, 1e-3)
    groups = [(k * pods, k * pods + pods) for k in range(3)]
    rows = [flat[i : i + n] for i in range(0, n * n, n)]
    found = patterns.classify(patterns.drop_blocks(rows, ok, dropped, groups, 5e-4, 1e-3), PODSETS)
    names = [f"p{i}" for i in range(n)]
    return found.text, likely_pattern(found, ok, dropped, groups, names, 5e-4, 1e-3).text if (
        found.name == patterns.UNCLASSIFIED
    ) else found.text


@pytest.mark.parametrize("loss", [0.03, 0.08])
@pytest.mark.parametrize("seed", range(6))
def test_a_tor_is_named(loss: float, seed: int) -> None:
    """Both ways through a ToR that drops 1.5 % or 4 %."""
    first, found = seen(lambda i, j: loss if 2 in (i, j) else 2e-5, 2, 600, seed)
    assert (first, found) == ("unclassified", "ToR failure: p2")


@pytest.mark.parametrize(("loss", "least"), [(4e-3, 12), (2e-3, 6)])
def test_a_spine_with_blocks_that_are_green_by_chance(loss: float, least: int) -> None:
    both = [seen(lambda i, j: loss if i // 2 != j // 2 else 2e-5, 2, 800, seed) for seed in range(12)]
    assert sum(first == "unclassified" for first, _ in both) >= 3
    assert {found for _, found in both} <= {"spine failure", "unclassified"}
    assert sum(found == "spine failure" for _, found in both) >= least


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "rate",
    [
        lambda i, j: 0.03 if 2 in (i, j) or i // 2 != j // 2 else 2e-5,  # a ToR and the spine
        lambda i, j: 0.03 if 2 in (i, j) or 5 in (i, j) else 2e-5,  # two ToRs
        lambda i, j: 0.03 if i == 2 else 2e-5,  # one way only
        lambda i, j: 0.03 if i // 2 == 0 and j // 2 == 1 else 2e-5,  # one block
    ],
)
def test_what_no_pattern_explains(rate: Rate, seed: int) -> None:
    _, found = seen(rate, 2, 2000, seed)
    assert found in ("unclassified", "normal")
