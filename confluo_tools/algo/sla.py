"""What counts of probes say: intervals, whether there are enough of them, and when to raise an alarm.

Pingmesh (SIGCOMM 2015) alerts when the drop rate is above 1e-3 or P99 above 5 ms.  A fixed threshold says nothing
about one pair: one drop in 60 probes is 1.7e-2.  So an alarm here is a count that the background makes less often than
once in a million windows, and a window that could not have shown a rate of twice the threshold is *not enough probes*,
not *ok*.

Plain functions over plain numbers; `store.mesh` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from math import exp, inf, isnan, lgamma, log, log1p, nan, sqrt
from typing import Any, NamedTuple, Protocol

BACKGROUND = 1e-4  # drop rate of a network that is well: 1e-4 to 1e-5 in the paper
FALSE_ALARM = 1e-6  # chance that the background alone raises an alarm, for one group and window
POWER = 0.9  # chance with which a window that is enough shows what is to be found
FACTOR = 2.0  # and that is a rate of so many times the threshold
SHARE = 5.0  # of quantiles: so many times the share of values above the limit
MOST = 1 << 40  # probes
Z95 = 1.959963984540054

# What connection times mean when the kernel was not asked (seconds from, to; drops; 0: slow, but no drop).  Timers fire
# late, never early: measured, they come within the first fifth of a second, and under load within the first third.
SIGNATURES: dict[str, tuple[tuple[float, float, int], ...]] = {
    "linux": ((0.95, 1.3, 1), (1.95, 2.4, 2), (2.95, 3.5, 3), (3.95, 4.5, 4), (4.95, 5.6, 5), (6.9, 7.7, 6),
              (0.95, inf, 0)),
    "linux-classic": ((0.95, 1.3, 1), (2.95, 3.5, 2), (6.9, 7.7, 3), (0.95, inf, 0)),
    "windows": ((2.95, 3.5, 1), (8.9, 9.7, 2), (0.95, inf, 0)),
}  # fmt: skip


def wilson(k: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share, k of n; (0, 1) of none."""
    if n <= 0:
        return 0.0, 1.0
    p, zz = k / n, z * z
    middle, half = p + zz / (2 * n), z * sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low, high = (middle - half) / (1 + zz / n), (middle + half) / (1 + zz / n)
    return (0.0 if k == 0 else max(low, 0.0)), (1.0 if k == n else min(high, 1.0))


def _tail(k: int, term: float, ratio: Callable[[int], float], mean: float) -> float:
    # Sum from k on, of terms each of which is the one before times ratio(k), falling beyond the mean.
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
    # k at the very mean, where both sides are the long one: term by term.
    total, odds, i = 0.0, p / (1 - p), k
    term = exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p))
    while i <= n and (term > total * 1e-17 or i < n * p):
        total += term
        term *= (n - i) / (i + 1) * odds
        i += 1
    return min(total, 1.0)


class Excess(NamedTuple):
    """When a count of n is too many.

    ``rate``: of the background; ``aim``: the rate that is to be found.  Counts are binomial.
    """

    rate: float
    aim: float
    false_alarm: float = FALSE_ALARM
    power: float = POWER

    def needed(self, n: int) -> int:
        """The least count that the background makes with a chance below ``false_alarm``."""
        return _needed(self, n)

    def chance(self, n: int, rate: float) -> float:
        """The power of n: how likely that many are reached, or more, when ``rate`` is the truth."""
        return binomial_tail(self.needed(n), n, min(rate, 1.0))

    def enough(self) -> int:
        """So many are enough: ``aim`` is found with a chance of ``power``."""
        return _enough(self)


@lru_cache(maxsize=1 << 16)
def _needed(test: Excess, n: int) -> int:
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
def _enough(test: Excess) -> int:
    low, high = 0, 1
    while test.chance(high, test.aim) < test.power:
        low, high = high, high * 2
        if high > MOST:
            return MOST
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
DEAD = "no_answers"  # to none of the probes


class Counted(Protocol):
    """What a rule looks at: `store.mesh.Cell`."""

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


class Judged(NamedTuple):
    """One rule of one group: ``state``; ``value`` (a rate, or ns); ``hits`` of ``n`` count for it, ``needed`` raise
    an alarm; ``calm``: there are enough probes, and the value is below what ends an alarm.
    """

    state: str
    value: float
    hits: int
    n: int
    needed: int
    calm: bool


class Rule(NamedTuple):
    """``metric`` above ``threshold`` (a rate, or ns) is bad; an alarm ends below ``clear``.

    ``limit``: of quantiles, which of `store.mesh`'s limits is the threshold.
    ``test``: what is too many.  Metric `silent`: no probes at all are bad.
    """

    metric: str
    threshold: float
    clear: float
    test: Excess
    limit: int = -1

    def judge(self, cell: Counted) -> Judged:
        """Bad: above the threshold, by more than chance.  Without enough probes nothing is ok."""
        if self.metric == SILENT:
            sent = cell.probes
            return Judged(OK if sent else BAD, float(sent), 0 if sent else 1, 1, 1, sent > 0)
        if self.metric in RATES:
            hits, n = (cell.dropped, cell.ok) if self.metric == "drop" else (cell.failed, cell.probes)
            value = hits / n if n else nan
        else:
            hits, n, value = cell.above[self.limit], cell.samples, float(getattr(cell, self.metric))
        if n == 0:
            return Judged(DEAD if cell.failed else NONE, nan, 0, 0, 1, False)
        over = value > self.threshold
        needed = self.test.needed(n) if over else 0
        if over and hits >= needed:
            return Judged(BAD, value, hits, n, needed, False)
        if n < self.test.enough():
            return Judged(FEW, value, hits, n, needed, False)
        return Judged(OK, value, hits, n, needed, value <= self.clear)


