"""confluo serve and its clients do not trust each other: bounded, checked, one clear line, nothing left frozen."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.errors import ConfluoError
from confluo_tools.remote import frame_codec, server
from confluo_tools.remote.server import QueryServer
from frames_lab import HELLO, SECOND, freeze, frozen, opened, query, thaw
from log_rows import SIGNED, signed_block
from running import BIN, ROOT, popen, run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> multilog.Log:
    made = multilog.create(tmp_path_factory.mktemp("served") / "a.ml", SIGNED)
    with made.writer() as writer:
        writer.append(signed_block(1, 0, 3000))
    return made


@pytest.fixture(autouse=True)
def _no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueryServer, "_look", lambda self: None)  # it would end the tests


def answers(data: bytes, roots: tuple[str, ...] = (), **options: Any) -> tuple[list[tuple[int, bytes]], str]:
    """What a server says to these bytes, frame by frame, and how it ended."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(data)
        given.seek(0)
        problem = ""
        try:
            QueryServer(given.fileno(), said.fileno(), roots, **options).run()
        except ConfluoError as e:
            problem = str(e)
            assert "\n" not in problem
        said.seek(0)
        return frames(said.read()), problem


def frames(data: bytes) -> list[tuple[int, bytes]]:
    line, _, rest = data.partition(b"\n")
    assert frame_codec.parse_hello(line + b"\n")[0] == frame_codec.PROTOCOL
    out = []
    while rest:
        kind, size = frame_codec.parse_head(rest[:8])
        assert len(rest) >= 8 + size
        out.append((kind, rest[8 : 8 + size]))
        rest = rest[8 + size :]
    return out


def kinds(found: list[tuple[int, bytes]]) -> list[str]:
    return [frame_codec.KINDS[kind] for kind, _ in found]


# ---------------------------------------------------------------- the server and its client


def test_a_conversation(log: multilog.Log) -> None:
    said, problem = answers(
        HELLO
        + query(log.path, expr="seq < 10")
        + opened(log.path, "/nowhere")
        + freeze(7)
        + thaw(7)
        + freeze(8)
        + thaw(8)
        + query(log.path, counted=True)
        + query(log.path, agg="sum(seq)")
        + query("/nowhere")
        + query(log.path, expr="seq <"),
        max_freeze=SECOND,
    )
    assert problem == ""
    assert kinds(said) == [
        "meta",
        "data",
        "data",
        "data",
        "end",
        "opened",
        "frozen",
        "thawed",
        "frozen",
        "thawed",
        "meta",
        "end",
        "meta",
        "partial",
        "end",
        "error",
        "meta",
        "error",
    ]
    assert json.loads(said[4][1]) == {"rows": 3000, "found": 10}
    entries = json.loads(said[5][1])["logs"]
    assert entries[0] == {"path": os.path.realpath(log.path), "uuid": log.uuid.hex(), "kind": "signed"}
    assert "no such MultiLog" in entries[1]["error"]["what"]
    assert said[6][1] == struct.pack("<QII II QQ", 7, 1, 0, 1, 0, 3000, 0)
    mark, held, ns = struct.unpack("<QQQ", said[7][1])
    assert (mark, held) == (7, 1)
    assert 0 < ns < SECOND
    assert json.loads(said[11][1])["found"] == 3000
    assert frozen(log) == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "the client does not speak the protocol"),
        (b"x" * 500, "the client does not speak the protocol"),
        (b"\xff\n", "the client does not speak the protocol"),
        (HELLO[:5], "ends in the middle of a message"),
        (b"confluo-serve 2 9.9\n", "the client speaks protocol 2 (9.9), this program 1"),
        (b"confluo-serve x 9.9\n", "the client does not speak the protocol"),
        (HELLO + b"\0" * 8, "protocol error: invalid frame header"),
        (HELLO + frame_codec.head(frame_codec.QUERY, 1 << 30), "a frame of 1073741824 bytes is too long"),
        (HELLO + frame_codec.head(frame_codec.QUERY, 100) + b"{", "ends in the middle of a message"),
        (HELLO + frame_codec.head(frame_codec.QUERY, 2) + b"[]", "message is not an object"),
        (HELLO + frame_codec.head(frame_codec.QUERY, 5) + b"{a:1}", "message is not JSON"),
        (HELLO + frame_codec.head(frame_codec.OPEN, 17) + b'{"path":"\\ud800"}', "message is not JSON"),
        (HELLO + frame_codec.head(frame_codec.QUERY, 30_000) + b"[" * 30_000, "message is not"),
        (HELLO + frame_codec.frame(frame_codec.QUERY, {}), "message without 'path'"),
        (HELLO + query("x", limit=-1), "invalid 'limit' in message"),
        (HELLO + query("x", limit=True), "invalid 'limit' in message"),
        (HELLO + query("x", since=1 << 63), "invalid time in message"),
        (HELLO + query("x", expr=7), "invalid 'expr' in message"),
        (HELLO + query("x", tails=[-1], uuid=""), "invalid numbers in message"),
        (HELLO + query("x", tails=[1.5], uuid=""), "invalid numbers in message"),
        (HELLO + query("x", tails=[0] * 5000, uuid=""), "invalid numbers in message"),
        (HELLO + query("x", host="x" * 65), "invalid 'host' in message"),
        (HELLO + frame_codec.frame(frame_codec.OPEN, {"logs": ["x"] * 65}), "invalid 'logs' in message"),
        (HELLO + frame_codec.frame(frame_codec.OPEN, {"logs": [["x"]]}), "invalid 'logs' in message"),
        (HELLO + freeze(1), "a frame 'freeze' out of turn"),
        (HELLO + frame_codec.head(frame_codec.END, 0), "a frame 'end' out of turn"),
    ],
)
def test_a_strange_client_is_sent_away(data: bytes, message: str) -> None:
    said, problem = answers(data)
    assert message in problem
    assert kinds(said) in ([], ["error"])
    if data.startswith(HELLO) and "middle" not in message:
        assert message in json.loads(said[0][1])["what"]


