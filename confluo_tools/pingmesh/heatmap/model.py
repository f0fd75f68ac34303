"""A map of latency and drops between pods, window by window, as Pingmesh (SIGCOMM 2015) draws it: pure data.

Rows are sources of probes, columns destinations.  Green is below 4 ms, yellow up to 5 ms, red above, white without
data.  Green and red have shades by octaves, so that the structure of a healthy network is visible.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluo_tools.pingmesh.heatmap.drop_patterns import likely_pattern
from confluo_tools.pingmesh.heatmap.patterns import (
    ABSENT,
    GREEN,
    NONE,
    RED,
    UNCLASSIFIED,
    YELLOW,
    Pattern,
    blocks,
    classify,
    classify_dcs,
    drop_blocks,
    drop_colour,
)

METRICS = ("p50", "p99", "drop")
UNIT = 100  # ns, of latencies
MAX_U32 = (1 << 32) - 1
COUNTS = ("ok", "dropped", "overflow", "failed")

# Shades: 0 none, 1-6 green, 7 yellow, 8-12 red, 13 absent.
GREENS = (32, 16, 8, 4, 2)  # a green shade ends at limit / n
REDS = (1.5, 2, 4, 8)  # a red shade begins at limit * n
SHADES = 14
SHADE_ABSENT = SHADES - 1
CLASS = bytes([NONE, *[GREEN] * 6, YELLOW, *[RED] * 5, ABSENT]).ljust(256, b"\0")  # shade -> colour


class PodsetRange(NamedTuple):
    """The rows (and columns) ``first`` to ``after`` - 1 of a podset."""

    name: str
    first: int
    after: int


@dataclass(frozen=True, slots=True)
class ColourLimits:
    """Limits of the colours: latencies in ns, drop rates as shares."""

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
    """The cells of the window that begins at ``start`` (ns), row by row: latencies in `UNIT` (0: none), counts.

    ``partial``: the first or last window, with far fewer probes than others: the log begins or ends in it.
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
        """Set a cell: ``p50`` and ``p99`` in ns, nan or 0 for none; ``counts``: `COUNTS`."""
        for values, ns in ((self.p50, p50), (self.p99, p99)):
            values[cell] = min(max(round(ns / UNIT), 1), MAX_U32) if ns > 0 else 0  # nan is not above 0
        self.ok[cell], self.dropped[cell], self.overflow[cell], self.failed[cell] = [min(c, MAX_U32) for c in counts]

    @property
    def probes(self) -> int:
        return sum(self.ok) + sum(self.failed)


