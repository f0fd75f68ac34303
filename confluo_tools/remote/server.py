"""`confluo serve`: answers queries and freezes of one client, see docs/protocol.md.

It handles one request at a time.  All input is checked; a path, with all links resolved, must be inside the roots; a
freeze ends with its THAW, its time limit, the connection or this process, whichever is first.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import contextmanager, suppress

from confluo_tools import __version__
from confluo_tools.errors import ConfluoError, SchemaError, StoreError, UsageError
from confluo_tools.remote import frame_codec
from confluo_tools.remote.request import QueryRequest

TYPE_CHECKING = False  # importing typing costs a good part of an answer
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.growing_log import GrownRows
    from confluo_tools.remote.archive_server import ArchiveServer
    from confluo_tools.schema import Schema

ALIVE = 5.0  # seconds from one ALIVE frame to the next
STALL = 30.0  # seconds within which a frame must be complete
SOON = 0.02  # seconds that rows may wait for a batch to fill
BATCH = 64 << 20  # bytes of a record batch
MAX_PATH = 4096
MAX_MORE = 256 << 10  # bytes of a row that a client asks for in addition to those of the log
MAX_LOGS = 64
CHUNK = 1 << 18  # rows of a lane in one answer about a growing log
LAST = (1 << 63) - 1
WARM = (
    "json",
    "confluo_tools.schema",
    "confluo_tools.multilog",
    "confluo_tools.multilog.reader",
    "confluo_tools.expr",
    "confluo_tools.multilog.query.plan",
    "confluo_tools.formats.arrow",
    "confluo_tools.schema.choose",
    "confluo_tools.expr.sample",
    "confluo_tools.multilog.snapshot",
)


class HungUp(Exception):
    """The client has hung up."""


class QueryServer:
    """Answers on ``fd_out`` the requests on ``fd_in``.

    ``roots``: folders that logs may be in; empty: any folder.  ``max_freeze``: longest freeze, ns.
    ``read_only``: refuse freezes and changes.  ``idle``: exit after this time without a request, seconds.
    ``alive``: seconds between two ALIVE frames, while the server works on an answer.
    """

    def __init__(
        self,
        fd_in: int,
        fd_out: int,
        roots: Sequence[str] = (),
        *,
        max_freeze: int = 10_000_000_000,
        read_only: bool = False,
        idle: float | None = None,
        alive: float = ALIVE,
    ) -> None:
        import _thread  # not threading: it takes longer to load than an answer

        self.fd_in, self.fd_out = fd_in, fd_out
        self.roots = [os.path.realpath(root) for root in roots]
        self.max_freeze, self.read_only, self.idle = max_freeze, read_only, idle
        self._have = b""
        self._alive = alive
        self._expects_alive = False  # the client knows ALIVE frames
        self._answering = False  # ALIVE frames may be written
        self._until: float | None = None  # when the message that has begun must be complete
        self._busy = False
        self._watched_for = False
        self._archiving: ArchiveServer | None = None
        self._writing = _thread.allocate_lock()  # a frame is written as a whole

    def run(self) -> None:
        """Serve until the client hangs up.  Raises ConfluoError for an invalid client, or one of another version."""
        try:
            self._put(frame_codec.hello())
            self._greet()
            self._warm()
            while True:
                kind, body = self._frame()
                self._answer(kind, body)
        except HungUp:
            return

    def _answer(self, kind: int, body: bytes) -> None:
        try:
            if kind == frame_codec.OPEN:
                self._open(frame_codec.parse(body))
            elif kind == frame_codec.QUERY:
                with self._alive_frames():
                    self._query(frame_codec.parse(body))
            elif kind == frame_codec.VIEWS:
                with self._alive_frames():
                    self._views(frame_codec.parse(body))
            elif kind == frame_codec.ARCHIVE:
                with self._alive_frames():
                    self._archive(frame_codec.parse(body))
            else:
                raise ValueError(f"a frame '{frame_codec.KINDS[kind]}' out of turn")
        except ConfluoError as e:
            self._put(frame_codec.frame(frame_codec.ERROR, frame_codec.error_of(e)))
        except (ValueError, SchemaError) as e:
            self._refuse(str(e))

    def _refuse(self, what: str) -> None:
        # Report to both sides, and stop: what follows invalid input cannot be trusted.
        self._put(frame_codec.frame(frame_codec.ERROR, {"what": f"protocol error: {what}"}))
        raise ConfluoError(
            f"protocol error: {what}", where="standard input", hint="only confluo-tools can be its client"
        )

    # -- connection

    def _warm(self) -> None:
        """Import the modules of a query until a request comes."""
        from importlib import import_module

        for name in WARM:
            if self._have or select.select([self.fd_in], [], [], 0)[0]:
                return
            import_module(name)

    def _greet(self) -> None:
        line = self._take(lambda have: have.find(b"\n") + 1 or (len(have) >= frame_codec.HELLO_BYTES) * len(have))
        try:
            protocol, version, can = frame_codec.parse_hello(line)
        except (ValueError, UnicodeDecodeError):
            hint = "run confluo-query or confluo-snapshot"
            raise ConfluoError("the client does not speak the protocol", where="standard input", hint=hint) from None
        self._expects_alive = "alive" in can
        if protocol != frame_codec.PROTOCOL:
            hint = "install the same version at both ends"
            ours = f"{frame_codec.PROTOCOL} (confluo-tools {__version__})"
            what = f"speaks protocol {ours}, its client {protocol} ({version})"
            self._put(frame_codec.frame(frame_codec.ERROR, {"what": what, "hint": hint}))
            what = f"the client speaks protocol {protocol} ({version}), this program {ours}"
            raise ConfluoError(what, where="standard input", hint=hint)

    def _frame(self) -> tuple[int, bytes]:
        self._until = None
        data = self._take(lambda have: frame_codec.HEAD_BYTES if len(have) >= frame_codec.HEAD_BYTES else 0)
        try:
            kind, size = frame_codec.parse_head(data)
        except ValueError as e:
            self._refuse(str(e))
            raise
        if self._until is None:  # all of the head came at once
            self._until = time.monotonic() + STALL
        return kind, self._take(lambda have: size if len(have) >= size else 0) if size else b""

    def _take(self, enough: Any) -> bytes:
        """The next ``enough(received bytes)`` bytes; 0: wait for more, up to the deadline of the message."""
        while not (n := enough(self._have)):
            if self._have and self._until is None:
                self._until = time.monotonic() + STALL
            limit = self.idle if self._until is None else max(self._until - time.monotonic(), 0)
            if limit is not None and not select.select([self.fd_in], [], [], limit)[0]:
                if self._until is None:
                    raise ConfluoError(f"no request for {limit:g} s", where="standard input")
                raise ConfluoError(f"a message was not complete after {STALL:g} s", where="standard input")
            try:
                data = os.read(self.fd_in, 65536)
            except OSError as e:
                what = "is closed" if e.errno == errno.EBADF else e.strerror or str(e)
                raise ConfluoError(what, where="standard input") from None
            if not data:
                if self._have:
                    raise ConfluoError("ends in the middle of a message", where="standard input")
                raise HungUp
            self._have += data
        out, self._have = self._have[:n], self._have[n:]
        return out

    def _put(self, *pieces: bytes | memoryview) -> None:
        with self._writing:
            try:
                frame_codec.write(self.fd_out, *pieces)
            except (BrokenPipeError, ConnectionResetError):
                raise HungUp from None

    # -- snapshots

    def _open(self, message: dict[str, Any]) -> None:
        """Open logs for freezes, then answer FREEZE and THAW until another frame comes."""
        from confluo_tools.core.multilog.freeze import LogFreeze
        from confluo_tools.multilog import Log

        logs, cuts = [], []
        for path in frame_codec.texts(message, "logs", MAX_LOGS):
            try:
                if self.read_only:
                    raise UsageError("is served read-only and cannot be frozen", where=path)
                log = Log(self.inside(path))
                if not log.control.writable:
                    raise StoreError("cannot be frozen", where=path, hint="freezing needs write permission")
                cuts.append(log.control)
                entry: dict[str, Any] = {"uuid": log.uuid.hex(), "kind": log.schema.kind}
                entry["path"] = os.path.realpath(log.path)
            except ConfluoError as e:
                entry = {"error": frame_codec.error_of(e)}
            logs.append(entry)
        self._put(frame_codec.frame(frame_codec.OPENED, {"logs": logs}))
        idle = -1 if self.idle is None else int(self.idle * 1000)
        try:
            with _signals() as wake:
                have = LogFreeze(cuts).serve(self.fd_in, self.fd_out, self.max_freeze, self._have, idle, wake)
        except TimeoutError:
            waited = f" for {self.idle:g} s" if self.idle is not None else ""
            raise ConfluoError(f"no request{waited}", where="standard input") from None
        except OverflowError as e:
            raise ConfluoError(str(e), where="standard input") from None
        except (BrokenPipeError, ConnectionResetError):
            raise HungUp from None
        if have is None:
            raise HungUp
        self._have = have

    def inside(self, path: str) -> str:
        """The folder ``path`` with all links resolved.  Raises UsageError outside the roots."""
        if not path or len(path) > MAX_PATH or "\0" in path:
            raise UsageError("is not a valid path", where=path[:100])
        real = os.path.realpath(path)
        if self.roots and not all(self._within(p) for p in (real, *_parts(real))):
            raise UsageError("is outside the served folders", where=path, hint=f"--root is {', '.join(self.roots)}")
        return real

    def _within(self, path: str) -> bool:
        return any(os.path.commonpath((root, path)) == root for root in self.roots)

    # -- queries

    def _query(self, message: dict[str, Any]) -> None:
        from confluo_tools.formats.merge import HOST, HOST_BYTES, Shaped, with_host
        from confluo_tools.multilog.open_log import open_log
        from confluo_tools.schema import Schema

        path = frame_codec.get(message, "path", str)
        request = QueryRequest.of(message)
        host = frame_codec.get(message, "host", str, None)
        if host is not None and len(host.encode("utf-8", "surrogateescape")) > HOST_BYTES:
            raise ValueError("invalid 'host' in message")
        wanted = frame_codec.get(message, "schema", dict, None)
        if wanted is not None and (request.analyze or request.unnest):
            raise ValueError("message with both 'schema' and 'analyze' or 'unnest'")
        grown = self._grown(message, path, request)
        reader: Reader = grown or open_log(
            self.inside(path),
            archives=not request.own,
            allowed=self._within if self.roots else None,
            warn=lambda what: self.tell(frame_codec.WARN, what),
            note=lambda what: self.tell(frame_codec.NOTE, what),
            at=_cut(message, path),
        )
        with reader:
            uuid = reader.log.uuid.hex()  # type: ignore[attr-defined]
            firsts = _firsts(reader) if request.kept and grown is None and "tails" not in message else None
            reader.timed = request.explain  # type: ignore[attr-defined]
            schema = reader.schema if wanted is None else Schema.from_dict(wanted)
            add = host is not None and HOST not in reader.schema
            if host is not None and wanted is None:
                schema = with_host(schema)
            if schema is not reader.schema:
                _check_shape(reader.schema, schema)
                reader = Shaped(reader, schema, host if add else None)
            if request.analyze:
                reader = self._analyzed(reader, request)
                schema = reader.schema
            if request.unnest:
                from confluo_tools.multilog.query.unnested import UnnestedReader

                reader = UnnestedReader(reader, request.unnest)
                schema = reader.schema
            meta = {"schema": schema.as_dict(), "metadata": reader.metadata, "uuid": uuid}
            if firsts is not None:
                meta["kept"] = firsts
            view = reader.aggregate(request.agg.strip()) if request.agg is not None else None
            if view is not None:
                texts = {key: getattr(view, key) for key in ("agg", "by", "where", "filter_text")}
                meta["aggregate"] = texts
            meta["filters"] = _named(reader.filters or {}, f"{request.expr} {request.names or ''}")
            self._put(frame_codec.frame(frame_codec.META, meta))
            with self._watched():
                expr = compiled(request, reader)
                if view is not None:
                    for text in (view.filter_text, view.where):
                        expr = expr.also(compiled(QueryRequest(text), reader))
                    request = request.replace(agg=view.agg, by=view.by if request.by is None else request.by)
                if request.agg is not None:
                    found = self._groups(reader, expr, request)
                elif request.counted and request.limit is None:
                    found = reader.count(expr)
                else:
                    found = self._rows(reader, expr, request, HOST if add else None)
            end: dict[str, Any] = {"rows": reader.rows, "found": found}
            if request.explain:
                end["plan"] = reader.explain()
            if grown is not None:
                end |= {"rows_read": grown.position, "missed": grown.missed, "more": grown.behind}
            self._answering = False  # nothing follows the END frame
            self._put(frame_codec.frame(frame_codec.END, end))

    def _grown(self, message: dict[str, Any], path: str, request: QueryRequest) -> GrownRows | None:
        """The rows of a growing log after those that the client has; None for another question."""
        after = message.get("after")
        if after is None:
            return None
        from confluo_tools.multilog.growing_log import GrownRows
        from confluo_tools.multilog.snapshot import MAX_LANES

        rows = frame_codec.numbers(after, MAX_LANES, 1 << 48)
        uuid = frame_codec.get(message, "uuid", str)
        whole = request.last is not None or request.agg is not None  # all rows are looked at; the answer is small
        most = LAST if whole else CHUNK
        grown = GrownRows(self.inside(path), uuid, rows, most, lambda what: self.tell(frame_codec.WARN, what))
        if request.since is not None:
            grown.tails.after = request.since
        return grown

    def _analyzed(self, reader: Reader, request: QueryRequest) -> Reader:
        from confluo_tools.multilog.query.derived_fields import FLOWS, AnalyzedReader

        flows = FLOWS if request.flows is None else request.flows
        return AnalyzedReader(reader, request.analyze, flows=flows, warn=lambda what: self.tell(frame_codec.WARN, what))

    def _views(self, message: dict[str, Any]) -> None:
        from confluo_tools.remote.view_server import serve_views

        with self._watched():
            end = serve_views(self, message)
        self._answering = False  # nothing follows the END frame
        self._put(frame_codec.frame(frame_codec.END, end))

    def _archive(self, message: dict[str, Any]) -> None:
        if self._archiving is None:
            from confluo_tools.remote.archive_server import ArchiveServer

            self._archiving = ArchiveServer(self)
        end = self._archiving.answer(message)
        self._answering = False  # nothing follows the END frame
        self._put(frame_codec.frame(frame_codec.END, end))

    @contextmanager
    def _alive_frames(self) -> Iterator[None]:
        """Send ALIVE frames, if the client knows them."""
        if not self._expects_alive:
            yield
            return
        import _thread

        over = _thread.allocate_lock()
        over.acquire()

        def beat() -> None:
            while not over.acquire(timeout=self._alive):
                self._say_alive()

        self._answering = True
        with suppress(RuntimeError):  # out of memory or threads
            _thread.start_new_thread(beat, ())
        try:
            yield
        finally:
            self._answering = False
            over.release()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the process if the client hangs up during an answer: a scan without matches would not notice.

        Nothing is frozen then.
        """
        self._busy = True
        if not self._watched_for:
            import _thread

            self._watched_for = True
            with suppress(RuntimeError):  # out of memory or threads
                _thread.start_new_thread(self._look, ())
        try:
            yield
        finally:
            self._busy = False

    def _look(self) -> None:
        poll = select.poll()
        poll.register(self.fd_in, select.POLLHUP | select.POLLRDHUP)
        poll.poll()
        if self._busy:
            os._exit(0)

    def _say_alive(self) -> None:
        """Write an ALIVE frame, unless the other thread is writing a frame or the client has not read the last ones.

        Both mean that the client has bytes to read.  So this thread never waits: a pipe or a socket that takes bytes
        has room for a header.
        """
        if not self._writing.acquire(blocking=False):
            return
        try:
            room = select.poll()
            room.register(self.fd_out, select.POLLOUT)
            if self._answering and any(event & select.POLLOUT for _, event in room.poll(0)):
                os.write(self.fd_out, frame_codec.head(frame_codec.ALIVE, 0))
        except OSError:
            pass  # the client has hung up
        finally:
            self._writing.release()

    def send(self, kind: int, *pieces: bytes | memoryview) -> None:
        """Send a frame with this body."""
        self._put(frame_codec.head(kind, sum([len(piece) for piece in pieces])), *pieces)

    def tell(self, kind: int, what: str) -> None:
        """Send a WARN or a NOTE frame."""
        self._put(frame_codec.frame(kind, {"what": what[: frame_codec.MAX_TEXT]}))

    def _groups(self, reader: Reader, expr: Expr, request: QueryRequest) -> int:
        from confluo_tools.core.query.rollup_codec import dump
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.multilog.query import aggregation

        schema = reader.schema
        keys = parse_by(request.by, schema) if request.by else []
        agg = request.agg or ""
        question = aggregation.Aggregation(schema, parse_aggregates(agg, schema), keys, zone=request.zone)
        if request.having is not None or request.sort is not None:
            from confluo_tools.expr.result_columns import hidden_columns

            names = [f.name for f in question.result.fields]
            question.hide(hidden_columns(schema, agg, names, request.having, request.sort))
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in question.reads]
        rollup, found = reader.fold(expr, columns, question.rollup)
        data = memoryview(dump(rollup))
        for start in range(0, len(data), frame_codec.MAX_FRAME):
            piece = data[start : start + frame_codec.MAX_FRAME]
            self._put(frame_codec.head(frame_codec.PARTIAL, len(piece)), piece)
        return found

    def _rows(self, reader: Reader, expr: Expr, request: QueryRequest, omit: str | None) -> int:
        from confluo_tools.formats.arrow import StreamWriter
        from confluo_tools.formats.limit import limited
        from confluo_tools.schema.choose import choose_fields

        schema = reader.schema
        chosen = [] if request.counted else choose_fields(request.fields, schema)
        if chosen is not None:
            wanted = [*schema.with_versions(chosen), *([schema.time_field.name] if schema.time_field else [])]
            chosen = [f.name for f in schema.fields if f.name in wanted]
        names = [n for n in chosen or [f.name for f in schema.fields] if n != omit]
        names = names or [next(f.name for f in schema.fields if f.name != omit)]  # a count without a time
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in names]
        writer = StreamWriter(schema, _Data(self), fields=names)
        most = max(BATCH // writer.layout.row_bytes, 1)
        writer.start()
        found, due = 0, 0.0
        pairs = reader.select(expr, columns)
        if request.last is not None:
            from confluo_tools.formats.newest import newest

            pairs = newest(reader.select(reader.newest(expr, request.last), columns), schema, request.last, False)
        for block, picks in limited(pairs, request.limit):
            found += block.rows if picks is None else len(picks)
            for start in range(0, block.rows, most):
                end = min(start + most, block.rows)
                if picks is None:
                    writer.write(block.slice(start, end - start))
                elif len(picks):
                    writer.write(block, picks.within(start, end) if most < block.rows else picks)
            if time.monotonic() >= due:  # the first at once
                writer.flush()
                due = time.monotonic() + SOON
        writer.close()
        return found


class _Data:
    """What a StreamWriter writes to: DATA frames."""

    def __init__(self, server: QueryServer) -> None:
        self.server = server

    def writev(self, pieces: Iterable[bytes | memoryview]) -> None:
        frame: list[bytes | memoryview] = []
        size = 0
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while len(left):
                part = left[: frame_codec.MAX_FRAME - size]
                left = left[len(part) :]
                frame.append(part)
                size += len(part)
                if size == frame_codec.MAX_FRAME:
                    self.server._put(frame_codec.head(frame_codec.DATA, size), *frame)
                    frame, size = [], 0
        if size:
            self.server._put(frame_codec.head(frame_codec.DATA, size), *frame)


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that gets readable when a signal comes: one that came just before a wait would be slept over."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield -1
        return
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(write)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def _parts(log: str) -> list[str]:
    """What a log consists of, links followed: one that was put together from elsewhere shows here."""
    out = []
    try:
        for name in os.listdir(log):
            path = os.path.join(log, name)
            out.append(os.path.realpath(path))
            if name.startswith("lane-") or name == "views":
                out += [os.path.realpath(e.path) for e in os.scandir(path) if e.is_symlink()]
    except OSError:
        pass  # there is none, or it may not be read: opening it says so
    return out


def _cut(message: dict[str, Any], path: str) -> Any:
    tails = message.get("tails")
    if tails is None:
        return None
    from confluo_tools.multilog.snapshot import MAX_LANES, LogCut

    rows, firsts = (frame_codec.numbers(v, MAX_LANES, 1 << 48) for v in (tails, message.get("firsts", [])))
    return LogCut("", "", path, frame_codec.get(message, "uuid", str)[:32], "", rows, firsts)


def _firsts(reader: Reader) -> list[int] | None:
    """The number of the first row of each lane, which stays there until the rows are sent; None with archives."""
    from confluo_tools.multilog.archive.log_with_archive import LogWithArchiveReader
    from confluo_tools.multilog.reader import LogReader

    if not isinstance(reader, LogReader) or isinstance(reader, LogWithArchiveReader):
        return None
    reader.version = reader.log.version(pin=True)  # rows that were removed since it was opened are in the archive
    return list(reader.version.firsts)


def _check_shape(own: Schema, wanted: Schema) -> None:
    """Raises SchemaError: the log cannot be read as ``wanted``."""
    if own.kind != wanted.kind:
        raise SchemaError(f"holds records of kind '{own.kind}', not '{wanted.kind}'")
    for field in own.fields:
        if field.name in wanted and wanted[field.name].type != field.type:
            what = f"stores '{field.name}' as {field.type.text}, not as {wanted[field.name].type.text}"
            raise SchemaError(what, hint="ask the logs one by one")
    more = wanted.layout.row_bytes - own.layout.row_bytes
    if more > MAX_MORE:
        what = f"has rows of {own.layout.row_bytes} bytes; the client asks for {more} bytes more, at most {MAX_MORE}"
        raise SchemaError(what, hint="query the logs one by one")


def _named(filters: Mapping[str, str], text: str) -> dict[str, str]:
    """The filters that an expression may name: what it means is checked at both ends."""
    if "filter" not in text:
        return {}
    return {name: filters[name] for name in filters if name in text}


def compiled(request: QueryRequest, reader: Reader) -> Expr:
    """The expression with its time range and its sample."""
    from confluo_tools.expr import compile
    from confluo_tools.expr.sample import sampled

    expr = compile(request.expr, reader.schema, filters=reader.filters).within(request.since, request.until)
    return expr if request.sample is None else sampled(expr, request.sample)
