"""Token bucket on the clock of the caller (007, section 4.1: path discovery is limited to C_t per second)."""

from __future__ import annotations

from math import ceil

SECOND = 1_000_000_000


class TokenBucket:
    """At most ``depth + rate * t`` tokens in any ``t`` seconds; full at first.

    Kept as the time at which the bucket would be full again (the generic cell rate algorithm), in whole nanoseconds
    rounded so that the rate is never exceeded.  Raises ValueError: a rate outside 0.001 .. 10^7 a second, a depth
    below 1.
    """

    def __init__(self, rate: float, depth: int = 1) -> None:
        if not 0.001 <= rate <= 1e7:
            raise ValueError(f"a rate of {rate:g} a second")
        if depth < 1:
            raise ValueError(f"a depth of {depth}")
        self.rate, self.depth = rate, depth
        self._interval = ceil(SECOND / rate)
        self._full = -(1 << 62)

    def take(self, now: int, want: int) -> int:
        """As many of ``want`` tokens as there are at ``now`` ns, a time that does not go back."""
        full = max(self._full, now)
        given = min(want, self.depth - -(-(full - now) // self._interval))
        if given <= 0:
            return 0
        self._full = full + given * self._interval
        return given

    def wait(self, now: int) -> int:
        """ns from ``now`` until there is a token."""
        return max(0, self._full - (self.depth - 1) * self._interval - now)
