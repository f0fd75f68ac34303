"""A timeline as an SVG picture: sequence numbers over time, the window, and the labels as bands with tooltips."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from confluo_tools.replay.explain.timeline import TimedLabel, Timeline

WIDTH, HEIGHT = 1100, 560  # px of the plot
LEFT, TOP, RIGHT, BOTTOM = 90, 64, 24, 128
BAND = 16  # px: height of a row of labels
FONT = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Arial, sans-serif"
RECEIVER = {"zero_window", "rwnd_limited", "delayed_ack", "delack_window_shrink", "window_probe"}
APPLICATION = {"app_limited", "nagle_wait", "cork", "sndbuf_limited", "keep_alive"}
CONGESTION = {"cwnd_limited", "idle_restart"}
KINDS = ("network", "receiver", "application", "congestion")
COLOURS = {"network": "#c1312b", "receiver": "#d98312", "application": "#8a8f98", "congestion": "#3b73b9"}
DATA, AGAIN, ACKED, WINDOW, CWND = "#20242b", "#c1312b", "#3b8f52", "#b9a3d6", "#3b73b9"


def kind_of(cause: str) -> str:
    """Who caused it: the network, the receiver, the application, or congestion control."""
    if cause in RECEIVER:
        return "receiver"
    if cause in APPLICATION:
        return "application"
    return "congestion" if cause in CONGESTION else "network"


def time_text(ns: int) -> str:
    return f"{ns / 1e9:.3f} s" if ns >= 1e9 else f"{ns / 1e6:.3f} ms"


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
    for i, (name, colour) in enumerate(
        {"data": DATA, "sent again": AGAIN, "acknowledged": ACKED, "window": WINDOW, "cwnd": CWND, **COLOURS}.items()
    ):
        yield f'<rect x="{LEFT + 120 * i}" y="36" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{LEFT + 120 * i + 15}" y="45">{name}</text>\n'
    for k in range(5):
        at, seq = end * k // 4, top * k // 4
        yield f'<path d="M{x(at):.1f} {TOP}V{TOP + HEIGHT}M{LEFT} {y(seq):.1f}H{LEFT + WIDTH}" stroke="#e3e5e8"/>'
        yield f'<text x="{x(at):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{time_text(at)}</text>'
        yield f'<text x="{LEFT - 8}" y="{y(seq) + 4:.1f}" text-anchor="end">{seq:,}</text>\n'
    acked, window = [(a.ts, a.ack) for a in line.acked], [(a.ts, a.edge) for a in line.acked]
    curves = {"cwnd": (line.congestion, CWND), "ack": (acked, ACKED), "edge": (window, WINDOW)}
    for name, (points, colour) in curves.items():
        steps = ""
        for ts, seq in points:
            value = y(max(min(seq, top), 0))
            steps += f"H{x(ts):.1f}V{value:.1f}" if steps else f"M{x(ts):.1f} {value:.1f}"
        yield f'<path d="{steps}" fill="none" stroke="{colour}" class="{name}"/>\n' if steps else ""
    for s in line.sent:
        colour = AGAIN if s.again else DATA
        yield (
            f'<path d="M{x(s.ts):.1f} {y(s.seq):.1f}V{y(s.seq + max(s.size, 1)) - 0.5:.1f}" stroke="{colour}" '
            f'stroke-width="{3 if s.again else 1.5}"><title>packet {s.number}: {s.seq:,} + {s.size:,}</title></path>\n'
        )
    for label in line.labels:
        kind = kind_of(label.cause)
        row = TOP + HEIGHT + 26 + (BAND + 4) * (KINDS.index(kind))
        left = x(max(label.ts, 0))
        yield (
            f'<rect class="label" x="{left:.1f}" y="{row}" width="{max(WIDTH * label.duration / end, 2):.1f}" '
            f'height="{BAND}" fill="{COLOURS[kind]}" fill-opacity="0.75"><title>{escape(tip(label))}</title></rect>\n'
        )
    for i, kind in enumerate(KINDS):
        yield f'<text x="{LEFT - 8}" y="{TOP + HEIGHT + 38 + (BAND + 4) * i}" text-anchor="end">{kind}</text>\n'
    yield "</svg>\n"
