"""The 17 defects of the original (docs/papers.md), one test each, through the public commands.

The truth is the list of rows that a test wrote, read in plain Python; every command runs as a process of its own with a
time limit, so a hang or a crash fails here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions import ROOT, Shell

# 8 + 2 + 4 + 40 = 54 bytes: the paper's own header size, which divides no power of two.
SCHEMA = """\
schema: odd
description: rows of an odd size
fields:
- {name: ts, type: time, unit: ns, description: when}
- {name: b, type: u16, description: a small number}
- {name: n, type: u32, description: the number of the row}
- {name: tag, type: bytes(40), description: forty bytes}
"""
START = 1_700_000_000 * 10**9
Row = dict[str, Any]


def rows(first: int, last: int) -> list[Row]:
    scatter = 0x9E3779B97F4A7C15F39CC0605CEDC835
    return [
        {"ts": START + i * 1_000_000, "b": i * 7 % 1000, "n": i, "tag": f"{i * scatter:040x}"[-40:]}
        for i in range(first, last)
    ]


def stamp(ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // 10**9)) + f".{ns % 10**9:09d}Z"


class Log:
    """A MultiLog of such rows, and the same rows in memory."""

    def __init__(self, folder: Path) -> None:
        self.shell = Shell(folder)
        self.rows: list[Row] = []
        self.sync = "seal"
        (folder / "odd.yaml").write_text(SCHEMA)

    def run(self, command: str, status: int = 0) -> list[str]:
        got, printed = self.shell.run(command)
        assert got == status, "\n".join([f"$ {command}", *printed])
        return printed

    def add(self, more: list[Row]) -> None:
        lines = (json.dumps({**row, "ts": stamp(row["ts"])}) + "\n" for row in more)
        (self.shell.folder / "rows.ndjson").write_text("".join(lines))
        append = "--append" if self.rows else f"--sync {self.sync}"
        self.run(f"confluo-convert -q -i ndjson --schema odd.yaml rows.ndjson -w odd.ml {append}")
        self.rows += more

    def index(self, fields: str) -> None:
        self.run(f"confluo-index -q odd.ml add {fields}")

    def ask(self, expression: str, options: str = "") -> list[Row]:
        """The rows of a query, in the order of the log."""
        status, printed = self.shell.run(f"confluo-query -q odd.ml -e '{expression}' {options} -n -J")
        assert status == (0 if printed else 1), "\n".join(printed)
        return [json.loads(line) for line in printed]

    def same(self, expression: str, holds: Callable[[Row], bool], options: str = "") -> None:
        """The query finds exactly the rows for which plain Python says so."""
        found = [row["n"] for row in self.ask(expression, f"-f n {options}")]
        assert found == [row["n"] for row in self.rows if holds(row)]

    def uses_index(self, expression: str) -> bool:
        plan = self.run(f"confluo-query -q odd.ml -e '{expression}' --explain")
        (line,) = [line for line in plan if line.startswith("indexes")]
        return "none" not in line


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_01_many_rows(log: Log) -> None:
    """More than 64 rows in a result, by scan and by index, with and without a second condition."""
    log.add(rows(0, 5000))
    for _ in range(2):
        log.same("b < 400", lambda r: r["b"] < 400)
        log.same("b < 400 && n > 100", lambda r: r["b"] < 400 and r["n"] > 100)
        log.same("", lambda r: True)
        log.index("b")
    assert len(log.ask("b < 400")) > 64


def test_02_adhoc_aggregate_ends(log: Log) -> None:
    log.add(rows(0, 3000))
    (row,) = log.ask("b == 7", "--agg 'sum(n), count'")
    chosen = [r["n"] for r in log.rows if r["b"] == 7]
    assert (row["sum_n"], row["count"]) == (sum(chosen), len(chosen))
    assert chosen


def test_03_aggregate_over_all_time_ends(log: Log) -> None:
    """From the first to the last time there is, in buckets of a millisecond."""
    log.add(rows(0, 2000))
    whole = "--since 1970-01-01 --until 2262-04-10"
    (row,) = log.ask("", f"--agg 'sum(n)' {whole}")
    assert row["sum_n"] == sum(r["n"] for r in log.rows)
    buckets = log.ask("", f"--agg 'sum(n)' --by 1ms {whole}")
    assert [b["sum_n"] for b in buckets] == [r["n"] for r in log.rows]


def test_04_records_across_edges(log: Log) -> None:
    """Rows of 54 bytes over the edges of blocks and of segments, byte for byte."""
    log.add(rows(0, 66_000))
    log.add(rows(66_000, 70_000))
    back = log.ask("")
    assert [(r["n"], r["b"], r["tag"]) for r in back] == [(r["n"], r["b"], r["tag"]) for r in log.rows]
    times = [r["ts"] for r in back]
    assert times == [stamp(r["ts"]) for r in log.rows]


def test_05_index_on_time(log: Log) -> None:
    """Written in one batch, with the times indexed by the millisecond and exactly."""
    log.add(rows(0, 1000))
    for bucket in ("ts:1ms", "ts:1ns", "ts:1s"):
        log.index(bucket)
        at = log.rows[500]["ts"]
        log.same(f"ts == {stamp(at)}", lambda r, at=at: r["ts"] == at)
        log.same(f"ts >= {stamp(at)}", lambda r, at=at: r["ts"] >= at)
        log.same("", lambda r, at=at: r["ts"] < at, f"--until {stamp(at)}")
        log.run("confluo-index -q odd.ml drop ts")


def test_06_range_bounds(log: Log) -> None:
    """Every comparison at, below and above the edges of an index's buckets."""
    log.add([{**row, "b": row["n"] % 95} for row in rows(0, 950)])
    log.index("b:10")
    for bound in (0, 1, 5, 9, 10, 11, 15, 20, 94, 95):
        log.same(f"b > {bound}", lambda r, x=bound: r["b"] > x)
        log.same(f"b < {bound}", lambda r, x=bound: r["b"] < x)
    log.same("b >= 10 && b <= 19", lambda r: 10 <= r["b"] <= 19)
    log.same("b == 15", lambda r: r["b"] == 15)
    log.same("b != 15", lambda r: r["b"] != 15)
    assert log.uses_index("b == 15")