def make_rule(
    metric: str, threshold: float, *, clear: float | None = None, limit: int = -1, background: float | None = None,
    false_alarm: float = FALSE_ALARM, power: float = POWER,
) -> Rule:  # fmt: skip
    """A rule; ``threshold``: a rate (drop, failed) or ns (p50, p99, p999).

    The background is a tenth of a rate's threshold unless it is given, and at most that; of a quantile it is the share
    of values above the limit that makes it bad at all.  Alarms end at half the rate, or four fifths of the time.
    Raises ValueError for what cannot be.
    """
    if metric == SILENT:
        return Rule(metric, 0.0, 0.0, Excess(0.5, 0.9, false_alarm, power))
    if metric in RATES:
        if not 0 < threshold < 1:
            raise ValueError("a rate is above 0 and below 1")
        rate = threshold / 10 if background is None else background
        if not 0 < rate <= threshold:
            raise ValueError("the background is above 0 and not above the threshold")
        test = Excess(rate, FACTOR * threshold, false_alarm, power)
        ends = threshold / 2 if clear is None else clear
    elif metric in QUANTILES:
        share = 1 - QUANTILES[metric]
        if not threshold > 0:
            raise ValueError("a time is above 0")
        test = Excess(round(share, 6), min(SHARE * share, (1 + share) / 2), false_alarm, power)
        ends = threshold * 0.8 if clear is None else clear
    else:
        raise ValueError(f"no metric '{metric}'")
    if not 0 <= ends <= threshold:
        raise ValueError("an alarm ends at or below the threshold")
    if not (0 < false_alarm < 1 and 0 < power < 1):
        raise ValueError("chances are above 0 and below 1")
    return Rule(metric, threshold, ends, test, limit)


def state_of(judged: Sequence[Judged]) -> str:
    """Of several rules: bad when one is; else without answers, or not enough, when that was so for one; else ok."""
    states = {j.state for j in judged}
    return next((s for s in (BAD, DEAD, FEW, NONE) if s in states), OK)


# --- alarms

FIRE, CLEAR, REPEAT = "fire", "clear", "repeat"


class Alarm(NamedTuple):
    """What became of a group at the end of a window: ``event``, and for how long it has fired (ns)."""

    event: str
    lasted: int


class Hysteresis:
    """Alarms of groups: fire after ``raised`` bad windows in a row, end after ``calmed`` calm ones in a row.

    A window with too few probes, or a value between the two thresholds, tells nothing: it begins and ends none, and
    does not break a row.  So does a window without the group.
    """

    def __init__(self, raised: int = 1, calmed: int = 2) -> None:
        self.raised, self.calmed = max(raised, 1), max(calmed, 1)
        self._bad: dict[Hashable, int] = {}  # bad windows in a row, of groups that do not fire
        self._since: dict[Hashable, int] = {}  # groups that fire
        self._calm: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._since)

    def memory(self) -> list[list[Any]]:
        """[key, bad windows in a row, when it fired (None: it does not), calm windows in a row] of groups."""
        keys = dict.fromkeys([*self._bad, *self._since])
        return [[list(key) if isinstance(key, tuple) else key, self._bad.get(key, 0), self._since.get(key),
                 self._calm.get(key, 0)] for key in keys]  # fmt: skip

    def restore(self, memory: Sequence[Sequence[Any]]) -> None:
        """What `memory` said; lists are tuples again."""
        self._bad, self._since, self._calm = {}, {}, {}
        for known, bad, since, calm in memory:
            key = tuple(known) if isinstance(known, list) else known
            for of, value in ((self._bad, bad), (self._since, since), (self._calm, calm)):
                if value or (of is self._since and value is not None):
                    of[key] = value

    def feed(self, key: Hashable, end: int, judged: Judged) -> Alarm | None:
        """A window of ``key`` that ends at ``end`` (ns), in the order of time."""
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


def signature(name: str) -> list[tuple[int, int, int]]:
    """A table of `SIGNATURES` in ns, as `store.mesh` takes it.  Raises KeyError."""
    most = (1 << 63) - 1
    return [(round(a * 1e9), most if b == inf else round(b * 1e9), n) for a, b, n in SIGNATURES[name]]


def drops_by_time(seconds: float, name: str) -> int | None:
    """Drops that a connection time means; 0: none; None: slow, which may be anything."""
    for low, high, n in SIGNATURES[name]:
        if low <= seconds < high:
            return n or None
    return 0


def finite(value: float, otherwise: float = 0.0) -> float:
    """``value``, unless it is none."""
    return otherwise if isnan(value) else value
