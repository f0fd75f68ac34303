"""A replay as records of the schema `recording`, with a header row for each packet that was sent or processed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from confluo_tools.core.replay.serial_replay import MERGED
from confluo_tools.formats.block_builder import address_columns
from confluo_tools.replay.engine.attempt import Applied, Attempt
from confluo_tools.replay.engine.script import ACCEPT, CLOSE, CONNECT, OPTION, PACKET, POLL, RECV, SEND, SHUTDOWN, Step
from confluo_tools.replay.engine.segments import ACK, SYN, SentPacket, part_of
from confluo_tools.replay.recording import ConnectionEnd, RunWriter
from confluo_tools.replay.recording.digest import header_digests
from confluo_tools.replay.recording.kinds import DIGEST_PACKETS, DIGESTS, Call, Kind, Note, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter

Row = dict[str, Any]
CALLS = {
    CONNECT: Call.CONNECT,
    ACCEPT: Call.ACCEPT,
    SEND: Call.SEND,
    RECV: Call.RECV,
    SHUTDOWN: Call.SHUTDOWN,
    CLOSE: Call.CLOSE,
    OPTION: Call.SETSOCKOPT,
}


def rows_of(done: Attempt, traced: Sequence[Sequence[Row]] = ((), ())) -> list[Row]:
    """The rows of both ends, by time.  ``traced``: further rows of each end, of the kernel's trace points.

    Times are those of the replay, moved to the time of the recording.
    """
    connection = done.script.connection
    out: list[Row] = []
    for side in done.script.sides:
        end = (connection.client, connection.server)[side]
        rows = EndRows(done, side, end).rows()
        out += rows
        common = rows[0]
        out += [{name: common[name] for name in _COMMON if name in common} | row for row in traced[side]]
    out.sort(key=lambda row: row["ts"])
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_COMMON = ("ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port", "cookie", "role")


class EndRows:
    """The rows of one end of a replay."""

    def __init__(self, done: Attempt, side: int, end: ConnectionEnd) -> None:
        self._done, self._side, self._end = done, side, end
        self._origin = done.script.origin[side]
        self._sent = done.segments[side]
        flow = end.flow
        self._common: Row = address_columns("src", flow.src) | address_columns("dst", flow.dst)
        self._common |= {"proto": 6, "src_port": flow.src_port, "dst_port": flow.dst_port, "cookie": end.cookie}
        self._common["role"] = Role.CLIENT if side == 0 else Role.SERVER

    def rows(self) -> list[Row]:
        """All rows of the end; the first is its begin."""
        out = [self._row(self._end.began, Kind.BEGIN)]
        settings = self._end.settings | {"replay": 1}  # timers are not rows of a replay
        out += [self._setting(name, value) for name, value in settings.items()]
        self._calls(out)
        received = list(self._received())
        out += self._runs(Kind.TX, [(s, 0, n, 0) for n, s in enumerate(self._sent)])
        out += self._runs(Kind.RX, received)
        out += [self._header(Kind.SENT, s, n, 0) for n, s in enumerate(self._sent)]
        out += [self._header(Kind.RECEIVED, s, tx, rx) for s, _, tx, rx in received]
        last = max((row["ts"] for row in out), default=self._end.began)
        out += self._digests(last)
        out.append(self._row(max(last, self._end.ended), Kind.END, tx=len(self._sent), rx=len(received)))
        return out

    def _row(self, ts: int, kind: Kind, **more: Any) -> Row:
        return self._common | {"ts": ts, "kind": int(kind), "count": 1} | more

    def _setting(self, name: str, value: int | str) -> Row:
        worth = {"text": value} if isinstance(value, str) else {"value": value}
        return self._row(self._end.began, Kind.SETTING, name=name, **worth)

    def _calls(self, out: list[Row]) -> None:
        writer = RunWriter(lambda row: out.append(self._common | row))
        number = 0
        for step, applied in zip(self._done.steps[self._side], self._done.applied[self._side], strict=False):
            event = self._event(step, applied)
            if event is not None:
                writer.add(event | {"number": number})
                number += 1
        writer.flush()

    def _event(self, step: Step, applied: Applied) -> dict[str, int] | None:
        place = {"ts": applied.at + self._origin, "tx": applied.sent, "rx": applied.received}
        if step.kind == POLL:
            return place | {"kind": Kind.POLL, "bytes": applied.result, "flags": step.flags}
        if step.kind not in CALLS:
            return None
        call = place | {"kind": Kind.CALL, "call": CALLS[step.kind], "bytes": applied.result, "asked": step.size}
        if step.kind == OPTION:
            return call | {"asked": 0, "value": _signed(step.size), "flags": step.flags}
        return call | {"flags": step.flags}

    def _received(self) -> Iterator[tuple[SentPacket, int, int, int]]:
        """(header, notes, packets sent before, its number) of the packets that this end processed."""
        others = self._done.arriving(self._side)
        fed = self._done.script.feeds is not None
        segments = [packet.segments for packet in others]
        for step, applied in zip(self._done.steps[self._side], self._done.applied[self._side], strict=False):
            if step.kind == PACKET and step.packet < len(others):
                numbers = range(step.packet, step.packet + 1) if fed else step.packets(segments)
                segment = part_of(others, numbers, *(0, 0) if fed else step.part)._replace(at=applied.at)
                ecn = 3 if step.mark else segment.ecn
                notes = (Note.CE if ecn == 3 else 0) | (Note.MERGED if step.notes & MERGED else 0)
                yield segment._replace(ecn=ecn), int(notes), applied.sent, applied.received

    def _header(self, kind: Kind, s: SentPacket, tx: int, rx: int) -> Row:
        return self._row(
            s.at + self._origin,
            kind,
            tx=tx,
            rx=rx,
            seq=s.seq,
            ack=s.ack,
            len=s.len,
            tcp_flags=s.flags,
            window=s.window,
            sack=s.sack,
            ecn=s.ecn,
            tsval=s.tsval,
            tsecr=s.tsecr,
            ip_id=s.ip_id,
            segments=s.segments,
        )

    def _runs(self, kind: Kind, packets: Sequence[tuple[SentPacket, int, int, int]]) -> list[Row]:
        """Runs of packets with consecutive IP identification, at an even rate."""
        out: list[Row] = []
        writer = PacketRunWriter(kind, lambda row: out.append(self._common | row))
        for s, notes, tx, rx in packets:
            synack = s.flags & (SYN | ACK) == SYN | ACK
            writer.add(s.at + self._origin, tx, rx, s.ip_id, s.segments, notes, first=synack)
        writer.flush()
        return out

    def _digests(self, ts: int) -> Iterator[Row]:
        digests = header_digests([s.identity for s in self._sent])
        for first in range(0, len(digests), DIGESTS):
            part = digests[first : first + DIGESTS]
            yield self._row(ts, Kind.DIGEST, tx=first * DIGEST_PACKETS, digest=part) | {"count": len(part)}
