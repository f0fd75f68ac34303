"""`confluo serve`: questions and freezes from another host, over two descriptors.  The protocol: docs/protocol.md.

One peer, one thing at a time.  Whatever comes is checked; a path must lie inside the roots once all links are
followed; a freeze ends with its THAW, its time limit, the connection or this process, whichever is first.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import contextmanager

from confluo_tools import __version__
from confluo_tools.errors import ConfluoError, SchemaError, StoreError, UsageError
from confluo_tools.remote import wire
from confluo_tools.remote.wish import Wish

TYPE_CHECKING = False  # importing typing costs a good part of an answer
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from confluo_tools.core.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

STALL = 30.0  # seconds until a frame that has begun must be there
SOON = 0.02  # seconds that rows may wait for others to share a batch with
BATCH = 64 << 20  # bytes of a record batch
MAX_PATH = 4096
MAX_LOGS = 64
WARM = ("json", "confluo_tools.schema", "confluo_tools.store", "confluo_tools.store.reader", "confluo_tools.expr",
        "confluo_tools.store.plan", "confluo_tools.formats.arrow", "confluo_tools.schema.choose",
        "confluo_tools.expr.sample", "confluo_tools.store.snapshot")  # fmt: skip


class Ended(Exception):
    """The other end has hung up."""


class Server:
    """Answers on ``fd_out`` what is asked on ``fd_in``.

    ``roots``: folders that logs may be in; none: anywhere.  ``max_freeze``: ns, the longest freeze.
    ``read_only``: no freezes at all.  ``idle``: seconds without a request until it ends by itself.
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
    ) -> None:
        self.fd_in, self.fd_out = fd_in, fd_out
        self.roots = [os.path.realpath(root) for root in roots]
        self.max_freeze, self.read_only, self.idle = max_freeze, read_only, idle
        self._have = b""
        self._busy = False
        self._watched_for = False

    def run(self) -> None:
        """Until the other end hangs up.  Raises ConfluoError for what is no client, or one of another version."""
        try:
            self._put(wire.hello())
            self._greet()
            self._warm()
            while True:
                kind, body = self._frame()
                self._answer(kind, body)
        except Ended:
            return

    def _answer(self, kind: int, body: bytes) -> None:
        try:
            if kind == wire.OPEN:
                self._open(wire.parse(body))
            elif kind == wire.QUERY:
                self._query(wire.parse(body))
            else:
                raise ValueError(f"a frame '{wire.KINDS[kind]}' out of turn")
        except ConfluoError as e:
            self._put(wire.frame(wire.ERROR, wire.error_of(e)))
        except (ValueError, SchemaError) as e:
            self._refuse(str(e))

    def _refuse(self, what: str) -> None:
        # Tell both sides, and stop: whoever sends such things may send anything next.
        self._put(wire.frame(wire.ERROR, {"what": f"was sent {what}"}))
        raise ConfluoError(f"was sent {what}", where="standard input", hint="only confluo-tools speak to it")

    # -- coming and going

    def _warm(self) -> None:
        """Load what a question needs as long as none has come: its client may be loading, too."""
        from importlib import import_module

        for name in WARM:
            if self._have or select.select([self.fd_in], [], [], 0)[0]:
                return
            import_module(name)

    def _greet(self) -> None:
        line = self._take(lambda have: have.find(b"\n") + 1 or (len(have) >= wire.HELLO_BYTES) * len(have))
        try:
            protocol, version, _ = wire.parse_hello(line)
        except (ValueError, UnicodeDecodeError):
            hint = "confluo-query and confluo-snapshot do"
            raise ConfluoError("no client speaks here", where="standard input", hint=hint) from None
        if protocol != wire.PROTOCOL:
            what = f"speaks protocol {wire.PROTOCOL} (confluo-tools {__version__}), its client {protocol} ({version})"
            self._put(wire.frame(wire.ERROR, {"what": what, "hint": "install the same version at both ends"}))
            raise ConfluoError(
                f"the client speaks protocol {protocol} ({version}), this program {wire.PROTOCOL} ({__version__})",
                where="standard input", hint="install the same version at both ends",
            )  # fmt: skip

    def _frame(self) -> tuple[int, bytes]:
        data = self._take(lambda have: wire.HEAD_BYTES if len(have) >= wire.HEAD_BYTES else 0)
        try:
            kind, size = wire.parse_head(data)
        except ValueError as e:
            self._refuse(str(e))
            raise
        return kind, self._take(lambda have: size if len(have) >= size else 0) if size else b""

    def _take(self, enough: Any) -> bytes:
        """As many of the next bytes as ``enough`` says when it is given all that have come; 0 waits for more."""
        while not (n := enough(self._have)):
            limit = STALL if self._have else self.idle
            if limit is not None and not select.select([self.fd_in], [], [], limit)[0]:
                raise ConfluoError(f"nothing came for {limit:g} s", where="standard input")
            try:
                data = os.read(self.fd_in, 65536)
            except OSError as e:
                what = "is closed" if e.errno == errno.EBADF else e.strerror or str(e)
                raise ConfluoError(what, where="standard input") from None
            if not data:
                if self._have:
                    raise ConfluoError("ends in the middle of a message", where="standard input")
                raise Ended
            self._have += data
        out, self._have = self._have[:n], self._have[n:]
        return out

    def _put(self, *pieces: bytes | memoryview) -> None:
        try:
            wire.write(self.fd_out, *pieces)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None

    # -- snapshots

    def _open(self, message: dict[str, Any]) -> None:
        """Open logs for freezes, then answer FREEZE and THAW until something else comes."""
        from confluo_tools.core.freeze import Cut
        from confluo_tools.store import Log

        logs, cuts = [], []
        for path in wire.texts(message, "logs", MAX_LOGS):
            try:
                if self.read_only:
                    raise UsageError("may be read only: this server freezes nothing", where=path)
                log = Log(self.inside(path))
                if not log.control.writable:
                    raise StoreError("cannot be frozen", where=path, hint="that needs permission to write to it")
                cuts.append(log.control)
                entry: dict[str, Any] = {"uuid": log.uuid.hex(), "kind": log.schema.kind}
                entry["path"] = os.path.realpath(log.path)
            except ConfluoError as e:
                entry = {"error": wire.error_of(e)}
            logs.append(entry)
        self._put(wire.frame(wire.OPENED, {"logs": logs}))
        idle = -1 if self.idle is None else int(self.idle * 1000)
        try:
            with _signals() as wake:
                have = Cut(cuts).serve(self.fd_in, self.fd_out, self.max_freeze, self._have, idle, wake)
        except TimeoutError:
            waited = f" for {self.idle:g} s" if self.idle is not None else ""
            raise ConfluoError(f"nothing came{waited}", where="standard input") from None
        except OverflowError as e:
            raise ConfluoError(str(e), where="standard input") from None
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None
        if have is None:
            raise Ended
        self._have = have

    def inside(self, path: str) -> str:
        """The folder that ``path`` is, all links followed.  Raises UsageError outside the roots."""
        if not path or len(path) > MAX_PATH or "\0" in path:
            raise UsageError("is not the path of a log", where=path[:100])
        real = os.path.realpath(path)
        if self.roots and not all(self._within(p) for p in (real, *_parts(real))):
            raise UsageError("is outside of what is served", where=path, hint=f"--root is {', '.join(self.roots)}")
        return real

    def _within(self, path: str) -> bool:
        return any(os.path.commonpath((root, path)) == root for root in self.roots)

    # -- questions

    def _query(self, message: dict[str, Any]) -> None:
        from confluo_tools.formats.merge import HOST, HOST_BYTES, Shaped, with_host
        from confluo_tools.schema import Schema
        from confluo_tools.store.opening import open_log

        path = wire.get(message, "path", str)
        wish = Wish.of(message)
        host = wire.get(message, "host", str, None)
        if host is not None and len(host.encode("utf-8", "surrogateescape")) > HOST_BYTES:
            raise ValueError("a message with a strange 'host'")
        wanted = wire.get(message, "schema", dict, None)
        if wanted is not None and wish.analyze:
            raise ValueError("a message with 'schema' and 'analyze'")
        reader: Reader = open_log(
            self.inside(path), archives=not wish.own, allowed=self._within if self.roots else None,
            warn=lambda what: self._tell(wire.WARN, what), note=lambda what: self._tell(wire.NOTE, what),
            at=_cut(message, path),
        )  # fmt: skip
        with reader:
            uuid = reader.log.uuid.hex()  # type: ignore[attr-defined]
            reader.timed = wish.explain  # type: ignore[attr-defined]
            schema = reader.schema if wanted is None else Schema.from_dict(wanted)
            add = host is not None and HOST not in reader.schema
            if host is not None and wanted is None:
                schema = with_host(schema)
            if schema is not reader.schema:
                _check_shape(reader.schema, schema)
                reader = Shaped(reader, schema, host if add else None)
            if wish.analyze:
                reader = self._analyzed(reader, wish)
                schema = reader.schema
            meta = {"schema": schema.as_dict(), "metadata": reader.metadata, "uuid": uuid}
            view = reader.aggregate(wish.agg.strip()) if wish.agg is not None else None
            if view is not None:
                texts = {key: getattr(view, key) for key in ("agg", "by", "where", "filter_text")}
                meta["aggregate"] = texts
            meta["filters"] = _named(reader.filters or {}, f"{wish.expr} {wish.names or ''}")
            self._put(wire.frame(wire.META, meta))
            with self._watched():
                expr = compiled(wish, reader)
                if view is not None:
                    for text in (view.filter_text, view.where):
                        expr = expr.also(compiled(Wish(text), reader))
                    wish = wish.but(agg=view.agg, by=view.by if wish.by is None else wish.by)
                if wish.agg is not None:
                    found = self._groups(reader, expr, wish)
                elif wish.counted and wish.limit is None:
                    found = reader.count(expr)
                else:
                    found = self._rows(reader, expr, wish, HOST if add else None)
            end: dict[str, Any] = {"rows": reader.rows, "found": found}
            if wish.explain:
                end["plan"] = reader.explain()
            self._put(wire.frame(wire.END, end))

    def _analyzed(self, reader: Reader, wish: Wish) -> Reader:
        from confluo_tools.store.analyze import FLOWS, Analyzed

        flows = FLOWS if wish.flows is None else wish.flows
        return Analyzed(reader, wish.analyze, flows=flows, note=lambda what: self._tell(wire.NOTE, what))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the client waits for an answer, its hanging up ends the process: a scan that finds nothing would not
        notice.  Nothing is frozen then."""
        self._busy = True
        if not self._watched_for:
            import _thread  # not threading: it takes longer to load than an answer

            self._watched_for = True
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

    def _tell(self, kind: int, what: str) -> None:
        self._put(wire.frame(kind, {"what": what[: wire.MAX_TEXT]}))

    def _groups(self, reader: Reader, expr: Expr, wish: Wish) -> int:
        from confluo_tools.core.partial import dump
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.store import aggregate

        schema = reader.schema
        keys = parse_by(wish.by, schema) if wish.by else []
        question = aggregate.Question(schema, parse_aggregates(wish.agg or "", schema), keys)
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in question.reads]
        rollup, found = reader.fold(expr, columns, question.rollup)
        data = memoryview(dump(rollup))
        for start in range(0, len(data), wire.MAX_FRAME):
            piece = data[start : start + wire.MAX_FRAME]
            self._put(wire.head(wire.PARTIAL, len(piece)), piece)
        return found

    def _rows(self, reader: Reader, expr: Expr, wish: Wish, omit: str | None) -> int:
        from confluo_tools.formats.arrow import StreamWriter
        from confluo_tools.schema.choose import choose_fields

        schema = reader.schema
        chosen = [] if wish.counted else choose_fields(wish.fields, schema)
        if chosen is not None:
            more = {schema[n].version for n in chosen} | ({schema.time_field.name} if schema.time_field else set())
            chosen = [f.name for f in schema.fields if f.name in more or f.name in chosen]
        names = [n for n in chosen or [f.name for f in schema.fields] if n != omit]
        names = names or [next(f.name for f in schema.fields if f.name != omit)]  # a count without a time
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in names]
        writer = StreamWriter(schema, _Data(self), fields=names)
        most = max(BATCH // writer.layout.row_bytes, 1)
        writer.start()
        found, due = 0, 0.0
        for block, picks in _limited(reader.select(expr, columns), wish.limit):
            found += block.rows if picks is None else len(picks)
            if most < block.rows:
                block, picks = block.take(picks) if picks is not None else block, None
                for start in range(0, block.rows, most):
                    writer.write(block.slice(start, min(most, block.rows - start)))
            else:
                writer.write(block, picks)
            if time.monotonic() >= due:  # the first at once
                writer.flush()
                due = time.monotonic() + SOON
        writer.close()
        return found


class _Data:
    """What a StreamWriter writes to: DATA frames."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def writev(self, pieces: Iterable[bytes | memoryview]) -> None:
        frame: list[bytes | memoryview] = []
        size = 0
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while len(left):
                part = left[: wire.MAX_FRAME - size]
                left = left[len(part) :]
                frame.append(part)
                size += len(part)
                if size == wire.MAX_FRAME:
                    self.server._put(wire.head(wire.DATA, size), *frame)
                    frame, size = [], 0
        if size:
            self.server._put(wire.head(wire.DATA, size), *frame)


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
    from confluo_tools.store.snapshot import MAX_LANES, LogCut

    rows, firsts = (wire.numbers(v, MAX_LANES, 1 << 48) for v in (tails, message.get("firsts", [])))
    return LogCut("", "", path, wire.get(message, "uuid", str)[:32], "", rows, firsts)


