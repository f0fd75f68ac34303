"""The memory of a query does not grow with the log."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from confluo_tools import multilog, schema
from confluo_tools.core.block.block import Block

ROWS = 65536
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def make(path: Path, blocks: int) -> Path:
    """A log of 64-byte rows in which no column is empty."""
    kind = schema.builtin("header64")
    noise = bytes(range(1, 252)) * (8 * ROWS // 251 + 1)
    block = Block.wrap(kind.layout, ROWS, [noise] * kind.layout.n)
    with multilog.create(path, kind) as log, log.writer() as writer:
        for _ in range(blocks):
            writer.append(block)
    return path


def peak(*command: object) -> int:
    """Peak resident bytes of a command, started from a small process (a child inherits the peak of its parent)."""
    done = subprocess.run([sys.executable, "-S", "-c", PEAK, *map(str, command)], capture_output=True, check=True)
    return int(done.stdout) * 1024


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Logs of 130 and of 540 MB."""
    folder = tmp_path_factory.mktemp("memory")
    yield [make(folder / "small.ml", 32), make(folder / "large.ml", 128)]
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("len > 5", "--agg", "max(ts), max(tcp_seq), max(tcp_ack), max(flow_hash), max(len)"),
        ("src_port > 60000", "-o", "stream"),
        ("len > 5 and tcp_seq == tcp_ack", "--count"),
    ],
    ids=["aggregate", "rows", "count"],
)
def test_memory_of_a_query_does_not_grow_with_the_log(logs: list[Path], bin_dir: Path, words: tuple[str, ...]) -> None:
    first, second = (peak(bin_dir / "confluo-query", path, *words) for path in logs)
    assert second < first + (32 << 20)
    assert second < 250 << 20


FOLLOW = """
import sys
from confluo_tools.multilog.tails import Tails
rows = 0
with Tails(sys.argv[1]) as tails:
    for block, _ in tails.take():
        rows += block.rows
        for column in range(block.layout.n):
            memoryview(block.buffer(column))[::4096].tobytes()  # every page
assert rows == int(sys.argv[2])
"""


def test_memory_of_following_does_not_grow_with_what_came_before(logs: list[Path]) -> None:
    """Following a log releases the memory of rows already read."""
    first, second = (
        peak(
            "env",
            f"PYTHONPATH={Path(__file__).resolve().parents[2]}",
            sys.executable,
            "-c",
            FOLLOW,
            path,
            blocks * ROWS,
        )
        for path, blocks in zip(logs, (32, 128), strict=True)
    )
    assert second < first + (16 << 20)
    assert second < 150 << 20
