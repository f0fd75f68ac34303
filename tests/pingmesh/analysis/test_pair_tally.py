"""Probes by pairs: what one pass over the records finds, against plain Python over the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.errors import SchemaError
from confluo_tools.formats.block_builder import block_of
from confluo_tools.formats.reader import Reader
from confluo_tools.pingmesh.analysis import drop_tally, failure_list, pair_tally
from confluo_tools.schema import builtin, fold6

PROBE = builtin("probe")
SERVERS = [
    ("a1", "10.0.0.1", "ra", "s1"),
    ("a2", "10.0.0.2", "ra", "s1"),
    ("b1", "10.0.1.1", "rb", "s1"),
    ("c1", "fd00::1", "rc", "s2"),
    ("d1", "fd00::2", "rd", "s1"),
    ("", "10.9.9.9", "", ""),
]
FOUR, SIX = (0, 1, 2, 5), (3, 4)
ENDS = [(a, b) for these in (FOUR, SIX) for a in these for b in these if a != b]
FIELDS = ("ts", "kind", "outcome", "notes", "src_port", "retries", "hint", "elapsed")
KINDS = {1: "tcp", 2: "echo", 3: "http", 4: "https", 5: "udp", 6: "icmp", 16: "host", 17: "event", 18: "fault"}
OK, TIMEOUT, REFUSED, UNREACHABLE, RESET, LOCAL, GARBLED = range(1, 8)
OVERFLOW = 4
SECOND = 10**9

Row = dict[str, Any]


def _with_ends(row: Row) -> Row:
    return {**row, "src": row["ends"][0], "dst": row["ends"][1]}


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "ts": st.integers(0, 39).map(lambda n: n * SECOND // 4),
            "kind": st.sampled_from(sorted(KINDS)),
            "outcome": st.integers(1, 7),
            "notes": st.sampled_from([0, 1, OVERFLOW, OVERFLOW | 1]),
            "ends": st.sampled_from(ENDS),
            "src_port": st.integers(0, 65535),
            "retries": st.integers(0, 2),
            "hint": st.integers(0, 2),
            "elapsed": st.integers(0, SECOND),
        }
    ).map(_with_ends),
    max_size=40,
)


class Given(Reader):
    """Rows in blocks of seven."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("given")
        self.schema, self._rows = PROBE, rows

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self._rows), 7):
            rows = self._rows[start : start + 7]
            columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in FIELDS}
            columns["proto"], columns["dst_port"] = [6] * len(rows), [8765] * len(rows)
            columns["ip_version"] = [ip_address(SERVERS[row["src"]][1]).version for row in rows]
            for end in ("src", "dst"):
                names, addresses, pods, podsets = zip(*[SERVERS[row[end]] for row in rows], strict=True)
                columns |= {end: list(names), f"{end}_pod": list(pods), f"{end}_podset": list(podsets)}
                parsed = [ip_address(a) for a in addresses]
                columns[f"{end}_ip"] = [int(a) if a.version == 4 else fold6(a.packed) for a in parsed]
                columns[f"{end}_ip6"] = [b"" if a.version == 4 else a.packed for a in parsed]
            yield block_of(PROBE, columns, len(rows))


def probes(rows: list[Row]) -> list[tuple[Row, str, str]]:
    """Of TCP, and between whom."""
    return [(row, SERVERS[row["src"]][1], SERVERS[row["dst"]][1]) for row in rows if row["kind"] < 5]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.sampled_from([0, 2 * SECOND, 5 * SECOND]))
