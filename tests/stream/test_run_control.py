"""The control socket of a run: who may use it, what it answers, and what hostile clients cannot do."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.errors import BusyError, ConfluoError, UsageError
from confluo_tools.stream.operation import control_server
from confluo_tools.stream.operation.control_client import RunConnection, chosen_runs, live_runs
from confluo_tools.stream.operation.control_messages import MAX_REQUEST, look
from confluo_tools.stream.operation.control_server import MAX_CLIENTS, ControlSocket
from confluo_tools.stream.operation.runtime_folder import RunPlace, checked_name, default_name
from confluo_tools.stream.stage_counts import StageCount
from running import ROOT
from stream_runs import ROWS, ScriptedRun

PATIENCE = 30.0  # s
HOLDER = """
import sys
from confluo_tools.errors import BusyError
from confluo_tools.stream.operation.control_server import ControlSocket
sys.stdin.readline()
try:
    held = ControlSocket("one")
except BusyError:
    print("busy", flush=True)
else:
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of control sockets, of this test only."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setattr("confluo_tools.stream.operation.runtime_folder.SYSTEM", str(tmp_path / "confluo"))
    return tmp_path / "confluo"


@pytest.fixture
def scripted(folder: Path) -> Iterator[ScriptedRun]:
    """A run `eth0` that answers."""
    run = ScriptedRun()
    control = ControlSocket("eth0")
    control.serve(run)
    yield run
    control.close()
    assert not (folder / "eth0.sock").exists()


def raw(folder: Path, name: str = "eth0") -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(folder / f"{name}.sock"))  # without a time-out, it waits for its turn
    sock.settimeout(PATIENCE)
    return sock


def all_of(sock: socket.socket) -> bytes:
    """What the other end sends until it hangs up."""
    out = b""
    try:
        while data := sock.recv(65536):
            out += data
    except ConnectionResetError:
        pass
    return out


def serves(folder: Path) -> bool:
    with RunConnection(RunPlace("eth0", str(folder / "eth0.sock"))) as run:
        return run.look().rows == ROWS


def test_a_look_has_the_rows_of_the_run(folder: Path, scripted: ScriptedRun) -> None:
    with RunConnection(*live_runs()) as run:
        first, second = run.look(), run.look()
    assert first.rows == second.rows == ROWS
    assert (first.run, first.pid, first.host) == ("eth0", os.getpid(), os.uname().nodename)
    assert first.at < second.at
    assert abs(first.ts - time.time_ns()) < PATIENCE * 1e9


def test_flows_change_or_stay_as_they_are(folder: Path, scripted: ScriptedRun) -> None:
    with RunConnection(*live_runs()) as run:
        assert run.change("flows:\n- syn\n- größe\n") == ["- syn: now runs", "- größe: now runs"]
        with pytest.raises(ConfluoError) as refused:
            run.change("flow: x")
        assert str(refused.value) == "flows.yaml: has no list 'flows'; see confluo-stream-publish(1)"
        assert run.look().rows == ROWS
    assert scripted.flows == ["flows:\n- syn\n- größe\n"]


def test_an_error_of_the_run_is_the_answer(folder: Path, scripted: ScriptedRun) -> None:
    scripted.failure = ZeroDivisionError("division by zero")
    with RunConnection(*live_runs()) as run:
        with pytest.raises(ConfluoError, match="internal error: ZeroDivisionError"):
            run.look()
        scripted.failure = None
        assert run.look().rows == ROWS


def test_only_this_user_can_open_the_socket(folder: Path, scripted: ScriptedRun) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "eth0.sock").stat().st_mode) == 0o600


@pytest.mark.root
def test_another_user_is_refused(folder: Path, scripted: ScriptedRun, tmp_path: Path) -> None:
    """By the file system; and where that lets it through, by the run itself."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be another user")
    script = f"""
import os, socket
s = socket.socket(socket.AF_UNIX)
s.settimeout({PATIENCE})
os.chdir({str(folder)!r})
os.setgid(65534); os.setuid(65534)
try:
    s.connect("eth0.sock")
