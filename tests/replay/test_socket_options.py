"""Options that programs set: recorded as the kernel got them, and set again by a replay."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_replay_record import connection_of

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.socket_option_trace import MADE, SocketOptionTrace
from confluo_tools.replay.record.socket_options import SocketOptions, listener_options
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple
from confluo_tools.replay.recording.kinds import Call
from confluo_tools.replay.recording.socket_options import (
    IPPROTO_TCP,
    NAMES,
    PREFIX,
    SOL_SOCKET,
    OptionValue,
    congestion_name,
    option_of,
    set_before,
)
from netns import Lab
from replay_lab import ROOT, SINK, record, routed

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NODELAY, CORK = (IPPROTO_TCP, socket.TCP_NODELAY), (IPPROTO_TCP, socket.TCP_CORK)
LINGER = struct.pack("ii", 1, 9137)  # s: no other test has this value


def test_names_are_those_of_the_system() -> None:
    known = [(place, name) for place, name in NAMES.items() if hasattr(socket, name)]
    assert len(known) > 15
    for (_, option), name in known:
        assert getattr(socket, name) == option


@given(st.sampled_from(sorted(NAMES)), st.integers(-(1 << 31), (1 << 31) - 1))
def test_values_come_back_from_settings(place: tuple[int, int], value: int) -> None:
    option = option_of(*place, struct.pack("i", value))
    assert option is not None
    setting = option.setting()
    if option.name == "TCP_CONGESTION":
        assert set_before({str(setting["name"]): setting["text"]}) == []
    else:
        assert set_before({str(setting["name"]): setting["value"]}) == [option]
        assert option.value == value


def test_values_of_other_forms() -> None:
    lingering = option_of(SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    assert lingering is not None
    assert lingering.value == 1 | 5 << 32
    control = option_of(IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic\0\xff\xff\xff")
    assert control is not None
    assert congestion_name(control.value) == "cubic"
    assert option_of(SOL_SOCKET, socket.SO_REUSEADDR, struct.pack("i", 1)) is None
    assert set_before({PREFIX + "SO_NONESUCH": 1, "tcp_nodelay": 1, PREFIX + "TCP_NODELAY": "text"}) == []


def test_a_listener_gives_its_options_to_its_connections() -> None:
    known, one = SocketOptions(), struct.pack("i", 1)
    known.set(7, MADE, 0, b"")
    known.set(7, *NODELAY, one)
    known.listens(7, 80)
    known.set(7, *CORK, one)
    known.listens(8, 80)  # of another network namespace: nothing has said that it was made in this one
    options, problem = known.inherited(80)
    assert [option.name for option in options] == ["TCP_NODELAY", "TCP_CORK"]
    assert problem == ""
    assert known.inherited(81) == ([], "")


def test_an_address_that_is_used_again_has_no_options() -> None:
    known = SocketOptions()
    known.set(7, MADE, 0, b"")
    known.set(7, *NODELAY, struct.pack("i", 1))
    known.set(7, MADE, 0, b"")
    assert known.connects(7) == ([], "")
    known.set(9, MADE, 0, b"")
    known.set(9, IPPROTO_TCP, 31, b"tls\0")
    assert known.connects(9) == ([], "the program uses TCP_ULP, which is not replayed")


def test_sizes_are_those_that_the_recording_host_granted() -> None:
    from confluo_tools.replay.engine.replayed_options import options_before

    end = ConnectionEnd(FiveTuple(4, "10.0.0.1", 1, "10.0.0.2", 2), 1)
    end.settings = {"rmem_max": 4000, PREFIX + "SO_RCVBUF": 9000, PREFIX + "TCP_NODELAY": 1, PREFIX + "SO_SNDBUF": -1}
    assert options_before(end) == ((1, 33, 4000), (6, 1, 1), (1, 32, 1 << 30))


# ---------------------------------------------------------------- the kernel


@root
@pytest.mark.root
def test_the_kernel_reports_each_option_in_order() -> None:
    try:
        trace = SocketOptionTrace()
    except ConfluoError as e:
        pytest.skip(str(e))
    try:
        with Lab() as lab, lab.space().inside(), socket.socket() as elsewhere:
            elsewhere.setsockopt(*NODELAY, 1)
        with socket.socket() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            s.setsockopt(*NODELAY, 1)
            other.setsockopt(SOL_SOCKET, socket.SO_RCVBUF, 7777)
            s.setsockopt(SOL_SOCKET, socket.SO_LINGER, LINGER)
            s.setsockopt(IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            assert s.getsockopt(*NODELAY) == 1
            assert s.getsockopt(SOL_SOCKET, socket.SO_LINGER, 8) == LINGER
            with pytest.raises(FileNotFoundError):  # as without a program
                s.setsockopt(IPPROTO_TCP, socket.TCP_CONGESTION, b"x" * 9000)
        found = trace.read()
        wanted = [
            (MADE, 0, b""),
            (*NODELAY, struct.pack("i", 1)),
            (SOL_SOCKET, socket.SO_LINGER, LINGER),
            (IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"),
        ]
        # Other processes make sockets, too, also where ours was before: this one has the value, from its making on.
        ours = next(o.sk for o in found if (o.name, o.value[:8]) == (socket.SO_LINGER, LINGER))
        seen = [(o.level, o.name, o.value) for o in found if o.sk == ours]
        start = max(n for n in range(seen.index((SOL_SOCKET, socket.SO_LINGER, LINGER))) if seen[n] == wanted[0])
        *some, last = seen[start : start + len(wanted) + 1]
        assert some == wanted
        # The first of two recorders takes a long value from the second one.
        assert last in [(IPPROTO_TCP, socket.TCP_CONGESTION, value) for value in (b"x" * 16, b"")]
        assert all(o.name != socket.SO_RCVBUF or o.value != struct.pack("i", 7777) for o in found)
        times = [o.ts for o in found if o.sk == ours]
        assert times == sorted(times)
        for _ in range(20_000):  # more than the ring has room for
            socket.socket().close()
        assert trace.lost() > 0
        assert len(trace.read()) > 1000
    finally:
        trace.close()


@root
@pytest.mark.root
def test_a_socket_that_listens_already_is_asked() -> None:
    with Lab() as lab, lab.space().inside(), socket.create_server(("127.0.0.1", 8080)) as listener:
        assert list(listener_options(frozenset({8080}))) == [(8080, [])]
        listener.setsockopt(SOL_SOCKET, socket.SO_RCVBUF, 9000)
        listener.setsockopt(*NODELAY, 1)
        found = dict(listener_options(frozenset({8080, 8081})))
        assert sorted(found[8080]) == [OptionValue(SOL_SOCKET, socket.SO_RCVBUF, 9000), OptionValue(*NODELAY, 1)]


TALKER = """
import socket, sys, time
c = socket.socket()
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
c.connect((sys.argv[1], int(sys.argv[2])))
for n in range(12):
    c.send(b"x" * 100)
    c.send(b"y" * 50)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.send(b"x" * 100)
    c.send(b"y" * 1200)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    time.sleep(0.002)
