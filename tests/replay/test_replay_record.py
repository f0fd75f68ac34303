"""confluo-replay-record on real TCP: packets, calls and drops of each end, compared with tcpdump and the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from confluo_tools.inputs.open import open_records
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection, pair_ends, read_ends
from confluo_tools.replay.recording.arrivals import arrivals
from confluo_tools.replay.recording.digest import header_digests
from confluo_tools.replay.recording.kinds import Call, Kind, Note
from netns import Lab
from replay_lab import BULK, PORT, RECORDER, ROOT, SERVER, RoutedPath, dumped, mark_some, record, routed
from running import completed

pytestmark = [pytest.mark.root, pytest.mark.net, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SIZE = 1_000_000
MASK = 0xFFFFFFFF


class Sniffed(NamedTuple):
    """A packet as tcpdump stored it and tshark reads it."""

    source: str
    ip_id: int
    ecn: int
    seq: int
    ack: int
    len: int
    flags: int
    window: int
    sack: tuple[int, ...]


FIELDS = "ip.src ip.id ip.dsfield.ecn tcp.seq_raw tcp.ack_raw tcp.len tcp.flags tcp.window_size_value"


def sniffed(path: Path) -> list[Sniffed]:
    words = [w for name in (*FIELDS.split(), "tcp.options.sack_le", "tcp.options.sack_re") for w in ("-e", name)]
    command = ["tshark", "-r", str(path), "-o", "tcp.relative_sequence_numbers:FALSE", "-T", "fields", *words]
    out = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        source, *rest = line.split("\t")
        left, right = rest[7:9]
        pairs = zip(left.split(","), right.split(","), strict=True) if left else ()
        ip_id, ecn, seq, ack, length, flags, window = (int(n, 0) for n in rest[:7])
        sack = tuple(int(edge) for pair in pairs for edge in pair)
        out.append(Sniffed(source, ip_id, ecn, seq, ack, length, flags, window, sack))
    return out


class Recorded(NamedTuple):
    connection: RecordedConnection
    client: list[Sniffed]  # at the client's interface
    server: list[Sniffed]
    path: RoutedPath
    logs: tuple[Path, Path]


def ends_of(log: Path) -> list[ConnectionEnd]:
    with open_records([str(log)]) as reader:
        return read_ends(reader)


def connection_of(logs: tuple[Path, Path]) -> RecordedConnection:
    connections, alone = pair_ends([end for log in logs for end in ends_of(log)])
    assert (len(connections), alone) == (1, [])
    return connections[0]


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A bulk transfer through a queue that drops at its tail; some packets that are left get CE."""
    with bulk_transfer(tmp_path_factory.mktemp("bulk")) as found:
        yield found


@contextmanager
def bulk_transfer(folder: Path) -> Iterator[Recorded]:
    with Lab() as lab:
        path = routed(lab, rate="50mbit", limit=12_000)
        mark_some(path, 151)
        with dumped(path, folder):
            logs = record(path, folder, BULK, SIZE)
        yield Recorded(
            connection_of(logs), sniffed(folder / "client.pcap"), sniffed(folder / "server.pcap"), path, logs
        )


def test_both_ends_can_be_replayed(bulk: Recorded) -> None:
    assert bulk.connection.problems == []


def test_drops_are_the_difference_of_the_captures(bulk: Recorded) -> None:
    """Packet by packet, in both directions."""
    client, server = bulk.connection.client, bulk.connection.server
    sides = (client, server, bulk.client, bulk.server), (server, client, bulk.server, bulk.client)
    for sender, receiver, before, after in sides:
        sent = [p for p in before if p.source == sender.flow.src]
        came = {(p.ip_id, p.seq, p.ack, p.len) for p in after if p.source == sender.flow.src}
        lost = [n for n, p in enumerate(sent) if (p.ip_id, p.seq, p.ack, p.len) not in came]
        found = arrivals(sender, receiver)
        assert (sender.packets_sent, receiver.packets_received) == (len(sent), len(sent) - len(lost))
        assert sorted(set(range(len(sent))) - set(found)) == lost
        if sender is client:
            assert len(lost) > 5
            gaps = receiver.received.expanded("gap")
            assert sum(receiver.received["gap"]) == len(lost) - tail(lost, len(sent)), list(gaps)


