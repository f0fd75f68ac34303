"""Reader of a log on another host: sends the request, receives only the rows that it selects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, FormatError, SchemaError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.arrow import StreamReader
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.merge import HOST
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.remote import frame_codec
from confluo_tools.remote.connect import Connection
from confluo_tools.remote.request import QueryRequest
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.snapshot import LogCut

MAX_BODY = 256 << 20  # bytes of one record batch: 65,536 rows of 4 KiB
MAX_PARTIAL = 1 << 30  # bytes of the partial state of an aggregate
MAX_WARNINGS = 100
MAX_LANES = 65536


class RemoteReader(Reader):
    """The rows of a log that the server of ``peer`` can read.

    ``request``: sent by `ask`; `ready` waits for the schema.  ``chosen``: the server selects the rows; otherwise
    `select` tests the rows that it sends.  ``at``: the version of a snapshot.  ``host``: value of an added field
    `host`.  Raises RemoteError with the name of the host.
    """

    format = "multilog"
    by_time = True

    def __init__(
        self,
        peer: Connection,
        request: QueryRequest,
        *,
        chosen: bool = True,
        at: LogCut | None = None,
        host: str | None = None,
        warn: Warn | None = None,
        note: Warn | None = None,
    ) -> None:
        super().__init__(str(peer.address), warn)
        self.peer, self.request, self.at, self.host = peer, request, at, host
        self.analyzed = bool(request.analyze)  # the rows have the fields of --analyze already
        self.unnested = bool(request.unnest)  # the rows are elements already
        self.chosen = chosen
        self._note, self._warned = note, 0
        self._end: dict[str, Any] | None = None
        self._view: dict[str, str] = {}
        self._asked = False
        self.after: tuple[str, Sequence[int]] | None = None  # of a growing log: its uuid, and the rows that were read
        self.firsts: tuple[int, ...] | None = None  # of each lane, the first row of the answer; None: unknown

    def ask(self, schema: Schema | None = None) -> None:
        """Send the request.  ``schema``: of the requested rows, instead of that of the log."""
        message: dict[str, Any] = {"path": self.peer.address.path, **self.request.message()}
        if self.at is not None:
            message |= {"uuid": self.at.uuid, "tails": list(self.at.tails), "firsts": list(self.at.firsts)}
        if self.after is not None:
            message |= {"uuid": self.after[0], "after": list(self.after[1])}
        if self.host is not None:
            message["host"] = self.host
        if schema is not None:
            message["schema"] = schema.as_dict()
        self.peer.send(frame_codec.frame(frame_codec.QUERY, message))
        self._asked = True

    def ready(self, wait: float | None = None) -> None:
        """Wait for the server and the schema.  Raises RemoteError: no such log, or not the log of the snapshot."""
        if not self.peer.version:
            self.peer.greet()
        if self.analyzed:
            self.peer.require("analyze", "does not analyze for others")
        if self.unnested:
            self.peer.require("unnest", "does not know --unnest")
        if self.request.local:
            self.peer.require("zone", "does not know --local of groups")
        while True:
            kind, message = self.peer.receive(frame_codec.META, frame_codec.WARN, frame_codec.NOTE, wait=wait)
            if kind == frame_codec.META:
                break
            self._tell(kind, message)
        try:
            self.schema = Schema.from_dict(frame_codec.get(message, "schema", dict))
            metadata = frame_codec.get(message, "metadata", dict, {})
            self.uuid = frame_codec.get(message, "uuid", str, "")[:32]
            self.filters = _texts(frame_codec.get(message, "filters", dict, {}))
            self._view = _texts(frame_codec.get(message, "aggregate", dict, {}))
            if self.request.kept and message.get("kept") is not None:
                self.firsts = frame_codec.numbers(message["kept"], MAX_LANES, 1 << 48)
        except (ValueError, SchemaError, TypeError) as e:
            raise self.peer.protocol_error(str(e)) from None
        self.metadata = {k: v for k, v in metadata.items() if isinstance(k, str) and isinstance(v, str)}

    def blocks(self) -> Iterator[Block]:
        stream = _Frames(self)
        rows = _Rows(stream)
        if rows.schema.kind != self.schema.kind or any(
            f.name not in self.schema or self.schema[f.name].type != f.type for f in rows.schema.fields
        ):
            raise self.peer.protocol_error("rows of an unexpected schema")
        fill = None
        if self.host is not None and HOST not in rows.schema and HOST in self.schema:
            size = self.schema.columns[self.schema.index(HOST)].size
            fill = self.schema.index(HOST), self.host.encode("utf-8", "surrogateescape")[:size].ljust(size, b"\0")
        for block in rows.blocks():
            block = block.project(self.schema.layout)
            yield block if fill is None else _filled(block, *fill)
        if self._end is None and stream.some():  # the stream's end mark comes before the END frame
            raise self.peer.protocol_error("rows after the end")

    def __iter__(self) -> Iterator[Block]:
        yield from self.blocks()
        self._count_rows()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if not self.chosen:
            yield from super().select(expr, columns, by_time=by_time)
            return
        for block in self:
            yield block, None

    def count(self, expr: Any) -> int:
        if not self.request.counted:
            return super().count(expr) if not self.chosen else sum([b.rows for b, _ in self.select(expr)])
        for _ in self._frames():
            raise self.peer.protocol_error("rows instead of a row count")
        self._count_rows()
        return self._number("found")

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        if self.request.agg is None:
            return super().fold(expr, columns, make)
        from confluo_tools.core.query.rollup_codec import load

        data = bytearray()
        for kind, size in self._frames():
            if kind != frame_codec.PARTIAL or len(data) + size > MAX_PARTIAL:
                raise self.peer.protocol_error(
                    "too many groups" if kind == frame_codec.PARTIAL else "rows instead of groups"
                )
            data += self.peer.body(size)
        self._count_rows()
        rollup = make()
        try:
            load(rollup, data)
        except ValueError as e:
            if self.request.having is not None or self.request.sort is not None:
                self.peer.require("having", "computes only aggregates that are printed")
            raise self.peer.protocol_error(str(e)) from None
        return rollup, self._number("found")

    def aggregate(self, name: str) -> Any:
        if not self._view or self.request.agg is None or name != self.request.agg.strip():
            return None
        from types import SimpleNamespace

        return SimpleNamespace(**{key: self._view.get(key, "") for key in ("agg", "by", "where", "filter_text")})

    def explain(self) -> dict[str, Any] | None:
        plan = (self._end or {}).get("plan")
        return plan if isinstance(plan, dict) else None

    # -- frames

    def _frames(self) -> Iterator[tuple[int, int]]:
        """(kind, size) of the frames with rows or states, up to the END frame; the caller reads the bodies."""
        peer = self.peer
        while self._end is None:
            kind, size = peer.head()
            if kind in (frame_codec.DATA, frame_codec.PARTIAL):
                yield kind, size
                continue
            message = peer.message(peer.body(size))
            if kind == frame_codec.ERROR:
                raise peer.reported(message)
            if kind == frame_codec.END:
                self._end = message
            elif kind in (frame_codec.WARN, frame_codec.NOTE):
                self._tell(kind, message)
            else:
                raise peer.protocol_error(f"a frame '{frame_codec.KINDS[kind]}' out of turn")

    def _tell(self, kind: int, message: dict[str, Any]) -> None:
        tell = self._warn if kind == frame_codec.WARN else self._note
        self._warned += 1
        if tell is not None and self._warned <= MAX_WARNINGS:
            tell(f"{self.peer.name}: {str(message.get('what', ''))[: frame_codec.MAX_TEXT]}")

    def _number(self, key: str) -> int:
        try:
            return int(frame_codec.get(self._end or {}, key, int, 0))
        except ValueError as e:
            raise self.peer.protocol_error(str(e)) from None

    def grown(self) -> tuple[list[int], int, bool, str]:
        """Of a growing log, after its answer: (rows read of each lane, rows removed unread, more follow, uuid)."""
        end = self._end or {}
        try:
            rows = list(frame_codec.numbers(end.get("rows_read"), MAX_LANES, 1 << 48))
            more = frame_codec.get(end, "more", bool, False)
        except ValueError as e:
            raise self.peer.protocol_error(str(e)) from None
        return rows, max(self._number("missed"), 0), more, self.uuid

    def _count_rows(self) -> None:
        self.rows += max(self._number("rows"), 0)

    def on_idle(self, call: Callable[[], None]) -> None:
        self.peer.idle = call

    def close(self) -> None:
        self.peer.close()


def _texts(value: dict[str, Any]) -> dict[str, str]:
    if len(value) > 1024 or not all(isinstance(v, str) and len(v) <= 1 << 16 for v in value.values()):
        raise ValueError("invalid definitions of views")
    return value


def _filled(block: Block, column: int, value: bytes) -> Block:
    from confluo_tools.core.block.block import Block as Make

    buffers: list[Any] = [block.buffer(i) for i in range(block.layout.n)]
    buffers[column] = value * block.rows
    return Make.wrap(block.layout, block.rows, buffers)


class _Frames(ByteStream):
    """The bytes of the DATA frames of an answer."""

    def __init__(self, reader: RemoteReader) -> None:
        self.fd, self.name, self.offset, self.waits, self.idle, self.damage = -1, reader.name, 0, True, None, ""
        self._have, self._at, self._ended, self._close = bytearray(), 0, False, False
        self.reader, self.peer = reader, reader.peer
        self._frames = reader._frames()
        self._left = 0

    def _next(self) -> bool:
        while not self._left:
            kind, size = next(self._frames, (0, 0))
            if not kind:
                return False
            if kind != frame_codec.DATA:
                raise self.peer.protocol_error("groups instead of rows")
            self._left = size
        return True

    def _more(self) -> bytes:
        if not self._next():
            return b""
        data = self.peer.some(self._left)
        self._left -= len(data)
        return data

    def _into(self, out: memoryview) -> int:
        if not self._next():
            return 0
        n = self.peer.into(out[: self._left])
        self._left -= n
        return n


class _Rows(StreamReader):
    """An untrusted Arrow stream: accepts only what `confluo serve` writes, in batches of a bounded size."""

    def __init__(self, stream: _Frames) -> None:
        self._peer = stream.peer
        try:
            super().__init__(stream)
        except FormatError as e:
            raise self._peer.protocol_error(e.what) from None

    def _parse(self, head: bytes) -> meta.Message:
        message = super()._parse(head)
        if message.kind == meta.SCHEMA and not _exact(message):
            raise self._peer.protocol_error("rows in an unexpected encoding")
        return message

    def _body(self, size: int) -> memoryview:
        if not 0 <= size <= MAX_BODY:
            raise self._peer.protocol_error(f"a batch of {size} bytes")
        return super()._body(size)

    def blocks(self) -> Iterator[Block]:
        try:
            yield from super().blocks()
        except FormatError as e:
            raise self._peer.protocol_error(e.what) from None

    def warn(self, what: str) -> None:
        raise self._peer.protocol_error(what)


def _exact(message: meta.Message) -> bool:
    try:
        schema = meta.schema_from_metadata(message.metadata)
    except ConfluoError:
        return False
    return schema is not None and message.little_endian and meta.matches(message, schema)
