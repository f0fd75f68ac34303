"""confluo-top as users run it: for scripts, on a terminal, on interfaces and other hosts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netns import Space
from nic_lab import end_all, frame, send
from remote_lab import shell
from running import BIN, CAMPUS, environment, lines, popen, run

DEADLINE = 30.0
SINCE, UNTIL = "2026-11-21T01:18:41Z", "2026-11-21T01:18:51Z"  # the last 10 s of the capture


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("top") / "campus.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", path).returncode == 0
    return path


def parsed(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def asked(log: Path, agg: str, by: str, *more: str) -> list[dict[str, Any]]:
    """The same question to confluo-query."""
    words = ("--since", SINCE, "--until", UNTIL, "--agg", agg, "--by", by, "--top", "10", "-J")
    rows = parsed(run("confluo-query", log, *more, *words).stdout)
    return [{"ts": UNTIL.replace("Z", ".000000000Z"), **row} for row in rows]


@pytest.mark.parametrize(
    ("agg", "by", "expression"),
    [
        ("rate(len), rate", "src_ip, dst_ip", ()),
        ("count, distinct(dst_port), p99(len)", "src_ip/24", ("tcp",)),
        ("sum(len), max(len)", "flow", ("port 80 || udp",)),
    ],
)
def test_one_look_is_the_answer_of_a_query(log: Path, agg: str, by: str, expression: tuple[str, ...]) -> None:
    expected = asked(log, agg, by, *expression)
    assert len(expected) > 2
    done = run("confluo-top", log, *expression, "--agg", agg, "--by", by, "--once", "-J")
    assert (done.returncode, done.stderr) == (0, b"")
    assert parsed(done.stdout) == expected
    piped = run("confluo-query", log, *expression, "-o", "stream").stdout
    for words in (("-",), ("-", "-n", "7")):  # a pipe that ends gives one look, however many are wanted
        done = run("confluo-top", *words, "--agg", agg, "--by", by, "-J", stdin=piped)
        assert parsed(done.stdout) == expected


def test_a_log_on_another_host(log: Path, tmp_path: Path) -> None:
    far = environment(CONFLUO_RSH=shell(tmp_path), CONFLUO_REMOTE=f"{BIN / 'confluo'} serve --stdio")
    done = run("confluo-top", f"sw1:{log}", "udp", "--by", "dst_port", "--once", "-J", env=far)
    assert (done.returncode, done.stderr) == (0, b"")
    assert parsed(done.stdout) == asked(log, "rate(len), rate", "dst_port", "udp")
    both = run("confluo-top", "-r", log, "-r", f"sw1:{log}", "--agg", "count", "--by", "host", "--once", "-J", env=far)
    counts = [row["count"] for row in parsed(both.stdout)]
    assert counts == [int(run("confluo-query", log, "--since", SINCE, "--count").stdout)] * 2


def test_updates_without_a_terminal(log: Path) -> None:
    done = run("confluo-top", log, "-n", "2", "--every", "100ms", "--window", "1s", "--top", "1", "--by", "proto")
    assert lines(done)[0] == "#fields\tts\tproto\trate_len\trate"
    assert len(set(lines(done)[2:])) == 1  # the log rests
    assert len(lines(done)) == 4
    assert run("confluo-top", log, "port 9999", "--once").returncode == 1
    assert b"rate_len" in run("confluo-top", log, "--fields", "help").stdout
    assert b"--at" not in run("confluo-top", "--help").stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--once", "-n", "2"), "--once and -n exclude each other"),
        (("--window", "1500ms"), "--window: 1.5s is not a multiple of 1s"),
        (("--window", "1h"), "--window: 1h is too long; at most 240 times --every"),
        (("--by", "1s, src_ip"), "--by: '1s, src_ip' has a step of time"),
        (("--agg", "max(src_ip)"), "--agg: max_src_ip (ip) is not a number"),
        (("--sort", "len"), "--sort: 'len' is not an aggregate; there are rate_len, rate"),
        (("--bpf", "udp"), "--bpf is for interfaces"),
        (("--every", "1ns"), "--every: '1ns' is too short"),
        (("--at", "cut.yaml"), "no such option: --at"),
    ],
)
def test_wrong_use_is_one_line(log: Path, words: tuple[str, ...], problem: str) -> None:
    done = run("confluo-top", log, *words, "-J")
    assert (done.returncode, done.stdout) == (2, b"")
    assert problem in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


class Screen:
    """A command on a terminal, in a session of its own."""

    def __init__(self, *words: Any, columns: int = 100, rows: int = 20) -> None:
        self.master, slave = pty.openpty()
        self.size(columns, rows)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.child = subprocess.Popen(
            [str(w) for w in words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm", PS1="prompt"),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )
        self.text = ""

    def size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern: str) -> str:
        """Read until the text since the last call matches; returns the text."""
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, self.text):
            left = end - time.monotonic()
            assert left > 0, (pattern, self.text[-3000:])
            if select.select([self.master], [], [], left)[0]:
                self.text += plain(os.read(self.master, 65536))
        found, self.text = self.text, ""
        return found

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """Wait for the end; the terminal must be as it was."""
        self.until(r"<normal>")
        status = self.child.wait(DEADLINE)
        assert termios.tcgetattr(self.slave) == self.before
        self.close()
        return status

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait(DEADLINE)
        for fd in (self.master, self.slave):
            os.close(fd)


def plain(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\x1b[?1049h", "<whole>").replace("\x1b[?1049l", "<normal>")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def test_keys_change_the_view(log: Path) -> None:
    screen = Screen(BIN / "confluo-top", log, "tcp")
    first = screen.until(r"q quit")
    assert "<whole>" in first
    assert re.search(r"192.0.2.12 +10.1.0.12 +[\d.]+ [kM] +[\d.]+ +\d+ % █", first)
    screen.press("b")
    assert re.search(r"192.0.2.12 +10.1.0.12 +\d+ kB/s", screen.until(r"kB/s(.|\n)*q quit"))
    screen.press("k")
    assert "dst_ip" not in screen.until(r"src_ip +rate_len(.|\n)*q quit").split("src_ip")[-1]
    screen.press("s")
    screen.until(r"rate_len +rate↓(.|\n)*q quit")
    screen.press("m")
    screen.until(r"sum_len↓ +count(.|\n)*q quit")
    screen.press("w")
    screen.until(r"30s to (.|\n)*q quit")
    screen.press("p")
    screen.until(r"paused(.|\n)*q quit")
    screen.press("?")
    screen.until(r"group by the next")
    screen.size(40, 6)
    assert max(map(len, screen.until(r"keys(.|\n)*bits or bytes").split("\n"))) <= 40
    screen.press("q")
    assert screen.end() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_restores_the_terminal(log: Path, number: int, status: int) -> None:
    screen = Screen(BIN / "confluo-top", log)
    screen.until(r"q quit")
    screen.child.send_signal(number)
    assert screen.end() in (status, -number)


def test_stopped_and_continued(log: Path) -> None:
    """Ctrl-Z gives the terminal to the shell; fg draws again."""
    screen = Screen("bash", "--norc", "--noediting", "-i", columns=120)
    screen.until("prompt")
    screen.press(f"{BIN / 'confluo-top'} {log}\n")
    screen.until(r"<whole>(.|\n)*q quit")
    screen.press("\x1a")
    screen.until(r"<normal>(.|\n)*Stopped(.|\n)*prompt")
    screen.press("stty -a | grep -o -e -icanon -e -echo; echo none of $((1+1))\n")
    assert "\n-icanon" not in screen.until("none of 2")
    screen.press("fg\n")
    screen.until(r"<whole>(.|\n)*q quit")
    screen.press("q")
    screen.until(r"<normal>(.|\n)*prompt")
    screen.press("exit\n")
    screen.child.wait(DEADLINE)
    screen.close()


def test_a_pipe_on_a_terminal(log: Path) -> None:
    """Records come from stdin, keys from the terminal; the last look stays until a key is pressed."""
    command = f"{BIN / 'confluo-query'} {log} -o stream | {BIN / 'confluo-top'} -"
    screen = Screen("bash", "-c", command)
    screen.until(r"ended(.|\n)*192.0.2.12(.|\n)*q quit")
    screen.press("q")
    assert screen.end() == 0


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.net
@pytest.mark.root
@pytest.mark.usefixtures("nothing_is_left")
def test_the_packets_of_an_interface(pair: tuple[Space, Space]) -> None:
    a, b = pair
    words = ("-i", "v0", "udp", "--by", "dst_port", "--agg", "count, sum(len)", "--every", "100ms", "--window", "200ms")
    child = popen(b.argv(BIN / "confluo-top", *words, "-l", "-J"), stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    assert child.stdout is not None
    found, end = b"", time.monotonic() + DEADLINE
    while b'"dst_port":53,' not in found:
        assert time.monotonic() < end, child.stderr
        send(a, [frame(dport=53)] * 3)
        if select.select([child.stdout], [], [], 0.2)[0]:
            found += os.read(child.stdout.fileno(), 65536)
    child.send_signal(signal.SIGTERM)
    rest, said = child.communicate(timeout=DEADLINE)
    assert (child.returncode, said) == (143, b"")
    rows = parsed((found + rest)[: (found + rest).rfind(b"\n")])
    assert {row["dst_port"] for row in rows} == {53}
    assert all(row["count"] % 3 == 0 and row["sum_len"] == row["count"] * len(frame(dport=53)) for row in rows)
