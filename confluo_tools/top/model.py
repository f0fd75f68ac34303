"""What the live view shows: the chosen group keys and aggregates, the clock, and the window of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.top.slices import MAX_SLICES, GroupWindow, SlicedQuestion, SliceStore
from confluo_tools.top.sources import FieldsGained

if TYPE_CHECKING:
    from confluo_tools.top.sources import RecordSource


class TopLook(NamedTuple):
    """One update.  ``history``: totals of the first aggregate that adds up, by slice, the latest last.

    ``behind``: ns from the end of the window to now, where the records are not those of now; else 0.
    """

    question: SlicedQuestion
    window: GroupWindow
    order: str
    history: list[float]
    behind: int


class TopModel:
    """``groups`` and ``aggregates`` to choose from, the first ones at the start.  ``every``, ``window``: ns.

    ``order``: the aggregate that the largest groups have, by name; None: the first one.  Raises UsageError.
    """

    def __init__(
        self,
        source: RecordSource,
        groups: Sequence[str],
        aggregates: Sequence[str],
        *,
        every: int,
        window: int,
        order: str | None = None,
    ) -> None:
        if not groups or not aggregates:
            raise UsageError(
                f"there is no group for records of kind '{source.schema.kind}'", hint="give --by and --agg"
            )
        self.source, self.groups, self.aggregates = source, list(groups), list(aggregates)
        self.every, self.window = every, window
        self._group = self._aggregate = 0
        self._now = False  # whether the records are those of now
        self._newest: int | None = None
        self._begin()
        names = [f.name for f in self.question.values]
        if order is not None and order not in names:
            raise UsageError(f"'{order}' is not an aggregate", where="--sort", hint=f"there are {', '.join(names)}")
        self.order = order or names[0]

    def _begin(self) -> None:
        question = SlicedQuestion(
            self.source.schema, self.aggregates[self._aggregate], self.groups[self._group], self.every
        )
        self.question, self._store = question, SliceStore(question)
        self._until: int | None = None  # end of what was shown last
        self.source.begin(question)

    def next_group(self, step: int = 1) -> None:
        """Group by the next keys."""
        self._group = (self._group + step) % len(self.groups)
        self._begin()

    def next_aggregates(self, step: int = 1) -> None:
        """Show the next aggregates."""
        self._aggregate = (self._aggregate + step) % len(self.aggregates)
        self._begin()
        self.order = self.question.values[0].name

    def next_order(self, step: int = 1) -> None:
        """Sort by the next aggregate."""
        names = [f.name for f in self.question.values]
        self.order = names[(names.index(self.order) + step) % len(names)]

    def _update(self, now: int) -> int | None:
        """The newest slice with a record, after the slices are up to date."""
        try:
            return self.source.update(self._store, now, self.window)
        except FieldsGained:
            self._begin()
            return self.source.update(self._store, now, self.window)

    def look(self, now: int, most: int, length: int = 0, *, still: bool = False) -> TopLook | None:
        """The ``most`` largest groups, and totals of ``length`` slices; None: there was no whole slice yet.

        ``now``: the time, ns.  ``still``: of the same records as before.
        """
        every, source = self.every, self.source
        if not still or self._until is None:
            newest = self._newest = self._update(now)
            self._now = self._now or (newest is not None and now - newest <= self.window)
            until = now // every * every
            if newest is not None and (not self._now or source.ended):
                until = newest + every
            self._store.trim(until - max(self.window, MAX_SLICES * every))
            self._until = until
        store, until, since = self._store, self._until, self._until - self.window
        if store.known is None:
            return None
        # Rates of a longer time would be too low.
        since = max(since, store.known)
        if since >= until:
            return None
        window = store.window(since, until, self.order, most)
        names = self.question.additive
        history = store.history(until, self.order if self.order in names else names[0], length) if names else []
        behind = 0 if self._now or self._newest is None else now - until
        return TopLook(self.question, window, self.order, history, behind)
