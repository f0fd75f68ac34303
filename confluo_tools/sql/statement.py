"""A SQL statement as the tree that DuckDB's parser makes: which tables it reads, and what of them.

What is ours is written into the tree, and the tree becomes text again:

- a table that is not defined in the statement is an input; it gets a number as its name;
- ``log('trace.ml', 'host 10.1.2.3')`` in FROM is the input ``trace.ml`` with one of our expressions;
- ``address << '10.0.0.0/8'`` is ``in_net(address, '10.0.0.0/8')``;
- ``flow`` is a struct of the five-tuple;
- the difference of two times is their difference in ns: DuckDB's INTERVAL has microseconds.

The columns that a statement names, and the conditions of WHERE that our own expressions can say, go to the table, so
that indexes and zone maps work.  DuckDB tests all conditions again, so a condition may always be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from confluo_tools.errors import UsageError
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.choose import FLOW_FIELDS

Node = dict[str, Any]

_COMPARISONS = {
    "COMPARE_EQUAL": ("==", "=="),
    "COMPARE_LESSTHAN": ("<", ">"),
    "COMPARE_GREATERTHAN": (">", "<"),
    "COMPARE_LESSTHANOREQUALTO": ("<=", ">="),
    "COMPARE_GREATERTHANOREQUALTO": (">=", "<="),
}
_TIMES_OF = (
    "min",
    "max",
    "first",
    "last",
    "any_value",
    "arg_min",
    "arg_max",
    "lag",
    "lead",
    "first_value",
    "last_value",
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?))?$")
_TIME_DIGITS = {"timestamp": 6, "timestamp_us": 6, "timestamp_ns": 9, "timestamp_ms": 3, "timestamp_s": 0}
_NET = re.compile(r"[0-9a-fA-F:.]+(?:/\d{1,3})?$")
_NAME = re.compile(r"[A-Za-z0-9_.-]+$")
_ALL_COLUMNS = ("STAR", "POSITIONAL_REFERENCE", "SHOW_REF", "PIVOT")  # nodes that use columns without their names


class InputTable:
    """One place in FROM that names an input.

    ``path``: as written; ``name``: of the table in the rewritten statement; ``alias``: in the statement as written.
    ``expr``: the expression of ``log(...)``; ``conditions``: those of WHERE, in our language, to be joined by ``and``.
    ``schema``: set by the caller, after the input is open and before the conditions are looked for.
    """

    def __init__(self, path: str, name: str, alias: str, expr: str = "") -> None:
        self.path, self.name, self.alias, self.expr = path, name, alias, expr
        self.conditions: list[str] = []
        self.schema: Schema | None = None

    @property
    def where(self) -> str:
        """What the input has to select."""
        return " and ".join(f"({part})" for part in [self.expr, *self.conditions] if part.strip())


class Statement:
    """A parsed SELECT statement.  ``tree``: of DuckDB's json_serialize_sql; ``tables``: the inputs in it.

    Raises UsageError for several statements and for a ``log(...)`` that is wrong.
    """

    def __init__(self, tree: Node) -> None:
        if len(tree["statements"]) != 1:
            raise UsageError("has several statements", where="SQL", hint="give one")
        self.tree = tree
        self.tables: list[InputTable] = []
        defined = {entry["key"] for node in _nodes(tree) for entry in (node.get("cte_map") or {}).get("map", [])}
        for node in _nodes(tree):
            if node.get("type") == "BASE_TABLE":
                if not (node["table_name"] in defined or node.get("schema_name") or node.get("catalog_name")):
                    self._add(node, node["table_name"])
            elif node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"] == "log":
                self._log_function(node)

    def _log_function(self, node: Node) -> None:
        words = [_text(word) for word in _arguments(node["function"])]
        if not 1 <= len(words) <= 2 or None in words:
            raise UsageError("log() takes an input and an expression", where="SQL", hint="log('trace.ml', 'tcp')")
        for key in ("function", "with_ordinality"):
            node.pop(key, None)
        node |= {"type": "BASE_TABLE", "schema_name": "", "catalog_name": "", "at_clause": None}
        self._add(node, *[word for word in words if word is not None])

    def _add(self, node: Node, path: str, expr: str = "") -> None:
        table = InputTable(path, f"input {len(self.tables) + 1}", node["alias"] or path, expr)
        node["table_name"], node["alias"] = table.name, table.alias
        node["qualified_name"] = {"path": [table.name]}
        self.tables.append(table)

    def calls(self, function: str) -> bool:
        """Whether a function is in the statement."""
        return any(node.get("function_name") == function for node in _nodes(self.tree))

    # --- what the tables have to give

    def named(self) -> set[str] | None:
        """The names of all columns that the statement uses, in lower case; None: it may use any."""
        aliases = {table.alias.lower() for table in self.tables}
        found: set[str] = set()
        for node in _nodes(self.tree):
            kind = node.get("type")
            if kind in _ALL_COLUMNS or (kind == "JOIN" and node["ref_type"] in ("NATURAL", "ASOF")):
                return None
            if kind == "BASE_TABLE" and node.get("column_name_alias"):
                return None  # other names, by their places
            if kind == "COLUMN_REF":
                names = [name.lower() for name in node["column_names"]]
                if names[0] in aliases and len(names) == 1:
                    return None  # the whole row
                found.update(names)
            elif kind == "JOIN":
                found.update(name.lower() for name in node["using_columns"])
        return found | (set(FLOW_FIELDS) if "flow" in found else set())

    def share_conditions(self) -> None:
        """Give the tables the conditions of WHERE that they can test.  The schemas of all tables must be set."""
        by_name = {table.name: table for table in self.tables}
        for node in _nodes(self.tree):
            # A sample is taken of the rows of FROM, before WHERE.
            if node.get("type") == "SELECT_NODE" and node["where_clause"] is not None and node.get("sample") is None:
                tables, others = _kept_tables(node["from_table"], by_name)
                scope = _Scope(tables, others)
                for part in _conjuncts(node["where_clause"]):
                    for table in tables:
                        text = scope.condition(part, table)
                        if text is not None:
                            table.conditions.append(text)

    # --- our syntax

    def rewrite(self) -> None:
        """Write ``flow``, ``<<`` and differences of times in the language of DuckDB."""
        times = {f.name for table in self.tables for f in _fields(table) if f.type.kind == "time"}
        has_flow = any(f.name == "flow" for table in self.tables for f in _fields(table))
        for node in list(_nodes(self.tree)):
            for item in node.get("select_list") or ():
                if item.get("type") == "COLUMN_REF" and item["column_names"][-1] == "flow" and not item["alias"]:
                    item["alias"] = "flow"
            if node.get("type") == "COLUMN_REF" and node["column_names"][-1] == "flow" and not has_flow:
                names = node.pop("column_names")
                node |= _call("struct_pack", *[_column([*names[:-1], n]) for n in FLOW_FIELDS], alias=node["alias"])
                for argument, name in zip(node["arguments"], FLOW_FIELDS, strict=True):
                    argument["name"] = name
            elif node.get("type") == "FUNCTION" and len(node["arguments"]) == 2:
                left, right = _arguments(node)
                if node["function_name"] == "<<" and _text(right) is not None:
                    node |= _call("in_net", left, right, alias=node["alias"])
                elif node["function_name"] == "-" and _is_time(left, times) and _is_time(right, times):
                    node["arguments"] = [{"name": "", "expression": _call("epoch_ns", side)} for side in (left, right)]


class _Scope:
    """The tables that a name in WHERE can be of.  ``others``: whether FROM has more than inputs."""

    def __init__(self, tables: list[InputTable], others: bool) -> None:
        self.tables, self.others = tables, others

    def field(self, node: Node, table: InputTable) -> Field | None:
        """The field of ``table`` that a column reference means; None if it is not sure."""
        if node.get("type") != "COLUMN_REF" or table.schema is None:
            return None
        *qualifier, name = node["column_names"]
        if name not in table.schema:
            return None
        if qualifier:
            return table.schema[name] if qualifier == [table.alias] else None
        owners = [t for t in self.tables if t.schema is not None and name in t.schema]
        return table.schema[name] if len(owners) == 1 and not self.others else None

    def condition(self, node: Node, table: InputTable) -> str | None:
        """A condition of WHERE in our language; None if it cannot be said, or is not of ``table`` alone."""
        kind = node.get("type")
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            parts = [self.condition(child, table) for child in node["children"]]
            said = [f"({part})" for part in parts if part is not None]
            if not said or (kind == "CONJUNCTION_OR" and len(said) < len(parts)):
                return None
            return (" and " if kind == "CONJUNCTION_AND" else " or ").join(said)
        if kind in _COMPARISONS:
            return self._compare(node["left"], _COMPARISONS[kind][0], node["right"], table) or self._compare(
                node["right"], _COMPARISONS[kind][1], node["left"], table
            )
        if kind == "COMPARE_BETWEEN":
            low = self._compare(node["input"], ">=", node["lower"], table)
            high = self._compare(node["input"], "<=", node["upper"], table)
            return " and ".join(part for part in (low, high) if part) or None
        if kind == "COMPARE_IN":
            first, *rest = node["children"]
            parts = [self._compare(first, "==", value, table) for value in rest]
            return None if None in parts else " or ".join(str(part) for part in parts)
        if kind == "FUNCTION" and node["function_name"] in ("in_net", "<<") and len(node["arguments"]) == 2:
            column, net = _arguments(node)
            field, text = self.field(column, table), _text(net)
            if field is not None and field.type.kind in ("ip", "ipv4") and text is not None and _NET.match(text):
                return f"{field.name} in {text}" if "/" in text else f"{field.name} == {text}"
        return None

    def _compare(self, column: Node, sign: str, value: Node, table: InputTable) -> str | None:
        field = self.field(column, table)
        if field is None or field.type.is_list:
            return None
        kind, text, number = field.type.kind, _text(value), _number(value)
        if kind == "time":
            found = _TIME.match(text if text is not None else _cast_text(value))
            return None if found is None else f"{field.name} {sign} {found[1]}T{found[2] or '00:00:00'}Z"
        if field.type.base[0] in "ui" and kind == field.type.base and number is not None:
            return f"{field.name} {sign} {number}"
        if sign == "==" and text is not None:
            if kind in ("ip", "ipv4") and _NET.match(text) and "/" not in text:
                return f"{field.name} == {text}"
            if kind == "enum" and text in field.names.values() and _NAME.match(text):
                return f"{field.name} == {text}"
        return None


def _nodes(tree: Any) -> Iterator[Node]:
    """All nodes, parents first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed([*node.values()])
        elif isinstance(node, list):
            waiting += reversed(node)


