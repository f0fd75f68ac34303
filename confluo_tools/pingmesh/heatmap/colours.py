"""Colours and formatting of values of heat maps: shared by SVG, HTML, PNG and terminals."""

from __future__ import annotations

from typing import NamedTuple

from confluo_tools.pingmesh.heatmap.model import SHADES, UNIT, ColourLimits

METRIC_NAMES = {"p50": "P50", "p99": "P99", "drop": "Drop rate"}
CLASS_NAMES = ("no data", "green", "yellow", "red")


class Palette(NamedTuple):
    """``shades`` as `pingmesh.heatmap.model` numbers them, ``back``ground, ``fore``ground, ``soft`` text, ``line``s."""

    shades: tuple[str, ...]
    back: str
    fore: str
    soft: str
    line: str
    panel: str


def _palette(none: str, greens: str, yellow: str, reds: str, others: str) -> Palette:
    back, fore, soft, line, panel = others.split()
    shades = (none, *greens.split(), yellow, *reds.split(), back)
    assert len(shades) == SHADES
    return Palette(shades, back, fore, soft, line, panel)


_LIGHT = "#f6f7f9 #1b1f24 #5c6670 #c9ced6 #ffffff"
_DARK = "#0f1216 #e8ebef #98a2ad #39414b #171b21"
# Classes also differ in lightness, so that a grey print is readable: green is light, red is dark (bright on dark).
# ``safe`` goes from blue over yellow to purple, for readers who cannot distinguish red and green.
PALETTES = {
    ("paper", "light"): _palette(
        "#ffffff",
        "#d3eedb #bce4c8 #a2d9b3 #85cb9b #68bc84 #4bab6d",
        "#f7c948",
        "#ea6a5e #db4a40 #c1312b #9c1f20 #701318",
        _LIGHT,
    ),
    ("paper", "dark"): _palette(
        "#171b21",
        "#173f2e #1a4b36 #1e5a40 #246b4c #2b7e5a #34936a",
        "#dfae2c",
        "#c4433a #d9564c #ea7265 #f59485 #ffb9ac",
        _DARK,
    ),
    ("safe", "light"): _palette(
        "#ffffff",
        "#e0ebf7 #c9dcf0 #adc9e6 #8db3da #6c9ccd #4c83bd",
        "#f4d847",
        "#9c4a98 #86388a #6c2774 #51195b #360e3f",
        _LIGHT,
    ),
    ("safe", "dark"): _palette(
        "#171b21",
        "#14304f #173a60 #1b4471 #1f4e82 #235893 #2762a4",
        "#ead24f",
        "#b920df #ca36e2 #d94ce6 #e663e9 #ec79e7",
        _DARK,
    ),
}
NAMES = ("paper", "safe")
THEMES = ("light", "dark")


def clean(text: str) -> str:
    """Replace control characters: names come from the input, terminals execute them and XML forbids them."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def latency(units: int) -> str:
    """Format a latency in `UNIT` with its three significant digits: ``1.57 ms``, ``216 us``, ``1.02 s``."""
    us = units * UNIT / 1000
    if us < 999.5:
        return f"{_three(us)} us"
    return f"{_three(us / 1e3)} ms" if us < 999_500 else f"{_three(us / 1e6)} s"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def rate(dropped: int, ok: int) -> str:
    """Format a drop rate: ``0.17 %``, or ``2.1e-5`` below 0.01 %."""
    if not dropped:
        return "0"
    share = dropped / ok
    if share < 1e-4:
        return f"{share:.1e}"
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.0f} %"


def ranges(metric: str, limits: ColourLimits, above: bool = False) -> tuple[str, ...]:
    """Ranges of the colours none, green, yellow, red.  ``above``: latencies are above the lowest of their pair."""
    if metric == "drop":
        low, high = f"{limits.drop_green * 100:g}", f"{limits.drop_red * 100:g} %"
    else:
        low, high = f"{limits.green / 1e6:g}", f"{limits.red / 1e6:g} ms"
    unit = high.split()[1]
    sign = "+" if above and metric != "drop" else ""
    return "no data", f"< {sign}{low} {unit}", f"{sign}{low} – {sign}{high}", f"> {sign}{high}"
