"""A chart as SVG: one panel for each measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from confluo_tools.chart.model import Chart, about, highest, label, lowest
from confluo_tools.chart.scale import some, time_text, time_ticks, value_ticks
from confluo_tools.units import format_time, value_text

WIDTH, LEFT, RIGHT, TOP = 960, 84, 36, 66  # px; WIDTH is that of the plot and its margins
PANEL, GAP = 190, 46  # px: the height of a panel of lines, and between panels
ROW = 22  # px: the height of a bar and the space around it
NAME = 250  # px: room for the names of bars
LETTER = 7  # px: the width of a letter, on average at most
TIPS = 2000  # positions with a tooltip
FONT = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Arial, sans-serif"
# Colours that colour-blind people can distinguish (Tol's bright scheme, and two more).
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99")
STYLE = """text{fill:var(--fore)}.soft{fill:var(--soft)}.grid{stroke:var(--line);stroke-width:1;fill:none}
.tip{fill:transparent}.tip:hover{fill:var(--line);fill-opacity:.45}
svg{--back:#fff;--fore:#1b1f24;--soft:#5c6670;--line:#dfe3e8}
@media(prefers-color-scheme:dark){svg{--back:#171b21;--fore:#e8ebef;--soft:#98a2ad;--line:#39414b}}"""


def svg(chart: Chart, local: bool = False) -> Iterator[str]:
    """The text of the picture."""
    legend = _legend(chart)
    top = TOP + (20 * (1 + max([row for row, _, _, _ in legend])) if legend else 0)
    count = len(chart.measures)
    tall = count * (PANEL + GAP) if chart.times else count * (len(chart.lines) * ROW + GAP)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + tall + 8}" width="{WIDTH}" '
        f'height="{top + tall + 8}" font-family="{FONT}" font-size="12" role="img">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" style="fill:var(--back)"/>\n'
        f'<text x="16" y="26" font-size="15" font-weight="600">{_clean(chart.title)}</text>\n'
        f'<text x="{WIDTH - 16}" y="26" text-anchor="end" class="soft">{_clean(about(chart, local))}</text>\n'
    )
    for row, x, name, colour in legend:
        y = TOP - 14 + 20 * row
        yield (
            f'<rect x="{x:g}" y="{y - 9}" width="12" height="10" rx="2" fill="{colour}"/>'
            f'<text x="{x + 17:g}" y="{y}">{_clean(name)}</text>\n'
        )
    for number in range(count):
        if chart.times:
            yield from _lines(chart, number, top + number * (PANEL + GAP), local)
        else:
            yield from _bars(chart, number, top + number * (len(chart.lines) * ROW + GAP))
    yield "</svg>\n"


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _clean(text: str, letters: int = 120) -> str:
    # Control characters are not allowed in XML, and names come from the input.
    text = "".join([c if c.isprintable() else "�" for c in text])
    return escape(text if len(text) <= letters else text[: letters - 1] + "…")


def _legend(chart: Chart) -> list[tuple[int, float, str, str]]:
    """(row, x, name, colour) of the lines; empty for a single line without a name, and for bars."""
    if not chart.times or not chart.keys:
        return []
    out = []
    x, row = 16.0, 0
    for number, line in enumerate(chart.lines):
        wide = 17 + LETTER * min(len(label(line)), 120) + 22
        if x > 16 and x + wide > WIDTH - 16:
            x, row = 16.0, row + 1
        out.append((row, x, label(line), colour(number)))
        x += wide
    return out


def _lines(chart: Chart, measure: int, top: float, local: bool) -> Iterator[str]:
    unit, name = chart.measures[measure].unit, chart.measures[measure].name
    ticks = value_ticks(lowest(chart.lines, measure), highest(chart.lines, measure))
    low, high = ticks[0], ticks[-1]
    first, last = chart.times[0], chart.times[-1]
    wide, base = WIDTH - LEFT - RIGHT, top + PANEL
    step = wide / max(len(chart.times) - 1, 1)

    def x(i: int) -> float:
        return LEFT + (wide * (chart.times[i] - first) / (last - first) if last > first else wide / 2)

    def y(value: float) -> float:
        return base - PANEL * (value - low) / (high - low)

    yield f'<g class="panel"><text x="{LEFT}" y="{top - 8}" font-weight="600">{_clean(name)}</text>\n'
    for tick in ticks:
        yield f'<path class="grid" d="M{LEFT} {y(tick):.1f}h{wide}"/>'
        text = _clean(value_text(tick, unit))
        yield f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" class="soft">{text}</text>\n'
    times = time_ticks(first, last, local=local) if chart.even else some(chart.times)
    apart = times[1] - times[0] if len(times) > 1 else chart.step
    for t in times:
        at = LEFT + (wide * (t - first) / (last - first) if last > first else wide / 2)
        yield f'<path class="grid" d="M{at:.1f} {top}v{PANEL + 4}"/>'
        text = time_text(t, apart, local)
        yield f'<text x="{at:.1f}" y="{base + 18}" text-anchor="middle" class="soft">{text}</text>\n'
    for number, line in enumerate(chart.lines):
        values = line.values[measure]
        points = [None if v is None else (x(i), y(v)) for i, v in enumerate(values)]
        if len(chart.lines) == 1 and len(points) > 1:
            for part in _parts(points):
                area = "".join([f"L{px:.1f} {py:.1f}" for px, py in part])
                yield f'<path d="M{part[0][0]:.1f} {y(max(low, 0)):.1f}{area}V{y(max(low, 0)):.1f}z" '
                yield f'fill="{colour(number)}" fill-opacity=".18"/>'
        drawn = ""
        for part in _parts(points):
            path = "L".join([f"{px:.1f} {py:.1f}" for px, py in part])
            drawn += f"M{path}" + ("h.01" if len(part) == 1 else "")  # a single value is a dot
        yield (
            f'<path class="line" d="{drawn}" fill="none" stroke="{colour(number)}" stroke-width="1.8" '
            'stroke-linejoin="round" stroke-linecap="round"/>\n'
        )
    if len(chart.times) <= TIPS:
        for i, t in enumerate(chart.times):
            said = [
                f"{label(n) + ': ' if chart.keys else ''}{value_text(n.values[measure][i], unit)}" for n in chart.lines
            ]
            text = "\n".join([format_time(t, 3 if chart.step % 10**9 else 0, local), *said])
            yield (
                f'<rect class="tip" x="{max(x(i) - step / 2, LEFT):.1f}" y="{top}" '
                f'width="{min(step, wide):.2f}" height="{PANEL}"><title>{_clean_lines(text)}</title></rect>\n'
            )
    yield "</g>\n"


def _clean_lines(text: str) -> str:
    return "\n".join([_clean(line) for line in text.split("\n")])


def _parts(points: Sequence[tuple[float, float] | None]) -> Iterator[list[tuple[float, float]]]:
    """Runs of points without a gap."""
    part: list[tuple[float, float]] = []
    for point in [*points, None]:
        if point is not None:
            part.append(point)
        elif part:
            yield part
            part = []


def _bars(chart: Chart, measure: int, top: float) -> Iterator[str]:
    unit, name = chart.measures[measure].unit, chart.measures[measure].name
    low, high = lowest(chart.lines, measure), highest(chart.lines, measure) or 1.0
    left = 16 + min(NAME, max([LETTER * len(label(line)) for line in chart.lines], default=0.0)) + 8
    wide = WIDTH - left - 90
    zero = left + wide * (0 - low) / (high - low)
    yield f'<g class="panel"><text x="16" y="{top - 2}" font-weight="600">{_clean(name)}</text>\n'
    for number, line in enumerate(chart.lines):
        y = top + 6 + number * ROW
        value = line.values[measure][0]
        at = left + wide * ((value or 0) - low) / (high - low)
        shown = _clean(label(line), int(NAME / LETTER)) if chart.keys else "all"
        text = _clean(value_text(value, unit))
        start, size = min(zero, at), abs(at - zero)
        yield (
            f'<text x="{left - 8:.1f}" y="{y + 14}" text-anchor="end">{shown}</text>'
            f'<rect class="bar" x="{start:.1f}" y="{y + 2}" width="{max(size, 0.5):.1f}" height="{ROW - 6}" rx="2" '
            f'fill="{colour(measure)}"><title>{_clean(label(line))}: {text}</title></rect>'
            f'<text x="{start + size + 6:.1f}" y="{y + 14}" class="soft">{text}</text>\n'
        )
    yield "</g>\n"
