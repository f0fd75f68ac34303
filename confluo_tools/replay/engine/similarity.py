"""How similar two sequences of packets are, also after their first difference."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from confluo_tools.replay.engine.attempt import Attempt
from confluo_tools.replay.engine.segments import SentPacket
from confluo_tools.replay.recording import ConnectionEnd

_FIELDS = ("ts", "seq", "ack", "len", "tcp_flags", "window")


def recorded_packets(end: ConnectionEnd) -> list[SentPacket]:
    """The headers that an end sent, by its recording."""
    rows = zip(*(end.headers_sent[name] for name in _FIELDS), end.sack_sent, strict=True)
    return [SentPacket(at, seq, ack, length, flags, window, sack) for at, seq, ack, length, flags, window, sack in rows]


def similarity(one: Sequence[SentPacket], two: Sequence[SentPacket]) -> float:
    """Share of equal (seq, len, flags) in the same order, from 0 to 1.

    Of what the two have in common at their begin and at their end, and of the matching blocks between.
    """
    a, b = ([(s.seq, s.len, s.flags) for s in side] for side in (one, two))
    if not a and not b:
        return 1.0
    head = _common(a, b)
    a, b = a[head:], b[head:]
    tail = _common(a[::-1], b[::-1])
    a, b = a[: len(a) - tail], b[: len(b) - tail]
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return 2 * (head + tail + sum(block.size for block in blocks)) / (len(one) + len(two))


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items are equal at the begin."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def similarities(done: Attempt) -> dict[int, float]:
    """The similarity of each end that was replayed to its recording, where that has headers."""
    ends = done.script.connection.client, done.script.connection.server
    return {
        side: similarity(recorded_packets(ends[side]), done.segments[side])
        for side in done.script.sides
        if len(ends[side].headers_sent) == ends[side].packets_sent > 0
    }
