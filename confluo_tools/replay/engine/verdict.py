"""Whether a replay is the recorded connection: by its headers, else by the digests of the headers sent."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluo_tools.replay.engine.attempt import Attempt
from confluo_tools.replay.engine.script import ANY_COUNT, GATE, OPTION, PACKET, POLL, Step, sent_times
from confluo_tools.replay.engine.segments import SentPacket
from confluo_tools.replay.recording import ConnectionEnd
from confluo_tools.replay.recording.digest import header_digests
from confluo_tools.replay.recording.kinds import DIGEST_PACKETS

NAMES = ("client", "server")
UNCOMPARED = (GATE, PACKET, POLL, OPTION)  # of a poll, only the number of ready descriptors is recorded


class Difference(NamedTuple):
    """The first difference of one end.  ``packet``: number of the packet it sent; ``at``: ns after the start."""

    side: int
    packet: int
    at: int
    expected: str
    came: str
    following: str  # the input that was next
    last: int = -1  # it is one of the packets up to this one: digests have no headers

    def __str__(self) -> str:
        if self.last >= 0:
            place = f"{self.packet} to {self.last}" if self.last > self.packet else f"{self.packet}"
            return f"one of the packets {place} of the {NAMES[self.side]}; recordings with --level headers name it"
        where = f"packet {self.packet} of the {NAMES[self.side]} at {self.at / 1e6:.3f} ms"
        text = f"{where}: expected {self.expected}, got {self.came}"
        return f"{text}; next input: {self.following}" if self.following else text


@dataclass
class Verdict:
    """``proof``: what was compared ('headers', 'digests' or ''); ``differences``: the first of each end, by time.

    ``errors``: of the times of the packets sent, in ns, sorted.  A replay is the same when something was compared and
    nothing differs.
    """

    proof: str
    differences: list[Difference]
    errors: list[int]
    packets: int

    @property
    def same(self) -> bool:
        return bool(self.proof) and not self.differences

    def percentile(self, percent: int) -> float:
        """Error of the time of a packet, us."""
        return self.errors[len(self.errors) * percent // 100] / 1000 if self.errors else 0.0


def judge(done: Attempt) -> Verdict:
    """Compare a replay with its recording."""
    ends = done.script.connection.client, done.script.connection.server
    differences, proofs, errors = [], [], []
    for side in done.script.sides:
        end = ends[side]
        proof, found = _compare(done, side, end)
        proofs.append(proof)
        if found is not None:
            differences.append(found)
        errors += _time_errors(done.segments[side], end, done.script.origin[side])
    differences.sort(key=lambda d: d.at)
    proof = "" if "" in proofs else "digests" if "digests" in proofs else "headers"
    return Verdict(proof, differences, sorted(errors), sum(len(done.segments[side]) for side in done.script.sides))


def _compare(done: Attempt, side: int, end: ConnectionEnd) -> tuple[str, Difference | None]:
    """What was compared, and the first difference of one end."""
    came = done.segments[side]
    proof = ""
    if len(end.headers_sent) == end.packets_sent > 0:
        proof = "headers"
        place = _first_header(came, end)
        if place is not None:
            return proof, _difference(done, side, place, _recorded(end, place))
    elif len(end.digests) * DIGEST_PACKETS >= end.packets_sent > 0:
        proof = "digests"
        chunk = _first_digest(came, end)
        if chunk is not None:
            last = min((chunk + 1) * DIGEST_PACKETS, end.packets_sent) - 1
            first = chunk * DIGEST_PACKETS
            found = _difference(done, side, min(first, len(came)), "")
            return proof, found._replace(last=last)
    if len(came) != end.packets_sent and end.packets_sent:
        place = min(len(came), end.packets_sent)
        expected = "no more packets" if len(came) > place else _recorded(end, place)
        return proof or "counts", _difference(done, side, place, expected)
    return proof, _first_call(done, side)


def _first_header(came: Sequence[SentPacket], end: ConnectionEnd) -> int | None:
    columns = [end.headers_sent[name] for name in ("seq", "ack", "len", "tcp_flags", "window")]
    for place, recorded in enumerate(zip(*columns, end.sack_sent, strict=True)):
        if place == len(came) or came[place].identity != recorded:
            return place
    return None if len(came) == end.packets_sent else end.packets_sent


def _first_digest(came: Sequence[SentPacket], end: ConnectionEnd) -> int | None:
    digests = header_digests([s.identity for s in came])
    for chunk, digest in enumerate(end.digests):
        if chunk >= len(digests) or digests[chunk] != digest:
            return chunk
    return None if len(digests) == len(end.digests) else len(end.digests)


def _first_call(done: Attempt, side: int) -> Difference | None:
    """The first call that returned something else."""
    for step, applied in zip(done.steps[side], done.applied[side], strict=False):
        if step.kind not in UNCOMPARED and applied.result != step.result:
            expected = f"that {step}"
            return Difference(side, applied.sent, applied.at, expected, str(applied.result), "")
    return None


def _recorded(end: ConnectionEnd, place: int) -> str:
    if place >= len(end.headers_sent):
        return "a packet" if place < end.packets_sent else "no more packets"
    seq, ack, length, flags, window = (end.headers_sent[n][place] for n in ("seq", "ack", "len", "tcp_flags", "window"))
    return str(SentPacket(0, seq, ack, length, flags, window, end.sack_sent[place]))


def _difference(done: Attempt, side: int, place: int, expected: str) -> Difference:
    came = done.segments[side]
    got = str(came[place]) if place < len(came) else "nothing"
    at = came[place].at if place < len(came) else _waited(done, side)
    following = next((s for s in done.steps[side] if _after(s, place)), None)
    return Difference(side, place, at, expected, got, f"{following}" if following is not None else "")


def _waited(done: Attempt, side: int) -> int:
    """When the replay began to wait for a packet of an end that did not come, ns."""
    place = len(done.applied[side])
    steps = done.steps[side]
    return steps[min(place, len(steps) - 1)].at if steps else 0


def _after(step: Step, place: int) -> bool:
    return step.sent != ANY_COUNT and step.sent > place and step.kind != GATE


def _time_errors(came: Sequence[SentPacket], end: ConnectionEnd, origin: int) -> list[int]:
    sent = sent_times(end) if end.sent.events else array("q")
    return [abs(s.at + origin - ts) for s, ts in zip(came, sent, strict=False)]
