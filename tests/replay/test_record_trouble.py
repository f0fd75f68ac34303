"""Recorders without rights, clocks that are set, recordings that are kept for a while, halves that do not fit."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_recording import SCHEMA
from test_recording_reader import WHOLE
from test_replay_record import attached, ends_of, wait_for_rows

from confluo_tools import multilog
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.replay.engine.replay_command import main as replay
from confluo_tools.replay.record import recorder as recorders
from confluo_tools.replay.record import setting_rows
from confluo_tools.replay.record.session import recording_schema
from confluo_tools.replay.recording import ConnectionEnd, pair_ends, read_ends
from confluo_tools.replay.recording.kinds import Kind, Note
from netns import Lab
from replay_lab import PORT, ROOT

pytestmark = [pytest.mark.root, pytest.mark.net, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

TICK = 0.02  # s between two readings
TRIES = 8  # the kernel gives the recorder the events of the whole system: on a busy one some of them are lost

# ---------------------------------------------------------------- rights

NO_CAPTURE = "capturing needs the capability CAP_NET_RAW"
NO_SPACE = "no new network namespace: Operation not permitted; CAP_SYS_ADMIN is needed"
OTHER_USER = "--reuid=65534 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"


@pytest.mark.parametrize(
    ("rights", "verb", "says"),
    [
        ("--bounding-set=-all --inh-caps=-all", "attach", NO_CAPTURE),
        ("--bounding-set=-net_raw", "attach", NO_CAPTURE),
        ("--bounding-set=-net_raw", "run", NO_CAPTURE),
        ("--bounding-set=-sys_admin", "run", NO_SPACE),
        (OTHER_USER, "attach", "tracefs allows no instance: Permission denied; run it with sudo"),
        (OTHER_USER, "run", NO_SPACE),
    ],
)
def test_without_rights_it_says_so(rights: str, verb: str, says: str) -> None:
    """One line that names what is missing, and no instance of tracefs stays."""
    words = ["--", "true"] if verb == "run" else ["--port", "80", "--duration", "0.1s"]
    command = ["setpriv", *rights.split(), sys.executable, "-m", "confluo_tools", "replay-record", verb, "-o", "ndjson"]
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 2
    assert says in printed
    assert printed.count("\n") == 1
    assert not any(f"-record-{process.pid}-" in name for name in os.listdir("/sys/kernel/tracing/instances"))


def test_without_tracefs_it_says_so() -> None:
    """Nothing is mounted there, and no right to mount it."""
    recorder = f"{sys.executable} -m confluo_tools replay-record attach --port 80 -o ndjson --duration 0.1s"
    hidden = f"mount -t tmpfs t /sys/kernel && exec setpriv --bounding-set=-sys_admin {recorder}"
    command = ["unshare", "--mount", "sh", "-c", hidden]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "tracefs cannot be used: Operation not permitted; run it with sudo" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_bpf_a_recording_goes_on(tmp_path: Path) -> None:
    """Options are then not recorded: a line says so, also with --quiet."""
    words = ["replay-record", "attach", "-q", "--port", "80", "--duration", "0.1s", "-w", str(tmp_path / "a.ml")]
    drop = ["setpriv", "--bounding-set=-bpf,-sys_admin", sys.executable, "-m", "confluo_tools"]
    done = subprocess.run([*drop, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "socket options cannot be traced: Operation not permitted; replays of programs that set" in done.stderr
    with multilog.open(tmp_path / "a.ml") as log:
        assert log.version().rows > 10


# ---------------------------------------------------------------- clocks


class SetClock:
    """The wall clock of a recorder, as if it was set by ``offset`` ns: stamps of packets follow it."""

    def __init__(self, recorder: recorders.ConnectionRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0
        self._recorder = recorder
        real, headers = recorders.wall_offset, recorder._headers
        monkeypatch.setattr(recorders, "wall_offset", lambda: real() + self.offset)
        monkeypatch.setattr(recorder, "_headers", self)
        self._headers: Any = headers

    @property
    def packets(self) -> int:
        return int(self._headers.packets)

    def read(self) -> list[tuple[Any, ...]]:
        return [(p[0] + self.offset, *p[1:]) for p in self._headers.read()]


def exchange(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as a, listener.accept()[0] as b:
        a.sendall(b"x" * 500)
        assert len(b.recv(1000)) == 500


def ends_around_a_step(step: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[ConnectionEnd]]:
    """Steps that the recorder saw, and the ends of four connections: before, two while, and after the clock is set."""
    schema = recording_schema(headers=False)
    blocks = []
    with Lab() as lab, lab.space().inside(), socket.create_server(("127.0.0.1", PORT)) as listener:
        recorder = recorders.ConnectionRecorder(schema, ports=frozenset({PORT}), headers=False)
        try:
            clock = SetClock(recorder, monkeypatch)
            recorder.begin()

            def pump(seconds: float) -> None:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(TICK)
                    blocks.extend(recorder.poll())

            exchange(listener)
            pump(0.6)
            with socket.create_connection(listener.getsockname()) as a, listener.accept()[0]:
                pump(0.3)
                clock.offset = step
                a.sendall(b"x")
                exchange(listener)  # its packets may be stamped before the recorder sees the step
                pump(1.3)
            exchange(listener)
            pump(0.6)
            blocks.extend(recorder.poll(last=True))
        finally:
            recorder.close()
            monkeypatch.undo()
    return recorder.steps, sorted(read_ends(blocks), key=lambda end: end.cookie)


@pytest.mark.parametrize("step", [-3_600_000_000_000, 7_000_000_000])
def test_a_clock_that_is_set_spoils_only_the_connections_of_then(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, while and after the clock is set: only those of then cannot be replayed, and say why."""
    for _ in range(TRIES):
        steps, ends = ends_around_a_step(step, monkeypatch)
        if not any("events were lost" in problem for end in ends for problem in end.problems):
            break
    assert steps == 1
    why = [end.problems for end in ends]
    assert len(why) == 8
    assert why[:2] == [[], []]
    assert all("the clock of the host was set" in problems for problems in why[2:6])
    assert why[6:] == [[], []]
    last = [end for end in ends if not end.problems]
    connections, alone = pair_ends(last)
    assert (len(connections), alone) == (2, [])