def _check_shape(own: Schema, wanted: Schema) -> None:
    """Raises SchemaError: the log cannot be read as ``wanted``."""
    if own.kind != wanted.kind:
        raise SchemaError(f"holds records of kind '{own.kind}', not '{wanted.kind}'")
    for field in own.fields:
        if field.name in wanted and wanted[field.name].type != field.type:
            what = f"stores '{field.name}' as {field.type.text}, not as {wanted[field.name].type.text}"
            raise SchemaError(what, hint="ask the logs one by one")


def _named(filters: Mapping[str, str], text: str) -> dict[str, str]:
    """The filters that an expression may name: what it means is checked at both ends."""
    if "filter" not in text:
        return {}
    return {name: filters[name] for name in filters if name in text}


def compiled(wish: Wish, reader: Reader) -> Expr:
    """The expression with its time range and its sample."""
    from confluo_tools.expr import compile
    from confluo_tools.expr.sample import sampled

    expr = compile(wish.expr, reader.schema, filters=reader.filters).within(wish.since, wish.until)
    return expr if wish.sample is None else sampled(expr, wish.sample)


def _limited(pairs: Iterable[tuple[Block, Picks | None]], limit: int | None) -> Iterable[tuple[Block, Picks | None]]:
    if limit is None:
        yield from pairs
        return
    left = limit
    for block, picks in pairs if left else ():
        n = block.rows if picks is None else len(picks)
        if n >= left:
            yield (block if picks is None else block.take(picks)).slice(0, left), None
            return
        left -= n
        yield block, picks
