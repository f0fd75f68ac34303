"""One end of one connection while it is recorded: counts its packets, numbers its inputs, writes them as runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from confluo_tools.replay.record.call_pieces import CallPiece
from confluo_tools.replay.recording.digest import Identity, header_digests
from confluo_tools.replay.recording.kinds import DIGEST_PACKETS, DIGESTS, OUT_OF_SEQUENCE, Call, Kind, Note, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter
from confluo_tools.replay.recording.relative_headers import RelativeHeaders
from confluo_tools.replay.recording.relative_runs import RelativeRuns
from confluo_tools.replay.recording.run_writer import RunWriter

MASK = 0xFFFFFFFF
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
CE = 3
TIMESTAMPS, SACK_HEAD, SACK_EDGE = 12, 4, 4  # bytes of options, which segments have less payload for
MSG_MORE = 0x8000
UNSETTLED = 4096  # pieces of send calls that wait for the packet with their last byte
PENDING = 4096  # packets that wait for TCP; more: their order is lost


class Packet(NamedTuple):
    """A TCP packet as the rings give it: see `HeaderReader.read`."""

    ts: int
    iface: int
    src: bytes
    dst: bytes
    src_port: int
    dst_port: int
    ip_id: int
    ecn: int
    seq: int
    ack: int
    len: int
    flags: int
    window: int
    sack: tuple[int, ...]
    tsval: int
    tsecr: int
    mss: int
    scale: int
    sack_ok: bool


class EndRecorder:
    """``emit`` gets rows; ``place`` are the columns that name this end.  Times are of the wall clock, in ns."""

    def __init__(
        self,
        place: dict[str, Any],
        emit: Callable[[dict[str, Any]], object],
        *,
        threshold: int,
        headers: bool,
        earlier: bool,
    ) -> None:
        self.place, self._emit_row = place, emit
        self.tx = self.rx = self.number = 0
        self.isn = self.peer_isn = -1
        self.mss = 1 << 16
        self.sk = 0
        self.probed = earlier  # whether TCP reports each packet that it processes
        self.closing = 0  # when the socket was closed
        self.last = 0
        self.lost = 0
        self.began = False
        self.iface = -1
        self.problem = "it began before the recorder" if earlier else ""
        self._notes = Note.EARLIER if earlier else 0
        self._written = -1 if earlier else 0  # bytes given to TCP; -1: not known
        self._unsettled: deque[tuple[int, CallPiece, dict[str, int]]] = deque()  # by the bytes written before their end
        self._headers = headers
        self._headers_sent, self._headers_received = RelativeHeaders(Kind.SENT), RelativeHeaders(Kind.RECEIVED)
        self._fins: set[bool] = set()  # True: this end sent a FIN; False: the other one
        self._pending: deque[Packet] = deque()
        self._identities: list[Identity] = []
        self._digests: list[int] = []
        self._digest_from = 0
        self._events = RunWriter(self.emit, threshold)
        received, sent = RelativeRuns(Kind.RX), RelativeRuns(Kind.TX)
        self._received = PacketRunWriter(Kind.RX, lambda run: self.emit(received.row(run)), threshold)
        self._sent = PacketRunWriter(Kind.TX, lambda run: self.emit(sent.row(run)), threshold)

    def emit(self, row: dict[str, Any]) -> None:
        self._emit_row({**self.place, "count": 1, **row})

    def event(self, ts: int, kind: int, tx: int | None = None, rx: int | None = None, **values: int) -> None:
        """An input, or what TCP did, now."""
        self._events.add(self._place(ts, kind) | values)

    def _place(self, ts: int, kind: int) -> dict[str, int]:
        """The place of the next event in the order of this end."""
        place = {"ts": ts, "kind": kind, "number": self.number, "tx": self.tx, "rx": self.rx}
        self.number += 1
        self.last = ts
        return place

    def call(self, ts: int, piece: CallPiece) -> None:
        """A send or receive call, or a piece of one, begins."""
        size = piece.bytes or 0
        if not size and piece.notes & Note.CONTINUED and piece.notes & (Note.YIELDS | Note.WAITS):
            return  # it came to the same place again
        place = self._place(ts, Kind.CALL)
        if piece.call == Call.SEND and size > 0 and self._written >= 0:
            self._written += size
            if piece.looked:
                self._unsettled.append((self._written, piece, place))
                if len(self._unsettled) > UNSETTLED:
                    self._settle(*self._unsettled.popleft()[1:])
                return
        self._settle(piece, place)

    def _settle(self, piece: CallPiece, place: dict[str, int]) -> None:
        size, asked, flags = piece.bytes or 0, piece.asked, piece.flags
        if piece.notes & Note.YIELDS:  # a replay must not go on here, and not push
            asked, flags = size, flags | MSG_MORE
        values = {"call": piece.call, "bytes": size, "asked": asked, "flags": flags, "notes": piece.notes}
        self._events.add(place | values)

    def _pushed(self, p: Packet) -> None:
        """Tell waits from yields: when TCP waits for room, it sets PSH in the last segment so far."""
        end = p.seq + p.len - self.isn - 1 & MASK
        while self._unsettled:
            written, piece, place = self._unsettled[0]
            ahead = written - end & MASK
            if 0 < ahead < 1 << 31:
                return
            if not ahead:
                other = piece.notes & ~(Note.WAITS | Note.YIELDS)
                piece.notes = other | (Note.WAITS if p.flags & PSH else Note.YIELDS)
            self._unsettled.popleft()
            self._settle(piece, place)

    def begin(self, ts: int) -> None:
        self.began = True
        self.emit({"kind": Kind.BEGIN, "ts": ts, "notes": self._notes, "tx": self.tx, "rx": self.rx})

    def setting(self, ts: int, name: str, value: int) -> None:
        self.emit({"kind": Kind.SETTING, "ts": ts, "name": name, "value": value})

    # -- packets

    def _options(self, p: Packet, prefix: str) -> None:
        values = {"mss": p.mss, "wscale": p.scale, "sack": int(p.sack_ok), "timestamps": int(p.tsval > 0)}
        for name, value in values.items():
            self.setting(p.ts, f"{prefix}{name}", value)

    def _segments(self, p: Packet) -> int:
        if len(p.src) == 16:
            return 0
        options = TIMESTAMPS * (p.tsval > 0) + (SACK_HEAD + SACK_EDGE * len(p.sack) if p.sack else 0)
        return max(-(-p.len // max(self.mss - options, 1)), 1) if p.len else 1

    def sent(self, p: Packet) -> None:
        """This end sent a packet."""
        if self.isn < 0 and p.flags & SYN:
            self.isn = p.seq
            self.setting(p.ts, "isn", p.seq)
            self._options(p, "")
        if p.len and self._unsettled:
            self._pushed(p)
        self._digest(p)
        closed = self._after_fin(p, sender=True)
        self._sent.add(p.ts, self.tx, self.rx, p.ip_id, self._segments(p), first=_is_synack(p), closed=closed)
        if self._headers:
            self.emit(self._headers_sent.row(self._header(p, Kind.SENT, self.isn, self.peer_isn)))
        self.tx += 1
        self.last = p.ts

    def arrived(self, p: Packet) -> None:
        """A packet came to this host; TCP may process it later."""
        if self.peer_isn < 0 and p.flags & SYN:
            self.peer_isn = p.seq
            self.setting(p.ts, "peer_isn", p.seq)
            self._options(p, "peer_")
            if p.mss:
                self.mss = p.mss
        if self.probed and not p.flags & (SYN | RST):
            self._pending.append(p)
            if len(self._pending) > PENDING:
                self.processed(self._pending.popleft(), p.ts)
                self.problem = self.problem or "TCP did not report the packets that it processed"
        else:
            self.processed_all(p.ts)
            self.processed(p, p.ts)

    def probe(self, ts: int, length: int, una: int) -> None:
        """TCP processes the oldest packet, or several that it has merged because a call held the socket.

        ``length``: their payload.  ``una``: what was acknowledged when TCP processed the next one; -1: none came for
        long, and packets that had come were processed with this one.
        Packets before them that do not fit were processed in other ways.
        """
        pending = self._pending
        while pending and (pending[0].len > length or (length and not pending[0].len)):
            self.processed(pending.popleft(), ts)
        if not pending:
            return
        first = last = pending.popleft()
        self.processed(first, ts)
        length -= first.len
        while pending and pending[0].ts <= ts and _merged(last, pending[0], length, una):
            last = pending.popleft()
            length -= last.len
            self.processed(last, ts, Note.MERGED)

    def unprobed(self, ts: int) -> None:
        """From now on TCP does not report packets: it is not in the state established any more."""
        self.processed_all(ts)
        self.probed = False

    def processed_all(self, ts: int) -> None:
        while self._pending:
            self.processed(self._pending.popleft(), ts)

    def processed(self, p: Packet, ts: int, merged: int = 0) -> None:
        notes = merged | (Note.CE if p.ecn == CE else 0)
        first, closed = _is_synack(p), self._after_fin(p, sender=False)
        self._received.add(ts, self.tx, self.rx, p.ip_id, self._segments(p), notes, first=first, closed=closed)
        if self._headers:
            header = self._header(p, Kind.RECEIVED, self.peer_isn, self.isn) | {"ts": ts}
            self.emit(self._headers_received.row(header))
        self.rx += 1
        self.last = ts

    def _header(self, p: Packet, kind: int, isn: int, peer_isn: int) -> dict[str, Any]:
        return {
            "kind": kind,
            "ts": p.ts,
            "tx": self.tx,
            "rx": self.rx,
            "ip_id": p.ip_id,
            "ecn": p.ecn,
            "seq": p.seq - isn & MASK,
            "ack": p.ack - peer_isn & MASK if p.flags & ACK else 0,
            "len": p.len,
            "tcp_flags": p.flags,
            "window": p.window,
            "sack": tuple([edge - peer_isn & MASK for edge in p.sack]),
            "tsval": p.tsval,
            "tsecr": p.tsecr,
        }

    def _after_fin(self, p: Packet, *, sender: bool) -> bool:
        """Whether this is an acknowledgement after the FIN of its sender, which may be without a socket by then."""
        if p.flags & FIN:
            self._fins.add(sender)
        return sender in self._fins and p.flags == ACK and not p.len

    def _digest(self, p: Packet) -> None:
        peer = self.peer_isn
        ack = p.ack - peer & MASK if p.flags & ACK else 0
        sack = tuple([edge - peer & MASK for edge in p.sack])
        self._identities.append((p.seq - self.isn & MASK, ack, p.len, p.flags, p.window, sack))
        if len(self._identities) == DIGEST_PACKETS:
            self._hash(p.ts)

    def _hash(self, ts: int) -> None:
        self._digests += header_digests(self._identities)
        self._identities = []
        if len(self._digests) == DIGESTS:
            self._emit_digests(ts)

    def _emit_digests(self, ts: int) -> None:
        if self._digests:
            row = {"kind": Kind.DIGEST, "ts": ts, "tx": self._digest_from, "count": len(self._digests)}
            self.emit(row | {"digest": tuple(self._digests)})
            self._digest_from += len(self._digests) * DIGEST_PACKETS
            self._digests = []

    # -- the end

    def cut(self, ts: int, count: int) -> None:
        """The recorder lost ``count`` events, of this connection or of another one."""
        self.lost += count
        self.emit({"kind": Kind.LOST, "ts": ts, "count": min(count, MASK), "notes": Note.CUT})

    def finish(self, ts: int, *, ended: bool) -> None:
        """Write what is left; with ``ended`` the connection is over, else the recorder."""
        self.processed_all(ts)
        while self._unsettled:
            self._settle(*self._unsettled.popleft()[1:])
        if self._identities:
            self._hash(ts)
        self._emit_digests(ts)
        for writer in (self._events, self._received, self._sent):
            writer.flush()
        if self._sent.jumps and not self.problem:
            self.problem = OUT_OF_SEQUENCE
        if ended:
            notes = self._notes | (Note.UNREPLAYABLE if self.problem or self.lost else 0)
            row = {"kind": Kind.END, "ts": ts, "tx": self.tx, "rx": self.rx, "notes": notes, "text": self.problem}
            self.emit(row)


def _merged(last: Packet, p: Packet, length: int, una: int) -> bool:
    """Whether TCP has merged ``p`` with ``last``: it has some of the payload, or its acknowledgement was processed."""
    if p.len or length:
        return 0 < p.len <= length
    ahead = p.ack - last.ack & MASK
    return 0 < ahead < 1 << 31 and (una < 0 or (una - p.ack & MASK) < 1 << 31)


def _is_synack(p: Packet) -> bool:
    return p.flags & (SYN | ACK) == SYN | ACK


def role_of(p: Packet, *, sender: bool) -> int:
    """The role of the end that sent, or got, a SYN."""
    return Role.CLIENT if sender != _is_synack(p) else Role.SERVER


SEND, RECV = Call.SEND, Call.RECV
