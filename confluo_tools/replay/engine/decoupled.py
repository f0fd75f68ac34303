"""A replay in which the ends do not meet: each gets the recorded packets of the other one.

A packet that one end sends differently does not change what the other end gets, so differences stay small.  One end
alone can be replayed.  Needs the headers of the packets that were received.
"""

from __future__ import annotations

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.tick import WHEEL, tick_length
from confluo_tools.replay.engine.feed import Feed, feed_of
from confluo_tools.replay.engine.script import LEAD, PACKET, Script, Step, bounded, forward, steps_of
from confluo_tools.replay.engine.settings import phase_of
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection
from confluo_tools.replay.recording.arrivals import Arrival
from confluo_tools.replay.recording.kinds import Role

_NEAR = LEAD // 4  # ns: error of a place among the ticks
ONE_CLOCK = 10**9  # ns: two ends that begin within it are taken to have one clock


def lone_connection(end: ConnectionEnd) -> RecordedConnection:
    """A connection with one recorded end; the other end is empty."""
    other = ConnectionEnd(end.flow.reversed, 0, Role.SERVER if end.client else Role.CLIENT, began=end.began)
    return RecordedConnection(end, other) if end.client else RecordedConnection(other, end)


def decoupled_script(connection: RecordedConnection) -> Script:
    """The inputs of the ends that were recorded.  Raises ConfluoError if headers are missing."""
    ends = connection.client, connection.server
    feeds = tuple(feed_of(end, ends[1 - side]) if end.packets_sent else None for side, end in enumerate(ends))
    if feeds == (None, None):
        raise ConfluoError("no packet was sent")
    origin = _origins(*ends)
    steps = tuple(
        fed_steps(end, feed, at) if feed is not None else [] for end, feed, at in zip(ends, feeds, origin, strict=True)
    )
    return bounded(Script(connection, steps, origin, feeds=feeds))  # type: ignore[arg-type]


def _origins(client: ConnectionEnd, server: ConnectionEnd) -> tuple[int, int]:
    """Recorded times of time 0, each at the same place within a tick."""
    first = client.began - LEAD
    second = first if 0 <= server.began - client.began < ONE_CLOCK else server.began - LEAD
    if not client.packets_sent or not server.packets_sent:
        return first, second
    period = WHEEL * tick_length()
    later = (phase_of(server, second) - phase_of(client, first) + _NEAR) % period - _NEAR
    return first, second - later


def fed_steps(end: ConnectionEnd, feed: Feed, origin: int) -> list[Step]:
    """The inputs of an end.  A packet has its time and its place by its header, which runs of packets do not keep.

    ``size`` of a packet: the highest byte that the end must have sent before the packet can acknowledge it.
    """
    whole = [Arrival(number) for number in range(end.packets_received)]
    steps = steps_of(end, whole, origin, "client" if end.client else "server", [])
    sent = end.headers_received["tx"]
    for place, step in enumerate(steps):
        if step.kind == PACKET:
            packet = feed.packets[step.packet]
            reach = max(packet.ack, *packet.sack) if packet.sack else packet.ack
            steps[place] = step._replace(at=packet.at - origin, sent=sent[step.packet], size=reach)
    return forward(steps)
