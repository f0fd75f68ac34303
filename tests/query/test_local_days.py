"""Steps of the calendar and of local clocks as groups: days of 23 to 25 hours, weeks, months, next to zoneinfo."""

from __future__ import annotations

import json
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
from confluo_tools.expr import parse_aggregates
from confluo_tools.expr.group_keys import parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.local_zone import offset_changes
from confluo_tools.schema import Field, Schema
from running import run

SECOND = 10**9
HOUR = 3600
SCHEMA = Schema("calls", [Field("ts", "time"), Field("n", "u32")])
# Half an hour with changes, a change at midnight, none; by half an hour, at a minute past midnight, a day left out.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Adelaide", "Africa/Cairo", "Asia/Kolkata"]
ZONES += ["Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia"]
STEPS: dict[str, Callable[[datetime], object]] = {  # what all times of a step have in common, and no others
    "15m": lambda t: (t.date(), t.hour, t.minute // 15, t.utcoffset()),
    "1h": lambda t: (t.date(), t.hour, t.utcoffset()),
    "6h": lambda t: (t.date(), t.hour // 6),
    "1w": lambda t: t.isocalendar()[:2],
    "1mo": lambda t: (t.year, t.month),
    "3mo": lambda t: (t.year, (t.month - 1) // 3),
    "1y": lambda t: t.year,
}
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
    """Of each zone its days, and its changes since 1972, in seconds."""
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
        absorb(coarse, rows if any(at % 900 for at in changes) else fine)  # changes within a quarter
        absorb(again, rows)
        for rollup in (rows, coarse, again):
            assert counted(days, rollup) == expected(seconds, name), name


@pytest.fixture(scope="module")
def calendar_of(days_of: dict[str, tuple[Aggregation, list[int]]]) -> dict[tuple[str, str], Aggregation]:
    out = {}
    for name in ZONES:
        with in_zone(name):
            zone = offset_changes()
        for by in STEPS:
            keys = parse_by(by, SCHEMA)
            out[name, by] = Aggregation(SCHEMA, parse_aggregates("count, rate(n)", SCHEMA), keys, zone=zone)
    return out


@settings(deadline=None, max_examples=40)
@given(
    near=st.lists(
        st.tuples(st.integers(0, 400), st.integers(-60 * HOUR, 60 * HOUR) | st.integers(-2, 2)), min_size=1, max_size=20
    )
)
def test_steps_are_those_of_zoneinfo(
    days_of: dict[str, tuple[Aggregation, list[int]]],
    calendar_of: dict[tuple[str, str], Aggregation],
    near: list[tuple[int, int]],
) -> None:
    """Around the changes of each zone; each step begins and ends where its first and last second do."""
    minutes = Aggregation(SCHEMA, parse_aggregates("count, rate(n)", SCHEMA), parse_by("1m", SCHEMA))
    for (name, by), question in calendar_of.items():
        zone, step, steps = ZoneInfo(name), STEPS[by], question.steps
        assert steps is not None
        changes = days_of[name][1]
        seconds = [max(changes[k % len(changes)] + shift, 70_000_000) for k, shift in near]
        of = [step(datetime.fromtimestamp(s, zone)) for s in seconds]
        rows, fine, again = question.rollup(), minutes.rollup(), question.rollup()
        rows.update(block_of(seconds))
        again.merge(rows)
        fine.update(block_of(seconds))
        if by in ("1w", "1mo", "1y") and not any(t % (900 * SECOND) for t, _ in (steps.changes or ())[1:]):
            again = question.rollup()
            absorb(again, fine)
        found = counted(question, rows)
        assert counted(question, again) == found, (name, by)
        begins = {start: step(datetime.fromtimestamp(start, zone)) for start in found}
        assert {begins[start]: n for start, n in found.items()} == Counter(of), (name, by)
        assert len(found) == len(set(of))
        for start, value in begins.items():
            end = steps.after(start * SECOND) // SECOND
            assert steps.start(start * SECOND) == steps.start(end * SECOND - 1) == start * SECOND
            assert [step(datetime.fromtimestamp(s, zone)) == value for s in (start - 1, end - 1, end)] == [0, 1, 0]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1, max_size=30), st.integers(1, 30))
def test_weeks_and_months_of_utc_in_four_centuries(times: list[int], n: int) -> None:
    for by, count in ((f"{n}w", n), (f"{n}mo", n)):
        question = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA))
        rollup = question.rollup()
        columns = [struct.pack(f"<{len(times)}q", *times), bytes(4 * len(times))]
        rollup.update(Block.wrap(SCHEMA.layout, len(times), columns))
        assert question.steps is not None
        epoch, starts = datetime(1970, 1, 1), []
        for t in times:
            day = (epoch + timedelta(microseconds=t // 1000)).date()
            if by.endswith("mo"):
                month = ((day.year - 1970) * 12 + day.month - 1) // count * count
                first = date(1970 + month // 12, month % 12 + 1, 1)
            else:
                weeks = (day - date(1970, 1, 5)).days // 7 // count * count
                first = date(1970, 1, 5) + timedelta(weeks=weeks)
            starts.append((first - date(1970, 1, 1)).days * 86400)
        assert counted(question, rollup) == Counter(starts)


def test_coarser_steps_do_not_become_local_days(zone: str) -> None:
    for by in ("1h", "1d"):
        fine = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by(by, SCHEMA)).rollup()
        with pytest.raises(ValueError, match="key"):
            absorb(local_question("1d").rollup(), fine)


def test_short_steps_are_the_same_everywhere(zone: str) -> None:
    steps = [local_question(by).steps for by in ("7h", "7d")]
    assert [s is not None and s.local for s in steps] == [False, True]


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
        alone = run("confluo-query", log, *words, env=env).stdout
        elsewhere = {**env, "TZ": "UTC"}
        for more in (["--tz", name], ["--tz", name, "--engine", "local:2"]):
            assert run("confluo-query", log, *words[:-2], "-J", *more, env=elsewhere).stdout == alone
        far = run("confluo-query", f"sw1:{log}", *words[:-2], "-J", "--tz", name, env=elsewhere)
        assert (far.stdout or far.stderr) == alone


def test_following_filling_and_drawing_days(tmp_path: Path) -> None:
    """Three days of 24, 25 and 24 hours, the second one without rows: filled, as windows, and drawn."""
    first = first_second(date(2026, 10, 24), "Europe/Berlin")
    seconds = [first, first + 49 * HOUR, first + 50 * HOUR]
    log = tmp_path / "days.ml"
    with multilog.create(log, SCHEMA) as made, made.writer(ahead=-1) as writer:
        writer.append(block_of(seconds))
    words = ["confluo-query", log, "--agg", "count, rate(n)", "--tz", "Europe/Berlin"]
    filled = run(*words, "--by", "1d", "--fill", "-T", "--no-header", "-f", "ts,count").stdout.decode().split()
    days = ["2026-10-23T22", "2026-10-24T22", "2026-10-25T23"]
    assert [day[:13] for day in filled[::2]] == days
    assert filled[1::2] == ["1", "0", "2"]
    windows = run(*words, "--by", "1d", "--follow", "--until", "2026-10-28", "-T", "--no-header", "-f", "ts,count")
    assert [day[:13] for day in windows.stdout.decode().split()[::2]] == [days[0], days[2]]
    table = run(*words, "--by", "1d", "-o", "table").stdout.decode()
    assert "2026-10-24 00:00:00+02:00" in table
    assert "2026-10-26 00:00:00+01:00" in table
    for by, positions in (("1d", 3), ("1h", 51), ("1w", 2), ("1mo", 1)):
        picture = run(*words[:-4], "--agg", "count", "--by", by, *words[-2:], "-o", "svg").stdout.decode()
        assert picture.count('class="tip"') == positions


def test_rates_of_steps_of_different_lengths() -> None:
    with in_zone("Europe/Berlin"):
        question = Aggregation(
            SCHEMA, parse_aggregates("rate(n), sum(n) / 1s as r", SCHEMA), parse_by("1d", SCHEMA), local=True
        )
    for day, hours in ((date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 7, 1), 24)):
        rollup = question.rollup()
        times = struct.pack("<q", first_second(day, "Europe/Berlin") * SECOND)
        rollup.update(Block.wrap(SCHEMA.layout, 1, [times, struct.pack("<I", 10**6)]))
        (block,) = question.answer(rollup)
        assert [block.get(i, 0) for i in (1, 2)] == pytest.approx([10**6 / (hours * HOUR)] * 2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("europe/berlin", b"did you mean 'Europe/Berlin'?"), ("../../etc/passwd", b""), ("Europe", b""), ("", b"")],
)
def test_unknown_zones(name: str, hint: bytes) -> None:
    done = run("confluo-query", "x.ml", "--tz", name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"confluo-query: --tz: unknown time zone '{name}'; ".encode() + hint)
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("by", "what"),
    [
        ("0w", "a step of 0w is not possible; write e.g. 1w, 1mo, 1y"),
        ("7016mo", "a step of 7016mo is not possible"),
        ("d/1mo", "months and years have no fixed length, and d is a duration; write e.g. d/30d"),
    ],
)
def test_steps_of_the_calendar_that_are_refused(by: str, what: str) -> None:
    from confluo_tools.expr import ExprError

    with pytest.raises(ExprError, match=what):
        parse_by(by, Schema("calls", [Field("ts", "time"), Field("d", "duration")]))


