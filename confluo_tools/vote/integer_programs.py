"""The integer programs of section 5.3 of 007, for comparison: exact, slow, and led astray by lone drops.

Both are solved by HiGHS through scipy, which is not needed for anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def binary(paths: Sequence[Sequence[int]], seconds: float = 60.0) -> list[int]:
    """Program (3): the fewest links such that each path has one of them.  RuntimeError when time runs out before one
    solution is found; ImportError without scipy.
    """
    rows = sorted({tuple(sorted(set(path))) for path in paths if path})
    if not rows:
        return []
    used = sorted({link for row in rows for link in row})
    place = {link: i for i, link in enumerate(used)}
    entries = [(i, place[link], 1.0) for i, row in enumerate(rows) for link in row]
    least: list[tuple[float, float | None]] = [(1.0, None)] * len(rows)
    found = _solve([1.0] * len(used), [1] * len(used), 1.0, entries, least, seconds)
    return [used[i] for i, x in enumerate(found) if x > 0.5]


def integer(paths: Sequence[Sequence[int]], counts: Sequence[int], seconds: float = 60.0) -> dict[int, int]:
    """Program (4): packets lost by link, which explain each flow's and add up to all, of as few links as possible."""
    worst: dict[tuple[int, ...], int] = {}
    total = 0
    for path, count in zip(paths, counts, strict=True):
        if path and count:
            total += count
            row = tuple(sorted(set(path)))
            worst[row] = max(worst.get(row, 0), count)
    if not worst:
        return {}
    used = sorted({link for row in worst for link in row})
    place = {link: i for i, link in enumerate(used)}
    n = len(used)  # columns: whether a link drops, then how much
    entries: list[tuple[int, int, float]] = []
    bounds: list[tuple[float, float | None]] = []
    for i, (row, count) in enumerate(worst.items()):
        entries += [(i, n + place[link], 1.0) for link in row]
        bounds.append((float(count), None))
    entries += [(len(bounds), n + j, 1.0) for j in range(n)]
    bounds.append((float(total), float(total)))
    for j in range(n):
        entries += [(len(bounds), j, float(total)), (len(bounds), n + j, -1.0)]
        bounds.append((0.0, None))
    cost = [1.0] * n + [0.0] * n
    found = _solve(cost, [1] * (2 * n), [1.0] * n + [float(total)] * n, entries, bounds, seconds)
    return {used[j]: round(found[n + j]) for j in range(n) if found[j] > 0.5}


def _solve(
    cost: list[float],
    whole: list[int],
    most: Any,
    entries: list[tuple[int, int, float]],
    bounds: list[tuple[float, float | None]],
    seconds: float,
) -> list[float]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    rows, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (rows, columns)), shape=(len(bounds), len(cost))).tocsr()
    low, high = [b for b, _ in bounds], [float("inf") if b is None else b for _, b in bounds]
    done = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, most),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": seconds},
    )
    if done.x is None:
        raise RuntimeError(str(done.message).partition(" (HiGHS")[0].rstrip("."))
    return [float(x) for x in done.x]
