"""Statistics of probe counts: intervals, sufficient numbers of probes, rules and alerts.

Pingmesh (SIGCOMM 2015) alerts when the drop rate is above 1e-3 or P99 above 5 ms.  A fixed threshold is too low for
one pair: one drop in 60 probes is 1.7e-2.  So a group is bad here when the background reaches its count less often
than once in a million windows, and a window in which a rate of twice the threshold could stay undetected is *not enough
probes*, not *ok*.

Pure functions over numbers; `pingmesh.analysis.probe_tally` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from math import exp, inf, isnan, lgamma, log, log1p, nan, sqrt
from typing import Any, NamedTuple, Protocol

BACKGROUND = 1e-4  # drop rate of a healthy network: 1e-4 to 1e-5 in the paper
FALSE_ALARM = 1e-6  # chance that the background alone is bad, for one group and window
POWER = 0.9  # chance that a window with enough probes detects the rate to detect
FACTOR = 2.0  # that rate, as a multiple of the threshold
SHARE = 5.0  # for quantiles: the share above the limit to detect, as a multiple of its normal share
MAX_PROBES = 1 << 40  # largest sample size that is computed
Z95 = 1.959963984540054

# Meaning of connection times of probes without TCP_INFO: (seconds from, to, drops); 0 drops: slow, but no drop.  Timers
# fire late, never early: by at most a fifth of a second as measured, by a third under load.
SIGNATURES: dict[str, tuple[tuple[float, float, int], ...]] = {
    "linux": (
        (0.95, 1.3, 1),
        (1.95, 2.4, 2),
        (2.95, 3.5, 3),
        (3.95, 4.5, 4),
        (4.95, 5.6, 5),
        (6.9, 7.7, 6),
        (0.95, inf, 0),
    ),
    "linux-classic": ((0.95, 1.3, 1), (2.95, 3.5, 2), (6.9, 7.7, 3), (0.95, inf, 0)),
    "windows": ((2.95, 3.5, 1), (8.9, 9.7, 2), (0.95, inf, 0)),
}


def wilson(k: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a share, k of n; (0, 1) for n = 0."""
    if n <= 0:
        return 0.0, 1.0
    p, zz = k / n, z * z
    middle, half = p + zz / (2 * n), z * sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low, high = (middle - half) / (1 + zz / n), (middle + half) / (1 + zz / n)
    return (0.0 if k == 0 else max(low, 0.0)), (1.0 if k == n else min(high, 1.0))


def _tail(k: int, term: float, ratio: Callable[[int], float], mean: float) -> float:
    # Sum of terms from k on.  Each is the term before times ratio(k); they fall beyond the mean.
    total = 0.0
    while term > 0.0:
        total += term
        term *= ratio(k)
        k += 1
        if k > mean and term < total * 1e-16:
            break
    return min(total, 1.0)


@lru_cache(maxsize=1 << 16)
def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) of a binomial variable."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    if k <= n * p:
        return max(1.0 - binomial_tail(n - k + 1, n, 1 - p), 0.0) if n - k + 1 > n * (1 - p) else _middle(k, n, p)
    first = exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p))
    odds = p / (1 - p)
    return _tail(k, first, lambda i: (n - i) / (i + 1) * odds, n * p)


def _middle(k: int, n: int, p: float) -> float:
    # k at the mean, where both tails are long: sum term by term.
    total, odds, i = 0.0, p / (1 - p), k
    term = exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p))
    while i <= n and (term > total * 1e-17 or i < n * p):
        total += term
        term *= (n - i) / (i + 1) * odds
        i += 1
    return min(total, 1.0)


class ExcessTest(NamedTuple):
    """Test whether a count of n is too high.

    ``rate``: of the background; ``aim``: the rate to detect.  Counts are binomial.
    """

    rate: float
    aim: float
    false_alarm: float = FALSE_ALARM
    power: float = POWER

    def needed(self, n: int) -> int:
        """The smallest count that the background reaches with a chance below ``false_alarm``."""
        return _needed(self, n)

    def chance(self, n: int, rate: float) -> float:
        """Power with n probes: the chance to reach the needed count at a true rate of ``rate``."""
        return binomial_tail(self.needed(n), n, min(rate, 1.0))

    def enough(self) -> int:
        """The smallest n that detects ``aim`` with a chance of ``power``."""
        return _enough(self)


