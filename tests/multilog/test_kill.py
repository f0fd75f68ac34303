"""Writers killed with SIGKILL, at fault points and at random instants: no published row is lost, no row is invented."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.multilog.verify import verify
from log_rows import SIGNED, signed_block, signed_rows
from running import environment, script

SUPPORT = Path(__file__).resolve().parents[1] / "support"
MOST = 600_000  # rows of a writer that is killed at some instant


def fault_points() -> list[str]:
    """Every fault point of a writer, from the sources."""
    found: set[str] = set()
    files = [
        "pyx/multilog/c_lane.pxd",
        "pyx/multilog/c_seal.pxd",
        "pyx/multilog/control.pyx",
        "pyx/multilog/seal.pyx",
        "confluo_tools/multilog/lane_claim.py",
    ]
    for file in files:
        names = re.findall(r'\bfault(?:_point)?\("([\w-]+)"\)', (SUPPORT.parents[1] / file).read_text())
        assert not found & set(names)
        assert len(names) == len(set(names)), f"{file}: a fault point name must be unique"
        found |= set(names)
    assert len(found) > 20
    return sorted(found)


def start(
    path: Path,
    writer: int,
    batch: int,
    rows: int,
    *,
    threads: int = 1,
    ahead: int = 1,
    fault: str = "",
    more: tuple[str, ...] = (),
):  # type: ignore[no-untyped-def]
    words = [path, writer, batch, rows, threads, ahead, *more]
    text = "import log_writer; log_writer.main()"
    return script(text, *map(str, words), stdout=subprocess.PIPE, env=environment(CONFLUO_FAULT=fault))


def acknowledged(output: bytes) -> dict[int, int]:
    """Rows that each writer reported as published, from its output (the last line may be incomplete)."""
    known: dict[int, int] = {}
    for line in output.split(b"\n")[:-1]:
        if line not in (b"ready", b"done"):
            writer, rows = map(int, line.split())
            known[writer] = rows
    return known


def rows_in(log: multilog.Log) -> dict[int, int]:
    """Rows of each writer; AssertionError unless each has exactly rows 0, 1, 2, ... without gaps."""
    rows: dict[int, int] = {}
    for block in log.blocks():
        assert block.check(), log.damage
        for writer, first, n in signed_rows(block):
            assert first == rows.get(writer, 0), f"writer {writer}: row {first} follows {rows.get(writer, 0)}"
            rows[writer] = first + n
    assert log.damage == []
    return rows


class Story:
    """A log with many successive writers, and the rows that they reported as published."""

    def __init__(self, path: Path, **options: int) -> None:
        self.path = path
        self.log = multilog.create(path, SIGNED, **options)  # type: ignore[arg-type]
        self.promised: dict[int, int] = {}
        self.tried: dict[int, int] = {}

    def check(self) -> None:
        for log in (self.log, multilog.open(self.path)):  # an old reader and a new one
            rows = rows_in(log)
            for writer, promised in self.promised.items():
                assert rows.get(writer, 0) >= promised, f"writer {writer} published {promised} rows"
            for writer, n in rows.items():
                assert n <= self.tried[writer]
        assert [f for f in verify(self.log) if f.damage] == []

    def go_on(self, writer: int, rows: int = 1000) -> None:
        """Another writer claims the lane of the dead one, and writes."""
        self.tried[writer] = self.promised[writer] = rows
        with self.log.writer() as lane:
            lane.append(signed_block(writer, 0, rows))
        self.check()
        assert all(p.sealed for p in self.log.segments())


@pytest.mark.parametrize("fault", fault_points())
def test_death_at_every_fault_point(tmp_path: Path, fault: str) -> None:
    """Writers of one log are killed at the first, second, ... pass of the fault point; others continue."""
    story = Story(tmp_path / "t.ml", segment_blocks=1)
    deaths = 0
    rows = 150_000 if fault.startswith("compact") else 170_000  # the last segment: 18,928 or 38,928 rows
    for passing, before in ((1, "segment-named:2"), (2, "append-stored:20"), (4, "seal-half:1")):
        writer = passing * 10
        # kill one writer, then kill the next owner at the fault point
        for w, at in ((writer, before), (writer + 1, f"{fault}:{passing}")):
            story.tried[w] = rows
            process = start(story.path, w, 5_000, rows, fault=at)
            output = process.communicate()[0]
            assert process.returncode in (0, -signal.SIGKILL)
            story.promised |= acknowledged(output)
            story.check()
        deaths += process.returncode == -signal.SIGKILL
        story.go_on(writer + 2, 30_000)
        if process.returncode == 0:
            break
    assert deaths, "the writer never came by"


def test_the_next_owner_dies_again_and_again(tmp_path: Path) -> None:
    """Sealing by the next owner is interrupted once at each step, one after the other."""
    story = Story(tmp_path / "t.ml", segment_blocks=2)
    steps = [
        "orphan-removed",
        "trim-message",
        "trim-column",
        "trim-length",
        "seal-before",
        "seal-half",
        "seal-written",
        "compact-copied",
        "compact-rename",
        "orphan-sealed",
        "claim-line",
        "claim-count",
        "segment-open",
        "segment-filled",
        "segment-named",
        "rotate",
        "block-message",
        "block-head",
    ]
    for round_, left in enumerate((70_000, 200_000, 300)):
        writer = round_ * 100
        story.tried[writer] = left
        process = start(story.path, writer, 100, left, fault=f"append-stored:{left // 100 - 1}")
        story.promised |= acknowledged(process.communicate()[0])
        assert process.returncode == -signal.SIGKILL
        for k, step in enumerate(steps, 1):
            story.tried[writer + k] = 200
            process = start(story.path, writer + k, 100, 200, ahead=-1, fault=f"{step}:1")
            story.promised |= acknowledged(process.communicate()[0])
            story.check()
        story.go_on(writer + 99)


def readers(log: multilog.Log) -> Iterator[dict[int, int]]:
    """Read the log repeatedly: versions never decrease, and contain whole prefixes."""
    before, last = multilog.Version(), {}
    while True:
        version = log.version()
        assert before <= version
        rows: dict[int, int] = {}
        for block in log.blocks(version):
            for writer, first, n in signed_rows(block):
                assert first == rows.get(writer, 0)
                rows[writer] = first + n
        assert sum(rows.values()) == version.rows
        assert all(rows[w] >= n for w, n in last.items())
        assert log.damage == []
        before, last = version, rows
        yield rows


def test_death_at_random_instants(tmp_path: Path) -> None:
    """Two processes of two writers each, killed after up to 60 ms, while readers read.

    A writer stops after some 9 segments: all rows are read again and again, and a busy machine kills late.
    """
    story = Story(tmp_path / "t.ml", segment_blocks=1)
    chance = random.Random(7)
    looks = readers(multilog.open(story.path))
    for round_ in range(12):
        processes = []
        for k in range(2):
            writer = round_ * 10 + k * 2
            story.tried |= {writer: MOST, writer + 1: MOST}
            processes.append(
                start(
                    story.path,
                    writer,
                    chance.choice([1, 100, 7_000, 65_536]),
                    MOST,
                    threads=2,
                    ahead=chance.choice([-1, 1, 2]),
                    more=("wait",),
                )
            )
        for p in processes:
            assert p.stdout.readline() == b"ready\n"
        until = time.monotonic() + chance.random() * 0.06
        output = [b""] * 2
        for p in processes:
            os.set_blocking(p.stdout.fileno(), False)
        while time.monotonic() < until:
            next(looks)
            for k, p in enumerate(processes):
                output[k] += p.stdout.read() or b""
        for p in processes:
            p.send_signal(signal.SIGKILL)
        for k, p in enumerate(processes):
            os.set_blocking(p.stdout.fileno(), True)
            story.promised |= acknowledged(output[k] + p.communicate()[0])
            assert p.returncode == -signal.SIGKILL
        next(looks)
        story.check()
        if round_ % 3 == 2:
            story.go_on(round_ * 10 + 9)
    assert sum(story.promised.values()) > 12_000


def test_many_writers_and_readers_at_once(tmp_path: Path) -> None:
    """4 processes with 2 writers each; readers see only whole, growing prefixes."""
    story = Story(tmp_path / "t.ml", segment_blocks=2)
    processes = []
    for k, batch in enumerate((50, 1_000, 33_333, 65_536)):
        story.tried |= {k * 2: 200_000, k * 2 + 1: 200_000}
        processes.append(start(story.path, k * 2, batch, 200_000, threads=2))
    looks = readers(multilog.open(story.path))
    seen = 0
    while any(p.poll() is None for p in processes[1:]):
        seen = sum(next(looks).values())
        for p in processes:
            os.set_blocking(p.stdout.fileno(), False)
            p.stdout.read()
    for p in processes:
        os.set_blocking(p.stdout.fileno(), True)
        p.communicate()
        assert p.returncode == 0
    assert seen <= sum(next(looks).values()) == 8 * 200_000
    story.promised = dict.fromkeys(range(8), 200_000)
    story.check()
    assert [story.log.control.lane(i)["rows"] for i in range(8)] == [200_000] * 8 or (
        sum(story.log.version().tails) == 8 * 200_000
    )
