"""State definitions: a few integers for each flow (or other key), updated record by record.  Manual: confluo-state(5).

    definition = load("maxseq")                     built in, a YAML file, or what a log's state view says
    machine = definition.machine(schema)            core/statemachine: apply, update, blocks, load, merge
    resolve("maxseq:delay=10ms"), resolve("package.module:Class")

The paper's MAXSEQ (Figure 2) is states/maxseq.yaml.  No code stands in definitions; classes are imported only when
the user names them, or when they are installed as entry points of the group `confluo_tools.states`.
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
    from confluo_tools.core.block import Block
    from confluo_tools.core.statemachine import Machine
    from confluo_tools.expr.machine import Node

FLOWS = 1 << 18
MOST_TEXT = 1 << 16
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
    """What a class of one's own must be, instead of a definition: subclass this, name it as MODULE:CLASS.

    ``fields`` are added to each row, ``needs`` are the fields of the record that it looks at.
    """

    name = ""
    fields: Sequence[Field] = ()
    needs: Sequence[str] = ()

    def zero(self, schema: Schema) -> None:
        """Begin: nothing seen yet.  ``schema`` of the rows."""

    def update(self, batch: Block) -> Sequence[Any]:
        """Rows in order.  Returns bytes-like objects, one for each of ``fields``: its values for these rows."""
        raise NotImplementedError

    def merge(self, other: State) -> None:
        """Take in what another one has seen."""
        raise NotImplementedError


class Definition:
    """A parsed state definition.  ``text`` is its YAML; ``params`` may be set before the first use.

    Raises SchemaError that names the place.  What names mean is looked up in `machine`, where the schema is known.
    """

    def __init__(self, data: Any, text: str = "", where: str = "state") -> None:
        self.text, self.where = text, where
        if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
            raise SchemaError("is not a state definition", where=where, hint="it needs 'state: NAME' and 'fields:'")
        self._known(data, "")
        self.name = str(data.get("state", ""))
        if not _NAME.match(self.name):
            raise SchemaError(f"bad name of a state '{self.name}'", where=where, hint="letters, digits and _")
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
                raise self.wrong(f"'{name}' cannot be a name")
        for name in names:
            if names.count(name) > 1 or name in self.params:
                raise self.wrong(f"'{name}' is defined twice")
        for one in self.derived:
            if ("when" in one) == ("value" in one):
                raise self.wrong(f"'{one['name']}' needs either when or value")
        if not self.fields or not self.rules:
            raise self.wrong("a state needs fields and rules that update them")

    def wrong(self, what: str) -> SchemaError:
        return SchemaError(what, where=self.where, hint="confluo-state(5) describes definitions")

    def _known(self, entry: Any, kind: str) -> None:
        if not isinstance(entry, dict):
            raise self.wrong(f"an entry of '{kind}' is not a mapping")
        extra = {str(k) for k in entry} - _KEYS[kind]
        if extra:
            raise self.wrong(f"unknown key '{min(extra)}'" + (f" in '{kind}'" if kind else ""))

    def _params(self, given: Any) -> dict[str, int]:
        from confluo_tools.expr.machine import param

        if not isinstance(given, dict):
            raise self.wrong("'params' is not a mapping")
        return {str(name): param(value) for name, value in given.items()}

    def _list(self, data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        entries = data.get(kind) or []
        if not isinstance(entries, list):
            raise self.wrong(f"'{kind}' is not a list")
        for entry in entries:
            self._known(entry, kind)
            if kind == "derive" and not isinstance(entry.get("name"), str):
                raise self.wrong("an entry of 'derive' has no name")
        return entries

    def _rules(self, data: dict[str, Any], kind: str) -> list[tuple[str | None, dict[str, str]]]:
        rules = []
        for entry in self._list(data, kind):
            sets = entry.get("set")
            if not isinstance(sets, dict) or not sets:
                raise self.wrong(f"a rule of '{kind}' sets nothing")
            names = {f["name"] for f in self.fields}
            for name in map(str, sets):
                if name not in names:
                    raise self.wrong(f"'{kind}' sets '{name}', which is no field of the state")
            when = entry.get("when")
            rules.append((None if when is None else str(when), {str(k): str(v) for k, v in sets.items()}))
        return rules

    def _field(self, entry: Any) -> dict[str, Any]:
        self._known(entry, "fields")
        name, zero = entry.get("name"), entry.get("zero", 0)
        if not isinstance(name, str):
            raise self.wrong("an entry of 'fields' has no name")
        if not isinstance(entry.get("type"), str) or entry["type"] not in _TYPES:
            raise self.wrong(f"field '{name}' needs a type: {', '.join(_TYPES)}")
        if not isinstance(zero, int) or not -(1 << 63) <= zero < 1 << 63:
            raise self.wrong(f"zero of field '{name}' is not a whole number")
        return dict(entry)

    def set_params(self, given: Mapping[str, str]) -> None:
        """NAME=VALUE of the command line.  UsageError for a parameter that there is not."""
        from confluo_tools.expr.machine import param

        for name, value in given.items():
            if name not in self.params:
                known = f"there are {', '.join(self.params)}" if self.params else "it has none"
                raise UsageError(f"state '{self.name}' has no parameter '{name}'", hint=known)
            self.params[name] = param(value)

    @property
    def digest(self) -> bytes:
        """32 bytes that tell definitions apart."""
        import hashlib

        return hashlib.sha256(repr((self.text, sorted(self.params.items()))).encode()).digest()

    @cached_property
    def state_fields(self) -> list[Field]:
        """The fields of the state, as records have them."""
        return [_as_field(f["name"], f["type"], f) for f in self.fields]

    def schema(self, schema: Schema) -> Schema:
        """Key and state, as records of their own."""
        keys = [schema[name] for name in self._key(schema)[0]]
        versions = [schema[k.version] for k in keys if k.type.kind == "ip" and k.version]
        first = [v for v in versions[:1] if v.name not in {k.name for k in keys}]
        about = f"{self.description or self.name}, of {schema.kind}"
        fields = [Field(f.name, f.type, f.unit, f.description, f.names, f.version) for f in (*keys, *first)]
        return Schema("state", [*fields, *self.state_fields], about)

    def _key(self, schema: Schema) -> tuple[list[str], int]:
        """Names of the fields of the key, and how many of them are one end of a conversation."""
        names: list[str] = []
        half = 0
        for word in self.key:
            if word in ("flow", "conn") and word not in schema:
                if word == "conn":
                    if names:
                        raise self.wrong("'conn' comes first in a key")
                    half = len(ENDS[0])
                    names += [*ENDS[0], *ENDS[1], "proto"]
                else:
                    names += [ENDS[0][0], ENDS[1][0], ENDS[0][1], ENDS[1][1], "proto"]
            else:
                names.append(word)
        for name in names:
            if schema[name].type.is_list:
                raise self.wrong(f"'{name}' is a list and cannot be in a key")
        if len(set(names)) != len(names):
            raise self.wrong("a field stands in the key twice")
        return names, half

    @property
    def by_flow(self) -> bool:
        """Whether all rows of a state are of one conversation."""
        return self.key in (["flow"], ["conn"])

    def result_fields(self) -> list[Field]:
        """What an analysis adds to each row: the state as the row found it, then what is derived."""
        out = list(self.state_fields)
        for one in self.derived:
            kind = "u8" if "when" in one else str(one.get("type", "i64"))
            if kind not in _TYPES:
                raise self.wrong(f"'{one['name']}' has no type {kind}")
            out.append(_as_field(one["name"], kind, one))
        return out

    def needs(self, schema: Schema) -> list[str]:
        """Fields of the record that it looks at, those of ``where`` included."""
        from confluo_tools.expr import compile

        _, _, inputs = self._programs(schema)
        looked = {*inputs, *self._key(schema)[0], *(compile(self.expression, schema).fields if self.expression else ())}
        looked |= {schema[n].version for n in looked if schema[n].version}
        return [f.name for f in schema.fields if f.name in looked]

    def _programs(self, schema: Schema) -> tuple[dict[str, bytes], bytes, list[str]]:
        from confluo_tools.expr.machine import BOOL, SERIAL, Assembler, Names, Node, parse

        kinds = {f["name"]: SERIAL if f["type"] == "serial" else "int" for f in self.fields}
        make = Assembler(list(kinds))
        record = Names(kinds, self.params, schema)
        merging = Names(kinds, self.params, None, other=True)

        def node(text: str, names: Names, place: str) -> Node:
            try:
                return parse(text, names)
            except ValueError as e:
                raise self.wrong(f"{place}: {e}") from None

        def rules(given: list[tuple[str | None, dict[str, str]]], names: Names, kind: str, code: list[int]) -> None:
            for i, (when, sets) in enumerate(given, 1):
                place = f"rule {i} of {kind}"
                test = None if when is None else node(when, names, place)
                make.rule(test, [(k, node(v, names, f"{place}, {k}")) for k, v in sets.items()], code)

        def derive(code: list[int]) -> None:
            nodes = [Node("state", kinds[n], value=n) for n in kinds]
            for one in self.derived:
                found = node(str(one.get("when", one.get("value"))), record, one["name"])
                if "when" in one and found.kind != BOOL:
                    raise self.wrong(f"{one['name']}: when is no condition")
                nodes.append(found)
            make.outputs(nodes, code)

        try:
            programs = {
                "derive": make.program(derive),
                "update": make.program(lambda code: rules(self.rules, record, "update", code)),
                "merge": make.program(lambda code: rules(self.merges, merging, "merge", code)),
            }
        except ValueError as e:
            raise self.wrong(f"the rules are {e}") from None
        return programs, make.constants(), make.inputs

    def machine(self, schema: Schema, result: Schema | None = None, flows: int = FLOWS) -> Machine:
        """The states of all keys; ``result``: ``schema`` with `result_fields`, for `Machine.apply`.

        Raises SchemaError where the definition does not go with the schema.
        """
        from confluo_tools.core.statemachine import Machine

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
            return Machine(
                schema.layout, shape.layout, self.schema(schema).layout, key=key, half=half,
                inputs=[schema.index(n) for n in inputs], zero=zero, pool=pool, most=flows, **programs,
            )  # fmt: skip
        except ValueError as e:
            raise self.wrong(str(e)) from None


def _as_field(name: str, kind: str, entry: Mapping[str, Any]) -> Field:
    base = {"serial": "u32", "bool": "u8"}.get(kind, kind)
    unit = str(entry.get("unit", "ns" if base in ("time", "duration") else ""))
    return Field(name, Type(base), unit, str(entry.get("description", "")))


# --- finding them ---------------------------------------------------------------------------------------------


def builtin_names() -> list[str]:
    """Names of the definitions that come with the tools."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(_HERE) if name.endswith(".yaml"))


