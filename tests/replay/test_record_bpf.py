"""confluo-replay-record --source bpf on real TCP: compared with tcpdump, with the other source, and by replaying it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from test_replay_record import MASK, PINGERS, PINGPONG, Sniffed, attached, ends_of, sniffed

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel import bpf_programs
from confluo_tools.kernel.bpf_call import bpf
from confluo_tools.replay.record import bpf_program
from confluo_tools.replay.record.bpf_program import RecorderProgram
from confluo_tools.replay.record.bpf_recorder import BpfRecorder
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection, pair_ends, read_ends
from confluo_tools.replay.recording.digest import header_digests
from confluo_tools.replay.recording.kinds import Call, Kind, Note
from confluo_tools.schema import builtin
from netns import Lab
from replay_lab import BULK, PORT, RECORDER, ROOT, SERVER, dumped, mark_some, record, routed


def unusable() -> str:
    """Why BPF cannot record here; '' when it can."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        RecorderProgram(frozenset()).close()
    except ConfluoError as e:
        if "built without clang" in e.what and shutil.which("clang"):
            raise
        return e.what
    return ""


@pytest.fixture(scope="module", autouse=True)
def usable() -> None:
    if why := unusable():
        pytest.skip(why)


pytestmark = [pytest.mark.root, pytest.mark.net]
BPF = ("--source", "bpf")
SIZE = 300_000
# Of requests: equal calls in a row and between others, so that runs end and begin, some of them relative to others.
SIZES = (500, 1000, 1500, 2000, *(700 + n * n % 7 * 100 for n in range(300)))
GET_PROGRAM = 13  # a command of bpf(2)
UNSEEN = ("the recorder did not see all of its packets", "its IP identifications are not in sequence")
TRIES = 8  # a kernel may run no BPF program for packets that it handles while some task of the system runs


def whole(ends: list[ConnectionEnd]) -> bool:
    return not any(text in UNSEEN for end in ends for text in end.problems)


class Bulk:
    """A bulk transfer through a queue that drops at its tail and marks packets, with captures at both ends."""

    def __init__(self, folder: Path) -> None:
        with Lab() as lab:
            path = routed(lab, rate="50mbit", limit=12_000)
            mark_some(path, 51)
            with dumped(path, folder):
                self.logs = record(path, folder, BULK, SIZE, options=BPF)
        self.ends = [end for log in self.logs for end in ends_of(log)]
        self.captures: list[list[Sniffed]] = [sniffed(folder / f"{name}.pcap") for name in ("client", "server")]

    @property
    def connection(self) -> RecordedConnection:
        (connection,), alone = pair_ends(self.ends)
        assert alone == []
        return connection


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Bulk:
    for _ in range(TRIES):
        found = Bulk(tmp_path_factory.mktemp("bulk"))
        if whole(found.ends):
            break
    return found


def test_packets_are_those_of_the_captures_in_their_order(bulk: Bulk) -> None:
    """All of them, sent and received, with the marks of routers; and digests of the headers sent."""
    connection = bulk.connection
    assert connection.problems == []
    for end, packets in zip((connection.client, connection.server), bulk.captures, strict=True):
        out = [p for p in packets if p.source == end.flow.src]
        into = [p for p in packets if p.source != end.flow.src]
        assert list(end.sent.expanded("ip_id")) == [p.ip_id for p in out]
        assert list(end.received.expanded("ip_id")) == [p.ip_id for p in into]
        assert [bool(n & Note.CE) for n in end.received.expanded("notes")] == [p.ecn == 3 for p in into]
        assert (end.packets_sent, end.packets_received) == (len(out), len(into))
        assert list(end.digests) == header_digests(_identity(end, p) for p in out)
    assert any(p.ecn == 3 for p in bulk.captures[1])
    assert any(p.sack for p in bulk.captures[1])
    assert connection.client.packets_sent > connection.server.packets_received


def _identity(end: ConnectionEnd, p: Sniffed) -> tuple[int, int, int, int, int, tuple[int, ...]]:
    isn, peer = end.setting("isn"), end.setting("peer_isn")
    ack = p.ack - peer & MASK if p.flags & 16 else 0
    return p.seq - isn & MASK, ack, p.len, p.flags, p.window, tuple([edge - peer & MASK for edge in p.sack])


def test_calls_add_up_in_their_order(bulk: Bulk) -> None:
    for end, call in ((bulk.connection.client, Call.SEND), (bulk.connection.server, Call.RECV)):
        events = list(zip(*end.events.in_order("kind", "call", "bytes", "tx", "rx", "number"), strict=True))
        assert sum(e[2] for e in events if e[:2] == (Kind.CALL, call) and e[2] > 0) == SIZE
        assert all(a[3] <= b[3] and a[4] <= b[4] and a[5] < b[5] for a, b in pairwise(events))
        assert [e[1] for e in events if e[1]][-1] == Call.CLOSE
    assert bulk.connection.client.events.expanded("call")[0] == Call.CONNECT


