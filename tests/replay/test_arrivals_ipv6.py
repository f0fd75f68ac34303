"""Which packets of IPv6 were lost or late, without an IP identification: by the headers of both ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_recording import ends_of, place
from test_replay_record import connection_of

from confluo_tools.errors import ConfluoError
from confluo_tools.replay.recording.arrivals import arrivals
from confluo_tools.replay.recording.kinds import Kind, Note, Role
from netns import Lab
from replay_lab import BULK, PORT, ROOT, dumped, mark_some, record, routed

CLIENT = place("2001:db8::1", "2001:db8::2")
SERVER = place("2001:db8::2", "2001:db8::1", (80, 4711), role=Role.SERVER, cookie=2)
DELAY = 1_000_000


def headers(common: dict[str, Any], kind: Kind, packets: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Rows of headers at these times with these acknowledgement numbers."""
    index = "rx" if kind == Kind.RECEIVED else "tx"
    rows = [{"kind": kind, "count": 1, "ts": ts, index: n, "ack": ack} for n, (ts, ack) in enumerate(packets)]
    end = {"kind": Kind.END, "count": 1, "ts": 1 << 40, index: len(packets)}
    return [common | row for row in [*rows, end]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(30_000, 500_000)), min_size=1, max_size=80))
def test_losses_and_order_come_back(packets: list[tuple[int, int, int]]) -> None:
    """Packets with a new acknowledgement number or that of the packet before, late by up to 5 places (6: lost)."""
    sent: list[tuple[int, int]] = []
    ts = ack = 0
    for more, _, wait in packets:
        ts, ack = ts + wait, ack + more
        sent.append((ts, ack))
    order = sorted((n + late, n) for n, (_, late, _) in enumerate(packets) if late < 6)
    clock, kept = 0, []
    for _, n in order:
        clock = max(clock + 1, sent[n][0] + DELAY)
        kept.append((clock, sent[n][1]))
    client, server = ends_of(headers(CLIENT, Kind.SENT, sent) + headers(SERVER, Kind.RECEIVED, kept))
    found = list(arrivals(client, server))
    assert len(set(found)) == len(kept)  # each packet arrives once
    assert [sent[n][1] for n in found] == [ack for _, ack in kept]
    count = [a for _, a in sent]
    for n, (_, real) in zip(found, order, strict=True):
        assert count.count(sent[real][1]) > 1 or n == real


def test_a_copy_that_was_not_sent_yet_is_not_the_one_that_arrives() -> None:
    """The first of two equal packets is late; the second leaves after the first has arrived."""
    sent = [(0, 1), (100_000, 2), (200_000, 3), (5_000_000, 1)]
    kept = [(1_100_000, 2), (1_200_000, 3), (1_300_000, 1), (6_000_000, 1)]
    client, server = ends_of(headers(CLIENT, Kind.SENT, sent) + headers(SERVER, Kind.RECEIVED, kept))
    assert list(arrivals(client, server)) == [1, 2, 0, 3]


def test_without_headers_they_are_not_known() -> None:
    client, server = ends_of(headers(CLIENT, Kind.SENT, [(0, 1)]) + headers(SERVER, Kind.RECEIVED, [(9, 1)])[1:])
    with pytest.raises(ConfluoError, match="packets of IPv6 have no identification; record with --level headers"):
        arrivals(client, server)


@pytest.mark.root
@pytest.mark.net
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_real_path_with_losses_and_marks(tmp_path: Path) -> None:
    """Losses and CE of a queue that drops at its tail are those of tcpdump at both ends, and the replay is the same."""
    words = ["-e", "tcp.seq_raw", "-e", "tcp.ack_raw", "-e", "tcp.len", "-e", "ipv6.tclass.ecn"]
    captured: dict[str, list[list[str]]] = {}
    with Lab() as lab:
        path = routed(lab, rate="50mbit", limit=12_000, version=6)
        mark_some(path, 51, "ip6")
        with dumped(path, tmp_path):
            logs = record(path, tmp_path, BULK, 300_000, options=("--level", "headers"))
        for name in ("client", "server"):
            command = ["tshark", "-r", str(tmp_path / f"{name}.pcap"), "-Y", f"tcp.dstport == {PORT}", "-T", "fields"]
            text = subprocess.run([*command, *words], capture_output=True, text=True, check=True).stdout
            captured[name] = [line.split("\t") for line in text.splitlines()]
    connection = connection_of(logs)
    assert connection.problems == []
    found = arrivals(connection.client, connection.server)
    sent, came = captured["client"], captured["server"]
    assert (connection.client.packets_sent, len(found)) == (len(sent), len(came))
    assert [sent[n][:3] for n in found] == [packet[:3] for packet in came]
    assert len(sent) - len(came) > 3
    assert found.count(-1) == 0
    notes = connection.server.received.expanded("notes")
    marks = [n for n, packet in enumerate(came) if packet[3] == "3"]
    assert marks
    assert [n for n, note in enumerate(notes) if note & Note.CE] == marks
    replay = [str(ROOT / "bin/confluo-replay"), *map(str, logs), "--tries", "5"]
    done = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "by headers" in done.stderr
