"""Aggregates of conditions and arithmetic, and arithmetic of aggregates: against DuckDB, and as partials."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.engine.rollup_partial import RollupPartial
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import ExprError, compile, parse_aggregates, parse_by
from confluo_tools.expr.result_columns import ResultColumns
from confluo_tools.multilog.query.aggregation import Aggregation, aggregate
from confluo_tools.schema import Field, Schema
from twin_rollup import read

SCHEMA = Schema(
    "numbers",
    [
        Field("ts", "time", "ns"),
        Field("a", "u8"),
        Field("b", "u16", "B"),
        Field("c", "u64"),
        Field("d", "i32"),
        Field("e", "f64"),
        Field("w", "duration", "ns"),
    ],
)
ROWS, BLOCK, SECOND = 3000, 700, 10**9
LIMITS = -(1 << 63), (1 << 63) - 1


def data() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "ts": np.sort(rng.integers(0, 9 * SECOND, ROWS)).astype("<i8"),
        "a": rng.integers(0, 5, ROWS).astype("u1"),
        "b": rng.integers(0, 1500, ROWS).astype("<u2"),
        "c": rng.integers(0, 1 << 40, ROWS).astype("<u8"),
        "d": rng.integers(-(1 << 31), 1 << 31, ROWS).astype("<i4"),
        "e": rng.normal(3, 100, ROWS).round(2),
        "w": rng.integers(-1000, 10**9, ROWS).astype("<i8"),
    }


DATA = data()
BLOCKS = [
    Block.wrap(
        SCHEMA.layout,
        len(DATA["ts"][start : start + BLOCK]),
        [np.ascontiguousarray(DATA[c.name][start : start + BLOCK]).view("u1") for c in SCHEMA.columns],
        lane=0,
        base=start,
    )
    for start in range(0, ROWS, BLOCK)
]


@pytest.fixture(scope="module")
def duck() -> Iterator[Any]:
    import duckdb
    import pyarrow as pa

    with duckdb.connect() as con:
        con.execute("set threads = 1")
        con.register("arrow", pa.table(DATA))
        con.execute("create table t as from arrow")
        yield con


# Arithmetic: (text, SQL, whether it has only integers, the SQL of its parts that are integers).
Part = tuple[str, str, bool, tuple[str, ...]]
INTS: list[Part] = [(name, f"{name}::hugeint", True, ()) for name in "abcd"]
FIELDS = st.sampled_from([*INTS, ("e", "e", False, ())])
NUMBERS = FIELDS | st.integers(0, 1 << 33).map(lambda n: (str(n), f"{n}::hugeint", True, ()))


def joined(op: str, x: Part, y: Part) -> Part:
    parts = (*x[3], *y[3])
    if op == "/":
        return f"({x[0]} / {y[0]})", f"({x[1]}::double / nullif({y[1]}::double, 0))", False, parts
    if x[2] and y[2]:
        sql = f"({x[1]} {op} {y[1]})"
        return f"({x[0]} {op} {y[0]})", sql, True, (*parts, sql)
    return f"({x[0]} {op} {y[0]})", f"({x[1]}::double {op} {y[1]}::double)", False, parts


ARITHMETIC = st.recursive(
    FIELDS, lambda part: st.builds(joined, st.sampled_from("+-*/"), part | FIELDS, part | NUMBERS), max_leaves=2
)
CONDITIONS = st.sampled_from(
    [
        ("b > 700", "b > 700"),
        ("a == 3 or d < 0", "a = 3 or d < 0"),
        ("not (e > 0) and c & 1 == 1", "not (e > 0) and (c & 1) = 1"),
        ("a in {1, 2}", "a in (1, 2)"),
        ("b > 100000", "false"),
    ]
)
KEYS = {"": "", "a": "a", "1s": "ts // 1000000000 * 1000000000", "a, 2s": "a, ts // 2000000000 * 2000000000", "b": "b"}
KEYS |= {
    "b/100": "b // 100 * 100",
    "d/1G": "(d::hugeint - ((d::hugeint % 1000000000) + 1000000000) % 1000000000)::bigint",
    "log2(c), a/2": "if(c = 0, 0, 1::hugeint << (length(bin(c)) - 1))::hugeint, a // 2 * 2",
    "log10(w)": "if(w = 0, 0, sign(w) * pow(10, length(abs(w)::varchar) - 1))::bigint",
}
FUNCS = {"sum": "sum", "avg": "avg", "min": "min", "max": "max", "stddev": "stddev_pop"}


@st.composite
def measures(draw: Any) -> tuple[str, str, tuple[str, ...]]:
    """(text, SQL, SQL of the integers that must fit 64 bits)."""
    if draw(st.booleans()):
        text, sql = draw(CONDITIONS)
        return f"count({text})", f"count(*) filter ({sql})", ()
    func, (text, sql, plain, parts) = draw(st.sampled_from(sorted(FUNCS))), draw(ARITHMETIC)
    made = f"{FUNCS[func]}({sql if plain and func not in ('avg', 'stddev') else f'({sql})::double'})"
    made = f"coalesce({made}, 0)" if func == "sum" else made
    fits = tuple(f"{side}({part})" for part in parts for side in ("min", "max"))
    return f"{func}({text})", made, (*fits, f"sum(abs({sql}))") if func == "sum" and plain else fits


def too_large(sql: tuple[str, ...], duck: Any) -> bool:
    return bool(sql) and any(
        not LIMITS[0] <= v <= LIMITS[1] for v in duck.sql(f"select {', '.join(sql)} from t").fetchall()[0]
    )


def answers(text: str, by: str) -> list[tuple[Any, ...]]:
    """The result; through the bytes of two partials, whose settings went through JSON."""
    question = Aggregation(SCHEMA, parse_aggregates(text, SCHEMA), parse_by(by, SCHEMA) if by else [])
    whole = RollupPartial(SCHEMA, None, question.rollup)
    told = json.loads(json.dumps(whole.settings()))
    for blocks in (BLOCKS[:2], BLOCKS[2:]):
        part = RollupPartial.of(SCHEMA, told)
        for block in blocks:
            part.update(block, None)
        whole.merge(part.dump())
    found = [tuple(row.values()) for row in read(question.result, question.answer(whole.rollup))]
    once = aggregate([(b, None) for b in BLOCKS], SCHEMA, question.items, parse_by(by, SCHEMA) if by else [])
    for row, other in zip(read(*once), found, strict=True):
        assert list(row.values()) == pytest.approx(list(other), rel=1e-9, nan_ok=True)
    return found


def alike(a: Any, b: Any) -> bool:
    if b is None:
        return a == 0 or math.isnan(a)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-6 * max(1, abs(b)))


@settings(max_examples=60, deadline=None)
@given(st.lists(measures(), min_size=1, max_size=3), st.sampled_from(sorted(KEYS)), st.sampled_from("+-/"))
def test_like_duckdb(duck: Any, asked: list[tuple[str, str, tuple[str, ...]]], by: str, op: str) -> None:
    items = [f"{text} as m{i}" for i, (text, _, _) in enumerate(asked)]
    columns = [sql for _, sql, _ in asked]
    first, last = asked[0][0], asked[-1][0]
    if op == "/":
        items.append(f"{first} / {last} as f")
        columns.append(f"({columns[0]})::double / nullif(({columns[-1]})::double, 0)")
    else:
        items.append(f"1.0 * {first} {op} m{len(asked) - 1} as f")
        columns.append(f"({columns[0]})::double {op} ({asked[-1][1]})::double")
    refused = ""
    try:
        found = answers(", ".join(items), by)
    except ConfluoError as error:
        found, refused = [], str(error)
    if refused:
        assert "does not fit" in refused
        assert any(too_large(sql, duck) for _, _, sql in asked), (items, refused)
        return
    keys = f"{KEYS[by]}, " if by else ""
    wanted = duck.sql(f"select {keys}{', '.join(columns)} from t {'group by all' if by else ''}").fetchall()
    n = len(by.split(",")) if by else 0
    found.sort(key=lambda r: r[:n])
    wanted.sort(key=lambda r: r[:n])
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert alike(a, b), (items, ours, theirs)


def one(text: str, by: str = "", where: str = "") -> dict[str, Any]:
    program = compile(where, SCHEMA).program
    pairs = [(b, program.select(b)) for b in BLOCKS]
    return read(*aggregate(pairs, SCHEMA, parse_aggregates(text, SCHEMA), parse_by(by, SCHEMA) if by else []))[0]


def test_a_span_of_time_divides_by_the_step_or_the_whole_span() -> None:
    span = int(DATA["ts"][-1] - DATA["ts"][0]) / SECOND
    total = int(DATA["b"].sum(dtype="u8"))
    row = one("sum(b) / 1s as s, rate(b) as r, count / 1m as m, sum(b * 8) / 1s as bits")
    assert row["s"] == row["r"] == pytest.approx(total / span)
    assert row["m"] == pytest.approx(60 * ROWS / span)
    assert row["bits"] == pytest.approx(8 * row["s"])
    first = DATA["ts"] < 2 * SECOND
    assert one("count / 1s as s", "2s")["s"] == first.sum() / 2
    assert math.isnan(one("count / 1s as s", "", "b > 100000")["s"])


def test_durations_and_times() -> None:
    row = one(
        "sum(w) / count as mean, avg(w) / 1ms as ms, max(ts) - min(ts) as long, max(w * 2) as twice,count / max(w) as k"
    )
    mean = int(DATA["w"].sum()) / ROWS
    assert row["mean"] == round(mean)
    assert row["ms"] == pytest.approx(mean / 1e6, rel=1e-6)
    assert row["long"] == DATA["ts"][-1] - DATA["ts"][0]
    assert row["twice"] == 2 * DATA["w"].max()
    assert row["k"] == pytest.approx(ROWS / (DATA["w"].max() / SECOND))
    fields = {i.label: i.result(SCHEMA) for i in parse_aggregates("sum(w) / count as a, sum(b * 8) / 1s as b", SCHEMA)}
    assert [(f.type.text, f.unit) for f in fields.values()] == [("duration", "ns"), ("f64", "bit/s")]


def test_what_does_not_fit_is_an_error_and_division_by_zero_is_null() -> None:
    for text in ("sum(c * c)", "max(c * 100000000)", "sum(c) * 100000000", "min(0 - c * 100000000)"):
        with pytest.raises(ConfluoError, match="does not fit"):
            one(text)
    assert one("sum(1.0 * c * c) as s")["s"] == pytest.approx((DATA["c"].astype(float) ** 2).sum())
    row = one("count / count(b > 100000) as r, sum(a / (b - b)) as s, avg(a / (b - b)) as m, sum(w / (b - b)) as d")
    assert math.isnan(row["r"])
    assert math.isnan(row["m"])
    assert (row["s"], row["d"]) == (0, 0)


def test_few_picked_rows_and_conditions() -> None:
    """A condition reads the picked rows only, where these are few."""
    row = one("count(b > 700) as n, count(b > 100000) as none", "", "c < 20000000000")
    picked = DATA["c"] < 20_000_000_000
    assert 0 < picked.sum() < ROWS / 8
    assert (row["n"], row["none"]) == ((picked & (DATA["b"] > 700)).sum(), 0)


def test_columns_of_having_and_sort_are_not_printed() -> None:
    asked = "sum(b), count as n"
    question = Aggregation(SCHEMA, parse_aggregates(asked, SCHEMA), parse_by("a", SCHEMA))
    names = [f.name for f in question.result.fields]
    columns = ResultColumns(SCHEMA, asked, names, lambda text, now: compile(text, SCHEMA, now_ns=now))
    text = "count(b > 700) / n > 0.5 and (a in {0, 1, 2, 3} or sum(b) * 2 < 5)"
    condition = columns.condition(text)
    assert len(condition) == len(text)
    order = columns.order("-avg(b - 1), a")
    question.hide(columns.hidden)
    rollup = question.rollup()
    for block in BLOCKS:
        rollup.update(block)
    having = compile(condition, question.wide)
    found = [tuple(r.values()) for r in read(question.result, question.answer(rollup, having=having, order=order))]
    rows = [(a, DATA["b"][DATA["a"] == a]) for a in range(4)]
    kept = sorted([(a, b) for a, b in rows if (b > 700).mean() > 0.5], key=lambda r: -r[1].mean())
    assert found == [(a, b.sum(), len(b)) for a, b in kept]
    assert len(kept) > 1


@pytest.mark.parametrize(
    ("call", "text", "column", "what"),
    [
        ("order", "cuont", 1, "the result has no column 'cuont'; did you mean 'count'?"),
        ("order", "count,", 7, "a column expected"),
        ("order", "-count a", 8, "'a' after a column"),
        ("condition", "count > 3 and count(lenx) > 4", 21, "no field 'lenx'"),
    ],
)
def test_mistakes_in_having_and_sort(call: str, text: str, column: int, what: str) -> None:
    columns = ResultColumns(SCHEMA, "count", ["a", "count"], lambda text, now: compile(text, SCHEMA, now_ns=now))
    with pytest.raises(ExprError) as caught:
        getattr(columns, call)(text)
    assert caught.value.column == column
    assert what in str(caught.value)
