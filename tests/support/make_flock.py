"""Traces as Flock's simulator writes them (confluo_tools/vote/flock.py describes the text): flows in a fat tree.

Ten pods of five ToRs (0-49) and five T1s (50-99), 25 T2s (100-124), 15 hosts per ToR (from 10000).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PODS, HALF, HOSTS = 10, 5, 15
TORS = PODS * HALF
T1, T2, HOST = TORS, 2 * TORS, 10_000
SMALLEST, LARGEST, TAIL = 8, 50_000, 1.05  # packets of a flow: a Pareto distribution
GOOD = 5e-5  # loss of a link that has not failed
BAD = (0.002, 0.02)  # and of one that has
HOT = 0.6  # share of skewed traffic that comes from two ToRs, and that goes to two ToRs
Path = tuple[int, ...]


def links() -> list[tuple[int, int]]:
    """Every cable, each with its upper end last."""
    up = [(HOST + h, h // HOSTS) for h in range(TORS * HOSTS)]
    up += [(tor, T1 + tor // HALF * HALF + i) for tor in range(TORS) for i in range(HALF)]
    return up + [
        (T1 + pod * HALF + i, T2 + i * HALF + j) for pod in range(PODS) for i in range(HALF) for j in range(HALF)
    ]


def edge_list() -> str:
    """The topology file that belongs to the traces: both directions of each cable, then the ToR of each host."""
    switches = [(a, b) for a, b in links() if a < HOST]
    lines = [f"{a} {b}" for a, b in switches] + [f"{b} {a}" for a, b in switches]
    return "\n".join([*lines, *(f"{a}->{b}" for a, b in links() if a >= HOST)]) + "\n"


def route(source: int, target: int, i: int, j: int) -> Path:
    """Switches between two ToRs, over T1 ``i`` of their pods and its T2 ``j``."""
    if source == target:
        return (source,)
    first, last = (T1 + tor // HALF * HALF + i for tor in (source, target))
    return (source, first, target) if first == last else (source, first, T2 + i * HALF + j, last, target)


@dataclass
class Trace:
    """``failed``: directed links that lose a share of the packets."""

    text: bytes
    failed: dict[tuple[int, int], float]


def trace(seed: int, failures: int, *, skewed: bool = False, flows: int = 75_000) -> Trace:
    """Flows between random hosts; ``skewed``: two ToRs send most of them and two receive most."""
    rng = np.random.default_rng(seed)
    every = links()
    failed = {}
    for k in rng.choice(len(every), failures, replace=False):
        a, b = every[k]
        failed[(a, b) if rng.random() < 0.5 else (b, a)] = float(rng.uniform(*BAD))
    ends = _ends(rng, flows, skewed)
    packets = np.minimum(SMALLEST * rng.random(flows) ** (-1 / TAIL), LARGEST).astype(int)
    choice = rng.integers(0, HALF, (flows, 2))
    tors = ends // HOSTS
    hops = 2 + 2 * (tors[:, 0] != tors[:, 1]) + 2 * (tors[:, 0] // HALF != tors[:, 1] // HALF)
    noise = rng.poisson(packets * GOOD * hops)
    out = [f"Failing_link {a} {b} {rate}" for (a, b), rate in failed.items()]
    out += [
        "FP " + " ".join(map(str, route(0, tor, i, j))) for tor in range(TORS) for i in range(HALF) for j in range(HALF)
    ]
    columns = (ends, packets, choice, noise, rng.uniform(1, 1000, flows))
    for (source, target), size, (i, j), lost, ms in zip(*(c.tolist() for c in columns), strict=True):
        path = route(source // HOSTS, target // HOSTS, i, j)
        nodes = (HOST + source, *path, HOST + target)
        lost += sum(int(rng.binomial(size, failed[link])) for link in pairwise(nodes) if link in failed)
        out.append(
            f"FID  {HOST + source} {HOST + target} {path[0]} {path[-1]} {size * 1500} 0.0\n"
            f"FPT {' '.join(map(str, path))}\nSS  {ms} {size} {lost} 0"
        )
    return Trace(("\n".join(out) + "\n").encode(), failed)


def _ends(rng: np.random.Generator, flows: int, skewed: bool) -> np.ndarray:
    """(flows, 2) host numbers from 0, never the same twice in a row."""
    ends = rng.integers(0, TORS * HOSTS, (flows, 2))
    if skewed:
        for side in (0, 1):
            hot = rng.choice(TORS, 2, replace=False)
            inside = rng.random(flows) < HOT
            ends[inside, side] = rng.choice(hot, inside.sum()) * HOSTS + ends[inside, side] % HOSTS
    same = ends[:, 0] == ends[:, 1]
    ends[same, 1] = (ends[same, 1] + 1) % (TORS * HOSTS)
    return ends
