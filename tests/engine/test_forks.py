"""Counts and aggregates by several processes of this host: what one core answers."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from archive_lab import QUESTIONS
from confluo_tools import multilog
from confluo_tools.engine import forks, worker
from confluo_tools.engine.forks import Forks
from confluo_tools.engine.reader import EngineReader, waves
from confluo_tools.engine.unit import runs
from confluo_tools.engine.unit_plan import UnitPlan
from confluo_tools.errors import UsageError
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.group_spill import GroupSpill
from confluo_tools.multilog.reader import LogReader
from engine_lab import KINDS, Inputs, aggregated, make_inputs, same
from log_rows import ALL_TYPES
from running import CAMPUS, run

BY = [None, "a", "kind, 1h", "addr", "e"]
CASES = [(KINDS[0], text) for text in QUESTIONS]
CASES += [(KINDS[1], text) for text in QUESTIONS[:6]] + [(KINDS[2], text) for text in QUESTIONS[:4]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("engine"))


@pytest.fixture(params=KINDS)
def opened(inputs: Inputs, request: pytest.FixtureRequest) -> Any:
    """A function that opens the input."""
    return lambda: inputs.open(request.param)


@pytest.mark.parametrize(("opened", "text"), CASES, indirect=["opened"])
def test_answers_are_those_of_one_core(opened: Any, text: str) -> None:
    for processes in (1, 3):
        one, several = opened(), EngineReader(opened(), Forks(processes))
        expr = compile(text, one.schema)
        assert several.count(expr) == one.count(expr)
        assert several.rows == one.rows
    for by in BY:
        expected, found = aggregated(opened(), text, by)
        several = EngineReader(opened(), Forks(3))
        mine, count = aggregated(several, text, by)
        assert count == found
        assert same(mine, expected), by


def test_the_number_of_processes_changes_nothing(opened: Any) -> None:
    answers = [aggregated(EngineReader(opened(), Forks(processes)), "a < 40", "e") for processes in (1, 2, 7, 20)]
    assert all(found[0][:-1] == answers[0][0][:-1] for found in answers)


def test_groups_beyond_a_memory_limit_go_to_files(inputs: Inputs) -> None:
    reader = EngineReader(inputs.open("log"), Forks(3))
    keys = parse_by("d", reader.schema)
    question = Aggregation(reader.schema, parse_aggregates("count", reader.schema), keys)
    spill = GroupSpill(question.rollup, 1 << 18)
    wanted = compile("", reader.schema), [reader.schema.index("d")]
    rest, found = reader.fold(*wanted, spill)
    assert (spill.spilled, found) == (True, 11_000)
    units = UnitPlan(reader.input, wanted[0], 3, spill.most_rows).units
    sizes = [[unit.size for unit in wave] for wave in waves(units, spill.most_rows)]
    assert [size for wave in sizes for size in wave] == [unit.size for unit in units]
    assert all(len(wave) == 1 or sum(wave) <= (1 << 18) // 512 for wave in sizes)
    assert len(sizes) > 5
    assert sum(map(len, spill.rollups(rest))) == len(inputs.open("log").fold(*wanted, question.rollup)[0]) > 5000


def test_the_units_are_all_rows_once(opened: Any) -> None:
    for slots in (1, 2, 5, 1000):
        reader = opened()
        expr = compile("", reader.schema)
        units = UnitPlan(reader, expr, slots).units
        for number in (1, 2, 7, 1000):
            shares = runs(units, number)
            assert len(shares) <= number
            assert [unit for share in shares for unit in share] == units
        alone = EngineReader(opened(), Forks(len(units)))
        assert alone.count(expr) == 11_000
    reader = EngineReader(opened(), Forks(2))
    assert sum(b.rows if p is None else len(p) for b, p in reader.select(compile("", reader.schema))) == 11_000


def test_parts_are_opened_before_the_forks_only_for_limits_of_time(inputs: Inputs) -> None:
    def units(text: str, look: bool) -> int:
        reader = inputs.open("archive")
        return len(UnitPlan(reader, compile(text, reader.schema), 2, look=look).units)

    every = units("", False)
    assert units("a == 99", True) == 0
    assert units("a == 99", False) == every
    assert units("ts < @10000 and a == 99", False) == 0
    assert 0 < units("ts < @10000", False) <= every


def test_zone_maps_of_a_log_rule_out_blocks(inputs: Inputs) -> None:
    def blocks(text: str, look: bool) -> set[tuple[int, int, int]]:
        reader = inputs.open("log")
        units = UnitPlan(reader, compile(text, reader.schema), 2, look=look).units
        return {(unit.lane, unit.base, n) for unit in units for n in range(unit.first, unit.after)}

    every = blocks("", True)
    assert len(every) == 8
    assert blocks("a == 99", True) == blocks("ts < @1 and a == 99", False) == set()
    assert blocks("a == 99", False) == every
    assert set() < blocks("ts < @10000", False) == blocks("ts < @10000", True) < every


def test_who_is_done_early_takes_pieces_of_others() -> None:
    shares: Any = [["a", "b", "c"], ["d"], ["e", "f", "g"]]
    with forks._SharedPieces([[[unit] for unit in share] for share in shares]) as pieces:
        first, second = pieces.of(0), pieces.of(1)
        slow, fast = iter(first), iter(second)
        assert [next(slow), *fast, *slow] == ["a", "d", "e", "f", "g", "b", "c"]
        assert (first.taken, second.taken) == ([0], [3, 4, 5, 6, 1, 2])
        assert list(pieces.of(2)) == []


def test_few_rows_are_worth_no_fork(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user gives the number of processes."""
    started: list[int] = []
    start = forks._Processes.start
    monkeypatch.setattr(forks._Processes, "start", lambda *words: (started.append(1), start(*words)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))

    def number(slots: int | None) -> int:
        started.clear()
        aggregated(EngineReader(LogReader(inputs.log), Forks(slots)), "", "a")
        return len(started)

    assert (number(None), number(3)) == (0, 2)
    monkeypatch.setattr(forks, "FEW_ROWS", 5000)
    assert number(None) == 1
    monkeypatch.setattr(forks, "FEW_ROWS", 100)
    assert number(None) == 3


