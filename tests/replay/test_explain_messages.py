"""What the time of real messages went to: requests and responses over persistent connections, some packets lost."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.replay.explain.causes import LIMITS
from confluo_tools.replay.explain.labels import LABELS
from wire_lab import carried, explained, stalls

CONNECTIONS, REQUESTS = 8, 100  # of each
SIZES = (200, 3_000, 30_000, 120_000)


def mix(wire: Any, requests: int = REQUESTS) -> None:
    """Each connection asks with 100 bytes and gets one of the sizes, again and again."""
    pairs = [wire.connect() for _ in range(CONNECTIONS)]

    def talk(client: Any, server: Any, seed: int) -> None:
        sizes = random.Random(seed).choices(SIZES, (70, 20, 8, 2), k=requests)
        sender = threading.Thread(target=answer, args=(server, sizes))
        sender.start()
        for size in sizes:
            client.sendall(bytes(100))
            stalls.read_all(client, size)
        sender.join()
        stalls.settle(client)

    def answer(server: Any, sizes: list[int]) -> None:
        for size in sizes:
            stalls.read_all(server, 100)
            server.sendall(bytes(size))

    threads = [threading.Thread(target=talk, args=(*pair, i)) for i, pair in enumerate(pairs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.root
@pytest.mark.net
def test_ideal_and_causes_add_up_to_the_time(tmp_path: Path) -> None:
    """To the nanosecond, at both ends of the connections; and the sums by cause to those of the messages."""
    chance = random.Random(3)
    rule = lambda p: None if p.count > 3 and chance.random() < 0.005 else 0.0005  # noqa: E731
    wire = carried(rule, mix, rto_min=20)
    for side in (0, 1):
        _, messages, explainer = explained(wire.capture(side, tmp_path / f"{side}.pcap"))
        assert len({(m["flow"], m["src_port"]) for m in messages}) == 2 * CONNECTIONS
        for m in messages:
            assert m["took"] == m["ideal"] + sum(m[label] for label in LABELS if label in m), m
            assert min(m[label] for label in LABELS if label in m) >= 0
        assert sum(m["bytes"] for m in messages if m["dst_ip"] & 3 == 2) == CONNECTIONS * REQUESTS * 100
        for limits in ((), LIMITS):
            sums = explainer.causes(limits)
            handshake = sum(time for size, _, _, _, time, _ in sums if limits and size == 0)
            assert sum(time for _, _, _, _, time, _ in sums) - handshake == sum(m["above"] for m in messages)
            assert sum(count for _, _, count, *_ in sums) == sum(m["above"] > 0 for m in messages)
