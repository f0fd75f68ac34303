"""State machines in plain Python: what a definition does, record by record, from its parsed rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluo_tools.expr.machine import SERIAL, MachineNames, MachineNode, parse, truth
from confluo_tools.multilog.query.state_definitions import StateDefinition
from confluo_tools.schema import Schema

BITS = {"u8": 8, "bool": 8, "u16": 16, "u32": 32, "serial": 32, "u64": 64}
State = dict[str, int]


def signed(v: int, bits: int = 64) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def fit(kind: str, v: int) -> int:
    """What is left of v in a field of the state, as later rules read it."""
    if kind in BITS:
        return signed(v & (1 << BITS[kind]) - 1)
    return signed(v, {"i8": 8, "i16": 16, "i32": 32}.get(kind, 64))


def value(node: MachineNode, row: Mapping[str, int], state: State, other: State, new: bool) -> int:
    """The value of a node; conditions are 0 and 1."""
    if node.op == "const":
        return int(node.value)
    if node.op == "input":
        return signed(row[node.value])
    if node.op in ("state", "other"):
        return (state if node.op == "state" else other)[node.value]
    if node.op == "new":
        return int(new)
    one = [value(item, row, state, other, new) for item in node.items]
    a, b = (*one, 0)[:2]
    near = signed(a - b, 32)
    table: dict[str, Any] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "/": lambda: 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "<": lambda: a < b,
        "<=": lambda: a <= b,
        "==": lambda: a == b,
        "!=": lambda: a != b,
        "and": lambda: bool(a) and bool(b),
        "or": lambda: bool(a) or bool(b),
        "not": lambda: not a,
        "serial-": lambda: near,
        "wrap": lambda: a & 0xFFFFFFFF,
        "serial<": lambda: near < 0,
        "serial<=": lambda: near <= 0,
        "serialmin": lambda: a if near < 0 else b,
        "serialmax": lambda: b if near < 0 else a,
        "bits": lambda: a & b,
    }
    return signed(int(table[node.op]()))


class Twin:
    """The states of a definition over rows of ``schema``, each a mapping of field names."""

    def __init__(self, definition: StateDefinition, schema: Schema) -> None:
        self.definition = definition
        self.kinds = {f["name"]: f["type"] for f in definition.fields}
        kinds = {n: SERIAL if k == "serial" else "int" for n, k in self.kinds.items()}
        names, merging = (
            MachineNames(kinds, definition.params, schema),
            MachineNames(kinds, definition.params, None, other=True),
        )

        def rules(given: Any, names: MachineNames) -> list[tuple[MachineNode | None, dict[str, MachineNode]]]:
            return [
                (truth(parse(when, names)) if when else None, {k: parse(v, names) for k, v in sets.items()})
                for when, sets in given
            ]

        self.rules, self.merges = rules(definition.rules, names), rules(definition.merges, merging)
        self.derived = {d["name"]: parse(str(d.get("when", d.get("value"))), names) for d in definition.derived}
        self.states: dict[Any, State] = {}

    def step(self, key: Any, row: Mapping[str, int]) -> State:
        """The output for a row: the state before it, and what is derived; then the state is updated."""
        new = key not in self.states
        zero = {f["name"]: fit(f["type"], int(f.get("zero", 0))) for f in self.definition.fields}
        state = self.states.setdefault(key, zero)
        told = dict(state) | {n: value(node, row, state, {}, new) for n, node in self.derived.items()}
        self._run(self.rules, row, state, {}, new)
        return told

    def merge(self, key: Any, other: State) -> None:
        if key in self.states:
            self._run(self.merges, {}, self.states[key], other, False)
        else:
            self.states[key] = dict(other)

    def _run(self, rules: Any, row: Mapping[str, int], state: State, other: State, new: bool) -> None:
        for when, sets in rules:
            if when is None or value(when, row, state, other, new):
                state.update({k: fit(self.kinds[k], value(node, row, state, other, new)) for k, node in sets.items()})
