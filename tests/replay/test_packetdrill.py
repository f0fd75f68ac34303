"""Scripts for packetdrill: of its language, and the connection that tshark sees in a replay."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

import replay_lab
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine import script as inputs
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.replay_command import main
from confluo_tools.replay.recording import read_ends
from free_run import SERVER, FreeRun, Traffic, record, write_recording
from netns import Lab
from packetdrill_syntax import Command, PacketScript, ScriptError, SystemCall, TcpPacket, parse

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
DROPS = frozenset((SERVER, n) for n in (4, 5, 20, 40))
TSHARK = ("tcp.seq", "tcp.ack", "tcp.len", "tcp.flags.str", "tcp.window_size_value", "tcp.options.sack_le")


def script_of(path: Path, *words: str) -> PacketScript:
    out = path.with_suffix(".pkt")
    assert main([str(path), "--as-packetdrill", "-w", str(out), "--force", *words]) == 0
    return parse(out.read_text())


def packets_of(script: PacketScript, inbound: bool) -> list[TcpPacket]:
    return [e for e in script.events if isinstance(e, TcpPacket) and e.inbound == inbound]


def seen_by_tshark(capture: Path, server: bool) -> list[tuple[int, int, int, str, int, int]]:
    """(seq, ack, len, flags, window, first SACK edge) of the packets of one end."""
    source = "tcp.srcport == 8080" if server else "tcp.dstport == 8080"
    words = ["tshark", "-r", str(capture), "-Y", source, "-T", "fields"]
    words += [word for name in TSHARK for word in ("-e", name)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("tshark is not installed; bin/check installs it as root")
    found = []
    for line in done.stdout.splitlines():
        seq, ack, length, flags, window, sack = line.split("\t")
        letters = "".join(sorted({"A": ".", "C": "W"}.get(c, c) for c in flags if c.isalpha()))
        found.append((int(seq), int(ack), int(length), letters, int(window), int((sack or "0").split(",")[0])))
    return found


def as_tshark(packet: TcpPacket) -> tuple[int, int, int, str, int, int]:
    sack = next((int(str(o[1])) for o in packet.options if o[0] == "sack"), 0)
    return packet.seq, packet.ack or 0, packet.length, "".join(sorted(packet.flags)), packet.window or 0, sack


@pytest.mark.parametrize("version", [4, 6])
def test_its_packets_are_those_of_a_capture(version: int, tmp_path: Path) -> None:
    path = record(tmp_path / "c.ml", Traffic(60_000, DROPS, version=version))
    capture = tmp_path / "c.pcap"
    assert main([str(path), "--tries", "5", "-q", "-w", str(capture)]) == 0
    script = script_of(path)
    server, client = seen_by_tshark(capture, server=True), seen_by_tshark(capture, server=False)
    assert [as_tshark(p) for p in packets_of(script, inbound=False)] == server
    assert [as_tshark(p) for p in packets_of(script, inbound=True)] == client
    first = str(read_ends(open_records([str(path)]))[0].flow)
    other = script_of(path, "--flow", first)
    got = [as_tshark(p) for p in packets_of(other, inbound=True)]
    lost = {number for _, number in DROPS}
    assert got == [p for number, p in enumerate(server) if number not in lost]
    assert script.options["ip_version"] == f"ipv{version}"


def test_its_calls_are_those_of_the_program(tmp_path: Path) -> None:
    run = FreeRun(Traffic(60_000, DROPS)).run()
    script = script_of(write_recording(tmp_path / "c.ml", run))
    calls = [e for e in script.events if isinstance(e, SystemCall)]
    assert [c.name for c in calls[:4]] == ["socket", "setsockopt", "bind", "listen"]
    names = {inputs.SEND: "send", inputs.RECV: "recv", inputs.SHUTDOWN: "shutdown", inputs.ACCEPT: "accept"}
    expected = []
    for step in run.steps[SERVER]:
        if step.kind in names:
            error = errno.errorcode[-step.result] if step.result < 0 else ""
            result = 4 if step.kind == inputs.ACCEPT else max(step.result, -1)
            expected.append((names[step.kind], step.size, result, error))
    got = [c for c in calls[4:] if c.name in names.values()]
    sizes = [int(str(c.arguments[2])) if c.name in ("send", "recv") else 0 for c in got]
    assert [(c.name, size, c.result, c.error) for c, size in zip(got, sizes, strict=True)] == expected
    assert script.init.count("sysctl -q net.ipv4.tcp_") >= 4
    assert any(isinstance(e, Command) and e.text.endswith("gso_max_segs 1") for e in script.events)


def test_times_and_options(tmp_path: Path) -> None:
    path = record(tmp_path / "c.ml", Traffic(60_000, DROPS, strict=False))
    script = script_of(path)
    server = next(end for end in read_ends(open_records([str(path)])) if not end.client)
    sent = packets_of(script, inbound=False)
    assert sent[0].flags == "S."
    assert [str(o[0]) for o in sent[0].options] == ["mss", "sackOK", "TS", "nop", "wscale"]
    assert sent[0].options[0] == ("mss", 1460)
    stamps = [o for p in sent for o in p.options if o[0] == "TS"]
    assert [o[1] for o in stamps] == list(server.headers_sent["tsval"])
    for packet, ts in zip(sent, server.headers_sent["ts"], strict=True):
        # Times are the recorded ones, except of an event that TCP had before and the recorder saw later.
        assert abs(packet.at - (ts - server.began) / 1000) < 300
    assert all(a.at <= b.at for a, b in zip(script.events, script.events[1:], strict=False))


def test_a_recording_of_a_program(tmp_path: Path) -> None:
    with Lab() as lab:
        words = ("--level", "headers")
        logs = replay_lab.record(replay_lab.routed(lab), tmp_path, replay_lab.BULK, 100_000, options=words)
    sending, receiving = (script_of(log) for log in logs)
    connect = next(e for e in sending.events if isinstance(e, SystemCall) and e.name == "connect")
    assert connect.error == "EINPROGRESS"
    sizes = [e.result for e in sending.events if isinstance(e, SystemCall) and e.name == "send"]
    assert sum(sizes) == 100_000
    assert sum(e.result for e in receiving.events if isinstance(e, SystemCall) and e.name == "recv") == 100_000
    assert max(p.end for p in packets_of(sending, inbound=False) if p.length) == 100_001
    assert max(p.end for p in packets_of(receiving, inbound=True) if p.length) == 100_001


def test_where_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = str(record(tmp_path / "c.ml", Traffic(5_000))), tmp_path / "case.pkt"
    assert main([path, "--as-packetdrill", "-w", str(out)]) == 0
    assert parse(out.read_text())
    assert main([path, "--as-packetdrill", "-w", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main([path, "--as-packetdrill", "-w", str(out), "--force"]) == 0
    assert main([path, "--as-packetdrill", "-o", "pcap"]) == 2
    assert "--as-packetdrill writes a script" in capsys.readouterr().err
    assert main([path, "--as-packetdrill", "--flow", "10.0.0.1:1-10.0.0.2:2"]) == 2
    assert "has no end 10.0.0.1:1-10.0.0.2:2/tcp" in capsys.readouterr().err


def test_without_headers_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FreeRun(Traffic(5_000)).run()
    path, again = write_recording(tmp_path / "c.ml", run, headers=False), tmp_path / "again.ml"
    assert main([str(path), "--as-packetdrill"]) == 2
    assert "write a replay: confluo-replay FILE -w again.ml" in capsys.readouterr().err
    assert main([str(path), "--tries", "5", "-q", "-w", str(again)]) == 0
    whole = script_of(write_recording(tmp_path / "whole.ml", run))
    replayed = script_of(again)
    assert [as_tshark(p) for p in packets_of(whole, False)] == [as_tshark(p) for p in packets_of(replayed, False)]


@pytest.mark.skipif(shutil.which("packetdrill") is None, reason="packetdrill is not installed")
def test_packetdrill_runs_it(tmp_path: Path) -> None:
    path, out = str(record(tmp_path / "c.ml", Traffic(20_000))), tmp_path / "case.pkt"
    assert main([path, "--as-packetdrill", "-w", str(out)]) == 0
    done = subprocess.run(["unshare", "-n", "packetdrill", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+0 < S 0:1(0) win 5",
        "+0 < X 0:0(0)",
        "+0 > . 1:1(0)",
        "+0 < S 0:0(0) <mss>",
        "+0 close(3",
        "0 close(3) = 0 +",
        "+0 send(3, ..., 5, 0) = -1 EAGAIN",
        "+0 < . 1:1(0) ack 1 <sack>",
    ],
)
def test_the_parser_is_strict(text: str) -> None:
    with pytest.raises(ScriptError):
        parse(text)


def test_socket_options(tmp_path: Path) -> None:
    run = FreeRun(Traffic(5_000))
    done = run.run()
    place = next(n for n, s in enumerate(run.steps[SERVER]) if s.kind == inputs.SEND)
    values = ((6 << 16 | 1, 1), (1 << 16 | 13, 1 | 5 << 32), (6 << 16 | 13, int.from_bytes(b"cubic", "little")))
    for flags, value in values:
        step = run.steps[SERVER][place]._replace(kind=inputs.OPTION, size=value, flags=flags, result=0)
        run.steps[SERVER].insert(place, step)
        run.applied[SERVER].insert(place, run.applied[SERVER][place]._replace(result=0))
    run.ends[SERVER].settings |= {"option:TCP_CONGESTION": "reno", "option:SO_SNDBUF": 50_000}
    script = script_of(write_recording(tmp_path / "c.ml", done))
    calls = [e.arguments for e in script.events if isinstance(e, SystemCall) and e.name == "setsockopt"]
    assert calls == [
        ["3", "SOL_SOCKET", "SO_SNDBUFFORCE", ["50000"], "4"],
        ["3", "SOL_TCP", "TCP_CONGESTION", '"reno"', "4"],
        ["3", "SOL_SOCKET", "SO_REUSEADDR", ["1"], "4"],
        ["4", "SOL_TCP", "TCP_CONGESTION", '"cubic"', "5"],
        ["4", "SOL_SOCKET", "SO_LINGER", {"onoff": 1, "linger": 5}, "8"],
        ["4", "SOL_TCP", "TCP_NODELAY", ["1"], "4"],
    ]