def tail(lost: list[int], sent: int) -> int:
    """How many of the last packets were lost: no packet after them shows a gap."""
    return sum(1 for i, n in enumerate(reversed(lost)) if n == sent - 1 - i)


def test_congestion_marks_are_those_of_the_capture(bulk: Recorded) -> None:
    came = [p for p in bulk.server if p.source == bulk.connection.client.flow.src]
    marks = [n for n, p in enumerate(came) if p.ecn == 3]
    notes = bulk.connection.server.received.expanded("notes")
    assert len(marks) > 2
    assert [n for n, note in enumerate(notes) if note & Note.CE] == marks


def test_digests_are_of_the_headers_that_were_captured(bulk: Recorded) -> None:
    for end, packets in ((bulk.connection.client, bulk.client), (bulk.connection.server, bulk.server)):
        isn, peer = end.setting("isn"), end.setting("peer_isn")
        headers = [
            (
                p.seq - isn & MASK,
                p.ack - peer & MASK if p.flags & 16 else 0,
                p.len,
                p.flags,
                p.window,
                tuple([edge - peer & MASK for edge in p.sack]),
            )
            for p in packets
            if p.source == end.flow.src
        ]
        assert list(end.digests) == header_digests(headers)
    assert any(p.sack for p in bulk.server)


def test_calls_add_up(bulk: Recorded) -> None:
    """What was sent, and what was received, is all of the data; inputs are in the order of their counts."""
    for end, call in ((bulk.connection.client, Call.SEND), (bulk.connection.server, Call.RECV)):
        names = ("kind", "call", "bytes", "tx", "rx", "number", "ts")
        events = list(zip(*end.events.in_order(*names), strict=True))
        assert sum(e[2] for e in events if e[:2] == (Kind.CALL, call) and e[2] > 0) == SIZE
        assert [e[5] for e in events] == list(range(len(events)))
        assert all(a[3] <= b[3] and a[4] <= b[4] for a, b in pairwise(events))
        assert events[-1][3] <= end.packets_sent
        assert events[-1][4] <= end.packets_received


def test_a_call_of_the_client_comes_before_its_packets(bulk: Recorded) -> None:
    """Until the first send only the handshake has left; the server's first receive comes after data."""
    client, server = bulk.connection.client, bulk.connection.server
    first = next(e for e in zip(*client.events.in_order("call", "tx", "rx"), strict=True) if e[0] == Call.SEND)
    assert first[1:] == (2, 1)  # SYN and ACK, SYN-ACK
    read = next(e for e in zip(*server.events.in_order("call", "rx", "bytes"), strict=True) if e[0] == Call.RECV)
    assert read[1] >= 3
    assert read[2] > 0


def test_a_blocking_send_is_recorded_in_pieces(bulk: Recorded) -> None:
    """A call that waits for room goes on where there is some: its pieces are what was left of the one before."""
    columns = ("call", "bytes", "asked", "notes")
    sends = [e for e in zip(*bulk.connection.client.events.in_order(*columns), strict=True) if e[0] == Call.SEND]
    waits = [n for n, send in enumerate(sends) if send[3] & (Note.WAITS | Note.YIELDS)]
    assert waits
    for n in waits:
        assert sends[n + 1][3] & Note.CONTINUED
        if sends[n][3] & Note.YIELDS:
            assert sends[n][2] == sends[n][1]
        else:
            assert sends[n + 1][3] & Note.YIELDS or sends[n + 1][2] == sends[n][2] - sends[n][1]


def test_settings_are_there_and_those_of_the_host_are_as_before(bulk: Recorded) -> None:
    settings = bulk.connection.client.settings
    assert settings["grade"] == "strict"
    assert settings["kernel"] == os.uname().release
    assert (settings["tcp_timestamps"], settings["tcp_comp_sack_nr"], settings["tcp_ecn"]) == (0, 0, 1)
    assert (settings["timestamps"], settings["peer_timestamps"]) == (0, 0)
    assert settings["isn"] == bulk.connection.server.settings["peer_isn"]
    names = ("tcp_timestamps", "tcp_moderate_rcvbuf", "tcp_rmem")
    shown = bulk.path.client.run("cat", *(f"/proc/sys/net/ipv4/{name}" for name in names))
    assert shown.stdout.split()[:2] == [b"1", b"1"]
    least, usual, most = shown.stdout.split()[2:]
    assert usual != most
    assert settings["tcp_rmem"] == b" ".join((least, most, most)).decode()
    assert b"gso_max_segs 1 " not in bulk.path.client.run("ip", "-d", "link", "show", "v0").stdout