def test_other_programs_have_the_zone_of_the_user(tmp_path: Path) -> None:
    """--tz is for this process: the remote shell and commands of alerts get TZ as it was."""
    log = tmp_path / "t.ml"
    with multilog.create(log, SCHEMA) as made, made.writer(ahead=-1) as writer:
        writer.append(block_of([1000]))
    rsh = tmp_path / "zoned"
    rsh.write_text(f'#!/bin/sh\nshift\necho "${{TZ-none}}" >> {tmp_path}/zones\nexec "$@"\n')
    rsh.chmod(0o755)
    env = {**remote_lab.env(tmp_path), "CONFLUO_RSH": str(rsh)}
    words = ["--agg", "count", "--by", "1d", "-T", "--no-header", "--tz", "Europe/Berlin"]
    for more in ({}, {"TZ": "Asia/Tokyo"}):
        done = run("confluo-query", f"sw1:{log}", *words, env={**env, **more})
        assert done.stdout.decode().startswith("1969-12-31T23:00:00"), done.stderr
    command = f"sh -c 'cat >/dev/null; echo \"$TZ\" >> {tmp_path}/zones'"
    fire = ["--once", "-t", "x: count > 0 over 1s", "--exec", command, "--tz", "Europe/Berlin", "-T"]
    done = run("confluo-monitor", log, *fire, env={**env, "TZ": "Asia/Tokyo"})
    assert done.returncode == 0, done.stderr
    zones = (tmp_path / "zones").read_text().split()
    assert zones[:2] == ["none", "Asia/Tokyo"]
    assert set(zones[2:]) == {"Asia/Tokyo"}
