"""Algorithm 1 of DETER: every inferred time within the threshold; the compiled sampler gives the same runs."""

from __future__ import annotations

import itertools
import random
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from confluo_tools.core.replay.rate_sampling import RunList, RunSampler, infer_times
from confluo_tools.replay.sampling import RateSampler, TimeRun, gap_runs, inferred_times, rate_runs, roundest

STEPS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40_000), st.sampled_from([0, 1230, 1_000_000])))
THRESHOLDS = st.sampled_from([0, 1, 999, 5000, 20_000])
TIMES = st.lists(st.one_of(st.integers(-50, 50), st.integers(-(1 << 63), (1 << 63) - 1)))


def times_of(steps: list[int], start: int = 1_790_000_000_000_000_000) -> list[int]:
    times = [start]
    for step in steps:
        times.append(times[-1] + step)
    return times


def compiled(times: list[int], threshold: int, piece: int) -> list[TimeRun]:
    sampler = RunSampler(threshold)
    parts = [sampler.offer(array("q", times[i : i + piece])) for i in range(0, len(times), piece)]
    return [run for part in [*parts, sampler.flush()] for run in runs_of(part)]


def runs_of(part: RunList) -> list[TimeRun]:
    return [TimeRun(*its) for its in zip(part.times, part.counts, part.steps, strict=True)]


def errors(times: list[int], runs: list[TimeRun]) -> list[int]:
    return [abs(a - b) for a, b in zip(times, inferred_times(runs), strict=True)]


@given(STEPS, THRESHOLDS)
@example([0, 0, 0, 0], 0)
@example([1230] * 50 + [2460] * 50, 0)
def test_no_inferred_time_is_further_than_the_threshold(steps: list[int], threshold: int) -> None:
    times = times_of(steps)
    runs = list(rate_runs(times, threshold))
    assert max(errors(times, runs)) <= threshold
    assert sum(run.packets for run in runs) == len(times)


@given(TIMES, THRESHOLDS)
def test_the_bound_holds_for_times_that_go_back(times: list[int], threshold: int) -> None:
    inferred = [run.time + i * run.step for run in rate_runs(times, threshold) for i in range(run.packets)]
    assert all(abs(a - b) <= threshold for a, b in zip(times, inferred, strict=True))


@given(TIMES, THRESHOLDS, st.sampled_from([2, 1000, 1024]))
def test_the_bound_holds_with_a_grain(times: list[int], threshold: int, grain: int) -> None:
    sampler = RateSampler(threshold, grain)
    runs = [run for run in (*map(sampler.offer, times), sampler.flush()) if run is not None]
    inferred = [run.time + i * run.step for run in runs for i in range(run.packets)]
    assert all(abs(a - b) <= threshold for a, b in zip(times, inferred, strict=True))
    assert threshold < grain or all(run.time % grain == 0 for run in runs)


@given(st.integers(0, 1 << 62), st.integers(0, 100_000))
def test_the_roundest_number(low: int, width: int) -> None:
    found = roundest(low, low + width)
    zeros = max(n for n in range(64) if (low + width) >> n << n >= low)
    assert low <= found <= low + width
    assert found % (1 << zeros) == 0


@given(STEPS, THRESHOLDS)
def test_sampled_times_are_exact_and_inferred_ones_do_not_pass_them(steps: list[int], threshold: int) -> None:
    times = times_of(steps)
    runs = list(rate_runs(times, threshold))
    inferred = list(inferred_times(runs))
    assert inferred == sorted(inferred)
    at = 0
    for run in runs:
        assert inferred[at] == times[at] == run.time
        at += run.packets


@given(TIMES, THRESHOLDS, st.integers(1, 9))
@example([0, 1 << 61, (1 << 61) - 1, -(1 << 63), (1 << 63) - 1], 5000, 2)
@example([-(1 << 63), -(1 << 63), -(1 << 63) + 1], 20_000, 1)
def test_the_compiled_sampler_gives_the_same_runs(times: list[int], threshold: int, piece: int) -> None:
    assert compiled(times, threshold, piece) == list(rate_runs(times, threshold))


@given(STEPS, THRESHOLDS)
def test_the_compiled_sampler_and_inference_agree_with_the_definition(steps: list[int], threshold: int) -> None:
    times = times_of(steps)
    runs = compiled(times, threshold, 1000)
    assert runs == list(rate_runs(times, threshold))
    found = infer_times(*(array(code, [getattr(r, name) for r in runs]) for code, name in
                          (("q", "time"), ("q", "step"), ("I", "packets"))))  # fmt: skip
    assert list(found) == list(inferred_times(runs))


def test_a_long_trace_crosses_the_pieces_of_the_compiled_sampler() -> None:
    rng = random.Random(5)
    times = times_of([rng.choice((1230, 1230, 1230, 90_000)) for _ in range(20_000)])
    assert compiled(times, 500, 20_001) == list(rate_runs(times, 500))


def test_a_change_of_rate_within_a_burst_misleads_only_gap_based_sampling() -> None:
    times = times_of([1230] * 400 + [2460] * 400)  # the paper's figure 5: the rate halves, no gap
    assert len(list(gap_runs(times, 5000))) == 1
    assert max(errors(times, list(gap_runs(times, 5000)))) > 100_000
    rate = list(rate_runs(times, 5000))
    assert len(rate) == 2
    assert max(errors(times, rate)) <= 5000


@given(STEPS, st.sampled_from([0, 1500, 50_000]))
def test_bursts_end_at_gaps(steps: list[int], gap: int) -> None:
    times = times_of(steps)
    starts = [times[0], *(b for a, b in itertools.pairwise(times) if b - a > gap)]
    assert [run.time for run in gap_runs(times, gap)] == starts


def test_no_packets_make_no_runs() -> None:
    assert list(rate_runs([], 5)) == list(gap_runs([], 5)) == list(inferred_times([])) == compiled([], 5, 1) == []


@pytest.mark.parametrize("threshold", [-1, 1 << 62])
def test_a_threshold_out_of_range_is_refused(threshold: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        list(rate_runs([1], threshold))
    with pytest.raises(ValueError, match="threshold"):
        RunSampler(threshold)
