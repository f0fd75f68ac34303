"""Zero in a field of type ipv4 or mac is no address, wherever rows are aggregated: next to plain Python."""

from __future__ import annotations

import json
import struct
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remote_lab
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.query.rollup_codec import dump, load
from confluo_tools.expr import compile, parse_aggregates
from confluo_tools.expr.group_keys import parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Field, Schema
from running import run

START = 1_700_000_000_000_000_000

SCHEMA = Schema("calls", [Field("ts", "time"), Field("a", "ipv4"), Field("b", "ipv4"), Field("n", "u32")])
FUNCTIONS = "distinct(a) as d, distinct~(a) as e, min(a) as lo, max(a) as hi, count as n"
SOME = [0, 0, 1, 5, 0x00FFFFFF, 0x0A000001, 0x0A0000FF, 0xFFFFFFFF]
ROWS = [(SOME[i * 7 % 8] if i > 40 else 0, SOME[i % 5], i % 3) for i in range(400)]  # a whole block begins with none

Row = tuple[int, int, int]  # a, b, n


def block_of(rows: list[Row], start: int = START) -> Block:
    n = len(rows)
    times = [start + i * 1_000_000 for i in range(n)]
    parts = [struct.pack(f"<{n}q", *times), *(struct.pack(f"<{n}I", *column) for column in zip(*rows, strict=True))]
    return Block.wrap(SCHEMA.layout, n, parts)


def expected(rows: list[Row]) -> dict[int, tuple[int, ...]]:
    """Of each n: different addresses, the smallest and the largest (0: none), rows."""
    out = {}
    for group in {r[2] for r in rows}:
        found = [r[0] for r in rows if r[2] == group and r[0]]
        size = sum(r[2] == group for r in rows)
        out[group] = (len(set(found)), len(set(found)), min(found, default=0), max(found, default=0), size)
    return out


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.tuples(*[st.sampled_from(SOME)] * 2, st.integers(0, 2)), min_size=1), min_size=1),
    grouped=st.booleans(),
    encoded=st.booleans(),
)
def test_roll_ups_skip_absent_addresses(parts: list[list[Row]], grouped: bool, encoded: bool) -> None:
    """One roll-up for each part, merged; as bytes, too, as another host sends them."""
    aggs = parse_aggregates(FUNCTIONS.replace(", count as n", ", count as rows"), SCHEMA)
    question = Aggregation(SCHEMA, aggs, parse_by("n", SCHEMA) if grouped else [])
    total = question.rollup()
    for rows in parts:
        one = question.rollup()
        one.update(block_of(rows))
        if encoded:
            again = question.rollup()
            load(again, dump(one))
            one = again
        total.merge(one)
    got = {}
    for block in question.answer(total):
        for i in range(block.rows):
            values = [block.get(c, i) for c in range(question.result.layout.n)]
            got[values[0] if grouped else 0] = tuple(values[1:] if grouped else values)
    every = [r if grouped else (r[0], r[1], 0) for rows in parts for r in rows]
    assert got == expected(every)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 0, 1, 0x0200_0000_0001, (1 << 48) - 1]), min_size=1))
def test_roll_ups_skip_absent_macs(values: list[int]) -> None:
    schema = Schema("frames", [Field("ts", "time"), Field("m", "mac")])
    question = Aggregation(
        schema, parse_aggregates("distinct(m) as d, distinct~(m) as e, min(m), max(m), count", schema), []
    )
    rollup = question.rollup()
    n = len(values)
    rollup.update(Block.wrap(schema.layout, n, [bytes(8 * n), struct.pack(f"<{n}Q", *values)]))
    (block,) = question.answer(rollup)
    there = [v for v in values if v]
    wanted = [len(set(there)), len(set(there)), min(there, default=0), max(there, default=0), n]
    assert [block.get(c, 0) for c in range(5)] == wanted


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.sampled_from(SOME)] * 2, st.integers(0, 2)), min_size=1), limit=st.sampled_from(SOME)
)
def test_absent_addresses_match_no_address(rows: list[Row], limit: int) -> None:
    block, text = block_of(rows), str(IPv4Address(limit))
    for words, holds in (
        (f"a == {text}", lambda a: a == limit),
        (f"a <= {text}", lambda a: a <= limit),
        (f"a >= {text}", lambda a: a >= limit),
        (f"a in 0.0.0.0-{text}", lambda a: a <= limit),
        ("a in 0.0.0.0/8", lambda a: a < 1 << 24),
        ("a like 0.*.*.*", lambda a: a < 1 << 24),
        ("a & 255.0.0.0 == 0.0.0.0", lambda a: a < 1 << 24),
    ):
        picks = compile(words, SCHEMA).program.select(block)
        assert picks.tolist() == [i for i, r in enumerate(rows) if r[0] and holds(r[0])], words
        picks = compile(f"not ({words})", SCHEMA).program.select(block)
        assert picks.tolist() == [i for i, r in enumerate(rows) if not (r[0] and holds(r[0]))], words


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "x.ml"
    with multilog.create(path, SCHEMA) as made, made.writer(ahead=-1) as writer:
        writer.append(block_of(ROWS))
    return path


def answer(log: Any, *more: str, env: dict[str, str] | None = None) -> dict[int, tuple[Any, ...]]:
    done = run("confluo-query", log, "--agg", FUNCTIONS.replace("as n", "as rows"), "--by", "n", "-J", *more, env=env)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, done.stdout.splitlines())
    number = {None: 0}
    return {
        r["n"]: (r["d"], r["e"], *(number.get(r[k]) or int(IPv4Address(r[k])) for k in ("lo", "hi")), r["rows"])
        for r in rows
    }


def test_the_same_from_rows_views_archives_and_hosts(log: Path, tmp_path: Path) -> None:
    truth = expected(ROWS)
    assert answer(log) == truth
    assert answer(f"sw1:{log}", env=remote_lab.env(tmp_path)) == truth
    words = [FUNCTIONS.replace("as n", "as rows"), "--by", "n"]
    assert run("confluo-index", log, "add", "aggregate", "calls", *words).returncode == 0
    done = run("confluo-query", log, "--agg", "calls", "--by", "n", "--explain")
    assert b"calls" in done.stdout + done.stderr
    assert answer(log) == truth
    done = run("confluo-archive", log, "--to", tmp_path / "archive")
    assert done.returncode == 0, done.stderr
    assert answer(log) == truth
    assert answer(f"sw1:{log}", env=remote_lab.env(tmp_path)) == truth


def test_an_absent_address_is_a_group_of_its_own(log: Path) -> None:
    done = run("confluo-query", log, "--agg", "count", "--by", "a", "-T", "--no-header")
    keys = [line.split("\t")[0] for line in done.stdout.decode().splitlines()]
    assert keys == ["-", *(str(IPv4Address(a)) for a in sorted({r[0] for r in ROWS} - {0}))]
