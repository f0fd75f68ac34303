"""An input and the questions to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any

from confluo_tools.api.answer import Answer, Run, run_of
from confluo_tools.api.messages import listen
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.api.follow import Follower
    from confluo_tools.formats.address_database import AddressDatabase
    from confluo_tools.formats.reader import Reader
    from confluo_tools.inputs.selection import Selection
    from confluo_tools.multilog.version import Version
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema

Path = str | os.PathLike[str]
Time = int | str | datetime
Names = Sequence[str] | str


def open(
    source: Path | Sequence[Path] = (),
    *,
    at: Path | None = None,
    format: str | None = None,
    schema: Schema | str | None = None,
    partial: bool = False,
    geo: Path | Sequence[Path] = (),
) -> Source:
    """Open a MultiLog, an archive, a capture, Arrow, Parquet or text; ``host:/path``; ``kafka://...``; or several.

    Archives and files may be in object stores: ``s3://bucket/archive/``.
    Several logs and archives are one input, merged by time; other inputs come one after the other.
    ``at``: a snapshot file (confluo-snapshot(1)), instead of ``source``.
    ``format``: of a file that cannot be recognised.  ``schema``: types of the fields of text and foreign files: a
    `Schema`, the name of one, or the path of one.
    ``partial``: go on without hosts that do not answer, with a warning.
    ``geo``: databases in the MaxMind DB format, as --geo: questions that name `src_country`, `dst_asn` ... have them.
    Raises ConfluoError (StoreError, FormatError, SchemaError) if it cannot be opened.
    """
    listen()
    names = [source] if isinstance(source, str | os.PathLike) else list(source)
    if bool(names) == (at is not None):
        raise UsageError("open() needs either a source or at=SNAPSHOT")
    if isinstance(schema, str):
        from confluo_tools.schema import named

        schema = named(schema)
    found = Source([os.fspath(name) for name in names], None if at is None else os.fspath(at), format, schema, partial)
    if geo:
        from confluo_tools.inputs.named_fields import address_databases

        paths = [geo] if isinstance(geo, str | os.PathLike) else geo
        found.add_databases(address_databases([os.fspath(path) for path in paths]))
    found.schema  # noqa: B018 - opens the input: what is wrong with it is said now
    return found


class Source:
    """An input for any number of questions.  Made by `open`."""

    def __init__(
        self, names: Sequence[str], at: str | None, format: str | None, types: Schema | None, partial: bool
    ) -> None:
        self._names, self._at, self._format, self._types, self._partial = list(names), at, format, types, partial
        self._schema: Schema | None = None
        self._path_fields: Sequence[str] = ()  # that archives have, besides those that a question names
        self._ready: Reader | None = None  # of an input that cannot be opened twice, or with a connection
        self._databases: list[AddressDatabase] = []

    def __repr__(self) -> str:
        return f"open({', '.join(map(repr, self._names)) if self._at is None else f'at={self._at!r}'})"

    @property
    def schema(self) -> Schema:
        """The fields of its records: ``schema.fields`` with name, type, unit and description."""
        if self._schema is None:
            from confluo_tools.inputs.named_fields import located_schema
            from confluo_tools.remote.request import QueryRequest

            reader = self._open(QueryRequest(limit=0))
            self._schema = located_schema(reader.schema, self._databases)
            if any(map(_read_once, self._names)):
                self._ready = reader
            elif hasattr(reader, "peer"):  # a log of another host
                for _ in reader:  # no rows: then the connection is free for the first question
                    pass
                self._ready = reader
            else:
                reader.close()
        return self._schema

    def add_path_fields(self, names: Sequence[str]) -> None:
        """Add these fields to every record of an archive: host, date."""
        if names and self._ready is None:
            self._path_fields, self._schema = names, None

    def add_databases(self, databases: Sequence[AddressDatabase]) -> None:
        """Have the fields of --geo from these databases, in questions that name them."""
        from confluo_tools.inputs.named_fields import located_schema

        self._databases = list(databases)
        if self._schema is not None:
            self._schema = located_schema(self._schema, self._databases)

    def version(self) -> Version:
        """The rows of a MultiLog of this host that are there now, for ``version=`` of later questions.

        Retention does not remove them as long as the version is kept.  Raises UsageError for other inputs.
        """
        from confluo_tools import multilog

        return multilog.open(self._log_path(), readonly=True).version(pin=True)

    def query(
        self,
        expr: str = "",
        *,
        since: Time | None = None,
        until: Time | None = None,
        fields: Names | None = None,
        analyze: Names | None = None,
        sample: str | None = None,
        limit: int | None = None,
        local: bool = False,
        version: Version | None = None,
        readable: bool = False,
        zone: bool = True,
    ) -> Answer:
        """The rows for which ``expr`` holds (confluo-expr(7)), by time, with since <= time < until.

        Times: ns since 1970, datetime, or text as for --since ('10m', '2026-11-20T10:00'; ``local``: of local time).
        ``fields``: names, or a text as for --fields; None: all.  ``analyze``: derived fields, such as 'tcp'.
        ``sample``: '1/N', every Nth flow.  ``limit``: the first rows only.  ``version``: of `version`.
        ``readable``: addresses, MACs, enums, flags and texts as text, null if absent, in Arrow data; ``zone``: times
        have the time zone UTC there.
        Raises ConfluoError (UsageError for an expression that is wrong).
        """
        from confluo_tools.formats.limit import limited
        from confluo_tools.inputs.named_fields import path_fields
        from confluo_tools.remote.request import request_analysis, request_rows

        span, chosen, specs = _span(since, until, local), _text(fields), _list(analyze)
        limit = _rows("limit", limit)
        of_paths = path_fields([expr], [chosen])
        request = request_rows(expr, span, sample, chosen, limit, False, None, None, False)
        if specs:
            request = request_analysis(request, tuple(specs), None, None)
        places = self._places(expr, chosen)

        def run(selection: Selection) -> Run:
            names = None
            if chosen is not None:
                from confluo_tools.schema.choose import choose_fields

                names = choose_fields(chosen, selection.schema)
            pairs = limited(selection.selected(names), limit)
            return run_of(selection.reader, selection.schema, names, pairs)

        return self._answer(
            lambda: self._select(expr, span, request, specs, sample, local, version, of_paths, places),
            run,
            readable,
            zone,
        )

    def count(
        self,
        expr: str = "",
        *,
        since: Time | None = None,
        until: Time | None = None,
        local: bool = False,
        version: Version | None = None,
    ) -> int:
        """The number of rows that `query` would give; indexes and zone maps answer where they can."""
        from confluo_tools.inputs.named_fields import path_fields
        from confluo_tools.remote.request import request_rows

        span = _span(since, until, local)
        request = request_rows(expr, span, None, None, None, True, None, None, False)
        of_paths, places = path_fields([expr], []), self._places(expr)
        selection = self._select(expr, span, request, [], None, local, version, of_paths, places)
        with selection.reader:
            return selection.count(None)

    def aggregate(
        self,
        aggregates: str,
        *,
        by: str | None = None,
        where: str = "",
        having: str | None = None,
        top: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        analyze: Names | None = None,
        local: bool = False,
        version: Version | None = None,
        readable: bool = False,
    ) -> Answer:
        """Aggregates of the rows for which ``where`` holds, as --agg, --by, --having and --top of confluo-query(1).

        ``aggregates``: 'count, sum(len), p99(len)'; ``by``: 'src_ip/24, 1m'.  The other arguments are those of `query`.
        """
        from confluo_tools.inputs.grouped_rows import GroupedRows
        from confluo_tools.inputs.named_fields import path_fields
        from confluo_tools.remote.request import request_analysis, request_rows

        span, specs = _span(since, until, local), _list(analyze)
        top = _rows("top", top)
        of_paths = path_fields([where], [aggregates, by])
        request = request_rows(where, span, None, None, None, False, aggregates, by, False, local, having=having)
        if specs:
            request = request_analysis(request, tuple(specs), None, None)
        places = self._places(where, aggregates, by, having)

        def run(selection: Selection) -> Run:
            groups = GroupedRows(selection, aggregates, by, having, top, local)
            return run_of(selection.reader, groups.schema, None, groups.selected(*span))

        return self._answer(
            lambda: self._select(where, span, request, specs, None, local, version, of_paths, places), run, readable
        )

    def follow(
        self,
        expr: str = "",
        *,
        since: Time | None = None,
        until: Time | None = None,
        fields: Names | None = None,
        readable: bool = False,
    ) -> Follower:
        """The rows for which ``expr`` holds, and those that come later, as they are written.

        For one MultiLog of this host, one topic of Kafka, or a pipe.  ``until``: end when the clock passes this time.
        """
        from confluo_tools.api.follow import Follower

        return Follower.of(self, expr, _span(since, until, False), _text(fields), readable)

    # --- the machinery

    def _log_path(self) -> str:
        from confluo_tools import multilog

        if len(self._names) != 1 or not multilog.is_log(self._names[0]):
            raise UsageError("has no version of its own", where=repr(self), hint="open one MultiLog of this host")
        return self._names[0]

    def _places(self, *texts: str | None) -> tuple[str, ...]:
        # The fields of the databases that a question names.
        if not self._databases:
            return ()
        from confluo_tools.inputs.named_fields import geo_fields

        return tuple(name for name in geo_fields(texts) if name in self.schema)

    def _follow(self, until: int | None) -> Reader:
        from confluo_tools.inputs.live import open_live

        if self._at is not None or any(map(_read_once, self._names)):
            return self._open(None)
        return open_live(self._names, until=until, input_format=self._format, schema=self._types)

    def _open(
        self, request: QueryRequest | None, version: Version | None = None, path_fields: Sequence[str] = ()
    ) -> Reader:
        from confluo_tools.inputs.open import open_records

        if self._schema is not None and any(map(_read_once, self._names)):
            reader, self._ready = self._ready, None
            if reader is None:
                raise UsageError("can be read only once", where=repr(self), hint="convert it to a MultiLog first")
            return reader
        if self._ready is not None and version is None:
            asked = self._ask_again(request)
            if asked is not None:
                return asked
        if version is not None:
            from confluo_tools.console import note, state, warn
            from confluo_tools.multilog.open_log import open_log

            path = self._log_path()
            if version.log is None or not os.path.samefile(version.log.path, path):
                raise UsageError("the version is that of another log", where=path, hint="ask version() for one")
            return open_log(path, archives=state.archives, warn=warn, note=note, version=version)
        return open_records(
            self._names,
            input_format=self._format,
            schema=self._types,
            request=request,
            at=self._at,
            partial=self._partial,
            path_fields=(*self._path_fields, *path_fields),
        )

    def _ask_again(self, request: QueryRequest | None) -> Reader | None:
        # Through the connection that `open` made; None if it is lost.
        from confluo_tools.inputs.logs import ask_again
        from confluo_tools.remote.connect import RemoteError

        ready: Any = self._ready
        self._ready = None
        try:
            return ask_again(ready, request)
        except RemoteError:
            ready.close()
            return None

    def _select(
        self,
        expr: str,
        span: tuple[int | None, int | None],
        request: QueryRequest,
        analyze: Sequence[str],
        sample: str | None,
        local: bool,
        version: Version | None,
        path_fields: Sequence[str] = (),
        places: Sequence[str] = (),
    ) -> Selection:
        from confluo_tools.inputs.named_fields import located
        from confluo_tools.inputs.open import analyzed
        from confluo_tools.inputs.selection import Selection, compile_expr
        from confluo_tools.remote.request import request_all

        # Only this host has the databases.
        reader = self._open(request_all(expr) if places else request, version, path_fields)
        try:
            reader = located(analyzed(reader, analyze or None), self._databases, places)
            return Selection(reader, compile_expr(expr, reader, span, sample, local))
        except BaseException:
            reader.close()
            raise

    def _answer(
        self, select: Callable[[], Selection], run: Callable[[Selection], Run], readable: bool, zone: bool = True
    ) -> Answer:
        selection = select()
        same = selection.reader.format == "multilog" and not selection.reader.chosen
        try:
            first = run(selection)
        except BaseException:
            selection.reader.close()
            raise
        # A log is read again at its version; what else was read is opened again.
        return Answer(first, lambda: run(selection if same else select()), readable=readable, zone=zone)


def _read_once(name: str) -> bool:
    """Whether an input is a stream that is gone when it is read: standard input, a pipe, a socket."""
    from stat import S_ISDIR, S_ISREG

    try:
        mode = os.stat(0 if name == "-" else name).st_mode
    except OSError:
        return False  # of another host, or a topic
    return name == "-" or not (S_ISREG(mode) or S_ISDIR(mode))


def _span(since: Time | None, until: Time | None, local: bool) -> tuple[int | None, int | None]:
    from confluo_tools import units

    first = units.time(since, local=local) if isinstance(since, str) else _ns(since)
    after = units.until(until, local=local) if isinstance(until, str) else _ns(until)
    if first is None or after is None or first < after:
        return first, after
    skipped = [units.is_skipped(text, local=local) for text in (since, until) if isinstance(text, str)]
    if first > after or not any(skipped):  # a script may read the hour that the clock skips, too
        raise UsageError(f"until {until} is not after since {since}")
    return first, after


def _ns(time: int | datetime | None) -> int | None:
    if time is None:
        return None
    if hasattr(time, "__index__") and not isinstance(time, bool):  # also of numpy
        return index(time)
    if not isinstance(time, datetime):
        hint = "give ns since 1970, a datetime or a text such as '10m'"
        raise UsageError(f"{time!r} is not a time", hint=hint)
    if time.tzinfo is None:
        raise UsageError(f"{time} has no time zone", hint="give it one: tzinfo=datetime.UTC")
    from datetime import UTC, timedelta

    micros = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return micros * 1000 + getattr(time, "nanosecond", 0)  # of pandas, which has them besides


def _rows(name: str, number: int | None) -> int | None:
    if number is None:
        return None
    if not hasattr(number, "__index__") or index(number) < 0:
        raise UsageError(f"{name}={number!r} is not a number of rows")
    return index(number)


def _text(names: Names | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


def _list(names: Names | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())