def test_packets_of_before_a_step_get_the_new_clock() -> None:
    """Whether the clock went forward or back; those that were stamped after it are as they were."""
    for step in (-3600 * 10**9, 3600 * 10**9):
        old, new, now = 10**18, 10**18 + step, 50 * 10**9
        before, after = now - 10**8 + old, now - 10**7 + new
        found = recorders.restamped([(before, 1), (after, 2)], old, new, now)
        assert found == [(now - 10**8 + new, 1), (after, 2)]


# ---------------------------------------------------------------- retention


def test_retention_removes_the_oldest_part_while_recording_goes_on(tmp_path: Path) -> None:
    """A connection with its begin in the removed part says so; settings of the host are there again."""
    log, old, now = tmp_path / "c.ml", 10**18, time.time_ns()
    half = len(WHOLE) // 4
    early = WHOLE[:half]
    late = [row | {"ts": now} for row in WHOLE[half : len(WHOLE) // 2]]
    schema = SCHEMA.project([f.name for f in recording_schema(headers=False).fields])
    multilog.create(log, schema, lanes=1, segment_blocks=1)
    filler = [{"kind": Kind.SETTING, "ts": old + n, "count": 1, "name": "filler"} for n in range(65536 - half)]
    with multilog.open(log) as out, out.writer() as lane:
        lane.append(block_of_rows(schema, early + filler))
        lane.append(block_of_rows(schema, late))
    (before,) = ends_of(log)
    assert before.problems == []
    with Lab() as lab:
        space = lab.space()
        words = ("--port", str(PORT), "--netns", space.name, "--append", "--keep", "1h")
        process = attached(log, *words)
        try:
            with space.inside(), socket.create_server(("127.0.0.1", PORT)) as listener:
                exchange(listener)
            wait_for_rows(log, 3)
            limit = time.monotonic() + 20
            while ends_of(log)[0].began and time.monotonic() < limit:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
            process.wait()
            process.stderr.close()  # type: ignore[union-attr]
    ends = ends_of(log)
    assert len(ends) == 3
    assert "it began before the recording" in ends[0].problems
    assert [end.problems for end in ends[1:]] == [[], []]
    assert all(end.settings["kernel"] == os.uname().release for end in ends[1:])


def test_settings_of_the_host_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = recording_schema(headers=False)
    monkeypatch.setattr(setting_rows, "EVERY", 100_000_000)
    with Lab() as lab, lab.space().inside():
        recorder = recorders.ConnectionRecorder(schema, ports=frozenset({PORT}), headers=False)
        try:
            recorder.begin()
            rows = 0
            limit = time.monotonic() + 20
            while rows < 60 and time.monotonic() < limit:
                rows += sum(block.rows for block in recorder.poll())
                time.sleep(TICK)
        finally:
            recorder.close()
    assert rows >= 60


# ---------------------------------------------------------------- what is not there


def recording(path: Path, rows: list[dict[str, Any]]) -> str:
    with multilog.create(path, SCHEMA, lanes=1) as log, log.writer() as lane:
        lane.append(block_of_rows(SCHEMA, rows))
    return str(path)


def other_connection(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same ports, used again by a later connection."""
    number = {"isn": 777, "peer_isn": 888}
    return [row | {"value": number[row["name"]]} if row.get("name") in number else row for row in rows]


HALF = len(WHOLE) // 2
CUT_OFF = [row for row in WHOLE if row["kind"] != Kind.END]
EARLIER = [row | {"notes": Note.EARLIER} if row["kind"] == Kind.BEGIN else row for row in WHOLE]
OUT_OF_SEQUENCE = [
    row | {"text": "its IP identifications are not in sequence"} if row["kind"] == Kind.END else row for row in WHOLE
]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (WHOLE[:HALF], "the recording of its other end is missing; confluo-replay explain works"),
        (WHOLE[:HALF] + other_connection(WHOLE[HALF:]), "its other end is another connection; confluo-replay explain"),
        (CUT_OFF, "client: the recording ends before it does; server: the recording ends before it does; confluo-rep"),
        (EARLIER, "client: it began before the recording; server: it began before the recording; confluo-replay exp"),
        (OUT_OF_SEQUENCE, "client: its IP identifications are not in sequence"),
        ([], "the recording has no connection"),
    ],
    ids=["half", "halves", "cut", "earlier", "sequence", "empty"],
)
def test_what_cannot_be_replayed_is_one_line_for_each_end(
    rows: list[dict[str, Any]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay([recording(tmp_path / "c.ml", rows)]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == (2 if "another connection" in says else 1)


def test_ports_that_were_used_again_are_two_connections(tmp_path: Path) -> None:
    again = [row | {"cookie": row["cookie"] + 10} for row in other_connection(WHOLE)]
    swap = {"isn": 888, "peer_isn": 777}
    server = [row | {"value": swap[row["name"]]} if row.get("name") in swap else row for row in again[HALF:]]
    again[HALF:] = server
    connections, alone = pair_ends(ends_of(Path(recording(tmp_path / "c.ml", WHOLE + again))))
    assert (len(connections), alone) == (2, [])
    assert re.fullmatch(r"10\.0\.0\.1:4711-10\.0\.0\.2:80/tcp", str(connections[1].client.flow))
