"""A map of latency and drops between pods, window by window, as Pingmesh (SIGCOMM 2015) draws it: pure data.

Rows are where probes come from, columns where they go.  Green is below 4 ms, yellow up to 5 ms, red above, white:
nothing was measured.  Within green and red there are shades by octaves, so that the structure of a network shows even
while all of it is well.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from confluo_tools.algo.patterns import (
    ABSENT,
    GREEN,
    NONE,
    RED,
    YELLOW,
    Pattern,
    blocks,
    classify,
    drop_blocks,
    drop_colour,
)

METRICS = ("p50", "p99", "drop")
UNIT = 100  # ns: what latencies are counted in
MOST = (1 << 32) - 1
COUNTS = ("ok", "dropped", "overflow", "failed")

# Shades: 0 none, 1-6 green, 7 yellow, 8-12 red, 13 absent.
GREENS = (32, 16, 8, 4, 2)  # a shade ends at this part of the limit
REDS = (1.5, 2, 4, 8)  # or begins at this multiple of it
SHADES = 14
SHADE_ABSENT = SHADES - 1
CLASS = bytes([NONE, *[GREEN] * 6, YELLOW, *[RED] * 5, ABSENT]).ljust(256, b"\0")  # shade -> colour


@dataclass(frozen=True, slots=True)
class Limits:
    """Where colours end: latencies in ns, drop rates as shares."""

    green: int = 4_000_000
    red: int = 5_000_000
    drop_green: float = 5e-4
    drop_red: float = 1e-3

    def steps(self) -> list[int]:
        """The first value (in `UNIT`) of each shade of latency."""
        green, red = max(self.green // UNIT, 1), max(self.red, self.green) // UNIT
        steps = [1, *[max(green // n, 1) for n in GREENS], green, red + 1, *[int(red * n) + 1 for n in REDS]]
        return [max(steps[: i + 1]) for i in range(len(steps))]


@dataclass(slots=True)
class Sheet:
    """The cells of one window, which begins at ``start`` (ns), row by row: latencies in `UNIT` (0: none), counts.

    ``partial``: it has far fewer probes than others; the log began or ended in it.
    """

    start: int
    n: int
    p50: array[int] = field(init=False)
    p99: array[int] = field(init=False)
    ok: array[int] = field(init=False)
    dropped: array[int] = field(init=False)
    overflow: array[int] = field(init=False)
    failed: array[int] = field(init=False)
    partial: bool = False

    def __post_init__(self) -> None:
        for name in ("p50", "p99", *COUNTS):
            setattr(self, name, array("I", bytes(4 * self.n * self.n)))

    def put(self, cell: int, p50: float, p99: float, counts: Sequence[int]) -> None:
        """``p50`` and ``p99`` in ns, nan or 0 for none; ``counts``: `COUNTS`."""
        for values, ns in ((self.p50, p50), (self.p99, p99)):
            values[cell] = min(max(round(ns / UNIT), 1), MOST) if ns > 0 else 0  # nan is not above 0
        self.ok[cell], self.dropped[cell], self.overflow[cell], self.failed[cell] = [min(c, MOST) for c in counts]

    @property
    def probes(self) -> int:
        return sum(self.ok) + sum(self.failed)


@dataclass(slots=True)
class Map:
    """The pods (or podsets, servers: ``by``) of one data centre against each other, and their ``sheets``.

    ``names`` of the rows and columns, those of a podset side by side; ``podsets``: (name, first, after).
    ``width`` of a window in ns, 0: one window for all.
    """

    dc: str
    by: str
    names: tuple[str, ...]
    podsets: tuple[tuple[str, int, int], ...]
    width: int
    limits: Limits
    sheets: list[Sheet] = field(default_factory=list)
    absent: array[int] = field(default_factory=lambda: array("I"))  # cells that nobody was to probe

    @property
    def groups(self) -> list[tuple[int, int]]:
        return [(first, after) for _, first, after in self.podsets]

    def finish(self) -> None:
        """After the last cell: which windows are partial, which cells nobody was to probe."""
        counts = sorted(sheet.probes for sheet in self.sheets)
        for sheet in self.sheets:
            sheet.partial = 2 * sheet.probes < counts[len(counts) // 2]
        n = len(self.names)
        # Pods are a complete graph but for a pod of one server; of the pairs of servers few are on a list.
        never = range(n * n) if self.by == "server" else range(0, n * n, n + 1)
        for sheet in self.sheets:
            ok, failed = sheet.ok, sheet.failed
            never = [i for i in never if not ok[i] and not failed[i]]  # type: ignore[assignment]
        self.absent = array("I", never if self.sheets and n > 1 else ())

    def latest(self) -> int:
        """The number of the last sheet that is not partial."""
        return max((i for i, sheet in enumerate(self.sheets) if not sheet.partial), default=len(self.sheets) - 1)

    def shades(self, sheet: Sheet, metric: str) -> bytes:
        """The shade of each cell, row by row."""
        if metric == "drop":
            found = bytearray([1 if ok else 0 for ok in sheet.ok])
            for i, n in enumerate(sheet.dropped):
                if n:
                    found[i] = self._drop_shade(sheet.ok[i], n)
        else:
            steps = self.limits.steps()
            found = bytearray([bisect_right(steps, value) for value in getattr(sheet, metric)])
        for i in self.absent:
            found[i] = SHADE_ABSENT
        return bytes(found)

    def _drop_shade(self, ok: int, dropped: int) -> int:
        green, red = self.limits.drop_green, self.limits.drop_red
        colour, rate = drop_colour(ok, dropped, green, red), dropped / ok
        if colour == GREEN:
            return 1 + sum(rate * n >= green for n in GREENS)
        return 7 if colour == YELLOW else 8 + sum(rate >= red * n for n in REDS)

    def colours(self, shades: bytes) -> list[bytes]:
        """Rows of colours from shades."""
        n, flat = len(self.names), shades.translate(CLASS)
        return [flat[i : i + n] for i in range(0, n * n, n)]

    def pattern(self, sheet: Sheet, metric: str, shades: bytes | None = None) -> Pattern:
        """What the sheet shows."""
        rows = self.colours(self.shades(sheet, metric) if shades is None else shades)
        if metric == "drop":
            limits = self.limits.drop_green, self.limits.drop_red
            found = drop_blocks(rows, sheet.ok, sheet.dropped, self.groups, *limits)
        else:
            found = blocks(rows, self.groups)
        return classify(found, [name for name, _, _ in self.podsets])


def others(chart: Map, sheet: Sheet, metric: str) -> list[tuple[str, str]]:
    """(metric, what it shows) of the other metrics, where that is neither normal nor what ``metric`` shows."""
    text = chart.pattern(sheet, metric).text
    found = [(name, chart.pattern(sheet, name).text) for name in METRICS if name != metric]
    return [(name, its) for name, its in found if its not in ("normal", text)]


def explain(pattern: Pattern, metric: str, limits: Limits) -> str:
    """A sentence on what the pattern means."""
    what = {"p50": "P50", "p99": "P99", "drop": "the drop rate"}[metric]
    limit = f"{limits.drop_red * 100:g} %" if metric == "drop" else f"{limits.red / 1e6:g} ms"
    said = {
        "normal": f"In every podset, and between all of them, {what} of most pairs is fine.",
        "podset down": "Nothing is heard from or of it: no power, or cut off.",
        "podset failure": f"From it and to it {what} is above {limit}; the others are fine. "
        "Look at its leaf switches, or for a broadcast storm within.",
        "spine failure": f"Within podsets all is well, between them {what} is above {limit}: the spine layer.",
        "unclassified": "The colours of the podsets' blocks fit no known picture.",
    }
    return " ".join(said[name] for name in dict.fromkeys(f.name for f in pattern.findings))


def group(units: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[tuple[str, int, int], ...]]:
    """``(name, podset)`` in any order -> the names with those of a podset side by side, and where each podset is."""
    by: dict[str, list[str]] = {}
    for name, podset in units:
        by.setdefault(podset, []).append(name)
    names: list[str] = []
    podsets = []
    for podset, its in by.items():
        podsets.append((podset, len(names), len(names) + len(its)))
        names += its
    return tuple(names), tuple(podsets)
