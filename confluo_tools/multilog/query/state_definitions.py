"""State definitions: a few integers for each flow (or other key), updated record by record.  Manual: confluo-state(5).

    definition = load("maxseq")                     built in, a YAML file, or the definition of a state view
    machine = definition.machine(schema)            core/query/state_machine: apply, update, blocks, load, merge
    resolve("maxseq:delay=10ms"), resolve("package.module:Class")

The paper's MAXSEQ (Figure 2) is states/maxseq.yaml.  Definitions contain no code.  Classes are imported only when the
user names them, or when they are installed as entry points of the group `confluo_tools.states`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError, UsageError
from confluo_tools.schema import Field, Schema, Type

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.query.state_machine import StateMachine
    from confluo_tools.expr.machine import MachineNode

FLOWS = 1 << 18
MAX_TEXT = 1 << 16
ENDS = (("src_ip", "src_port"), ("dst_ip", "dst_port"))
GROUP = "confluo_tools.states"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
_CLASS = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)\Z")
_PARAMS = re.compile(r"(.+?):(\w+=[^,=]*(?:,\w+=[^,=]*)*)\Z")
_HERE = os.path.join(os.path.dirname(__file__), "states")
_TYPES = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "time", "duration", "serial", "bool")
_KEYS = {
    "": {"state", "description", "key", "where", "params", "fields", "update", "derive", "merge"},
    "fields": {"name", "type", "unit", "description", "zero"},
    "update": {"when", "set"},
    "derive": {"name", "when", "value", "type", "unit", "description"},
    "merge": {"when", "set"},
}


class State:
    """Base class of user-defined states, used as MODULE:CLASS instead of a definition.

    ``fields`` are added to each row; ``needs`` are the fields of the record that it reads.
    """

    name = ""
    fields: Sequence[Field] = ()
    needs: Sequence[str] = ()

    def zero(self, schema: Schema) -> None:
        """Reset the state.  ``schema``: that of the rows."""

    def update(self, batch: Block) -> Sequence[Any]:
        """Process rows in order.  Returns a bytes-like object for each of ``fields``: its values for these rows."""
        raise NotImplementedError

    def merge(self, other: State) -> None:
        """Merge the state of another instance into this one."""
        raise NotImplementedError


class StateDefinition:
    """A parsed state definition.  ``text`` is its YAML; ``params`` may be set before the first use.

    Raises SchemaError with the position.  Names are resolved in `machine`, where the schema is known.
    """

    def __init__(self, data: Any, text: str = "", where: str = "state") -> None:
        self.text, self.where = text, where
        if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
            raise SchemaError("is not a state definition", where=where, hint="it needs 'state: NAME' and 'fields:'")
        self._known(data, "")
        self.name = str(data.get("state", ""))
        if not _NAME.match(self.name):
            raise SchemaError(f"invalid state name '{self.name}'", where=where, hint="use letters, digits and _")
        self.description = str(data.get("description", ""))
        key = data.get("key", "flow")
        self.key = [str(k) for k in key] if isinstance(key, list) else [str(key)]
        self.expression = str(data.get("where", ""))
        self.params = self._params(data.get("params") or {})
        self.fields = [self._field(f) for f in data["fields"]]
        self.rules = self._rules(data, "update")
        self.merges = self._rules(data, "merge")
        self.derived = self._list(data, "derive")
        names = [f["name"] for f in (*self.fields, *self.derived)]
        for name in (*names, *self.params):
            if not isinstance(name, str) or not _NAME.match(name) or name in ("new", "other", "min", "max"):
                raise self.error(f"'{name}' is not a valid name")
        for name in names:
            if names.count(name) > 1 or name in self.params:
                raise self.error(f"'{name}' is defined twice")
        for one in self.derived:
            if ("when" in one) == ("value" in one):
                raise self.error(f"'{one['name']}' needs either when or value")
        if not self.fields or not self.rules:
            raise self.error("a state needs fields and update rules")

    def error(self, what: str) -> SchemaError:
        return SchemaError(what, where=self.where, hint="confluo-state(5) describes definitions")

    def _known(self, entry: Any, kind: str) -> None:
        if not isinstance(entry, dict):
            raise self.error(f"an entry of '{kind}' is not a mapping")
        extra = {str(k) for k in entry} - _KEYS[kind]
        if extra:
            raise self.error(f"unknown key '{min(extra)}'" + (f" in '{kind}'" if kind else ""))

    def _params(self, given: Any) -> dict[str, int]:
        from confluo_tools.expr.machine import param

        if not isinstance(given, dict):
            raise self.error("'params' is not a mapping")
        return {str(name): param(value) for name, value in given.items()}

    def _list(self, data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        entries = data.get(kind) or []
        if not isinstance(entries, list):
            raise self.error(f"'{kind}' is not a list")
        for entry in entries:
            self._known(entry, kind)
            if kind == "derive" and not isinstance(entry.get("name"), str):
                raise self.error("an entry of 'derive' has no name")
        return entries

    def _rules(self, data: dict[str, Any], kind: str) -> list[tuple[str | None, dict[str, str]]]:
        rules = []
        for entry in self._list(data, kind):
            sets = entry.get("set")
            if not isinstance(sets, dict) or not sets:
                raise self.error(f"a rule of '{kind}' sets nothing")
            names = {f["name"] for f in self.fields}
            for name in map(str, sets):
                if name not in names:
                    raise self.error(f"'{kind}' sets unknown state field '{name}'")
            when = entry.get("when")
            rules.append((None if when is None else str(when), {str(k): str(v) for k, v in sets.items()}))
        return rules

    def _field(self, entry: Any) -> dict[str, Any]:
        self._known(entry, "fields")
        name, zero = entry.get("name"), entry.get("zero", 0)
        if not isinstance(name, str):
            raise self.error("an entry of 'fields' has no name")
        if not isinstance(entry.get("type"), str) or entry["type"] not in _TYPES:
            raise self.error(f"field '{name}' needs a type: {', '.join(_TYPES)}")
        if not isinstance(zero, int) or not -(1 << 63) <= zero < 1 << 63:
            raise self.error(f"zero of field '{name}' is not an integer of 64 bits")
        return dict(entry)

    def set_params(self, given: Mapping[str, str]) -> None:
        """Set parameters to values from the command line.  Raises UsageError for an unknown parameter."""
        from confluo_tools.expr.machine import param

        for name, value in given.items():
            if name not in self.params:
                known = f"its parameters are {', '.join(self.params)}" if self.params else "it has none"
                raise UsageError(f"state '{self.name}' has no parameter '{name}'", hint=known)
            self.params[name] = param(value)

    @property
    def digest(self) -> bytes:
        """32-byte hash of the definition and its parameters."""
        import hashlib

        return hashlib.sha256(repr((self.text, sorted(self.params.items()))).encode()).digest()

    @cached_property
    def state_fields(self) -> list[Field]:
        """The state fields, as fields of a record."""
        return [_as_field(f["name"], f["type"], f) for f in self.fields]

    def schema(self, schema: Schema) -> Schema:
        """Schema of records of key and state."""
        keys = [schema[name] for name in self._key(schema)[0]]
        versions = [schema[k.version] for k in keys if k.type.kind == "ip" and k.version]
        first = [v for v in versions[:1] if v.name not in {k.name for k in keys}]
        about = f"{self.description or self.name}, of {schema.kind}"
        fields = [Field(f.name, f.type, f.unit, f.description, f.names, f.version) for f in (*keys, *first)]
        return Schema("state", [*fields, *self.state_fields], about)

    def _key(self, schema: Schema) -> tuple[list[str], int]:
        """(names of the key fields, number of key fields of one end of a conversation, or 0)."""
        names: list[str] = []
        half = 0
        for word in self.key:
            if word in ("flow", "conn") and word not in schema:
                if word == "conn":
                    if names:
                        raise self.error("'conn' must be first in a key")
                    half = len(ENDS[0])
                    names += [*ENDS[0], *ENDS[1], "proto"]
                else:
                    names += [ENDS[0][0], ENDS[1][0], ENDS[0][1], ENDS[1][1], "proto"]
            else:
                names.append(word)
        for name in names:
            if schema[name].type.is_list:
                raise self.error(f"'{name}' is a list and cannot be in a key")
        if len(set(names)) != len(names):
            raise self.error("the key contains a field twice")
        return names, half

    @property
    def by_flow(self) -> bool:
        """Whether each state belongs to one conversation."""
        return self.key in (["flow"], ["conn"])

    def result_fields(self) -> list[Field]:
        """The fields that an analysis adds to each row: the state before the row, then the derived fields."""
        out = list(self.state_fields)
        for one in self.derived:
            kind = "u8" if "when" in one else str(one.get("type", "i64"))
            if kind not in _TYPES:
                raise self.error(f"'{one['name']}' has unknown type {kind}")
            out.append(_as_field(one["name"], kind, one))
        return out

    def needs(self, schema: Schema) -> list[str]:
        """Names of the record fields that it reads, including those of ``where``."""
        from confluo_tools.expr import compile

        _, _, inputs = self._programs(schema)
        looked = {*inputs, *self._key(schema)[0], *(compile(self.expression, schema).fields if self.expression else ())}
        looked |= {schema[n].version for n in looked if schema[n].version}
        return [f.name for f in schema.fields if f.name in looked]

    def _programs(self, schema: Schema) -> tuple[dict[str, bytes], bytes, list[str]]:
        from confluo_tools.expr.machine import BOOL, SERIAL, Assembler, MachineNames, MachineNode, parse

        kinds = {f["name"]: SERIAL if f["type"] == "serial" else "int" for f in self.fields}
        make = Assembler(list(kinds))
        record = MachineNames(kinds, self.params, schema)
        merging = MachineNames(kinds, self.params, None, other=True)

        def node(text: str, names: MachineNames, place: str) -> MachineNode:
            try:
                return parse(text, names)
            except ValueError as e:
                raise self.error(f"{place}: {e}") from None

        def rules(
            given: list[tuple[str | None, dict[str, str]]], names: MachineNames, kind: str, code: list[int]
        ) -> None:
            for i, (when, sets) in enumerate(given, 1):
                place = f"rule {i} of {kind}"
                test = None if when is None else node(when, names, place)
                make.rule(test, [(k, node(v, names, f"{place}, {k}")) for k, v in sets.items()], code)

        def derive(code: list[int]) -> None:
            nodes = [MachineNode("state", kinds[n], value=n) for n in kinds]
            for one in self.derived:
                found = node(str(one.get("when", one.get("value"))), record, one["name"])
                if "when" in one and found.kind != BOOL:
                    raise self.error(f"{one['name']}: when is not a condition")
                nodes.append(found)
            make.outputs(nodes, code)

        try:
            programs = {
                "derive": make.program(derive),
                "update": make.program(lambda code: rules(self.rules, record, "update", code)),
                "merge": make.program(lambda code: rules(self.merges, merging, "merge", code)),
            }
        except ValueError as e:
            raise self.error(f"the rules are {e}") from None
        return programs, make.constants(), make.inputs

    def machine(self, schema: Schema, result: Schema | None = None, flows: int = FLOWS) -> StateMachine:
        """The states of all keys; ``result``: ``schema`` with `result_fields`, for `Machine.apply`.

        Raises SchemaError when the definition does not match the schema.
        """
        from confluo_tools.core.query.state_machine import StateMachine

        programs, pool, inputs = self._programs(schema)
        names, half = self._key(schema)
        key: list[tuple[Any, ...]] = []
        for name in names:
            field, at = schema[name], schema.index(name)
            if field.type.kind == "ip":
                key.append(("ip", at, at + 1, schema.index(field.version) if field.version else -1))
            else:
                key.append(("field", at))
        zero = [int(f.get("zero", 0)) for f in self.fields]
        shape = result or schema.plus(self.result_fields())
        try:
            return StateMachine(
                schema.layout,
                shape.layout,
                self.schema(schema).layout,
                key=key,
                half=half,
                inputs=[schema.index(n) for n in inputs],
                zero=zero,
                pool=pool,
                max_keys=flows,
                **programs,
            )
        except ValueError as e:
            raise self.error(str(e)) from None


def _as_field(name: str, kind: str, entry: Mapping[str, Any]) -> Field:
    base = {"serial": "u32", "bool": "u8"}.get(kind, kind)
    unit = str(entry.get("unit", "ns" if base in ("time", "duration") else ""))
    return Field(name, Type(base), unit, str(entry.get("description", "")))


# --- lookup by name ---------------------------------------------------------------------------------------------


def builtin_names() -> list[str]:
    """Names of the built-in definitions."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(_HERE) if name.endswith(".yaml"))


