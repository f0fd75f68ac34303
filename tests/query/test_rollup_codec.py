"""Encoded roll-ups: through another process and back, and with damaged input."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.query.rollup import Rollup
from confluo_tools.core.query.rollup_codec import dump, load
from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Field, Schema
from twin_rollup import SCHEMA, block_of, read

TEXT = (
    "count, sum(u32), avg(i8), stddev(i64), stddev(f64), sum(f32), min(ip), max(long), min(f64), max(drops),"
    "first(ip), last(path), distinct(u16), distinct(u32), distinct(u64), distinct(bare), distinct(long),"
    "distinct~(u16) as h1, distinct~(ip) as h2, distinct~(long) as h3, p50(u64), p99(f64), p90(drops), rate"
)
KEYS = ["", "u8", "u16", "ip", "long, path", "bare/24, 1s, v4", "u64, i64"]


def question(by: str) -> Aggregation:
    return Aggregation(SCHEMA, parse_aggregates(TEXT, SCHEMA), parse_by(by, SCHEMA) if by else [])


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    addresses = [None, "10.0.0.1", "10.0.1.9", "0.0.0.0", "2001:db8::1", "fe80::7", "::1"]

    def pick(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    return [
        {
            "ts": int(rng.integers(-(10**10), 10**10)),
            "u8": int(rng.integers(3)),
            "u16": int(rng.integers(1000)),
            "u32": int(rng.integers(1 << 32)),
            "u64": int(rng.integers(5)),
            "i64": int(rng.integers(-9, 9)),
            "i8": int(rng.integers(-128, 128)),
            "f64": float(rng.normal()),
            "f32": float(rng.integers(100)),
            "ip": pick(addresses),
            "bare": pick([a for a in addresses if a != "0.0.0.0"]),
            "v4": int(rng.integers(4)),
            "long": bytes([int(rng.integers(65, 70))]) * 20,
            "path": (int(rng.integers(3)), 1, 0),
            "drops": (int(rng.integers(-3, 3)), 7),
        }
        for _ in range(count)
    ]


def filled(by: str, seed: int = 1, count: int = 600) -> Rollup:
    rollup = question(by).rollup()
    rollup.update(block_of(rows(seed, count), lane=seed, base=0))
    return rollup


def answer(by: str, rollup: Rollup) -> str:
    q = question(by)
    return repr(read(q.result, q.answer(rollup)))


@pytest.mark.parametrize("by", KEYS)
def test_there_and_back(by: str) -> None:
    one, other = filled(by, 1), filled(by, 2, 3000)
    copies = []
    for rollup in (one, other):
        copy = question(by).rollup()
        load(copy, dump(rollup))
        assert answer(by, copy) == answer(by, rollup)
        assert (copy.rows, len(copy), copy.span) == (rollup.rows, len(rollup), rollup.span)
        again = question(by).rollup()
        load(again, bytearray(dump(copy)))
        assert answer(by, again) == answer(by, rollup)
        copies.append(copy)
    one.merge(other)
    copies[0].merge(copies[1])
    copies[0].update(block_of(rows(3, 50), lane=3))
    one.update(block_of(rows(3, 50), lane=3))
    assert answer(by, copies[0]) == answer(by, one)


@pytest.mark.parametrize("by", KEYS)
def test_nothing_there_and_back(by: str) -> None:
    empty, copy = question(by).rollup(), question(by).rollup()
    load(copy, dump(empty))
    assert answer(by, copy) == answer(by, empty)


def test_sketches_in_registers() -> None:
    schema = Schema("t", [Field("g", "u32"), Field("v", "u64")])
    for by in ("", "g"):
        q = Aggregation(schema, parse_aggregates("distinct~(v), p50(v)", schema), parse_by(by, schema) if by else [])
        whole, copy = q.rollup(), q.rollup()
        values = np.arange(60_000, dtype="<u8") * 977
        groups = (np.arange(60_000) % 3).astype("<u4")
        whole.update(Block.wrap(schema.layout, 60_000, [groups, values]))
        load(copy, dump(whole))
        assert read(q.result, q.answer(copy)) == read(q.result, q.answer(whole))
        # 600 distinct values per group need more than 4 KiB of hashes.
        assert len(dump(copy)) < 5 * 16384 + 60_000 * 20


def test_another_process_merges_to_the_same(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    code = f"""
import sys
sys.path[:0] = {[str(here), str(here.parents[1]), str(here.parent / "support")]!r}
from test_rollup_codec import dump, filled
sys.stdout.buffer.write(dump(filled("ip", int(sys.argv[1]), 2000)))
"""
    parts = [
        subprocess.run(
            [sys.executable, "-c", code, str(seed)],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2, 3)
    ]
    merged, whole = question("ip").rollup(), filled("ip", 1, 2000)
    load(merged, parts[0])
    for part in parts[1:]:
        other = question("ip").rollup()
        load(other, part)
        merged.merge(other)
    for seed in (2, 3):
        whole.merge(filled("ip", seed, 2000))
    assert answer("ip", merged) == answer("ip", whole)


def test_what_does_not_fit() -> None:
    data = dump(filled("u8"))
    with pytest.raises(ValueError, match="not empty"):
        load(filled("u8"), data)
    with pytest.raises(ValueError, match="other keys or aggregates"):
        load(question("u16").rollup(), data)
    for wrong in (b"", b"CFROLL", b"x" * 100, data[1:]):
        with pytest.raises(ValueError, match="not a partial aggregate"):
            load(question("u8").rollup(), wrong)
    with pytest.raises(ValueError, match="extra bytes at its end"):
        load(question("u8").rollup(), data + b"\0")
    rollup = question("u8").rollup()
    with pytest.raises(ValueError, match="truncated"):
        load(rollup, data[:-1])
    with pytest.raises(ValueError, match="unusable"):
        rollup.update(block_of([{}]))


@pytest.mark.parametrize("by", KEYS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_do_harm(by: str, data: st.DataObject) -> None:
    """Flipped and truncated input: an error or some result, never a crash."""
    state = bytearray(dump(filled(by, 1, data.draw(st.sampled_from([0, 1, 40])))))
    start = 16 + int.from_bytes(state[8:16], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(start, len(state) - 1))
        state[at] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    del state[data.draw(st.just(len(state)) | st.integers(start, len(state))) :]
    rollup = question(by).rollup()
    try:
        load(rollup, state)
    except (ValueError, MemoryError):
        return
    rollup.update(block_of(rows(7, 5), lane=7))
    other = filled(by, 9, 30)
    other.merge(rollup)
    for r in (rollup, other):
        result = question(by).result
        with contextlib.suppress(OverflowError):  # a sum that is now too large
            assert sum(block.rows for block in r.finish(result.layout, 1.0).blocks()) == len(r)
        assert dump(r)
