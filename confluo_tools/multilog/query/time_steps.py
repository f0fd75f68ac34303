"""Steps of time among groups: where each begins and ends, in UTC and in local time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from confluo_tools.units import DAY, SECOND, civil_from_days, days_from_civil

if TYPE_CHECKING:
    from confluo_tools.expr.group_keys import GroupKey
    from confluo_tools.multilog.query.local_zone import Changes

MINUTE, HOUR, WEEK = 60 * SECOND, 3600 * SECOND, 7 * DAY
MONDAY = 4 * DAY  # 1970-01-05
LEAST, MOST = -(1 << 63), (1 << 63) - 1


class TimeSteps:
    """The steps of ``key``: the same as those of `Rollup`, which it knows as ``kind``, ``count`` and ``changes``.

    ``zone``: changes of the offset of local time; empty for UTC.  Days, weeks and months are of local time, and so are
    parts of a day.  Up to an hour they follow the clock, but an hour that it shows twice is two steps; a longer step
    that the clock enters twice is one.
    """

    def __init__(self, key: GroupKey, zone: Changes = ()) -> None:
        self.kind, self.count, self.changes = key.kind, key.arg, zone
        if self.kind == "bucket":
            known = [*(t for t, _ in zone[1:]), *(offset for _, offset in zone)]
            whole = not any(t % MINUTE for t in (*known, self.count))
            if self.count % DAY and DAY % self.count:
                self.changes = ()  # does not begin at midnight
            elif self.count <= HOUR and (not whole or not any(t % self.count for t in known)):
                self.changes = ()  # the same in UTC
            elif self.count <= HOUR:
                self.kind = "hours"
        self._times = [t for t, _ in self.changes]

    @property
    def local(self) -> bool:
        """Whether the steps depend on the zone."""
        return bool(self.changes)

    @property
    def length(self) -> int:
        """The usual length of a step, ns: of a month, 30 days."""
        return {"weeks": WEEK, "months": 30 * DAY}.get(self.kind, 1) * self.count

    @property
    def even(self) -> bool:
        """Whether all steps have this length."""
        return self.kind != "months" and len(self.changes) < 2

    def spec(self, column: int) -> tuple[Any, ...]:
        """The key as the core takes it."""
        return (self.kind, column, self.count, *([self.changes] if self.changes else []))

    def start(self, time: int) -> int:
        """When the step of ``time`` begins."""
        if self.kind == "hours":
            since, offset = self.changes[bisect_right(self._times, time) - 1]
            return max(time - (time + offset) % self.count, since)
        return self._begin(self._number(self._local(time)))

    def after(self, start: int) -> int:
        """When the step after the one that begins at ``start`` begins."""
        if self.kind == "hours":
            at = bisect_right(self._times, start)
            end = start + self.count - (start + self.changes[at - 1][1]) % self.count
            return min(end, self._times[at]) if at < len(self._times) else end
        number = self._number(self._local(start)) + 1
        while (end := self._begin(number)) <= start:  # a day that the zone left out
            number += 1
        return end

    def _local(self, time: int) -> int:
        return time + self.changes[bisect_right(self._times, time) - 1][1] if self.changes else time

    def _number(self, local: int) -> int:
        if self.kind == "months":
            year, month, _ = civil_from_days(local // DAY)
            return ((year - 1970) * 12 + month - 1) // self.count
        return (local - MONDAY) // (WEEK * self.count) if self.kind == "weeks" else local // self.count

    def _begin(self, number: int) -> int:
        if self.kind == "months":
            year, month = divmod(number * self.count, 12)
            local = days_from_civil(year + 1970, month + 1, 1) * DAY
        elif self.kind == "weeks":
            local = number * WEEK * self.count + MONDAY
        else:
            local = number * self.count
        return self._utc(local)

    def _utc(self, local: int) -> int:
        """The first moment at which local clocks show ``local`` or later."""
        if not self.changes:
            return local
        k = max(bisect_right(self._times, local - 2 * DAY) - 1, 0)
        while True:
            since, offset = self.changes[k]
            time = max(since, local - offset)
            if k + 1 == len(self.changes) or time < self._times[k + 1]:
                return time
            k += 1