def _kept_tables(node: Node, by_name: dict[str, InputTable]) -> tuple[list[InputTable], bool]:
    """The inputs in FROM that may leave out what WHERE rejects; and whether there is anything else."""
    if node["type"] == "BASE_TABLE":
        table = by_name.get(node["table_name"])
        plain = table is not None and not node.get("column_name_alias") and node.get("sample") is None
        return ([table], False) if table is not None and plain else ([], True)
    if node["type"] != "JOIN" or node["ref_type"] not in ("REGULAR", "CROSS") or node.get("sample") is not None:
        return [], True
    left, right = _kept_tables(node["left"], by_name), _kept_tables(node["right"], by_name)
    if node["join_type"] == "INNER" or node["ref_type"] == "CROSS":
        return left[0] + right[0], left[1] or right[1]
    # Names without a table may also be of the other side, which is not looked at: they are not sure.
    return (
        (left[0], True)
        if node["join_type"] == "LEFT"
        else (right[0], True)
        if node["join_type"] == "RIGHT"
        else ([], True)
    )


def _conjuncts(node: Node) -> Iterator[Node]:
    if node.get("type") == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conjuncts(child)
    else:
        yield node


def _fields(table: InputTable) -> tuple[Field, ...]:
    return () if table.schema is None else table.schema.fields


