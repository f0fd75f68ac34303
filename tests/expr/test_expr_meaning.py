"""Random expressions over random rows: the syntax tree in plain Python, its leaves in plain Python, the engine."""

from __future__ import annotations

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

import twin_expr
import twin_leaves
from confluo_tools.core.query.predicate import Program
from confluo_tools.expr import ExprError, compile, parse, unparse
from confluo_tools.expr.leaves import And, Const, Not, Or, Tree
from confluo_tools.schema import Schema
from expr_strategies import NOW, ODD, PACKET, Row, comparisons, conditions, odd_rows, packet_rows, primitives

SEEDS = st.integers(0, 9)


def check(text: str, schema: Schema, rows: list[Row]) -> None:
    expr = compile(text, schema, now_ns=NOW)
    block = twin_expr.block_of(schema, rows)
    meaning = twin_expr.Meaning(schema, NOW)
    expected = [i for i, row in enumerate(rows) if meaning.holds(expr.syntax, row)]
    assert twin_leaves.select(expr.tree, block) == expected
    assert Program(expr.tree, schema.layout).select(block).tolist() == expected
    assert is_normal(expr.tree)
    again = unparse(expr.syntax)
    assert parse(again).tree == expr.syntax
    assert compile(again, schema, now_ns=NOW).tree == expr.tree


def is_normal(tree: Tree, top: bool = True) -> bool:
    """Not wraps tests only, constants stand alone, And and Or have several items and do not repeat themselves."""
    if isinstance(tree, (And, Or)):
        return len(tree.items) > 1 and all(
            not isinstance(i, (Const, type(tree))) and is_normal(i, False) for i in tree.items
        )
    return not (isinstance(tree, Not) and isinstance(tree.item, (And, Or, Not, Const)))


@settings(max_examples=600, deadline=None)
@given(conditions(comparisons(ODD)), SEEDS)
def test_every_type(text: str, seed: int) -> None:
    check(text, ODD, odd_rows(seed))


@settings(max_examples=600, deadline=None)
@given(conditions(st.one_of(primitives(), comparisons(PACKET))), SEEDS)
def test_packets(text: str, seed: int) -> None:
    check(text, PACKET, packet_rows(seed))


@settings(max_examples=300, deadline=None)
@given(primitives(), SEEDS)
def test_words(text: str, seed: int) -> None:
    check(text, PACKET, packet_rows(seed))


PIECES = (  # noqa: SIM905
    'tcp port 80 ( ) and or not in { } , src_ip == & | ! [ ] 13 10.0.0.0/8 has syn host src dst vlan "x" .. - ago <'
).split()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_any_text_is_an_expression_or_an_error_with_a_place(text: str) -> None:
    try:
        expr = compile(text, PACKET, now_ns=NOW)
    except ExprError as e:
        error = e
    else:
        assert parse(unparse(expr.syntax)).tree == expr.syntax
        return
    assert 1 <= error.column <= len(text) + 1
    assert str(error).startswith(f"expression, column {error.column}: ")
    assert error.caret().count("\n") == 1


SENTENCES = [
    line.split("\t")[1]
    for name in ("valid_expressions.tsv", "invalid_expressions.tsv")
    for line in (ROOT / "tests" / "expr" / name).read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(SENTENCES), st.sampled_from(SENTENCES), st.data())
def test_broken_sentences_are_errors_with_a_place(one: str, two: str, data: st.DataObject) -> None:
    cut, back = data.draw(st.integers(0, len(one))), data.draw(st.integers(0, len(two)))
    text = (
        one[:cut]
        + data.draw(st.sampled_from(["", " ", "(", ")", " and ", " not ", "-", "\udcff", "*", '"']))
        + two[back:]
    )
    for schema in (PACKET, ODD):
        try:
            expr = compile(text, schema, now_ns=NOW)
        except ExprError as e:
            place = e.column
        else:
            assert compile(unparse(expr.syntax), schema, now_ns=NOW).tree == expr.tree
            continue
        assert 1 <= place <= len(text) + 1


def test_the_twin_reads_blocks_back() -> None:
    row = {f.name: (0,) * f.type.count if f.type.is_list else 0 for f in PACKET.fields}
    row |= {
        "ip_version": 6,
        "src_ip": twin_expr.ipaddress.IPv6Address("::"),
        "dst_ip": twin_expr.ipaddress.IPv6Address("::5"),
    }
    other = row | {"ip_version": 0, "src_ip": None, "dst_ip": twin_expr.ipaddress.IPv4Address("10.0.0.1")}
    assert twin_expr.rows_of(PACKET, twin_expr.block_of(PACKET, [row, other])) == [row, other]


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_the_empty_expression_chooses_all(text: str) -> None:
    expr = compile(text, PACKET)
    assert expr.tree == Const(True)
    assert expr.fields == ()
