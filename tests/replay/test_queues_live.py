"""Queues of a real path: two recorded hosts, a router with a drop-tail queue between them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import netns
from netns import Lab
from replay_lab import BULK, dumped, record, routed, wait_for_all
from sessions import Shell

pytestmark = [pytest.mark.root, pytest.mark.net, pytest.mark.skipif(bool(netns.missing()), reason=str(netns.missing()))]
TOPOLOGY = """topology: 1
switches:
  router: {level: tor, pod: left, buffer: {size: 30000, private: true}}
  far: {level: tor, pod: right}
links: [[router, far, {speed: 50Mbit, delay: 10us}]]
dcs: {d: {s: {left: {client: 10.78.1.1}, right: {server: 10.78.2.1}}}}
"""


def counted(shell: Shell, words: str) -> list[list[str]]:
    status, lines = shell.run(words)
    assert status == 0, lines
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def test_what_was_lost_is_dropped_at_the_queue_that_was_full(tmp_path: Path) -> None:
    """The recordings and the captures of both hosts show the same losses, and the replay drops them at the router.

    How long the replayed queue is depends on the times at which a busy machine sent: one of three recordings must do.
    """
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        lost, dropped, longest = replayed(folder)
        assert lost > 3
        assert [row[:2] for row in dropped] in ([["router", "far"]], [])
        assert sum(int(row[3]) for row in dropped) <= lost
        if longest > 20_000 and dropped and int(dropped[0][3]) >= lost * 0.5:
            return
    pytest.fail("the queue of the router was not full in any replay")


def replayed(tmp_path: Path) -> tuple[int, list[list[str]], int]:
    """Record a transfer, replay its queues: packets lost, rows of what was dropped where, longest queue in bytes."""
    (tmp_path / "path.yaml").write_text(TOPOLOGY)
    with Lab() as lab:
        path = routed(lab, rate="50mbit", limit=30_000)
        dumps = list(dumped(path, tmp_path))
        record(path, tmp_path, BULK, 2_000_000, options=("--level", "headers"))
        for name in ("client", "server"):
            wait_for_all(tmp_path / f"{name}.pcap")
        for dump in dumps:
            dump.send_signal(signal.SIGINT)
            dump.wait(20)
            dump.stderr.close()  # type: ignore[union-attr]
    shell = Shell(tmp_path)
    words = "confluo-query {} 'event == dropped' --agg count --by switch,to,why -T"
    found = []
    queues = []
    for inputs, log in (("client.ml server.ml", "recorded.ml"), ("client.pcap server.pcap", "captured.ml")):
        counted(shell, f"confluo-replay queues {inputs} --topology path.yaml -q -w {log}")
        lost = counted(shell, f"confluo-query {log} 'notes has lost' --agg 'distinct(packet)' -T")[0][0]
        longest = counted(shell, f"confluo-query {log} 'switch == \"router\" && to == \"far\"' --agg 'max(queue)' -T")
        found.append((int(lost), counted(shell, words.format(log))))
        queues.append(int(longest[0][0]))
    assert found[0] == found[1]
    return *found[0], min(queues)
