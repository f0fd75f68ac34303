"""State definitions against the same rules in plain Python, the MAXSEQ of the paper, and invalid definitions."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.errors import ConfluoError
from confluo_tools.formats.pcap import open_captures
from confluo_tools.multilog.query import state_definitions
from confluo_tools.multilog.query.derived_fields import Analysis
from confluo_tools.schema import Field, Schema, builtin
from twin_state_machine import Twin

SCHEMA = Schema(
    "toy",
    [
        Field("ts", "time"),
        Field("key", "u16"),
        Field("seq", "u32"),
        Field("len", "u8"),
        Field("diff", "i16"),
        Field("big", "u64"),
        Field("bits", "flags", names={1: "low", 4: "high"}),
        Field("kind", "enum", names={1: "one", 2: "two"}),
    ],
)
FORMATS = {"ts": "q", "key": "H", "seq": "I", "len": "B", "diff": "h", "big": "Q", "bits": "H", "kind": "B"}
Row = dict[str, int]
ENDS = ("src_ip", "src_ip6", "src_port", "dst_ip", "dst_ip6", "dst_port")


def block(rows: list[Row]) -> Block:
    columns = [struct.pack(f"<{len(rows)}{FORMATS[c.name]}", *(r[c.name] for r in rows)) for c in SCHEMA.columns]
    return Block.wrap(SCHEMA.layout, len(rows), columns)


def values(block: Block, schema: Schema, names: list[str]) -> list[Row]:
    return [{n: block.get(schema.index(n), i) for n in names} for i in range(block.rows)]


def rows_of(draw: Any) -> list[Row]:
    near = st.integers(0, 5) | st.integers(0xFFFFFFF8, 0xFFFFFFFF)
    row = st.fixed_dictionaries(
        {
            "ts": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 100),
            "key": st.integers(0, 3),
            "seq": near | st.integers(0, 0xFFFFFFFF),
            "len": st.integers(0, 255),
            "diff": st.integers(-(1 << 15), (1 << 15) - 1),
            "big": st.integers(0, (1 << 64) - 1),
            "bits": st.integers(0, 7),
            "kind": st.integers(0, 3),
        }
    )
    found: list[Row] = draw(st.lists(row, min_size=1, max_size=40))
    return found


# Random programs for a state with one field of each kind.
STATE = {"mark": "serial", "sum": "i64", "small": "u8", "word": "i16", "seen": "time"}
NUMBERS = st.sampled_from([*STATE, "seq", "len", "diff", "big", "ts", "limit", "3", "10", "2ms", "0", "65536"])
PLAIN = st.sampled_from(["sum", "small", "word", "seen", "len", "diff", "big", "ts", "limit", "7", "1K", "0"])


def sums(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
            st.builds("-({})".format, inner),
        ),
        max_leaves=5,
    )


SERIALS = st.sampled_from(["mark + 10", "seq - mark", "mark - 1", "max(seq, mark)", "min(mark, seq)"])
TERMS = sums(PLAIN) | NUMBERS | SERIALS
CONDITIONS = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "="]), TERMS),
        st.sampled_from(["new", "bits has high", "kind == two", "bits", "not new", "small"]),
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or", "&&", "||"]), inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)


@st.composite
def cases(draw: Any) -> tuple[dict[str, Any], list[Row]]:
    rules = st.fixed_dictionaries(
        {"set": st.dictionaries(st.sampled_from(list(STATE)), TERMS, min_size=1, max_size=3)},
        optional={"when": CONDITIONS},
    )
    data = {
        "state": "toy",
        "key": ["key"],
        "params": {"limit": draw(st.sampled_from([5, "3ms", -1]))},
        "fields": [{"name": n, "type": k, "zero": draw(st.sampled_from([0, 1, 200]))} for n, k in STATE.items()],
        "update": draw(st.lists(rules, min_size=1, max_size=3)),
        "derive": [{"name": "yes", "when": draw(CONDITIONS)}, {"name": "much", "value": draw(TERMS)}],
    }
    for one in data["derive"]:
        if one.get("when") in ("bits", "small"):
            one["when"] = f"{one['when']} != 0"
    return data, rows_of(draw)


@settings(max_examples=250, deadline=None)
@given(cases(), st.integers(1, 40))
def test_machine_equals_its_twin(case: tuple[dict[str, Any], list[Row]], cut: int) -> None:
    data, rows = case
    definition = state_definitions.StateDefinition(data)
    schema = SCHEMA.plus(definition.result_fields())
    machine = definition.machine(SCHEMA, schema)
    twin = Twin(definition, SCHEMA)
    names = [f.name for f in definition.result_fields()]
    expected = [twin.step(r["key"], r) for r in rows]
    found = []
    for part in (rows[:cut], rows[cut:]):
        if part:
            found += values(machine.apply(block(part)), schema, names)
    unsigned = {"mark": 32, "small": 8, "yes": 8}
    assert found == [{n: e[n] & (1 << unsigned[n]) - 1 if n in unsigned else e[n] for n in names} for e in expected]
    states = {}
    for out in machine.blocks():
        for r in values(out, definition.schema(SCHEMA), ["key", *STATE]):
            states[r.pop("key")] = r
    assert states == twin.states


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_merge_equals_its_twin(data: Any) -> None:
    text = {
        "state": "toy",
        "key": "key",
        "fields": [{"name": "mark", "type": "serial"}, {"name": "n", "type": "u32"}],
        "update": [{"set": {"n": "n + 1"}}, {"when": "new or seq > mark", "set": {"mark": "seq"}}],
        "merge": [{"set": {"n": "n + other.n"}}, {"when": "other.mark > mark", "set": {"mark": "other.mark"}}],
    }
    parts = [rows_of(data.draw), rows_of(data.draw)]
    definition = state_definitions.StateDefinition(text)
    twins, machines = [], []
    for part in parts:
        twins.append(Twin(definition, SCHEMA))
        machines.append(definition.machine(SCHEMA))
        for r in part:
            twins[-1].step(r["key"], r)
        machines[-1].update(block(part))
    for key, state in twins[1].states.items():
        twins[0].merge(key, state)
    for out in machines[1].blocks():
        machines[0].merge(out)
    found = {
        r["key"]: r
        for out in machines[0].blocks()
        for r in values(out, definition.schema(SCHEMA), ["key", "mark", "n"])
    }
    assert found == {k: {"key": k, **s} for k, s in twins[0].states.items()}
    again = definition.machine(SCHEMA)
    for out in machines[0].blocks():
        again.load(out)
    assert {
        k: r
        for out in again.blocks()
        for r in values(out, definition.schema(SCHEMA), ["key", "mark", "n"])
        for k in [r["key"]]
    } == found


def packets() -> list[tuple[Schema, Block]]:
    found = []
    for name in ("loss.pcap.gz", "reorder.pcap.gz"):
        with open_captures([str(ROOT / "examples" / "data" / name)]) as captures:
            found += [(captures.schema, b) for b in captures]
    return found


def test_maxseq_is_that_of_the_paper() -> None:
    """Figure 2 in plain Python: per flow the latest sequence number and its time."""
    schema = packets()[0][0]
    analysis = Analysis(schema, "maxseq:delay=10ms")
    out, at = analysis.schema, analysis.schema.index
    latest: dict[tuple[Any, ...], tuple[int, int]] = {}
    told, expected = [], []
    for _, part in packets():
        done = analysis.apply(part)
        for i in range(done.rows):
            row = {n: done.get(at(n), i) for n in out.layout.names}
            told.append((row["max_seq"], row["max_ts"], row["retransmission"]))
            if row["proto"] != 6 or not row["payload_len"]:
                expected.append((0, 0, 0))
                continue
            key = tuple(row[n] for n in ("src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port"))
            seq, ts = latest.get(key, (0, 0))
            ahead = (row["tcp_seq"] - seq) % 2**32
            late = key in latest and ahead >= 2**31 and row["ts"] > ts + 10_000_000
            expected.append((seq, ts, int(late)))
            if key not in latest or 0 < ahead < 2**31:
                latest[key] = row["tcp_seq"], row["ts"]
    assert told == expected
    assert sum(late for _, _, late in told) == 5
    assert analysis._core.count == len(latest)


def test_both_directions_of_a_conversation_share_a_state() -> None:
    text = """