def test_the_end_of_the_input_thaws(log: multilog.Log) -> None:
    for data in (
        freeze(1),
        freeze(1) + b"\0",
        freeze(1) + thaw(1)[:9],
        freeze(1) + freeze(2),
        freeze(1) + query("x"),
        freeze(1) + b"\xff" * 100,
        thaw(1) + freeze(1) + thaw(2) + freeze(3),
    ):
        said, _ = answers(HELLO + opened(log.path) + data)
        assert "frozen" in kinds(said)
        assert frozen(log) == 0
        assert log.control.lane(0)["broken"] == 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes(log: multilog.Log, data: st.DataObject) -> None:
    """Frames as they should be, some of them damaged, in any order: answers or one clear line, and no freeze stays."""
    whole = st.sampled_from(
        [
            opened(log.path),
            freeze(1, 1000),
            freeze(1),
            thaw(1),
            query(log.path, expr="seq < 3"),
            query(log.path, counted=True),
            query(log.path, agg="count", by="writer"),
            query("/etc"),
            query(log.path, schema=SIGNED.as_dict(), host="h", fields="seq"),
            query(log.path, schema={"fields": [1]}),
            query(log.path, uuid=log.uuid.hex(), tails=[7], firsts=[1], limit=2),
        ]
    )
    pieces = data.draw(st.lists(st.one_of(whole, whole, st.binary(max_size=40)), max_size=6))
    stream = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 3)) if stream else 0):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    if stream and data.draw(st.booleans()):
        del stream[data.draw(st.integers(0, len(stream) - 1)) :]
    answers(HELLO + bytes(stream), max_freeze=SECOND)
    assert frozen(log) == 0


def test_roots(tmp_path: Path, log: multilog.Log) -> None:
    """Only what lies inside, links followed: those on the way there, and those in the log."""
    data, other = tmp_path / "data", tmp_path / "data-other"
    for folder in (data, other):
        folder.mkdir()
        with multilog.create(folder / "a.ml", SIGNED) as made, made.writer() as writer:
            writer.append(signed_block(1, 0, 5))
    (data / "in").symlink_to(data / "a.ml")
    (data / "out").symlink_to(other / "a.ml")
    (data / "up").symlink_to(tmp_path)
    mixed = data / "mixed.ml"
    mixed.mkdir()
    for entry in (other / "a.ml").iterdir():
        if entry.is_dir():
            (mixed / entry.name).symlink_to(entry)
        else:
            shutil.copy(entry, mixed)
    half = data / "half.ml"
    multilog.create(half, SIGNED).writer().close()
    segment = next((other / "a.ml" / "lane-000").glob("seg-*"))
    (half / "lane-000" / segment.name).unlink(missing_ok=True)
    (half / "lane-000" / segment.name).symlink_to(segment)
    good = [data / "a.ml", data / "in", data / "." / ".." / "data" / "a.ml"]
    bad = [
        other / "a.ml",
        data / "out",
        data / "up" / "data-other" / "a.ml",
        data / ".." / "data-other" / "a.ml",
        mixed,
        half,
        log.path,
        "/",
        "/etc",
        tmp_path,
        "",
        "a.ml",
        "/proc/self/cwd",
        "\0",
    ]
    for path in good:
        assert kinds(answers(HELLO + query(path, counted=True), (str(data),))[0]) == ["meta", "end"]
        entry = json.loads(answers(HELLO + opened(path), (str(data),))[0][0][1])["logs"][0]
        assert entry["path"] == str(data / "a.ml")
    for path in bad:
        said, _ = answers(HELLO + query(path, counted=True), (str(data),))
        assert kinds(said) == ["error"], path
        assert json.loads(said[0][1])["what"] in ("is outside the served folders", "is not a valid path")
        assert "error" in json.loads(answers(HELLO + opened(path), (str(data),))[0][0][1])["logs"][0]
    both = (str(data), str(other))
    assert kinds(answers(HELLO + query(mixed, counted=True), both)[0]) == ["meta", "end"]


