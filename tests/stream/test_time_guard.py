"""Wrong time stamps among right ones: they change no result of a service, and a clock that steps stops none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.stream.time_guard import TimeGuard
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import builtin
from confluo_tools.stream.services.guarded import GuardedService, WindowedService
from confluo_tools.stream.services.synflood import SynFloodService
from confluo_tools.stream.services.tcp_rate import TcpRateService
from confluo_tools.stream.services.top import TopService

SECOND = 10**9
HOUR = 3600 * SECOND
BEGIN = 1_800_000_000 * SECOND
SYN, ACK = 2, 16
PACKETS = builtin("packet")
SECONDS = 30
ANSWERING = {"src_ip": 7, "src_port": 77, "tcp_flags": ACK}  # a connection that goes on
WRONG = (BEGIN + 1000 * HOUR, BEGIN - 1000 * HOUR, 1 << 62, -(1 << 63))  # ns


def packets(start: int = BEGIN) -> list[dict[str, Any]]:
    """A flood of the port 80 from the 5th to the 15th second, with other traffic, in the order of time."""
    out = []
    for i in range(SECONDS * 20):
        ts = start + i * SECOND // 20
        flood = 5 <= i // 20 < 15
        source = {"src_ip": i, "src_port": 1000 + i, "tcp_flags": SYN} if flood else ANSWERING
        row = {"ts": ts, "len": 100 + i % 7, "ip_version": 4, "proto": 6, "dst_ip": start // HOUR % 256, "dst_port": 80}
        out.append({**row, **source, "payload_len": 40, "ip_len": 80, "tcp_seq": i * 40})
    return out


def service(name: str) -> WindowedService:
    if name == "synflood":
        return SynFloodService(
            PACKETS, 100, 10 * SECOND, ratio=0.5, clear=0.5, timeout=SECOND, lateness=SECOND, host="h"
        )
    if name == "top":
        return TopService(PACKETS, "dst_port", "bytes", most=9, window=2 * SECOND, lateness=SECOND)
    return TcpRateService(PACKETS, window=2 * SECOND, lateness=SECOND)


def results(name: str, rows: Sequence[dict[str, Any]], cuts: Sequence[int] = ()) -> tuple[list[Any], list[str]]:
    """What a guarded service gives for rows in blocks that end at ``cuts``, and its notes."""
    guarded = GuardedService(service(name), PACKETS)
    out: list[Any] = []
    for start, end in pairwise(sorted({0, len(rows), *(c for c in cuts if c < len(rows))})):
        guarded.take(block_of_rows(PACKETS, rows[start:end]), None)
        out += taken(guarded)
    guarded.finish(True)
    return [*out, *taken(guarded)], list(guarded.notes())


def taken(guarded: GuardedService) -> Iterator[Any]:
    for block in guarded.results():
        names = [n for n in block.layout.names if n != "key_id"]
        for row in range(block.rows):
            yield {n: block.get(block.layout.index(n), row) for n in names}


@pytest.mark.parametrize("name", ["synflood", "top", "tcp-rate"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_time_changes_nothing(name: str, wrong: int) -> None:
    good = packets()
    expected, notes = results(name, good)
    assert len(expected) > 1
    assert not [line for line in notes if "far from" in line]
    for at, cuts in ((1, ()), (150, ()), (150, (150,)), (150, (151,)), (150, (150, 151))):
        bad = {**good[at], "ts": wrong}
        found, notes = results(name, [*good[:at], bad, *good[at:]], cuts)
        assert found == expected
        assert "packets that were left out, with a time far from that of the others: 1" in notes


@pytest.mark.parametrize("name", ["synflood", "top", "tcp-rate"])
def test_a_clock_that_steps_back_stops_no_service(name: str) -> None:
    """What comes after it gives what it would give alone."""
    before, after = packets(BEGIN + HOUR), packets()
    found, notes = results(name, [*before, *after])
    assert found == results(name, before)[0] + results(name, after)[0]
    assert "the times of packets stepped back 1 times; windows began again" in notes


@given(st.lists(st.integers(0, 40), max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_the_guard_follows_its_rule(minutes: list[int], cuts: list[int]) -> None:
    """Against the rule, row by row; no row is lost unless it is strange, and their order stays."""
    schema = PACKETS.project(["ts"])
    far = 2 * 60 * SECOND
    guard = TimeGuard(schema.layout, 0, far)
    found: list[tuple[int, bool]] = []
    for start, end in pairwise(sorted({0, len(minutes), *(c for c in cuts if c < len(minutes))})):
        block = block_of_rows(schema, [{"ts": m * 60 * SECOND} for m in minutes[start:end]])
        for part, picks, stepped in guard.sift(block):
            times = [part.get(0, row) // (60 * SECOND) for row in (picks.tolist() if picks else range(part.rows))]
            found += [(t, stepped and not i) for i, t in enumerate(times)]
    held = guard.release()
    found += [(held.get(0, 0) // (60 * SECOND), False)] if held is not None else []
    assert found == by_rule(minutes)


def by_rule(minutes: Sequence[int]) -> list[tuple[int, bool]]:
    out: list[tuple[int, bool]] = []
    latest: int | None = None
    held: tuple[int, int] | None = None  # time, side
    left = list(minutes)
    while left:
        t = left[0]
        latest = t if latest is None else latest
        side = 1 if t - latest > 2 else -1 if latest - t > 3 else 0
        if side and held is not None and held[1] == side and t >= held[0] - 2:
            out.append((held[0], side < 0))
            latest, held = held[0], None
            continue
        held = (t, side) if side else None
        if not side:
            latest = max(latest, t)
            out.append((t, False))
        left.pop(0)
    return [*out, (held[0], False)] if held is not None and held[1] > 0 else out