def test_the_recording_replays_alike(bulk: Bulk) -> None:
    replay = str(ROOT / "bin/confluo-replay")
    done = subprocess.run([replay, *bulk.logs, "--tries", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "by digests" in done.stderr


def test_both_sources_record_the_same(tmp_path: Path) -> None:
    """Side by side: packets, digests, calls and settings are equal."""
    for number in range(TRIES):
        logs = [tmp_path / f"{source}{number}.ml" for source in ("bpf", "tracefs")]
        both = _side_by_side(logs)
        if whole(both[0]):
            break
    for ours, other in zip(*both, strict=True):
        assert (ours.flow, ours.role, ours.problems) == (other.flow, other.role, other.problems)
        assert (ours.packets_sent, ours.packets_received) == (other.packets_sent, other.packets_received)
        for side in ("sent", "received"):
            names = ("ip_id", "segments")
            pair = [[list(getattr(end, side).expanded(n)) for n in names] for end in (ours, other)]
            assert pair[0] == pair[1], side
        assert ours.digests == other.digests
        names = ("kind", "call", "bytes", "asked", "flags", "tx", "rx")
        calls = [
            [e for e in zip(*end.events.in_order(*names), strict=True) if e[0] == Kind.CALL] for end in (ours, other)
        ]
        assert calls[0] == calls[1]
        for name in other.settings.keys() - {"began", "phase", "options"}:
            assert ours.settings[name] == other.settings[name], name


def _side_by_side(logs: list[Path]) -> list[list[ConnectionEnd]]:
    with Lab() as lab:
        space = lab.space()
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/lo/disable_ipv6")
        options = ("--port", str(PORT), "--netns", space.name)
        processes = [attached(logs[0], *options, *BPF), attached(logs[1], *options)]
        try:
            with space.inside():
                for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                    with socket.create_server((address, PORT), family=family) as listener:
                        here = socket.create_connection((address, PORT))
                        there, _ = listener.accept()
                    for n in SIZES:
                        here.sendall(b"x" * n)
                        assert len(there.recv(10_000)) == n
                        there.sendall(b"y" * 3000)
                        assert len(here.recv(10_000)) == 3000
                    here.shutdown(socket.SHUT_WR)
                    assert there.recv(10) == b""
                    there.sendall(b"z" * 100)  # the half that is left open
                    assert len(here.recv(1000)) == 100
                    there.close()
                    assert here.recv(10) == b""
                    here.close()
            for process in processes:
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 130
        finally:
            for process in processes:
                process.kill()
                process.wait()
                process.stderr.close()  # type: ignore[union-attr]
    found = [sorted(ends_of(log), key=lambda end: (end.flow, end.role)) for log in logs]
    assert [len(ends) for ends in found] == [4, 4]
    return found


def test_many_connections_at_once_are_all_recorded(tmp_path: Path) -> None:
    many, rounds = 40, 5
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Lab() as lab:
            server = PINGPONG.replace("sys.argv[2]", str(many))
            logs = record(routed(lab), folder, PINGERS, many, rounds, server=server, options=BPF)
        ends = [end for log in logs for end in ends_of(log)]
        if whole(ends):
            break
    connections, alone = pair_ends(ends)
    assert (len(connections), alone) == (many, [])
    for connection in connections:
        assert connection.problems == []
        for end, sent, got in ((connection.client, 100, 300), (connection.server, 300, 100)):
            calls = list(zip(*end.events.in_order("call", "bytes"), strict=True))
            assert sum(b for call, b in calls if call == Call.SEND) == sent * rounds
            assert sum(b for call, b in calls if call == Call.RECV and b > 0) == got * rounds


# Answers each message with the same bytes.
ECHO = (
    SERVER
    + """
c, _ = s.accept()
while data := c.recv(65536):
    c.sendall(data)
c.close()
"""
)
ECHOED = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for n in range(20):
    left = c.send(bytes(1455))
    while left: left -= len(c.recv(left))
c.close()
"""


def test_segments_are_shorter_with_time_stamps(tmp_path: Path) -> None:
    """1455 bytes fit into the announced MSS; with a time stamp in the header they do not, and are two segments."""
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Lab() as lab:
            logs = record(routed(lab), folder, ECHOED, server=ECHO, options=(*BPF, "--grade", "default"))
        ends = [end for log in logs for end in ends_of(log)]
        if whole(ends):
            break
    assert [end.problems for end in ends] == [[], []]
    assert all(list(end.sent.expanded("segments")).count(2) == 20 for end in ends)


def test_a_connection_that_begins_while_the_programs_are_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the attachment of each program is recorded whole, or not, or said to have begun before."""

    def call(command: int, attributes: bytes) -> int:
        done = bpf(command, attributes)
        if command == bpf_programs._OPEN:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                here = socket.create_connection(listener.getsockname())
                there, _ = listener.accept()
            here.sendall(bytes(1000))
            here.close()
            while there.recv(1000):
                pass
            there.close()
        return done

    with Lab() as lab, lab.space().inside():
        recorder = BpfRecorder(builtin("recording"), ports=frozenset())
        with monkeypatch.context() as patch:
            patch.setattr(bpf_programs, "bpf", call)
            recorder.begin()
        ends = read_ends(recorder.poll(last=True))
        recorder.close()
    assert len(ends) >= 2
    assert all(text.startswith("it began before the record") for end in ends for text in end.problems)


def test_only_its_ports_and_connections_of_before_with_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "a.ml"
    with Lab() as lab:
        space = lab.space()
        with space.inside():
            listeners = [socket.create_server(("127.0.0.1", port)) for port in (PORT, PORT + 1)]
            early = socket.create_connection(("127.0.0.1", PORT))
            early_peer, _ = listeners[0].accept()
        process = attached(log, "--port", str(PORT), "--netns", space.name, *BPF)
        try:
            with space.inside():
                late, foreign = (socket.create_connection(("127.0.0.1", port)) for port in (PORT, PORT + 1))
            late_peer, _ = listeners[0].accept()
            for a, b in ((early, early_peer), (late, late_peer)):
                a.sendall(b"x" * 500)
                assert len(b.recv(1000)) == 500
                b.sendall(b"y" * 700)
                assert len(a.recv(1000)) == 700
                a.close()
                b.close()
            for s in (foreign, *listeners):
                s.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
            process.wait()
            process.stderr.close()  # type: ignore[union-attr]
    ends = ends_of(log)
    assert len(ends) == 4
    assert {end.flow.src_port for end in ends if end.role == 2} == {PORT}
    old = [end for end in ends if end.notes & Note.EARLIER]
    assert len(old) == 2
    assert all("it began before the recorder" in end.problems for end in old)
    new = [end for end in ends if not end.notes & Note.EARLIER]
    assert sorted(sum(b for b in end.events.expanded("bytes") if b > 0) for end in new) == [1200, 1200]


def test_a_connection_that_is_refused(tmp_path: Path) -> None:
    """The command has the zone of the user, not that of --tz."""
    program = f"import socket, time; print(time.tzname[0]); socket.create_connection(('127.0.0.1', {PORT}), 5)"
    words = [RECORDER, "run", "-q", *BPF, "--tz", "Asia/Tokyo", "-w", str(tmp_path / "r.ml")]
    words += ["--", sys.executable, "-c", program]
    env = {**os.environ, "TZ": "UTC"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.stdout == "UTC\n"
    assert "ConnectionRefusedError" in done.stderr
    (end,) = ends_of(tmp_path / "r.ml")
    assert (end.role, end.packets_sent, end.packets_received) == (1, 1, 1)


# ---------------------------------------------------------------- what goes wrong


def refusal(words: list[str], **more: str) -> str:
    """The one line that says why recording is not possible."""
    done = subprocess.run(
        [*words, "attach", "--port", "80", "-o", "ndjson", *BPF],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_without_rights_it_says_what_is_needed() -> None:
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    line = refusal([*drop, RECORDER])
    assert "--source bpf: " in line
    assert "CAP_BPF and CAP_PERFMON are needed; leave out --source bpf" in line


def test_an_installation_without_the_program_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_program, "OBJECT", tmp_path / "none.bpf.o")
    with pytest.raises(ConfluoError, match="this installation was built without clang; leave out --source bpf"):
        RecorderProgram(frozenset())


def test_headers_are_not_recorded(tmp_path: Path) -> None:
    words = [RECORDER, "run", *BPF, "--level", "headers", "-w", str(tmp_path / "x.ml"), "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--source bpf: it records no headers" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_in_the_kernel(tmp_path: Path, how: signal.Signals) -> None:
    """However it ends, its programs end with it: nothing of them has a name."""
    process = attached(tmp_path / "k.ml", "--port", "1", *BPF)
    folder = Path(f"/proc/{process.pid}/fdinfo")
    ids = {int(n) for fd in folder.iterdir() for n in re.findall(r"^prog_id:\t(\d+)$", fd.read_text(), re.M)}
    assert len(ids) == 11
    assert all(loaded(n) for n in ids)
    process.send_signal(how)
    process.wait(20)
    process.stderr.close()  # type: ignore[union-attr]
    limit = time.monotonic() + 20
    while any(loaded(n) for n in ids) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(loaded(n) for n in ids)


def loaded(number: int) -> bool:
    """Whether the kernel has a BPF program with this number."""
    try:
        os.close(bpf(GET_PROGRAM, struct.pack("I", number)))
    except FileNotFoundError:
        return False
    return True