except PermissionError:
    print("no permission")
else:
    s.sendall(b'{{"do": "set", "flows": "flows:"}}\\n')
    print(s.makefile().read())
"""

    def as_nobody() -> str:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert as_nobody() == "no permission\n"
    folder.chmod(0o755)
    (folder / "eth0.sock").chmod(0o777)
    assert "this run is that of another user" in as_nobody()
    assert scripted.flows == []


def test_two_runs_with_one_name(folder: Path, scripted: ScriptedRun) -> None:
    with pytest.raises(BusyError, match="a run with this name goes on") as busy:
        ControlSocket("eth0")
    assert busy.value.exit_status == 75
    assert serves(folder)
    ControlSocket("eth1").close()


def test_of_many_that_start_at_once_one_has_the_name(folder: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", HOLDER]
    starting = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) for _ in range(6)
    ]
    for child in starting:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = []
    for child in starting:
        assert child.stdout is not None
        said.append(child.stdout.readline().strip())
    assert sorted(said) == ["busy"] * 5 + ["held"]
    holder = starting[said.index("held")]
    holder.send_signal(signal.SIGKILL)
    for child in starting:
        child.communicate()
    assert (folder / "one.sock").exists()
    assert live_runs() == []  # what it left is not a run
    control = ControlSocket("one")
    assert [place.name for place in live_runs()] == ["one"]
    control.close()


@pytest.mark.parametrize("mode", [0o722, 0o777])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfluoError, match="is not a folder that only this user can write"):
        ControlSocket("eth0")
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(ConfluoError, match="is not a folder that only this user can write"):
        ControlSocket("eth0")


def test_a_path_longer_than_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    control = ControlSocket("n" * 64)
    control.serve(ScriptedRun())
    with pytest.raises(BusyError):
        ControlSocket("n" * 64)
    with RunConnection(*chosen_runs(["n" * 64])) as run:
        assert run.look().rows == ROWS
    control.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"do": "halt"}\n',
        b'{"do": ["status"]}\n',
        b'{"do": "set"}\n',
        b'{"do": "set", "flows": 7}\n',
        b'{"do": "status", "x": NaN}\n',
        b"\xff\xfe\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 100_000 + b"\n",
        b"x" * (MAX_REQUEST + 1),
    ],
    ids=range(13),
)
def test_what_is_not_a_request_is_refused(folder: Path, scripted: ScriptedRun, request_: bytes) -> None:
    with raw(folder) as sock:
        sock.sendall(request_)
        answer = all_of(sock)
    assert answer == b"" or json.loads(answer)["error"]["what"]  # "": it hung up before we had read
    assert len(request_) > MAX_REQUEST or answer
    assert scripted.flows == []
    assert serves(folder)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that all examples of a test share."""
    base = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        control = ControlSocket("eth0")
    control.serve(ScriptedRun())
    yield base / "confluo"
    control.close()


REQUEST = st.sampled_from(
    [b'{"do":"status"}\n', b'{"do":"set","flows":"flows:"}\n', b'{"do"', b"\n", b"{", b'"', b"\0"]
)


@settings(max_examples=150)
@given(st.lists(st.one_of(REQUEST, st.binary(max_size=40)), max_size=12), st.booleans())
def test_any_bytes(shared: Path, pieces: list[bytes], read: bool) -> None:
    with raw(shared) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass
        if read:
            for line in all_of(sock).splitlines():
                assert {"rows", "changed", "error"} & json.loads(line).keys()
    assert serves(shared)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "PATIENCE", 0.2)
    monkeypatch.setattr(control_server, "TICK", 0.02)