@lru_cache(maxsize=1 << 16)
def _needed(test: ExcessTest, n: int) -> int:
    if n <= 0:
        return 1
    low, high = 0, 1
    while binomial_tail(high, n, test.rate) >= test.false_alarm:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if binomial_tail(middle, n, test.rate) >= test.false_alarm:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=256)
def _enough(test: ExcessTest) -> int:
    low, high = 0, 1
    while test.chance(high, test.aim) < test.power:
        low, high = high, high * 2
        if high > MAX_PROBES:
            return MAX_PROBES
    while high - low > 1:
        middle = (low + high) // 2
        if test.chance(middle, test.aim) < test.power:
            low = middle
        else:
            high = middle
    return high


# --- rules

RATES = ("drop", "failed")
SILENT = "silent"
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
OK, BAD, FEW, NONE = "ok", "bad", "not_enough_probes", "no_probes"
DEAD = "no_answers"  # all probes failed


class RuleCounts(Protocol):
    """The counts that a rule reads: `pingmesh.analysis.probe_tally.Cell`."""

    ok: int
    dropped: int
    above: tuple[int, ...]
    samples: int
    p50: float
    p99: float
    p999: float

    @property
    def failed(self) -> int: ...
    @property
    def probes(self) -> int: ...


class RuleResult(NamedTuple):
    """Result of one rule for one group: ``state``; ``value`` (a rate, or ns); ``hits`` of ``n`` probes count, from
    ``needed`` hits on the state is bad; ``calm``: enough probes, and the value is at or below the limit that ends an
    alert.
    """

    state: str
    value: float
    hits: int
    n: int
    needed: int
    calm: bool


class Rule(NamedTuple):
    """``metric`` above ``threshold`` (a rate, or ns) is bad; an alert ends at or below ``clear``.

    ``limit``: for quantiles, the number of the threshold among the limits of `pingmesh.analysis.probe_tally`.
    ``test``: whether a count is too high.  Metric `silent`: bad without any probes.
    """

    metric: str
    threshold: float
    clear: float
    test: ExcessTest
    limit: int = -1

    def judge(self, cell: RuleCounts) -> RuleResult:
        """Bad if significantly above the threshold; ok only with enough probes."""
        if self.metric == SILENT:
            sent = cell.probes
            return RuleResult(OK if sent else BAD, float(sent), 0 if sent else 1, 1, 1, sent > 0)
        if self.metric in RATES:
            hits, n = (cell.dropped, cell.ok) if self.metric == "drop" else (cell.failed, cell.probes)
            value = hits / n if n else nan
        else:
            hits, n, value = cell.above[self.limit], cell.samples, float(getattr(cell, self.metric))
        if n == 0:
            return RuleResult(DEAD if cell.failed else NONE, nan, 0, 0, 1, False)
        over = value > self.threshold
        needed = self.test.needed(n) if over else 0
        if over and hits >= needed:
            return RuleResult(BAD, value, hits, n, needed, False)
        if n < self.test.enough():
            return RuleResult(FEW, value, hits, n, needed, False)
        return RuleResult(OK, value, hits, n, needed, value <= self.clear)


def make_rule(
    metric: str,
    threshold: float,
    *,
    clear: float | None = None,
    limit: int = -1,
    background: float | None = None,
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
) -> Rule:
    """A rule; ``threshold``: a rate (drop, failed) or ns (p50, p99, p999).

    ``background``: at most the threshold; by default a tenth of the threshold of a rate.  For a quantile it is the
    share of values above the limit, 1 - q.  By default alerts end at half the rate, or four fifths of the time.
    Raises ValueError for values out of range.
    """
    if metric == SILENT:
        return Rule(metric, 0.0, 0.0, ExcessTest(0.5, 0.9, false_alarm, power))
    if metric in RATES:
        if not 0 < threshold < 1:
            raise ValueError("the rate must be above 0 and below 1")
        rate = threshold / 10 if background is None else background
        if not 0 < rate <= threshold:
            raise ValueError("the background must be above 0 and at most the threshold")
        test = ExcessTest(rate, FACTOR * threshold, false_alarm, power)
        ends = threshold / 2 if clear is None else clear
    elif metric in QUANTILES:
        share = 1 - QUANTILES[metric]
        if not threshold > 0:
            raise ValueError("the time must be above 0")
        test = ExcessTest(round(share, 6), min(SHARE * share, (1 + share) / 2), false_alarm, power)
        ends = threshold * 0.8 if clear is None else clear
    else:
        raise ValueError(f"unknown metric '{metric}'")
    if not 0 <= ends <= threshold:
        raise ValueError("the value that ends an alert exceeds the threshold")
    if not (0 < false_alarm < 1 and 0 < power < 1):
        raise ValueError("probabilities must be above 0 and below 1")
    return Rule(metric, threshold, ends, test, limit)


