"""The groups `conn` and `host`: brute force, and merges of any partition."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.query.rollup_coarsening import absorb
from confluo_tools.core.query.rollup_codec import dump, load
from confluo_tools.errors import UsageError
from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation, aggregate
from confluo_tools.schema import Schema, builtin
from twin_rollup import Row, block_of, read, sortable

SCHEMA = builtin("packet")
SECOND = 10**9
V4 = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.9"]
V6 = ["::1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]
PORTS = st.sampled_from([0, 80, 443, 40000])


def packets(addresses: list[str] | list[None], version: int) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {
            "ts": st.integers(0, 3).map(lambda s: s * SECOND // 2),
            "ip_version": st.just(version),
            "src_ip": st.sampled_from(addresses),
            "dst_ip": st.sampled_from(addresses),
            "src_port": PORTS,
            "dst_port": PORTS,
            "proto": st.sampled_from([6, 17]),
            "len": st.integers(60, 1500),
        }
    )


ROWS = st.lists(st.one_of(packets(V4, 4), packets(V6, 6), packets([None], 0)), max_size=24)
AGGS = "count, sum(len), first(len), last(len), distinct(src_port), count(src_port > dst_port) as up, max(src_ip)"


def conn(row: Row) -> list[tuple[Any, ...]]:
    ends = [(row[f"{e}_ip"], row[f"{e}_port"]) for e in ("src", "dst")]
    ends.sort(key=lambda e: (-e[1], sortable(e[0]) if e[0] else 0))
    return [(ends[0][0], ends[1][0], ends[0][1], ends[1][1], row["proto"])]


def host(row: Row) -> list[tuple[Any, ...]]:
    return [(a,) for a in {row["src_ip"], row["dst_ip"]}]


def nets(row: Row) -> list[tuple[Any, ...]]:
    found = set()
    for a in (row["src_ip"], row["dst_ip"]):
        bits = 0 if a is None else 24 if ip_address(a).version == 4 else 48
        found.add(None if a is None else str(ip_network((a, bits), strict=False).network_address))
    return [(a,) for a in found]


def second(row: Row) -> tuple[Any, ...]:
    return (row["ts"] // SECOND * SECOND,)


KEYS = {
    "conn": conn,
    "host": host,
    "host/24/48": nets,
    "conn, 1s": lambda r: [(*k, *second(r)) for k in conn(r)],
    "1s, host, proto": lambda r: [(*second(r), *k, r["proto"]) for k in host(r)],
    "conn, host": lambda r: [(*conn(r)[0], *k) for k in host(r)],
}


def groups(rows: Sequence[Row], by: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What `AGGS` are for each group, of rows in order."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda r: r["ts"]):
        for key in KEYS[by](row):
            found.setdefault(key, []).append(row)
    return {key: answer(rows) for key, rows in found.items()}


def answer(rows: list[Row]) -> tuple[Any, ...]:
    sizes = [r["len"] for r in rows]
    up = sum(r["src_port"] > r["dst_port"] for r in rows)
    top = max((r["src_ip"] for r in rows if r["src_ip"]), key=sortable, default=None)
    return len(rows), sum(sizes), sizes[0], sizes[-1], len({r["src_port"] for r in rows}), up, top


def as_groups(result: Schema, blocks: Any, keys: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    rows = [tuple(r.values()) for r in read(result, blocks)]
    assert len({r[:keys] for r in rows}) == len(rows)
    return {r[:keys]: r[keys:] for r in rows}


@pytest.mark.parametrize("by", KEYS)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, data=st.data())
def test_every_partition(by: str, rows: list[Row], data: st.DataObject) -> None:
    question = Aggregation(SCHEMA, parse_aggregates(AGGS, SCHEMA), parse_by(by, SCHEMA))
    parts = [question.rollup() for _ in range(3)]
    chosen = []
    for start in range(0, len(rows), 7):
        part = rows[start : start + 7]
        picked = [i for i in range(len(part)) if data.draw(st.integers(0, 3))]
        every = len(picked) == len(part) and data.draw(st.booleans())
        block = block_of(part, SCHEMA, lane=0, base=start)
        parts[data.draw(st.integers(0, 2))].update(block, None if every else Picks.of(len(part), picked))
        chosen += [part[i] for i in picked]
    whole = question.rollup()
    for one in parts:
        copy = question.rollup()
        load(copy, dump(one))
        whole.merge(copy)
    assert as_groups(question.result, question.answer(whole), len(question.keys)) == groups(chosen, by)


def test_many_rows() -> None:
    """More than a chunk, with zone maps or without, in one group and in many."""
    rows: list[Row] = [
        {"ip_version": 4, "src_ip": V4[i % 3], "dst_ip": V4[3], "src_port": i % 5, "dst_port": 2, "proto": 6, "len": 9}
        for i in range(5000)
    ]
    for by, count in (("conn", 15), ("host", 4)):
        schema, blocks = aggregate(
            [(block_of(rows, SCHEMA), None)], SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA)
        )
        found = read(schema, blocks)
        assert len(found) == count
        assert sum(r["count"] for r in found) == (5000 if by == "conn" else 10000)


def test_groups_of_hosts_do_not_become_coarser() -> None:
    """A row is in two of them: what merges them would count it twice."""

    def question(by: str) -> Any:
        return Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA)).rollup()

    for fine, coarse in (
        ("host", "host/24"),
        ("host, proto", "proto"),
        ("src_ip, dst_ip", "host"),
        ("flow", "conn"),
        ("conn", "src_ip"),
    ):
        with pytest.raises(ValueError, match=r"does not follow from|rows twice"):
            absorb(question(coarse), question(fine))
    to, fine = question("host"), question("host, proto")
    fine.update(block_of([{"ip_version": 4, "src_ip": V4[0], "dst_ip": V4[1], "proto": 6}], SCHEMA))
    absorb(to, fine)
    assert (len(to), to.rows) == (2, 1)
    to = question("conn")
    absorb(to, question("conn, 1s"))


def test_pairs_of_other_columns_are_refused() -> None:
    from confluo_tools.core.query.rollup import Rollup

    layout = SCHEMA.layout
    ip, port, proto = (SCHEMA.index(n) for n in ("src_ip", "src_port", "proto"))
    for key in (
        ("conn", ("column", port), ((port, proto),)),
        ("conn", ("column", proto), ((port, port),)),
        ("host", ("ip", ip, ip + 1, -1, 32, 128, False), ((ip, ip),)),
        ("host", ("column", port), ()),
        ("host", ("host", ("column", port), ((port, port),)), ((port, port),)),
        ("conn", ("column", port), ((port, layout.n),)),
    ):
        with pytest.raises(ValueError, match=r"column|pairs|other types"):
            Rollup(layout, (key,), (("count",),))


@pytest.mark.parametrize(
    ("by", "kind", "what"),
    [
        ("conn as c", "packet", "'conn' is five columns, which keep their names"),
        ("conn, src_ip", "packet", "two columns would be called 'src_ip'"),
        ("host/33", "packet", None),
        ("host/129", "packet", "'129' is not a prefix length; 0 to 128"),
        ("host, host", "packet", "two columns would be called 'host'"),
        ("conn", "histogram", "'conn' needs the fields"),
        ("host", "vote", "'host' needs the fields"),
    ],
)
def test_texts(by: str, kind: str, what: str | None) -> None:
    if what is None:
        parse_by(by, builtin(kind))
        return
    with pytest.raises(UsageError, match=what):
        parse_by(by, builtin(kind))


def test_a_field_comes_first() -> None:
    [key] = parse_by("host", builtin("alert"))
    assert (key.kind, key.field) == ("field", "host")


def test_empty_and_picked_out_blocks() -> None:
    question = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by("host", SCHEMA))
    rollup = question.rollup()
    block: Block = block_of([{"ip_version": 4, "src_ip": V4[0], "dst_ip": V4[0]}], SCHEMA)
    rollup.update(block, Picks.of(1, []))
    assert len(rollup) == 0
    rollup.update(block)
    assert as_groups(question.result, question.answer(rollup), 1) == {(V4[0],): (1,)}
