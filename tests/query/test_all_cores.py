"""Counts and aggregates by several processes: what one core answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archive_lab import QUESTIONS, make, run_all
from confluo_tools import multilog
from confluo_tools.errors import UsageError
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.query import all_cores
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.all_cores import AllCores
from confluo_tools.multilog.reader import LogReader
from log_rows import ALL_TYPES
from running import CAMPUS, run

AGGREGATES = "count, sum(c), min(h), max(e), first(b), last(c), distinct(b), p50(c), p99(b), avg(g), stddev(b)"
KEYS = [None, "a", "kind, 1h", "addr", "e"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A log of two lanes and eleven thousand rows, its times out of order; and an archive with the same rows."""
    folder = tmp_path_factory.mktemp("cores")
    log = make(folder / "t.ml")
    run_all(log, folder / "archive", remove=False)
    return str(folder / "t.ml"), str(folder / "archive")


@pytest.fixture(params=["log", "archive"])
def opened(inputs: tuple[str, str], request: pytest.FixtureRequest) -> Any:
    """A function that opens the input."""
    return lambda: LogReader(inputs[0]) if request.param == "log" else ArchiveReader(inputs[1])


def aggregated(reader: Reader, text: str, by: str | None) -> tuple[list[list[bytes]], int]:
    """The columns of the groups, and the number of rows that were selected."""
    keys = parse_by(by, reader.schema) if by else []
    question = Aggregation(reader.schema, parse_aggregates(AGGREGATES, reader.schema), keys)
    columns = list(range(reader.schema.layout.n))
    rollup, found = reader.fold(compile(text, reader.schema), columns, question.rollup)
    blocks = list(question.answer(rollup))
    return [[bytes(b.buffer(i)) for b in blocks] for i in range(question.result.layout.n)], found


@pytest.mark.parametrize("text", QUESTIONS)
def test_answers_are_those_of_one_core(opened: Any, text: str) -> None:
    for processes in (1, 3):
        one, several = opened(), AllCores(opened(), processes)
        expr = compile(text, one.schema)
        assert several.count(expr) == one.count(expr)
        assert several.rows == one.rows
    for by in KEYS:
        expected, found = aggregated(opened(), text, by)
        several = AllCores(opened(), 3)
        mine, count = aggregated(several, text, by)
        assert count == found
        # All but the last column, a deviation of floating point, to the last bit.
        assert mine[:-1] == expected[:-1], by
        assert np.allclose(
            *(np.frombuffer(b"".join(part[-1]), "<f8") for part in (mine, expected)), rtol=1e-12, equal_nan=True
        ), by


def test_the_number_of_processes_changes_nothing(opened: Any) -> None:
    answers = [aggregated(AllCores(opened(), processes), "a < 40", "e") for processes in (1, 2, 7, 20)]
    assert all(found[0][:-1] == answers[0][0][:-1] for found in answers)


def test_the_shares_are_all_rows_once(opened: Any) -> None:
    for number in (1, 2, 5, 16, 1000):
        reader = AllCores(opened(), number)
        expr = compile("", reader.schema)
        counts = [share.count() for share in reader.shares(expr)]
        assert sum(counts) == 11_000
        assert len(counts) <= number
    reader = AllCores(opened(), 2)
    assert sum(b.rows if p is None else len(p) for b, p in reader.select(compile("", reader.schema))) == 11_000


def test_an_empty_log(tmp_path: Path) -> None:
    with multilog.create(tmp_path / "t.ml", ALL_TYPES):
        pass
    reader = AllCores(LogReader(str(tmp_path / "t.ml")))
    assert reader.count(compile("a < 3", reader.schema)) == 0
    assert aggregated(reader, "", None)[1] == 0


def test_damage_is_reported_and_left_out(inputs: tuple[str, str], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(inputs[0], tmp_path / "bad.ml")
    segment = sorted((tmp_path / "bad.ml").glob("lane-000/*.arrow"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = bytes(x ^ 255 for x in data[len(data) // 2 : len(data) // 2 + 8192])
    segment.write_bytes(data)
    said: list[list[str]] = [[], []]
    readers = [LogReader(str(tmp_path / "bad.ml"), warn=said[0].append)]
    readers.append(AllCores(LogReader(str(tmp_path / "bad.ml"), warn=said[1].append), 3))  # type: ignore[arg-type]
    found = [aggregated(reader, "", "a") for reader in readers]
    assert found[0][0][:-1] == found[1][0][:-1]
    assert found[0][1] == found[1][1] < 11_000
    assert said[0] == said[1] != []


def test_an_error_in_one_share_ends_the_others(inputs: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AllCores(LogReader(inputs[0]), 2)

    def rows(share: Any, columns: Any) -> Iterator[Any]:
        raise MemoryError("too many groups")
        yield share, columns

    monkeypatch.setattr(all_cores.LogShare, "rows", rows)
    with pytest.raises(MemoryError, match="too many groups"):
        aggregated(reader, "", "a")


def children() -> str:
    """The processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


@pytest.mark.parametrize("how", ["dies", "is cut off", "fails"])
def test_the_work_of_a_process_that_fails_is_done_again(opened: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def send(pipe: int, found: all_cores.Found) -> None:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "fails":
            raise MemoryError
        os.write(pipe, all_cores._HEAD.pack(10, 1000) + b"[1, [], []")

    before, expected = children(), aggregated(opened(), "", "a")
    monkeypatch.setattr(all_cores, "_send", send)
    found = aggregated(AllCores(opened(), 4), "", "a")
    assert found[0][:-1] == expected[0][:-1]
    assert found[1] == expected[1]
    assert children() == before


def test_the_option(inputs: tuple[str, str]) -> None:
    for words in (
        ("--count",),
        ("--agg", "count, sum(c)", "--by", "kind"),
        ("--limit", "3"),
        ("--agg", "count", "--explain"),
    ):
        one = run("confluo-query", inputs[0], "a < 40", "-T", *words)
        for engine in ("local", "local:3"):
            several = run("confluo-query", inputs[0], "a < 40", "-T", *words, "--engine", engine)
            assert several.returncode == one.returncode == 0, several.stderr
            if "--explain" not in words:
                assert several.stdout == one.stdout
    for path, engine, message in [
        (inputs[0], "all", b"--engine: no engine 'all'; use local, or local:N for N processes"),
        (inputs[0], "local:0", b"--engine: no engine 'local:0'"),
        (
            str(CAMPUS),
            "local",
            b"campus.pcap.gz is read by one core; it takes a MultiLog without archives, or an archive",
        ),
    ]:
        refused = run("confluo-query", path, "--count", "--engine", engine)
        assert refused.returncode == 2
        assert message in refused.stderr
    with pytest.raises(UsageError):
        AllCores(AllCores(LogReader(inputs[0])))