def parse(text: str, where: str = "state") -> Definition:
    """A definition from YAML.  Raises SchemaError."""
    import yaml

    if len(text) > MOST_TEXT:
        raise SchemaError(f"longer than {MOST_TEXT} characters", where=where)
    try:
        data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # safe loaders only
    except (yaml.YAMLError, RecursionError) as e:
        raise SchemaError(f"cannot be read as a state: {str(e).splitlines()[0]}", where=where) from None
    return Definition(data, text, where)


def load(name: str) -> Definition:
    """A definition by the path of its file, or by name when it is built in."""
    path = name
    if name in builtin_names() and not os.path.exists(name):
        path = os.path.join(_HERE, f"{name}.yaml")
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise SchemaError(f"cannot be read as a state: {reason}", where=name) from None
    return parse(text, str(name))


def resolve(spec: str) -> Definition | State:
    """What ``--analyze`` or ``--state`` names: NAME, FILE or MODULE:CLASS, and perhaps ``:PARAMETER=VALUE,...``.

    Raises UsageError, SchemaError.
    """
    params: dict[str, str] = {}
    match = _PARAMS.match(spec)
    if match and not os.path.exists(spec):
        spec = match[1]
        params = dict(pair.split("=", 1) for pair in match[2].split(","))
    found = _find(spec)
    if isinstance(found, Definition):
        found.set_params(params)
    elif params:
        raise UsageError(f"{spec} has no parameters")
    return found


def names_class(spec: str) -> bool:
    """Whether that is MODULE:CLASS."""
    return bool(_CLASS.match(spec)) and not os.path.isfile(spec)


def _find(spec: str) -> Definition | State:
    if os.path.isfile(spec) or spec in builtin_names():
        return load(spec)
    match = _CLASS.match(spec)
    if match:
        return _instance(spec, match[1], match[2])
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.name == spec:
            return _made(spec, entry.load())
    from difflib import get_close_matches

    names = ["tcp", *builtin_names()]
    near = get_close_matches(spec, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}, files and MODULE:CLASS"
    raise UsageError(f"no analysis '{spec}'", hint=hint)


def _instance(spec: str, module: str, name: str) -> State:
    from importlib import import_module

    try:
        return _made(spec, getattr(import_module(module), name))
    except (ImportError, AttributeError) as e:
        raise UsageError(f"no analysis '{spec}': {e}", hint="is the module on $PYTHONPATH?") from None


def _made(spec: str, kind: Any) -> State:
    if not isinstance(kind, type) or not issubclass(kind, State):
        raise UsageError(f"'{spec}' is no state", hint="subclass confluo_tools.store.stateful.State")
    return kind()
