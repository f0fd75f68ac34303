"""A timeline as an SVG picture: sequence numbers over time, the window, and the labels as bands with tooltips."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from confluo_tools.replay.explain.timeline import TimedLabel, Timeline

WIDTH, HEIGHT = 1100, 560  # px of the plot
LEFT, TOP, RIGHT, BOTTOM = 90, 64, 24, 128
BAND = 16  # px: height of a row of labels
LETTER = 8  # px: the width of a letter, at most
FONT = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Arial, sans-serif"
RECEIVER = {"zero_window", "rwnd_limited", "delayed_ack", "delack_window_shrink", "window_probe"}
APPLICATION = {"app_limited", "nagle_wait", "cork", "sndbuf_limited", "keep_alive"}
CONGESTION = {"cwnd_limited", "idle_restart"}
KINDS = ("network", "receiver", "application", "congestion")
# Colours that colour-blind people can tell apart (Okabe and Ito); lines differ in their dashes as well.
COLOURS = {"network": "#d55e00", "receiver": "#e69f00", "application": "#8a8f98", "congestion": "#0072b2"}
DATA, AGAIN, ACKED, WINDOW, CWND = "#20242b", "#d55e00", "#009e73", "#cc79a7", "#0072b2"
DASHES = {"window": "6 3", "cwnd": "2 3"}


def kind_of(cause: str) -> str:
    """Who caused it: the network, the receiver, the application, or congestion control."""
    if cause in RECEIVER:
        return "receiver"
    if cause in APPLICATION:
        return "application"
    return "congestion" if cause in CONGESTION else "network"


def time_text(ns: int) -> str:
    return f"{ns / 1e9:.3f} s" if ns >= 1e9 else f"{ns / 1e6:.3f} ms"


def ticks(most: int) -> list[int]:
    """Round numbers from 0 to ``most``: four to eleven."""
    size: int = 10 ** max(len(str(most)) - 1, 0)
    step = next((part for part in (size, size // 2, size // 5, size // 10) if part and most // part >= 3), 1)
    return list(range(0, most + 1, step))


def tick_time(ns: int, most: int) -> str:
    """A time at the axis, without zeros at its end, in the unit of ``most``."""
    unit, size = ("s", 10**9) if most >= 10**9 else ("ms", 10**6) if most >= 10**6 else ("us", 1000)
    return f"{ns / size:g} {unit}"


def tip(label: TimedLabel) -> str:
    """What a tooltip says."""
    why = f", because of {label.why.replace('_', '-')}" if label.why else ""
    return f"{label.name}{why} ({label.certainty}): {time_text(label.duration)}, packet {label.packet}"


def svg(line: Timeline) -> Iterator[str]:
    """The text of the picture."""
    end, high = max(line.end, 1), max(line.highest, 1)
    edges = [a.edge for a in line.acked] + [end for _, end in line.congestion]
    edge = max([edge for edge in edges if edge <= 2 * high], default=high)
    top = max(high, min(edge, 2 * high))

    def x(ns: int) -> float:
        return LEFT + WIDTH * ns / end

    def y(seq: int) -> float:
        return TOP + HEIGHT * (1 - seq / top)

    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" font-size="12" role="img">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="{LEFT}" y="24" font-size="16">{escape(line.title)}</text>\n'
    )
    marks = {"data": DATA, "sent again": AGAIN, "acknowledged": ACKED, "window": WINDOW}
    for i, (name, colour) in enumerate((marks | ({"cwnd": CWND} if line.congestion else {})).items()):
        yield (
            f'<path d="M{LEFT + 140 * i} 41h20" stroke="{colour}" stroke-width="3" '
            f'stroke-dasharray="{DASHES.get(name, "none")}"/><text x="{LEFT + 140 * i + 26}" y="45">{name}</text>\n'
        )
    for at in ticks(end):
        yield f'<path d="M{x(at):.1f} {TOP}V{TOP + HEIGHT}" stroke="#e3e5e8"/>'
        yield f'<text x="{x(at):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{tick_time(at, end)}</text>\n'
    for seq in ticks(top):
        yield f'<path d="M{LEFT} {y(seq):.1f}H{LEFT + WIDTH}" stroke="#e3e5e8"/>'
        yield f'<text x="{LEFT - 8}" y="{y(seq) + 4:.1f}" text-anchor="end">{seq:,}</text>\n'
    yield f'<text x="{LEFT + WIDTH}" y="45" text-anchor="end">sequence number (bytes) over time</text>\n'
    acked, window = [(a.ts, a.ack) for a in line.acked], [(a.ts, a.edge) for a in line.acked]
    curves = {"cwnd": (line.congestion, CWND), "ack": (acked, ACKED), "edge": (window, WINDOW)}
    for name, (points, colour) in curves.items():
        steps = ""
        for ts, seq in points:
            value = y(max(min(seq, top), 0))
            steps += f"H{x(ts):.1f}V{value:.1f}" if steps else f"M{x(ts):.1f} {value:.1f}"
        dashes = DASHES.get("window" if name == "edge" else name, "none")
        yield (
            f'<path d="{steps}" fill="none" stroke="{colour}" stroke-dasharray="{dashes}" class="{name}"/>\n'
            if steps
            else ""
        )
    for s in line.sent:
        colour = AGAIN if s.again else DATA
        yield (
            f'<path d="M{x(s.ts):.1f} {y(s.seq):.1f}V{y(s.seq + max(s.size, 1)) - 0.5:.1f}" stroke="{colour}" '
            f'stroke-width="{3 if s.again else 1.5}"><title>packet {s.number}: {s.seq:,} + {s.size:,}</title></path>\n'
        )
    for label in line.labels:
        kind = kind_of(label.cause)
        row = TOP + HEIGHT + 26 + (BAND + 4) * (KINDS.index(kind))
        left, size = x(max(label.ts, 0)), max(WIDTH * label.duration / end, 2)
        yield (
            f'<rect class="label" x="{left:.1f}" y="{row}" width="{size:.1f}" '
            f'height="{BAND}" fill="{COLOURS[kind]}" fill-opacity="0.75" '
            f'stroke="#fff" stroke-width="0.5"><title>{escape(tip(label))}</title></rect>\n'
        )
        if size > LETTER * len(label.name):
            yield f'<text x="{left + 4:.1f}" y="{row + 12}" font-size="11" pointer-events="none">{label.name}</text>\n'
    for i, kind in enumerate(KINDS):
        yield f'<text x="{LEFT - 8}" y="{TOP + HEIGHT + 38 + (BAND + 4) * i}" text-anchor="end">{kind}</text>\n'
    yield "</svg>\n"
