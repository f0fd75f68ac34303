"""Groups that do not fit into memory, against brute force and DuckDB."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_query_memory import peak
from test_rollup import ALL_AGGS, KEYS, check, in_order, rows_for, span

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.group_spill import GroupSpill
from confluo_tools.multilog.query.row_runs import RowRuns
from confluo_tools.schema import Field, Schema
from running import run
from twin_rollup import SCHEMA, block_of, read

ROWS = 400_000
KEYED = Schema("keyed", [Field("ts", "time"), Field("key", "u64"), Field("port", "u16"), Field("len", "u32")])


@settings(max_examples=120, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(set(KEYS) - {"none"})),
    aggs=st.lists(st.sampled_from([a for a in ALL_AGGS if a.func != "sum"]), max_size=4, unique_by=lambda a: a.label),
)
def test_groups_in_files_are_the_groups(data: st.DataObject, name: str, aggs: list[Aggregate]) -> None:
    by, aggs = KEYS[name], aggs or [Aggregate("count", None, None, "n")]
    rows = data.draw(rows_for(aggs, by))
    # All of it is drawn before there are files: an example that draws too much ends anywhere.
    drawn = [(row, data.draw(st.integers(0, 2)), data.draw(st.booleans())) for row in rows]
    question = Aggregation(SCHEMA, aggs, by)
    spill = GroupSpill(question.rollup, 1 << 40)
    spill.budget = 0  # everything goes to files, and is divided until a share is one group
    rollup, numbered = spill(), []
    for i, (row, lane, full) in enumerate(drawn):
        rollup.update(block_of([row], lane=lane, base=i))
        numbered.append((lane, i, row))
        if full:
            rollup = spill.keep(rollup)
    if not spill.spilled:
        return
    found, chosen = [], in_order(numbered)
    for part in spill.rollups(rollup):
        since, until = spill.span or (None, None)
        found += read(question.result, question.answer(part, since=since, until=until))
    step = next((b.arg / 1e9 for b in by if b.kind == "bucket" and b.field == "ts"), 0.0)
    check(question, found, chosen, by, step or span(chosen))


@settings(max_examples=30, deadline=None)
@given(
    runs=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=30), max_size=5),
    size=st.integers(1, 4),
    first=st.none() | st.integers(0, 40),
)
def test_runs_are_merged_in_order(runs: list[list[tuple[int, int]]], size: int, first: int | None) -> None:
    schema = Schema("pair", [Field("a", "u64"), Field("b", "i32")])
    whole = RowRuns(schema.layout, rows=size)
    for run_ in runs:
        rows = sorted(run_, key=lambda row: (-row[0], row[1]))
        a, b = np.array([r[0] for r in rows], "<u8"), np.array([r[1] for r in rows], "<i4")
        whole.add([Block.wrap(schema.layout, len(rows), [a.tobytes(), b.tobytes()])] if rows else [])
    found = read(schema, whole.merged([(0, True), (1, False)], first))
    expected = sorted([row for run_ in runs for row in run_], key=lambda row: (-row[0], row[1]))
    assert [(row["a"], row["b"]) for row in found] == (expected if first is None else expected[:first])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 250,000 keys, and the same in ``rows``, a table of DuckDB."""
    path = tmp_path_factory.mktemp("spill") / "keyed.ml"
    rng = np.random.default_rng(3)
    columns: list[Any] = [np.arange(ROWS, dtype="<i8") * 1000, rng.integers(0, 250_000, ROWS, "<u8") << 20]
    columns += [rng.integers(0, 5, ROWS, "<u2"), rng.integers(60, 1500, ROWS, "<u4")]
    with multilog.create(path, KEYED) as made, made.writer() as writer:
        for start in range(0, ROWS, 65536):
            part = [c[start : start + 65536].tobytes() for c in columns]
            writer.append(Block.wrap(KEYED.layout, len(columns[0][start : start + 65536]), part))
    return path


def answer(log: Path, *words: str) -> list[list[int]]:
    done = run("confluo-query", str(log), "-o", "csv", *words, check=True)
    return [[int(value) for value in line.split(b",")] for line in done.stdout.splitlines()[1:]]


def oracle(log: Path, sql: str) -> list[list[int]]:
    import confluo_tools as ct

    rows = ct.open(log).query(zone=False)  # noqa: F841 - DuckDB finds it by its name
    return [list(row) for row in duckdb.sql(sql).fetchall()]


@pytest.mark.parametrize("limit", ["500k", "10G"])
def test_many_groups_against_duckdb(log: Path, limit: str) -> None:
    few = 40_000 << 20
    words = (f"key < {few}", "--agg", "count, sum(len), max(len), distinct(port)", "--by", "key")
    words += ("--memory-limit", limit)
    where = f"where key < {few} group by key"
    sql = f"select key, count(*) n, sum(len)::bigint s, max(len), count(distinct port) from rows {where}"
    assert answer(log, *words) == oracle(log, f"{sql} order by key")
    assert answer(log, *words, "--top", "9") == oracle(log, f"{sql} order by n desc, key limit 9")
    assert answer(log, *words, "--having", "count > 5") == oracle(log, f"{sql} having n > 5 order by key")


def test_memory_stays_below_the_limit(log: Path, bin_dir: Path) -> None:
    words = (bin_dir / "confluo-query", log, "--agg", "count, avg(len)", "--by", "key", "--top", "1")
    assert peak(*words, "--memory-limit", "8M") < peak(*words) - (8 << 20)


def test_files_have_no_name(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no name is gone with the process, however it ends."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    question = Aggregation(KEYED, parse_aggregates("count", KEYED), parse_by("key", KEYED))
    spill = GroupSpill(question.rollup, 1 << 20)
    with multilog.open(log, readonly=True) as opened:
        from confluo_tools.multilog.query.plan import QueryPlan

        rollup = spill()
        for block, picks in QueryPlan(opened):
            rollup.update(block, picks)
            rollup = spill.keep(rollup)
    assert spill.spilled
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd)]
    assert sum(place.startswith(str(tmp_path)) and place.endswith("(deleted)") for place in held) >= 16
    assert os.listdir(tmp_path) == []
    assert sum(len(part) for part in spill.rollups(rollup)) == len(set(oracle_keys(log)))


def _exists(fd: str) -> bool:
    try:
        os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return True


def oracle_keys(log: Path) -> list[int]:
    return [row[0] for row in oracle(log, "select distinct key from rows")]


def test_what_does_not_fit_is_said_in_one_line(log: Path, bin_dir: Path) -> None:
    by = ("--by", "port", "--memory-limit", "300Ki")
    done = run("confluo-query", str(log), "--agg", "distinct(key)", *by)
    assert done.returncode == 2
    assert done.stderr.startswith(b"confluo-query: the values of one group need more than 300 KiB of memory; ")
    assert done.stderr.count(b"\n") == 1
    words = [bin_dir / "confluo-query", log, "--agg", "count", "--by", "key", "--memory-limit", "2M"]
    full = subprocess.run(["prlimit", "--fsize=200000", *map(str, words)], capture_output=True)
    assert full.returncode == 2
    assert b"groups cannot be written: File too large; set TMPDIR to a folder with more room" in full.stderr
    assert full.stderr.count(b"\n") == 1


def test_workers_keep_the_limit_too(log: Path) -> None:
    words = ("--agg", "count, max(key)", "--by", "key", "--top", "9", "--memory-limit", "2M")
    one, several = (run("confluo-query", str(log), *words, *more) for more in ((), ("--engine", "local:2")))
    assert (several.returncode, several.stdout, several.stderr) == (0, one.stdout, b"")