def test_07_below_zero(log: Log) -> None:
    """An unsigned column compared with what no unsigned number is."""
    log.add(rows(0, 300))
    for _ in range(2):
        log.same("b < 0", lambda r: False)
        log.same("b <= 0", lambda r: r["b"] == 0)
        log.same("b >= 0", lambda r: True)
        log.same("b < 65535", lambda r: True)
        for impossible in ("b == -1", "b > 70000"):
            status, printed = log.shell.run(f"confluo-query odd.ml '{impossible}' --count")
            assert (status, printed) == (1, ["0"]) or (status == 2 and printed[0].startswith("confluo-query: "))
        log.index("b")


def test_08_late_index_covers_the_past(log: Log) -> None:
    log.add(rows(0, 3000))
    log.index("b")
    log.same("b == 21", lambda r: r["b"] == 21)
    assert log.uses_index("b == 21")
    log.add(rows(3000, 6000))  # beyond the index, until it is brought up to date
    log.same("b == 21", lambda r: r["b"] == 21)
    log.run("confluo-index -q odd.ml update")
    log.same("b == 21", lambda r: r["b"] == 21)
    assert {row["n"] < 3000 for row in log.ask("b == 21")} == {True, False}


def test_09_every_aggregate_counts(log: Log) -> None:
    """The second and third aggregate of a filter are as good as the first; so are triggers on each, and two on one."""
    log.add(rows(0, 4000))
    chosen = [r for r in log.rows if r["b"] < 100]
    (row,) = log.ask("b < 100", "--agg 'count, sum(n), max(b)'")
    assert row == {"count": len(chosen), "sum_n": sum(r["n"] for r in chosen), "max_b": max(r["b"] for r in chosen)}
    biggest = max(range(100), key=lambda b: sum(r["n"] for r in chosen if r["b"] == b))
    top = sum(r["n"] for r in chosen if r["b"] == biggest)
    (group,) = log.ask("b < 100", f"--agg 'count, sum(n)' --by b --having 'sum_n >= {top}'")
    assert (group["b"], group["sum_n"]) == (biggest, top)
    log.run("confluo-index odd.ml add filter low 'b < 100'")
    log.run("confluo-index odd.ml add aggregate low_rows count --filter low")
    log.run("confluo-index odd.ml add aggregate low_sum 'sum(n)' --filter low")
    chosen.sort(key=lambda r: r["ts"])
    ticks = range(START + 100_000_000, log.rows[-1]["ts"] + 100_000_001, 100_000_000)
    windows = {t: [r["n"] for r in chosen if t - 1_000_000_000 <= r["ts"] < t] for t in ticks}
    for name, condition, value, limit in (
        ("first", "low_rows > 99", len, 99),
        ("second", "low_sum > 150k", sum, 150_000),
        ("again", "low_sum > 300k", sum, 300_000),
    ):
        on, expected = False, []
        for t in ticks:
            if (value(windows[t]) > limit) != on:
                on = not on
                expected.append((stamp(t), "fire" if on else "clear", value(windows[t])))
        every = [
            f"-t '{n}: {c} over 1s every 100ms'"
            for n, c in (("first", "low_rows > 99"), ("second", "low_sum > 150k"), ("again", "low_sum > 300k"))
        ]
        printed = log.run(f"confluo-monitor odd.ml --since {stamp(START)} {' '.join(every)} -J")
        told = [a for a in map(json.loads, printed) if a["trigger"] == name]
        assert expected, condition
        assert [(a["ts"], a["event"], a["value"]) for a in told] == expected


