"""Local times at which the clock goes back or forward, compared with the texts that zoneinfo makes of each moment."""

from __future__ import annotations

import operator
import struct
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confluo_tools as ct
import twin_leaves
from confluo_tools import multilog, units
from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile
from confluo_tools.expr.local_times import without_local_times
from confluo_tools.expr.syntax import ExprError
from confluo_tools.schema import Field, Schema
from running import run
from time_zones import in_zone

SECOND = 10**9
SCHEMA = Schema("calls", [Field("ts", "time"), Field("n", "u32"), Field("hops", "list(time, 3)")])
# Changes of a zone, in UTC: by an hour, by half an hour, at the two ends of Ramadan, from midnight on, by a whole day.
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
    "Asia/Kathmandu": ["1985-12-31T18:30", "2026-10-25T01:00"],
    "Africa/Casablanca": ["2026-02-15T02:00", "2026-03-22T02:00"],
    "Africa/Cairo": ["2026-04-23T22:00", "2026-10-29T21:00"],
    "America/St_Johns": ["2010-03-14T03:31", "2010-11-07T02:31"],
    "Pacific/Apia": ["2011-12-30T10:00", "2012-03-31T14:00"],
}
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
MINUTE = 60
AROUND = 1700 * MINUTE  # more than a day, and an hour of the clock


