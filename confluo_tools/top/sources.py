"""The records to show: logs, which are queried for the last seconds, and inputs that are read as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from confluo_tools.errors import ConfluoError
from confluo_tools.top.slices import MAX_GROUPS, SlicedQuestion, SliceStore

if TYPE_CHECKING:
    from confluo_tools.cli import InputOptions
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.query.aggregation import Aggregation
    from confluo_tools.schema import Schema

AGAIN = 2  # slices that are queried once more: their last records may come late


class FieldsGained(Exception):
    """The records have more fields than before: the question must begin again."""


class RecordSource(Protocol):
    """Puts slices into a store, and says in ``store.known`` since when they have all records."""

    schema: Schema  # of the records

    def begin(self, question: SlicedQuestion) -> None:
        """Aggregate for this question from now on."""

    def update(self, store: SliceStore, now: int, window: int) -> int | None:
        """Bring the slices of the last ``window`` ns up to date; the newest slice (ns) with a record, None: none came.

        Raises the error that ended the input, and FieldsGained.
        """

    @property
    def ended(self) -> bool:
        """Whether there will be no more records."""

    def close(self) -> None: ...


class PolledLogs:
    """Logs of this host and others: each update is a query for the new slices, where the rows are."""

    ended = False

    def __init__(self, ins: InputOptions, inputs: Sequence[str], text: str, local: bool) -> None:
        from confluo_tools.remote.request import QueryRequest

        self._ins, self._inputs, self._text, self._local = ins, list(inputs), text, local
        with ins.open(inputs, request=QueryRequest(limit=0)) as reader:
            self.schema = reader.schema
        self._newest: int | None = None
        self._done = 0  # start of the first slice that was not queried
        self._looked = False  # for the newest record of a log that rests
        self._rest: int | None = None  # the first slice of such a log that was queried

    def begin(self, question: SlicedQuestion) -> None:
        self._question, self._done, self._rest = question, 0, None

    def update(self, store: SliceStore, now: int, window: int) -> int | None:
        every = self._question.every
        end = now // every * every + every
        first = end - every - window
        if store.known is not None and store.known <= first:
            first = max(first, self._done - AGAIN * every)
        self._query(store, first, end)
        self._done = end - every
        if self._newest is None and not self._looked:
            self._looked, self._newest = True, self._last()
        if self._newest is not None and self._newest < end - every - window:  # nothing new: the log rests
            end = self._newest + every
            if self._rest is None or end - window < self._rest:
                self._rest = end - window
                self._query(store, self._rest, end)
        return self._newest

    def _query(self, store: SliceStore, first: int, end: int) -> None:
        question = self._question
        chunk = self._fold(question.agg, question.by_slice, question.fine, (first, end))
        store.put(chunk, first, replace=True, end=end)
        store.known = first if store.known is None else min(first, store.known)
        self._newest = max([*question.starts(chunk), *([] if self._newest is None else [self._newest])], default=None)

    def _last(self) -> int | None:
        """The slice of the newest record, if there is one."""
        from confluo_tools.expr import parse_aggregates
        from confluo_tools.multilog.query.aggregation import Aggregation

        assert self.schema.time_field is not None
        agg = f"max({self.schema.time_field.name}), count"
        question = Aggregation(self.schema, parse_aggregates(agg, self.schema), [])
        rollup = self._fold(agg, None, question, (None, None))
        newest, count = next((block.get(0, 0), block.get(1, 0)) for block in question.answer(rollup))
        return newest // self._question.every * self._question.every if count else None

    def _fold(self, agg: str, by: str | None, question: Aggregation, span: tuple[int | None, int | None]) -> Rollup:
        from confluo_tools.inputs.selection import Selection, compile_expr
        from confluo_tools.remote.request import request_rows

        request = request_rows(self._text, span, None, None, None, False, agg, by, False)
        with self._ins.open(self._inputs, request=request) as reader:
            if reader.schema != self.schema:
                if not self._known(reader.schema):
                    raise ConfluoError("has other fields now", where=reader.name, hint="start again")
                self.schema = reader.schema
                raise FieldsGained
            expr = compile_expr(self._text, reader, span, None, self._local)
            return Selection(reader, expr).fold(list(question.reads), question.rollup)

    def _known(self, schema: Schema) -> bool:
        """Whether the records still have all fields that they had; a log may gain others."""
        fields = {field.name: field.as_dict() for field in schema.fields}
        return all(fields.get(field.name) == field.as_dict() for field in self.schema.fields)

    def close(self) -> None: ...


class RecordFeed:
    """Records as they come, aggregated by a thread.

    ``rows``: blocks and their selected rows, of ``schema``.  ``stop`` ends them.  ``changed``: called when they end.
    ``live``: they are all records from the start on, also when there are none.
    """

    def __init__(
        self,
        rows: Iterable[tuple[Block, Picks | None]],
        schema: Schema,
        stop: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
        *,
        live: bool = False,
    ) -> None:
        self.schema, self._live = schema, live
        self._rows, self._stop, self._changed = rows, stop, changed
        self._lock = threading.Condition()
        self._chunk: Rollup | None = None
        self._newest: int | None = None
        self._error: BaseException | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)

    def begin(self, question: SlicedQuestion) -> None:
        with self._lock:
            self._question, self._chunk = question, question.fine.rollup()
            self._lock.notify()
        if not self._thread.ident:
            self._thread.start()

    def _run(self) -> None:
        try:
            for block, picks in self._rows:
                with self._lock:
                    while self._chunk is None or len(self._chunk) > MAX_GROUPS:
                        self._lock.wait()
                    self._chunk.update(block, picks)
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._changed()

    def update(self, store: SliceStore, now: int, window: int) -> int | None:
        over, question = self._over, self._question
        with self._lock:
            chunk, self._chunk = self._chunk, question.fine.rollup()
            self._lock.notify()
        if self._live and store.known is None:
            store.known = now
        starts = [] if chunk is None else question.starts(chunk)
        came = [start for start in starts if start <= now]  # others have the time of a wrong clock
        if chunk is not None and came:
            self._newest = max(came) if self._newest is None else max(*came, self._newest)
            store.known = min(came) if store.known is None else store.known
            store.put(chunk, self._newest - window)  # older records are not shown
        if over and self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._newest

    @property
    def ended(self) -> bool:
        return self._over

    def close(self) -> None:
        self._stop()
        self._thread.join(5.0)  # one that waits for a pipe ends with the process
