"""The inputs of both ends of a connection in the order in which their kernels had them: what a replay applies.

An input of an end is a packet that its TCP processes or a call of its program.  It has its place among the packets that
this end sent (a replay waits for these) and its time, in ns after the start.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.core.replay.serial_replay import KINDS, MERGED, STEP, WAITS, YIELDS
from confluo_tools.errors import ConfluoError
from confluo_tools.replay.engine.replayed_options import replayed_option
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection
from confluo_tools.replay.recording.arrivals import Arrival, arrived_segments
from confluo_tools.replay.recording.kinds import Call, Kind, Note
from confluo_tools.replay.recording.socket_options import OptionValue

if TYPE_CHECKING:
    from confluo_tools.replay.engine.feed import Feed

PACKET, GATE, CONNECT, ACCEPT, SEND, RECV, POLL, OPTION, SHUTDOWN, CLOSE = range(len(KINDS))
ANY_COUNT = 0xFFFFFFFF  # the number of packets sent before is not known
LEAD = 1_000_000  # ns before the first input
EXACT, INFERRED = 1_500, 20_000  # ns: most that the recorded times of two packets of an end may be wrong
CALLS = {
    Call.CONNECT: CONNECT,
    Call.ACCEPT: ACCEPT,
    Call.SEND: SEND,
    Call.RECV: RECV,
    Call.SHUTDOWN: SHUTDOWN,
    Call.CLOSE: CLOSE,
}
MSG_DONTWAIT = 0x40
MAX_LENGTH = 86_400 * 10**9  # ns: longer is damage
EAGAIN, EINPROGRESS = 11, 115


class Step(NamedTuple):
    """One input.  ``at``: ns after the start; ``sent``: packets that this end had sent before.

    ``result``: what the call returned, or when the other end sent the packet, ns after the start; ``size``: bytes to
    send or receive, the value of an option, or `part` of a packet; ``packet``: number of the
    packet of the other end.
    """

    at: int
    result: int = 0
    size: int = 0
    sent: int = ANY_COUNT
    packet: int = 0
    flags: int = 0
    kind: int = GATE
    mark: int = 0
    notes: int = 0

    @property
    def part(self) -> tuple[int, int]:
        """Of a packet: (first segment, segments) that came, of this packet and those after it; (0, 0): the packet."""
        return self.size >> 32, self.size & 0xFFFFFFFF

    def packets(self, segments: Sequence[int]) -> range:
        """Numbers of the packets that came in part or whole; ``segments`` of each packet that was sent."""
        first, left = self.part
        after, left = self.packet + 1, left - max(segments[self.packet], 1) + first
        while left > 0 and after < len(segments):
            left -= max(segments[after], 1)
            after += 1
        return range(self.packet, after)

    def __str__(self) -> str:
        what = KINDS[self.kind]
        if self.kind == PACKET:
            return f"packet {self.packet} of the other end"
        if self.kind in (SEND, RECV):
            return f"{what} of {self.size} B that returned {self.result}"
        return what


@dataclass
class Script:
    """A connection to replay.

    ``steps``: of the client and of the server.  ``origin``: recorded time of time 0, by end, ns since 1970.
    ``problems``: what the replay cannot do as recorded.  ``feeds``: for each end, the packets that it gets instead of
    those of the other end; none for an end that is not replayed.
    """

    connection: RecordedConnection
    steps: tuple[list[Step], list[Step]]
    origin: tuple[int, int]
    problems: list[str] = field(default_factory=list)
    feeds: tuple[Feed | None, Feed | None] | None = None

    @property
    def sides(self) -> tuple[int, ...]:
        """The ends that are replayed: 0 the client, 1 the server."""
        return (0, 1) if self.feeds is None else tuple(side for side in (0, 1) if self.feeds[side] is not None)

    def packed(self) -> tuple[bytes, bytes]:
        """The steps as the engine reads them.  Raises ConfluoError for values that cannot be."""
        pack = struct.Struct(STEP).pack
        try:
            client, server = (b"".join([pack(*step) for step in steps]) for steps in self.steps)
        except struct.error:
            raise ConfluoError("a value of an input does not fit: the recording is damaged") from None
        return client, server

    def wire(self) -> tuple[list[int], list[bytes]]:
        """For the packets of each end: the usual delay of the wire in ns, and bytes that are 1 for those it lost."""
        delays, drops = [], []
        for side, end in enumerate((self.connection.client, self.connection.server)):
            lost = bytearray(b"\1" * end.packets_sent)
            sent, segments = sent_times(end), end.sent.expanded("segments")
            times = []
            for step in self.steps[1 - side]:
                if step.kind == PACKET and step.packet < len(lost):
                    for number in step.packets(segments):
                        lost[number] = 0
                    times.append(step.at + self.origin[side] - sent[step.packet])
            delays.append(max(sorted(times)[len(times) // 2], 0) if times else 0)
            drops.append(bytes(lost))
        return delays, drops

    @property
    def length(self) -> int:
        """Time of the last step, ns."""
        return max((steps[-1].at for steps in self.steps if steps), default=0)


def script_of(connection: RecordedConnection) -> Script:
    """The inputs of a connection.  Raises ConfluoError if packets cannot be assigned."""
    client, server = connection.client, connection.server
    numbers = arrived_segments(server, client), arrived_segments(client, server)
    origin = _origins(client, server, numbers)
    problems: list[str] = []
    try:
        sent = [array("q", (ts - origin[side] for ts in sent_times(end))) for side, end in enumerate((client, server))]
    except OverflowError:
        raise ConfluoError("times of packets are centuries apart: the recording is damaged") from None
    steps = tuple(
        steps_of(end, numbers[side], origin[side], ("client", "server")[side], problems, sent[1 - side])
        for side, end in enumerate((client, server))
    )
    return bounded(Script(connection, steps, origin, problems))  # type: ignore[arg-type]


def bounded(script: Script) -> Script:
    """The script.  Raises ConfluoError if it lasts too long."""
    if script.length > MAX_LENGTH:
        raise ConfluoError(f"it lasts {script.length // 10**9} s; at most {MAX_LENGTH // 10**9} s are replayed")
    return script


def _origins(
    client: ConnectionEnd, server: ConnectionEnd, numbers: tuple[list[Arrival], list[Arrival]]
) -> tuple[int, int]:
    """Recorded times of time 0.  Clocks with which packets would arrive before they were sent are shifted."""
    there, back = _shortest(client, server, numbers[1]), _shortest(server, client, numbers[0])
    shift = 0
    if there is not None and back is not None and min(there, back) < 0:
        shift = (there - back) // 2
    first = min(client.began, server.began - shift) - LEAD
    return first, first + shift


def _shortest(sender: ConnectionEnd, receiver: ConnectionEnd, numbers: list[Arrival]) -> int | None:
    """The shortest time from sending to processing a packet, ns."""
    sent = sent_times(sender)
    times = zip(processed_times(receiver), numbers, strict=True)
    return min((at - sent[a.packet] for at, a in times if 0 <= a.packet < len(sent)), default=None)


def sent_times(end: ConnectionEnd) -> array[int]:
    """When each packet was sent, ns since 1970: exactly if the headers are there, else within a threshold."""
    return end.headers_sent["ts"] if len(end.headers_sent) == end.packets_sent > 0 else end.sent.expanded("ts")


def processed_times(end: ConnectionEnd) -> array[int]:
    """When each packet was processed, as `sent_times`."""
    exact = len(end.headers_received) == end.packets_received > 0
    return end.headers_received["ts"] if exact else end.received.expanded("ts")


def steps_of(
    end: ConnectionEnd,
    numbers: list[Arrival],
    origin: int,
    name: str,
    problems: list[str],
    sent: array[int] | None = None,
) -> list[Step]:
    """The inputs of one end in their order: its events by number, and packet n before the events with rx > n.

    ``sent``: when the other end sent its packets, ns after the start.
    """
    out: list[Step] = []
    packets = _packets(end, numbers, origin, name, sent)
    taken = 0
    for rx, step in _calls(end, origin):
        while taken < rx and (packet := next(packets, None)) is not None:
            out.append(packet)
            taken += 1
        out.append(step)
    out += packets
    # The gate at the end: all packets of this end were sent.
    out.append(Step(max(end.ended - origin, out[-1].at if out else 0), sent=end.packets_sent))
    return forward(out)


def forward(steps: list[Step]) -> list[Step]:
    """The steps with times that never go back: their order is known, their times are inferred within a threshold."""
    latest = 0
    for place, step in enumerate(steps):
        if step.at < latest:
            steps[place] = step._replace(at=latest)
        latest = steps[place].at
    return steps


def _packets(
    end: ConnectionEnd, numbers: list[Arrival], origin: int, name: str, sent: array[int] | None
) -> Iterator[Step]:
    columns = [processed_times(end), *(end.received.expanded(c) for c in ("tx", "notes"))]
    own = sent_times(end)
    slack = EXACT if len(end.headers_sent) else INFERRED
    for place, (ts, tx, notes) in enumerate(zip(*columns, strict=True)):
        number, first, segments = numbers[place]
        tx = max(tx, bisect_left(own, ts - slack))  # that of a run is the number at its first packet
        if number < 0:
            raise ConfluoError(f"the {name} processed a packet that the other end did not record (its number {place})")
        marked = int(bool(notes & Note.CE))
        when = sent[number] if sent is not None and number < len(sent) else 0
        joined = MERGED if notes & Note.MERGED and place else 0
        yield Step(ts - origin, when, first << 32 | segments, tx, packet=number, kind=PACKET, mark=marked, notes=joined)


def _calls(end: ConnectionEnd, origin: int) -> Iterator[tuple[int, Step]]:
    """(packets processed before, input) of the calls and polls of an end, in their order."""
    names = ("kind", "ts", "tx", "rx", "notes", "call", "bytes", "asked", "flags", "value")
    for kind, ts, tx, rx, notes, call, count, asked, flags, value in zip(*end.events.in_order(*names), strict=True):
        at = ts - origin
        if kind == Kind.POLL:
            yield rx, Step(at, count, 0, tx, 0, flags, POLL)
        elif kind == Kind.CALL and call == Call.SETSOCKOPT:
            option = replayed_option(end, OptionValue(flags >> 16, flags & 0xFFFF, value))
            if option is not None:
                yield rx, Step(at, count, option.value & 0xFFFFFFFFFFFFFFFF, tx, 0, option.flags, OPTION)
        elif kind == Kind.CALL and call in CALLS:
            yield rx, _call(CALLS[Call(call)], at, tx, notes, count, asked or max(count, 1), flags)


def _call(kind: int, at: int, tx: int, notes: int, count: int, asked: int, flags: int) -> Step:
    waits = WAITS if kind == SEND and (count > 0 or notes & Note.WAITS) and not flags & MSG_DONTWAIT else 0
    if notes & Note.YIELDS:
        waits |= YIELDS
    result = 0 if kind == CONNECT else count  # a connect that waits begins as one that does not
    return Step(at, result, asked, tx, 0, flags, kind, notes=waits)