def test_10_reopening_with_indexes(log: Log) -> None:
    log.add(rows(0, 2000))
    log.index("b n ts")
    for _ in range(3):  # each is a process that opens the log again
        log.same("b == 21", lambda r: r["b"] == 21)
        log.run("confluo-info odd.ml --verify")


def test_11_index_after_reopening(log: Log) -> None:
    """Record 0 too, and the index of the third column is that of the third column."""
    log.add(rows(0, 1000))
    log.index("n")
    log.index("b")
    log.same("n == 0", lambda r: r["n"] == 0)
    log.same("n == 999", lambda r: r["n"] == 999)
    log.same("b == 0", lambda r: r["b"] == 0)
    assert log.uses_index("n == 0")
    assert log.uses_index("b == 0")


@pytest.mark.parametrize("sync", ["none", "seal", "batch"])
def test_12_rows_after_clean_exit(log: Log, sync: str) -> None:
    log.sync = sync
    log.add(rows(0, 1000))
    assert any(line.split() == ["sync", sync] for line in log.run("confluo-info odd.ml"))
    assert log.ask("") == [{**row, "ts": stamp(row["ts"])} for row in log.rows]


def test_13_opening_again_and_again(log: Log) -> None:
    log.add(rows(0, 100))
    log.index("b")
    for start in range(100, 600, 100):
        log.add(rows(start, start + 100))
        log.run("confluo-index -q odd.ml update")
        log.same("b > 500", lambda r: r["b"] > 500)
        log.run("confluo-info odd.ml --verify")


def test_14_index_on_sealed_data(log: Log) -> None:
    """A sealed segment is the archive here: read through the index, row by row, repeatedly."""
    log.add(rows(0, 70_000))
    log.index("b")
    info = log.run("confluo-info odd.ml")
    lane = next(line.split() for line in info if re.match(r"\s*0\s+70,000", line))
    assert lane[1] == lane[3] == "70,000"  # rows and sealed rows
    for value in (0, 7, 994):
        log.same(f"b == {value}", lambda r, value=value: r["b"] == value)
    assert log.uses_index("b == 7")


