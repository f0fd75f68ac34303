"""Rows with times for archives, and what there is to ask of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from confluo_tools import multilog
from confluo_tools.expr import compile
from confluo_tools.multilog.archive import parquet_parts
from confluo_tools.multilog.archive import writer as archive
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.open_log import open_log
from log_rows import ALL_TYPES, block_of, random_columns

HOUR = 3600
SECOND = 1_000_000_000
QUESTIONS = [
    "",
    "a < 40",
    "b in 5..900 || e == -3",
    "ts < @7300",
    "not (ts in @3600..@10000)",
    "x > 0 && d > 9",
    "kind == one",
    "name like 'a*'",
    "path == 7",
    "addr == ::1",
]


def columns(rows: int, seed: int, times: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Random rows of every type at these times; several columns with few values, so that statistics tell something."""
    out = random_columns(ALL_TYPES, rows, seed)
    out[0] = times.astype("<i8")
    out[1] = (np.arange(rows) // 1000 + seed).astype("u1")
    return out


def times(rows: int, start: int, order: str, seed: int) -> np.ndarray[Any, Any]:
    """Instants of up to three hours from ``start`` (s)."""
    ts = start * SECOND + np.linspace(0, 2.5 * HOUR * SECOND, rows).astype("<i8")
    if order == "shuffled":
        np.random.default_rng(seed).shuffle(ts)
    return ts[::-1] if order == "backwards" else ts


Rows = list[bytes]


def rows_of(reader: Any, text: str = "", **options: Any) -> Rows:
    """The bytes of each column of what a question gives."""
    out: list[list[bytes]] = [[] for _ in range(reader.schema.layout.n)]
    for b, picks in reader.select(compile(text, reader.schema), **options):
        taken = b if picks is None else b.take(picks)
        for i, column in enumerate(out):
            column.append(bytes(taken.buffer(i)))
    reader.close()
    return [b"".join(column) for column in out]


def answers(path: Path, questions: list[str] = QUESTIONS, **options: Any) -> list[Any]:
    """What log and archive together answer to several questions, in each of the ways there are to ask."""
    told: list[str] = []
    found: list[Any] = []
    for text in questions:
        found.append(rows_of(open_log(str(path), warn=told.append, **options), text))
        found.append(rows_of(open_log(str(path), warn=told.append, **options), text, by_time=False))
        reader = open_log(str(path), warn=told.append, **options)
        found.append(reader.count(compile(text, reader.schema)))
        ts = rows_of(open_log(str(path), warn=told.append, **options), text, columns=[0])
        found.append(ts[0])
    assert told == []
    return found


def run_all(log: multilog.Log, to: str | Path, before: int | None = None, **options: Any) -> list[archive.BatchResult]:
    with ArchiveWriter(log, to, "here") as a:
        return [a.run(batch, record, **options) for batch, record in a.plan(before)]


def plain(to: Path) -> list[tuple[int, int]]:
    """(lane, row number) of every row that other programs see in an archive."""
    seen: list[tuple[int, int]] = []
    for path in sorted(to.rglob("*.parquet")):
        if ".confluo" in path.parts:
            continue
        batch = parquet_parts.batch_of(path.name)
        assert batch is not None
        lane = batch[1]
        seen += [(lane, n) for n in pq.ParquetFile(path).read(["log_row"]).column(0).to_pylist()]
    return sorted(seen)


def make(path: Path, **options: Any) -> multilog.Log:
    """Two lanes, several segments each, 11,000 rows of 6 hours."""
    log = multilog.create(path, ALL_TYPES, segment_blocks=1, **options)
    for k in range(4):
        writers = [log.writer(ahead=-1), log.writer(ahead=-1)]
        for lane, w in enumerate(writers):
            rows = 1500 if (k + lane) % 2 else 1250
            order = "shuffled" if k == 1 else "forward"
            w.append(block_of(ALL_TYPES, columns(rows, k * 2 + lane, times(rows, k * HOUR, order, k))))
        for w in writers:
            w.close()
    return log
