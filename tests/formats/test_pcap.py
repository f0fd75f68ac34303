"""Reading pcap and pcapng: against dpkt, against captures made by hand, in pieces, and damaged."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import make_capture as make
from confluo_tools.core.packets.pcap import Capture

SECOND = 10**9
frames = st.lists(st.tuples(st.integers(0, 2**32 * SECOND - 1), st.binary(max_size=90)), max_size=12)


def read(data: bytes, sizes: list[int] | None = None) -> tuple[list[Any], Capture]:
    """All frames of a capture, given whole or in pieces of these sizes (the last size repeats)."""
    if sizes is None:
        capture = Capture(data)
        return list(capture.frames_of()), capture
    capture, got, at = Capture(), [], 0
    while True:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        piece, at = data[at : at + size], at + size
        capture.feed(piece, at > len(data))
        got += list(capture.frames_of())
        if at > len(data):
            return got, capture


@given(frames, st.sampled_from("<>"), st.sampled_from(["us", "ns", "modified"]))
def test_pcap_of_both_orders_and_all_magics(packets: list[make.Packet], order: str, kind: str) -> None:
    got, capture = read(make.pcap(packets, order=order, kind=kind, link=113))
    step = 1 if kind == "ns" else 1000
    assert [(ts, data) for ts, _, _, _, _, data in got] == [(ts // step * step, data) for ts, data in packets]
    assert all((iface, link, length) == (0, 113, len(data)) for _, iface, link, length, _, data in got)
    assert (capture.kind, capture.fault, capture.counts, capture.frames) == ("pcap", "", (0, 0, 0), len(packets))


@given(frames)
def test_pcap_as_dpkt_reads_it(packets: list[make.Packet]) -> None:
    data = make.pcap(packets)
    got, _ = read(data)
    theirs = dpkt.pcap.Reader(io.BytesIO(data))
    assert [(round(float(ts) * 10**6), buf) for ts, buf in theirs] == [(g[0] // 1000, g[5]) for g in got]


@given(frames, st.sampled_from("<>"), st.integers(0, 9))
def test_pcapng_of_any_decimal_resolution(packets: list[make.Packet], order: str, resolution: int) -> None:
    got, capture = read(make.pcapng(packets, order=order, resolution=resolution))
    step = 10 ** (9 - resolution)
    assert [(g[0], g[5]) for g in got] == [(ts // step * step, data) for ts, data in packets]
    assert (capture.kind, capture.fault) == ("pcapng", "")


@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.integers(-(2**62), 2**62) | st.integers(-(2**33), 2**33))
@settings(max_examples=400)
def test_any_resolution_and_offset_is_exact_or_held_within_64_bits(ticks: int, code: int, offset: int) -> None:
    data = make.section() + make.interface(resolution=code, offset=offset) + make.enhanced(ticks, b"x")
    (frame,), capture = read(data)
    units = 2 ** (code & 127) if code & 128 else 10 ** (code & 127)
    ns = ticks * SECOND // units
    exact = min(ns, 2**63 - 1) + offset * SECOND
    if code & 128 == 0 and code > 28:
        exact = frame[0]  # finer than can be told: the time reads as 0
        assert frame[0] == 0
    elif ns >= 2**63 or not -(2**63) <= offset * SECOND < 2**63 or exact >= 2**63:
        assert capture.counts[2] == 1
        assert frame[0] in (2**63 - 1, -(2**63))
        return
    assert (frame[0], capture.counts[2]) == (exact, 0)


@given(st.data())
def test_pieces_of_any_size_give_the_same_frames(data: st.DataObject) -> None:
    packets = data.draw(frames)
    whole = data.draw(
        st.sampled_from(
            [
                make.pcap(packets),
                make.pcapng(packets),
                make.pcap(packets, kind="modified"),
                make.pcapng(packets) + make.pcapng(packets, order=">"),
            ]
        )
    )
    cut = data.draw(st.integers(0, len(whole)))
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=40))
    for content in (whole, whole[:cut]):
        one, capture = read(content)
        many, pieces = read(content, list(sizes))
        assert one == many
        assert (capture.fault, capture.counts, capture.at) == (pieces.fault, pieces.counts, pieces.at)


def test_offsets_lead_back_to_the_records() -> None:
    packets = [(k * SECOND, bytes(k)) for k in range(5)]
    for data, head in ((make.pcap(packets), 16), (make.pcapng(packets), 28)):
        for _, _, _, _, offset, frame in read(data, [7])[0]:
            assert data[offset + head : offset + head + len(frame)] == frame
            length = struct.unpack_from("<I", data, offset + (8 if head == 16 else 20))[0]
            assert length == len(frame)


def test_interfaces_of_every_section_have_numbers_of_their_own() -> None:
    data = b"".join(
        [
            make.section(),
            make.interface(link=1),
            make.interface(link=101, resolution=9),
            make.enhanced(7, b"b", iface=1),
            make.enhanced(2, b"a"),
            make.section(">"),
            make.interface(">", link=113, offset=100),
            make.enhanced(3, b"c", ">"),
        ]
    )
    got, capture = read(data)
    assert [(g[0], g[1], g[2], g[5]) for g in got] == [
        (7, 1, 101, b"b"),
        (2000, 0, 1, b"a"),
        (100 * SECOND + 3000, 2, 113, b"c"),
    ]
    assert capture.interfaces == 3
    again = Capture(data, first_iface=40)
    assert [g[1] for g in again.frames_of()] == [41, 40, 42]
    assert again.interfaces == 43


def test_every_packet_block_and_unknown_ones() -> None:
    data = b"".join(
        [
            make.section(),
            make.interface(snap=4),
            make.block("<", 0x0BAD, b"custom" * 9),
            make.simple(b"abcdef"),
            make.old(5, b"old"),
            make.block("<", 4, b"names!"),
            make.enhanced(6, b"new"),
            make.simple(b"abc", length=99),
        ]
    )
    got, capture = read(data)
    assert [(g[0], g[3], g[5]) for g in got] == [
        (0, 6, b"abcd"),
        (5000, 3, b"old"),
        (6000, 3, b"new"),
        (0, 99, b"abc\0"[:4]),
    ]
    assert (capture.fault, capture.counts) == ("", (0, 0, 0))


def test_large_unknown_blocks_pass_in_pieces() -> None:
    data = make.section() + make.interface() + make.block("<", 77, bytes(3_000_000)) + make.enhanced(1, b"x")
    got, capture = read(data, [65536])
    assert ([g[5] for g in got], capture.fault) == ([b"x"], "")


def test_more_captured_than_on_the_wire_is_kept_and_counted() -> None:
    got, capture = read(make.pcap([(0, b"abcdef")], lengths=[3]))
    assert (got[0][3], got[0][5], capture.counts) == (3, b"abcdef", (1, 0, 0))
    got, capture = read(make.section() + make.interface() + make.enhanced(0, b"abcdef", length=3))
    assert (got[0][3], got[0][5], capture.counts) == (3, b"abcdef", (1, 0, 0))


def test_an_invalid_fraction_is_carried_into_the_seconds() -> None:
    data = bytearray(make.pcap([(5 * SECOND, b"x")]))
    struct.pack_into("<I", data, 28, 2_500_000)
    got, capture = read(bytes(data))
    assert (got[0][0], capture.counts) == (7 * SECOND + SECOND // 2, (0, 0, 1))


@pytest.mark.parametrize(
    ("damage", "packets", "fault"),
    [
        (lambda d: d[:-1], 2, "the last record is cut off"),
        (lambda d: d[:30], 0, "the last record is cut off"),
        (lambda d: d[:3], 0, "the last record is cut off"),
        (lambda d: b"\x7fELF" + d, 0, "not a pcap or pcapng capture"),
        (lambda d: d + b"\xff" * 40, 3, "a record claims an impossible length"),
        (lambda d: d + bytes(5), 3, "the last record is cut off"),
    ],
)
def test_damaged_pcap(damage: Any, packets: int, fault: str) -> None:
    data = damage(make.pcap([(k, b"frame" * k) for k in range(3)]))
    for pieces in (None, [11]):
        got, capture = read(data, pieces)
        assert (len(got), capture.fault) == (packets, fault)


@pytest.mark.parametrize(
    ("tail", "fault", "left_out"),
    [
        (struct.pack("<III", 6, 13, 0), "a block contradicts its own length", 0),
        (struct.pack("<III", 6, 8, 0), "a block contradicts its own length", 0),
        (struct.pack("<IIIII", 6, 20, 0, 0, 16), "a block contradicts its own length", 0),
        (struct.pack("<III", 6, 1 << 30, 0), "a record claims an impossible length", 0),
        (struct.pack("<III", 99, 1 << 30, 0), "the last record is cut off", 0),
        (struct.pack("<III", 0x0A0D0D0A, 28, 0x11223344), "a section has no byte-order mark", 0),
        (make.enhanced(0, b"x", iface=9), "", 1),
        (make.block("<", 1, b""), "", 1),
        (make.block("<", 6, b"short"), "", 1),
        (make.block("<", 6, struct.pack("<IIIII", 0, 0, 0, 5000, 5000)), "", 1),
    ],
)
def test_damaged_pcapng(tail: bytes, fault: str, left_out: int) -> None:
    data = make.pcapng([(1, b"first"), (2, b"second")]) + tail
    for pieces in (None, [5]):
        got, capture = read(data, pieces)
        assert ([g[5] for g in got], capture.fault, capture.counts[1]) == ([b"first", b"second"], fault, left_out)


def test_more_interfaces_than_can_be_numbered_are_left_out() -> None:
    one = make.block("<", 1, struct.pack("<HHI", 1, 0, 0))
    packets = make.enhanced(1, b"last", iface=65_534) + make.enhanced(1, b"-", iface=65_535)
    data = make.section() + one * 65_540 + packets
    got, capture = read(data)
    assert [(g[1], g[5]) for g in got] == [(65_534, b"last")]
    assert (capture.interfaces, capture.counts[1]) == (65_535, 6)


@given(
    st.binary(max_size=200),
    st.sampled_from([make.pcap([]), make.pcap([], kind="ns", order=">"), make.section() + make.interface()]),
)
def test_no_bytes_make_it_fail(data: bytes, start: bytes) -> None:
    got, _ = read(start + data)
    assert read(start + data, [13])[0] == got


def test_feeding_too_early_is_refused() -> None:
    capture = Capture()
    capture.feed(make.pcap([(0, b"a"), (1, b"b")]))
    next(capture.frames_of())
    capture.feed(b"", True)
    with pytest.raises(ValueError, match="not all read"):
        capture.feed(b"")


def test_an_unsealed_end_is_no_damage(tmp_path: Path) -> None:
    assert Capture(b"").fault == ""
    got, capture = read(make.section())
    assert (got, capture.fault) == ([], "")