def test_read_only(log: multilog.Log) -> None:
    said, _ = answers(HELLO + opened(log.path) + freeze(1) + query(log.path, counted=True), read_only=True)
    assert "is served read-only" in json.loads(said[0][1])["logs"][0]["error"]["what"]
    assert said[1][1] == struct.pack("<QII", 1, 0, 0)  # a freeze of no logs
    assert kinds(said)[2:] == ["meta", "end"]


class Running:
    """A server process, spoken to by hand."""

    def __init__(self, *words: str) -> None:
        self.process = popen(
            [BIN / "confluo-serve", "--stdio", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.send, self.out = self.process.stdin.write, self.process.stdout
        self.send(HELLO)
        self.line = self.out.readline()

    def frame(self) -> tuple[int, bytes]:
        kind, size = frame_codec.parse_head(self.exactly(8))
        return kind, self.exactly(size)

    def exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            assert select.select([self.out], [], [], 20)[0], "no answer"
            piece = self.out.read(n - len(data))
            assert piece
            data += piece
        return data

    def end(self) -> tuple[int, bytes]:
        """Its status and what it said, when it ends by itself."""
        status = self.process.wait(20)
        assert self.process.stderr is not None
        return status, self.process.stderr.read()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *args: object) -> None:
        self.process.kill()
        self.process.wait()
        for f in (self.process.stdin, self.process.stdout, self.process.stderr):
            if f is not None:
                f.close()


def wait_until(true: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def test_a_freeze_is_not_longer_than_the_server_allows(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    with log.writer() as writer, Running("--max-freeze", "150ms") as peer:
        peer.send(opened(log.path))
        assert peer.frame()[0] == frame_codec.OPENED
        peer.send(freeze(5, 60 * SECOND))
        assert peer.frame()[0] == frame_codec.FROZEN
        writer.append(signed_block(1, 0, 5))
        wait_until(lambda: log.version().rows == 5, "stays frozen")
        wait_until(lambda: frozen(log) == 0, "stays frozen")
        peer.send(thaw(5))
        assert struct.unpack("<QQ", peer.frame()[1][:16]) == (5, 0)  # void


@pytest.mark.parametrize("how", ["close", "term", "kill"])
def test_a_server_that_ends_leaves_nothing_frozen(tmp_path: Path, how: str) -> None:
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    with log.writer() as writer, Running() as peer:
        writer.append(signed_block(1, 0, 5))
        peer.send(opened(log.path) + freeze(1, SECOND if how == "kill" else 10 * SECOND))
        assert [peer.frame()[0], peer.frame()[0]] == [frame_codec.OPENED, frame_codec.FROZEN]
        assert frozen(log) == 1
        writer.append(signed_block(1, 5, 5))
        if how == "close":
            assert peer.process.stdin is not None
            peer.process.stdin.close()
        else:
            peer.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
        status = peer.process.wait(20)
        assert status == {"close": 0, "term": 143, "kill": -9}[how]
        wait_until(lambda: log.version().rows == 10, "stays frozen")  # killed: by its deadline
        assert log.control.lane(0)["broken"] == (how == "kill")


def test_a_client_that_leaves_ends_a_long_scan(tmp_path: Path) -> None:
    """Nothing is found, so nothing is written: only the closed input shows that the client is gone."""
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from confluo_tools.remote.server import QueryServer
QueryServer._rows = lambda *args: time.sleep(60)
QueryServer(0, 1).run()
"""
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(HELLO + query(log.path))
    child.stdin.flush()
    assert child.stdout.readline().startswith(frame_codec.HELLO)
    assert child.stdout.read(8)[4] == frame_codec.META
    child.stdin.close()
    assert child.wait(20) == 0
    child.stdout.close()


def test_a_server_that_waits_loads_what_it_will_need(log: multilog.Log) -> None:
    with Running() as peer:
        maps = Path(f"/proc/{peer.process.pid}/maps")
        wait_until(lambda: "multilog/log_scan." in maps.read_text(), "loads nothing")
        peer.send(query(log.path, counted=True))
        assert [peer.frame()[0], peer.frame()[0]] == [frame_codec.META, frame_codec.END]


def test_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running("--idle", "200ms") as peer:
        status, said = peer.end()
    assert status == 2
    assert said == b"confluo-serve: standard input: no request for 0.2 s\n"
    with Running("--idle", "200ms") as peer:
        peer.send(opened())
        status, said = peer.end()
    assert status == 2
    assert said == b"confluo-serve: standard input: no request for 0.2 s\n"
    monkeypatch.setattr(server, "STALL", 0.05)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as out:
        os.write(write, HELLO + b"\x05\0")
        with pytest.raises(ConfluoError, match="a message was not complete"):
            QueryServer(read, out.fileno()).run()
    os.close(read)
    os.close(write)


class Drip:
    """A clock, and an input that gets one byte each 9 s of it."""

    def __init__(self, write: int, data: bytes) -> None:
        self.now, self.write, self.left = 0.0, write, data

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        if seconds < 9:
            self.now += seconds
            return False
        assert self.left, "all of it was read"
        self.now += 9
        os.write(self.write, self.left[:1])
        self.left = self.left[1:]
        return True


@pytest.mark.parametrize("begun", [b"", HELLO, HELLO + query("/nowhere")[:8]], ids=["greeting", "head", "body"])
def test_a_client_that_sends_a_byte_at_a_time(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is that of a message, not of a byte; the first byte of one may take any time."""
    read, write = os.pipe()
    drip = Drip(write, (HELLO + query("/nowhere"))[len(begun) :][:20])
    os.write(write, begun)

    def ready(fds: list[int], out: list[int], bad: list[int], seconds: float | None = None) -> tuple[list[int]]:
        if select.select(fds, [], [], 0)[0]:
            return (fds,)
        return (fds if drip.wait(9.0 if seconds is None else seconds) else [],)

    monkeypatch.setattr(server, "select", SimpleNamespace(select=ready))
    monkeypatch.setattr(server, "time", drip)
    monkeypatch.setattr(QueryServer, "_warm", lambda self: None)
    with tempfile.TemporaryFile() as out, pytest.raises(ConfluoError, match="a message was not complete after 30 s"):
        QueryServer(read, out.fileno(), idle=1000.0).run()
    assert drip.now <= 9 + 30
    os.close(read)
    os.close(write)


WIDE = """
import os, resource, sys
from confluo_tools.remote.server import QueryServer
QueryServer._look = lambda self: None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
QueryServer(0, os.open("/dev/null", os.O_WRONLY)).run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("expr", ["", "seq != 7"])
def test_a_wide_schema_of_the_client_costs_bounded_memory(log: multilog.Log, expr: str) -> None:
    own = log.schema.as_dict()

    def wide(n: int) -> dict[str, Any]:
        return {**own, "fields": [*own["fields"], *({"name": f"x{i}", "type": "text(65535)"} for i in range(n))]}

    said, _ = answers(HELLO + query(log.path, expr=expr, schema=wide(100)))
    assert kinds(said) == ["error"]
    assert "the client asks for 6553500 bytes more" in json.loads(said[0][1])["what"]
    done = subprocess.run(
        [sys.executable, "-c", WIDE],
        input=HELLO + query(log.path, expr=expr, schema=wide(4)),  # 786 MB of rows
        capture_output=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    assert int(done.stdout) < 400 << 10, "KiB"


def test_no_standard_input() -> None:
    done = subprocess.run(["bash", "-c", '"$0" --stdio <&-', BIN / "confluo-serve"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"confluo-serve: standard input: is closed\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], b"--stdio is missing"),
        (["--stdio", "--root", "/nowhere"], b"--root /nowhere: is not a folder"),
        (["--stdio", "--max-freeze", "2h"], b"--max-freeze 2h: is out of range"),
        (["--stdio", "--idle", "0s"], b"--idle 0s: is out of range"),
    ],
)
def test_usage(words: list[str], message: bytes) -> None:
    done = run("confluo-serve", *words)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert message in done.stderr
