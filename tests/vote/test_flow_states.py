"""States of shares of path records: merged in any order they are that of all; damaged ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.vote.flow_order import settle
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.core.vote.flow_tally_state import dump, load, merge
from confluo_tools.vote import models, result_rows
from damaged_bytes import damaged
from vote_rows import PATH, blocks, failed, flow

SIX = [bytes(15) + bytes([i]) for i in range(4)]
NODES = st.integers(11, 16)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["flow", "flow", "flow", "six", "portless", "failed"]))
    if kind == "failed":
        return failed(draw(NODES), draw(NODES))
    src, dst = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    path = draw(st.lists(NODES | st.just(0), max_size=5) | st.lists(NODES, min_size=15, max_size=16))
    more: dict[str, Any] = {
        "ts": draw(st.integers(0, 5)),
        "notes": draw(st.sampled_from([0, 0, 0, 1, 2, 3, 16, 32, 64, 33, 128])),
        "hops": len(path) + (draw(st.integers(0, 2)) if len(path) == 16 else 0),
        "link_a": draw(st.sampled_from([0, 11, 12])),
        "src_tor": draw(st.sampled_from([0, 11])),
        "ip_version": 4,
    }
    if kind != "portless":
        more |= {"src_port": draw(st.integers(1, 2)), "dst_port": 80, "proto": 6}
    if kind == "six":
        addresses = {"src_ip6": draw(st.sampled_from(SIX)), "dst_ip6": draw(st.sampled_from(SIX))}
        more |= {"ip_version": 6, "path6": (draw(st.sampled_from(SIX)) * 16)} | addresses
    return flow(src, path, dst, draw(st.sampled_from([0, 0, 1, 2, 5])), draw(st.sampled_from([1, 10, 100])), **more)


OPTIONS = st.fixed_dictionaries(
    {
        "switches": st.booleans(),
        "healthy": st.integers(0, 2),
        "alias": st.sampled_from([None, {13: 12}]),
        "tor_of": st.sampled_from([None, {1: 11, 2: 12}]),
    }
)
TOTALS = ("records", "sent", "lost", "healthy_flows", "repeated", "partial", "loops", "cut", "pathless", "placeless")


def tallied(rows: list[dict[str, Any]], options: dict[str, Any], **more: Any) -> FlowTally:
    t = FlowTally(**options, **more)
    for block in blocks(rows) if rows else ():
        t.add(block, 0, block.rows)
    return t


def answer(t: FlowTally) -> list[Any]:
    """All that a tally says, and what three models conclude, to the last digit."""
    settle(t)
    parts = [(t.key(i), t.carried_by(i), t.tier(i)) for i in range(t.components)]
    out: list[Any] = [
        [getattr(t, name) for name in TOTALS],
        t.probes,
        t.healthy_sent,
        parts,
        t.truth(),
        sorted(t.addresses().items()),
    ]
    out += [t.flow(i) for i in range(t.flows)] + t.healthy_pairs()
    out += [sorted(t.partial_ends()), sorted(t.gaps())]
    for model in ("vote", "mle", "cover"):
        judgement = models.judge(t, model, models.ModelSettings(), None)
        out += [judgement.blamed, [judgement.verdict(i) for i in range(t.flows)], judgement.p_good, judgement.left]
        out += [bytes(b.buffer(i)) for b in links(judgement) for i in range(b.layout.n)]
    return out


def links(judgement: models.Judgement) -> list[Any]:
    return list(result_rows.links(judgement, result_rows.NodeNames(None, {}), (), 0, 0, 10))


@given(st.lists(records(), max_size=30), st.lists(st.integers(0, 3), min_size=30, max_size=30), OPTIONS, st.randoms())
@settings(max_examples=150)
def test_shares_in_any_order_are_the_whole(
    rows: list[dict[str, Any]], shares: list[int], options: dict[str, Any], rng: Any
) -> None:
    expected = answer(tallied(rows, options))
    merged, parts = FlowTally(**options), [[r for r, k in zip(rows, shares, strict=False) if k == i] for i in range(4)]
    rng.shuffle(parts)
    for part in parts:
        share, state = FlowTally(**options), dump(tallied(part, options))
        load(share, state)
        assert dump(share) == state
        merge(merged, share)
    assert str(answer(merged)) == str(expected)  # as text: not a number equals itself
    rng.shuffle(rows)
    assert str(answer(tallied(rows, options))) == str(expected)


def test_records_that_are_kept() -> None:
    rows = [
        flow(1, [11], 2, lost=i % 3, src_port=1 + i % 4, dst_port=80, proto=6, ts=i, ip_version=4) for i in range(40)
    ]
    merged, whole = FlowTally(keep=True), tallied(rows, {"keep": True})
    for part in (rows[:7], [], rows[7:30], rows[30:]):
        share = FlowTally(keep=True)
        load(share, dump(tallied(part, {"keep": True})), PATH.layout)
        merge(merged, share)
    kept = [
        [(b.get(PATH.index("ts"), i), b.get(PATH.index("lost"), i)) for b in t.kept for i in range(b.rows)]
        for t in (merged, whole)
    ]
    assert kept[0] == kept[1] == [(r["ts"], r["lost"]) for r in rows if r["lost"]]
    assert [merged.flow(merged.flow_of(i)) for i in range(len(kept[0]))] == [
        whole.flow(whole.flow_of(i)) for i in range(len(kept[0]))
    ]
    with pytest.raises(ValueError, match="layout"):
        load(FlowTally(keep=True), dump(whole))


STATES = [
    dump(tallied(rows, {"keep": keep}))
    for keep in (False, True)
    for rows in (
        [],
        [flow(1, [11, 12], 2, 1), failed(11, 12)],
        [
            flow(i % 3, [11, 12 + i % 3], 2, i % 2, src_port=i % 4, ip_version=[4, 6][i % 2], src_ip6=SIX[i % 4], ts=i)
            for i in range(30)
        ]
        + [flow(1, [], 2, 0, src_tor=11, dst_tor=12)],
    )
]


@given(st.sampled_from(range(len(STATES))), st.data())
@settings(max_examples=400)
def test_a_damaged_state_is_refused_or_another_state(number: int, data: st.DataObject) -> None:
    keep = number >= len(STATES) // 2
    t = FlowTally(keep=keep)
    try:
        load(t, damaged(STATES[number], data), PATH.layout if keep else None)
    except (ValueError, MemoryError):
        return
    # What it says then can be sent on, merged and judged.
    again = FlowTally(keep=keep)
    load(again, dump(t), PATH.layout if keep else None)
    assert dump(again) == dump(t)
    merge(again, t)
    answer(again)


def test_a_state_of_another_question_is_refused() -> None:
    state = dump(tallied([flow(1, [11], 2, 1)], {}))
    for more in ({"switches": True}, {"healthy": 0}, {"alias": {1: 2}}, {"tor_of": {1: 2}}):
        other = FlowTally(**more)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="another question"):
            load(other, state)
        with pytest.raises(ValueError, match="different questions"):
            merge(other, FlowTally())
    for data in (b"", state[1:], b"CFPATHS\x02" + state[8:]):
        with pytest.raises(ValueError, match="not the state"):
            load(FlowTally(), data)
    for size in range(9, len(state)):
        with pytest.raises(ValueError, match="share of paths"):
            load(FlowTally(), state[:size])
    with pytest.raises(ValueError, match="not empty"):
        load(tallied([flow(1, [11], 2, 1)], {}), state)
