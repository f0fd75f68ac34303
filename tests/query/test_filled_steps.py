"""--fill: steps of time without rows, next to DuckDB; where it is refused."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Field, Schema
from remote_lab import env as remote
from running import CAMPUS, lines, run, shell
from twin_rollup import read

SCHEMA = Schema("calls", [Field("ts", "time"), Field("k", "u8"), Field("v", "i32")])
WAITS = Schema("waits", [Field("wait", "duration")])
AGGREGATES = "count, sum(v), avg(v), count * 2 as two, max(v), max(v) - min(v) as span, last(v) + 0.5 as x"
ROWS = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 2), st.integers(-9, 9)), max_size=9)


@pytest.fixture(scope="module")
def duck() -> Iterator[Any]:
    import duckdb

    with duckdb.connect() as con:
        con.execute("set threads = 1")
        con.execute("create table t (ts bigint, k int, v int, number int)")
        yield con


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 20), st.booleans(), st.none() | st.integers(-70, 70), st.none() | st.integers(1, 90))
@example([], 7, False, -20, 30)
@example([], 7, True, -20, 30)
def test_like_duckdb(
    duck: Any, rows: list[tuple[int, int, int]], step: int, keyed: bool, since: int | None, length: int | None
) -> None:
    until = None if length is None else (since or 0) + length
    rows = [r for r in rows if (since is None or r[0] >= since) and (until is None or r[0] < until)]
    question = Aggregation(
        SCHEMA,
        parse_aggregates(AGGREGATES, SCHEMA),
        parse_by(f"k, {step}ns" if keyed else f"{step}ns", SCHEMA),
        fill=True,
    )
    rollup = question.rollup()
    ts, k, v = zip(*rows, strict=True) if rows else ((), (), ())
    n = len(rows)
    columns = [struct.pack(f"<{n}q", *ts), bytes(k), struct.pack(f"<{n}i", *v)]
    rollup.update(Block.wrap(SCHEMA.layout, n, columns))
    found = []
    for row in read(question.result, question.answer(rollup, since=since, until=until)):
        there = row.pop("_present")
        found.append(tuple([x if there or not question.result[name].present else None for name, x in row.items()]))

    duck.execute("delete from t")
    if rows:
        duck.executemany("insert into t values (?, ?, ?, ?)", [(*row, i) for i, row in enumerate(rows)])
    first = f"floor({since} / {step})" if since is not None else f"(select min(floor(ts / {step})) from t)"
    last = f"floor(({until} - 1) / {step})" if until is not None else f"(select max(floor(ts / {step})) from t)"
    wanted = duck.sql(
        f"""with steps as (select unnest(range({first}::bigint, {last}::bigint + 1)) * {step} as s),
                 keys as (select distinct {"k" if keyed else "0 as k"} from t {"" if keyed else "union select 0"})
            select {"keys.k," if keyed else ""} s, count(v), coalesce(sum(v), 0), avg(v), 2 * count(v),
                   max(v), max(v) - min(v), 0.5 + arg_max(v, (ts, number))
            from steps cross join keys left join t
            on floor(t.ts / {step}) * {step} = s {"and t.k = keys.k" if keyed else ""}
            group by all order by s{", keys.k" if keyed else ""}"""
    ).fetchall()
    plain = [tuple(None if x != x else pytest.approx(x) for x in row) for row in found]
    assert plain == wanted


def test_steps_of_another_time_are_between_those_with_records() -> None:
    """The range of --since and --until is of the time of the records, and says nothing about another time."""
    schema = Schema("seen", [Field("ts", "time"), Field("seen", "time")])
    question = Aggregation(schema, parse_aggregates("count", schema), parse_by("seen/10ns", schema), fill=True)
    rollup = question.rollup()
    rollup.update(Block.wrap(schema.layout, 2, [struct.pack("<2q", 1, 2), struct.pack("<2q", 25, 52)]))
    rows = read(question.result, question.answer(rollup, since=0, until=40))
    assert [tuple(row.values()) for row in rows] == [(20, 1), (30, 0), (40, 0), (50, 1)]


def test_gaps_are_found_after_they_are_filled() -> None:
    words = ["--agg", "count", "--by", "1s, src_ip", "--fill", "-T", "--no-header"]
    whole = lines(run("confluo-query", CAMPUS, "icmp", *words))
    gaps = lines(run("confluo-query", CAMPUS, "icmp", *words, "--having", "count == 0"))
    assert len({line.split("\t")[0] for line in whole}) * len({line.split("\t")[1] for line in whole}) == len(whole)
    assert gaps == [line for line in whole if line.endswith("\t0")]
    assert 0 < len(gaps) < len(whole)


def test_the_condition_of_groups_sees_hidden_columns() -> None:
    hidden = parse_aggregates("max(v)", SCHEMA)
    question = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by("5ns", SCHEMA), hidden=hidden, fill=True)
    rollup = question.rollup()
    rollup.update(Block.wrap(SCHEMA.layout, 2, [struct.pack("<2q", 1, 21), bytes(2), struct.pack("<2i", 3, -4)]))
    having = compile("max_v >= 0", question.wide)
    rows = read(question.result, question.answer(rollup, having=having))
    assert [tuple(row.values()) for row in rows] == [(0, 1)]


def without_values(words: list[str], format: str) -> list[bool]:
    """For each row of the result in a format, whether the column `a` has no value, as other programs read it."""
    data = run("confluo-query", CAMPUS, "icmp", *words, "-o", format).stdout
    if format == "json":
        return [row["a"] is None for row in json.loads(data)]
    if format == "ndjson":
        return [json.loads(line)["a"] is None for line in data.splitlines()]
    if format == "csv":
        return [row["a"] == "" for row in csv.DictReader(io.StringIO(data.decode()))]
    if format == "tsv":
        return [line.split(b"\t")[2] == b"-" for line in data.splitlines()[2:]]
    if format == "table":
        return [len(line.split()) == 2 for line in data.splitlines()[3:]]
    source = pa.BufferReader(data)
    if format == "parquet":
        return [x is None for x in pq.read_table(source)["a"].to_pylist()]
    reader = pa.ipc.open_stream(source) if format == "stream" else pa.ipc.open_file(source)
    return [x is None for x in reader.read_all()["a"].to_pylist()]


@pytest.mark.parametrize("agg", ["min(len)", "avg(len) * 1ns", "first(proto)"])
@pytest.mark.parametrize("format", ["tsv", "csv", "ndjson", "json", "table", "stream", "arrow", "parquet"])
def test_no_value_in_each_format(agg: str, format: str) -> None:
    words = ["--agg", f"count, {agg} as a", "--by", "1s", "--fill"]
    assert without_values(words, format) == [False, False, False, True, False]


def test_a_line_has_a_gap_without_values() -> None:
    words = ["--agg", "min(len)", "--by", "1s", "--fill", "-o", "svg"]
    paths = re.findall(rb'class="line" d="([^"]*)"', run("confluo-query", CAMPUS, "icmp", *words).stdout)
    assert [path.count(b"M") for path in paths] == [2]


def test_groups_without_values_come_last_and_pass_no_comparison() -> None:
    words = ["--agg", "min(len) as a", "--by", "1s", "--fill", "-T", "--no-header"]
    for order, wanted in (("a", ["90", "90", "90", "110", "-"]), ("-a", ["110", "90", "90", "90", "-"])):
        found = lines(run("confluo-query", CAMPUS, "icmp", *words, "--sort", order))
        assert [line.split("\t")[1] for line in found] == wanted
    most = "a <= 4294967295"
    for having, count in ((most, 4), (f"not {most}", 1), ("a != 90", 2), ("a == 0", 0), ("not a", 1)):
        assert len(lines(run("confluo-query", CAMPUS, "icmp", *words, "--having", having))) == count


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], b"--fill: fills steps; add them: --by 1s, --by len/100"),
        (
            ["--by", "src_ip"],
            b"--fill: needs a step among the groups; write e.g. --by 1s, --by len/100, --by 'log2(len)'",
        ),
        (["--by", "1s, ts/1m as m"], b"--fill: fills one step of time; leave the other times out of --by"),
        (["--by", "len/10, ttl/5"], b"--fill: fills one step of numbers or durations; leave the other steps and"),
        (["--by", "len/10, log2(ttl)"], b"--fill: fills one step of numbers or durations; leave the other steps and"),
        (["--by", "1us"], b"--fill: more than 1,000,000 empty groups; use longer steps, fewer groups"),
        (
            ["--by", "1ns", "--since", "1700-01-01", "--until", "2261-01-01"],
            b"--fill: more than 1,000,000 empty groups",
        ),
        (["--by", "1s", "--follow"], b"--fill: needs all groups, and windows end one after the other"),
    ],
)
def test_what_is_refused(words: list[str], what: bytes) -> None:
    done = run("confluo-query", CAMPUS, "--fill", *words)
    assert (done.returncode, done.stderr[: len(b"confluo-query: " + what)]) == (2, b"confluo-query: " + what)
    assert done.stderr.count(b"\n") == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-130, 130)), max_size=9), st.integers(1, 20), st.booleans())
def test_steps_of_numbers(rows: list[tuple[int, int]], width: int, keyed: bool) -> None:
    question = Aggregation(
        SCHEMA,
        parse_aggregates("count, sum(k)", SCHEMA),
        parse_by(f"v/{width}" + (", k" if keyed else ""), SCHEMA),
        fill=True,
    )
    rollup = question.rollup()
    k, v = zip(*rows, strict=True) if rows else ((), ())
    n = len(rows)
    rollup.update(Block.wrap(SCHEMA.layout, n, [bytes(8 * n), bytes(k), struct.pack(f"<{n}i", *v)]))
    found = [tuple(row.values()) for row in read(question.result, question.answer(rollup))]
    wanted = []
    for step in range(min(v) // width, max(v) // width + 1) if rows else ():
        for key in sorted(set(k)) if keyed else [-1]:
            of = [a for a, b in rows if b // width == step and key in (-1, a)]
            wanted.append((step * width, *([key] if keyed else []), len(of), sum(of)))
    assert sorted(found) == sorted(wanted)


def waits(by: str, values: list[int]) -> list[tuple[int, int]]:
    """The filled groups of records with these durations: the start of each, and its count."""
    question = Aggregation(WAITS, parse_aggregates("count", WAITS), parse_by(by, WAITS), fill=True)
    rollup = question.rollup()
    rollup.update(Block.wrap(WAITS.layout, len(values), [struct.pack(f"<{len(values)}q", *values)]))
    rows = list(read(question.result, question.answer(rollup)))
    assert question.result["wait"].type.kind == "duration"
    return [(row["wait"], row["count"]) for row in rows]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-130, 130), min_size=1, max_size=9), st.integers(1, 20))
def test_steps_of_durations(values: list[int], width: int) -> None:
    starts = range(min(values) // width * width, max(values) + 1, width)
    assert waits(f"wait/{width}ns", values) == [(t, sum(t <= v < t + width for v in values)) for t in starts]


def test_the_lowest_step_begins_with_the_type() -> None:
    least, width = -(1 << 63), 3 * 10**18
    steps = [(least, 1), (-9 * 10**18, 0), (-2 * width, 0), (-width, 0), (0, 1)]
    assert waits(f"wait/{width}ns", [least, 5]) == steps


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(1 << 63) + 1, (1 << 63) - 1) | st.integers(-130, 130), min_size=1, max_size=9))
@pytest.mark.parametrize("base", [2, 10])
def test_powers(base: int, values: list[int]) -> None:
    powers = [base**i for i in range(63) if base**i < 1 << 63]
    places = [*(-p for p in reversed(powers)), 0, *powers]
    own = [0 if not v else max(p for p in powers if p <= abs(v)) * (1 if v > 0 else -1) for v in values]
    wanted = places[places.index(min(own)) : places.index(max(own)) + 1]
    assert waits(f"log{base}(wait)", values) == [(place, own.count(place)) for place in wanted]


@pytest.mark.parametrize("source", ["pipe", "remote"])
def test_an_error_leaves_no_header(source: str, tmp_path: Path) -> None:
    words = ["--agg", "count", "--by", "1us", "--fill", "-T"]
    if source == "pipe":
        # the input is idle before it ends, which is when an output is flushed
        text = """(confluo-query "$1" -o stream; sleep 0.3) | confluo-query - "${@:2}" """
        done = shell(text, CAMPUS, *words)
    else:
        assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", tmp_path / "a.ml").returncode == 0
        done = run("confluo-query", f"sw1:{tmp_path / 'a.ml'}", *words, env=remote(tmp_path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"more than 1,000,000 empty groups" in done.stderr
