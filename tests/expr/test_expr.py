"""Expressions: tables of sentences, errors and their places, limits, aggregates and groups."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import pairwise, permutations

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.expr import Expr, ExprError, compile, leaves, parse, parse_aggregates, parse_by, unparse
from confluo_tools.expr.aggregate_functions import ALIASES, FUNCTIONS, ROWS, function_of
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.describe import describe
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.expr.leaves import FALSE, TRUE, And, InSet, Not, Or, Pair, Range, columns, depth, negate
from confluo_tools.expr.parse import KEYWORDS
from confluo_tools.expr.simplify import Simplifier, intersect, merge
from confluo_tools.expr.syntax import MAX_DEPTH, MAX_SET, MAX_TEXT
from confluo_tools.expr.words import HEADERS
from confluo_tools.schema import Field, Schema, SchemaError, builtin, fold6
from confluo_tools.units import SUFFIXES
from expr_strategies import NOW, ODD, PACKET
from twin_expr import address_of

SCHEMAS = {"packet": PACKET, "odd": ODD, "header64": builtin("header64")}


def table(name: str) -> list[list[str]]:
    lines = (ROOT / "tests" / "expr" / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("schema", "text", "lowered"), table("valid_expressions.tsv"))
def test_valid(schema: str, text: str, lowered: str) -> None:
    expr = compile(text, SCHEMAS[schema], now_ns=NOW)
    assert describe(expr.tree, expr.schema) == lowered
    assert set(expr.fields) <= {f.name for f in expr.schema.fields}
    assert parse(unparse(expr.syntax)).tree == expr.syntax
    assert compile(f"not ({text})", expr.schema, now_ns=NOW).tree == Simplifier(expr.schema).negate(expr.tree)


@pytest.mark.parametrize(("schema", "text", "column", "message"), table("invalid_expressions.tsv"))
def test_invalid(schema: str, text: str, column: str, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        compile(text, SCHEMAS[schema], now_ns=NOW)
    assert str(caught.value) == f"expression, column {column}: {message}"
    line, mark = caught.value.caret().split("\n")
    assert line == text
    assert mark.index("^") == int(column) - 1


def test_carets() -> None:
    def caret(text: str) -> str:
        with pytest.raises(ExprError) as caught:
            compile(text, PACKET)
        return caught.value.caret()

    assert caret("src_ip == 10.0.0.256") == "src_ip == 10.0.0.256\n          ^~~~~~~~~~"
    assert caret("tcp and\n\tsrc_prt == 80\nand udp") == " src_prt == 80\n ^~~~~~~"
    long = "src_port == 80 or " * 100 + "src_prt == 80" + " or src_port == 80" * 100
    line, mark = caret(long).split("\n")
    assert len(line) <= 82
    assert line[mark.index("^") :].startswith("src_prt")
    assert line.startswith("...")
    assert line.endswith("...")


def test_limits() -> None:
    def refused(text: str, match: str) -> None:
        with pytest.raises(ExprError, match=match):
            compile(text, PACKET)

    inside = MAX_DEPTH
    assert compile("(" * inside + "tcp" + ")" * inside, PACKET).tree == compile("tcp", PACKET).tree
    refused("(" * (inside + 1) + "tcp" + ")" * (inside + 1), "brackets inside each other")
    refused("(" * 30000, "brackets inside each other")
    refused("port " + "(" * 30000, "brackets inside each other")
    refused("tcp[13] == " + "(" * 30000, r"'\)' expected|a value expected")
    refused("x" * (MAX_TEXT + 1), "longer than")
    refused("src_port in {" + ",".join(["1"] * (MAX_SET + 1)) + "}", f"more than {MAX_SET} values")
    refused("port 1" + " or 2 and 3" * 100, "too many changes")
    refused("port (1" + " or 2 and 3" * 100 + ")", "brackets inside each other")
    refused("!" * 30000, "a condition expected")
    refused("len == " + "9" * 30000, "is not a number")
    assert compile("!" * 20000 + "tcp", PACKET).tree == compile("tcp", PACKET).tree
    many = compile(" or ".join(f"(src_port == {i} and dst_port == {i + 1})" for i in range(1400)), PACKET)
    assert len(list(leaves.tests(many.tree))) == 2800
    deep = "src_port == 1"
    for i in range(MAX_DEPTH - 1):
        deep = f"({deep} {'or' if i % 2 else 'and'} dst_port == {i} and len == {i})"
    assert 40 < depth(compile(deep, PACKET).tree) <= 100


def test_a_tree_deeper_than_the_engine_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluo_tools.expr.MAX_LEVELS", 2)
    with pytest.raises(ExprError, match="conditions are nested too deeply"):
        compile("src_port == 1 or (dst_port == 2 and (len == 3 or tcp_mss))", PACKET)


def test_and_binds_tighter_and_says_so() -> None:
    mixed = compile("tcp or udp and port 53", PACKET)
    assert mixed.tree == compile("tcp or (udp and port 53)", PACKET).tree
    assert len(mixed.notes) == 1
    assert mixed.notes[0].startswith("column 12: 'and' binds tighter than 'or' here")
    plain = ["tcp or (udp and port 53)", "(tcp or udp) and port 53", "udp and port 53 or tcp", "port 53 or 80 and tcp"]
    for text in (*plain, "src_port == 1 or dst_port == 2 and len > 5"):
        assert compile(text, PACKET).notes == ()
    assert compile("tcp or port 80 and 443", PACKET).notes != ()


def test_shared_qualifiers_group_from_the_left_as_in_tcpdump() -> None:
    same = {
        "port 80 or 443 and host 10.0.0.1": "(port 80 or port 443) and host 10.0.0.1",
        "not port 80 and 443": "(not port 80) and port 443",
        "tcp src port 1 or 2 and 3": "((tcp src port 1) or (tcp src port 2)) and (tcp src port 3)",
        "host 10.0.0.1 and not 10.0.0.2": "host 10.0.0.1 and not host 10.0.0.2",
        "port (1 or 2 and 3)": "(port 1 or port 2) and port 3",
        "port (1 and (2 or 3))": "port 1 and (port 2 or port 3)",
        "vlan 5 or 6": "vlan 5 or vlan 6",
        "vlan 5 and 10.0.0.1": "vlan 5 and host 10.0.0.1",
        "ether host 00:11:22:33:44:55 and ::1": "ether host 00:11:22:33:44:55 and host ::1",
        "port 80 or 53 and not 10.0.0.0/8 or ::1": "((port 80 or port 53) and not net 10.0.0.0/8) or host ::1",
        "proto gre or 50": "proto 47 or proto 50",
        "net 10 or 192.168 or 2001:db8::/32": "net 10 or net 192.168 or net 2001:db8::/32",
        "10.0.0.1 or 10.0.0.2": "host 10.0.0.1 or host 10.0.0.2",
        "ether src 00:11:22:33:44:55 or 0011.2233.4466": "ether src 00:11:22:33:44:55 or ether src 00:11:22:33:44:66",
    }
    for short, long in same.items():
        assert compile(short, PACKET).tree == compile(long, PACKET).tree, short
    # a compared value is not an address of a list
    assert compile("port 80 or 443 == src_port", PACKET).tree == compile("port 80 or src_port == 443", PACKET).tree


def test_fields_are_those_the_tree_looks_at() -> None:
    assert compile("dst_port == 80 and src_ip == ::1", PACKET).fields == ("src_ip", "dst_port")
    assert compile("src_ip == 10.0.0.1", PACKET).fields == ("ip_version", "src_ip")
    assert compile("len >= 0", PACKET).fields == ()
    tree = compile("src_port == dst_port or len > 5", PACKET).tree
    assert {PACKET.columns[c].name for c in columns(tree)} == {"src_port", "dst_port", "len"}


def test_a_field_named_like_a_word() -> None:
    schema = Schema("own", [Field("ip", "u8"), Field("port", "u16"), Field("host", "bytes(4)"), Field("proto", "u8")])
    assert describe(compile("ip", schema).tree, schema) == "ip >= 1"
    assert describe(compile("ip == 5 and port > 3 and host == 'ab'", schema).tree, schema) == (
        "ip == 5 and port >= 4 and host == 0x61620000"
    )
    assert describe(compile("port", schema).tree, schema) == "port >= 1"
    assert describe(compile("proto or tcp", schema).tree, schema) == "proto >= 1"


def test_numbers_with_the_unit_of_their_field() -> None:
    schema = Schema(
        "units", [Field("speed", "u64", unit="bit/s"), Field("rtt", "u32", unit="us"), Field("age", "f64", unit="s")]
    )
    same = {
        "speed > 10Gbit": "speed > 10000000000",
        "speed == 1Mbps": "speed == 1M",
        "rtt < 5ms": "rtt < 5000",
        "rtt in 1ms-2ms": "rtt in 1000..2000",
        "age > 250ms": "age > 0.25",
    }
    for left, right in same.items():
        assert compile(left, schema).tree == compile(right, schema).tree
    with pytest.raises(ExprError, match="whole numbers"):
        compile("rtt == 5ns", schema)


def test_enums_may_be_named_like_fields() -> None:
    schema = Schema(
        "own", [Field("kind", "enum", names={1: "len", 2: "other"}), Field("len", "u8"), Field("tag", "bytes(3)")]
    )
    assert compile("kind == len", schema).tree == Range(0, 1, 1)
    assert compile("len == kind", schema).tree == Pair("==", 1, 0)
    assert describe(compile("tag == 'len'", schema).tree, schema) == "tag == 0x6c656e"


def test_absent_addresses_are_not_equal() -> None:
    columns = [bytes(c.size * c.count) for c in PACKET.columns]
    block = Block.wrap(PACKET.layout, 1, columns)
    assert len(compile("src_ip == dst_ip", PACKET).program.select(block)) == 0
    assert len(compile("src_ip != dst_ip", PACKET).program.select(block)) == 1  # is the same as not (... == ...)
    columns[PACKET.index("ip_version")] = bytes([4])  # both are 0.0.0.0
    block = Block.wrap(PACKET.layout, 1, columns)
    assert len(compile("src_ip == dst_ip", PACKET).program.select(block)) == 1
    pair = Schema("t", [Field("a", "ipv4"), Field("b", "ipv4")])
    block = Block.wrap(pair.layout, 2, [bytes(4) + b"\1\0\0\x0a", bytes(4) + b"\1\0\0\x0a"])
    assert compile("a == b", pair).program.select(block).tolist() == [1]


def test_addresses_of_other_versions_are_not_equal() -> None:
    """Fields with the same, another and no version field: next to the meaning of their columns."""
    fields = [Field(name, "ip", version=version) for name, version in (("a", "av"), ("b", ""), ("c", "cv"))]
    schema = Schema("three", [*fields, Field("av", "u8"), Field("cv", "u8")])
    zero, one, linked = bytes(16), bytes(15) + b"\1", b"\xfe\x80" + bytes(13) + b"\1"
    stored = [*((n, zero, v) for n in (0, 1, 10) for v in (0, 4)), *((fold6(b), b, 6) for b in (zero, one, linked))]
    bare = {(n, data) for n, data, _ in stored}
    rows = [(a, b, c) for a in stored for b in sorted(bare) for c in stored]
    columns = [part for i in range(3) for part in ([r[i][0] for r in rows], [r[i][1] for r in rows])]
    parts = [b"".join(v if isinstance(v, bytes) else v.to_bytes(4, "little") for v in part) for part in columns]
    block = Block.wrap(schema.layout, len(rows), [*parts, *(bytes([r[i][2] for r in rows]) for i in (0, 2))])
    found = [[address_of(*a), address_of(*b, None), address_of(*c)] for a, b, c in rows]
    for i, j in permutations(range(3), 2):
        text = f"{'abc'[i]} == {'abc'[j]}"
        expected = [n for n, row in enumerate(found) if row[i] is not None and row[i] == row[j]]
        assert compile(text, schema).program.select(block).tolist() == expected, text


def test_times_without_a_zone_may_be_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        text = "ts >= 2014-10-11T21:15:30"
        assert compile(text, PACKET, local=True).tree == compile("ts >= 2014-10-11T19:15:30Z", PACKET).tree
        assert compile(text, PACKET).tree == compile(text + "Z", PACKET, local=True).tree
        filters = {"f": text}  # what a log stores does not depend on the reader
        assert compile("filter f", PACKET, filters=filters, local=True).tree == compile(text, PACKET).tree
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_within() -> None:
    expr = compile("tcp", PACKET)
    assert expr.within(None, None) is expr
    ts = PACKET.index("ts")
    assert expr.within(5, 10).tree == And((Range(ts, 5, 9), Range(PACKET.index("proto"), 6, 6)))
    assert compile("", PACKET).within(None, 10).tree == Range(ts, -(1 << 63), 9)
    assert compile("ts >= @0.000000007", PACKET).within(5, 10).tree == Range(ts, 7, 9)
    assert expr.within(10, 10).tree == FALSE
    with pytest.raises(SchemaError, match="no field"):
        PACKET["tss"]
    from confluo_tools.errors import UsageError

    with pytest.raises(UsageError, match="has no time"):
        compile("", Schema("timeless", [Field("a", "u8")])).within(5, None)


def test_expr_remembers() -> None:
    expr = compile(" tcp ", PACKET)
    assert isinstance(expr, Expr)
    assert (expr.text, expr.schema) == (" tcp ", PACKET)
    assert repr(expr) == "Expr(' tcp ')"
    assert expr.program.layout is PACKET.layout


def test_compile_needs_no_heavy_module() -> None:
    code = (
        "import sys\n"
        "from confluo_tools.schema import Field, Schema\n"
        "from confluo_tools.expr import compile, parse_aggregates, parse_by\n"
        "s = Schema('x', [Field('ts', 'time'), Field('src_ip', 'ip'), Field('dst_ip', 'ip'), Field('len', 'u32')])\n"
        "compile('host 10.0.0.1 and ts > 2026-11-20 and not len in 1..5', s)\n"
        "parse_aggregates('count, p99(len)', s), parse_by('src_ip/24, 1s', s)\n"
        "heavy = {'yaml', 'json', 'datetime', 'dataclasses', 'difflib', 'socket', 'numpy', 'decimal'}\n"
        "print(*(heavy & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == ""


def manual() -> str:
    text = (ROOT / "man" / "man7" / "confluo-expr.7").read_text(encoding="utf-8")
    return re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\(aq", "'")


def test_the_examples_of_the_manual_compile() -> None:
    examples = re.findall(r"\.nf\n(.*)\n\.fi", manual().partition(".SH EXAMPLES")[2])
    quoted = re.findall(r"'([^']+)'", manual().partition(".SH SYNOPSIS")[2].partition(".SH DESCRIPTION")[0])
    assert len(examples) > 5
    for text in [*examples, *[t for t in quoted if "," not in t]]:
        assert compile(text, PACKET).tree not in (TRUE, FALSE), text


def test_the_manual_names_every_word_aggregate_and_unit() -> None:
    words = set(re.findall(r"[A-Za-z0-9~]+", manual()))
    assert words >= KEYWORDS - {"link", "carp", "pppoed", "pppoes", "protochain"}
    assert words >= set(SUFFIXES) - {"", "K", "ki"}
    assert words >= {"ns", "us", "ms", "s", "m", "h", "d", "w"}
    assert words >= set(HEADERS)
    for number in (MAX_TEXT, MAX_DEPTH, MAX_SET):
        assert str(number) in words


# -- intervals and leaves


PAIRS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=6)


@given(PAIRS, PAIRS)
def test_intervals(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def members(pairs: list[tuple[int, int]]) -> set[int]:
        return {v for lo, hi in pairs for v in range(lo, hi + 1)}

    one, two = merge(a), merge(b)
    assert members(one) == members(a)
    assert all(x[1] + 1 < y[0] for x, y in pairwise(one))
    assert members(intersect(one, two)) == members(a) & members(b)


def test_leaves_are_values() -> None:
    assert Range(1, 2, 3) == Range(1, 2, 3)
    assert Range(1, 2, 3) != Range(1, 2, 3, 7)
    assert And((TRUE, FALSE)) != Or((TRUE, FALSE))
    assert len({Range(1, 2, 3), Range(1, 2, 3), InSet(1, (2, 3))}) == 2
    assert repr(InSet(1, (2, 3))) == "InSet(1, (2, 3), None)"
    assert negate(And((Range(0, 1, 2), Or((Not(InSet(1, (5,))), TRUE))))) == Or(
        (Not(Range(0, 1, 2)), And((InSet(1, (5,)), FALSE)))
    )


def test_what_all_alternatives_demand_is_demanded_once() -> None:
    tree = compile("(proto == 6 and src_port == 1) or (proto == 6 and dst_port == 2)", PACKET).tree
    assert tree == compile("(src_port == 1 or dst_port == 2) and proto == 6", PACKET).tree
    assert compile("proto == 6 or (proto == 6 and src_port == 1)", PACKET).tree == Or(
        (Range(PACKET.index("proto"), 6, 6), compile("proto == 6 and src_port == 1", PACKET).tree)
    )
    assert compile("tcp and (proto == 6)", PACKET).tree == compile("tcp", PACKET).tree


# -- aggregates and groups

AGGREGATES = {
    "count": [Aggregate("count", None, None, "count")],
    "count()": [Aggregate("count", None, None, "count")],
    "COUNT(*)": [Aggregate("count", None, None, "count")],
    "count, sum(len)": [Aggregate("count", None, None, "count"), Aggregate("sum", "len", None, "sum_len")],
    "p99(len)": [Aggregate("quantile", "len", 0.99, "p99_len")],
    "p99.9(len)": [Aggregate("quantile", "len", 0.999, "p99_9_len")],
    "p50( LEN )": [Aggregate("quantile", "len", 0.5, "p50_len")],
    "median(len)": [Aggregate("quantile", "len", 0.5, "median_len")],
    "mean(len)": [Aggregate("avg", "len", None, "mean_len")],
    "distinct(src_ip)": [Aggregate("distinct", "src_ip", None, "distinct_src_ip")],
    "distinct~(src_ip)": [Aggregate("distinct~", "src_ip", None, "distinct_src_ip")],
    "distinct~(src_ip) as hosts, distinct(src_ip)": [
        Aggregate("distinct~", "src_ip", None, "hosts"),
        Aggregate("distinct", "src_ip", None, "distinct_src_ip"),
    ],
    "rate, rate(len) AS bytes": [Aggregate("rate", None, None, "rate"), Aggregate("rate", "len", None, "bytes")],
    "min(ts),max(ts),first(tcp_flags),last(src_ip)": [
        Aggregate("min", "ts", None, "min_ts"),
        Aggregate("max", "ts", None, "max_ts"),
        Aggregate("first", "tcp_flags", None, "first_tcp_flags"),
        Aggregate("last", "src_ip", None, "last_src_ip"),
    ],
    "avg(ts), stddev(ts)": [Aggregate("avg", "ts", None, "avg_ts"), Aggregate("stddev", "ts", None, "stddev_ts")],
    "stddev(queue_depth)": [Aggregate("stddev", "queue_depth", None, "stddev_queue_depth")],
}


ANY = "count, min, max, first, last, distinct and distinct~ take any field"
KNOWN = "count sum avg min max stddev first last distinct distinct~ p50..p99.9 rate"


def test_the_manual_names_each_aggregate_function() -> None:
    """The table of confluo-expr(7) is `aggregate_functions.ROWS`, and the text names the other spellings."""
    section = manual().partition(".SH AGGREGATES")[2].partition("\n.SH ")[0].replace("\\fB", "").replace("\\fR", "")
    table = section.partition(".TS")[2].partition(".TE")[0]
    names: set[str] = set()
    on_rows: set[str] = set()
    for head in re.findall(r"^(.*)@T\{$", table, re.M):
        for part in re.split(r", ", head):
            words, field = re.fullmatch(r"([a-z0-9~. ]+?)(\(.*\))?", part).groups()  # type: ignore[union-attr]
            names.update(w for w in words.split() if w != "...")
            on_rows.update(words.split() if not field else ())
    assert {name for name in names if function_of(name) is None} == set()
    assert {function_of(name)[0].name for name in names} == set(FUNCTIONS)  # type: ignore[index]
    assert on_rows == {row.name for row in ROWS if row.rows}
    assert set(ALIASES) <= set(re.findall(r"[a-z]+", section.partition(".TE")[2]))


def test_the_core_computes_each_aggregate_function() -> None:
    from confluo_tools.core.query.rollup import FUNCS

    assert {row.core for row in ROWS} == set(FUNCS)
    assert sorted(FUNCS.values()) == list(range(len(FUNCS)))
    assert {row.time_core for row in ROWS} - {""} <= set(FUNCS)
    assert {row.window for row in ROWS} <= {"", "sum", "min", "max", "ratio", "share"}
    assert {row.result for row in ROWS} == {"count", "sum", "rate", "mean", "deviation", "element", "field"}


@pytest.mark.parametrize("text", AGGREGATES)
def test_aggregates(text: str) -> None:
    found = parse_aggregates(text, PACKET)
    assert found == AGGREGATES[text]
    Schema("result", [Field(a.label, "u64") for a in found])  # labels are names of fields


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "an aggregate expected; write e.g. count, sum(len), p99(len)"),
        ("count,", 7, "an aggregate expected; write e.g. count, sum(len), p99(len)"),
        ("a b", 1, f"no aggregate 'a'; there are {KNOWN}"),
        ("count sum(len)", 7, "'sum' after an aggregate; write a comma between aggregates"),
        ("cuont", 1, "no aggregate 'cuont'; did you mean 'count'?"),
        ("count, zzz(len)", 8, f"no aggregate 'zzz'; there are {KNOWN}"),
        ("sum", 1, "'sum' needs a field; write sum(len)"),
        ("sum(*)", 5, "'sum' needs a field, not *; write sum(len)"),
        ("sum(lenn)", 5, "no field 'lenn' in schema 'packet'; did you mean 'len'?"),
        ("sum(src_ip)", 5, f"sum needs numbers; src_ip is ip; {ANY}"),
        ("sum(ts)", 5, f"sum needs numbers; ts is time; {ANY}"),
        ("p99(proto)", 5, f"p99 needs numbers; proto is enum; {ANY}"),
        ("p0(len)", 1, "'p0' is not a quantile; write p1 to p99.99"),
        ("count(lenn > 5)", 7, "no field 'lenn' in schema 'packet'; did you mean 'len'?"),
        ("count(len > )", 12, "a value expected after '>', found the end"),
        ("count, count(tcp", 17, "')' expected before the end"),
        ("sum(len * )", 11, "a value expected, not ')'; write e.g. len * 8"),
        ("sum(len * 8", 12, "')' expected, not the end; write e.g. sum(len * 8)"),
        ("sum(len * src_ip)", 11, "src_ip (ip) is not a number; arithmetic needs numbers, durations or times"),
        ("sum(len / 1s)", 9, "one row lasts no time; divide the aggregate: sum(len) / 1s"),
        ("sum(ts - 5)", 8, "a time minus a number has no meaning; times can be subtracted, and moved by a duration"),
        ("sum(8)", 5, "no field in '8'; write e.g. sum(len * 8)"),
        ("count, 8 * 9", 8, "no aggregate in '8 * 9'; write e.g. count, sum(len), p99(len)"),
        ("min(src_ip) + 1", 13, "'+' needs numbers"),
        ("first(len * 8)", 7, "first takes a field; min and max take arithmetic"),
        ("count as 5", 10, "a name expected, not '5'; write e.g. sum(len) as bytes"),
        ("sum(len), sum(len)", 11, "two columns would be called 'sum_len'; give one another name: ... as NAME"),
        ("count, rate as count", 16, "two columns would be called 'count'; give one another name: ... as NAME"),
        (",".join(f"count as c{i}" for i in range(65)), 822, "more than 64 items"),
        (f"sum(len) as {'x' * 80}", 13, f"'{'x' * 80}' is too long for a name; give one: ... as NAME"),
    ],
)
def test_bad_aggregates(text: str, column: int, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse_aggregates(text, PACKET)
    assert str(caught.value) == f"aggregates, column {column}: {message}"


GROUPS = {
    "proto": [GroupKey("field", "proto", 0, 0, "proto")],
    "dst_ip/24": [GroupKey("prefix", "dst_ip", 24, 64, "dst_ip")],
    "dst_ip/24/48": [GroupKey("prefix", "dst_ip", 24, 48, "dst_ip")],
    "dst_ip/48": [GroupKey("prefix", "dst_ip", 32, 48, "dst_ip")],
    "dst_ip / 0 / 0": [GroupKey("prefix", "dst_ip", 0, 0, "dst_ip")],
    "eth_src/24 as vendor": [GroupKey("prefix", "eth_src", 24, 0, "vendor")],
    "1s": [GroupKey("bucket", "ts", 10**9, 0, "ts")],
    "ts/100ms": [GroupKey("bucket", "ts", 10**8, 0, "ts")],
    "1m as minute, proto": [
        GroupKey("bucket", "ts", 60 * 10**9, 0, "minute"),
        GroupKey("field", "proto", 0, 0, "proto"),
    ],
    "flow": [GroupKey("flow", "flow", 0, 0, "flow")],
    "flow, 1s": [GroupKey("flow", "flow", 0, 0, "flow"), GroupKey("bucket", "ts", 10**9, 0, "ts")],
    "DST_IP/24, 1s, proto, src_ip/24/64": [
        GroupKey("prefix", "dst_ip", 24, 64, "dst_ip"),
        GroupKey("bucket", "ts", 10**9, 0, "ts"),
        GroupKey("field", "proto", 0, 0, "proto"),
        GroupKey("prefix", "src_ip", 24, 64, "src_ip"),
    ],
    "len/100": [GroupKey("step", "len", 100, 0, "len")],
    "len / 1Ki as size": [GroupKey("step", "len", 1024, 0, "size")],
    "LOG2(Len), log10( dst_port ) as port": [
        GroupKey("power", "len", 2, 0, "len"),
        GroupKey("power", "dst_port", 10, 0, "port"),
    ],
    "switch_path": [GroupKey("field", "switch_path", 0, 0, "switch_path")],
}


@pytest.mark.parametrize("text", GROUPS)
def test_groups(text: str) -> None:
    assert parse_by(text, PACKET) == GROUPS[text]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "a group expected; write e.g. dst_ip/24, 1s, flow, proto"),
        ("proto,,len", 7, "a group expected; write e.g. dst_ip/24, 1s, flow, proto"),
        ("src_ip/24/64/1", 1, "'src_ip/24/64/1' is not a group; write e.g. dst_ip/24, 1s, flow, proto"),
        ("prto", 1, "no field 'prto' in schema 'packet'; did you mean 'proto'?"),
        ("proto, src_ip/33/64", 15, "'33' is not a prefix length; 0 to 32"),
        ("src_ip/24/129", 11, "'129' is not a prefix length; 0 to 128"),
        ("src_ip/x", 8, "'x' is not a prefix length; 0 to 128"),
        ("tcp_flags/3", 10, "tcp_flags (flags(u16)) has no prefixes; write e.g. dst_ip/24, ts/1s, len/100"),
        ("len/x", 5, "'x' is not a whole number; write e.g. len/100"),
        ("len/0.5", 5, "'0.5' is not a whole number; write e.g. len/100"),
        ("len/0", 5, "a step of 0 is not possible; write e.g. len/100"),
        ("len/9223372036854775808", 5, "a step of 9223372036854775808 is not possible; write e.g. len/100"),
        ("len/100/5", 4, "len (u32) takes one step; write len/100"),
        ("log2(ts)", 6, "ts (time) has no logarithm; whole numbers and durations have: log2(len)"),
        ("log2(prto)", 6, "no field 'prto' in schema 'packet'; did you mean 'proto'?"),
        ("log3(len)", 1, "no field 'log3(len)' in schema 'packet'; --fields help lists the names"),
        ("log2(len)/2", 10, "log2(len) takes no step; write log2(len), or len/2"),
        ("eth_src/24/24", 8, "eth_src (mac) takes one prefix length; write eth_src/24"),
        ("ts/24", 4, "'24' is not a duration; write e.g. 1s, 100ms"),
        ("0", 1, "a step of 0 is not possible; write e.g. 1s, 100ms"),
        ("-1s", 1, "a step of -1s is not possible; write e.g. 1s, 100ms"),
        ("proto, proto", 8, "two columns would be called 'proto'; give one another name: ... as NAME"),
        ("flow, src_ip/24", 7, "two columns would be called 'src_ip'; give one another name: ... as NAME"),
        ("1s, ts", 5, "two columns would be called 'ts'; give one another name: ... as NAME"),
        ("flow as f", 9, "'flow' is five columns, which keep their names"),
        ("proto," * 65, 1, "more than 64 items"),
    ],
)
def test_bad_groups(text: str, column: int, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse_by(text, PACKET)
    assert str(caught.value) == f"groups, column {column}: {message}"


def test_groups_of_other_schemas() -> None:
    assert parse_by("flow", SCHEMAS["header64"])[0].kind == "flow"
    assert parse_by("src_ip/16", SCHEMAS["header64"]) == [GroupKey("prefix", "src_ip", 16, 0, "src_ip")]
    for text, message in {"flow": "'flow' needs the fields src_ip", "half": "too many values", "took/1ms": ""}.items():
        if message:
            with pytest.raises(ExprError, match=message):
                parse_by(text, ODD)
        else:
            assert parse_by(text, ODD) == [GroupKey("bucket", "took", 10**6, 0, "took")]
    with pytest.raises(ExprError, match="has no time"):
        parse_by("1s", Schema("timeless", [Field("a", "u8")]))


@given(st.text(alphabet="countsumplen99(), ./_*~as1d2ip-", max_size=30))
def test_any_text_is_a_list_or_an_error_with_a_place(text: str) -> None:
    for read in (parse_aggregates, parse_by):
        try:
            read(text, PACKET)
        except ExprError as e:
            place = e
        else:
            continue
        assert 1 <= place.column <= len(text) + 1
