"""SLA: counts, intervals, alarms.  Against scipy, the numbers of the design, and timers that were measured."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf, isnan, nan

import pytest
import scipy  # loads scipy.stats at its first use
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.pingmesh.analysis import sla
from confluo_tools.pingmesh.analysis.sla import (
    BAD,
    DEAD,
    FEW,
    NONE,
    OK,
    ExcessTest,
    Hysteresis,
    RuleResult,
    make_rule,
    state_of,
)

MS = 1_000_000


class Counts:
    """A cell of counts."""

    def __init__(
        self, ok: int = 0, dropped: int = 0, failed: int = 0, samples: int = 0, above: int = 0, p99: float = nan
    ) -> None:
        self.ok, self.dropped, self.failed, self.probes = ok, dropped, failed, ok + failed
        self.samples, self.p99 = samples, p99
        self.above: tuple[int, ...] = (above,)
        self.p50 = self.p999 = nan


# probes in a window, drops that raise an alarm, chance to find 1e-3, 2e-3, 1e-2 (false alarm < 1e-6 at 1e-4)
DESIGN = [
    (60, 3, "0.00", "0.00", "0.02"),
    (360, 4, "0.00", "0.01", "0.49"),
    (2_400, 6, "0.04", "0.35", "1.00"),
    (10_000, 10, "0.54", "1.00", "1.00"),
    (24_000, 14, "0.99", "1.00", "1.00"),
    (150_000, 38, "1.00", "1.00", "1.00"),
]


@pytest.mark.parametrize(("n", "needed", "one", "two", "ten"), DESIGN)
def test_what_a_window_can_show(n: int, needed: int, one: str, two: str, ten: str) -> None:
    excess = make_rule("drop", 1e-3).test
    assert excess.needed(n) == needed
    assert [f"{excess.chance(n, rate):.2f}" for rate in (1e-3, 2e-3, 1e-2)] == [one, two, ten]


@given(st.integers(0, 3000), st.integers(0, 3000), st.floats(1e-6, 1 - 1e-6))
def test_tail_is_scipys(k: int, n: int, p: float) -> None:
    assert sla.binomial_tail(k, n, p) == pytest.approx(float(scipy.stats.binom.sf(k - 1, n, p)), rel=1e-8, abs=1e-13)


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_wilson_is_scipys(k: int, n: int) -> None:
    k = min(k, n)
    found = scipy.stats.binomtest(k, n).proportion_ci(0.95, "wilson")
    assert sla.wilson(k, n) == pytest.approx((found.low, found.high), rel=1e-9, abs=1e-12)
    assert sla.wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10**7), st.sampled_from([1e-5, 1e-4, 1e-3, 0.01, 0.3]), st.sampled_from([1e-6, 1e-3, 0.3]))
@settings(max_examples=60, deadline=None)
def test_needed_is_the_least(n: int, rate: float, false_alarm: float) -> None:
    needed = ExcessTest(rate, 2 * rate, false_alarm).needed(n)
    assert scipy.stats.binom.sf(needed - 1, n, rate) < false_alarm * (1 + 1e-9)
    assert scipy.stats.binom.sf(needed - 2, n, rate) >= false_alarm * (1 - 1e-9)


@pytest.mark.parametrize(
    ("metric", "threshold"), [("drop", 1e-3), ("failed", 0.01), ("p50", 5.0), ("p99", 5.0), ("p999", 5.0)]
)
def test_enough_probes_find_what_is_to_be_found(metric: str, threshold: float) -> None:
    excess = make_rule(metric, threshold).test
    n = excess.enough()
    assert excess.chance(n, excess.aim) >= 0.9
    assert excess.chance(n // 2, excess.aim) < 0.9


def test_one_drop_of_60_probes_is_not_enough_probes() -> None:
    """Acceptance check: such a window raises no alarm, and is not called good either."""
    rule = make_rule("drop", 1e-3)
    assert rule.judge(Counts(60, 1)) == RuleResult(FEW, 1 / 60, 1, 60, 3, False)
    assert rule.judge(Counts(60, 0)).state == FEW
    assert rule.judge(Counts(60, 3)).state == BAD
    assert rule.judge(Counts(40_000, 3)) == RuleResult(OK, 3 / 40_000, 3, 40_000, 0, True)
    assert rule.judge(Counts(40_000, 60)).state == BAD
    assert rule.judge(Counts(0, 0, 50)).state == DEAD
    assert rule.judge(Counts(0, 0, 0)).state == NONE


def test_between_the_thresholds_nothing_is_calm() -> None:
    rule = make_rule("drop", 1e-3)
    assert [rule.judge(Counts(100_000, k)).calm for k in (0, 50, 51, 100)] == [True, True, False, False]
    # above the threshold, and yet not more than chance makes of such a background
    noisy = make_rule("drop", 1e-3, background=9e-4)
    assert noisy.judge(Counts(100_000, 110)).state == OK


def test_times_are_judged_by_how_many_are_above() -> None:
    rule = make_rule("p99", 5.0 * MS, limit=0)
    assert rule.judge(Counts(samples=5000, above=40, p99=4.0 * MS)).state == OK
    assert rule.judge(Counts(samples=5000, above=55, p99=5.1 * MS)).state == OK  # chance
    assert rule.judge(Counts(samples=5000, above=5000, p99=9.0 * MS)).state == BAD
    assert rule.judge(Counts(samples=60, above=60, p99=9.0 * MS)).state == BAD
    assert rule.judge(Counts(samples=60, above=1, p99=9.0 * MS)).state == FEW
    assert rule.judge(Counts(5, 5)).state == NONE


def test_good_windows_raise_no_alarms() -> None:
    """A million windows of 24,000 probes at the background: less than a handful."""
    rule = make_rule("drop", 1e-3)
    dropped = scipy.stats.binom.rvs(24_000, 1e-4, size=1_000_000, random_state=7)
    assert sum(rule.judge(Counts(24_000, int(k))).state == BAD for k in dropped[dropped >= 10]) <= 5


@pytest.mark.parametrize(
    ("metric", "threshold", "more"),
    [
        ("drop", 0.0, {}),
        ("drop", 1.0, {}),
        ("drop", -1e-3, {}),
        ("p99", 0.0, {}),
        ("p98", 1.0, {}),
        ("drop", 1e-3, {"clear": 2e-3}),
        ("drop", 1e-3, {"background": 2e-3}),
        ("drop", 1e-3, {"background": 0.0}),
        ("p99", 5.0, {"false_alarm": 0.0}),
        ("p99", 5.0, {"power": 1.0}),
        ("drop", nan, {}),
    ],
)
def test_rules_that_cannot_be(metric: str, threshold: float, more: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        make_rule(metric, threshold, **more)  # type: ignore[arg-type]


def test_the_worst_rule_counts() -> None:
    judged = {s: RuleResult(s, 0.0, 0, 0, 0, False) for s in (OK, BAD, DEAD, FEW, NONE)}
    assert state_of([judged[DEAD], judged[FEW]]) == DEAD
    assert state_of([judged[OK], judged[BAD], judged[FEW]]) == BAD
    assert state_of([judged[OK], judged[FEW], judged[NONE]]) == FEW
    assert state_of([judged[OK], judged[NONE]]) == NONE
    assert state_of([judged[OK], judged[OK]]) == OK


def run(text: str, **more: int) -> str:
    """Alarms of windows b(ad), o(k), w(arm: ok but not calm), f(ew): F, C, r(epeat) or . of each."""
    states = {"b": (BAD, False), "o": (OK, True), "w": (OK, False), "f": (FEW, False)}
    alarms = Hysteresis(**more)
    out = ""
    for i, word in enumerate(text):
        state, calm = states[word]
        alarm = alarms.feed("key", i, RuleResult(state, 0.0, 0, 0, 0, calm))
        out += "." if alarm is None else {"fire": "F", "clear": "C", "repeat": "r"}[alarm.event]
    return out


@pytest.mark.parametrize(
    ("windows", "more", "alarms"),
    [
        ("oobboooo", {}, "..Fr.C.."),
        ("bobob", {}, "F.r.r"),
        ("bfoffo", {}, "F....C"),
        ("bowoo", {}, "F...C"),
        ("bobbob", {"raised": 2}, "...F.r"),
        ("bfb", {"raised": 2}, "..F"),
        ("bobw", {"calmed": 1}, "FCF."),
        ("ffff", {}, "...."),
    ],
)
def test_alarms_begin_and_end_slowly(windows: str, more: dict[str, int], alarms: str) -> None:
    assert run(windows, **more) == alarms


@settings(deadline=None)
@given(st.text("bwoc", max_size=30), st.integers(0, 30), st.integers(1, 3), st.integers(1, 3))
def test_alarms_go_on_after_a_restart(windows: str, cut: int, raised: int, calmed: int) -> None:
    """Whenever it is: what was remembered, through JSON, is what is needed."""
    states = {"b": BAD, "w": OK, "o": FEW, "c": OK}
    whole, first = Hysteresis(raised, calmed), Hysteresis(raised, calmed)
    expected, found = [], []
    alarms = first
    for end, window in enumerate(windows):
        judged = RuleResult(states[window], 1.0, 1, 1, 1, window == "c")
        if end == cut:
            alarms = Hysteresis(raised, calmed)
            alarms.restore(json.loads(json.dumps(first.memory())))
        for key in (("a", 1), ("b", 2)):
            expected.append(whole.feed(key, end, judged))
            found.append(alarms.feed(key, end, judged))
    assert found == expected


def test_alarms_are_each_keys_own() -> None:
    alarms = Hysteresis()
    bad, calm = RuleResult(BAD, 0.0, 0, 0, 0, False), RuleResult(OK, 0.0, 0, 0, 0, True)
    assert alarms.feed("a", 10, bad) == ("fire", 0)
    assert alarms.feed("b", 20, calm) is None
    assert alarms.feed("a", 20, calm) is None
    assert alarms.feed("b", 30, bad) == ("fire", 0)
    assert len(alarms) == 2
    assert alarms.feed("a", 30, calm) == ("clear", 20)
    assert len(alarms) == 1


# Times of connects between two namespaces with dropped SYNs, s: shortest, median, longest (kernel 6.18)
MEASURED = [
    ("linux", 0, (0.000074, 0.000105, 0.000150)),
    ("linux", 1, (1.002, 1.015, 1.031)),
    ("linux", 2, (2.025, 2.042, 2.058)),
    ("linux", 3, (3.048, 3.066, 3.080)),
    ("linux", 1, (1.099,)),
    ("linux", 2, (2.098,)),
    ("linux-classic", 0, (0.000075, 0.000103, 0.000145)),
    ("linux-classic", 1, (1.002, 1.018, 1.032)),
    ("linux-classic", 2, (3.017, 3.034, 3.047)),
    ("linux-classic", 3, (7.054, 7.178, 7.303)),
    ("windows", 1, (3.02,)),
    ("windows", 2, (9.05,)),
]


@pytest.mark.parametrize(("name", "drops", "times"), MEASURED)
def test_connection_times_as_measured(name: str, drops: int, times: tuple[float, ...]) -> None:
    assert {sla.drops_by_time(t, name) for t in times} == {drops}
    found = [[n for low, high, n in sla.retry_signature(name) if low <= round(t * 1e9) < high][:1] for t in times]
    assert found == [[drops] if drops else []] * len(times)


def test_what_is_slow_is_no_drop() -> None:
    assert sla.drops_by_time(1.6, "linux") is None
    assert sla.drops_by_time(1.0, "windows") is None
    assert sla.drops_by_time(2.0, "linux-classic") is None
    assert sla.drops_by_time(0.5, "windows") == 0
    for table in sla.SIGNATURES.values():
        assert table[-1] == (0.95, inf, 0)  # after all drops, the rest
        assert all(a[1] <= b[0] for a, b in pairwise(table[:-1]))
    assert isnan(sla.finite(1.0, nan)) is False
    assert sla.finite(nan, 3.0) == 3.0
