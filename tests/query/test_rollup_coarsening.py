"""Roll-ups merged into coarser keys give the same result as the rows."""

from __future__ import annotations

from typing import Any

import pytest
from test_rollup_codec import SCHEMA, TEXT, question, rows

from confluo_tools.core.query.rollup import Rollup
from confluo_tools.core.query.rollup_coarsening import absorb
from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from twin_rollup import block_of, read

COARSER = [
    ("1ms, u8", "u8"),
    ("1ms, u8", "1s"),
    ("1ms, u16", "10ms, u16"),
    ("1ms, ip", "ip/24"),
    ("1ms, ip", "ip"),
    ("ip, u16, 1ms", "1s, ip/8"),
    ("long, path, u8", "path"),
    ("long, path, u8", "long"),
    ("bare, 1ms", "bare/16"),
    ("ip/24, bare/24, u16", "bare/8, ip/20"),
    ("i64, u64, i8", "i8"),
    ("1s", "2s"),
    ("1ms", "3ms"),
    ("i64, u64", "i64, u64"),
    ("u32, u8", "u32"),
    ("long, 1ms", "1s, long"),
]
NOT_KEYED = "count, sum(u32), avg(i8), stddev(i64), min(ip), max(long), min(f64), first(ip), last(path), rate"


def part(by: str, text: str = TEXT) -> Rollup:
    """An empty roll-up that tracks its first and last time, for any keys."""
    q = asked(by, text)
    made = q.rollup()
    return Rollup(made.layout, made.keys, made.aggs, made.time, True)


def asked(by: str, text: str = TEXT) -> Aggregation:
    return Aggregation(SCHEMA, parse_aggregates(text, SCHEMA), parse_by(by, SCHEMA) if by else [])


def cells(by: str, rollup: Rollup, text: str = TEXT) -> list[Any]:
    q = asked(by, text)
    return [value for row in read(q.result, q.answer(rollup)) for value in row.values()]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    """Rounded: sums of floats are added in another order."""
    close = [
        a == pytest.approx(b, nan_ok=True, rel=1e-9) if isinstance(b, float) else a == b
        for a, b in zip(ours, theirs, strict=True)
    ]
    return all(close)


@pytest.mark.parametrize(("fine", "coarse"), COARSER)
def test_coarser_keys(fine: str, coarse: str) -> None:
    direct, merged = question(coarse).rollup(), question(coarse).rollup()
    for seed, count in ((1, 900), (2, 1), (3, 2500)):
        state = part(fine)
        block = block_of(rows(seed, count), lane=seed, base=0)
        state.update(block)
        direct.update(block)
        absorb(merged, state)
    assert (merged.rows, len(merged)) == (direct.rows, len(direct))
    assert len(merged) > 1
    assert same(cells(coarse, merged), cells(coarse, direct))


def test_without_keys() -> None:
    direct, merged, state = asked("", NOT_KEYED).rollup(), asked("", NOT_KEYED).rollup(), part("1ms, u16", NOT_KEYED)
    block = block_of(rows(1, 700), lane=0, base=0)
    direct.update(block)
    state.update(block)
    absorb(merged, state)
    assert merged.span == direct.span
    assert same(cells("", merged, NOT_KEYED), cells("", direct, NOT_KEYED))


@pytest.mark.parametrize(
    ("fine", "coarse"),
    [("u8", "u16"), ("10ms", "1ms"), ("2s", "3s"), ("ip/24", "ip"), ("ip/8", "ip/16"), ("u8", ""), ("", "u8")],
)
def test_keys_that_do_not_follow(fine: str, coarse: str) -> None:
    with pytest.raises(ValueError, match=r"follow|add up"):
        absorb(question(coarse).rollup(), question(fine).rollup())
    with pytest.raises(ValueError, match="different aggregates"):
        absorb(asked("u8", "count").rollup(), asked("u8", "sum(u8)").rollup())
