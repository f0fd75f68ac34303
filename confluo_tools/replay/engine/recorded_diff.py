"""Two recordings or replays of one end: the first packet that differs, how similar they are, and their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluo_tools.replay.engine.similarity import recorded_packets, similarity
from confluo_tools.replay.recording import ConnectionEnd
from confluo_tools.replay.recording.kinds import DIGEST_PACKETS


class EndDiff(NamedTuple):
    """``proof``: what was compared; ``first``: number of the first packet that differs, -1: none.

    ``similarity``: share of equal (seq, len, flags) in the same order, from 0 to 1; 0 without headers.
    ``errors``: sorted differences of the times of packets after the begin of the connection, ns.
    """

    proof: str
    packets: tuple[int, int]
    first: int
    expected: str
    came: str
    similarity: float
    errors: list[int]


def end_diff(one: ConnectionEnd, two: ConnectionEnd) -> EndDiff:
    """Compare what two ends sent: by headers if both have them, else by digests."""
    packets = one.packets_sent, two.packets_sent
    errors = _errors(one, two)
    # Without their ends, recordings do not say how many packets there were.
    if len(one.headers_sent) == packets[0] > 0 and len(two.headers_sent) == packets[1] > 0:
        a, b = recorded_packets(one), recorded_packets(two)
        first = _first([s.identity for s in a], [s.identity for s in b])
        expected, came = (str(s[first]) if 0 <= first < len(s) else "no packet" for s in (a, b))
        return EndDiff("headers", packets, first, expected, came, similarity(a, b), errors)
    chunk = _first(list(one.digests), list(two.digests))
    first = chunk * DIGEST_PACKETS if chunk >= 0 else -1
    last = first + DIGEST_PACKETS - 1
    what = f"other headers in packets {first} to {last}" if chunk >= 0 else ""
    proof = "digests" if one.digests and two.digests else ""
    return EndDiff(proof, packets, first, what, what, float(chunk < 0), errors)


def _first(one: Sequence[object], two: Sequence[object]) -> int:
    for place, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return place
    return -1 if len(one) == len(two) else min(len(one), len(two))


def _errors(one: ConnectionEnd, two: ConnectionEnd) -> list[int]:
    if not (one.began and two.began):
        return []  # one of them began before its recording
    times = zip(one.sent.expanded("ts"), two.sent.expanded("ts"), strict=False)
    return sorted(abs((a - one.began) - (b - two.began)) for a, b in times)
