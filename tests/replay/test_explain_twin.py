"""The compiled rules of confluo-replay explain against the same in plain Python, packet by packet."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.replay.explainer import Explainer
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.formats.pcap.files import Captures
from confluo_tools.replay.explain import labels
from confluo_tools.replay.explain.evidence import SentEvidence
from confluo_tools.replay.explain.packet_schemas import with_evidence, with_sack
from confluo_tools.schema import builtin
from twin_explain import TwinExplainer
from wire_lab import packets, rows_of_packets, table

CLIENT, SERVER = 0x0A4E0001, 0x0A4E0002
START = 1_700_000_000_000_000_000
NEAR = (0, 7, 0xFFFFF000)  # numbers that are more than 2**31 apart have no order


def frame(side: int, flags: int, seq: int, ack: int, size: int, window: int, options: bytes, ip_id: int) -> bytes:
    options += b"\x01" * (-len(options) % 4)
    head = struct.pack(">HHIIBBHHH", 4711 if not side else 80, 80 if not side else 4711, seq & 0xFFFFFFFF,
                       ack & 0xFFFFFFFF, (20 + len(options)) << 2, flags, window, 0, 0)  # fmt: skip
    ends = (CLIENT, SERVER) if not side else (SERVER, CLIENT)
    total = 20 + len(head) + len(options) + size
    return struct.pack(">BBHHHBBHII", 0x45, 0, total, ip_id & 0xFFFF, 0x4000, 64, 6, 0, *ends) + head + options


def write(path: Path, frames: list[tuple[int, bytes]]) -> Path:
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 101))
        for ts, data in frames:
            size = struct.unpack_from(">H", data, 2)[0]
            out.write(struct.pack("<IIII", ts // 10**9, ts % 10**9, len(data), size) + data)
    return path


@st.composite
def conversations(draw: st.DrawFn, bases: tuple[int, ...] = (*NEAR, 0x7FFFF000)) -> list[tuple[int, bytes]]:
    """Segments near each other in time and in sequence numbers, which may wrap: any of them may come again."""
    base = [draw(st.sampled_from(bases)) for _ in range(2)]
    now, found, ids = START, [], [1, 1]
    syn = struct.pack(">BBHBBBBB", 2, 4, 1460, 4, 2, 3, 3, draw(st.integers(0, 7)))
    if draw(st.booleans()):
        found += [
            (now, frame(0, 2, base[0], 0, 0, 64000, syn, 0)),
            (now + 10_000, frame(1, 18, base[1], base[0] + 1, 0, 64000, syn, 0)),
            (now + 10_000_000, frame(0, 16, base[0] + 1, base[1] + 1, 0, 64000, b"", 0)),
        ]
        now += 10_000_000
    for _ in range(draw(st.integers(1, 60))):
        side = draw(st.integers(0, 1))
        now += draw(st.sampled_from((0, 1000, 900_000, 1_500_000, 12_000_000, 41_000_000, 230_000_000, 1_200_000_000)))
        block = lambda: base[1 - side] + 1 + 1000 * draw(st.integers(0, 12))  # noqa: E731, B023
        options = b""
        if draw(st.integers(0, 3)) == 0:
            edges = [block() & 0xFFFFFFFF for _ in range(2 * draw(st.integers(1, 3)))]
            options = struct.pack(f">BB{len(edges)}I", 5, 2 + 4 * len(edges), *edges)
        flags = 16 | draw(st.sampled_from((0, 0, 0, 0, 0, 0, 1, 4)))
        size = draw(st.sampled_from((0, 0, 1, 500, 1000, 1000, 1000)))
        seq = base[side] + draw(st.sampled_from((0, 1, 1, 1))) + 1000 * draw(st.integers(0, 12))
        ids[side] += 1
        ip_id = draw(st.sampled_from((0, ids[side], ids[side] - 3)))
        window = draw(st.sampled_from((0, 100, 1000, 64000, 64000)))
        found.append((now, frame(side, flags, seq, block(), size, window, options, ip_id)))
    return found


def of_one_tap(path: Path, gap: int, batch: int = 1 << 16) -> tuple[Any, Any]:
    """(what the compiled rules say, what the plain ones say)."""
    explainer, twin = Explainer(with_sack().layout, gap, batch=batch), TwinExplainer(gap)
    for block in Captures([str(path)], with_sack()):
        explainer.feed(block)
    explainer.finish()
    for key, packet in packets(path):
        twin.packet(key, packet)
    twin.finish()
    return (table(explainer, "explanation"), table(explainer, "message")), (twin.rows, twin.messages)


def of_both_ends(paths: tuple[Path, Path], gap: int) -> tuple[Any, Any]:
    """The same for captures of both ends: of the client, which has the lower address, and of the server."""
    twin = TwinExplainer(gap)
    seen = [[(packet, key, tap) for key, packet in packets(path)] for tap, path in enumerate(paths)]
    for packet, key, tap in sorted(seen[0] + seen[1], key=lambda item: item[0].ts):
        twin.packet(key, packet, sent=packet.side == tap, received=packet.side != tap)
    twin.finish()
    blocks = [list(Captures([str(path)], with_sack())) for path in paths]
    explainer = Explainer(with_sack().layout, gap, 2)
    key, _ = Explainer.key(CLIENT.to_bytes(4, "big"), 4711, SERVER.to_bytes(4, "big"), 80)
    for tap in (0, 1):
        explainer.place(tap, {key: tap})
    rows, times = [0, 0], [[p.ts for p, _, _ in tap] + [1 << 62] for tap in seen]
    while any(rows[tap] < len(times[tap]) - 1 for tap in (0, 1)):
        tap = int(times[1][rows[1]] < times[0][rows[0]])
        rows[tap] = explainer.feed(blocks[tap][0], rows[tap], times[1 - tap][rows[1 - tap]], tap)
    explainer.finish()
    return (table(explainer, "explanation"), table(explainer, "message")), (twin.rows, twin.messages)


def compare(found: tuple[Any, Any]) -> None:
    (rows, messages), (twin_rows, twin_messages) = found
    words = {"event": labels.EVENTS, "trigger": labels.TRIGGERS, "certainty": labels.CERTAINTY}
    words |= dict.fromkeys(("label", "why", "cause"), labels.LABELS)
    expected = [
        {name: words[name][value] if name in words else int(value) for name, value in row.items() if name != "side"}
        for row in twin_rows
    ]
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected if expected else rows == []
    assert len(messages) == len(twin_messages)
    for ours, m in zip(messages, twin_messages, strict=True):
        times = {labels.LABELS[i]: ns for i, ns in enumerate(m["times"]) if ns}
        wanted = {"ts": m["start"], "message": m["number"], "bytes": m["bytes"], "packets": m["packets"], **times}
        wanted |= {"retransmissions": m["again"], "took": m["took"], "ideal": m["ideal"]}
        wanted |= {"main": labels.LABELS[m["main"]]}
        wanted |= {"first_packet": m["first"], "last_packet": m["last"], "flow": m["flow"]}
        assert {name: ours.get(name, 0) for name in wanted} == wanted
        if ours["took"] > 0:
            assert ours["took"] == ours["ideal"] + sum(ours.get(name, 0) for name in labels.LABELS)


@settings(max_examples=200, deadline=None)
@given(conversations(), st.sampled_from((0, 1_000_000, 50_000_000)))
def test_any_conversation(tmp_path_factory: pytest.TempPathFactory, frames: list[Any], gap: int) -> None:
    compare(of_one_tap(write(tmp_path_factory.getbasetemp() / "conversation.pcap", frames), gap))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), conversations(NEAR)), min_size=2, max_size=6))
def test_any_conversations_at_a_time(tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]) -> None:
    """Of several ports, one after the other on the same port; sorted by connection in batches of some 32 packets."""
    frames, later = [], [0] * 4
    for port, conversation in drawn:
        at = 12 + 8  # the port of the client, after the addresses
        for ts, frame in conversation:
            place = at if frame[12:16] == CLIENT.to_bytes(4, "big") else at + 2
            frames.append((ts + later[port], frame[:place] + struct.pack(">H", 4711 + port) + frame[place + 2 :]))
        later[port] = frames[-1][0] - START + 1_000_000
    path = write(tmp_path_factory.getbasetemp() / "conversations.pcap", sorted(frames, key=lambda f: f[0]))
    compare(of_one_tap(path, 1_000_000, batch=64))


@settings(max_examples=200, deadline=None)
@given(conversations(), st.lists(st.sampled_from((-1, 0, 5, 5, 5, 30, 300)), min_size=70, max_size=70))
def test_any_conversation_seen_at_both_ends(
    tmp_path_factory: pytest.TempPathFactory, frames: list[Any], delays: list[int]
) -> None:
    """Each packet is lost (-1) or arrives some ms later."""
    taps: tuple[list[Any], list[Any]] = ([], [])
    for i, ((ts, frame), delay) in enumerate(zip(frames, delays, strict=False)):
        side = int(frame[12:16] == SERVER.to_bytes(4, "big"))
        taps[side].append((ts + 2 * i, frame))
        if delay >= 0:
            taps[1 - side].append((ts + delay * 1_000_000 + 2 * i + 1, frame))
    if taps[0] and taps[1]:
        folder = tmp_path_factory.getbasetemp()
        paths = [write(folder / f"end-{n}.pcap", sorted(tap)) for n, tap in enumerate(taps)]
        compare(of_both_ends((paths[0], paths[1]), 1_000_000))


KNOWN = st.builds(
    SentEvidence,
    evidence=st.sampled_from((0, 24, 24, 56)),
    sent_by=st.sampled_from((0, 1, 1, 2, 3, 4, 5, 6, 7, 8)),
    queued=st.sampled_from((0, 1_500_000, 41_000_000)),
    unsent=st.sampled_from((0, 10, 999, 1000, 5000)),
    held=st.integers(0, 3),
    cwnd=st.sampled_from((0, 1, 4, 10)),
)


@settings(max_examples=200, deadline=None)
@given(conversations(), st.lists(KNOWN, min_size=70, max_size=70))
def test_any_recording(tmp_path_factory: pytest.TempPathFactory, frames: list[Any], known: list[Any]) -> None:
    """With what a recording says of each packet."""
    path = write(tmp_path_factory.getbasetemp() / "recording.pcap", frames)
    twin, explainer = TwinExplainer(), Explainer(with_evidence().layout)
    rows = [row | one._asdict() for row, one in zip(rows_of_packets(path), known, strict=False)]
    for block in blocks_of_rows(with_evidence(), rows):
        explainer.feed(block)
    explainer.finish()
    for (key, packet), one in zip(packets(path), known, strict=False):
        twin.packet(key, replace(packet, **one._asdict()))
    twin.finish()
    found = table(explainer, "explanation"), table(explainer, "message")
    compare((found, (twin.rows, twin.messages)))


def test_labels_have_the_same_numbers() -> None:
    """In the schemas, in labels.py, and (by the rows above) in the compiled rules."""
    for kind, fields in {"explanation": ("label", "why", "cause"), "message": ("main",), "cause": ("cause",)}.items():
        for name in fields:
            assert {number: word for number, word in enumerate(labels.LABELS) if number} == dict(
                builtin(kind)[name].names
            )
    schema = builtin("explanation")
    for name, words in {"event": labels.EVENTS, "certainty": labels.CERTAINTY, "trigger": labels.TRIGGERS}.items():
        assert dict(schema[name].names) == {i: word for i, word in enumerate(words) if i}
    assert dict(schema["missing"].names) == {1 << i: word for i, word in enumerate(labels.EVIDENCE)}