def utc(text: str) -> int:
    """Seconds since 1970."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def clock(second: int, zone: str) -> str:
    """What the clock of ``zone`` shows, without an offset."""
    return datetime.fromtimestamp(second, ZoneInfo(zone)).replace(tzinfo=None).isoformat()


def of_row(ns: int, zone: str) -> str:
    return f"{clock(ns // SECOND, zone)}.{ns % SECOND:09d}"


@cache
def minutes(change: int, zone: str) -> list[tuple[int, str]]:
    """Each minute around a change, and what the clock shows: all offsets here are whole minutes."""
    return [(at, clock(at, zone)) for at in range(change - 2 * AROUND, change + 2 * AROUND, MINUTE)]


def ends(text: str, change: int, zone: str) -> tuple[int, int]:
    """The first and the last ns that have the time ``text``; (change, change - 1) if the clock skips it."""
    found = [at for at, shown in minutes(change, zone) if shown.startswith(text[:16])]
    if not found:
        at = next(at for at, shown in minutes(change, zone) if shown > text[:16])
        return at * SECOND, at * SECOND - 1
    if len(text) <= 16:
        return found[0] * SECOND, (found[-1] + MINUTE) * SECOND - 1
    part = round(float(text[17:]) * SECOND)
    return found[0] * SECOND + part, found[-1] * SECOND + part


def block_of(times: list[int]) -> Block:
    n = len(times)
    return Block.wrap(SCHEMA.layout, n, [struct.pack(f"<{n}q", *times), bytes(4 * n), bytes(24 * n)])


def selected(text: str, block: Block, local: bool = True) -> list[int]:
    return twin_leaves.select(compile(text, SCHEMA, local=local).tree, block)


@pytest.mark.parametrize(("zone", "text"), [(zone, text) for zone in CHANGES for text in CHANGES[zone]])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_rows_are_those_with_this_text(zone: str, text: str, data: st.DataObject) -> None:
    """For ==, != and in: rows of which the local time begins with the text.  For orders: its first or last moment."""
    change = utc(text)
    near = st.integers(-AROUND // 900, AROUND // 900).map(lambda n: n * 900) | st.integers(-2, 2)
    seconds = data.draw(st.lists(near, min_size=1, max_size=20))
    times = [(change + s + shift) * SECOND + f for s in seconds for shift in (0, 3600, 1800) for f in (0, 250_000_000)]
    # A wall-clock time before or after the change, as if the clock had not changed: it may not exist, or be two.
    shown = datetime.fromisoformat(clock(change - 7200, zone)) + timedelta(seconds=7200 + data.draw(near))
    wanted = shown.isoformat()[: data.draw(st.sampled_from([10, 13, 16, 19]))]
    wanted += data.draw(st.sampled_from(["", ".25"])) if len(wanted) == 19 else ""
    exact = wanted + "0" * 7 if "." in wanted else wanted + "." + "0" * 9 if len(wanted) == 19 else wanted
    equal = [i for i, ns in enumerate(times) if of_row(ns, zone).startswith(exact)]
    first, last = ends(wanted, change, zone)
    block = block_of(times)
    expected = {
        f"ts == {wanted}": equal,
        f"ts in {{{wanted}, 2001-01-01}}": equal,
        f"ts != {wanted}": [i for i in range(len(times)) if i not in equal],
        f"not ts == {wanted}": [i for i in range(len(times)) if i not in equal],
        f"ts in {wanted}..": [i for i, ns in enumerate(times) if ns >= first],
        f"ts in {wanted}..{wanted}": [i for i, ns in enumerate(times) if first <= ns <= last],
    }
    for op, compare in ORDERS.items():
        if first > last:  # no row equals it: the moment of the change is its place
            rows = [i for i, ns in enumerate(times) if (ns < first) == (op[0] == "<")]
        else:
            limit = first if op in ("<", ">=") else last
            rows = [i for i, ns in enumerate(times) if compare(ns, limit)]
        expected[f"ts {op} {wanted}"] = rows
    with in_zone(zone):
        plain = {text: without_local_times(text, SCHEMA) for text in expected}
        assert {text: selected(text, block) for text in expected} == expected
        until = last if len(wanted) > 16 else last + 1
        assert units.time_span(wanted, local=True) == (first, max(first, until))
    assert {text: selected(plain[text], block, local=False) for text in expected} == expected


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("2026-10-25T02:15:00", [1, 3]),
        ("2026-10-25T02:15", [1, 3]),
        ("2026-10-25T02", [1, 2, 3]),
        ("2026-03-29T02", []),
        ("2026-03-29T02:15", []),
        ("2026-03-29T02:15:00.5", []),
        ("2026-03-29T03:15", [5]),
    ],
)
def test_the_command(text: str, rows: list[int]) -> None:
    times = ["2026-10-25T00:15:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:15:00Z", "2026-03-29T01:00:00Z"]
    times += ["2026-03-29T01:15:00Z", "2026-03-29T02:15:00Z"]
    records = "ts,n\n" + "".join(f"{ts},{n}\n" for n, ts in enumerate(times, 1))
    words = ["confluo-query", "-", "--tz", "Europe/Berlin", "-o", "csv", "--no-header", "-f", "n"]
    for expr in (f"ts == {text}", f"ts in {{{text}}}"):
        assert run(*words, expr, stdin=records.encode()).stdout.decode().split() == [str(n) for n in rows]


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [
        ("2026-03-29T02", "2026-03-29T02", []),
        ("2026-03-29T02:10", "2026-03-29T02:50", []),
        ("2026-03-29T02:50", "2026-03-29T02:10", []),
        ("2026-03-29T02:30", "2026-03-29T03:15", ["01:00", "01:15"]),
        ("2026-03-29T01:30", "2026-03-29T02:30", ["00:30", "00:45"]),
        ("2026-10-25T02:30", "2026-10-25T02:30", ["00:30", "00:45", "01:00", "01:15", "01:30"]),
        ("2026-03-29T03", "2026-03-29T01:30", None),
        ("2026-03-29T02:30", "2026-03-29T01:30", None),
        ("2026-03-29T03:00:00", "2026-03-29T03:00:00", None),
    ],
)
def test_periods(tmp_path: Path, since: str, until: str, hours: list[str] | None) -> None:
    """A limit that the clock skips is the change; a period that is empty for this reason has no rows."""
    start = utc(f"{since[:10]}T00:00")
    with multilog.create(tmp_path / "x.ml", SCHEMA) as log, log.writer(ahead=-1) as writer:
        writer.append(block_of([(start + 900 * i) * SECOND for i in range(12)]))
    words = ["--since", since, "--until", until, "--tz", "Europe/Berlin", "-o", "csv", "--no-header", "-f", "ts"]
    done = run("confluo-query", tmp_path / "x.ml", *words)
    source = ct.open(str(tmp_path / "x.ml"))
    with in_zone("Europe/Berlin"):
        if hours is None:
            assert done.returncode == 2
            assert b"is not after" in done.stderr
            with pytest.raises(ct.ConfluoError, match="is not after"):
                source.count(since=since, until=until, local=True)
            return
        assert (done.returncode, done.stderr) == (0 if hours else 1, b"")
        assert [line[11:16] for line in done.stdout.decode().split()] == hours
        assert source.count(since=since, until=until, local=True) == len(hours)


def test_lists_of_times() -> None:
    """One element is enough for ==; a sequence takes times that are one moment."""
    first, again = (utc(text) * SECOND for text in ("2026-10-25T00:15", "2026-10-25T01:15"))
    between = utc("2026-10-25T00:30") * SECOND
    hops = [(first, 0, 0), (again, 5, 0), (between, 7, 0), (1, between, again)]
    block = Block.wrap(SCHEMA.layout, 4, [bytes(32), bytes(16), struct.pack("<12q", *sum(hops, ()))])
    with in_zone("Europe/Berlin"):
        for text, rows in {
            "hops == 2026-10-25T02:15": [0, 1, 3],
            "hops[0] == 2026-10-25T02:15": [0, 1],
            "hops == 2026-03-29T02:15": [],
            "hops != 2026-03-29T02:15": [0, 1, 2, 3],
            "hops has [2026-03-29T02:15]": [],
            "hops != [2026-03-29T02:15]": [0, 1, 2, 3],
            "hops starts [2026-10-25T02:15+02:00]": [0],
        }.items():
            assert selected(text, block) == rows, text
            if "[" not in text:
                assert selected(without_local_times(text, SCHEMA), block, local=False) == rows, text
        with pytest.raises(ExprError, match="shows '2026-10-25T02:15' twice"):
            compile("hops has [2026-10-25T02:15]", SCHEMA, local=True)


def test_ranges_that_are_empty_by_mistake_stay_errors() -> None:
    with in_zone("Europe/Berlin"):
        for text in ("2026-03-29T02:30..2026-03-28", "2026-03-30..2026-03-29", "2026-03-30..2026-03-29T02:30"):
            with pytest.raises(ExprError, match="is empty"):
                compile(f"ts in {text}", SCHEMA, local=True)