def test_a_client_that_never_reads_is_hung_up(
    folder: Path, scripted: ScriptedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    scripted.stages = [StageCount("queue", f"flow {n}", n) for n in range(2000)]  # more than a socket holds
    with raw(folder) as sock:
        sock.sendall(b'{"do":"status"}\n' * 50)
        with RunConnection(*live_runs()) as other:
            assert len(other.look().rows) == 2000
        end = time.monotonic() + PATIENCE
        while hung_up(sock) is False:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert scripted.looks < 50


def hung_up(sock: socket.socket) -> bool:
    """Whether the other end is closed; found without reading."""
    try:
        sock.send(b"\n", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def test_a_request_that_never_ends_is_hung_up(
    folder: Path, scripted: ScriptedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    with raw(folder) as sock:
        sock.sendall(b'{"do": "st')
        assert all_of(sock) == b""
    with RunConnection(*live_runs()) as quiet:  # a client between two looks may take its time
        quiet.look()
        time.sleep(0.5)
        assert quiet.look().rows == ROWS


def test_more_clients_than_there_is_room_for(folder: Path, scripted: ScriptedRun) -> None:
    idle = [raw(folder) for _ in range(3 * MAX_CLIENTS)]
    assert serves(folder)
    for sock in idle:
        sock.close()
    assert serves(folder)


def test_many_requests_in_one_piece(folder: Path, scripted: ScriptedRun) -> None:
    with raw(folder) as sock:
        sock.sendall(b'{"do":"status"}\n' * 300)
        sock.shutdown(socket.SHUT_WR)
        answers = all_of(sock).splitlines()
    assert len(answers) == 300
    assert all(look(json.loads(line)).rows == ROWS for line in answers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
COLUMNS = st.sampled_from([*StageCount._fields, "run", "host", "pid", "ts", "at", "rows"])


@settings(max_examples=200)
@given(st.lists(st.tuples(COLUMNS, JSON), max_size=3), st.lists(st.tuples(COLUMNS, JSON), max_size=3))
def test_a_run_that_lies(outer: list[tuple[str, object]], inner: list[tuple[str, object]]) -> None:
    """What is not a look is a ValueError; what is one has counters that a block can hold."""
    message = {"run": "a", "host": "h", "pid": 1, "ts": 2, "at": 3, "rows": [ROWS[0]._asdict() | dict(inner)]}
    try:
        found = look(message | dict(outer))
    except ValueError:
        return
    for row in found.rows:
        assert all(0 <= n < 1 << 64 for n in row[2:])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "eth9: the run has ended"),
        (b"\n", "eth9: does not answer as a run does: message is not JSON"),
        (b"SSH-2.0-OpenSSH\r\n", "eth9: does not answer as a run does"),
        (b'{"rows": 5}\n', "eth9: does not answer as a run does: invalid 'rows' in message"),
        (b'{"error": {"what": "\\u001b[2J"}}\n', "\x1b[2J"),
        (b"x" * (1 << 20), "eth9: does not answer as a run does: the answer is too long"),
    ],
)
def test_what_is_not_a_run(answer: bytes, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("confluo_tools.stream.operation.control_client.MAX_ANSWER", 1 << 18)
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(100)
                with suppress(OSError):
                    sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with RunConnection(RunPlace("eth9", path)) as run, pytest.raises(ConfluoError) as found:
            run.look()
        thread.join()
    assert str(found.value).startswith(error)


@pytest.mark.parametrize("name", ["", "-x", ".x", "a/b", "a b", "x" * 65, "ä", "a\n"])
def test_names_that_no_run_has(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a run"):
        checked_name(name)


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (["eth0"], "eth0"),
        (["eth0", "eth1.5"], "eth0+eth1"),
        (["/var/lib/confluo/live.ml"], "live"),
        (["live.ml/"], "live"),
        (["-"], "run"),
        (["kafka://b:9092/telemetry"], "telemetry"),
        (["Überblick 1.pcap"], "berblick-1"),
        (["a" * 300], "a" * 64),
        ([], "run"),
    ],
)
def test_the_name_of_a_run_without_one(inputs: list[str], name: str) -> None:
    assert default_name(inputs) == name
    assert checked_name(name) == name


def test_default_names_are_names() -> None:
    seed = random.Random(5)
    for _ in range(500):
        text = "".join(
            chr(seed.choice([45, 46, 47, 48, 97, 0x20, 0x1F600, seed.randrange(1, 0xD800)])) for _ in range(9)
        )
        checked_name(default_name([text]))
