"""A page with queues over time: all ports as a heat map, and the longest queues by the flows in them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools import units

if TYPE_CHECKING:
    from confluo_tools.core.replay.queue_engine import QueueRows

SLICES = 160  # of the time
PORTS = 40  # rows of the heat map
STACKS = 4  # queues that are drawn by flow
SHARERS = 4  # flows that a row names
CELL, ROW, LEFT, TOP = 6, 14, 260, 34
STACK_HEIGHT = 160
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99")
OTHERS = "#bbbbbb"
_STYLE = "body{font:14px sans-serif;margin:24px}text{font:11px sans-serif}h2{font-size:16px}"


class Moment(NamedTuple):
    """The longest queue of a slice: its bytes, and the flows (from 1) with the most of them, with their bytes."""

    queue: int
    shares: tuple[tuple[int, int], ...]


class QueueHeat:
    """The longest queue of each port in each slice of ``span`` (ps).  ``drops`` {port: number}."""

    def __init__(self, span: int) -> None:
        self.width = max(1, -(-(span + 1) // SLICES))
        self.longest: dict[int, array[int]] = {}
        self.drops: dict[int, int] = {}

    def add(self, rows: QueueRows) -> None:
        for time, port, queue, flags in zip(*_first(rows, rows.time, rows.port, rows.queue, rows.flags), strict=True):
            its = self.longest.get(port)
            if its is None:
                its = self.longest[port] = array("I", [0]) * SLICES
            at = min(time // self.width, SLICES - 1)
            if queue > its[at]:
                its[at] = queue
            if flags & 1:
                self.drops[port] = self.drops.get(port, 0) + 1

    def ports(self, most: int) -> list[int]:
        """The ports with the longest queues, longest first."""
        return sorted(self.longest, key=lambda port: (-max(self.longest[port]), port))[:most]


class QueueStacks:
    """For some ports, the flows in the longest queue of each slice."""

    def __init__(self, heat: QueueHeat, ports: Iterable[int]) -> None:
        self._width = heat.width
        self.moments: dict[int, list[Moment]] = {port: [Moment(0, ())] * SLICES for port in ports}

    def add(self, rows: QueueRows) -> None:
        columns = _first(rows, rows.time, rows.port, rows.queue)
        for i, (time, port, queue) in enumerate(zip(*columns, strict=True)):
            its = self.moments.get(port)
            if its is None:
                continue
            at = min(time // self._width, SLICES - 1)
            if queue > its[at].queue:
                four = slice(SHARERS * i, SHARERS * (i + 1))
                shares = tuple((f, b) for f, b in zip(rows.sharer[four], rows.share[four], strict=True) if f)
                its[at] = Moment(queue, shares)


def _first(rows: QueueRows, *columns: array[int]) -> list[array[int]]:
    return [column[: rows.count] for column in columns]


def page(heat: QueueHeat, stacks: QueueStacks, names: Sequence[str], flows: Sequence[str]) -> str:
    """A self-contained HTML page.  ``names`` of the ports; ``flows``: what to call each flow, from 1 on."""
    parts = [heat_svg(heat, names)]
    for port, moments in stacks.moments.items():
        parts += [f"<h2>{escape(names[port])}</h2>", stack_svg(heat, moments, flows)]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Switch queues</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Switch queues</h1>\n"
        "<p>Each row is the port of a switch, each column a slice of time; the colour is the longest queue in it."
        " Times are from the first packet on.</p>\n"
        f"{body}\n</body></html>\n"
    )


def heat_svg(heat: QueueHeat, names: Sequence[str]) -> str:
    """Ports against time; a darker cell is a longer queue.  A title of each cell has its numbers."""
    ports = heat.ports(PORTS)
    top = max((max(heat.longest[port]) for port in ports), default=0) or 1
    lines = []
    for row, port in enumerate(ports):
        y = TOP + row * ROW
        drops = heat.drops.get(port, 0)
        label = f"{names[port]}{f', {drops} dropped' if drops else ''}"
        lines.append(f'<text x="{LEFT - 6}" y="{y + ROW - 4}" text-anchor="end">{escape(label)}</text>')
        for at, queue in enumerate(heat.longest[port]):
            if queue:
                title = f"{names[port]}, {_time(heat, at)}: {units.format_number(queue)}B"
                lines.append(
                    f'<rect x="{LEFT + at * CELL}" y="{y}" width="{CELL}" height="{ROW - 1}"'
                    f' fill="{_heat_colour(queue / top)}"><title>{escape(title)}</title></rect>'
                )
    return _svg(TOP + len(ports) * ROW + 6, [*_axis(heat), *lines])


def stack_svg(heat: QueueHeat, moments: Sequence[Moment], flows: Sequence[str]) -> str:
    """The bytes of a queue over time, a band for each flow; what other flows have is grey."""
    total: dict[int, int] = {}
    for moment in moments:
        for flow, size in moment.shares:
            total[flow] = total.get(flow, 0) + size
    chosen = sorted(total, key=lambda flow: (-total[flow], flow))[: len(COLOURS)]
    top = max(moment.queue for moment in moments) or 1
    lines = list(_axis(heat))
    lines.append(f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{units.format_number(top)}B</text>')
    base = [0] * len(moments)
    for flow in [*chosen, 0]:
        if flow:
            band = [dict(moment.shares).get(flow, 0) for moment in moments]
        else:
            band = [moment.queue - below for moment, below in zip(moments, base, strict=True)]
        high = [below + its for below, its in zip(base, band, strict=True)]
        colour = COLOURS[chosen.index(flow)] if flow else OTHERS
        name = flows[flow - 1] if flow else "other flows"
        lines.append(
            f'<polygon class="band" points="{_outline(base, high, top)}" fill="{colour}">'
            f"<title>{escape(name)}, up to {units.format_number(max(band))}B</title></polygon>"
        )
        base = high
    for i, flow in enumerate([*chosen, 0]):
        y = TOP + STACK_HEIGHT + 16 + 15 * i
        colour = COLOURS[i] if flow else OTHERS
        lines.append(f'<rect x="{LEFT}" y="{y}" width="10" height="10" fill="{colour}"/>')
        text = flows[flow - 1] if flow else "other flows"
        lines.append(f'<text x="{LEFT + 16}" y="{y + 9}">{escape(text)}</text>')
    return _svg(TOP + STACK_HEIGHT + 24 + 15 * (len(chosen) + 1), lines)


def _outline(low: Sequence[int], high: Sequence[int], top: int) -> str:
    # Steps: a slice has one value.
    def points(values: Sequence[int]) -> list[str]:
        found = []
        for at, value in enumerate(values):
            y = TOP + STACK_HEIGHT * (1 - value / top)
            found += [f"{LEFT + at * CELL},{y:.1f}", f"{LEFT + (at + 1) * CELL},{y:.1f}"]
        return found

    return " ".join([*points(high), *reversed(points(low))])


def _axis(heat: QueueHeat) -> Iterator[str]:
    for at in range(0, SLICES, 20):
        x = LEFT + at * CELL
        yield f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{TOP - 1}" stroke="#888"/>'
        yield f'<text x="{x}" y="{TOP - 10}" text-anchor="middle">{_time(heat, at)}</text>'


def _time(heat: QueueHeat, at: int) -> str:
    return f"{at * heat.width / 1_000_000:.0f} us"


def _heat_colour(share: float) -> str:
    # White to dark red, by way of orange.
    red = 255 - round(110 * max(0.0, share - 0.5) * 2)
    green = round(235 * (1 - share))
    blue = round(215 * max(0.0, 1 - 1.6 * share))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _svg(height: int, lines: Iterable[str]) -> str:
    width = LEFT + SLICES * CELL + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([head, *lines, "</svg>"])