def test_a_log_of_one_end_is_without_its_half(bulk: Recorded) -> None:
    connections, alone = pair_ends(ends_of(bulk.logs[0]))
    assert connections == []
    assert [why for _, why in alone] == ["the recording of its other end is missing"]


def test_the_recording_replays_alike(bulk: Recorded, tmp_path: Path) -> None:
    """With drops, marks, blocking sends, and digests to compare.

    A processor that stood still may have recorded what no try repeats (docs/replay.md): one of three must be the same.
    """
    done = replayed(bulk.logs)
    for name in "ab":
        if done.returncode == 3:
            (tmp_path / name).mkdir()
            with bulk_transfer(tmp_path / name) as found:
                done = replayed(found.logs)
    assert done.returncode == 0, done.stderr
    assert "by digests" in done.stderr


def replayed(logs: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    words = [str(ROOT / "bin/confluo-replay"), *map(str, logs), "--tries", "3"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


# ---------------------------------------------------------------- many connections

PINGPONG = (
    SERVER
    + """
import selectors, threading
def one(c):
    while data := c.recv(4096):
        c.sendall(data * 3)
    c.close()
done = []
for _ in range(int(sys.argv[2])):
    c, _ = s.accept()
    done.append(threading.Thread(target=one, args=(c,)))
    done[-1].start()
for t in done:
    t.join()
"""
)
PINGERS = """
import selectors, socket, sys
host, port, many, rounds = sys.argv[1], *map(int, sys.argv[2:5])
poll = selectors.EpollSelector()
left = {}
for n in range(many):
    c = socket.create_connection((host, port))
    c.setblocking(False)
    poll.register(c, selectors.EVENT_READ)
    left[c] = [rounds, 0]
    c.send(b"x" * 100)
while left:
    for key, _ in poll.select():
        c = key.fileobj
        state = left[c]
        state[1] += len(c.recv(65536))
        if state[1] == 300:
            state[0] -= 1
            state[1] = 0
            if state[0]:
                c.send(b"x" * 100)
            else:
                poll.unregister(c)
                del left[c]
                c.close()
"""


def test_many_connections_at_once_are_all_recorded(tmp_path: Path) -> None:
    """An epoll client, and a server with a thread for each connection."""
    many, rounds = 40, 10
    with Lab() as lab:
        path = routed(lab)
        server = PINGPONG.replace("sys.argv[2]", str(many))
        logs = record(path, tmp_path, PINGERS, many, rounds, server=server)
    connections, alone = pair_ends([end for log in logs for end in ends_of(log)])
    assert (len(connections), alone) == (many, [])
    assert [c.problems for c in connections if c.problems] == []
    for connection in connections:
        for end, sent, got in ((connection.client, 100, 300), (connection.server, 300, 100)):
            total: dict[int, int] = defaultdict(int)
            for call, size in zip(*end.events.in_order("call", "bytes"), strict=True):
                total[call] += max(size, 0)
            assert (total[Call.SEND], total[Call.RECV]) == (sent * rounds, got * rounds)
        assert sorted(arrivals(connection.client, connection.server)) == list(range(connection.client.packets_sent))
        calls = [call for call in next(connection.server.events.in_order("call")) if call]
        assert (calls[0], calls.count(Call.ACCEPT)) == (Call.ACCEPT, 1)


SELECTS = """
import select, socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.setblocking(False)
left = 400_000
while left:
    select.select([], [c], [])
    left -= c.send(bytes(min(left, 40_000)))
c.close()
"""


def test_a_poll_before_each_send_is_recorded(tmp_path: Path) -> None:
    """A poll of a full socket changes how much later calls take: it is an input."""
    with Lab() as lab:
        logs = record(routed(lab), tmp_path, SELECTS)
    client = connection_of(logs).client
    assert client.problems == []
    inputs = zip(*client.events.in_order("kind", "call", "notes"), strict=True)
    order = [
        "poll" if kind == Kind.POLL else "send"
        for kind, call, notes in inputs
        if kind == Kind.POLL or (call == Call.SEND and not notes & Note.CONTINUED)
    ]
    assert order.count("send") >= 10
    assert [place for place, (a, b) in enumerate(pairwise(order)) if b == "send" and a != "poll"] == [], order


# ---------------------------------------------------------------- attach


def attached(log: Path, *options: str) -> subprocess.Popen[str]:
    words = [RECORDER, "attach", "-w", str(log), *options]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert "recording; pid" in process.stderr.readline()  # type: ignore[union-attr]
    return process


def instances(pid: int) -> list[str]:
    return [name for name in os.listdir("/sys/kernel/tracing/instances") if f"-record-{pid}-" in name]


def gone(pid: int) -> bool:
    end = time.monotonic() + 20
    while instances(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return instances(pid) == []


TWO_CONNECTIONS = (
    SERVER
    + """
def take(n):
    c, _ = s.accept()
    c.sendall(b"y" * n)
    return c
"""
)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_attach_records_a_service_until_a_signal(tmp_path: Path, end: signal.Signals) -> None:
    """A connection of before is recorded from then on, with a reason; nothing is left behind, however it ends."""
    import socket

    log = tmp_path / "a.ml"
    with Lab() as lab:
        space = lab.space()
        with space.inside():
            listener = socket.create_server(("127.0.0.1", PORT))
            early = socket.create_connection(("127.0.0.1", PORT))
            early_peer, _ = listener.accept()
        process = attached(log, "--port", str(PORT), "--netns", space.name)
        try:
            assert len(instances(process.pid)) == 2  # TCP, and polls
            with space.inside():
                late = socket.create_connection(("127.0.0.1", PORT))
                other = socket.create_server(("127.0.0.1", PORT + 1))
                foreign = socket.create_connection(("127.0.0.1", PORT + 1))
            late_peer, _ = listener.accept()
            for a, b in ((early, early_peer), (late, late_peer)):
                a.sendall(b"x" * 500)
                assert len(b.recv(1000)) == 500
                b.sendall(b"y" * 700)
                assert len(a.recv(1000)) == 700
                a.close()
                b.close()
            for s in (other, foreign, listener):
                s.close()
            wait_for_rows(log, 2 if end == signal.SIGKILL else 0)
            process.send_signal(end)
            assert process.wait(20) == (130 if end == signal.SIGINT else -9)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()  # type: ignore[union-attr]
        assert gone(process.pid)
    ends = ends_of(log)
    assert len(ends) == 4
    new = [e for e in ends if not e.notes & Note.EARLIER]
    assert [e.problems for e in new] == [[], []]
    assert sorted(sum(b for b in e.events.expanded("bytes") if b > 0) for e in new) == [1200, 1200]
    for e in ends:
        if e.notes & Note.EARLIER:
            assert "it began before the recorder" in e.problems


def wait_for_rows(log: Path, ends: int) -> None:
    """Until the log has the ends of so many connections."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if sum(1 for e in ends_of(log) if e.ended) >= ends:
            return
        time.sleep(0.05)


def test_a_new_namespace_joins_a_bridge(tmp_path: Path) -> None:
    """The command reaches the host over it, the veth pair ends with it, and a bridge that is not there is an error."""
    program = "import socket; socket.create_connection(('10.99.0.1', 7), 5)"
    with Lab() as lab:
        host = lab.space()
        host.ip("link", "add", "br0", "type", "bridge")
        host.ip("addr", "add", "10.99.0.1/24", "dev", "br0")
        host.ip("link", "set", "br0", "up")
        words = [RECORDER, "run", "-q", "-w", tmp_path / "b.ml", "--bridge", "br0", "--address", "10.99.0.2/24"]
        done = host.run(*words, "--", sys.executable, "-c", program, check=False)
        assert b"ConnectionRefusedError" in done.stderr
        (end,) = ends_of(tmp_path / "b.ml")
        assert (end.flow.src, end.flow.dst_port, end.packets_sent, end.packets_received) == ("10.99.0.2", 7, 1, 1)
        words[4:8] = [tmp_path / "c.ml", "--bridge", "br1", "--address"]
        done = host.run(*words, "--", "true", check=False)
        assert done.returncode == 2
        assert b"--bridge br1: is not a bridge; ip link show type bridge lists those" in done.stderr
        limit = time.monotonic() + 20
        while b"veth" in host.run("ip", "-d", "link").stdout and time.monotonic() < limit:
            time.sleep(0.05)
        assert b"veth" not in host.run("ip", "-d", "link").stdout


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["attach"], "--port is missing; it names the service, for example --port 8080"),
        (["attach", "--port", "http"], "--port: 'http' is not a port; 1 to 65535 are"),
        (["attach", "--port", "0"], "--port: '0' is not a port; 1 to 65535 are"),
        (["attach", "--port", "80", "-i", "nic0"], "nic0: there is no such interface"),
        (["run", "--netns", "no-such", "--", "true"], "no-such: is not a network namespace: No such file"),
        (["run", "--grade", "exact", "--", "true"], "--grade: not 'exact'; there are strict, default"),
        (["run", "--level", "all", "--", "true"], "--level: not 'all'; there are signals, headers"),
        (["run", "--bridge", "br0", "--", "true"], "--bridge and --address belong together"),
        (["run", "--gateway", "10.0.0.1", "--", "true"], "--gateway: is reached over a bridge; give --bridge and"),
        (["run", "--", "/no/such/program"], "/no/such/program: cannot be run: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], line: str, tmp_path: Path) -> None:
    out = ["-w", str(tmp_path / "x.ml")]
    done = completed([RECORDER, words[0], "-q", *out, *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_status_is_that_of_the_command(tmp_path: Path) -> None:
    for number, status in ((3, 3), (0, 0)):
        words = [RECORDER, "run", "-q", "-w", str(tmp_path / f"{number}.ml"), "--", "sh", "-c", f"exit {number}"]
        assert subprocess.run(words, check=False).returncode == status


STUBBORN = """import signal, socket, sys, time
from pathlib import Path
folder = Path(sys.argv[1])

def end(*_):
    talk()
    while not (folder / "go").exists():
        time.sleep(0.02)
    (folder / "ended").touch()
    sys.exit(5)

def talk():
    with socket.create_connection(listener.getsockname()) as a, listener.accept()[0] as b:
        a.sendall(b"x")
        b.recv(1)

signal.signal(signal.SIGTERM, end)
listener = socket.create_server(("127.0.0.1", 0))
(folder / "ready").touch()
while True:
    time.sleep(0.02)
    if (folder / "talk").exists():
        talk()
"""


@contextmanager
def stubborn(folder: Path, *out: str) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder with a command that goes on after SIGTERM: it has a connection, and waits for the file go."""
    words = [RECORDER, "run", "-q", *out, "--", sys.executable, "-c", STUBBORN, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as recorder:
        try:
            limit = time.monotonic() + 20
            while not (folder / "ready").exists() and time.monotonic() < limit:
                time.sleep(0.02)
            yield recorder
        finally:
            (folder / "go").touch()


def test_a_command_ends_when_its_records_cannot_be_written(tmp_path: Path) -> None:
    """The reader of the pipe has gone: the command gets SIGTERM, and the recorder waits for it."""
    (tmp_path / "go").touch()
    with stubborn(tmp_path, "-o", "ndjson") as recorder:
        recorder.stdout.close()  # type: ignore[union-attr]
        (tmp_path / "talk").touch()
        assert recorder.wait(30) == 141
        assert (tmp_path / "ended").exists()
        (tmp_path / "talk").unlink()


def test_what_a_command_does_after_a_signal_is_recorded(tmp_path: Path) -> None:
    with stubborn(tmp_path, "-w", str(tmp_path / "a.ml")) as recorder:
        recorder.terminate()
        wait_for_rows(tmp_path / "a.ml", 2)
        assert [e.packets_sent > 2 for e in ends_of(tmp_path / "a.ml")] == [True, True]
        assert not (tmp_path / "ended").exists()
        (tmp_path / "go").touch()
        assert recorder.wait(30) == 5
