"""One window of a heat map as a picture: SVG, and PNG rendered from it."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError
from confluo_tools.pingmesh.heatmap.colours import (
    CLASS_NAMES,
    METRIC_NAMES,
    PALETTES,
    Palette,
    clean,
    latency,
    ranges,
    rate,
)
from confluo_tools.pingmesh.heatmap.model import CLASS, SHADE_ABSENT, explain, others
from confluo_tools.pingmesh.heatmap.patterns import LETTERS, MIXED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluo_tools.pingmesh.heatmap.model import Map, Sheet
    from confluo_tools.pingmesh.heatmap.patterns import Pattern

SIDE = 720  # px: approximate width of a map
SHAPES = 100  # up to this number of pods each cell is a shape with a tooltip; beyond, the map is one image
MAX_PNG = 8192  # px: a quarter of a gigabyte while it is drawn
FONT = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif"


def svg(chart: Map, sheet: Sheet, metric: str, when: str, *, palette: str = "paper", theme: str = "light") -> str:
    """The SVG picture of one window.  ``when``: its time, formatted."""
    from html import escape

    colours = PALETTES[palette, theme]
    shades = chart.shades(sheet, metric)
    pattern = chart.pattern(sheet, metric, shades)
    n = len(chart.names)
    size = max(min(SIDE // n, 40 if n > 8 else 60), 1)  # whole pixels, so that all cells have the same size
    side = size * n
    labels = size >= 9
    longest = max(map(len, chart.names)) if labels else 0
    blocks = chart.by not in ("podset", "dc") or not labels  # names of podsets to the left of those of pods
    left = ceil(
        34
        + (max(len(name) for name, _, _ in chart.podsets) * 7.2 if blocks else 36)
        + (longest * 7 + 6 if labels else 0)
    )
    left = max(left, 96)
    top = 108 + (longest * 6 + 8 if labels else 0)
    right = 232
    map_width = max(side, 200)
    width, height = left + map_width + right, top + max(side, 250 if n < 9 else 330) + 28
    where = "between data centres" if chart.by == "dc" else chart.dc
    many = f"{n} {chart.unit}" + "s" * (n != 1)
    title = " · ".join(filter(None, [METRIC_NAMES[metric] + (" of round trips" if metric != "drop" else ""), where]))
    about = f"{when} · {many} · {sheet.probes:,} probes"
    width = ceil(max(width, 24 + max(10.6 * len(title), 6.6 * len(about)) + 24 + _pill(pattern) + 24))  # side by side
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"',
        f' height="{height:g}" font-family="{FONT}" font-size="11">',
        f"<title>{escape(f'{title}, {when}: {pattern.text}')}</title>",
        f"<desc>{escape(explain(pattern, metric, chart.limits, chart.by))}</desc>",
        "<style>" + "".join(f".s{i}{{fill:{c}}}" for i, c in enumerate(colours.shades)) + f".t{{fill:{colours.fore}}}"
        f".l{{fill:{colours.soft}}}.g{{stroke:{colours.line};fill:none}}</style>",
        f'<rect width="100%" height="100%" fill="{colours.back}"/>',
        f'<text x="24" y="36" class="t" font-size="19" font-weight="600">{escape(title)}</text>',
        f'<text x="24" y="56" class="l" font-size="12">{escape(about)}',
        "</text>",
    ]
    other_patterns = "; ".join(f"{METRIC_NAMES[m]}: {text}" for m, text in others(chart, sheet, metric))
    if other_patterns:
        out.append(f'<text x="24" y="74" class="t" font-size="12" font-weight="600">{escape(other_patterns)}</text>')
    out += _badge(pattern, colours, width - 24)
    out.append(f'<text x="24" y="{top - (8 if labels else 22)}" class="l">from ↓ to →</text>')
    out += _axes(chart, left, top, size, labels)
    out.append(f'<rect x="{left}" y="{top}" width="{side:g}" height="{side:g}" class="s{SHADE_ABSENT}"/>')
    if n <= SHAPES:
        out += _cells(chart, sheet, metric, shades, left, top, size)
    else:
        out.append(_image(shades, n, colours, left, top, side))
    out += _grid(chart, left, top, size, side, colours)
    if n > SHAPES and len(chart.podsets) <= SHAPES:
        out += _blocks(chart, shades, left, top, size)
    out += _legend(chart, metric, shades, pattern, colours, left + map_width + 28, top)
    return "\n".join([*map(clean, out), "</svg>\n"])


def _short(pattern: Pattern) -> str:
    text = pattern.text
    return text if len(text) <= 60 else text[:57] + "..."


def _pill(pattern: Pattern) -> float:
    return 7.4 * len(_short(pattern)) + 44


def _badge(pattern: Pattern, colours: Palette, right: float) -> list[str]:
    """The name of the pattern, in a rounded box at the right."""
    from html import escape

    text, wide = _short(pattern), _pill(pattern)
    fill = {"normal": 5, "unclassified": 7}.get(pattern.name, 9)
    left = right - wide
    return [
        f'<rect x="{left:g}" y="20" width="{wide:g}" height="28" rx="14" fill="{colours.panel}"',
        f' stroke="{colours.shades[fill]}" stroke-width="1.5"/>',
        f'<circle cx="{left + 17:g}" cy="34" r="5" class="s{fill}"/>',
        f'<text id="pattern" x="{left + 29:g}" y="38.5" class="t" font-size="13" font-weight="600">{escape(text)}',
        "</text>",
    ]


def _axes(chart: Map, left: float, top: float, size: float, labels: bool) -> list[str]:
    from html import escape

    out = []
    if labels:
        for i, name in enumerate(chart.names):
            at = (i + 0.5) * size
            out.append(f'<text x="{left - 6}" y="{top + at + 3.5:g}" text-anchor="end" class="l">{escape(name)}</text>')
            out.append(
                f'<text transform="translate({left + at + 3.5:g} {top - 6}) rotate(-90)" class="l">'
                f"{escape(name)}</text>"
            )
    far = 7 * max(map(len, chart.names)) + 12 if labels else 6
    free = free_x = -1.0
    for name, first, after in chart.podsets if chart.by not in ("podset", "dc") or not labels else ():
        middle, long = (first + after) / 2 * size, (after - first) * size
        shown = name if len(name) * 6.5 < max(long, 46) else name[: max(int(long / 6.5) - 1, 1)] + "…"
        if not name or middle - max(long, 14) / 2 < free:
            continue
        if long < 14:  # labels would overlap: only some podsets have one
            free = middle + 7
        out.append(
            f'<text x="{left - far}" y="{top + middle + 4:g}" text-anchor="end" class="t" font-weight="600">'
            f"{escape(name)}</text>"
        )
        half = len(shown) * 3.6
        if long >= 24 and middle - half > free_x:
            free_x = middle + half
            out.append(
                f'<text x="{left + middle:g}" y="{top - far - 2:g}" text-anchor="middle" class="t" '
                f'font-weight="600">{escape(shown)}</text>'
            )
    return out


def _cells(chart: Map, sheet: Sheet, metric: str, shades: bytes, left: float, top: float, size: float) -> list[str]:
    from html import escape

    gap = 1 if size >= 8 else 0
    names = [escape(name) for name in chart.names]
    out = []
    for i, name in enumerate(names):
        y = top + i * size
        row = []
        for j, other in enumerate(names):
            cell = i * len(names) + j
            if shades[cell] != SHADE_ABSENT:
                row.append(
                    f'<rect class="s{shades[cell]}" x="{left + j * size:g}" y="{y:g}" width="{size - gap:g}" '
                    f'height="{size - gap:g}"><title>{name} → {other}: {hover(sheet, cell, chart.floor)}</title>'
                    "</rect>"
                )
        out.append("".join(row))
    return out


def hover(sheet: Sheet, cell: int, floor: Sequence[int] = ()) -> str:
    """Values of a cell: ``P50 1.1 ms, P99 1.57 ms, 0 of 2,400 dropped``; between data centres also its floor."""
    ok, failed = sheet.ok[cell], sheet.failed[cell]
    if not ok:
        return f"none of {failed:,} probes answered" if failed else "no probes"
    values = ("P50", sheet.p50[cell]), ("P99", sheet.p99[cell])
    parts = [f"{name} {latency(value)}" for name, value in values if value]
    if floor and floor[cell]:
        parts.append(f"lowest {latency(floor[cell])}")
    parts.append(
        f"{sheet.dropped[cell]:,} of {ok:,} dropped"
        + (f" ({rate(sheet.dropped[cell], ok)})" if sheet.dropped[cell] else "")
    )
    if sheet.overflow[cell]:
        parts.append(f"{sheet.overflow[cell]:,} by the target's host")
    if failed:
        parts.append(f"{failed:,} not answered")
    return ", ".join(parts)


def _image(shades: bytes, n: int, colours: Palette, left: float, top: float, side: float) -> str:
    from base64 import b64encode

    data = b64encode(pixels(shades, n, colours)).decode()
    return (
        f'<image x="{left}" y="{top}" width="{side:g}" height="{side:g}" preserveAspectRatio="none" '
        f'image-rendering="pixelated" style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _grid(chart: Map, left: float, top: float, size: float, side: float, colours: Palette) -> list[str]:
    """Lines around the podsets."""
    lines = [f"M{left} {top}h{side:g}v{side:g}h{-side:g}z"]
    for _, first, _ in chart.podsets[1:] if len(chart.podsets) * 4 < side else ():
        at = first * size - (0.5 if size >= 8 else 0)
        lines.append(f"M{left + at:g} {top}v{side:g}M{left} {top + at:g}h{side:g}")
    return [f'<path class="g" d="{"".join(lines)}" stroke="{colours.soft}" stroke-opacity="0.6"/>']


def _blocks(chart: Map, shades: bytes, left: float, top: float, size: float) -> list[str]:
    """Tooltips of the blocks of an image: ``ps01 → ps02: 1,600 green, 12 red``."""
    from html import escape

    rows = chart.colours(shades)
    out = []
    for name, first, after in chart.podsets:
        for other, start, end in chart.podsets:
            counts = [sum(row.count(colour, start, end) for row in rows[first:after]) for colour in range(4)]
            texts = [f"{counts[i]:,} {CLASS_NAMES[i]}" for i in (3, 2, 1, 0) if counts[i]]
            out.append(
                f'<rect x="{left + start * size:g}" y="{top + first * size:g}" width="{(end - start) * size:g}" '
                f'height="{(after - first) * size:g}" fill-opacity="0"><title>{escape(name)} → {escape(other)}: '
                f"{', '.join(texts) or 'no probes expected'}</title></rect>"
            )
    return out


def _legend(
    chart: Map, metric: str, shades: bytes, pattern: Pattern, colours: Palette, x: float, y: float
) -> list[str]:
    from html import escape

    flat = shades.translate(CLASS)
    out = []
    swatches = ((0,), (1, 2, 3, 4, 5, 6), (7,), (8, 9, 10, 11, 12))
    for i, (text, class_shades) in enumerate(
        zip(ranges(metric, chart.limits, chart.by == "dc"), swatches, strict=True)
    ):
        at = y + 12 + 46 * (3 - i)
        out.append(f'<text x="{x}" y="{at}" class="t" font-size="12" font-weight="600">{escape(text)}</text>')
        for k, shade in enumerate(class_shades):
            w = 120 / len(class_shades)
            out.append(f'<rect class="s{shade}" x="{x + k * w:g}" y="{at + 6}" width="{w:g}" height="11"/>')
        out.append(
            f'<rect x="{x}" y="{at + 6}" width="120" height="11" class="g"/>'
            f'<text x="{x + 128}" y="{at + 15.5}" class="l">{flat.count(i):,}</text>'
        )
    if metric != "drop" and chart.by == "dc":
        out.append(
            f'<text x="{x}" y="{y + 200}" class="l">between two: above the lowest</text>'
            f'<text x="{x}" y="{y + 215}" class="l">median of the pair in all windows</text>'
        )
    if 1 < len(pattern.podsets) <= 40 and chart.by not in ("podset", "dc"):
        at, size = y + 216, max(min(120 // len(pattern.podsets), 22), 3)
        out.append(f'<text x="{x}" y="{at - 8}" class="l">blocks of podsets</text>')
        for i, row in enumerate(pattern.blocks):
            for j, letter in enumerate(row):
                shade = (0, 4, 7, 9, SHADE_ABSENT)[LETTERS.index(letter)] if letter != MIXED else SHADE_ABSENT
                edge = f' stroke="{colours.line}" stroke-width="0.5"' if size > 5 else ""
                out.append(
                    f'<rect class="s{shade}" x="{x + j * size}" y="{at + i * size}" '
                    f'width="{size - (size > 5)}" height="{size - (size > 5)}"{edge}/>'
                )
    return out


# ---------------------------------------------------------------- PNG


def pixels(shades: bytes, n: int, colours: Palette) -> bytes:
    """A PNG with one pixel per cell."""
    from zlib import compress, crc32

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + crc32(kind + data).to_bytes(4, "big")

    rows = b"".join([b"\0" + shades[i : i + n] for i in range(0, n * n, n)])
    head = n.to_bytes(4, "big") * 2 + bytes([8, 3, 0, 0, 0])  # 8 bits, a palette
    table = b"".join([bytes.fromhex(c[1:]) for c in colours.shades])
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"PLTE", table)
        + chunk(b"IDAT", compress(rows, 6))
        + chunk(b"IEND", b"")
    )


def png(text: str, scale: float = 2.0) -> bytes:
    """The SVG rendered with ``scale`` pixels per pixel of the SVG, at most `MAX_PNG` wide and high.

    Raises ConfluoError when no renderer is installed.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise ConfluoError(
            "PNG needs the package resvg-py", hint="pip install 'confluo-tools[pingmesh]', or use -o svg"
        ) from None
    width, height = map(float, text.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    scale = min(scale, MAX_PNG / max(width, height))
    return bytes(svg_to_bytes(svg_string=text, width=round(width * scale), height=round(height * scale)))
