"""One log, here or on another host, that answers the questions of triggers about its rows.

The place in the log is kept here for each question: a row is in one answer, however often a connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.formats.merge import HOST, Shaped
from confluo_tools.multilog.growing_log import GrownRows
from confluo_tools.multilog.open_log import open_log
from confluo_tools.multilog.views import named_filters
from confluo_tools.remote.connect import Connection, RemoteError, RemoteShell, connected
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest

if TYPE_CHECKING:
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.formats.reader import Reader
    from confluo_tools.monitor.partials import TextQuestion
    from confluo_tools.remote.address import Address
    from confluo_tools.schema import Schema

AT_ONCE = 8192  # characters of questions that are sent before the first answer is read

Part = tuple[int, "Rollup"]  # number of the question, answer


class LogPlaceRead(NamedTuple):
    """How far a question has been answered: of the log ``uuid``, this many ``rows`` of each lane."""

    uuid: str = ""
    rows: Sequence[int] = ()


class LogPartials:
    """The answers of one log; ``name`` as it was given, ``host`` the value of a field `host`.

    ``schema``: of the rows that questions are about.  ``since``: older rows (ns) do not matter.  ``missed``: rows that
    were removed before they were read.  ``tell`` gets remarks.
    """

    def __init__(self, name: str, host: str, tell: Callable[[str], None]) -> None:
        self.name, self.host, self.tell = name, host, tell
        self.questions: Sequence[TextQuestion] = ()
        self.schema: Schema | None = None
        self.since: int | None = None
        self.missed = 0
        self._places: list[LogPlaceRead] = []

    def look(self, names: str) -> tuple[Schema, dict[str, str]]:
        """The schema of the log, and the filters that the text ``names`` has names of.  Raises ConfluoError."""
        raise NotImplementedError

    def about(self, questions: Sequence[TextQuestion], schema: Schema) -> None:
        """The questions, about rows of ``schema``, from now on."""
        self.questions, self.schema = questions, schema
        self._places = [LogPlaceRead() for _ in questions]

    def grown(self) -> Iterator[Part]:
        """What the rows since the last call add to each answer.  Raises ConfluoError, after some answers perhaps."""
        raise NotImplementedError

    def between(self, questions: Sequence[TextQuestion], since: int | None, until: int | None) -> Iterator[Part]:
        """The answers about the rows since <= time < until.  Raises ConfluoError."""
        raise NotImplementedError

    def _read(self, number: int, uuid: str, rows: Sequence[int], missed: int) -> None:
        before = self._places[number].uuid
        self._places[number] = LogPlaceRead(uuid, rows)
        if number == 0:
            self.missed += missed
            if before not in ("", uuid):
                self.tell(f"{self.name}: another log has taken the name; its records follow")

    def stop(self) -> None:
        """End a call of `grown` of another thread soon."""

    def close(self) -> None: ...


class LocalPartials(LogPartials):
    """The answers of a log of this host, from this process."""

    def look(self, names: str) -> tuple[Schema, dict[str, str]]:
        from confluo_tools import multilog

        with multilog.open(self.name, readonly=True) as log:
            return log.schema, named_filters(log)

    def grown(self) -> Iterator[Part]:
        for number, question in enumerate(self.questions):
            uuid, rows = self._places[number]
            found = GrownRows(self.name, uuid, rows, warn=self.tell)
            with found:
                if self.since is not None:
                    found.tails.after = self.since
                rollup = self._folded(found, question, self.since, None)
                self._read(number, found.tails.uuid, found.position, found.missed)
            yield number, rollup

    def between(self, questions: Sequence[TextQuestion], since: int | None, until: int | None) -> Iterator[Part]:
        for number, question in enumerate(questions):
            with open_log(self.name, archives=False, warn=self.tell) as reader:
                yield number, self._folded(reader, question, since, until)

    def _folded(self, reader: Reader, question: TextQuestion, since: int | None, until: int | None) -> Rollup:
        from confluo_tools.expr import compile

        assert self.schema is not None
        if reader.schema != self.schema:
            reader = Shaped(reader, self.schema, self.host if HOST not in reader.schema else None)
        expr = compile(question.where, reader.schema, filters=reader.filters).within(since, until)
        columns = [i for i, c in enumerate(self.schema.columns) if c.field.name in question.fine.reads]
        return reader.fold(expr, columns, question.fine.rollup)[0]


class RemotePartials(LogPartials):
    """The answers of a log on another host, from its server: only states of aggregates come over the wire."""

    def __init__(self, address: Address, shell: RemoteShell, tell: Callable[[str], None]) -> None:
        super().__init__(str(address), address.label, tell)
        self.address, self.shell = address, shell
        self._peer: Connection | None = None
        self._own: Schema | None = None

    def look(self, names: str) -> tuple[Schema, dict[str, str]]:
        peer = self._connected()
        first = RemoteReader(peer, QueryRequest(limit=0, names=names, own=True), chosen=False)
        first.ask()
        first.ready(self.shell.wait)
        for _ in first:
            pass
        self._own = first.schema
        return first.schema, dict(first.filters or {})

    @property
    def reached(self) -> bool:
        """Whether the host has answered."""
        return self._peer is not None

    def _connected(self) -> Connection:
        if self._peer is None:
            self._peer = connected(self.address, self.shell, "follow", "cannot be monitored from elsewhere")
            self._own = None
        return self._peer

    def grown(self) -> Iterator[Part]:
        if self._peer is None:
            self.look("")
        left = list(range(len(self.questions)))
        while left:
            again = []
            for number, reader in self._answers(left, self.questions, self.since, None, grown=True):
                rollup = self._folded(reader, self.questions[number])
                rows, missed, more, uuid = reader.grown()
                self._read(number, uuid, rows, missed)
                if more:
                    again.append(number)
                yield number, rollup
            left = again

    def between(self, questions: Sequence[TextQuestion], since: int | None, until: int | None) -> Iterator[Part]:
        if self._peer is None:
            self.look("")
        for number, reader in self._answers(range(len(questions)), questions, since, until):
            yield number, self._folded(reader, questions[number])

    def _answers(
        self,
        numbers: Sequence[int],
        questions: Sequence[TextQuestion],
        since: int | None,
        until: int | None,
        *,
        grown: bool = False,
    ) -> Iterator[tuple[int, RemoteReader]]:
        """Readers that are ready, in order.  Short questions are sent together: that saves round trips."""
        peer = self._connected()
        assert self.schema is not None
        waiting: list[tuple[int, RemoteReader]] = []
        size = 0
        for i, number in enumerate(numbers):
            question = questions[number]
            request = QueryRequest(question.where, since, until, agg=question.agg, by=question.by or None, own=True)
            reader = RemoteReader(peer, request, host=self.host, warn=self.tell, note=self.tell)
            if HOST not in self.schema:
                reader.host = None
            if grown:
                reader.after = self._places[number]
            reader.ask(self.schema if self._own != self.schema else None)
            waiting.append((number, reader))
            size += len(question.where) + len(question.agg) + len(question.by)
            if size > AT_ONCE or "@" in question.where or i == len(numbers) - 1:
                for ready in waiting:
                    ready[1].ready(self.shell.wait)
                    yield ready
                waiting, size = [], 0

    def _folded(self, reader: RemoteReader, question: TextQuestion) -> Rollup:
        if reader.schema != self.schema:
            raise RemoteError("has other fields now", where=self.name, hint="start the monitor again")
        return reader.fold(None, None, question.fine.rollup)[0]

    def stop(self) -> None:
        if self._peer is not None:
            self._peer.child.kill()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = None
