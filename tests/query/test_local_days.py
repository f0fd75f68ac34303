"""Days of local time as groups: of 23, 24 and 25 hours, next to zoneinfo."""

from __future__ import annotations

import json
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remote_lab
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.query.rollup_coarsening import absorb
from confluo_tools.expr.aggregates import parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.local_days import offset_changes
from confluo_tools.schema import Field, Schema
from running import run

SECOND = 10**9
HOUR = 3600
SCHEMA = Schema("calls", [Field("ts", "time"), Field("n", "u32")])
# Half an hour with changes, a change at midnight, none.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Adelaide", "Africa/Cairo", "Asia/Kolkata"]
CHANGES = {  # local days of 23 and of 25 hours
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Adelaide": (date(2026, 10, 4), date(2026, 4, 5)),
}


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    with in_zone(request.param):
        yield request.param


def block_of(seconds: list[int]) -> Block:
    n = len(seconds)
    times = struct.pack(f"<{n}q", *(s * SECOND + i for i, s in enumerate(seconds)))
    return Block.wrap(SCHEMA.layout, n, [times, bytes(4 * n)])


def first_second(day: date, zone: str) -> int:
    """Of a local day."""
    return int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp())


def expected(seconds: list[int], zone: str) -> dict[int, int]:
    """Start of the local day -> rows."""
    return dict(Counter(first_second(datetime.fromtimestamp(s, ZoneInfo(zone)).date(), zone) for s in seconds))


def counted(question: Aggregation, rollup: object) -> dict[int, int]:
    found = {}
    for block in question.answer(rollup):  # type: ignore[arg-type]
        found |= {block.get(0, i) // SECOND: block.get(1, i) for i in range(block.rows)}
    return found


def local_question(by: str) -> Aggregation:
    return Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA), local=True)


@contextmanager
def in_zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@pytest.fixture(scope="module")
def days_of() -> dict[str, tuple[Aggregation, list[int]]]:
    """Of each zone its days, and its changes since 1972 in seconds."""
    out = {}
    for name in ZONES:
        with in_zone(name):
            changes = [at // SECOND for at, _ in offset_changes()[1:] if at // SECOND < 2**31]
            out[name] = local_question("1d"), changes or [2**30]
    return out


@settings(deadline=None, max_examples=60)
@given(
    near=st.lists(
        st.tuples(st.integers(0, 400), st.integers(-60 * HOUR, 60 * HOUR) | st.integers(-2, 2)), min_size=1, max_size=60
    )
)
def test_days_are_those_of_zoneinfo(
    days_of: dict[str, tuple[Aggregation, list[int]]], near: list[tuple[int, int]]
) -> None:
    """Around the changes of each zone; from rows, and from a roll-up by quarters of an hour."""
    quarters = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by("15m", SCHEMA))
    for name, (days, changes) in days_of.items():
        seconds = [max(changes[k % len(changes)] + shift, 70_000_000) for k, shift in near]
        rows, fine, coarse, again = days.rollup(), quarters.rollup(), days.rollup(), days.rollup()
        rows.update(block_of(seconds))
        fine.update(block_of(seconds))
        absorb(coarse, fine)
        absorb(again, rows)
        for rollup in (rows, coarse, again):
            assert counted(days, rollup) == expected(seconds, name), name


def test_coarser_steps_do_not_become_local_days(zone: str) -> None:
    for by in ("1h", "1d"):
        fine = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA)).rollup()
        with pytest.raises(ValueError, match="key"):
            absorb(local_question("1d").rollup(), fine)


def test_short_steps_are_the_same_everywhere(zone: str) -> None:
    assert not local_question("1h").local_days
    assert local_question("7d").local_days


@pytest.mark.parametrize("name", CHANGES)
def test_days_of_23_and_25_hours(name: str, tmp_path: Path) -> None:
    """A row every half hour of three days; the command prints the starts of local days, also from a view."""
    for day, hours in zip(CHANGES[name], (23, 25), strict=True):
        start, stop = (first_second(day + timedelta(days=d), name) for d in (-1, 2))
        seconds = list(range(start, stop, HOUR // 2))
        log = tmp_path / f"{hours}.ml"
        with multilog.create(log, SCHEMA) as made, made.writer(ahead=-1) as writer:
            writer.append(block_of(seconds))
        env = {**remote_lab.env(tmp_path), "TZ": name}
        words = ["--agg", "count", "--by", "1d", "--local", "-J"]
        truth = [48, 2 * hours, 48]
        for _ in range(2):
            done = run("confluo-query", log, *words, env=env)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            assert [r["count"] for r in rows] == truth
            begins = [int(datetime.fromisoformat(r["ts"][:19] + "+00:00").timestamp()) for r in rows]
            assert begins == [first_second(day + timedelta(days=d), name) for d in (-1, 0, 1)]
            done = run("confluo-index", log, "add", "aggregate", "per", "count", "--bucket", "1m", env=env)
            assert done.returncode == 0
        shown = run("confluo-query", log, *words[:-1], "-o", "table", env=env).stdout.decode()
        assert shown.count("00:00:00") == 3
        done = run("confluo-query", f"sw1:{log}", *words, env=env)
        assert done.returncode == 2
        assert b"another host does not know the local time of this one; write steps of less than a day" in done.stderr
