"""confluo-replay explain of recordings: the same labels as of captures at both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_explain_cmd import lines

from confluo_tools import multilog
from confluo_tools.formats.block_builder import address_columns, blocks_of_rows
from confluo_tools.replay.recording.kinds import Call, Kind, Role
from confluo_tools.schema import builtin
from running import run
from wire_lab import needs_wire, packets, stalls

ADDRESSES = ("10.78.0.1", "10.78.0.2")
SYN, ACK = 2, 16
START = 10**18
MASK = 0xFFFFFFFF


def rows_of(path: Path, side: int) -> list[dict[str, Any]]:
    """The capture of one end of one connection as rows of a recording: sequence numbers from 0 at the SYN."""
    found, base, options = [], [0, 0], {}
    captured = [packet for _, packet in packets(path)]
    ports = [0, 0]
    for key, _ in packets(path):
        ports = [key[0][1], key[1][1]]
    for p in captured:
        if p.flags & SYN:
            base[p.side] = p.seq
            options[p.side] = {"mss": p.mss, "wscale": p.scale, "sack": int(p.sack_ok)}
    common = address_columns("src", ADDRESSES[side]) | address_columns("dst", ADDRESSES[1 - side])
    common |= {"proto": 6, "src_port": ports[side], "dst_port": ports[1 - side], "cookie": 1, "count": 1}
    common["role"] = Role.SERVER if side else Role.CLIENT
    found.append(common | {"ts": captured[0].ts, "kind": Kind.BEGIN})
    settings = {"isn": base[side], "peer_isn": base[1 - side]}
    settings |= options[side] | {f"peer_{name}": value for name, value in options[1 - side].items()}
    found += [
        common | {"ts": captured[0].ts, "kind": Kind.SETTING, "name": name.encode(), "value": value}
        for name, value in settings.items()
    ]
    sent = got = 0
    for p in captured:
        back = base[1 - p.side]
        row = {"ts": p.ts, "kind": Kind.SENT if p.side == side else Kind.RECEIVED, "seq": (p.seq - base[p.side]) & MASK}
        row |= {"ack": (p.ack - back) & MASK if p.flags & 16 else 0, "len": p.size, "tcp_flags": p.flags}
        row |= {"window": p.window, "tsval": p.tsval, "tsecr": p.tsecr, "ip_id": p.ip_id}
        row["sack"] = [(edge - back) & MASK for block in p.sacks for edge in block]
        found.append(common | row | {"tx": sent, "rx": got})
        sent, got = sent + (p.side == side), got + (p.side != side)
    return found


def log(path: Path, rows: list[dict[str, Any]]) -> Path:
    with multilog.create(path, builtin("recording")) as made, made.writer() as writer:
        for block in blocks_of_rows(builtin("recording"), rows):
            writer.append(block)
    return path


@pytest.mark.root
@pytest.mark.net
def test_recordings_have_the_labels_of_captures(tmp_path: Path) -> None:
    """Of one end, and of both."""
    needs_wire()
    wire = stalls.run("reorder")
    captures = [wire.capture(side, tmp_path / f"{side}.pcap") for side in (0, 1)]
    logs = [log(tmp_path / f"{side}.ml", rows_of(captures[side], side)) for side in (0, 1)]
    wanted = ("event", "name", "why", "certainty", "duration", "seq", "len", "window", "flight", "message")
    for inputs, recorded in ((captures, logs), (captures[:1], logs[:1])):
        expected = [{name: row[name] for name in wanted} for row in lines(*inputs)]
        assert [{name: row[name] for name in wanted} for row in lines(*recorded)] == expected
        assert any(row["event"] == "retransmission" for row in expected)


def test_calls_that_take_longer_than_a_round_trip(tmp_path: Path) -> None:
    """Over loopback: each packet leaves later after the call began than the answer takes.  They are no one message."""
    common = address_columns("src", ADDRESSES[0]) | address_columns("dst", ADDRESSES[1])
    common |= {"proto": 6, "src_port": 1, "dst_port": 80, "cookie": 1, "count": 1, "role": Role.CLIENT}
    rows, number = [common | {"ts": START, "kind": Kind.BEGIN}], 0
    rows.append(common | {"ts": START, "kind": Kind.SETTING, "name": b"mss", "value": 65_483})

    def packet(us: int, kind: Kind, flags: int, tx: int, rx: int, **more: int) -> None:
        row = {"ts": START + us * 1000, "kind": kind, "tcp_flags": flags, "tx": tx, "rx": rx, "window": 60_000}
        rows.append(common | row | more)

    def call(us: int, which: Call, size: int, tx: int, rx: int) -> None:
        nonlocal number
        row = {"ts": START + us * 1000, "kind": Kind.CALL, "call": which, "bytes": size, "tx": tx, "rx": rx}
        rows.append(common | row | {"number": number})
        number += 1

    call(0, Call.CONNECT, 0, 0, 0)
    packet(1, Kind.SENT, SYN, 0, 0)
    packet(3, Kind.RECEIVED, SYN | ACK, 1, 0, ack=1)
    packet(4, Kind.SENT, ACK, 1, 1, seq=1, ack=1)
    for n in range(5):
        us, seq, got = 100 + 11 * n, 1 + 100 * n, 1 + 200 * n
        call(us, Call.SEND, 100, 2 + n, 1 + n)
        packet(us + 7, Kind.SENT, ACK, 2 + n, 1 + n, seq=seq, ack=got, len=100)
        packet(us + 9, Kind.RECEIVED, ACK, 3 + n, 1 + n, seq=got, ack=seq + 100, len=200)
        call(us + 10, Call.RECV, 200, 3 + n, 2 + n)
    path = log(tmp_path / "calls.ml", rows)
    sent = [m["bytes"] for m in lines(path, "--messages") if m["src_port"] == 1]
    assert sent == [100] * 5
    gaps = [r for r in lines(path, "--gap", "0") if r["event"] == "gap" and r["src_port"] == 1]
    assert {(r["label"], r["certainty"]) for r in gaps} == {("app_limited", "known")}


def test_a_recording_without_headers(tmp_path: Path) -> None:
    """One line that says what can be done."""
    common = address_columns("src", ADDRESSES[0]) | address_columns("dst", ADDRESSES[1])
    common |= {"proto": 6, "src_port": 1, "dst_port": 2, "cookie": 1, "count": 1, "role": Role.CLIENT}
    path = log(tmp_path / "signals.ml", [common | {"ts": 10**18, "kind": Kind.BEGIN}])
    done = run("confluo-replay", "explain", path)
    assert done.returncode == 2
    assert b"contains no packet headers; record with --level headers, or replay it" in done.stderr
    assert done.stderr.count(b"\n") == 1
