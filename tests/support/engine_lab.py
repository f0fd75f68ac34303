"""Inputs for engines, what one core answers, and an engine with workers in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archive_lab import SECOND, make, run_all
from confluo_tools.engine import worker
from confluo_tools.engine.runner import ClusterRunner
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.open_log import open_log
from confluo_tools.multilog.query.aggregation import Aggregation

AGGREGATES = "count, sum(c), min(h), max(e), first(b), last(c), distinct(b), p50(c), p99(b), avg(g), stddev(b)"
KINDS = ["log", "archive", "log with archive"]


class Inputs(NamedTuple):
    """Paths of inputs with the same rows."""

    log: str
    archive: str
    moved: str  # a log with a part of its rows in an archive

    def open(self, kind: str) -> Reader:
        """The input of one of `KINDS`."""
        return ArchiveReader(self.archive) if kind == "archive" else open_log(self.log if kind == "log" else self.moved)


def make_inputs(folder: Path) -> Inputs:
    """A log of two lanes and eleven thousand rows, its times out of order, and the same rows in archives."""
    log = make(folder / "t.ml")
    run_all(log, folder / "archive", remove=False)
    moved = make(folder / "moved.ml")
    run_all(moved, folder / "older", before=13_000 * SECOND)
    assert Path(moved.path, "archives").exists()
    return Inputs(str(folder / "t.ml"), str(folder / "archive"), str(folder / "moved.ml"))


def aggregated(reader: Reader, text: str, by: str | None, agg: str = AGGREGATES) -> tuple[list[list[bytes]], int]:
    """The columns of the groups, and the number of rows that were selected."""
    keys = parse_by(by, reader.schema) if by else []
    question = Aggregation(reader.schema, parse_aggregates(agg, reader.schema), keys)
    columns = list(range(reader.schema.layout.n))  # damage in any of them counts
    rollup, found = reader.fold(compile(text, reader.schema), columns, question.rollup)
    blocks = list(question.answer(rollup))
    return [[bytes(b.buffer(i)) for b in blocks] for i in range(question.result.layout.n)], found


def rows_of(reader: Reader, text: str, **options: Any) -> list[bytes]:
    """The bytes of each column of the selected rows, by time."""
    out = [b""] * reader.schema.layout.n
    for block, picks in reader.select(compile(text, reader.schema), **options):
        taken = block if picks is None else block.take(picks)
        out = [have + bytes(taken.buffer(i)) for i, have in enumerate(out)]
    return out


def same(mine: list[list[bytes]], expected: list[list[bytes]]) -> bool:
    """Whether two answers to `AGGREGATES` are equal: to the last bit, but for the deviation of floating point."""
    ours, theirs = (np.frombuffer(b"".join(part[-1]), "<f8") for part in (mine, expected))
    return mine[:-1] == expected[:-1] and np.allclose(ours, theirs, rtol=1e-12, equal_nan=True)


class Inline(ClusterRunner):
    """A cluster whose workers are function calls.  ``damage``: numbers of the calls that return damaged bytes.

    ``twice``: every run is done twice, as engines do that do not wait for slow workers.
    """

    def __init__(self, slots: int = 3, damage: Sequence[int] = (), twice: bool = False) -> None:
        self.slots, self.damage, self.twice = slots, damage, twice
        self.calls = self.checks = 0
        self.runs: list[bytes] = []

    def check(self) -> None:
        self.checks += 1

    def results(self, task: bytes, runs: Sequence[bytes]) -> Iterator[bytes]:
        for run in runs:
            self.runs.append(run)
            if self.twice:
                worker.run(task, run)
            data = bytearray(worker.run(task, run))
            if self.calls in self.damage:
                data[self.calls % len(data)] ^= 1
            self.calls += 1
            yield bytes(data)