state: both
key: conn
where: tcp
fields: [{name: n, type: u32}, {name: first, type: time}]
update:
- {when: new, set: {first: ts}}
- {set: {n: n + 1}}
"""
    definition = state_definitions.parse(text)
    schema = packets()[0][0]
    machine = definition.machine(schema)
    from confluo_tools.expr import compile

    program = compile("tcp", schema).program
    counts: dict[Any, int] = {}
    for _, part in packets():
        machine.update(part, program.select(part))
        for i in program.select(part).tolist():
            row = [part.get(schema.index(n), i) for n in ENDS]
            ends = frozenset([tuple(row[:3]), tuple(row[3:])])
            counts[ends] = counts.get(ends, 0) + 1
    shape = definition.schema(schema)
    found = {}
    for out in machine.blocks():
        for i in range(out.rows):
            row = [out.get(shape.index(n), i) for n in ENDS]
            found[frozenset([tuple(row[:3]), tuple(row[3:])])] = out.get(shape.index("n"), i)
            assert out.get(shape.index("ip_version"), i) in (4, 6)
    assert found == counts
    assert {4, 6} == {out.get(shape.index("ip_version"), i) for out in machine.blocks() for i in range(out.rows)}


def test_the_state_that_was_idle_longest_makes_room() -> None:
    definition = state_definitions.StateDefinition(
        {"state": "n", "key": "key", "fields": [{"name": "n", "type": "u32"}], "update": [{"set": {"n": "n + 1"}}]}
    )
    zero = dict.fromkeys(FORMATS, 0)
    machine = definition.machine(SCHEMA, flows=3)
    machine.update(block([zero | {"key": k} for k in (1, 2, 3, 1, 4, 2)]))
    schema = definition.schema(SCHEMA)
    found = {r["key"]: r["n"] for out in machine.blocks() for r in values(out, schema, ["key", "n"])}
    assert found == {1: 2, 4: 1, 2: 1}  # 4 replaced 2, which then replaced 3 with a new state
    assert machine.evicted == 2


def test_many_keys_grow_the_table() -> None:
    definition = state_definitions.StateDefinition(
        {
            "state": "n",
            "key": ["big", "key"],
            "fields": [{"name": "n", "type": "u32"}],
            "update": [{"set": {"n": "n + seq"}}],
        }
    )
    rows = [dict.fromkeys(FORMATS, 0) | {"big": i * 7919, "key": i % 3, "seq": i} for i in range(20000)]
    machine = definition.machine(SCHEMA)
    for _ in range(2):
        machine.update(block(rows), Picks.of(len(rows), range(0, len(rows), 2)))
    schema = definition.schema(SCHEMA)
    found = {(r["big"], r["key"]): r["n"] for out in machine.blocks() for r in values(out, schema, ["big", "key", "n"])}
    assert found == {(r["big"], r["key"]): 2 * r["seq"] for r in rows[::2]}


GOOD = {"state": "s", "key": "key", "fields": [{"name": "n", "type": "u32"}], "update": [{"set": {"n": "n + 1"}}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "No Name"}, "invalid state name"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"update": []}, "needs fields and update rules"),
        ({"fields": [{"name": "n", "type": "f64"}]}, "needs a type"),
        ({"params": {"new": 1}}, "is not a valid name"),
        ({"fields": [{"name": "n", "type": "u32"}, {"name": "n", "type": "u8"}]}, "defined twice"),
        ({"update": [{"set": {"m": "1"}}]}, "unknown state field"),
        ({"update": [{"set": {}}]}, "sets nothing"),
        ({"update": [{"when": "n >", "set": {"n": "1"}}]}, "a field or a number expected"),
        ({"update": [{"when": "n < 1 < 2", "set": {"n": "1"}}]}, "a < b and b < c"),
        ({"update": [{"set": {"n": "sec + 1"}}]}, "did you mean 'seq'?"),
        ({"update": [{"set": {"n": "n $ 1"}}]}, "'$' is not expected here"),
        ({"update": [{"set": {"n": "(new) + 1"}}]}, "a condition is not a number"),
        ({"update": [{"set": {"n": "(" * 60 + "1" + ")" * 60}}]}, "too many brackets"),
        ({"update": [{"set": {"n": "+".join("1" * 3000)}}]}, "longer than"),
        ({"update": [{"when": "bits has middle", "set": {"n": "1"}}]}, "no flag 'middle'"),
        ({"params": {"delay": "soon"}}, "not a whole number or a time"),
        ({"derive": [{"name": "d"}]}, "either when or value"),
        ({"derive": [{"name": "d", "when": "n + 1"}]}, "is not a condition"),
        ({"merge": [{"set": {"n": "seq"}}]}, "no field 'seq'"),
        ({"key": ["key", "key"]}, "twice"),
        ({"key": "keys"}, "no field 'keys'"),
    ],
)
def test_invalid_definitions_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfluoError, match=r".") as caught:
        state_definitions.StateDefinition(GOOD | change).machine(SCHEMA)
    assert message in str(caught.value)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        ["n", "key", "flow", "u32", "serial", "n + 1", "new", "seq > n", "(", "1 << 2", "other.n", "-", "a" * 90]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "zero", "when", "set", "value", "unit", "n"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*state_definitions._KEYS[""]]), ANYTHING, max_size=4))
def test_any_definition_is_used_or_rejected(change: dict[str, Any]) -> None:
    try:
        definition = state_definitions.StateDefinition(GOOD | change)
        machine = definition.machine(SCHEMA)
    except ConfluoError:
        return
    machine.apply(block([dict.fromkeys(FORMATS, 1)]))
    assert machine.count == 1


def test_the_good_one_can_be() -> None:
    assert state_definitions.StateDefinition(GOOD).machine(SCHEMA).count == 0


def test_every_definition_that_comes_with_the_tools_fits_packets() -> None:
    assert state_definitions.builtin_names() == ["maxseq"]
    for name in state_definitions.builtin_names():
        assert state_definitions.load(name).machine(builtin("packet")).count == 0


def test_yaml_that_would_run_something_is_refused() -> None:
    with pytest.raises(ConfluoError, match="is not a valid state definition"):
        state_definitions.parse("state: !!python/object/apply:os.system [true]\nfields: []\n")
