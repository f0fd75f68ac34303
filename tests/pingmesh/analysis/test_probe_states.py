"""States of shares of probes: merged in order they are the state of all rows; damaged ones are refused."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.pingmesh.probe_tally import COUNTERS, ProbeTally
from confluo_tools.core.pingmesh.probe_tally_state import dump, load, merge
from confluo_tools.pingmesh.analysis.probe_tally import RTT, SEEN
from damaged_bytes import damaged
from twin_probe_tally import SCHEMA, block, probe

ROW = st.fixed_dictionaries(
    {
        "ts": st.integers(-40, 40) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
        "kind": st.sampled_from([0, 1, 1, 1, 2, 5, 15, 16, 16, 17, 255]),
        "outcome": st.sampled_from([0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
        "rtt": st.integers(-3, 3) | st.integers(1, 10_000) | st.integers(1, 1 << 62),
        "elapsed": st.sampled_from([0, 0, 1, 5, 990, 1000, 1300, 2999, 3000, 3500, 1 << 62]),
        "retries": st.sampled_from([0, 0, 0, 1, 2, 255]),
        "hint": st.integers(0, 3),
        "notes": st.sampled_from([0, 0, 4, 5, 3]),
        "overflows": st.integers(0, 3),
        "src": st.sampled_from(["", "a", "b" * 32]),
        "dst": st.sampled_from(["", "a", "b" * 32]),
        "src_ip": st.integers(0, 2),
        "dst_ip": st.integers(0, 2),
        "src_pod": st.sampled_from(["p1", "p2"]),
        "dst_port": st.integers(0, 2),
    }
)
BY = st.lists(st.sampled_from(["src", "src_pod", "dst_port", "kind", "dst_pod"]), unique=True, max_size=4)
SIGNATURES: list[list[tuple[int, int, int]]] = [[], [(990, 1300, 1), (2999, 3001, 2), (900, 1 << 63, 0)]]


def tally(by: list[str], window: int = 0, **more: Any) -> ProbeTally:
    columns = [[SCHEMA.index(c.name) for c in SCHEMA[name].columns] for name in by]
    return ProbeTally(SCHEMA.layout, columns, window, **more)


def counted(t: ProbeTally, rows: list[dict[str, Any]]) -> ProbeTally:
    if rows:
        t.update(block(rows))
    return t


def answer(t: ProbeTally) -> list[Any]:
    """All that a tally says, with hosts numbered in the order of their appearance here.

    The tally's own numbers depend on its blocks: it numbers the targets of drops when a block ends.
    """
    numbers: dict[int, int] = {}

    def renumber(target: int) -> int:
        return numbers.setdefault(target, len(numbers))

    spans = [(*span, [renumber(target) for target in targets]) for *span, targets in t.spans()]
    out: list[Any] = [t.probes, t.unknown, t.drops_not_kept, t.newest, t.oldest, spans, t.windows()]
    for start in t.windows():
        pending = t.pending(start, range(64))
        drops = [(ts, end, retries, renumber(target), i) for ts, end, retries, target, i in pending]
        out.append((t.keys(start), drops, t.counts(start, tuple(RTT.values()), tuple(SEEN.values()))))
    return out


@given(
    st.lists(ROW, max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    BY,
    st.sampled_from([0, 1, 7, 1 << 62]),
    st.sampled_from([(), (100,), (3, 2000, 0)]),
    st.sampled_from(SIGNATURES),
    st.sampled_from([1 << 20, 2]),
)
def test_shares_in_their_order_are_the_whole(
    rows: list[dict[str, Any]],
    edges: list[int],
    by: list[str],
    window: int,
    limits: tuple[int, ...],
    signature: Any,
    drops: int,
) -> None:
    rows = [r for r in rows if r["ts"] // (window or 1) * window >= -(1 << 63)]

    def make() -> ProbeTally:
        return tally(by, window, limits=limits, signature=signature, max_drops=drops)

    whole, merged = counted(make(), rows), make()
    cuts = [0, *sorted(min(edge, len(rows)) for edge in edges), len(rows)]
    for first, after in pairwise(cuts):
        share, state = make(), dump(counted(make(), rows[first:after]))
        load(share, state)
        assert dump(share) == state
        merge(merged, share)
    # If a share did not keep all its drops, hosts have other numbers; no output depends on these.
    assert answer(merged) == answer(whole) or drops == 2
    assert answer(merged)[:5] == answer(whole)[:5]
    assert [merged.counts(w) for w in merged.windows()] == [whole.counts(w) for w in whole.windows()]


@pytest.mark.parametrize("sizes", [(300, 212), (300, 213), (1, 511, 1), (700, 1, 600), (512, 512)])
def test_many_values_are_counted_as_in_one_share(sizes: tuple[int, ...]) -> None:
    rng = random.Random(3)
    rows = [
        probe(rtt=int(rng.lognormvariate(12, 2)) + 1, elapsed=rng.choice([0, 7, 1 << 40])) for _ in range(sum(sizes))
    ]
    whole, merged, at = counted(tally(["src_pod"]), rows), tally(["src_pod"]), 0
    for size in sizes:
        share = tally(["src_pod"])
        load(share, dump(counted(tally(["src_pod"]), rows[at : at + size])))
        merge(merged, share)
        at += size
    assert answer(merged) == answer(whole)


BY_ALL = ["src", "src_pod"]
STATES = [
    dump(counted(tally(BY_ALL, 7), rows))
    for rows in (
        [],
        [probe()],
        [probe(ts=t, retries=t % 3, rtt=t % 3 and 900, dst_ip=t % 4, src="ab"[t % 2]) for t in range(40)]
        + [probe(kind=16, overflows=3, src_ip=2, src="b", elapsed=10)],
        [probe(rtt=900 + i) for i in range(600)],
    )
]


@given(st.sampled_from(STATES), st.data())
@settings(max_examples=400)
def test_a_damaged_state_is_refused_or_another_state(state: bytes, data: st.DataObject) -> None:
    t = tally(BY_ALL, 7, max_bytes=1 << 24)
    try:
        load(t, damaged(state, data))
    except (ValueError, MemoryError):
        return
    # What it says then can be merged and read, and sent on.
    whole = counted(tally(BY_ALL, 7), [probe(src="c")])
    merge(whole, t)
    for start in whole.windows():
        whole.keys(start)
        names = dict.fromkeys(COUNTERS)
        assert len(whole.counts(start, tuple(RTT.values()))[0]) == whole.groups(start) * (len(names) + 2) * 8
        whole.mark_overflow(start, [number for *_, number in whole.pending(start, range(1000))])
    again = tally(BY_ALL, 7)
    load(again, dump(t))
    assert dump(again) == dump(t)


def test_a_state_of_another_question_is_refused() -> None:
    state = dump(counted(tally(["src"], 7), [probe()]))
    others = [tally(["dst"], 7), tally(["src"], 8), tally(["src"], 7, limits=(5,)), tally(["src"], 7, max_drops=3)]
    others.append(tally(["src"], 7, classes={SCHEMA.index("src"): {b"a": 1}}))
    for other in others:
        with pytest.raises(ValueError, match="another question"):
            load(other, state)
        with pytest.raises(ValueError, match="different questions"):
            merge(other, tally(["src"], 7))
    with pytest.raises(ValueError, match="not empty"):
        load(counted(tally(["src"], 7), [probe()]), state)
    for data in (b"", b"CFPROBE", state[1:], b"CFPROBE\x02" + state[8:]):
        with pytest.raises(ValueError, match="not the state"):
            load(tally(["src"], 7), data)
    for size in range(9, len(state)):
        with pytest.raises(ValueError, match="share of probes"):
            load(tally(["src"], 7), state[:size])


def test_a_state_cannot_take_more_memory_than_allowed() -> None:
    rows = [probe(src=f"s{i % 50}", rtt=1 if i // 50 % 2 else 1 << 60) for i in range(50 * 600)]
    state = dump(counted(tally(["src"]), rows))
    assert len(state) < 20_000
    with pytest.raises(MemoryError):
        load(tally(["src"], max_bytes=1 << 20), state)
