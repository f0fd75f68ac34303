"""Writers killed with SIGKILL, at fault points and at random instants: no published row lost, none invented."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import SIGNED, signed_block, signed_rows

from confluo_tools import store
from confluo_tools.store.verify import verify

HERE = Path(__file__).parent


def fault_points() -> list[str]:
    """Every fault point of a writer, from the sources."""
    found: set[str] = set()
    files = ["pyx/c_lane.pxd", "pyx/c_seal.pxd", "pyx/control.pyx", "pyx/seal.pyx", "confluo_tools/store/recover.py"]
    for file in files:
        names = re.findall(r'\bfault(?:_point)?\("([\w-]+)"\)', (HERE.parent / file).read_text())
        assert not found & set(names)
        assert len(names) == len(set(names)), f"{file}: a name stands in one place only"
        found |= set(names)
    assert len(found) > 20
    return sorted(found)


def start(path: Path, writer: int, batch: int, rows: int, *, threads: int = 1, ahead: int = 1, fault: str = ""):  # type: ignore[no-untyped-def]
    env = {**os.environ, "CONFLUO_FAULT": fault, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
    return subprocess.Popen(
        [sys.executable, HERE / "store_writer.py", path, *map(str, (writer, batch, rows, threads, ahead))],
        stdout=subprocess.PIPE, env=env,
    )  # fmt: skip


def acknowledged(output: bytes) -> dict[int, int]:
    """Rows that each writer knew to be published, from what it printed (its last line may be cut)."""
    known: dict[int, int] = {}
    for line in output.split(b"\n")[:-1]:
        if line not in (b"ready", b"done"):
            writer, rows = map(int, line.split())
            known[writer] = rows
    return known


def rows_in(log: store.Log) -> dict[int, int]:
    """Rows of each writer; AssertionError unless each has exactly rows 0, 1, 2, ... and nobody else's stand between."""
    rows: dict[int, int] = {}
    for block in log.blocks():
        assert block.check(), log.damage
        for writer, first, n in signed_rows(block):
            assert first == rows.get(writer, 0), f"writer {writer}: row {first} follows {rows.get(writer, 0)}"
            rows[writer] = first + n
    assert log.damage == []
    return rows


class Story:
    """A log that outlives many writers, and what they said they had published."""

    def __init__(self, path: Path, **options: int) -> None:
        self.path = path
        self.log = store.create(path, SIGNED, **options)  # type: ignore[arg-type]
        self.promised: dict[int, int] = {}
        self.tried: dict[int, int] = {}

    def check(self) -> None:
        for log in (self.log, store.open(self.path)):  # a reader that saw it all, and a new one
            rows = rows_in(log)
            for writer, promised in self.promised.items():
                assert rows.get(writer, 0) >= promised, f"writer {writer} published {promised} rows"
            for writer, n in rows.items():
                assert n <= self.tried[writer]
        assert [f for f in verify(self.log) if f.damage] == []

    def go_on(self, writer: int, rows: int = 1000) -> None:
        """Another writer claims what the dead one left, and writes."""
        self.tried[writer] = self.promised[writer] = rows
        with self.log.writer() as lane:
            lane.append(signed_block(writer, 0, rows))
        self.check()
        assert all(p.sealed for p in self.log.segments())


@pytest.mark.parametrize("fault", fault_points())
def test_death_at_every_fault_point(tmp_path: Path, fault: str) -> None:
    """One log, killed at the first, second, ... passing of the point; in between somebody goes on."""
    story = Story(tmp_path / "t.ml", segment_blocks=1)
    deaths = 0
    rows = 150_000 if fault.startswith("compact") else 170_000  # the last segment: 18,928 or 38,928 rows
    for passing, before in ((1, "segment-named:2"), (2, "append-stored:20"), (4, "seal-half:1")):
        writer = passing * 10
        # first a death that leaves something for the next owner, who then dies at the point
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
    """Each step of the settling is cut off once, one after the other, over the same left-overs."""
    story = Story(tmp_path / "t.ml", segment_blocks=2)
    steps = ["settle-empty", "trim-message", "trim-column", "trim-length", "seal-before", "seal-half", "seal-written",
             "compact-copied", "compact-rename", "settle-mark", "claim-line", "claim-count", "segment-open",
             "segment-filled", "segment-named", "rotate", "block-message", "block-head"]  # fmt: skip
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


def readers(log: store.Log) -> Iterator[dict[int, int]]:
    """Look at the log again and again: versions never decrease, and hold whole prefixes."""
    before, last = store.Version(), {}
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
    """Two processes of two writers each, killed after up to 60 ms, while readers look on."""
    story = Story(tmp_path / "t.ml", segment_blocks=1)
    chance = random.Random(7)
    looks = readers(store.open(story.path))
    for round_ in range(12):
        processes = []
        for k in range(2):
            writer = round_ * 10 + k * 2
            story.tried |= {writer: 10**9, writer + 1: 10**9}
            processes.append(start(story.path, writer, chance.choice([1, 100, 7_000, 65_536]), 10**9, threads=2,
                                   ahead=chance.choice([-1, 1, 2])))  # fmt: skip
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
    looks = readers(store.open(story.path))
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
