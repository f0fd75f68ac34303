"""confluo-flows: files, pipes, growing logs and interfaces; signals, kills and full tables."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from netns import Space
from nic_lab import Live, end_all, frame, rows, send, wait_for
from running import BIN, CAMPUS, listens, popen, run

FOREVER = ("--idle-timeout", "0", "--active-timeout", "0")
DEADLINE = 30.0
PACKETS = 5728  # with an IP header


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packets") / "campus.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", path).returncode == 0
    return path


def parsed(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def stored(path: Path) -> list[dict[str, Any]]:
    return parsed(run("confluo-query", path, "-J").stdout)


def packets(found: list[dict[str, Any]]) -> int:
    return sum(r["src_packets"] + r["dst_packets"] for r in found)


def test_all_inputs_give_the_flows_of_a_query(log: Path, tmp_path: Path) -> None:
    expected = run("confluo-query", log, "--flows", "-J").stdout
    assert len(expected.splitlines()) > 500
    for words, given in (((log,), None), ((CAMPUS,), None), (("-",), CAMPUS.read_bytes())):
        done = run("confluo-flows", *words, *FOREVER, "-J", stdin=given)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == expected
    some = run("confluo-flows", log, *FOREVER, "--packets", "udp", "-J").stdout
    assert some == run("confluo-query", log, "--flows", "udp", "-J").stdout
    assert run("confluo-flows", log, *FOREVER, "-w", tmp_path / "flows.ml").returncode == 0
    assert stored(tmp_path / "flows.ml") == parsed(expected)


def test_a_signal_ends_a_pipe_and_its_flows() -> None:
    """Flows that are open get their record; its reason is the end of the input."""
    process = popen([BIN / "confluo-flows", "-", *FOREVER, "-J"], stdin=subprocess.PIPE, stdout=-1, stderr=-1)
    assert process.stdin is not None
    process.stdin.write(gzip.decompress(CAMPUS.read_bytes()))
    process.stdin.flush()
    listens(process, signal.SIGUSR1)
    heard, end = b"", time.monotonic() + DEADLINE
    while b" %d packets" % PACKETS not in heard:
        assert time.monotonic() < end, heard
        process.send_signal(signal.SIGUSR1)
        heard = os.read(process.stderr.fileno(), 65536)
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out = process.stdout.read()
    assert process.wait(DEADLINE) == 143
    process.stdin.close()
    process.stderr.close()
    process.stdout.close()
    assert packets(parsed(out)) == PACKETS
    assert {r["reason"] for r in parsed(out)} == {"fin", "rst", "end"}


def test_a_followed_log_and_a_kill(log: Path, tmp_path: Path) -> None:
    """Flows end by the clock when the log is silent.  After kill -9 the records are there, and more are appended."""
    flows = tmp_path / "flows.ml"
    words = (BIN / "confluo-flows", log, "--follow", "--idle-timeout", "500ms", "-w", flows)
    process = popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + DEADLINE
    while not rows(flows) or packets(stored(flows)) < PACKETS:
        assert time.monotonic() < end, rows(flows)
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait(DEADLINE)
    found = stored(flows)
    assert packets(found) == PACKETS
    assert {r["reason"] for r in found} == {"idle", "fin", "rst"}
    again = run("confluo-flows", log, "--idle-timeout", "500ms", "-w", flows, "--append")
    assert again.returncode == 0, again.stderr
    assert packets(stored(flows)) == 2 * PACKETS


def test_a_full_table_is_reported(log: Path) -> None:
    done = run("confluo-flows", log, *FOREVER, "--max-flows", "40", "-J")
    found = parsed(done.stdout)
    gone = sum(r["reason"] == "evicted" for r in found)
    assert done.returncode == 2
    assert f"{gone:,} flows were cut short because the table was full".encode() in done.stderr
    assert b"--max-flows N" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert packets(found) == PACKETS


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-i", "lo", "trace.ml"), "INPUT is for inputs, not for interfaces"),
        (("-i", "lo", "--follow"), "--follow is for inputs, not for interfaces"),
        ((CAMPUS, "--bpf", "udp"), "--bpf is for interfaces, not for inputs"),
        ((CAMPUS, "--packets", "conn_state == S0"), "no field 'conn_state'"),
        ((CAMPUS, "--idle-timeout", "never"), "--idle-timeout: "),
        (("/nonexistent/log",), "No such file"),
    ],
)
def test_wrong_use_is_one_line(words: tuple[Any, ...], problem: str) -> None:
    done = run("confluo-flows", *words, "-J")
    assert done.returncode == 2
    assert problem in done.stderr.decode()


def test_records_that_are_no_packets(tmp_path: Path) -> None:
    flows = run("confluo-flows", CAMPUS, "-o", "stream").stdout
    done = run("confluo-flows", "-", "-J", stdin=flows)
    assert done.returncode == 2
    assert b"no field 'ip_len' in 'conn'" in done.stderr


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Live commands of a test that failed are ended."""
    yield
    end_all()


@pytest.mark.net
@pytest.mark.root
@pytest.mark.usefixtures("nothing_is_left")
def test_flows_of_an_interface(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """A flow ends by the clock while the wire is silent; what is open at a signal ends with it."""
    a, b = pair
    flows = tmp_path / "flows.ml"
    words = (BIN / "confluo-flows", "-i", "v0", "-w", flows, "--bpf", "udp", "--idle-timeout", "300ms")
    ours = Live(b, *words, ready=b"capturing from")
    send(a, [frame(dport=53)] * 3)
    wait_for(flows, 1)
    send(a, [frame(dport=54)] * 2)
    end = time.monotonic() + DEADLINE
    while b"5 packets" not in ours.said:
        assert time.monotonic() < end
        ours.child.send_signal(signal.SIGUSR1)
        ours.hear(b"packets")
    status, _, said = ours.end(signal.SIGTERM)
    assert status == 143, said
    found = [(r["dst_port"], r["src_packets"], r["reason"]) for r in stored(flows)]
    assert found[0] == (53, 3, "idle")
    assert [row[:2] for row in found[1:]] == [(54, 2)]
    with multilog.open(flows, readonly=True) as opened:
        assert opened.schema.kind == "conn"
