"""The sequences of messages: what is missing, and what comes twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluo_tools.kafka.message import Envelope

MAX_SEQUENCES = 1 << 16
MAX_GAPS = 1024  # missing messages of a sequence that may still come


class SequenceCheck:
    """Follows the numbers of messages of any number of senders.

    ``missing``: messages between two others that did not come.  ``repeated``: messages that came before.
    ``dropped``: records that senders lost before they were in a message, since the first message of each that came.
    """

    def __init__(self) -> None:
        self.missing = self.repeated = 0
        self._seen: dict[tuple[str, int, int, int], tuple[int, set[int]]] = {}
        self._dropped: dict[tuple[str, int, int], tuple[int, int]] = {}  # at the first message, at the last one

    def is_new(self, e: Envelope) -> bool:
        """Whether this message did not come before; counts those between it and the last one."""
        self._note_drops(e)
        key = e.host, e.pipeline, e.run, e.partition
        last, gaps = self._seen.pop(key, (e.seq - 1, set()))  # what was before the first one is not known
        if len(self._seen) >= MAX_SEQUENCES:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = max(last, e.seq), gaps
        if e.seq > last:
            self.missing += e.seq - last - 1
            gaps.update(range(max(last + 1, e.seq - MAX_GAPS), e.seq))
        elif e.seq in gaps:
            gaps.remove(e.seq)
            self.missing -= 1
        else:
            self.repeated += 1
            return False
        while len(gaps) > MAX_GAPS:
            gaps.remove(min(gaps))
        return True

    @property
    def dropped(self) -> int:
        return sum(last - first for first, last in self._dropped.values())

    def _note_drops(self, e: Envelope) -> None:
        key = e.host, e.pipeline, e.run
        known = self._dropped.get(key)
        if known is None and len(self._dropped) >= MAX_SEQUENCES:
            return
        first, last = known or (e.dropped, e.dropped)
        self._dropped[key] = 0 if e.seq == 0 else min(first, e.dropped), max(last, e.dropped)

    def saved(self) -> list[list[Any]]:
        """All sequences as JSON values."""
        return [[*key, last, sorted(gaps)] for key, (last, gaps) in self._seen.items()]

    def restore(self, saved: Iterable[list[Any]]) -> None:
        """Go on where an earlier run was, unless this one is further."""
        for host, pipeline, run, partition, last, gaps in saved:
            key = str(host), int(pipeline), int(run), int(partition)
            known = self._seen.get(key)
            if known is None or known[0] < int(last):
                self._seen[key] = int(last), {int(gap) for gap in gaps}
