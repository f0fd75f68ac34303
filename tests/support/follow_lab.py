"""Commands that follow inputs, and logs, captures and lines that grow."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of
from confluo_tools.schema import Field, Schema
from make_capture import udp4
from running import BIN, environment, next_line, popen

SECOND = 1_000_000_000
ROWS = Schema("rows", [Field("ts", "time"), Field("n", "u64")])
PLAIN = ("-T", "--no-header", "-f", "n")


def rows(times: Sequence[int], first: int) -> Block:
    return block_of(ROWS, {"ts": list(times), "n": list(range(first, first + len(times)))}, len(times))


@contextmanager
def growing(path: Path) -> Iterator[Any]:
    """A new log, and what appends rows with these times to it."""
    with multilog.create(str(path), ROWS) as log, log.writer(ahead=-1) as writer:
        count = 0

        def append(*times: int) -> None:
            nonlocal count
            writer.append(rows(times, count))
            writer.flush()
            count += len(times)

        yield append


@contextmanager
def following(*words: object, env: Any = None) -> Iterator[Any]:
    given = {"stdout": -1, "stderr": -1, "env": env or environment()}
    with popen([BIN / "confluo-query", *map(str, words)], **given) as process:
        try:
            yield process
        finally:
            process.kill()


def numbers(process: Any, count: int) -> list[int]:
    """The numbers on the next lines that a command prints."""
    return [int(next_line(process.stdout)) for _ in range(count)]


def ended(process: Any) -> str:
    """Its messages after a signal."""
    process.send_signal(signal.SIGTERM)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest) == (128 + signal.SIGTERM, b""), said
    return str(said, "utf-8")


def frame(n: int) -> bytes:
    data = udp4(b"x" * 20, sport=1000 + n)
    return (100 + n).to_bytes(4, "little") + bytes(4) + 2 * len(data).to_bytes(4, "little") + data


HEAD = bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")