def test_windows_of_failures(rows: list[Row], window: int) -> None:
    piece = SECOND
    pairs, run = pair_tally.blackhole_windows(Given(rows), "", window, piece)
    found, servers = pairs.windows, pairs.servers
    answered: dict[int, dict[tuple[str, str], list[int]]] = {}
    failed: dict[int, dict[tuple[str, str], list[tuple[int, int]]]] = {}
    ends: dict[int, dict[tuple[str, int], list[int]]] = {}
    crossing: dict[int, dict[tuple[str, ...], list[int]]] = {}
    retried: dict[int, Counter[tuple[str, str]]] = {}
    tried: dict[int, Counter[tuple[str, str]]] = {}
    for row, src, dst in probes(rows):
        good = row["outcome"] in (OK, REFUSED, RESET, GARBLED)
        bad = row["outcome"] in (TIMEOUT, UNREACHABLE) and not row["notes"] & OVERFLOW
        if not good and not bad:
            continue
        start = row["ts"] // window * window if window else 0
        tried.setdefault(start, Counter())[src, dst] += 1
        if good:
            answered.setdefault(start, {}).setdefault((src, dst), []).append(row["ts"])
            retried.setdefault(start, Counter())[src, dst] += row["retries"] > 0
        else:
            failed.setdefault(start, {}).setdefault((src, dst), []).append((row["ts"], row["src_port"]))
        for end, other in ((src, dst), (dst, src)):
            when = row["ts"] // piece * piece
            ends.setdefault(start, {}).setdefault((end, when), [0, 0])[bad] += 1
            x, y = (next((pod, podset, "") for _, a, pod, podset in SERVERS if a == e) for e in (end, other))
            for place, its in ((x, y), (x[1:], y[1:])):
                if place != its:
                    crossing.setdefault(start, {}).setdefault(place, [0, 0])[bad] += 1
    keys = sorted(tried)
    assert [w.start for w in found] == (
        keys
        if window
        else [
            min(
                row["ts"]
                for row, _, _ in probes(rows)
                if row["outcome"] in (OK, REFUSED, RESET, GARBLED)
                or (row["outcome"] in (TIMEOUT, UNREACHABLE) and not row["notes"] & OVERFLOW)
            )
        ]
        if keys
        else []
    )
    for key, got in zip(keys, found, strict=True):
        assert {pair: sorted(some.ports()) for pair, some in got.failures.items()} == {
            pair: sorted(its) for pair, its in failed.get(key, {}).items()
        }
        assert got.answered == {
            pair: (len(its), min(its), max(its))
            for pair, its in answered.get(key, {}).items()
            if pair in failed.get(key, {})
        }
        for pair in failed.get(key, {}):
            assert got.retried.get(pair, 0) == retried.get(key, Counter())[pair]
        assert got.ends == ends[key]
        assert got.crossing == crossing.get(key, {})
        assert got.tried == Counter(tried[key].values())
    assert run.rows == len(probes(rows))
    assert run.others == len(rows) - run.rows
    seen = {a for row, src, dst in probes(rows) if row["outcome"] != LOCAL for a in (src, dst)}
    assert servers == {
        address: pair_tally.LocatedServer(name or address, pod, podset, "")
        for name, address, pod, podset in SERVERS
        if address in seen
    }


@settings(deadline=None, max_examples=60)
@given(ROWS, st.sampled_from([0, 3 * SECOND]))
def test_windows_of_drops(rows: list[Row], window: int) -> None:
    rows = [row for row in rows if row["kind"] != 16]  # what hosts tell is held against them elsewhere
    found = drop_tally.drop_windows(Given(rows), "", window)[0].windows
    cells: dict[int, dict[Any, list[int]]] = {}
    dropped: dict[int, dict[tuple[str, str], list[pair_tally.Failure]]] = {}
    for row, src, dst in probes(rows):
        if row["outcome"] == LOCAL:
            continue
        start = row["ts"] // window * window if window else 0
        ends = tuple((pod, podset, "") for e in (src, dst) for _, a, pod, podset in SERVERS if a == e)
        its = cells.setdefault(start, {}).setdefault(ends, [0, 0, 0])
        its[0 if row["outcome"] == OK else 2] += 1
        if row["outcome"] == OK and row["retries"] and not row["notes"] & OVERFLOW:
            its[1] += 1
            dropped.setdefault(start, {}).setdefault((src, dst), []).append(
                failure_list.Failure(
                    row["ts"], src, dst, row["src_port"], 8765, row["retries"], row["hint"], row["elapsed"]
                )
            )
    assert [w.cells for w in found] == [cells[start] for start in sorted(cells)]
    assert [{pair: sorted(some) for pair, some in w.dropped.items()} for w in found] == [
        {pair: sorted(its) for pair, its in dropped.get(start, {}).items()} for start in sorted(cells)
    ]


def test_what_hosts_tell_is_not_the_networks() -> None:
    """A host that had no room for two of three, and did not say which: none of the three is the network's."""
    probe = {
        "kind": 1,
        "outcome": OK,
        "notes": 0,
        "src": 0,
        "dst": 2,
        "src_port": 1,
        "retries": 1,
        "hint": 1,
        "elapsed": SECOND,
    }
    told = probe | {"kind": 16, "src": 2, "dst": 2, "elapsed": 10 * SECOND, "retries": 0}
    rows = [probe | {"ts": n * SECOND} for n in (1, 2, 3, 14)] + [told | {"ts": 10 * SECOND}]

    class HostReports(Given):
        def blocks(self) -> Iterator[Block]:
            for block in super().blocks():
                at = PROBE.layout.index("overflows")
                columns = [bytes(block.buffer(i)) for i in range(PROBE.layout.n)]
                kind = PROBE.layout.index("kind")
                columns[at] = b"".join(bytes([2 * (block.get(kind, r) == 16), 0, 0, 0]) for r in range(block.rows))
                yield Block.wrap(PROBE.layout, block.rows, columns)

    found, run = drop_tally.drop_windows(HostReports(rows), "", 0)
    assert [f.ts for its in found.windows[0].dropped.values() for f in its] == [14 * SECOND]
    assert run.overflows == 2


def test_records_without_what_is_needed() -> None:
    reader = Given([])
    reader.schema = PROBE.project([name for name in PROBE.layout.names if name not in ("hint", "src_ip6", "dst_ip6")])
    with pytest.raises(SchemaError, match="has no field 'hint'"):
        pair_tally.PairPass(reader)
