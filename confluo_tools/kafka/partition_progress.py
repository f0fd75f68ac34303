"""How far the partitions of a topic have been read."""

from __future__ import annotations

from collections.abc import Iterable

STALLED = 30.0  # s without a message after which a partition does not hold back the others
FAR = 3600 * 10**9  # ns; a time that is further ahead is believed when the next message is there, too
SOON = 1.0  # s after which partitions are looked at again, because one may have stalled
FIRST, LAST = -(1 << 63), (1 << 63) - 1


class PartitionProgress:
    """Which partitions are at their end, and how far all have come in time.

    A topic may have thousands of partitions, and a message a few records: what is done for each message looks at its
    partition only.  ``now`` and ``since``: s, of a monotonic clock.
    """

    def __init__(self) -> None:
        self.heard: dict[int, float] = {}  # partition -> when its last message came
        self._times: dict[int, int] = {}  # partition -> time of its last record, ns
        self._held: dict[int, int] = {}  # partition -> a time that is far ahead
        self._busy: set[int] = set()  # partitions that are not at their end
        self._since = 0.0
        self._slowest: int | None = None  # of the busy ones: that with the oldest last record
        self._mark, self._until = LAST, 0.0  # what `mark` said, and when it must be computed again

    def assign(self, partitions: Iterable[int], since: float) -> None:
        """These, and no others, are read from now on, and none is at its end."""
        self._busy, self._since = set(partitions), since
        self._forget()

    def message(self, partition: int, now: float) -> None:
        """A message came: the partition is not at its end."""
        if partition not in self._busy or now - self.heard.get(partition, self._since) >= STALLED:
            self._busy.add(partition)
            self._forget()
        self.heard[partition] = now

    def records(self, partition: int, last: int) -> None:
        """The newest record of the message has this time (ns).  One wrong clock moves nothing: see `FAR`."""
        known, held = self._times.get(partition), self._held.pop(partition, None)
        believed = held if held is not None and last >= held - FAR else known
        if believed is not None and last - believed <= FAR:
            believed = max(believed, last)
        else:
            self._held[partition] = last
        if believed is not None and believed != known:
            self._times[partition] = believed
            if partition == self._slowest:
                self._forget()

    def end(self, partition: int) -> None:
        """The partition is at its end."""
        if partition in self._busy:
            self._busy.remove(partition)
            if partition == self._slowest:
                self._forget()

    def is_at_end(self, partition: int) -> bool:
        return partition not in self._busy

    @property
    def at_end(self) -> bool:
        """Whether all partitions are at their end."""
        return not self._busy

    def mark(self, now: float) -> int:
        """No later message has a record older than this (ns), as far as known: partitions that are behind count."""
        if self._slowest is None or now >= self._until:
            moving = [p for p in self._busy if now - self.heard.get(p, self._since) < STALLED]
            self._slowest = min(moving, key=lambda p: self._times.get(p, FIRST), default=None)
            self._mark = LAST if self._slowest is None else self._times.get(self._slowest, FIRST)
            self._until = now + SOON
        return self._mark

    def _forget(self) -> None:
        self._slowest = None
