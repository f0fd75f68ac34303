"""Parts of the recorder: packets as runs, calls in pieces, packets that TCP merges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_recording import ends_of, place

from confluo_tools.replay.record.call_pieces import CallPiece, CallPieces
from confluo_tools.replay.record.end_recorder import EndRecorder, Packet
from confluo_tools.replay.recording.arrivals import arrivals
from confluo_tools.replay.recording.kinds import Call, Kind, Note, Role
from confluo_tools.replay.recording.packet_runs import PacketRunWriter
from confluo_tools.replay.recording.relative_runs import RelativeRuns

SERVER = place("10.0.0.2", "10.0.0.1", (80, 4711), role=Role.SERVER, cookie=2)


@given(
    st.integers(0, 65535),
    st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 20_000)), min_size=1, max_size=120),
)
def test_losses_order_and_marks_come_back(first: int, packets: list[tuple[int, bool, int]]) -> None:
    """Packets that are late by up to 5 places (6: lost), some with CE; identifications wrap around."""
    kept = [(n + late, n, mark, wait) for n, (late, mark, wait) in enumerate(packets) if late < 6]
    order = [(n, mark, wait) for _, n, mark, wait in sorted(kept)]
    rows: list[dict[str, Any]] = []
    mine, theirs = RelativeRuns(Kind.TX), RelativeRuns(Kind.RX)
    sent = PacketRunWriter(Kind.TX, lambda run: rows.append(place() | mine.row(run)))
    came = PacketRunWriter(Kind.RX, lambda run: rows.append(SERVER | theirs.row(run)))
    for n in range(len(packets)):
        sent.add(n * 1000, n, 0, (first + n) & 0xFFFF)
    time = 0
    for place_, (n, mark, wait) in enumerate(order):
        time += wait
        came.add(time, 0, place_, (first + n) & 0xFFFF, notes=Note.CE if mark else 0)
    for writer in (sent, came):
        writer.flush()
    ends = ends_of(rows)
    client = next(e for e in ends if e.client)
    if not order:
        return
    server = next(e for e in ends if not e.client)
    assert list(arrivals(client, server)) == [n for n, _, _ in order]
    assert [bool(note & Note.CE) for note in server.received.expanded("notes")] == [mark for _, mark, _ in order]
    assert sent.jumps == 0


def test_a_send_that_waits_for_room_and_one_that_lets_packets_in() -> None:
    """The kernel begins again where it was: at the sixteenth segment it looked for packets, elsewhere it waited."""
    calls = CallPieces()
    first = calls.send_chunk(0, 7, 40_000, opens=True)
    for n in range(1, 17):
        assert calls.send_chunk(n, 7, 40_000 - n * 1000, opens=True) is None
    second = calls.send_chunk(60, 7, 24_000, opens=True)
    assert calls.send_chunk(61, 7, 23_000, opens=True) is None
    third = calls.send_chunk(900_000, 7, 23_000, opens=True)
    assert calls.send_end(900_001, 7, 0xABC, 40_000, 0) is None
    assert first is not None
    assert second is not None
    assert third is not None
    pieces = [(p.bytes, p.asked, p.notes, p.looked, p.sk) for p in (first, second, third)]
    assert pieces == [
        (16_000, 40_000, Note.YIELDS, True, 0xABC),
        (1_000, 24_000, Note.CONTINUED | Note.WAITS, False, 0xABC),
        (23_000, 23_000, Note.CONTINUED, False, 0xABC),
    ]


@pytest.mark.parametrize("guess", [Note.YIELDS, Note.WAITS])
@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ([(0, 1460, 0), (1460, 1460, 8)], Note.WAITS),
        ([(0, 1460, 8), (1460, 1460, 0)], Note.YIELDS),
        ([(0, 1460, 8), (1460, 2920, 8)], None),  # a packet goes beyond the place
        ([(0, 1460, 8)], None),
    ],
    ids=["push", "none", "beyond", "unsent"],
)
def test_a_push_tells_a_wait_from_a_yield(sent: list[tuple[int, int, int]], found: Note | None, guess: Note) -> None:
    """TCP sets PSH where it waits for room; the guess is used where no packet ends there."""
    rows: list[dict[str, Any]] = []
    end = EndRecorder(place(), rows.append, threshold=0, headers=False, earlier=False)
    end.sent(packet(0, 0, 0)._replace(flags=2, seq=4999))
    end.call(5, CallPiece(5, Call.SEND, 7, 0xABC, 2920, 65536, 0, guess, looked=True))
    end.call(6, CallPiece(6, Call.SEND, 7, 0xABC, 62616, 62616, 0, Note.CONTINUED))
    for n, (seq, length, push) in enumerate(sent, 1):
        end.sent(packet(n, length, 0)._replace(seq=5000 + seq, flags=16 | push))
    end.finish(9, ended=False)
    calls = sorted(
        (row["number"], row["notes"], row["asked"], row["flags"]) for row in rows if row["kind"] == Kind.CALL
    )
    first = (0, Note.WAITS, 65536, 0) if (found or guess) == Note.WAITS else (0, Note.YIELDS, 2920, 0x8000)
    assert calls == [first, (1, Note.CONTINUED, 62616, 0)]


def test_a_send_that_gets_nothing_in() -> None:
    calls = CallPieces()
    piece = calls.send_chunk(5, 7, 500, opens=True)
    calls.send_end(6, 7, 0xABC, -11, 64)
    assert piece is not None
    assert (piece.bytes, piece.asked, piece.notes, piece.flags) == (-11, 500, 0, 64)


def test_a_receive_call_is_where_it_copied_last() -> None:
    calls = CallPieces()
    calls.recv_chunk(10, 7, 0xABC)
    calls.recv_chunk(30, 7, 0xABC)
    piece = calls.recv_end(40, 7, 0xABC, 3000, 0)
    assert (piece.ts, piece.call, piece.bytes, piece.sk) == (30, Call.RECV, 3000, 0xABC)
    assert calls.recv_end(50, 7, 0xABC, -11, 0).ts == 50


def packet(number: int, length: int, ack: int) -> Packet:
    """A packet to the client that came at 1000 * ``number`` ns."""
    at = number * 1000
    there, here = b"\x0a\0\0\2", b"\x0a\0\0\1"
    return Packet(at, 1, there, here, 80, 4711, number, 0, 5000, ack, length, 16, 64, (), 0, 0, 0, -1, False)


def merged(packets: list[Packet], probes: list[tuple[int, int, int]]) -> list[int]:
    """The notes of the packets that an end has processed, with these reports of TCP (time, payload, next una)."""
    rows: list[dict[str, Any]] = []
    end = EndRecorder(place(), rows.append, threshold=0, headers=False, earlier=True)
    for p in packets:
        end.arrived(p)
    for probe in probes:
        end.probe(*probe)
    processed = end.rx
    end.finish(0, ended=False)
    (found,) = ends_of(rows)
    return list(found.received.expanded("notes"))[:processed]


def test_acknowledgements_that_tcp_merged_are_found_by_what_they_acknowledge() -> None:
    acks = [packet(1, 0, 100), packet(2, 0, 200), packet(3, 0, 300)]
    assert merged(acks, [(9000, 0, 200), (9500, 0, -1)]) == [0, Note.MERGED, 0]
    assert merged(acks, [(9000, 0, 100), (9500, 0, 200), (9900, 0, -1)]) == [0, 0, 0]
    assert merged(acks, [(1500, 0, 300)]) == [0]  # the others came later
    assert merged(acks, [(9000, 0, -1)]) == [0, Note.MERGED, Note.MERGED]  # no packet was processed later


def test_data_that_tcp_merged_are_found_by_their_length() -> None:
    data = [packet(1, 1460, 100), packet(2, 1460, 100), packet(3, 500, 100)]
    assert merged(data, [(9000, 2920, -1), (9500, 500, -1)]) == [0, Note.MERGED, 0]


@pytest.mark.parametrize("counter", [5, 900, 20_000, 65_500])
def test_the_last_acknowledgement_may_be_without_a_number(counter: int) -> None:
    """The kernel sends it in the state time-wait, with identification 0, wherever the counter of the socket is."""

    def problem(*flags_and_ids: tuple[int, int]) -> str:
        rows: list[dict[str, Any]] = []
        end = EndRecorder(place(), rows.append, threshold=0, headers=False, earlier=False)
        for flags, ip_id in flags_and_ids:
            end.sent(packet(1, 0, 100)._replace(flags=flags, ip_id=ip_id))
        end.finish(9000, ended=True)
        return end.problem

    assert problem((16, counter), (17, counter + 1), (16, 0)) == ""
    assert problem((16, counter), (17, counter + 1), (16, counter + 3)) == "its IP identifications are not in sequence"