def state_of(judged: Sequence[RuleResult]) -> str:
    """Combined state of rules: bad, no_answers, not_enough_probes or no_probes if one has it; else ok."""
    states = {j.state for j in judged}
    return next((s for s in (BAD, DEAD, FEW, NONE) if s in states), OK)


# --- alarms

FIRE, CLEAR, REPEAT = "fire", "clear", "repeat"


class Alarm(NamedTuple):
    """An event of a group at the end of a window, and for how long its alert has been active (ns)."""

    event: str
    lasted: int


class Hysteresis:
    """Alerts of groups: begin after ``raised`` bad windows in a row, end after ``calmed`` calm windows in a row.

    A window with too few probes, or with a value between the two thresholds, is ignored: it begins and ends no alert,
    and does not interrupt a row.  A window without the group is ignored, too.
    """

    def __init__(self, raised: int = 1, calmed: int = 2) -> None:
        self.raised, self.calmed = max(raised, 1), max(calmed, 1)
        self._bad: dict[Hashable, int] = {}  # bad windows in a row of groups without an alert
        self._since: dict[Hashable, int] = {}  # begin of each active alert, ns
        self._calm: dict[Hashable, int] = {}  # calm windows in a row of groups with an alert

    def __len__(self) -> int:
        return len(self._since)

    def memory(self) -> list[list[Any]]:
        """[key, bad windows in a row, begin of its alert (ns, or None), calm windows in a row] of each group."""
        keys = dict.fromkeys([*self._bad, *self._since])
        return [
            [
                list(key) if isinstance(key, tuple) else key,
                self._bad.get(key, 0),
                self._since.get(key),
                self._calm.get(key, 0),
            ]
            for key in keys
        ]

    def restore(self, memory: Sequence[Sequence[Any]]) -> None:
        """Load what `memory` returned; lists become tuples."""
        self._bad, self._since, self._calm = {}, {}, {}
        for known, bad, since, calm in memory:
            key = tuple(known) if isinstance(known, list) else known
            for counts, value in ((self._bad, bad), (self._since, since), (self._calm, calm)):
                if value or (counts is self._since and value is not None):
                    counts[key] = value

    def feed(self, key: Hashable, end: int, judged: RuleResult) -> Alarm | None:
        """Process the window of ``key`` that ends at ``end`` (ns); call in the order of time."""
        since = self._since.get(key)
        if since is None:
            if judged.state == BAD:
                n = self._bad.get(key, 0) + 1
                if n >= self.raised:
                    self._bad.pop(key, None)
                    self._since[key] = end
                    return Alarm(FIRE, 0)
                self._bad[key] = n
            elif judged.state == OK:
                self._bad.pop(key, None)
            return None
        if judged.state == BAD:
            self._calm.pop(key, None)
            return Alarm(REPEAT, end - since)
        if judged.calm:
            n = self._calm.get(key, 0) + 1
            if n >= self.calmed:
                self._calm.pop(key, None)
                del self._since[key]
                return Alarm(CLEAR, end - since)
            self._calm[key] = n
        elif judged.state == OK:
            self._calm.pop(key, None)
        return None


def retry_signature(name: str) -> list[tuple[int, int, int]]:
    """A table of `SIGNATURES` in ns, for `pingmesh.analysis.probe_tally`.  Raises KeyError."""
    forever = (1 << 63) - 1
    return [(round(a * 1e9), forever if b == inf else round(b * 1e9), n) for a, b, n in SIGNATURES[name]]


def drops_by_time(seconds: float, name: str) -> int | None:
    """Drops implied by a connection time; 0: none; None: slow for another reason."""
    for low, high, n in SIGNATURES[name]:
        if low <= seconds < high:
            return n or None
    return 0


def finite(value: float, otherwise: float = 0.0) -> float:
    """``value``, or ``otherwise`` for nan."""
    return otherwise if isnan(value) else value
