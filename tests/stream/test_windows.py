"""Windows of event time: each row is in the window of its time, or counted as late, whatever the clock does."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.stream.event_windows import WindowStage
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import Field, Schema
from function_lab import MINUTE, FunctionRun, TwinWindows, cut

SECOND = 10**9
NUMBERED = Schema("numbered", [Field("ts", "time"), Field("n", "u16")])
START = 1_700_000_000 * SECOND
# Small steps in both directions, and leaps: over a window, over a minute, over a year.
STEPS = st.one_of(
    st.integers(-3 * SECOND, 5 * SECOND),
    st.sampled_from([0, 1, SECOND, 10 * SECOND, -SECOND, -10 * SECOND]),
    st.sampled_from([25 * SECOND, -25 * SECOND, 2 * MINUTE, -2 * MINUTE, 365 * 1440 * MINUTE, -365 * 1440 * MINUTE]),
)
TIMES = st.lists(STEPS, min_size=1, max_size=120).map(lambda steps: list(accumulate([START, *steps])))
LEAPS = st.lists(st.sampled_from([0, 1, 9, 11, 95, 96, 3600, -1, -11, -96, -3600]), min_size=1, max_size=60).map(
    lambda seconds: [START + s * SECOND for s in seconds]
)


def numbered(times: list[int]) -> Block:
    return block_of_rows(NUMBERED, [{"ts": t, "n": i} for i, t in enumerate(times)])


def run(times: list[int], every: int, late: int, sizes: list[int]) -> FunctionRun:
    bins = f"0..{len(times)}/1"
    words = {"field": "n", "bins": bins, "every": f"{every}ns", "late": f"{late}ns" if late else "0"}
    out = FunctionRun({"histogram": words}, NUMBERED)
    out.write(cut(numbered(times), sizes))
    return out


def windows_given(out: FunctionRun) -> list[tuple[int, list[int]]]:
    """(start, numbers of its rows), in the order given."""
    found: list[tuple[int, list[int]]] = []
    left = 0
    for start, low, count, total in out.rows("ts", "low", "count", "total"):
        if left == 0:
            found.append((start, []))
            left = total
        assert found[-1][0] == start
        found[-1][1].extend([int(low)] * count)
        left -= count
    assert left == 0
    return found


@given(
    st.one_of(TIMES, LEAPS),
    st.sampled_from([(10 * SECOND, 0), (10 * SECOND, 5 * SECOND), (2 * SECOND, 30 * SECOND), (7 * 10**6, 0)]),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_windows_are_those_of_the_rules_however_the_rows_are_cut(
    times: list[int], length: tuple[int, int], sizes: list[int]
) -> None:
    every, late = length
    twin = TwinWindows(every, late)
    for number, t in enumerate(times):
        twin.row(number, t)
    out = run(times, every, late, sizes)
    assert out.stage.open_windows == len(twin.open)
    stage = out.finish()
    twin.finish()
    expected = [(start, sorted(rows)) for start, rows in twin.given]
    assert windows_given(out) == expected
    assert (stage.late_rows, stage.dropped, stage.steps) == (len(twin.refused),) * 2 + (twin.steps,)
    for start, rows in expected:
        assert all(start <= times[i] < start + every for i in rows)
    seen = Counter(i for _, rows in expected for i in rows)
    assert seen + Counter(twin.refused) == Counter(range(len(times)))


@given(st.lists(st.integers(0, 100 * SECOND), max_size=200), st.integers(1, 50))
def test_rows_in_order_give_each_window_once_and_in_order(offsets: list[int], size: int) -> None:
    times = sorted(START + t for t in offsets)
    out = run(times or [START], 10 * SECOND, 0, [size])
    out.finish()
    starts = [start for start, _ in windows_given(out)]
    assert starts == sorted(set(starts))
    assert out.stage.late_rows == 0


def test_one_wrong_clock_does_not_stop_the_others() -> None:
    future = START + 10 * 365 * 1440 * MINUTE
    times = [START, START + SECOND, future, START + 2 * SECOND, 0, START + 3 * SECOND, START + 11 * SECOND]
    out = run(times, 10 * SECOND, 0, [100])
    stage = out.finish()
    assert (stage.late_rows, stage.steps) == (0, 0)
    assert sorted(windows_given(out)) == [(0, [4]), (START, [0, 1, 3, 5]), (START + 10 * SECOND, [6]), (future, [2])]


def test_a_clock_that_was_set_begins_new_windows() -> None:
    times = [START, START + SECOND, START - 5 * MINUTE, START - 5 * MINUTE + SECOND, START + 20 * MINUTE] * 2
    out = run(times, 10 * SECOND, 0, [3])
    stage = out.finish()
    assert stage.late_rows == 0
    assert stage.steps == 2
    [remark] = out.function.remarks(stage)
    assert remark == "the time went back 2 times; windows may have been given twice, add them"
    assert sum(len(rows) for _, rows in windows_given(out)) == len(times)


def test_a_clock_a_little_behind_has_late_rows_until_it_has_caught_up() -> None:
    times = [START + s * SECOND for s in (0, 10, 3, 9, 11, 13)]
    out = run(times, 10 * SECOND, 0, [2])
    stage = out.finish()
    assert stage.late_rows == stage.dropped == 2
    assert windows_given(out) == [(START, [0]), (START + 10 * SECOND, [1, 4, 5])]


def test_late_rows_wait_for_the_time_given() -> None:
    times = [START + s * SECOND for s in (0, 12, 3, 15, 9, 16)]
    out = run(times, 10 * SECOND, 5 * SECOND, [1])
    out.stage.silence = 0
    assert [start for start, _ in windows_given(out)] == [START]
    out.finish()
    assert out.stage.late_rows == 1  # 9 s, after 15 s
    assert out.function.remarks(out.stage) == ["1 record came after the end of the window; late: 5s can be raised"]
    assert windows_given(out) == [(START, [0, 2]), (START + 10 * SECOND, [1, 3, 5])]


def test_silence_ends_windows_and_later_rows_begin_them_again() -> None:
    out = run([START, START + SECOND], 10 * SECOND, SECOND, [2])
    for ms in range(0, 10_000, 200):
        assert out.stage.pass_time(ms * 10**6)
    assert out.blocks == []
    for ms in range(10_000, 12_000, 200):
        assert out.stage.pass_time(ms * 10**6)
    assert windows_given(out) == [(START, [0, 1])]
    assert out.stage.open_windows == 0
    out.write([numbered([START, START + 2 * SECOND])])
    out.finish()
    assert windows_given(out) == [(START, [0, 1]), (START, [0, 1])]
    assert out.stage.late_rows == 0


def test_a_busy_chain_is_not_silence() -> None:
    out = run([START], 10 * SECOND, 0, [1])
    for hour in range(30):  # each look comes an hour after the one before
        assert out.stage.pass_time(hour * 3600 * SECOND)
    assert out.blocks == []
    out.stage.silence = 0
    for ms in range(0, 60_000, 200):
        assert out.stage.pass_time(10**15 + ms * 10**6)
    assert out.blocks == []


@pytest.mark.parametrize(
    ("time", "every", "late"), [(1, 1, 0), (2, 1, 0), (-1, 1, 0), (0, 0, 0), (0, -1, 0), (0, 10, -1), (0, 1, 100)]
)
def test_impossible_windows_are_refused(time: int, every: int, late: int) -> None:
    with pytest.raises(ValueError, match=r"column|windows"):
        WindowStage(Layout([("ts", 8, 8, 1), ("n", 2, 2, 1)]), time, every, late)


def test_times_at_the_ends_of_the_range_are_late() -> None:
    ends = [-(1 << 63), -(1 << 62), 1 << 62, (1 << 63) - 1]
    out = run([START, *ends, START + 1], 10 * SECOND, 0, [2])
    assert out.finish().late_rows == 4  # type: ignore[attr-defined]
    assert windows_given(out) == [(START, [0, 5])]