def test_15_errors_are_told(log: Log) -> None:
    log.add(rows(0, 10))
    for wrong in ("b ==", "b <> 3", "nosuch == 1", "b == 1 &&", "(b == 1", "b == 1.2.3.4"):
        printed = log.run(f"confluo-query odd.ml '{wrong}'", 2)
        assert printed[0].startswith("confluo-query: expression, column ")
        assert any(set(line.strip()) <= set("^~") and "^" in line for line in printed)
    for wrong in (
        "confluo-index odd.ml add nosuch",
        "confluo-query odd.ml --agg 'avg(nosuch)'",
        "confluo-query odd.ml --agg 'count' --having 'count <> 3'",
    ):
        printed = log.run(wrong, 2)
        assert re.match(r"confluo-\w+: ", printed[0])


def test_16_a_failed_writer_stops_nobody(log: Log) -> None:
    """A writer killed in the middle of its work, again and again; others go on, and nothing published is lost."""
    log.add(rows(0, 1000))
    lines = "".join(json.dumps({**row, "ts": stamp(row["ts"])}) + "\n" for row in rows(1000, 3000)).encode()
    command = [
        ROOT / "bin" / "confluo-convert",
        "-q",
        "-i",
        "ndjson",
        "--schema",
        "odd.yaml",
        "-",
        "-w",
        "odd.ml",
        "--append",
    ]
    for delay in (0.1, 0.2, 0.3, None):  # None: when some of its rows are visible, but before its end
        count = log.run("confluo-query -q odd.ml --count")
        with subprocess.Popen(command, cwd=log.shell.folder, env=log.shell.env, stdin=subprocess.PIPE) as writer:
            assert writer.stdin
            writer.stdin.write(lines)
            writer.stdin.flush()
            if delay is not None:
                time.sleep(delay)
            while delay is None and log.run("confluo-query -q odd.ml --count") == count:
                assert writer.poll() is None
            os.kill(writer.pid, signal.SIGKILL)
    before = [row["n"] for row in log.ask("", "-f n")]
    assert before == sorted(before)  # by time
    left = Counter(before)
    assert [left.pop(n) for n in range(1000)] == [1] * 1000
    assert left
    # Each killed writer left a beginning of its rows, whole: no row is there more often than the one before it.
    times = [left[n] for n in range(1000, 3000)]
    assert sum(times) == left.total()
    assert times == sorted(times, reverse=True)
    log.rows = [{"n": n} for n in before]
    log.add(rows(5000, 6000))
    assert [row["n"] for row in log.ask("", "-f n")] == [*before, *range(5000, 6000)]
    log.run("confluo-info odd.ml --verify")


def test_17_damage_is_named(log: Log) -> None:
    """Files begin with a magic and carry checksums: any flipped bit of a sealed segment is found and named."""
    log.add(rows(0, 2000))
    (segment,) = (log.shell.folder / "odd.ml" / "lane-000").glob("seg-*")
    whole = segment.read_bytes()
    assert whole.startswith(b"ARROW1")
    assert whole.endswith(b"ARROW1")
    log.run("confluo-info odd.ml --verify")
    for at in (20, len(whole) // 3, len(whole) // 2, len(whole) - 3000):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        segment.write_bytes(damaged)
        printed = log.run("confluo-info odd.ml --verify", 2)
        assert any(segment.name in line for line in printed), printed
    segment.write_bytes(whole)
    log.run("confluo-info odd.ml --verify")
    control = log.shell.folder / "odd.ml" / "control"
    control.write_bytes(b"\0" * 8 + control.read_bytes()[8:])
    assert "control" in " ".join(log.run("confluo-query odd.ml --count", 2))
