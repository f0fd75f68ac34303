"""Servers that stop in the middle of an answer, and servers that only take long: the ALIVE frames tell them apart."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.commands import query
from confluo_tools.expr import compile as compile_expr
from confluo_tools.expr import parse_aggregates
from confluo_tools.inputs import logs as inputs
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import Address
from confluo_tools.remote.connect import Connection, RemoteError, RemoteShell
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest
from frames_lab import query as query_frame
from log_rows import SIGNED, signed_block
from remote_lab import ssh_server
from running import ROOT, environment

ROWS = 30_000
# HOST ALIVE: a server that stops itself (stop*) or waits (slow*) in the middle of an answer.
SERVER = """
import os, signal, sys, time
sys.path.insert(0, ROOT)
from confluo_tools.remote import server

class Halting(server.QueryServer):
    def _halt(self):
        if sys.argv[1].startswith("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if sys.argv[1].startswith("slow"):
            time.sleep(2.5)

    def _rows(self, *given):
        self._halt()
        return super()._rows(*given)

    def _groups(self, *given):
        self._halt()
        return super()._groups(*given)

Halting(0, 1, alive=float(sys.argv[2])).run()
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("silence") / "a.ml"
    with multilog.create(path, SIGNED) as made, made.writer() as writer:
        writer.append(signed_block(1, 0, ROWS))
    return path


def shell(folder: Path, alive: float = 0.1, silence: float = 2.0) -> RemoteShell:
    """Servers with ALIVE frames every ``alive`` seconds, and a client that waits for ``silence``."""
    script = folder / "server.py"
    script.write_text(SERVER.replace("ROOT", repr(str(ROOT))))
    rsh = folder / "rsh"
    rsh.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$1" {alive}\n')
    rsh.chmod(0o755)
    return RemoteShell(str(rsh), "x", 30.0, silence)


@contextmanager
def asked(log: Path, by: RemoteShell, host: str, request: QueryRequest) -> Iterator[RemoteReader]:
    peer = Connection(Address(host, str(log), host), by)
    with RemoteReader(peer, request) as reader:
        reader.ask()
        reader.ready(30)
        yield reader


def rows(reader: RemoteReader) -> int:
    return sum(block.rows for block, _ in reader.select(compile_expr("", reader.schema)))


def groups(reader: RemoteReader) -> int:
    question = Aggregation(SIGNED, parse_aggregates("count", SIGNED), [])
    return reader.fold(compile_expr("", reader.schema), None, question.rollup)[1]


@pytest.mark.parametrize(("request_", "answer"), [(QueryRequest(), rows), (QueryRequest(agg="count"), groups)])
def test_a_stopped_server_is_given_up(log: Path, tmp_path: Path, request_: QueryRequest, answer: object) -> None:
    with asked(log, shell(tmp_path, silence=0.4), "stop1", request_) as reader:
        with pytest.raises(RemoteError) as e:
            answer(reader)  # type: ignore[operator]
        assert str(e.value) == "stop1: sent nothing for 0.4 s; its server or the network has stopped"
        assert reader.peer.child.returncode is not None  # it does not stay behind


def test_a_slow_server_is_waited_for(log: Path, tmp_path: Path) -> None:
    """It sends no row for longer than the limit."""
    with asked(log, shell(tmp_path, silence=2.0), "slow1", QueryRequest()) as reader:
        assert rows(reader) == ROWS


def test_alive_frames_come_between_frames(log: Path, tmp_path: Path) -> None:
    """Two threads write, as fast as they can; no frame is inside another."""
    for _ in range(3):
        with asked(log, shell(tmp_path, alive=0.0), "sw1", QueryRequest()) as reader:
            assert rows(reader) == ROWS


def test_a_server_that_stops_behind_ssh(log: Path, tmp_path: Path) -> None:
    """sshd and ssh are well, the command that they run is not."""
    words = shell(tmp_path).words("stop1")
    with ssh_server(tmp_path, " ".join([*words[:1], "stop1"])) as (space, rsh), space.inside():
        by = RemoteShell(rsh, "x", 30.0, 1.0)
        peer = Connection(Address("127.0.0.1", str(log), "far"), by)
        with RemoteReader(peer, QueryRequest()) as reader:
            reader.ask()
            reader.ready(30)
            with pytest.raises(RemoteError, match="far: sent nothing for 1 s; "):
                rows(reader)


@pytest.mark.parametrize("words", [b"alive", b"analyze"])
def test_only_clients_that_know_them_get_alive_frames(log: Path, tmp_path: Path, words: bytes) -> None:
    by = shell(tmp_path, alive=0.05)
    child = subprocess.Popen(
        by.words("slow1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment()
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(b"confluo-serve 1 0.1 " + words + b"\n" + query_frame(log, counted=True, limit=1))
            data = b""
            kinds: list[int] = []
            while frame_codec.END not in kinds:
                assert select.select([child.stdout], [], [], 60)[0]
                data += os.read(child.stdout.fileno(), 65536)
                kinds, at = [], data.find(b"\n") + 1
                while at and len(data) >= at + frame_codec.HEAD_BYTES:
                    kind, size = frame_codec.parse_head(data[at : at + frame_codec.HEAD_BYTES])
                    kinds.append(kind)
                    at += frame_codec.HEAD_BYTES + size
        finally:
            child.kill()
    assert (frame_codec.ALIVE in kinds) == (words == b"alive")
    assert kinds[-1] == frame_codec.END


def test_the_rows_of_other_hosts_come(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of three servers stops: it is named, the status is 2; a count would be wrong, so there is none."""
    by = shell(tmp_path, silence=2.0)
    monkeypatch.setattr(inputs, "shell", lambda: by)
    names = [w for host in ("sw1", "stop1", "sw2") for w in ("-r", f"{host}:{log}")]
    said = "confluo-query: stop1: sent nothing for 2 s; its server or the network has stopped"
    assert query.main([*names, "-f", "seq,host", "-T", "--no-header"]) == 2
    out, err = capfd.readouterr()
    hosts = [line.split("\t")[-1] for line in out.splitlines()]
    assert {host: hosts.count(host) for host in set(hosts)} == {"sw1": ROWS, "sw2": ROWS}
    assert err == f"{said}; the rows of the other logs follow\n"
    assert query.main([*names, "--agg", "count", "-T", "--no-header"]) == 2
    assert capfd.readouterr() == ("", f"{said}\n")