@dataclass(slots=True)
class Map:
    """The cells between the pods (or podsets, servers: ``by``) of one data centre, a ``sheets`` entry per window.

    ``names``: of rows and columns, grouped by podset; ``podsets``: the range of each group.
    ``width``: length of a window in ns; 0: a single window.

    Data centres (``by`` is dc) have one map, with an empty ``dc``.  Latency between them is mostly distance, so it is
    judged by its excess over ``floor``, the lowest median of the pair, either way, in all windows.
    """

    dc: str
    by: str
    names: tuple[str, ...]
    podsets: tuple[PodsetRange, ...]
    width: int
    limits: ColourLimits
    sheets: list[Sheet] = field(default_factory=list)
    absent: array[int] = field(default_factory=lambda: array("I"))  # cells without expected probes
    floor: array[int] = field(default_factory=lambda: array("I"))  # of each cell, in `UNIT`; empty: all are 0

    @property
    def unit(self) -> str:
        """The unit of a row, in words."""
        return "data centre" if self.by == "dc" else self.by

    @property
    def groups(self) -> list[tuple[int, int]]:
        return [(first, after) for _, first, after in self.podsets]

    def finish(self, probes: Sequence[int] = ()) -> None:
        """Compute ``partial``, ``absent`` and ``floor`` after the last cell.

        ``probes``: of all maps in each window; a map without probes in a window in which others have some is silent,
        not partial.
        """
        counts = list(probes) or [sheet.probes for sheet in self.sheets]
        for sheet, count in zip(self.sheets, counts, strict=True):
            at_end = sheet is self.sheets[0] or sheet is self.sheets[-1]
            sheet.partial = at_end and 2 * count < sorted(counts)[len(counts) // 2]
        n = len(self.names)
        # All pairs of pods are probed, except within a pod of one server; of the pairs of servers only a few.
        never = range(n * n) if self.by == "server" else range(0, n * n, n + 1)
        for sheet in self.sheets:
            ok, failed = sheet.ok, sheet.failed
            never = [i for i in never if not ok[i] and not failed[i]]  # type: ignore[assignment]
        self.absent = array("I", never if self.sheets and n > 1 else ())
        if self.by == "dc":
            self.floor = array("I", bytes(4 * n * n))
            for i in range(n * n):
                back = i % n * n + i // n
                known = [sheet.p50[k] for sheet in self.sheets for k in (i, back) if sheet.p50[k]]
                self.floor[i] = min(known) if known and i != back else 0

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
            values = getattr(sheet, metric)
            if self.floor:
                values = [max(value - low, 1) if value else 0 for value, low in zip(values, self.floor, strict=True)]
            found = bytearray([bisect_right(steps, value) for value in values])
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
        """The pattern of a sheet."""
        rows = self.colours(self.shades(sheet, metric) if shades is None else shades)
        if metric == "drop":
            limits = self.limits.drop_green, self.limits.drop_red
            found = drop_blocks(rows, sheet.ok, sheet.dropped, self.groups, *limits)
            pattern = classify(found, [name for name, _, _ in self.podsets])
            if self.by != "dc" and pattern.name == UNCLASSIFIED:
                pods = self.names if self.by == "pod" else ()
                return likely_pattern(pattern, sheet.ok, sheet.dropped, self.groups, pods, *limits)
        else:
            found = blocks(rows, self.groups)
        return (classify_dcs if self.by == "dc" else classify)(found, [name for name, _, _ in self.podsets])


def others(chart: Map, sheet: Sheet, metric: str) -> list[tuple[str, str]]:
    """(metric, pattern) of the other metrics, unless it is normal or the pattern of ``metric``."""
    text = chart.pattern(sheet, metric).text
    found = [(name, chart.pattern(sheet, name).text) for name in METRICS if name != metric]
    return [(name, other) for name, other in found if other not in ("normal", text)]


def explain(pattern: Pattern, metric: str, limits: ColourLimits, by: str = "pod") -> str:
    """The meaning of a pattern, in a sentence."""
    what = {"p50": "P50", "p99": "P99", "drop": "the drop rate"}[metric]
    limit = f"{limits.drop_red * 100:g} %" if metric == "drop" else f"{limits.red / 1e6:g} ms"
    if not set("".join(pattern.blocks)) - {"W", "."}:
        return "No probe was answered, if any was sent."
    if by == "dc":
        far = f"above {limit}" if metric == "drop" else f"more than {limit} above the lowest"
        sentences = {
            "normal": f"Within and between all data centres {what} is good.",
            "data centre down": "No probes from it and no answers: power loss, cut off, or no agents.",
            "data centre cut off": "Probes within it are answered, but none from or to the others.",
            "data centre failure": f"From and to it {what} is {far}; the others are good: its uplinks.",
            "trouble inside": f"Within it {what} is above {limit}, between data centres it is good: check its pods.",
            "link down": "No probe between these two is answered; both reach others.",
            "link failure": f"Between these two {what} is {far}; to others it is good.",
            "wan down": "Within data centres all is good; no probe between them is answered.",
            "wan failure": f"Within data centres all is good; between them {what} is {far}.",
            "unclassified": "The colours match no known pattern.",
        }
        return " ".join(sentences[name] for name in dict.fromkeys(f.name for f in pattern.findings))
    sentences = {
        "normal": f"Within and between all podsets {what} of most pairs is good.",
        "podset down": "No probes from it and no answers: power loss, or cut off.",
        "podset failure": f"From and to it {what} is above {limit}; the others are good. "
        "Check its leaf switches, and for a broadcast storm in it.",
        "spine failure": f"Within podsets {what} is good, between them it is above {limit}: the spine layer.",
        "ToR failure": f"From and to this pod {what} is above {limit}; without it all is good: its ToR switch.",
        "unclassified": "The colours of the podsets' blocks match no known pattern.",
    }
    return " ".join(sentences[name] for name in dict.fromkeys(f.name for f in pattern.findings))


def group(units: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[PodsetRange, ...]]:
    """(names grouped by podset, range of each podset) from ``(name, podset)`` in any order."""
    by: dict[str, list[str]] = {}
    for name, podset in units:
        by.setdefault(podset, []).append(name)
    names: list[str] = []
    podsets = []
    for podset, members in by.items():
        podsets.append(PodsetRange(podset, len(names), len(names) + len(members)))
        names += members
    return tuple(names), tuple(podsets)
