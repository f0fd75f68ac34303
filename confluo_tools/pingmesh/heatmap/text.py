"""A heat map on a terminal: two columns per cell; shapes repeat the colours, for terminals without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluo_tools.pingmesh.heatmap.colours import METRIC_NAMES, PALETTES, clean, ranges
from confluo_tools.pingmesh.heatmap.model import CLASS, explain, others
from confluo_tools.pingmesh.heatmap.patterns import ABSENT, GREEN, NONE, RED, YELLOW

if TYPE_CHECKING:
    from confluo_tools.pingmesh.heatmap.model import Map, Sheet

SHAPES = {NONE: "  ", GREEN: "··", YELLOW: "▒▒", RED: "██", ABSENT: "  "}
_ORDER = (RED, NONE, YELLOW, GREEN)  # precedence of colours with equal counts in a place


def text_map(
    chart: Map, sheet: Sheet, metric: str, when: str, *, width: int = 79, color: bool = False, palette: str = "paper"
) -> str:
    """The map as text of at most ``width`` columns.  ``color``: with terminal escapes.

    Pods that do not fit share a place, which shows the colour of most of their cells.
    """
    from io import StringIO

    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    shades = chart.shades(sheet, metric)
    pattern = chart.pattern(sheet, metric, shades)
    rows = chart.colours(shades)
    n = len(rows)
    head = max(*map(len, chart.names), *(len(name) for name, _, _ in chart.podsets), 4)
    head = min(head, 16)
    room = max(width - head - 2, 8)
    parts = _parts(chart, room)
    each = 2 if 2 * len(parts) <= room else 1  # columns of a place
    if len(parts) == len(chart.podsets):  # podsets, or data centres: with names above the columns
        longest = max(len(name) for name, _, _ in parts) + 1
        each = longest if each < longest <= room // len(parts) else each
    elif len(parts) == n:  # few pods: wider columns, if names of podsets need them
        needed = max(-(-(len(name) + 1) // (after - first)) for name, first, after in chart.podsets)
        each = min(max(needed, each), 6) if min(max(needed, each), 6) * n <= room else each
    theme = PALETTES[palette, "light"].shades
    styles = {NONE: Style(), ABSENT: Style(), GREEN: Style(color=theme[3], bgcolor=theme[6])}
    styles |= {colour: Style(color=theme[shade], bgcolor=theme[shade]) for colour, shade in ((YELLOW, 7), (RED, 9))}

    few = {"paper": ("green", "yellow", "red"), "safe": ("blue", "yellow", "magenta")}[palette]

    def cell(colour: int) -> tuple[str, Any]:
        return SHAPES[colour][:1] * each, styles[colour]

    out = StringIO()
    console = Console(
        file=out,
        width=max(width, 20),
        force_terminal=color,
        color_system="auto" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        no_color=not color,
    )
    where = "between data centres" if chart.by == "dc" else clean(chart.dc)
    if console.color_system in ("standard", "windows"):  # the nearest colour to the palette's light green would be grey
        for colour, name in zip((GREEN, YELLOW, RED), few, strict=True):
            styles[colour] = Style(color="black" if colour == GREEN else name, bgcolor=name)
    title = " · ".join(filter(None, [METRIC_NAMES[metric], where, when]))
    console.print(Text(title, Style(bold=True)), no_wrap=True, overflow="ignore", crop=False)
    meaning = explain(pattern, metric, chart.limits, chart.by)
    console.print(Text.assemble((clean(pattern.text), Style(bold=True)), ". ", meaning))
    for other, other_text in others(chart, sheet, metric):
        console.print(Text(f"{METRIC_NAMES[other]}: {clean(other_text)} (--metric {other})", Style(bold=True)))
    console.print()
    if above := _columns(chart, parts, each).rstrip():
        console.print(Text(" " * (head + 2) + above), no_wrap=True, overflow="ignore", crop=False)
    for name, first, after in parts:
        line = Text(f"{clean(name):>{head}.{head}}  ")
        for _, left, right in parts:
            line.append(*cell(_colour(rows[first:after], left, right)))
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    console.print()
    flat, meanings = shades.translate(CLASS), ranges(metric, chart.limits, chart.by == "dc")
    legend = Text(" " * (head + 2))
    for colour in (GREEN, YELLOW, RED, NONE):
        legend.append(*(SHAPES[colour], styles[colour]) if colour != NONE else ("␣␣", Style(dim=True)))
        legend.append(f" {meanings[colour]}: {flat.count(colour):,}   ")
    legend.rstrip()
    console.print(legend, no_wrap=True, overflow="ignore", crop=False)
    if metric != "drop" and chart.by == "dc":
        console.print(
            Text(f"{' ' * (head + 2)}between two: above the lowest median of the pair in all windows"),
            no_wrap=True,
            overflow="ignore",
            crop=False,
        )
    if len(parts) < n:
        podset = parts[0][0] in {name for name, _, _ in chart.podsets}
        what = "podset" if podset else f"up to {parts[0][2]} {chart.unit}s"
        console.print(
            Text(f"{' ' * (head + 2)}a place is {what}; -o html shows each of the {n:,} {chart.unit}s"),
            no_wrap=True,
            overflow="ignore",
            crop=False,
        )
    return out.getvalue()


def _parts(chart: Map, room: int) -> list[tuple[str, int, int]]:
    """(label, first, after) of each place: pods, else podsets, else groups of pods of equal size."""
    n = len(chart.names)
    if n <= room:
        return [(name, i, i + 1) for i, name in enumerate(chart.names)]
    if 1 < len(chart.podsets) <= room:
        return list(chart.podsets)
    each = -(-n // room)
    return [(chart.names[i], i, min(i + each, n)) for i in range(0, n, each)]


def _colour(rows: list[bytes], left: int, right: int) -> int:
    """The colour of most cells; with equal counts the worst."""
    counts = {c: sum(row.count(c, left, right) for row in rows) for c in _ORDER}
    return max(_ORDER, key=counts.__getitem__) if any(counts.values()) else ABSENT


def _columns(chart: Map, parts: list[tuple[str, int, int]], each: int) -> str:
    """Names of podsets above the columns, as far as they fit; a place is ``each`` columns wide."""
    line = ""
    for name, first, after in chart.podsets:
        places = [k for k, (_, left, right) in enumerate(parts) if left < after and right > first]
        if not places or len(line) > each * places[0]:
            continue
        room = each * len(places) - 1
        shown = name if len(name) <= room else name[: room - 1] + "~" if room > 1 else ""
        line = line.ljust(each * places[0]) + shown
    return clean(line)
