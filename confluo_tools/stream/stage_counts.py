"""The counters of a run: one row for each stage, the one truth for --stats, `status` and Prometheus."""

from __future__ import annotations

from typing import NamedTuple, Protocol

MAX_NAME = 249  # characters: names of topics are this long
STAGES = ("receive", "classify", "queue", "function", "send", "deliver", "fetch")  # as in the schema `stage`


class StageCount(NamedTuple):
    """A stage and its counters since the run began; the columns of the schema `stage` with these names."""

    stage: str  # one of `STAGES`
    name: str
    pipeline: int = 0
    taken: int = 0
    given: int = 0
    filtered: int = 0
    dropped: int = 0
    queued: int = 0
    space: int = 0


class WatchedRun(Protocol):
    """A run that `status` shows and `set` changes.  Both are called by threads of their own."""

    def rows(self) -> list[StageCount]:
        """The stages, in the order in which records pass them."""

    def change(self, text: str) -> list[str]:
        """Take the flows in ``text`` (flows.yaml) instead of those that run; returns a line for each change.

        Raises ConfluoError, and changes nothing, when they are not valid.
        """
