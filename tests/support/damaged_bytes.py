"""Bytes with faults, for decoders of what other processes and hosts send."""

from __future__ import annotations

from hypothesis import strategies as st


def damaged(good: bytes, data: st.DataObject) -> bytes:
    """``good`` with one to four faults: bytes that are changed, cut off, put in or left out."""
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad)))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "remove"]))
        if kind == "set" and at < len(bad):
            bad[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
        elif kind == "cut":
            del bad[at:]
        elif kind == "insert":
            bad[at:at] = data.draw(st.binary(max_size=12))
        else:
            del bad[at : at + data.draw(st.integers(1, 9))]
    return bytes(bad)