def test_an_empty_log(tmp_path: Path) -> None:
    with multilog.create(tmp_path / "t.ml", ALL_TYPES):
        pass
    reader = EngineReader(LogReader(str(tmp_path / "t.ml")), Forks())
    assert reader.count(compile("a < 3", reader.schema)) == 0
    assert aggregated(reader, "", None)[1] == 0


def test_damage_is_reported_and_left_out(inputs: Inputs, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(inputs.log, tmp_path / "bad.ml")
    segment = sorted((tmp_path / "bad.ml").glob("lane-000/*.arrow"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = bytes(x ^ 255 for x in data[len(data) // 2 : len(data) // 2 + 8192])
    segment.write_bytes(data)
    said: list[list[str]] = [[], []]
    readers = [LogReader(str(tmp_path / "bad.ml"), warn=said[0].append)]
    readers.append(EngineReader(LogReader(str(tmp_path / "bad.ml"), warn=said[1].append), Forks(3)))  # type: ignore[arg-type]
    found = [aggregated(reader, "", "a") for reader in readers]
    assert found[0][0][:-1] == found[1][0][:-1]
    assert found[0][1] == found[1][1] < 11_000
    assert said[0] == said[1] != []


def test_an_error_in_one_share_ends_the_others(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EngineReader(LogReader(inputs.log), Forks(2))

    def rows(source: Any) -> Iterator[Any]:
        raise MemoryError("too many groups")
        yield source

    monkeypatch.setattr(worker.LogSource, "rows", rows)
    with pytest.raises(MemoryError, match="too many groups"):
        aggregated(reader, "", "a")


def children() -> str:
    """The processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


@pytest.mark.parametrize("how", ["dies", "is killed while it writes", "has no room", "fails"])
def test_the_work_of_a_process_that_fails_is_done_again(opened: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    write = forks._written

    def written(file: int, pieces: Sequence[bytes]) -> int:
        if how == "has no room":
            raise OSError(errno.ENOSPC, "no room")
        if how == "fails":
            raise MemoryError
        if how != "dies":
            write(file, pieces[:1])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    before, expected = children(), aggregated(opened(), "", "a")
    monkeypatch.setattr(forks, "_written", written)
    several = EngineReader(opened(), Forks(4))
    found = aggregated(several, "", "a")
    several.close()
    assert found[0][:-1] == expected[0][:-1]
    assert found[1] == expected[1]
    assert children() == before


def test_processes_that_are_done_are_waited_for_later(inputs: Inputs) -> None:
    """By the next question, or at the end: their ends take time."""
    before = children()
    reader = EngineReader(LogReader(inputs.log), Forks(3))
    for _ in range(3):
        aggregated(reader, "", "a")
        assert len(children().split()) == len(before.split()) + 2
    reader.close()
    assert children() == before


def test_a_result_of_many_pieces_arrives_whole() -> None:
    pieces = [bytes([n % 256]) * (n % 7) for n in range(5000)] + [b"x" * (1 << 20)]
    memory = os.memfd_create("pieces")
    try:
        whole = b"".join(pieces)
        assert forks._written(memory, pieces) == len(whole)
        assert os.pread(memory, len(whole) + 1, 0) == whole
    finally:
        os.close(memory)


def test_the_option(inputs: Inputs) -> None:
    for words in (
        ("--count",),
        ("--agg", "count, sum(c)", "--by", "kind"),
        ("--limit", "3"),
        ("--agg", "count", "--explain"),
    ):
        one = run("confluo-query", inputs.log, "a < 40", "-T", *words)
        for engine in ("local", "local:3"):
            several = run("confluo-query", inputs.log, "a < 40", "-T", *words, "--engine", engine)
            assert several.returncode == one.returncode == 0, several.stderr
            if "--explain" not in words:
                assert several.stdout == one.stdout
    for path, engine, message in [
        (
            inputs.log,
            "all",
            b"--engine: no engine 'all'; use local, local:N for N processes, dask://HOST:PORT or spark://HOST:PORT",
        ),
        (inputs.log, "local:0", b"--engine: no engine 'local:0'"),
        (
            str(CAMPUS),
            "local",
            b"campus.pcap.gz is read by one core; it takes a MultiLog or an archive that this host has",
        ),
    ]:
        refused = run("confluo-query", path, "--count", "--engine", engine)
        assert refused.returncode == 2
        assert message in refused.stderr
    with pytest.raises(UsageError):
        EngineReader(EngineReader(LogReader(inputs.log), Forks()), Forks())
