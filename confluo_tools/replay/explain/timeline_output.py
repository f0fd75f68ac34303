"""Timelines as files: the packets of one connection, read again, and its labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.replay.explain.flows import FlowEnds, ends_of
from confluo_tools.replay.explain.timeline import TimedLabel, TimedPacket, Timeline, draw

if TYPE_CHECKING:
    from confluo_tools import cli
    from confluo_tools.core.block.block import Block
    from confluo_tools.replay.explain.taps import Taps

PICTURES = ("svg", "html")
MAX_PACKETS = {"svg": 20_000, "html": 500_000}
TCP, WSCALE = 6, 2
FIELDS = ("tcp_seq", "tcp_ack", "payload_len", "tcp_flags", "tcp_window")


def write_timeline(kind: str, taps: Taps, connections: int, labels: Iterator[Block], out: cli.OutputOptions) -> None:
    """Write the only connection of a run as a picture.  Raises UsageError if there are more, or too many packets."""
    from confluo_tools.replay.explain import timeline_html, timeline_svg
    from confluo_tools.replay.explain.taps import read_again

    if connections > 1:
        hint = "choose one with --flow SRC:PORT-DST:PORT; --messages lists them"
        raise UsageError(f"draws one connection, the input has {connections:,}", where=f"-o {kind}", hint=hint)
    if not read_again(taps.inputs):
        raise UsageError("reads the packets twice", where=f"-o {kind}", hint="name a file, not a pipe")
    line = load(taps, labels, MAX_PACKETS[kind])
    with out.sink() as sink:
        for text in timeline_svg.svg(line) if kind == "svg" else timeline_html.page(line):
            sink.write(text.encode())


def load(taps: Taps, labels: Iterator[Block], limit: int) -> Timeline:
    """The timeline of the only connection."""
    found: list[TimedPacket] = []
    ends: list[FlowEnds] = []
    for before, block in taps.again():
        found += packets_of(block, before, taps.flows, ends)
        if len(found) > limit:
            hint = "select a shorter time with confluo-query, or read the records"
            raise UsageError(f"more than {limit:,} packets do not fit into a picture", hint=hint)
    title = str(ends[0]) if ends else ""
    return draw(title, found, labels_of(labels))


def packets_of(block: Block, before: int, flows: set[FlowEnds] | None, ends: list[FlowEnds]) -> Iterator[TimedPacket]:
    """TCP packets of a block after ``before`` rows; ``ends`` becomes those of the first packet."""
    at = {name: block.layout.index(name) for name in block.layout.names}
    for row in range(block.rows):
        if block.get(at["proto"], row) != TCP:
            continue
        flow = ends_of(block, at, row)
        if flow is None or (flows is not None and not {flow, flow.reversed} & flows):
            continue
        if not ends:
            ends.append(flow)
        opts = block.get(at["tcp_opts"], row) if "tcp_opts" in at else 0
        scale = block.get(at["tcp_wscale"], row) if opts & WSCALE else -1
        seq, ack, size, flags, window = (block.get(at[name], row) for name in FIELDS)
        side, cwnd = int(flow != ends[0]), block.get(at["cwnd"], row) if "cwnd" in at else 0
        number = before + row + 1
        yield TimedPacket(block.get(at["ts"], row), side, seq, ack, size, flags, window, scale, number, cwnd)


def labels_of(blocks: Iterator[Block]) -> Iterator[TimedLabel]:
    from confluo_tools.replay.explain.labels import CERTAINTY, EVENTS, LABELS

    for block in blocks:
        at = {name: block.layout.index(name) for name in block.layout.names}
        for row in range(block.rows):
            event, cause, certainty, why = (block.get(at[n], row) for n in ("event", "cause", "certainty", "why"))
            name = block.get(at["name"], row).rstrip(b"\0").decode()
            yield TimedLabel(
                block.get(at["ts"], row),
                block.get(at["duration"], row),
                EVENTS[event],
                name,
                LABELS[cause],
                CERTAINTY[certainty],
                LABELS[why],
                block.get(at["packet"], row),
            )