def _arguments(function: Node) -> list[Node]:
    return [argument["expression"] for argument in function["arguments"]]


def _literal(node: Node, kind: str) -> str | None:
    literal = node.get("literal") if node.get("type") == "VALUE_CONSTANT" else None
    return literal["text"] if literal is not None and literal["kind"] == kind else None


def _text(node: Node) -> str | None:
    return _literal(node, "STRING")


def _number(node: Node) -> str | None:
    return _literal(node, "INTEGER")


def _cast_text(node: Node) -> str:
    """The text in TIMESTAMP '...'; '' if the node is something else, or a time with more digits than its type has."""
    if node.get("type") != "OPERATOR_CAST":
        return ""
    digits = _TIME_DIGITS.get(str(node["type_expr"].get("type_name")).lower())
    text = _text(node["child"]) or ""
    return "" if digits is None or len(text.partition(".")[2]) > digits else text


def _is_time(node: Node, times: set[str]) -> bool:
    if node.get("type") == "COLUMN_REF":
        return node["column_names"][-1] in times
    inside = node.get("function_name") in _TIMES_OF and node.get("arguments")
    return bool(inside) and _is_time(_arguments(node)[0], times)


def _column(names: list[str]) -> Node:
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": names}


def _call(name: str, *arguments: Node, alias: str = "") -> Node:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": alias,
        "function_name": name,
        "schema": "",
        "catalog": "",
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "arguments": [{"name": "", "expression": dict(argument)} for argument in arguments],
        "qualified_name": {"path": [name]},
    }