c.close()
"""
SMALL = SINK.replace("print(", "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000)\nprint(", 1)


@root
@pytest.mark.root
@pytest.mark.net
@pytest.mark.parametrize("grade", ["strict", "default"])
def test_options_are_replayed(tmp_path: Path, grade: str) -> None:
    """TCP_NODELAY, TCP_CORK on and off, and a small buffer; without the last two the replay differs."""
    replay = str(ROOT / "bin/confluo-replay")
    for attempt in range(3):  # on a busy machine no try may repeat one recording
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with Lab() as lab:
            logs = record(routed(lab), folder, TALKER, server=SMALL, options=("--grade", grade))
        done = subprocess.run([replay, *logs, "--tries", "5"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    connection = connection_of(logs)
    assert connection.client.settings[PREFIX + "TCP_NODELAY"] == 1
    assert connection.server.settings[PREFIX + "SO_RCVBUF"] == 8000
    calls = list(zip(*connection.client.events.in_order("call", "flags", "value"), strict=True))
    corks = [value for call, flags, value in calls if (call, flags) == (Call.SETSOCKOPT, 6 << 16 | 3)]
    assert corks == [1, 0] * 12
    without = "not (kind == call and call == setsockopt)", f'name != "{PREFIX}SO_RCVBUF"'
    for number, words in enumerate(without):
        other = [tmp_path / f"{number}-{log.stem}.stream" for log in logs]
        for log, target in zip(logs, other, strict=True):
            command = [str(ROOT / "bin/confluo-query"), str(log), words, "-q", "-o", "stream", "-w", str(target)]
            subprocess.run(command, check=True)
        done = subprocess.run([replay, *other], capture_output=True, text=True, check=False)
        assert done.returncode == 3, (words, done.stderr)
