"""The kernel's trace points of TCP during a replay, as records of the ends."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.replay.engine.segments import initial_sequence_number
from confluo_tools.replay.recording.kinds import Kind

if TYPE_CHECKING:
    from confluo_tools.replay.engine.attempt import Attempt

BUFFER = 8192  # KiB of each CPU: some 60,000 events
Row = dict[str, Any]


class TracePoint(NamedTuple):
    """A trace point of the kernel and the fields that become columns, in the order of ``columns``."""

    system: str
    event: str
    kind: Kind
    fields: tuple[str, ...]
    columns: tuple[str, ...]


POINTS = {
    "tcp_probe": TracePoint(
        "tcp",
        "tcp_probe",
        Kind.PROBE,
        ("data_len", "snd_nxt", "snd_una", "snd_cwnd", "ssthresh", "snd_wnd", "srtt", "rcv_wnd"),
        ("value", "snd_nxt", "snd_una", "cwnd", "ssthresh", "snd_wnd", "srtt", "rcv_wnd"),
    ),
    "cong_state": TracePoint("tcp", "tcp_cong_state_set", Kind.STATE, ("cong_state",), ("value",)),
    "retransmit": TracePoint("tcp", "tcp_retransmit_skb", Kind.RETRANSMIT, (), ()),
}


def trace_points(text: str) -> tuple[TracePoint, ...]:
    """The trace points of --trace.  Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in POINTS:
            raise UsageError(f"unknown trace point '{word[:60]}'", where="--trace", hint=f"use {', '.join(POINTS)}")
    return tuple(POINTS[word] for word in dict.fromkeys(words))


class ReplayTrace:
    """Context manager: traces a connection by its ports.  Raises ConfluoError if there is no tracefs."""

    def __init__(self, points: tuple[TracePoint, ...], client_port: int, server_port: int) -> None:
        from confluo_tools.core.kernel.trace_reader import TraceReader
        from confluo_tools.kernel.tracefs import WantedEvent, event_shape, open_instance

        self._points, self._ports = points, (client_port, server_port)
        both = (
            f"(sport == {client_port} && dport == {server_port}) || (sport == {server_port} && dport == {client_port})"
        )
        wanted = [WantedEvent(point.system, point.event, both) for point in points]
        self._instance = open_instance("replay", wanted, "a replay", BUFFER)
        try:
            formats = self._instance.formats
            shapes = [event_shape(formats[point.event], ("sport", *point.fields)) for point in points]
            self._reader = TraceReader(self._instance.traces, self._instance.header, self._instance.page, shapes)
            self._instance.begin()
        except BaseException:
            self._instance.close()
            raise

    def __enter__(self) -> ReplayTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self._instance.close()

    def rows(self, done: Attempt) -> tuple[list[Row], list[Row]]:
        """What was traced during ``done``, for each end, in the order of time."""
        events: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + 5
        while (more := self._reader.read()) and time.monotonic() < deadline:
            events += more
        out: tuple[list[Row], list[Row]] = ([], [])
        isn = [initial_sequence_number(packets) for packets in done.packets]
        sent = [[s.at for s in side] for side in done.segments]
        events.sort(key=lambda event: event[0])
        for ts, what, _, port, *values in events:
            side = int(port != self._ports[0])
            point = self._points[what]
            at = ts - done.start
            row: Row = dict(zip(point.columns, values, strict=True))
            for name in ("snd_nxt", "snd_una"):
                if name in row:
                    row[name] = row[name] - isn[side] & 0xFFFFFFFF
            number = len(done.steps[side]) + len(out[side])
            row |= {"kind": int(point.kind), "ts": at + done.script.origin[side], "count": 1, "number": number}
            out[side].append(row | {"tx": bisect_right(sent[side], at), "rx": self._received(done, side, at)})
        return out

    @staticmethod
    def _received(done: Attempt, side: int, at: int) -> int:
        applied = done.applied[side]
        place = bisect_right(applied, at, key=lambda a: a.at)
        return applied[place - 1].received if place else 0