def parse(text: str, where: str = "state") -> StateDefinition:
    """Parse a definition from YAML.  Raises SchemaError."""
    from confluo_tools import guarded_yaml

    if len(text) > MAX_TEXT:
        raise SchemaError(f"longer than {MAX_TEXT} characters", where=where)
    try:
        data = guarded_yaml.load(text)
    except guarded_yaml.YamlError as e:
        raise SchemaError(f"is not a valid state definition: {e}", where=where) from None
    return StateDefinition(data, text, where)


def load(name: str) -> StateDefinition:
    """Load a definition by file path or built-in name."""
    path = name
    if name in builtin_names() and not os.path.exists(name):
        path = os.path.join(_HERE, f"{name}.yaml")
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise SchemaError(f"is not a valid state definition: {reason}", where=name) from None
    return parse(text, str(name))


def resolve(spec: str) -> StateDefinition | State:
    """Resolve an argument of ``--analyze`` or ``--state``: NAME, FILE or MODULE:CLASS, then ``:PARAMETER=VALUE,...``.

    Raises UsageError, SchemaError.
    """
    params: dict[str, str] = {}
    match = _PARAMS.match(spec)
    if match and not os.path.exists(spec):
        spec = match[1]
        params = dict(pair.split("=", 1) for pair in match[2].split(","))
    found = _find(spec)
    if isinstance(found, StateDefinition):
        found.set_params(params)
    elif params:
        raise UsageError(f"{spec} has no parameters")
    return found


def names_class(spec: str) -> bool:
    """Whether ``spec`` has the form MODULE:CLASS."""
    return bool(_CLASS.match(spec)) and not os.path.isfile(spec)


def _find(spec: str) -> StateDefinition | State:
    if os.path.isfile(spec) or spec in builtin_names():
        return load(spec)
    match = _CLASS.match(spec)
    if match:
        return _instance(spec, match[1], match[2])
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.name == spec:
            return _create(spec, entry.load())
    from difflib import get_close_matches

    names = ["tcp", *builtin_names()]
    near = get_close_matches(spec, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"use {', '.join(names)}, a file or MODULE:CLASS"
    raise UsageError(f"unknown analysis '{spec}'", hint=hint)


def _instance(spec: str, module: str, name: str) -> State:
    from importlib import import_module

    try:
        return _create(spec, getattr(import_module(module), name))
    except (ImportError, AttributeError) as e:
        raise UsageError(f"cannot load analysis '{spec}': {e}", hint="is the module on $PYTHONPATH?") from None


def _create(spec: str, kind: Any) -> State:
    if not isinstance(kind, type) or not issubclass(kind, State):
        raise UsageError(f"'{spec}' is not a subclass of State", hint=f"subclass {State.__module__}.State")
    return kind()
