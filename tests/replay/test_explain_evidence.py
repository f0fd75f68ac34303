"""Labels from recordings of real connections: calls and timers decide, as the kernel's own counters and clocks say."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_explain_kernel import CLIENT, SCENARIOS, SERVER

from confluo_tools.replay.engine.replay_command import main as replay
from free_run import PORT, Traffic, record
from real_time import in_real_time
from running import run
from wire_lab import explained, recorded, sent_again, stalls

pytestmark = [pytest.mark.root, pytest.mark.net]
MS = 1_000_000
TICK = 1000 // 100 * MS  # of the kernel, at most
DELAY = 0.01
TIMES = struct.Struct("3Q")  # of struct tcp_info: busy, limited by the receiver, limited by the send buffer; us


class Limited(NamedTuple):
    """How long a sender had data to deliver, of that for how long the window or the send buffer limited it; ns."""

    busy: int
    rwnd: int
    sndbuf: int


def limited(s: socket.socket) -> Limited:
    data = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return Limited(*(us * 1000 for us in TIMES.unpack_from(data, 168)))


@pytest.mark.parametrize("name", ["timeouts", "single packet", "late packets", "3 % of all", "8 % of all", "nagle"])
@in_real_time
def test_timers_decide(name: str, tmp_path: Path) -> None:
    """As many tail loss probes, timeouts, fast retransmissions and ACKs of the timer as the kernels count."""
    rule, traffic = SCENARIOS[name]
    wire, *logs = recorded(rule, traffic, tmp_path)
    both = explained(*logs)[0]
    for side, address in enumerate((CLIENT, SERVER)):
        kernel, mine = wire.counted(side), [r for r in both if r["src_ip"] & 3 == side + 1]
        labels = sent_again(both, address)
        new_data = sum(r["event"] == "gap" and r["label"] == "tlp" for r in mine)
        found = {"TCPTimeouts": labels["rto"], "TCPLossProbes": labels["tlp"] + new_data}
        found |= {"TCPFastRetrans": labels["fast_rtx"] + labels["late_fr"], "TCPSlowStartRetrans": labels["after_rto"]}
        found["DelayedACKs"] = sum(r["event"] == "ack" and r["trigger"] == "timer" for r in mine)
        assert found == {counter: kernel[counter] for counter in found}, (side, labels)
    assert not any(r["missing"] & 24 for r in both)  # timers, calls
    assert all(r["certainty"] == "known" for r in both if r["label"] in ("rto", "tlp"))


def small_buffer(wire: Any) -> Limited:
    """The send buffer holds less than a round trip takes."""
    client, server = wire.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    stalls.transfer(client, server, 300_000)
    return limited(client)


def slow_reader(wire: Any) -> Limited:
    """The application of the receiver reads some of its buffer at a time."""
    client, server = wire.connect()
    writer = threading.Thread(target=client.sendall, args=(bytes(200_000),))
    writer.start()
    for _ in range(50):
        time.sleep(0.01)
        stalls.read_all(server, 4000)
    writer.join()
    stalls.settle(client)
    return limited(client)


def pauses(wire: Any) -> Limited:
    """The application has nothing to send for a while, also while data is on its way."""
    client, server = wire.connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(10):
        client.sendall(bytes(2000))
        time.sleep(0.006)
        client.sendall(bytes(2000))
        stalls.read_all(server, 4000)
    stalls.settle(client)
    return limited(client)


def cork(wire: Any) -> Limited:
    """The application says that more follows, and lets it wait."""
    client, server = wire.connect()
    for _ in range(5):
        client.send(bytes(100), socket.MSG_MORE)
        time.sleep(0.05)
        client.sendall(bytes(100))
        stalls.read_all(server, 200)
        stalls.settle(client)
    return limited(client)


def nagle(wire: Any) -> Limited:
    """Small writes, each of which waits until the one before is acknowledged."""
    client, server = wire.connect()
    for _ in range(10):
        client.sendall(bytes(50))
        client.sendall(bytes(50))
        stalls.read_all(server, 100)
        stalls.settle(client)
    return limited(client)


def bulk(wire: Any) -> Limited:
    client, server = wire.connect()
    stalls.transfer(client, server, 400_000)
    return limited(client)


CASES: dict[str, Callable[[Any], Limited]] = {
    "sndbuf_limited": small_buffer,
    "rwnd_limited": slow_reader,
    "app_limited": pauses,
    "cork": cork,
    "nagle_wait": nagle,
    "cwnd_limited": bulk,
}


@pytest.mark.parametrize("label", CASES)
@in_real_time
def test_calls_decide(label: str, tmp_path: Path) -> None:
    """The time that something limited the sender, next to that of TCP_INFO, which counts in ticks."""
    kernel: list[Limited] = []
    room = "30000" if label == "rwnd_limited" else "3000000"
    settings = {"tcp_congestion_control": "reno", "server": {"tcp_rmem": f"4096 {room} {room}"}}
    _, *logs = recorded(lambda p: DELAY, lambda wire: kernel.append(CASES[label](wire)), tmp_path, **settings)
    rows, messages, _ = explained(*logs)
    sent = [r for r in rows if r["event"] == "gap" and r["message"] and r["src_ip"] & 3 == 1]
    total: dict[str, int] = {}
    for r in sent:
        total[r["label"]] = total.get(r["label"], 0) + r["duration"]
    assert max(total, key=lambda name: total[name]) == label, total
    assert all(r["certainty"] == ("likely" if label == "cork" else "known") for r in sent if r["label"] == label)
    waits = {"rwnd": total.get("rwnd_limited", 0) + total.get("zero_window", 0)}
    waits["sndbuf"] = total.get("sndbuf_limited", 0)
    error = {name: ours - getattr(kernel[0], name) for name, ours in waits.items()}
    assert abs(error["rwnd"]) <= 0.2 * kernel[0].rwnd + 3 * TICK, (total, kernel)
    assert error["sndbuf"] >= -0.2 * kernel[0].sndbuf - 3 * TICK, (total, kernel)  # the kernel counts the surest part
    busy = sum(m["took"] for m in messages if m["src_ip"] & 3 == 1)
    assert abs(busy - kernel[0].busy) <= 0.2 * busy + 3 * TICK, (busy, kernel)


@in_real_time
def test_probes_of_a_replay(tmp_path: Path) -> None:
    """With --trace tcp_probe, the congestion window decides; it is drawn, too."""
    recording, again, picture = tmp_path / "c.ml", tmp_path / "again.ml", tmp_path / "again.svg"
    record(recording, Traffic(150_000, frozenset({(1, 30)}), delay=5_000_000))
    assert replay([str(recording), "-q", "--trace", "tcp_probe,cong_state", "-w", str(again)]) in (0, 3)
    rows = [r for r in explained(again)[0] if r["src_port"] != PORT]  # of the server, which sends the data
    waits = [r for r in rows if r["event"] == "gap" and r["label"] == "cwnd_limited"]
    assert waits
    assert all(r["certainty"] == "known" for r in waits if r["trigger"] == "packet"), waits
    assert {r["missing"] for r in rows[-1:]} == {8}  # timers: a replay has none
    assert run("confluo-replay", "explain", again, "-q", "-w", picture).returncode == 0
    assert 'class="cwnd"' in picture.read_text()
