"""What a SYN says of its end: the settings of the handshake."""

from __future__ import annotations

_END, _NOTHING, _MSS, _SCALE, _SACK, _STAMP = 0, 1, 2, 3, 4, 8


def handshake_options(header: bytes) -> dict[str, int]:
    """Initial sequence number and options of the TCP header of a SYN: isn, mss, wscale (-1: none), sack, timestamps."""
    found = {"isn": int.from_bytes(header[4:8], "big"), "mss": 0, "wscale": -1, "sack": 0, "timestamps": 0}
    at, end = 20, min((header[12] >> 4) * 4, len(header))
    while at < end and header[at] != _END:
        if header[at] == _NOTHING:
            at += 1
            continue
        size = header[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            break
        value = int.from_bytes(header[at + 2 : at + size], "big")
        if header[at] == _MSS:
            found["mss"] = value
        elif header[at] == _SCALE:
            found["wscale"] = value
        elif header[at] == _SACK:
            found["sack"] = 1
        elif header[at] == _STAMP:
            found["timestamps"] = int(value >> 32 > 0)
        at += size
    return found
