"""aggregate: the same rows as --agg --by of confluo-query gives for the same records, however they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.stream.stage import WriterStage
from confluo_tools.errors import UsageError
from confluo_tools.expr import parse_aggregates
from confluo_tools.expr.group_keys import parse_by
from confluo_tools.multilog.query.aggregation import aggregate
from confluo_tools.stream.functions import read as read_function
from function_lab import FunctionRun, cut, scattered
from twin_rollup import SCHEMA, Row, block_of, read

SECOND = 10**9
START = 1_700_000_000 * SECOND
AGG = (
    "count, sum(u32), avg(i16), stddev(i16), min(gap), max(ip), first(u16), last(short), distinct(bare), rate,"
    " rate(u8), p90(u64), distinct~(long), sum(path), sum(f32)"
)
BY = ["", "u8", "ip", "ip/24, keep", "u16, i8", "short, v4/16", "gap/1s, enum"]

rows_of_time = st.fixed_dictionaries(
    {
        "after": st.one_of(st.integers(0, 3 * SECOND), st.sampled_from([0, 10 * SECOND, 3600 * SECOND])),
        "keep": st.integers(0, 1),
        "ip": st.sampled_from([None, "0.0.0.0", "10.0.0.1", "10.0.0.9", "10.0.1.1", "2001:db8::1", "2001:db8::2"]),
        "bare": st.sampled_from([None, "10.0.0.1", "::1"]),
        "v4": st.integers(0, 2**32 - 1),
        "u8": st.integers(0, 3),
        "u16": st.integers(0, 500),
        "u32": st.integers(0, 2**32 - 1),
        "u64": st.integers(0, 2**40),
        "i8": st.integers(-2, 2),
        "i16": st.integers(-(2**15), 2**15 - 1),
        "f32": st.floats(width=32, allow_nan=False, min_value=-1e6, max_value=1e6),
        "f64": st.one_of(st.floats(-1e9, 1e9), st.just(float("nan"))),
        "gap": st.integers(-5 * SECOND, 5 * SECOND),
        "enum": st.integers(0, 2),
        "short": st.sampled_from([b"", b"abc", b"abcde"]),
        "long": st.sampled_from([b"", b"x" * 21, b"y"]),
        "path": st.tuples(*[st.integers(0, 9)] * 3),
    }
)


def times_set(rows: list[dict[str, Any]]) -> list[Row]:
    t, out = START, []
    for row in rows:
        t += row["after"]
        out.append({**{k: v for k, v in row.items() if k != "after"}, "ts": t})
    return out


def queried(pairs: list[tuple[Block, Picks | None]], agg: str, by: str, every: str) -> list[Row]:
    keys = parse_by(f"{every}, {by}" if by else every, SCHEMA)
    result, blocks = aggregate(pairs, SCHEMA, parse_aggregates(agg, SCHEMA), keys)
    return read(result, blocks)


def same(found: list[Row], expected: list[Row]) -> None:
    assert list(map(repr, found)) == list(map(repr, expected))  # repr: NaN equals NaN


@given(st.lists(rows_of_time, min_size=1, max_size=80), st.sampled_from(BY), st.lists(st.integers(1, 30), min_size=1))
def test_windows_of_rows_in_order_are_the_result_of_a_query(rows: list[Any], by: str, sizes: list[int]) -> None:
    block = block_of(times_set(rows))
    words = {"agg": AGG, "every": "10s"} | ({"by": by} if by else {})
    out = FunctionRun({"aggregate": words}, SCHEMA)
    out.write(cut(block, sizes))
    stage: Any = out.finish()
    assert (stage.late_rows, stage.parts, stage.problem) == (0, 0, None)
    same(read(out.schema, out.blocks), queried([(block, None)], AGG, by, "10s"))


@given(
    st.lists(rows_of_time.filter(lambda row: row["after"] <= 3 * SECOND), min_size=1, max_size=80),
    st.data(),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_rows_out_of_order_within_the_lateness_are_all_counted(rows: list[Any], data: Any, sizes: list[int]) -> None:
    rows = times_set(rows)
    moved = sorted(rows, key=lambda row: row["ts"] + data.draw(st.integers(0, 4 * SECOND)))
    block, picks = scattered(block_of(moved), data.draw(st.lists(st.booleans(), min_size=80, max_size=80)))
    # min and max and the like do not depend on the order; first, last and sums of floats may.
    agg = "count, sum(u32), min(i16), distinct(ip), p50(u64)"
    out = FunctionRun({"aggregate": {"agg": agg, "by": "u8, ip", "every": "2s", "late": "10s"}}, SCHEMA)
    at = 0
    for part in cut(block, sizes):
        assert out.stage.write(part, Picks.of(part.rows, [i - at for i in picks.tolist() if at <= i < at + part.rows]))
        at += part.rows
    assert out.finish().late_rows == 0  # type: ignore[attr-defined]
    same(read(out.schema, out.blocks), queried([(block, picks)], agg, "u8, ip", "2s"))


def test_more_groups_than_allowed_are_given_in_parts_that_add_up() -> None:
    rows = [{"ts": START + i, "u32": i % 1000, "u16": i} for i in range(20_000)]
    out = FunctionRun({"aggregate": {"agg": "count, sum(u16)", "by": "u32", "every": "10s", "groups": 300}}, SCHEMA)
    out.write(cut(block_of(rows), [100]))
    stage: Any = out.finish()
    assert stage.parts > 40
    assert stage.dropped == 0
    [remark] = out.function.remarks(stage)
    assert remark.startswith("windows had more than 300 groups and were given in ")
    counts: dict[int, int] = {}
    for key, count in out.rows("u32", "count"):
        counts[key] = counts.get(key, 0) + count
    assert counts == dict.fromkeys(range(1000), 20)
    most = max(b.rows for b in out.blocks)
    assert 300 < most <= 400  # the limit, and what a block may add


def test_values_counted_once_each_count_as_groups() -> None:
    rows = [{"ts": START + i, "u32": i, "long": b"%d" % i} for i in range(5000)]
    for agg in ("distinct(u32)", "distinct(long)", "p50(u32)", "distinct~(u32)"):
        words = {"agg": agg, "by": "i8", "every": "10s", "groups": 500 if "~" not in agg else 31}
        out = FunctionRun({"aggregate": words}, SCHEMA)
        out.write(cut(block_of(rows), [100]))
        stage: Any = out.finish()
        assert stage.parts >= 1, agg


def test_a_sum_that_does_not_fit_loses_its_window_only() -> None:
    rows = [{"ts": START + i * SECOND, "u64": (2**64 - 1 if i < 5 else 7)} for i in range(20)]
    out = FunctionRun({"aggregate": {"agg": "sum(u64)", "every": "10s"}}, SCHEMA)
    out.write([block_of(rows)])
    stage: Any = out.finish()
    assert out.rows("sum_u64") == [(70,)]
    assert stage.dropped == 10
    [remark] = out.function.remarks(stage)
    assert remark.startswith("records were lost: sum(u64) does not fit u64")


def test_an_end_of_the_chain_that_stops_is_reported() -> None:
    def refuse(block: Block) -> None:
        raise OSError("gone")

    out = FunctionRun({"aggregate": {"agg": "count", "every": "1s"}}, SCHEMA)
    out.stage.then(WriterStage(out.schema.layout, refuse))
    assert not out.stage.write(block_of([{"ts": START + i * SECOND} for i in range(4)]))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("count", "needs agg, every; as in 'aggregate: {agg: 'count, sum(len)', by: src_ip, every: 10s}'"),
        ({"agg": "count"}, "needs every"),
        ({"agg": "count", "every": "10s", "group": 5}, "unknown word 'group'; did you mean 'groups'?"),
        ({"agg": ["count"], "every": "10s"}, "agg: is not a text"),
        ({"agg": "count", "every": "10s", "by": ""}, "by: is not a text"),
        ({"agg": "count", "every": 10}, "every: '10' is not a duration; a number needs its unit: 10s, 10ms"),
        ({"agg": "count", "every": "0"}, "every: 0 is not from 1ms to 366d"),
        ({"agg": "count", "every": "-1s"}, "every: -1s is not from 1ms to 366d"),
        ({"agg": "count", "every": True}, "every: is not a time"),
        ({"agg": "count", "every": "1s", "late": "2m"}, "late: at most 60 windows wait: 1m; use longer windows"),
        ({"agg": "count", "every": "1s", "groups": 0}, "groups: '0' is not a number from 1 to 100000000"),
        ({"agg": "count", "every": "1s", "groups": "many"}, "groups: 'many' is not a number from 1 to 100000000"),
        ({"agg": "sum(ports)", "every": "1s"}, "no field 'ports' in schema 'test'"),
        ({"agg": "sum(ip)", "every": "1s"}, "sum needs numbers; ip is ip"),
        ({"agg": "total", "every": "1s"}, "no aggregate 'total'"),
        ({"agg": "count", "every": "1s", "by": "1s"}, "ts cannot be a key; the windows of every: are one"),
        ({"agg": "count", "every": "1s", "by": "f64"}, "f64 (f64) has too many values to group by"),
        ({"agg": "count as ts", "every": "1s"}, "two result columns are called 'ts'"),
        ({"agg": ", ".join(f"count as c{i}" for i in range(70)), "every": "1s"}, "more than 64 items"),
        ({"agg": "c" * 5000, "every": "1s"}, "agg: is too long"),
    ],
)
def test_a_wrong_aggregate_is_one_clear_line(value: object, complaint: str) -> None:
    with pytest.raises(UsageError) as e:
        read_function("aggregate", value, SCHEMA, "flows.yaml: flow 'f'")
    line = str(e.value)
    assert line.startswith("flows.yaml: flow 'f': aggregate: ")
    assert complaint in line
    assert "\n" not in line


def test_records_without_a_time_have_no_windows() -> None:
    with pytest.raises(UsageError, match="records of 'test' have no time; filter or sample them"):
        read_function("aggregate", {"agg": "count", "every": "1s"}, SCHEMA.project(["u8"]), "flow 'f'")
