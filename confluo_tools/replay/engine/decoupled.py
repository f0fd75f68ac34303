"""A replay in which the ends do not meet: each gets the recorded packets of the other one.

A packet that one end sends differently does not change what the other end gets, so differences stay small.  One end
alone can be replayed.  Needs the headers of the packets that were received.
"""

from __future__ import annotations

from array import array

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.tick import tick_length
from confluo_tools.replay.engine.feed import Feed, feed_of
from confluo_tools.replay.engine.script import LEAD, PACKET, Script, Step, steps_of
from confluo_tools.replay.engine.settings import phase_of
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection
from confluo_tools.replay.recording.kinds import Role

NAMES = ("client", "server")
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
    problems: list[str] = []
    steps = tuple(
        _fed(steps_of(end, array("q", range(end.packets_received)), origin[side], NAMES[side], problems), feeds[side])
        for side, end in enumerate(ends)
    )
    return Script(connection, steps, origin, problems, feeds)  # type: ignore[arg-type]


def _origins(client: ConnectionEnd, server: ConnectionEnd) -> tuple[int, int]:
    """Recorded times of time 0, each at the same place within a tick."""
    first = client.began - LEAD
    second = first if 0 <= server.began - client.began < ONE_CLOCK else server.began - LEAD
    if not client.packets_sent or not server.packets_sent:
        return first, second
    return first, second - (phase_of(server, second) - phase_of(client, first)) % tick_length()


def _fed(steps: list[Step], feed: Feed | None) -> list[Step]:
    """The steps, with what an end must have sent before a packet can acknowledge it; none for an end without a feed."""
    if feed is None:
        return []
    reach = [max(p.ack, *p.sack) if p.sack else p.ack for p in feed.packets]
    return [s._replace(size=reach[s.packet]) if s.kind == PACKET else s for s in steps]
