"""Stages of a stream: what goes in comes out, or was left out on purpose, or is counted as dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.stream.stage import StreamStage, WriterStage
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.schema import Schema
from confluo_tools.stream.functions import read

SCHEMA = Schema.from_dict(
    {
        "kind": "packet",
        "version": 1,
        "fields": [
            {"name": "ts", "type": "time"},
            {"name": "len", "type": "u16"},
            {"name": "flow_hash", "type": "u32"},
        ],
    }
)
ROWS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2**32 - 1)), max_size=60)
PARTS = st.lists(ROWS, min_size=1, max_size=5)


def through(words: dict[str, object], parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """(len, flow_hash) of the rows that a function gives for blocks of rows."""
    [(word, value)] = words.items()
    function = read(word, value, SCHEMA, "flow 'f'")
    out: list[tuple[int, int]] = []
    stage = function.stage(SCHEMA)
    end = WriterStage(function.after(SCHEMA).layout, lambda b: out.extend(pairs(b)))
    stage.then(end)
    for part in parts:
        for block in blocks_of_rows(SCHEMA, [{"ts": 1, "len": n, "flow_hash": h} for n, h in part]):
            assert stage.write(block)
    assert stage.end()
    assert end.problem is None
    assert stage.taken == sum(map(len, parts))
    assert stage.given == end.taken == end.given == len(out)
    assert stage.dropped == end.dropped == 0
    return out


def pairs(block: Block) -> list[tuple[int, int]]:
    return [(int(block.get(1, i)), int(block.get(2, i))) for i in range(block.rows)]


@given(PARTS, st.integers(1, 70))
def test_a_sample_is_every_nth_row(parts: list[list[tuple[int, int]]], x: int) -> None:
    assert through({"sample": f"1/{x}"}, parts) == [row for part in parts for row in part][::x]


@given(PARTS, st.integers(1, 70))
def test_a_sample_by_flow_has_whole_flows(parts: list[list[tuple[int, int]]], x: int) -> None:
    rows = [row for part in parts for row in part]
    assert through({"sample": {"share": f"1/{x}", "by": "flow"}}, parts) == [r for r in rows if r[1] < 2**32 // x]


@given(PARTS, st.integers(0, 200))
def test_a_filter_gives_what_its_expression_selects(parts: list[list[tuple[int, int]]], least: int) -> None:
    rows = [row for part in parts for row in part]
    assert through({"filter": f"len >= {least}"}, parts) == [r for r in rows if r[0] >= least]


@pytest.mark.parametrize(
    ("word", "value", "complaint"),
    [
        ("sampel", "1/10", "flow 'f': unknown function 'sampel'; did you mean 'sample'?"),
        ("sample", "10", "flow 'f': sample: '10' is not a share; write 1/100"),
        ("sample", {"by": "flow"}, "flow 'f': sample: needs a share; as in 'sample: 1/10'"),
        ("sample", {"share": "1/2", "by": "port"}, "flow 'f': sample: by: 'port' is unknown; write packet or flow"),
        ("sample", {"share": "1/2", "to": "x"}, "flow 'f': sample: unknown word 'to'; write share and by, or rate"),
        ("filter", 7, "flow 'f': filter: needs an expression; as in 'filter: len > 100'"),
        ("filter", "length > 7", "flow 'f': filter: "),
    ],
)
def test_a_wrong_function_is_named(word: str, value: object, complaint: str) -> None:
    with pytest.raises(UsageError) as e:
        read(word, value, SCHEMA, "flow 'f'")
    assert str(e.value).startswith(complaint)


def test_an_error_of_a_writer_ends_the_chain() -> None:
    def fails(block: Block) -> None:
        raise OSError("no room")

    stage, end = StreamStage(SCHEMA.layout), WriterStage(SCHEMA.layout, fails)
    stage.then(end)
    block = next(iter(blocks_of_rows(SCHEMA, [{"ts": 1, "len": 2, "flow_hash": 3}] * 4)))
    assert not stage.write(block, Picks.of(4, [1, 3]))
    assert str(end.problem) == "no room"
    assert (stage.taken, stage.given, end.taken, end.given, end.dropped) == (2, 2, 2, 0, 2)


def test_rows_of_other_columns_are_refused() -> None:
    other = SCHEMA.project(["ts"])
    with pytest.raises(ValueError, match="the block has other columns"):
        StreamStage(SCHEMA.layout).write(Block(other.layout))
