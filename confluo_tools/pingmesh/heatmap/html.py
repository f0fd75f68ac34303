"""Heat maps as one self-contained HTML page: no server, no network, no other file.

The page (``page/``: html, css, js) contains a head in JSON and two compressed blobs for each window: the shades of
its cells for each metric, and their values, which are unpacked when they are shown.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import compress

from confluo_tools.pingmesh.heatmap.colours import METRIC_NAMES, NAMES, PALETTES, THEMES, ranges
from confluo_tools.pingmesh.heatmap.model import CLASS, COUNTS, METRICS, SHADES, UNIT, explain
from confluo_tools.pingmesh.heatmap.patterns import ABSENT, Pattern
from confluo_tools.units import time_zone

if TYPE_CHECKING:
    from confluo_tools.pingmesh.heatmap.model import Map, Sheet

PAIR = ("window", "cell", "src", "dst", "ok", "dropped", "overflow", "failed", "p50", "p99")


@dataclass(slots=True)
class Pairs:
    """Pairs of servers of the cells: `PAIR` columns, ``names`` of the servers; ``whole``: of all cells."""

    names: list[str] = field(default_factory=list)
    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("I") for name in PAIR})
    whole: bool = False
    why: str = ""  # the reason, if pairs are missing

    def __len__(self) -> int:
        return len(self.columns["window"])


def page(
    charts: Sequence[Map],
    metric: str,
    *,
    at: Sequence[int],
    pairs: Sequence[Pairs] = (),
    title: str = "",
    palette: str = "paper",
    theme: str = "auto",
    command: str = "",
    source: str = "",
    local: bool = False,
) -> Iterator[bytes]:
    """The bytes of the page.  ``at``: number of the window to show first, for each map.

    ``pairs``: for each map.  ``command``: the command line; ``source``: its inputs, '' if they can be read only once.
    """
    from json import dumps

    blobs: list[bytes] = []
    maps = []
    for k, chart in enumerate(charts):
        windows = []
        for sheet in chart.sheets:
            shades = [chart.shades(sheet, name) for name in METRICS]
            windows.append(_window(chart, sheet, shades, len(blobs), local))
            blobs.append(compress(b"".join(shades), 6))
            values = [getattr(sheet, name) for name in ("p50", "p99", *COUNTS)]
            blobs.append(compress(b"".join(map(_little, values)), 1))
        map_pairs = pairs[k] if k < len(pairs) else Pairs()
        maps.append(
            {
                "dc": chart.dc,
                "by": chart.by,
                "unit": chart.unit,
                "names": chart.names,
                "podsets": chart.podsets,
                "width": chart.width // 1_000_000,
                "floor": chart.floor.tolist(),
                "ranges": [ranges(m, chart.limits, chart.by == "dc") for m in METRICS],
                "windows": windows,
                "at": at[k],
                "steps": chart.limits.steps(),
                "dropGreen": chart.limits.drop_green,
                "dropRed": chart.limits.drop_red,
                "pairs": {
                    "blob": len(blobs),
                    "rows": len(map_pairs),
                    "names": map_pairs.names,
                    "whole": map_pairs.whole,
                    "why": map_pairs.why,
                },
            }
        )
        blobs.append(compress(b"".join([_little(map_pairs.columns[name]) for name in PAIR]), 6))
    head = {
        "title": title or "Round trips",
        "metric": METRICS.index(metric),
        "metrics": [METRIC_NAMES[m] for m in METRICS],
        "unit": UNIT,
        "shades": SHADES,
        "maps": maps,
        "palettes": {f"{p}-{t}": PALETTES[p, t]._asdict() for p in NAMES for t in THEMES},
        "palette": palette,
        "theme": theme,
        "command": command,
        "source": source,
    }
    html, css, words, js = (_part(name) for name in ("page.html", "page.css", "words.js", "page.js"))
    before, _, rest = html.partition("/*CSS*/")
    middle, _, rest = rest.partition("<!--DATA-->")
    between, _, after = rest.partition("/*JS*/")
    yield (before + css + middle).encode()
    # names come from the input: "<" in a name could end the element
    text = dumps(head, separators=(",", ":")).replace("<", "\\u003c")
    yield f'<script type="application/json" id="head">{text}</script>\n'.encode()
    for i, blob in enumerate(blobs):
        yield b'<script type="application/octet-stream" id="b%d">' % i
        yield b64encode(blob)
        yield b"</script>\n"
    yield (between + words + js + after).encode()


def _window(chart: Map, sheet: Sheet, shades: Sequence[bytes], blob: int, local: bool) -> dict[str, Any]:
    ahead, zone = time_zone(sheet.start, local)
    patterns = [chart.pattern(sheet, name, s) for name, s in zip(METRICS, shades, strict=True)]
    return {
        "start": sheet.start // 1_000_000,
        "ahead": ahead,
        "zone": zone,
        "partial": sheet.partial,
        "blob": blob,
        "probes": sheet.probes,
        "counts": [[flat.count(colour) for colour in range(ABSENT)] for flat in [s.translate(CLASS) for s in shades]],
        "patterns": [_pattern(p, m, chart) for p, m in zip(patterns, METRICS, strict=True)],
    }


def _pattern(pattern: Pattern, metric: str, chart: Map) -> dict[str, Any]:
    return {
        "name": pattern.name,
        "text": pattern.text,
        "blocks": pattern.blocks,
        "podsets": [f.place for f in pattern.findings if f.podset],
        "explain": explain(pattern, metric, chart.limits, chart.by),
    }


def _little(values: array[int]) -> bytes:
    """32-bit numbers as little-endian bytes."""
    if sys.byteorder == "big":
        values = array("I", values)
        values.byteswap()
    return values.tobytes()


def _part(name: str) -> str:
    from importlib.resources import files

    return files("confluo_tools.pingmesh.heatmap").joinpath("page", name).read_text("utf-8")
