"""The edges and numbers of ticks, against the counter of the kernel."""

from __future__ import annotations

import re
import time

import pytest

from confluo_tools.kernel import tick
from confluo_tools.replay.engine.tick import start_time

NEAR = 500_000  # ns: an interrupt comes less than this after its tick, mostly


def test_the_edge_that_is_seen_is_that_of_the_list() -> None:
    try:
        edges = [tick._listed_edge() for _ in range(20)]
    except OSError:
        pytest.skip("the list of timers cannot be read here")
    listed = next(edge for edge in edges if edge >= 0)
    assert {edge for edge in edges if edge >= 0} == {listed}
    apart = [(tick._seen_edge() - listed) % tick.tick_length() for _ in range(3)]
    assert min(apart) < NEAR


def test_the_place_among_the_ticks_has_the_number_of_the_kernel() -> None:
    length = tick.tick_length()
    for _ in range(50):
        before = tick.tick_phase(time.monotonic_ns())
        try:
            with open(tick.TIMERS, encoding="utf-8") as f:
                found = re.search(r"^jiffies: (\d+)$", f.read(), re.MULTILINE)
        except OSError:
            pytest.skip("the list of timers cannot be read here")
        after = tick.tick_phase(time.monotonic_ns())
        assert found is not None
        if before // length == after // length and before % length > NEAR:
            assert int(found[1]) % tick.WHEEL == after // length
            return
    pytest.fail("each reading took longer than a tick")


@pytest.mark.parametrize(("length", "ticks"), [(0, 1), (62, 1), (63, 8), (503, 8), (504, 64), (100_000, 64)])
def test_a_start_is_at_its_place(length: int, ticks: int) -> None:
    one = tick.tick_length()
    for phase in (0, 1, 3 * one + 17, tick.WHEEL * one - 1):
        before = time.monotonic_ns()
        start = start_time(phase, length * one)
        assert before < start <= time.monotonic_ns() + 5_000_000 + ticks * one
        assert (tick.tick_phase(start) - phase) % (ticks * one) == 0
