"""What a recording says about each packet that an end sent: what made TCP send it, and what it had waited for.

Each input of an end has the numbers of packets that the end had sent and processed before; so the last input before a
packet made TCP send it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.replay.explain.labels import EVIDENCE
from confluo_tools.replay.recording.kinds import Call, Kind, Note, Timer

if TYPE_CHECKING:
    from confluo_tools.replay.recording import ConnectionEnd

# Values of `sent_by`, numbers of the core.  0: not known.
PACKET, CALL, RTO, LOSS_PROBE, REORDERING, DELACK, KEEPALIVE, PACE = range(1, 9)
HELD_FULL, HELD_MORE = 1, 2  # bits of `held`
TIMERS, CALLS, PROBES = (1 << EVIDENCE.index(name) for name in ("timers", "calls", "probes"))
KERNEL_RECOVERY, KERNEL_LOSS = 3, 4  # values of states: TCP_CA_Recovery, TCP_CA_Loss
MSG_MORE = 0x8000
TCP_CORK = 6 << 16 | 3  # level and option
AT_ONCE = 1_000_000  # ns: in a replay, what an input makes TCP send follows within this
FIELDS = ("kind", "ts", "number", "tx", "rx", "call", "bytes", "asked", "flags", "value", "timer", "notes", "cwnd")


class SentEvidence(NamedTuple):
    """Columns of a packet that was sent.

    ``evidence``: bits of what is known; ``queued``: ns that data had been waiting in the send buffer; ``unsent``: bytes
    of it before the last input; ``held``: bits; ``cwnd``: packets, 0 if not known.
    """

    evidence: int = 0
    sent_by: int = 0
    queued: int = 0
    unsent: int = 0
    held: int = 0
    cwnd: int = 0


NOTHING = SentEvidence()


class EndInput(NamedTuple):
    """An event of an end, or a packet that it processed (kind `RECEIVED`)."""

    kind: int
    ts: int
    number: int
    tx: int
    rx: int
    call: int = 0
    bytes: int = 0
    asked: int = 0
    flags: int = 0
    value: int = 0
    timer: int = 0
    notes: int = 0
    cwnd: int = 0


@dataclass(slots=True)
class _Sender:
    """What is known of an end at a moment.  Bytes are counted from 1, as sequence numbers after the SYN."""

    written: int = 1
    sent: int = 1
    waiting: int = -1  # ns: since when data has been in the send buffer and not sent; -1: there is none
    full: bool = False  # a call waits for room in the send buffer, or was refused for it
    was_full: bool = False  # so when the data came that now waits
    more: bool = False  # the caller has said that more data follows
    was_more: bool = False  # so before the last call, of data that waited
    unsent: int = 0  # bytes before the last input
    corked: bool = False
    state: int = 0
    cwnd: int = 0
    last: EndInput | None = None  # input
    lost: bool = False  # since then TCP has begun to recover from losses: KERNEL_LOSS
    recovers: bool = False  # KERNEL_RECOVERY

    def take(self, one: EndInput) -> None:
        if one.kind == Kind.PROBE:
            self.cwnd = one.cwnd
        elif one.kind == Kind.STATE:
            self.lost = self.lost or one.value == KERNEL_LOSS
            self.recovers = self.recovers or one.value == KERNEL_RECOVERY
            self.state = one.value
        elif one.kind in (Kind.RECEIVED, Kind.TIMER, Kind.CALL):
            self.unsent = max(self.written - self.sent, 0)
            self.last, self.lost, self.recovers = one, False, self.state == KERNEL_RECOVERY
            if one.kind == Kind.CALL:
                self._call(one)

    def _call(self, one: EndInput) -> None:
        self.was_more = (self.more or self.corked) and self.written > self.sent
        if one.call == Call.SETSOCKOPT and one.flags == TCP_CORK:
            self.corked = bool(one.value)
        if one.call in (Call.CLOSE, Call.SHUTDOWN):
            self.more = False
        if one.call != Call.SEND:
            return
        if one.bytes > 0:
            if self.written == self.sent:
                self.waiting, self.was_full = one.ts, self.full
            self.written += one.bytes
        yields = one.notes & Note.YIELDS
        self.full = bool(one.notes & Note.WAITS) or (not yields and 0 <= max(one.bytes, 0) < one.asked)
        self.more = bool(one.flags & MSG_MORE) and not yields

    def sends(self, ts: int, end: int, known: int) -> SentEvidence:
        """A packet leaves; its payload ends before ``end``."""
        queued = ts - self.waiting if self.waiting >= 0 else 0
        held = HELD_FULL * self.was_full | HELD_MORE * (self.more or self.was_more or self.corked)
        found = SentEvidence(known, self._cause(ts, known), max(queued, 0), self.unsent, held, self.cwnd)
        self.sent = max(self.sent, end)
        self.was_more = False
        if self.sent >= self.written:
            self.waiting = -1
        return found

    def _cause(self, ts: int, known: int) -> int:
        last = self.last
        if not known & TIMERS and (last is None or ts - last.ts > AT_ONCE):
            return RTO if self.lost else 0
        if last is None:
            return 0
        if last.kind == Kind.TIMER:
            if last.timer == Timer.WRITE:
                return RTO if self.lost else REORDERING if self.recovers else LOSS_PROBE
            return {Timer.DELACK: DELACK, Timer.KEEPALIVE: KEEPALIVE}.get(Timer(last.timer), PACE)
        return CALL if last.kind == Kind.CALL else PACKET


def evidence_of(end: ConnectionEnd, *, timers: bool) -> Iterator[SentEvidence]:
    """Of each packet sent, in their order.  ``timers``: the recording has all timers that fired."""
    if not end.events.events or end.lost or end.notes & (Note.EARLIER | Note.CUT):
        yield from [NOTHING] * len(end.headers_sent)
        return
    known = CALLS | TIMERS * timers
    sender, found, place = _Sender(), list(_inputs(end, timers=timers)), 0
    sent = end.headers_sent
    for number, (ts, seq, size) in enumerate(zip(sent["ts"], sent["seq"], sent["len"], strict=True)):
        while place < len(found) and found[place].tx <= number:
            sender.take(found[place])
            place += 1
        if size and seq + size > sender.written:
            known &= ~CALLS  # it sent more than the calls gave it
        yield sender.sends(ts, seq + size if size else 0, known | PROBES * (sender.cwnd > 0))


def _inputs(end: ConnectionEnd, *, timers: bool) -> list[EndInput]:
    """Events and processed packets in their order; those of a trace of a replay have a time, no number in the order."""
    events = [EndInput(*values) for values in zip(*end.events.in_order(*FIELDS), strict=True)]
    got = end.headers_received
    events += [
        EndInput(Kind.RECEIVED, ts, 1 << 62, tx, rx) for ts, tx, rx in zip(got["ts"], got["tx"], got["rx"], strict=True)
    ]
    if timers:
        events.sort(key=lambda one: (one.tx, one.rx, one.number))
    else:
        events.sort(key=lambda one: (one.tx, one.rx, one.kind == Kind.RECEIVED, one.ts))
    return events
