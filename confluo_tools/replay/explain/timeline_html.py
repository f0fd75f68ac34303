"""A timeline as one self-contained HTML page: no server, no network, no other file."""

from __future__ import annotations

from collections.abc import Iterator

from confluo_tools.replay.explain.timeline import Timeline
from confluo_tools.replay.explain.timeline_svg import COLOURS, KINDS, kind_of, tip


def page(line: Timeline) -> Iterator[str]:
    """The text of the page (``page/timeline.html`` with the data in JSON)."""
    from importlib.resources import files
    from json import dumps

    text = files("confluo_tools.replay.explain").joinpath("page", "timeline.html").read_text("utf-8")
    data = {
        "title": line.title,
        "end": max(line.end, 1),
        "high": max(line.highest, 1),
        "sent": [[s.ts, s.seq, s.size, int(s.again), s.number] for s in line.sent],
        "acked": [[a.ts, a.ack, a.edge, a.number] for a in line.acked],
        "congestion": line.congestion,
        "labels": [[w.ts, w.duration, KINDS.index(kind_of(w.cause)), tip(w)] for w in line.labels],
        "kinds": [[name, COLOURS[name]] for name in KINDS],
    }
    before, _, after = text.partition("/*DATA*/")
    yield before
    yield dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # a "<" could end the element
    yield after
