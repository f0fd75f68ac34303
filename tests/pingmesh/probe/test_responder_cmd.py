"""confluo-pingmesh respond: the command around the responder."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.probe.respond_command import main, places
from confluo_tools.pingmesh.probe.responder import ListenAddress, _drops
from netns import Space
from running import completed, popen

ROOT = Path(__file__).resolve().parents[3]
HERE = ["--listen", "127.0.0.1:0"]


@contextmanager
def responding(*words: Any, argv: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A responder and its port."""
    done = popen(
        [*argv, str(ROOT / "bin" / "confluo-pingmesh"), "respond", *map(str, words)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert done.stderr is not None
        line = done.stderr.readline()
        found = re.match(r"confluo-pingmesh respond: answering on \S+?:(\d+)\b.*; pid (\d+)$", line)
        assert found, line + done.stderr.read()
        yield done, int(found[1])
    finally:
        if done.poll() is None:
            done.kill()
        done.communicate()


def get(port: int, path: str = "/counters") -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    return completed(
        [ROOT / "bin" / "confluo-pingmesh", "respond", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("listen", "qos", "found"),
    [
        ([], [], [ListenAddress("0.0.0.0", 8765), ListenAddress("::", 8765)]),
        (["10.0.0.7"], [], [ListenAddress("10.0.0.7", 8765)]),
        (
            ["10.0.0.7:9", "::1", "[::2]", "[::3]:10"],
            [],
            [
                ListenAddress("10.0.0.7", 9),
                ListenAddress("::1", 8765),
                ListenAddress("::2", 8765),
                ListenAddress("::3", 10),
            ],
        ),
        (
            [":9"],
            ["8:cs1"],
            [
                ListenAddress("0.0.0.0", 9),
                ListenAddress("::", 9),
                ListenAddress("0.0.0.0", 8, 8),
                ListenAddress("::", 8, 8),
            ],
        ),
        (
            ["10.0.0.7", "10.0.0.7:9"],
            ["8:AF21", "7:63"],
            [
                ListenAddress("10.0.0.7", 8765),
                ListenAddress("10.0.0.7", 9),
                ListenAddress("10.0.0.7", 8, 18),
                ListenAddress("10.0.0.7", 7, 63),
            ],
        ),
    ],
)
def test_places(listen: list[str], qos: list[str], found: list[ListenAddress]) -> None:
    assert places(listen, qos) == found


@pytest.mark.parametrize(
    ("listen", "qos"),
    [
        (["[::1"], []),
        (["10.0.0.7:x"], []),
        (["10.0.0.7:70000"], []),
        (["[::1]9"], []),
        ([], ["8766"]),
        ([], ["8766:64"]),
        ([], ["x:cs1"]),
        ([], ["8766:gold"]),
        ([], ["8765:cs1"]),
        (["10.0.0.7", "10.0.0.7:8765"], []),
        ([], ["9:1", "9:2"]),
    ],
)
def test_no_places(listen: list[str], qos: list[str]) -> None:
    with pytest.raises(UsageError):
        places(listen, qos)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--listen", "host.example"], "host.example: not an address; write numbers, not names"),
        (["--listen", "192.0.2.1"], "192.0.2.1:8765: this host has no such address"),
        (["--qos", "8765:cs1"], "--qos: duplicate address 0.0.0.0:8765"),
        (["--token", "xyz"], "--token: 'xyz' is not a token; up to 16 hexadecimal digits, not all 0"),
        (["--token", "0"], "--token: '0' is not a token"),
        ([*HERE, *["--token", "1"] * 9], "token: give up to eight 64-bit tokens"),
        (["--idle", "soon"], "--idle: "),
        (["--idle", "1ms"], "--idle: '1ms' is too short; 10ms or more"),
        (["--name", "x"], "--name needs records; write them with -w LOG"),
        (["--keep", "1h"], "--keep is for a MultiLog"),
        (["-Z", "no-such-user", *HERE], "-Z: unknown user 'no-such-user'"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], complaint: str) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"confluo-pingmesh respond: {complaint}")
    assert err.count("\n") == 1


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run("--listen", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert done.stderr == (f"confluo-pingmesh respond: 127.0.0.1:{port}: the address is in use; choose another port\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it(number: signal.Signals) -> None:
    with responding(*HERE) as (it, port):
        assert get(port)["requests"] == 1
        it.send_signal(signal.SIGUSR1)
        assert it.stderr is not None
        assert re.match(r"confluo-pingmesh respond: 1 connections, 0 echoed, 1 requests", it.stderr.readline())
        it.send_signal(number)
        _, rest = it.communicate(timeout=20)
        assert it.returncode == 128 + number
        assert "1 requests" in rest


def test_no_datagrams_without_a_token() -> None:
    with responding(*HERE) as (_, port), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", port))
        s.send(b"x")
        s.settimeout(5)
        with pytest.raises(ConnectionRefusedError):  # there is no UDP socket
            s.recv(10)


def test_records_of_the_host(tmp_path: Path) -> None:
    log = tmp_path / "host.ml"
    done = run(*HERE, "-w", log, "--name", "p001s01", "--every", "100ms", "--duration", "350ms", "--stats")
    assert done.returncode == 0, done.stderr
    assert "0 connections" in done.stderr
    told = completed([ROOT / "bin" / "confluo-query", log, "-J", "-n"], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert 1 <= len(rows) <= 4
    assert {(r["kind"], r["src"], r["src_ip"], r["outcome"]) for r in rows} == {(16, "p001s01", "127.0.0.1", 0)}
    assert all(10 << 20 < r["rss"] < 1 << 30 for r in rows)
    again = run(*HERE, "-w", log, "--duration", "20ms")
    assert (again.returncode, "--append adds to it" in again.stderr) == (2, True)


def test_records_to_a_pipe_that_closes() -> None:
    with responding(
        *HERE, "-o", "ndjson", "--every", "20ms", argv=("bash", "-c", '"$@" | head -1 >/dev/null', "-")
    ) as (it, _):
        it.communicate(timeout=20)


def test_as_nobody() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    nobody = pwd.getpwnam("nobody").pw_uid
    with responding(*HERE, "-Z", "nobody", "--token", "1f", "-o", "ndjson", "--every", "50ms") as (it, port):
        status = Path(f"/proc/{it.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{nobody}\t{nobody}\t{nobody}", status, re.M)
        assert re.search(r"^CapEff:\t0+$", status, re.M)
        assert get(port)["own_drops"] == 0


@pytest.mark.net
@pytest.mark.root
def test_answers_of_another_class(pair: tuple[Space, Space]) -> None:
    """The kernel's own count of packets by class, at who asks: SYN-ACKs, payload and datagrams."""
    a, b = pair
    a.run(
        "nft",
        "add table ip t; add chain ip t i { type filter hook input priority 0; };"
        "add counter ip t tcp8; add counter ip t tcp0; add counter ip t udp8; add counter ip t udp0;"
        "add rule ip t i tcp sport 8766 ip dscp 8 counter name tcp8; add rule ip t i tcp sport 8765 ip dscp 0 counter"
        " name tcp0; add rule ip t i udp sport 8766 ip dscp 8 counter name udp8;"
        "add rule ip t i udp sport 8765 ip dscp 0 counter name udp0;"
        "add rule ip t i ip protocol tcp ip dscp != { 0, 8 } drop",
    )
    argv = ("ip", "netns", "exec", b.name)
    with responding("--qos", "8766:cs1", "--token", "7", "--listen", b.address, argv=argv), a.inside():
        for port in (8765, 8766):
            with socket.create_connection((b.address, port), timeout=5) as s:
                s.sendall(b"\0x")
                assert s.recv(10) == b"\0x"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(5)
                s.sendto(b"CPM1" + bytes(11) + b"\x07" + bytes(32), (b.address, port))
                assert len(s.recv(100)) == 48
    counts = dict(re.findall(r"counter (\w+) \{\s+packets (\d+)", a.run("nft", "list", "ruleset").stdout.decode()))
    assert (counts["udp8"], counts["udp0"]) == ("1", "1")
    assert min(int(counts["tcp8"]), int(counts["tcp0"])) >= 3  # SYN-ACK, ACK, payload


@pytest.mark.net
@pytest.mark.root
def test_overflow_is_told_apart_from_loss(pair: tuple[Space, Space]) -> None:
    """While it does not accept and one connection may wait, the kernel drops SYNs.  `own_drops` explains each that was
    sent again, and what another socket of the host dropped is not in it, but in the host's count.
    """
    a, b = pair
    argv = ("ip", "netns", "exec", b.name)
    with responding("--listen", f"{b.address}:8770", "--backlog", "1", argv=argv) as (it, _):
        with b.inside():
            other = socket.create_server((b.address, 9), backlog=1)
        it.send_signal(signal.SIGSTOP)
        while any(" T " not in task.read_text() for task in Path(f"/proc/{it.pid}/task").glob("*/stat")):
            time.sleep(0.01)
        with a.inside():
            clients = [socket.socket() for _ in range(16)]
            for n, s in enumerate(clients):
                s.setblocking(False)
                s.connect_ex((b.address, 8770 if n < 10 else 9))
            time.sleep(0.3)
            it.send_signal(signal.SIGCONT)
            retries = [_wait(s) for s in clients[:10]]
            for s in clients:
                s.close()
            others = _drops(other)
            other.close()
            with socket.create_connection((b.address, 8770), timeout=10) as s:
                s.sendall(b"GET /counters HTTP/1.0\r\n\r\n")
                told = json.loads(_all(s).partition(b"\r\n\r\n")[2])
    assert sum(n > 0 for n in retries) >= 8  # one waits, one more is let in
    assert told["own_drops"] >= sum(retries)
    assert others >= 4
    assert told["own_drops"] + others == told["listen_drops"]
    assert told["overflows"] <= told["listen_drops"]


def _wait(s: socket.socket) -> int:
    """Until it is connected; how often its SYN was sent again."""
    for _ in range(2000):
        info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        if info[0] != 2:  # TCP_SYN_SENT
            return int.from_bytes(info[100:104], "little")
        time.sleep(0.01)
    raise AssertionError("never connected")


def _all(s: socket.socket) -> bytes:
    found = b""
    while data := s.recv(65536):
        found += data
    return found
