"""Tasks, units and results as bytes: what a worker answers that shares only files with the process that asks."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive_lab import HOUR, QUESTIONS, columns, run_all, times
from confluo_tools import multilog
from confluo_tools.engine import result, unit, worker
from confluo_tools.engine.reader import EngineReader
from confluo_tools.engine.rollup_partial import CountPartial
from confluo_tools.engine.task import Task, tree_list, tree_of_list
from confluo_tools.engine.unit_plan import UnitPlan
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile, leaves
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.open_log import open_log
from confluo_tools.multilog.reader import LogReader
from engine_lab import KINDS, Inline, Inputs, aggregated, make_inputs, rows_of, same
from log_rows import ALL_TYPES, block_of, random_columns


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("engine"))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_one_core(inputs: Inputs, kind: str) -> None:
    for i, text in enumerate([*QUESTIONS, "y < 1.5 or name like 'a?c'", "kind == one and path == 7"]):
        runner = Inline(damage=(0, 1) if i == 1 else (2,), twice=i == 2)
        one, several = inputs.open(kind), EngineReader(inputs.open(kind), runner)
        expr = compile(text, one.schema)
        assert several.count(expr) == one.count(expr)
        assert several.rows == one.rows
        assert runner.checks == 1
        by = [None, "a", "kind, 1h"][i % 3]
        mine, expected = (aggregated(r, text, by) for r in (EngineReader(inputs.open(kind), runner), inputs.open(kind)))
        assert mine[1] == expected[1]
        assert same(mine[0], expected[0])
        if len(runner.runs) > 8:
            assert runner.damaged > 0


def test_every_kind_of_test_can_travel() -> None:
    trees = [
        leaves.Range(0, -1, 2, 3),
        leaves.FRange(1, 0.1, float("inf"), True),
        leaves.InSet(0, (1, 2), None),
        leaves.InRanges(0, ((-5, 1), (8, 9))),
        leaves.InByteRanges(2, ((b"\0a", b"\0b"), (b"zz", b"zz"))),
        leaves.Bytes(2, b"\xff", b"\xff", b"\x01"),
        leaves.Glob(2, b"a*"),
        leaves.Pair("<=", 0, 1, None),
        leaves.ListElement(0, 1, leaves.Range(0, 1, 2)),
        leaves.ListLength(0, ((1, 2),)),
        leaves.ListSequence(0, "in", ((1.0, 2.0),)),
    ]
    assert {type(t) for t in trees} == set(get_args(leaves.Test))
    tree = leaves.And((leaves.Or(tuple(trees)), leaves.Not(trees[0]), leaves.TRUE))
    assert tree_of_list(json.loads(json.dumps(tree_list(tree)))) == tree


def extent(one: unit.Unit) -> int:
    """The number of blocks or Parquet files of a unit."""
    return len(one.parts) if isinstance(one, unit.ArchiveBatch) else one.after - one.first


@pytest.mark.parametrize("kind", KINDS)
def test_units_without_a_possible_row_are_not_handed_out(inputs: Inputs, kind: str) -> None:
    def units(text: str) -> list[unit.Unit]:
        reader = inputs.open(kind)
        return UnitPlan(reader, compile(text, reader.schema), 1000).units  # type: ignore[arg-type]

    every = units("")
    for text in ("a == 0", "ts < @3600", "e > 200", "not (a < 5)"):
        chosen = units(text)
        assert sum(map(extent, chosen)) < sum(map(extent, every))
        reader = inputs.open(kind)
        assert EngineReader(inputs.open(kind), Inline()).count(compile(text, reader.schema)) == reader.count(
            compile(text, reader.schema)
        )


ORDERS = ["forward", "backwards", "shuffled"]
PIECE = st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 3), st.sampled_from(ORDERS))


@settings(max_examples=5)
@given(
    st.lists(PIECE, max_size=8),
    st.integers(0, 8),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 60),
    st.sampled_from(QUESTIONS),
)
def test_any_log_gives_the_rows_of_one_core(
    pieces: list[tuple[int, int, int, str]], moved: int, whole: bool, slots: int, limit: int, text: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = multilog.create(Path(folder, "t.ml"), ALL_TYPES, segment_blocks=1)
        for number, (lane, rows, start, order) in enumerate(pieces):
            writers = [log.writer(ahead=-1) for _ in range(lane + 1)]
            writers[-1].append(block_of(ALL_TYPES, columns(rows, number, times(rows, start * HOUR, order, number))))
            for writer in writers:
                writer.close()
            if number < moved and not whole:  # a batch of its own: often in the order of time
                run_all(log, Path(folder, "archive"))
        if whole:
            run_all(log, Path(folder, "archive"), remove=moved > 4)
        paths = ["t.ml", "archive"] if any(Path(folder).glob("archive/host=*")) else ["t.ml"]
        for path in paths:

            def opened(path: str = path) -> Reader:
                return ArchiveReader(f"{folder}/archive") if path == "archive" else open_log(f"{folder}/t.ml")

            expected = rows_of(opened(), text)
            several = EngineReader(opened(), Inline(slots))
            assert rows_of(several, text) == expected
            assert rows_of(EngineReader(opened(), Inline(slots)), text, by_time=False) == rows_of(
                opened(), text, by_time=False
            )
            assert several.count(compile(text, several.schema)) == len(expected[1])
            several.limit = limit
            some = rows_of(several, text)
            kept = min(limit, len(expected[1]))
            assert len(some[1]) >= kept
            widths = [c.size * c.count for c in ALL_TYPES.columns]
            assert [c[: kept * w] for c, w in zip(some, widths, strict=True)] == [
                c[: kept * w] for c, w in zip(expected, widths, strict=True)
            ]
            mine, theirs = (aggregated(reader, text, "kind") for reader in (several, opened()))
            assert mine[1] == theirs[1]
            assert same(mine[0], theirs[0])


def test_rows_that_are_not_sealed_are_done_here(tmp_path: Path) -> None:
    with multilog.create(tmp_path / "t.ml", ALL_TYPES) as log, log.writer() as writer:
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 500, 1)))
        runner = Inline()
        assert EngineReader(LogReader(log.path), runner).count(compile("", ALL_TYPES)) == 500
        assert runner.runs == []


def test_a_segment_that_is_gone_is_reported(inputs: Inputs, tmp_path: Path) -> None:
    shutil.copytree(inputs.log, tmp_path / "t.ml")
    reader = LogReader(str(tmp_path / "t.ml"))
    expr = compile("", reader.schema)
    units = UnitPlan(reader, expr, 1).units
    next((tmp_path / "t.ml").glob("lane-000/*.arrow")).unlink()
    found = result.decode(worker.run(Task(expr, CountPartial(reader.schema)).encode(), unit.encode(units)))
    assert found.rows < 11_000
    assert any("are missing" in what for _, what in found.left_out)


def test_a_worker_reports_what_is_not_the_same(inputs: Inputs, tmp_path: Path) -> None:
    reader = LogReader(inputs.log)
    task = Task(compile("", reader.schema), CountPartial(reader.schema)).encode()
    units = UnitPlan(reader, compile("", reader.schema), 1).units
    message = json.loads(task)
    message["pins"]["Python"] = "2.7"
    moved = [one._replace(log=str(tmp_path)) for one in units]
    gone = [unit.ArchiveBatch("/nonexistent", ("host=a/date=1970-01-01/hour=00/x.parquet",), 0, 1, 1)]
    other = [one._replace(uuid="00" * 16) for one in units]
    for data, some, what in [
        (json.dumps(message).encode(), units, r"the question comes from Python 2\.7, here 3"),
        (b"[]", units, "not a task"),
        (task.replace(b'"count"', b'"os.system"'), units, "there is no partial 'os.system'"),
        (task, moved, f"{tmp_path}: is not a MultiLog"),
        (task, gone, "/nonexistent: there is no such archive"),
        (task, other, f"{inputs.log}: is another log .on .*; workers need the same files"),
        (task.replace(b'"u8"', b'"u16"'), units, "has other columns now"),
    ]:
        with pytest.raises(ConfluoError, match=what):
            result.decode(worker.run(data, unit.encode(some)))


RESULTS = st.builds(
    result.Result,
    st.integers(0, 1 << 60),
    st.binary(max_size=50),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    st.integers(0, 1 << 60),
)


@given(RESULTS, st.data())
def test_a_damaged_result_is_noticed(found: result.Result, data: Any) -> None:
    good = found.encode()
    assert result.decode(good) == found
    at = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[at // 8] ^= 1 << at % 8
    for damaged in (bytes(bad), good[: at // 8], good + b"x"):
        with pytest.raises(ValueError, match="a result"):
            result.decode(damaged)


@pytest.mark.parametrize(
    "data", [b"x", b"[1]", b"{}", b'[["log"]]', b'[["disk", 1]]', b'[["archive", "/a", "b", 0, 1, 1]]']
)
def test_what_is_no_unit(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any reason
        unit.decode(data)


@given(st.lists(st.integers(0, 5)), st.integers(1, 9))
def test_runs_are_all_units_in_order(sizes: list[int], number: int) -> None:
    units = [unit.ArchiveBatch("/a", (str(i),), 0, 1, size) for i, size in enumerate(sizes)]
    shares = unit.runs(units, number)
    assert [one for share in shares for one in share] == units
    assert len(shares) <= number
    assert all(shares)
    assert unit.decode(unit.encode(units)) == units
