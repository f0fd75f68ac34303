"""Times in tables: the same digits in each row, and the offset of local times from UTC behind them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_formats_arrow import Sink as Memory
from test_text import block_of

from confluo_tools.formats.table import TableWriter
from confluo_tools.schema import Field, Schema
from running import CAMPUS, run
from time_zones import in_zone

SECOND = 10**9
SCHEMA = Schema("t", [Field("ts", "time"), Field("who", "bytes(12)"), Field("until", "time")])
CHANGE = 1792890000  # 2026-10-25T01:00:00Z, when clocks in Europe go back


def table(times: list[int], blocks: int = 1, **options: Any) -> list[str]:
    out = Memory()
    writer = TableWriter(SCHEMA, out, **options)
    for _ in range(blocks):
        writer.write(block_of(SCHEMA, [{"ts": ns, "who": b"w" * 12, "until": ns} for ns in times]))
    writer.close()
    return out.getvalue().decode().splitlines()


def texts(times: list[int], zone: str | None, digits: int) -> list[str]:
    """Each time with its date, ``digits`` of a second, and the offset from UTC unless ``zone`` is None."""
    out = []
    for ns in times:
        text = datetime.fromtimestamp(ns // SECOND, ZoneInfo(zone or "UTC")).isoformat(" ")
        part = f".{ns % SECOND:09d}"[: digits + 1] if digits else ""
        out.append(text[:19] + part + (text[19:] if zone else ""))
    return out


@given(
    st.lists(st.sampled_from([0, 1, 1800, 3600, -3600, 86400]), min_size=1, max_size=5),
    st.lists(st.sampled_from([0, 5, 500_000_000, 123_456_000, 120_000_000, 123_000_000]), min_size=5, max_size=5),
    st.sampled_from([None, "Europe/Berlin", "Asia/Kolkata", "America/New_York", "UTC"]),
    st.none() | st.integers(25, 90),
    st.sampled_from([1, 101]),
)
def test_times_are_those_of_zoneinfo(
    seconds: list[int], parts: list[int], zone: str | None, width: int | None, blocks: int
) -> None:
    """All rows have the same digits; without some of them, different times stay different."""
    times = [(CHANGE + s) * SECOND + part for s, part in zip(seconds, parts, strict=False)]
    needed = next(d for d in (0, 3, 6, 9) if all(ns % 10 ** (9 - d) == 0 for ns in times))
    with in_zone(zone or "UTC"):
        lines = table(times, blocks, width=width, local=zone is not None)
    date = lines.pop(0).split()[1] if lines[0].startswith("date: ") else ""
    whole = texts(times, zone, needed)
    assert (date != "") == (width is not None and len({text[:10] for text in whole}) == 1)
    possible = []
    for digits in range(0, needed + 1, 3):
        shown = texts(times, zone, digits)
        if len(set(shown)) == len(set(whole)):
            possible.append([text[11:] if date else text for text in shown])
    if width is None:
        possible = possible[-1:]
    cells = [line.split("w")[0].strip() for line in lines[2:]]
    assert cells in [rows * blocks for rows in possible]
    if width is None:
        assert [line.rsplit("w", 1)[1].strip() for line in lines[2:]] == possible[0] * blocks
    assert len({len(cell) for cell in cells}) == 1


def test_later_rows() -> None:
    """More digits than the first rows, or another day: what is cut has a mark, and the offset stays if it has room."""
    first = [(CHANGE + i) * SECOND + 250_000_000 for i in range(300)]
    later = [(CHANGE + 400) * SECOND, (CHANGE + 400) * SECOND + 1, (CHANGE + 86400) * SECOND]
    schema, out = Schema("t", [Field("ts", "time")]), Memory()
    with in_zone("Europe/Berlin"):
        writer = TableWriter(schema, out, local=True)
        for times in (first, later):
            writer.write(block_of(schema, [{"ts": ns} for ns in times]))
        writer.close()
    lines = out.getvalue().decode().splitlines()
    assert lines[-4:] == ["02:04:59.250+01:00", "02:06:40.000+01:00", "02:06:40.00~+01:00", "2026-10-26 02:00:~"]


@pytest.mark.parametrize("local", [False, True])
def test_a_long_name_of_a_column_of_times_is_cut_as_a_name(local: bool) -> None:
    schema, out = Schema("t", [Field("when_the_last_packet_came_back", "time"), Field("who", "bytes(12)")]), Memory()
    with in_zone("Asia/Kolkata"):
        writer = TableWriter(schema, out, width=29, local=local)
        writer.write(block_of(schema, [{"when_the_last_packet_came_back": 1_500_000_000, "who": b"w" * 12}]))
        writer.close()
    lines = out.getvalue().decode().splitlines()
    cells = [lines[1].split()[0], lines[3].split()[0]]
    assert cells == (["when_the_last~", "05:30:01+05:30"] if local else ["when_th~", "00:00:01"])


def test_the_command() -> None:
    records = b"ts,len\n2026-10-24T00:15:00Z,1\n2026-10-25T00:30:00.123456Z,2\n2026-10-25T01:15:00.5Z,3\n"
    for more in ([], ["-W"]):
        done = run("confluo-query", "-", "--tz", "Europe/Berlin", "-o", "table", *more, stdin=records)
        assert [line[:32] for line in done.stdout.decode().splitlines()[2:]] == [
            "2026-10-24 02:15:00.000000+02:00",
            "2026-10-25 02:30:00.123456+02:00",
            "2026-10-25 02:15:00.500000+01:00",
        ]
    words = ["-c", "2", "-f", "ts,len", "--tz", "Asia/Kolkata", "-o", "table"]
    lines = run("confluo-query", CAMPUS, *words).stdout.decode().splitlines()
    assert lines[3:] == ["06:48:38.464203+05:30  150", "06:48:38.464240+05:30  150"]
