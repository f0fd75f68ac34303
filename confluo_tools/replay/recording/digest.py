"""Digests of the headers that an end sent: a hash of each 64 packets shows whether a replay sent the same ones.

The hash is FNV-1a over 32-bit words, mixed as in `fold6`.  Words of a packet: sequence and acknowledgement number from
the SYN of their end, payload length, flags | number of SACK edges << 9 | window << 16, and the SACK edges.
Initial sequence numbers and time stamps are not part of it: they differ in a replay.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluo_tools.replay.recording.kinds import DIGEST_PACKETS

START = 0x811C9DC5
PRIME = 0x01000193
Identity = tuple[int, int, int, int, int, tuple[int, ...]]  # seq, ack, len, flags, window, SACK edges


def header_digests(headers: Iterable[Identity]) -> list[int]:
    """The digests of the packets of one end, in the order in which it sent them; the last one is of what is left."""
    out: list[int] = []
    digest, count = START, 0
    for seq, ack, length, flags, window, sack in headers:
        for word in (seq, ack, length, flags | len(sack) << 9 | window << 16, *sack):
            digest = ((digest ^ word) * PRIME) & 0xFFFFFFFF
            digest ^= digest >> 15
        count += 1
        if count == DIGEST_PACKETS:
            out.append(digest)
            digest, count = START, 0
    if count:
        out.append(digest)
    return out
