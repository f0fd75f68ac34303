"""The language of triggers: what it means, and that a mistake is shown where it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.monitor.window import GridWindows
from confluo_tools.errors import UsageError
from confluo_tools.expr.syntax import ExprError
from confluo_tools.monitor.language import ConditionNode, Measure, NamedAggregate, join_trigger, parse_trigger
from confluo_tools.monitor.windows import program
from confluo_tools.schema import Field, Schema, builtin

PACKET = builtin("packet")
VIEWS = {
    "web_bytes": NamedAggregate("web_bytes", "sum(len)", "dst_port == 80", "dst_ip"),
    "two": NamedAggregate("two", "count, sum(len)"),
}
MS, SECOND = 10**6, 10**9


def test_everything_at_once() -> None:
    t = parse_trigger(
        "all.of-it_1 : (avg(len) > 1.5k or p99(len) >= 2 * max(payload_len)) and not count<10 OVER 1m30s"
        " every 30ms by src_ip/24,"
        " dst_port where tcp and (port 80 or dst_port in {1, 2}) for 5s clear count < 2 rearm 1m repeat 10s",
        PACKET,
    )
    assert (t.name, t.window, t.period, t.hold, t.rearm, t.repeat) == (
        "all.of-it_1",
        90 * SECOND,
        30 * MS,
        5 * SECOND,
        60 * SECOND,
        10 * SECOND,
    )
    assert [m.text for m in t.measures] == ["avg(len)", "p99(len)", "max(payload_len)", "count"]
    assert {m.where for m in t.measures} == {"tcp and (port 80 or dst_port in {1, 2})"}
    assert [(k.kind, k.field) for k in t.keys] == [("prefix", "src_ip"), ("field", "dst_port")]
    assert t.clear is not None


def test_clauses_in_any_order_and_words_in_brackets_and_quotes() -> None:
    named = Schema("named", [Field("ts", "time"), Field("name", "text(9)"), Field("over", "u8")])
    t = parse_trigger("x: count > 1 where name like '* over *' and (over > 1) over 1s by name", named)
    assert (t.window, t.where, t.by) == (SECOND, "name like '* over *' and (over > 1)", "name")


@pytest.mark.parametrize(("window", "period"), [("1s", 10 * MS), ("10ms", MS), ("1h", 36 * SECOND), ("1ms", MS)])
def test_a_period_that_is_not_given(window: str, period: int) -> None:
    assert parse_trigger(f"x: count > 1 over {window}", PACKET).period == period


def test_named_aggregates_bring_filter_and_keys() -> None:
    t = parse_trigger("x: web_bytes > 1G over 1s where ttl > 3", PACKET, VIEWS)
    assert t.measures == (Measure("sum", "len", None, "(ttl > 3) and (dst_port == 80)"),)
    assert t.by == "dst_ip"
    assert parse_trigger("x: two.count > 1 and two.sum_len > 2 over 1s", PACKET, VIEWS).measures[1].func == "sum"


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("", 1, "a name expected"),
        ("count > 1 over 1s", 1, "a name expected"),
        ("x: ", 3, "a condition expected"),
        ("x: over 1s", 4, "a condition expected"),
        ("x: count > 1", 13, "'over WINDOW' is missing"),
        ("x: count > 1 over 1s unnest switch_path", 22, "a trigger is about records, not about elements of lists"),
        ("x: count > 1 over", 18, "something expected after 'over'"),
        ("x: count > 1 over 1s over 2s", 22, "occurs twice"),
        ("x: count over 1s", 4, "a number, not a condition"),
        ("x: count > over 1s", 12, "found the end"),
        ("x: count > 1 over 10", 19, "not a duration"),
        ("x: count > 1 over 1us", 19, "too short"),
        ("x: count > 1 over 1s every 1us", 28, "too short"),
        ("x: count > 1 over 1h every 1ms", 28, "3,600,000 steps"),
        ("x: count > 1 over 1000.01us every 1ms", 19, "in common"),
        ("x: count > 1 over 0", 19, "not possible"),
        ("x: cuont > 1 over 1s", 4, "no aggregate 'cuont'; did you mean 'count'"),
        ("x: web_byte > 1 over 1s", 4, "did you mean 'web_bytes'"),
        ("x: two > 1 over 1s", 4, "is 2 aggregates"),
        ("x: two.max > 1 over 1s", 4, "has no 'max'"),
        ("x: sum(lan) > 1 over 1s", 8, "did you mean 'vlan'"),
        ("x: sum(src_ip) > 1 over 1s", 8, "sum needs numbers"),
        ("x: max(src_ip) > 1 over 1s", 4, "is not a number"),
        ("x: sum > 1 over 1s", 4, "needs a field"),
        ("x: count(lenn) > 1 over 1s", 10, "did you mean 'len'"),
        ("x: count > 10ms over 1s", 12, "a number is compared with a duration"),
        ("x: 1 > 2 over 1s", 4, "no aggregate"),
        ("x: count > 1 > 2 over 1s", 14, "after a comparison"),
        ("x: count > (1 over 1s", 22, "'over WINDOW' is missing"),
        ("x: (count > 1) + 2 > 3 over 1s", 11, "needs numbers, this is a condition"),
        ("x: count and count > 1 over 1s", 4, "a condition expected"),
        ("x: count = 1 in 2 over 1s", 14, "not possible here"),
        ("x: count > 'a' over 1s", 12, "unexpected"),
        ("x: count > 1x over 1s", 12, "not a number"),
        ("x: count > 1 over 1s by nix", 25, "no field 'nix'"),
        ("x: count > 1 over 1s by src_ip, 1s", 25, "not keys"),
        ("x: count > 1 over 1s where dst_prt == 80", 28, "did you mean 'dst_port'"),
        ("x: count > 1 over 1s where dst_port == ", 39, "a value expected"),
        ("x: web_bytes > 1 over 1s by src_ip", 4, "is kept by dst_ip"),
        ("x: web_bytes > two.count over 1s", 16, "the same keys"),
        ("x: " + "(" * 50 + "count", 4 + 40, "too many brackets"),
        ("x: " + "- " * 60 + "count > 1 over 1s", 84, "too many"),
        ("x: " + " and ".join(["count > 1"] * 30) + " over 1s", 4, "more than 60 parts"),
        ("x: " + "a" * 9000, 1, "longer than 8192"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, column: int, what: str) -> None:
    if text.startswith("x: ((("):
        text += ")" * 50 + " > 1 over 1s"
    with pytest.raises(ExprError) as caught:
        parse_trigger(text, PACKET, VIEWS)
    assert what in str(caught.value)
    assert caught.value.column == column
    assert "^" in caught.value.caret()


def test_mappings_of_files() -> None:
    text = join_trigger({"name": "x", "when": "count > 1", "over": "1s", "by": "src_ip", "clear": "count < 1"}, "f")
    assert parse_trigger(text, PACKET).by == "src_ip"
    wrongs = [({"name": "x", "whn": 1}, "did you mean 'when'"), ({"name": "x", "over": "1s"}, "needs 'when'")]
    for wrong, what in wrongs:
        with pytest.raises(UsageError, match=what):
            join_trigger(wrong, "f: trigger 1")


numbers = st.sampled_from(["0", "1", "2.5", "1k", "0x10", ".5", "7"])
terms = st.recursive(
    st.one_of(numbers, st.sampled_from(["count", "sum(len)", "min(ttl)", "avg(len)"])),
    lambda t: st.one_of(
        st.builds("({} {} {})".format, t, st.sampled_from(["+", "-", "*", "/"]), t), st.builds("-{}".format, t)
    ),
    max_leaves=4,
)
conditions = st.recursive(
    st.builds("{} {} {}".format, terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "="]), terms),
    lambda c: st.one_of(
        st.builds("({} {} {})".format, c, st.sampled_from(["and", "or", "&&", "||"]), c),
        st.builds("not ({})".format, c),
    ),
    max_leaves=4,
)
values = st.one_of(st.integers(-5, 5).map(float), st.just(math.nan), st.floats(-1e3, 1e3))


@settings(max_examples=300, deadline=None)
@given(text=conditions, units=st.lists(values, min_size=6, max_size=6))
def test_compiled_conditions_are_those_of_the_slow_twin(text: str, units: list[float]) -> None:
    t = parse_trigger(f"x: count >= 0 and ({text}) over 1s", PACKET)
    parts: list[Any] = [("one", i, 0, 0.0) for i in range(len(t.measures))]
    grid = GridWindows(SECOND, SECOND, 0, ["real"] * len(parts), [(program(t.condition, parts), [])])
    # The evaluator sees what Feed gives; here only empty windows: so constants stand for the measures.
    constant = [(0, units[int(n)]) if code == 1 else (code, n) for code, n in program(t.condition, parts)]
    grid = GridWindows(SECOND, SECOND, 0, [], [(constant, [])])
    grid.start(0)
    grid.tick()
    assert grid.states()[0] == bool(t.condition.eval(units[: len(parts)]))
    decided = t.condition.decisive(units[: len(parts)])
    assert len(decided) == 2


def test_the_comparison_that_decided() -> None:
    t = parse_trigger("x: count > 10 or sum(len) > 100 over 1s", PACKET)
    assert t.condition.decisive([5, 200]) == (200, 100)
    assert t.condition.decisive([50, 200]) == (50, 10)
    assert t.condition.decisive([1, 2]) == (1, 10)
    assert isinstance(t.condition, ConditionNode)
