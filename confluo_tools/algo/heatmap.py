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
    classify_dcs,
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

    ``partial``: the first or the last window, with far fewer probes than others; the log began or ended in it.
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

    Data centres (``by`` is dc) have one map, without a ``dc``.  Between two of them time is mostly distance: what
    counts there is by how much it is above ``floor``, the least median of the pair, either way, of all windows.
    """

    dc: str
    by: str
    names: tuple[str, ...]
    podsets: tuple[tuple[str, int, int], ...]
    width: int
    limits: Limits
    sheets: list[Sheet] = field(default_factory=list)
    absent: array[int] = field(default_factory=lambda: array("I"))  # cells that nobody was to probe
    floor: array[int] = field(default_factory=lambda: array("I"))  # of each cell, in `UNIT`; nothing: all are 0

    @property
    def unit(self) -> str:
        """What has a row, in words."""
        return "data centre" if self.by == "dc" else self.by

    @property
    def groups(self) -> list[tuple[int, int]]:
        return [(first, after) for _, first, after in self.podsets]

    def finish(self, probes: Sequence[int] = ()) -> None:
        """After the last cell: which windows are partial, which cells nobody was to probe.

        ``probes`` of all maps in each window: one that is empty while others are not is silent, not cut.
        """
        counts = list(probes) or [sheet.probes for sheet in self.sheets]
        for sheet, count in zip(self.sheets, counts, strict=True):
            at_end = sheet is self.sheets[0] or sheet is self.sheets[-1]
            sheet.partial = at_end and 2 * count < sorted(counts)[len(counts) // 2]
        n = len(self.names)
        # Pods are a complete graph but for a pod of one server; of the pairs of servers few are on a list.
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
        """What the sheet shows."""
        rows = self.colours(self.shades(sheet, metric) if shades is None else shades)
        if metric == "drop":
            limits = self.limits.drop_green, self.limits.drop_red
            found = drop_blocks(rows, sheet.ok, sheet.dropped, self.groups, *limits)
        else:
            found = blocks(rows, self.groups)
        return (classify_dcs if self.by == "dc" else classify)(found, [name for name, _, _ in self.podsets])


def others(chart: Map, sheet: Sheet, metric: str) -> list[tuple[str, str]]:
    """(metric, what it shows) of the other metrics, where that is neither normal nor what ``metric`` shows."""
    text = chart.pattern(sheet, metric).text
    found = [(name, chart.pattern(sheet, name).text) for name in METRICS if name != metric]
    return [(name, its) for name, its in found if its not in ("normal", text)]


def explain(pattern: Pattern, metric: str, limits: Limits, by: str = "pod") -> str:
    """A sentence on what the pattern means."""
    what = {"p50": "P50", "p99": "P99", "drop": "the drop rate"}[metric]
    limit = f"{limits.drop_red * 100:g} %" if metric == "drop" else f"{limits.red / 1e6:g} ms"
    if not set("".join(pattern.blocks)) - {"W", "."}:
        return "No probe was answered here, if any was sent."
    if by == "dc":
        far = f"above {limit}" if metric == "drop" else f"more than {limit} above the least"
        said = {
            "normal": f"In every data centre, and between all of them, {what} is fine.",
            "data centre down": "Nothing is heard from or of it: no power, cut off, or no agents.",
            "data centre cut off": "Inside it probes are answered, but none from or to the others.",
            "data centre failure": f"From it and to it {what} is {far}; the others are fine: its way out.",
            "trouble inside": f"Between data centres all is well, within it {what} is above {limit}: look at its pods.",
            "link down": "Between these two no probe is answered; both reach others.",
            "link failure": f"Between these two {what} is {far}; to others they are fine.",
            "wan down": "Inside data centres all is well, between them no probe is answered.",
            "wan failure": f"Inside data centres all is well, between them {what} is {far}.",
            "unclassified": "The colours fit no known picture.",
        }
        return " ".join(said[name] for name in dict.fromkeys(f.name for f in pattern.findings))
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
