"""Records on their way to a controller that is away for a while, or refuses them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import agent_lab as lab
from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of
from confluo_tools.pingmesh.agent import background
from confluo_tools.pingmesh.agent.controller_client import Controller
from confluo_tools.schema import builtin

for package in ("starlette", "uvicorn", "prometheus_client", "cryptography"):
    pytest.importorskip(package)
SCHEMA = builtin("probe")


def some(n: int = 10) -> Block:
    return block_of(SCHEMA, {"ts": list(range(1, n + 1)), "kind": [1] * n, "src": ["a1"] * n}, n)


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def port() -> Iterator[int]:
    """A free port without a listener."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


def test_a_controller_that_is_away_for_a_while_gets_all(tmp_path: Path, port: int) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    sender = background.RecordSender(Controller((f"http://127.0.0.1:{port}",)), SCHEMA, 0.1, "a1")
    try:
        for _ in range(5):
            sender.add(some())
            sender.step(all=True)
        until(lambda: bool(sender.problem))
        time.sleep(4)  # a few tries
        assert (sender.sent, sender.discarded) == (0, 0)
        run = lab.Running("serve", lists, "--listen", f"127.0.0.1:{port}", "--records", tmp_path / "r.ml", cwd=tmp_path)
        try:
            run.says(r"http at")
            until(lambda: sender.sent == 50)
        finally:
            run.end()
    finally:
        sender.end(5)
    assert sender.discarded == 0
    assert lab.rows(tmp_path / "r.ml", "--count") == [["50"]]


def test_what_there_is_no_room_for_is_counted(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes; at the end each is tried once more."""
    monkeypatch.setattr(background, "MAX_SPOOL", 4096)
    sender = background.RecordSender(Controller((f"http://127.0.0.1:{port}",)), SCHEMA, 0.1, "a1")
    for _ in range(50):
        sender.add(some())
        sender.step(all=True)
    assert 0 < sender.discarded < 500
    sender.end(20)
    assert (sender.sent, sender.discarded) == (0, 500)


def test_what_is_refused_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    """A controller without --records."""
    (tmp_path / "lists").mkdir()
    with lab.controller(tmp_path / "lists") as (_, url):
        sender = background.RecordSender(Controller((url,)), SCHEMA, 0.1, "a1")
        for _ in range(3):
            sender.add(some())
            sender.step(all=True)
        until(lambda: sender.discarded == 30)
        assert "does not accept records" in sender.problem
        sender.end(5)
