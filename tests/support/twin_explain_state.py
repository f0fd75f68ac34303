"""What `TwinExplainer` remembers: packets, segments in flight, ends of connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from confluo_tools.replay.explain.labels import LABELS

NEVER = -(1 << 62)
OPEN, RECOVERY, LOSS = 0, 1, 2
MASK = 0xFFFFFFFF
SENDING, ROUND_TRIP = LABELS.index("sending"), LABELS.index("round_trip")


def before(a: int, b: int) -> bool:
    return ((a - b) & MASK) >= 1 << 31


def quotient(a: int, b: int) -> int:
    """a / b, cut towards zero as in C."""
    return abs(a) // b * (1 if a >= 0 else -1)


@dataclass(slots=True)
class Packet:
    """One TCP segment.  ``number``: in its capture, from 1.  ``sacks``: [(left, right)]."""

    number: int
    ts: int
    side: int
    seq: int
    ack: int
    size: int
    flags: int
    window: int
    scale: int = -1  # of the option
    mss: int = 0
    sack_ok: bool = False
    ip_id: int = 0
    tsval: int = 0
    tsecr: int = 0
    sacks: tuple[tuple[int, int], ...] = ()
    evidence: int = 0  # of a recording: bits; the following need it
    sent_by: int = 0
    queued: int = 0
    unsent: int = 0
    held: int = 0
    cwnd: int = 0


@dataclass(slots=True)
class Segment:
    seq: int
    end: int
    first: int
    last: int
    number: int
    last_number: int
    delivered: int
    sent: int = 1
    sacked: bool = False
    arrived: int = NEVER  # at the other end
    answered: bool = False  # the other end acknowledged it; its acknowledgement has not come


@dataclass(slots=True)
class Again:
    """A retransmission that may still prove to be spurious."""

    row: int
    seq: int
    end: int
    ts: int
    tsval: int
    ip_id: int
    acks: int  # acknowledgements that had come before it


def sent_after(again: Again, p: Packet) -> bool | None:
    """Whether the retransmission left after this copy of its data; None: it does not show."""
    if again.tsval and p.tsval and again.tsval != p.tsval:
        return before(p.tsval, again.tsval)
    if again.ip_id or p.ip_id:
        return 0 < ((again.ip_id - p.ip_id) & 0xFFFF) < 0x8000
    return None


@dataclass(slots=True)
class Message:
    number: int = 0
    start: int = 0
    first: int = 0
    last: int = 0
    end: int = 0
    bytes: int = 0
    packets: int = 0
    again: int = 0
    edge: int = 0  # after its last byte
    counted: int = 0  # waits are counted up to here
    late: int = 0  # ns that its last acknowledgement was delayed
    late_label: int = 0
    times: list[int] = field(default_factory=lambda: [0] * len(LABELS))


@dataclass(slots=True)
class Side:
    """One end as a sender of data, and as the receiver of the data of the other end."""

    known: bool = False  # base, nxt
    base: int = 0
    nxt: int = 0
    una: int = 0
    sent_ts: int = NEVER
    sent_number: int = 0
    last_size: int = 0
    small: int = 0  # after the last segment smaller than a full one
    smalls: bool = False
    evidence: int = 0
    last_id: int = 0
    mss: int = 0
    scale: int = -1
    offered: int = 0
    sack_ok: bool = False
    segments: list[Segment] = field(default_factory=list)
    highest_id: int = 0
    # what the other end allows and has
    edge: int = 0
    window: int = -1
    before_flight: int = 0
    before_edge: int = 0
    before_window: int = -1
    in_ts: int = NEVER
    in_number: int = 0
    in_plain: bool = False
    in_late: int = 0  # ns that the last acknowledgement was delayed
    in_label: int = 0
    acks: int = 0  # acknowledgements that came
    since: int = 0  # of them, since the last send
    burst: bool = False  # the last send followed an acknowledgement
    dsacks: int = 0
    duplicates: int = 0
    third_ts: int = NEVER
    sacked: int = 0  # bytes
    state: int = OPEN
    recover: int = 0
    backoff: int = 0
    probed: bool = False  # a tail loss probe is out
    probe_end: int = 0
    probes: int = 0  # of a zero window
    probe_ts: int = NEVER
    srtt: int = 0
    rttvar: int = 0
    min_rtt: int = 0
    delivered: int = 0
    rate: int = 0  # best, bytes/s
    reordering: bool = False
    most: int = 0  # flight
    idle: bool = False  # sending began again after an idle time, with a small window
    again: list[Again] = field(default_factory=list)
    # as a receiver
    expected: int = 0
    expects: bool = False
    acked: int = 0
    pending: int = 0  # bytes
    pending_ts: int = NEVER
    pending_number: int = 0
    doubt: bool = False  # data may be lost behind the tap, up to `doubted`
    doubted: int = 0
    data_ts: int = NEVER
    own_window: int = -1
    zero_windows: int = 0
    late_ack: int = 0
    late: int = 0
    late_label: int = 0
    here: bool = False  # the tap is at this end
    distance: int = 0  # round trip from the tap to this end and back
    message: Message | None = None

    def open_message(self) -> int:
        return self.message.number if self.message is not None else 0


@dataclass(slots=True)
class Flow:
    side: tuple[Side, Side]
    number: int
    both: bool = False
    handshake: int = 0
    messages: int = 0
    syn: int = NEVER
    syn_ack: int = NEVER


def judge(m: dict[str, Any], sender: Side) -> None:
    """What the time of a message above its ideal went to: ideal and times add up to what it took."""
    times = m["times"]
    m["took"] = m["ideal"] = 0
    if m["end"]:
        m["took"], last = m["end"] - m["start"], m["end"] - m["counted"]
        late = min(m["late"], last)
        times[ROUND_TRIP] = last - late
        times[m["late_label"]] += late
        at_best = int(m["bytes"] * 1e9 / sender.rate) if sender.rate else 0
        m["ideal"] = max(min(max(sender.min_rtt, at_best), m["took"]), 0)
    rest = m["ideal"]
    for cause in (SENDING, ROUND_TRIP, LABELS.index("cwnd_limited"), *[-1] * len(LABELS)):
        cause = cause if cause > 0 else times.index(max(times))
        part = min(rest, times[cause])
        times[cause] -= part
        rest -= part
        if rest <= 0:
            break
    m["main"] = times.index(max(times))
