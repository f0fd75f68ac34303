"""Arrow IPC streams, the format of pipes between the tools; written, and if plain also read, without pyarrow.

Plain: little-endian, uncompressed, fixed-width columns of the types we store (nulls read as zero).
Everything else (compressed, dictionaries, strings, other units) goes through pyarrow, in formats/arrow_foreign.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.absent import AbsentValues
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.gather import BLOCK_ROWS, Gatherer
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout, Picks
    from confluo_tools.formats.writers import FormatWriter
    from confluo_tools.schema import Column, Schema

BIG = 64 << 20  # bytes of a body that are allocated before they are read
_PAD = bytes(64)


def metadata_of(
    schema: Schema, inherited: Mapping[str, str], command: str = "", host: str = "", clock: str = ""
) -> dict[str, str]:
    """Key-value metadata of an output: those of its input, the kind, host and clock, the history and this command.

    Keys: confluo:kind, confluo:host, confluo:clock, confluo:history (JSON list of command lines, the oldest first).
    """
    out = {k: v for k, v in inherited.items() if k.startswith("confluo:") and k != "confluo:schema"}
    out["confluo:kind"] = schema.kind
    if host:
        out.setdefault("confluo:host", host)
    if clock:
        out.setdefault("confluo:clock", clock)
    if command:
        import json

        out["confluo:history"] = json.dumps([*history_of(inherited), command], ensure_ascii=False)
    return out


def history_of(metadata: Mapping[str, str]) -> list[str]:
    """The command lines that made these records, the oldest first."""
    text = metadata.get("confluo:history")
    if not text:
        return []
    import json

    try:
        lines = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [str(line) for line in lines][-1000:] if isinstance(lines, list) else []


def open_stream_writer(
    schema: Schema,
    out: Any,
    *,
    fields: Sequence[str] | None = None,
    metadata: Mapping[str, str] | None = None,
    readable: bool = False,
) -> FormatWriter:
    """A writer of streams, of the columns as they are stored or, by pyarrow, of ``readable`` ones."""
    if not readable:
        return StreamWriter(schema, out, fields=fields, metadata=metadata)
    from confluo_tools.formats.parquet import ArrowFileWriter

    return ArrowFileWriter("stream", schema, out, fields=fields, metadata=metadata, readable=True)


class StreamWriter:
    """Blocks to an Arrow stream on ``out`` (anything with ``writev``).

    ``fields``: names to write, all by default.  Small pieces are gathered unless `flush` is called.
    """

    def __init__(
        self,
        schema: Schema,
        out: Any,
        *,
        fields: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.schema = schema if fields is None else schema.project(fields)
        self.layout: Layout = self.schema.layout
        self._absent = AbsentValues(schema, self.schema)
        self.out, self.metadata = out, dict(metadata or {})
        self._widths = [c.size * c.count for c in self.schema.columns]
        self._started = False
        self._gather = Gatherer(self.layout, copy=True)
        self._heads: dict[int, tuple[bytes, list[int]]] = {}

    def start(self) -> None:
        """Write the schema, unless it is written already."""
        if not self._started:
            self._started = True
            self.out.writev([meta.schema_message(self.schema, self.metadata)])

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self.start()
        valid = self._absent.valid(block, picks)
        if block.layout is not self.layout:
            block = block.project(self.layout)
        if picks is not None:
            block = block.take(picks)
        if valid:
            self.write_nullable(block, valid)
            return
        for ready in self._gather.add(block):
            self._whole(ready)

    def write_nullable(self, block: Block, valid: Mapping[int, bytes]) -> None:
        """A block with the validity bits of its columns by number, where they have nulls."""
        self.start()
        self._gathered()
        self._batch(block.rows, [block.buffer(i) for i in range(self.layout.n)], valid)

    def _gathered(self) -> None:
        for ready in self._gather.rest():
            self._whole(ready)

    def _whole(self, block: Block) -> None:
        self._batch(block.rows, [block.buffer(i) for i in range(self.layout.n)])

    def _batch(
        self, rows: int, columns: Sequence[bytes | memoryview], valid: Mapping[int, bytes] | None = None
    ) -> None:
        head = self._heads.get(rows) if not valid else None
        if head is None:
            places, pads, at = [], [], 0
            for width in self._widths:
                size = rows * width
                places.append((at, size))
                pads.append(-size % 64)
                at += size + pads[-1]
            nulls = {}
            for number, bits in (valid or {}).items():  # behind the columns
                nulls[number] = rows - int.from_bytes(bits, "little").bit_count(), at, len(bits)
                pads.append(-len(bits) % 64)
                at += len(bits) + pads[-1]
            head = meta.batch_message(self.schema, rows, places, at, nulls=nulls), pads
            if len(self._heads) < 16 and not valid:
                self._heads[rows] = head
        pieces: list[bytes | memoryview] = [head[0]]
        for column, pad in zip([*columns, *(valid or {}).values()], head[1], strict=True):
            pieces.append(column)
            if pad:
                pieces.append(_PAD[:pad])
        self.out.writev(pieces)

    def flush(self) -> None:
        """Write the gathered rows."""
        self.start()
        self._gathered()

    def close(self) -> None:
        """Write the gathered rows and the end mark."""
        self.flush()
        self.out.writev([meta.EOS])


# -- reading ---------------------------------------------------------------------------------------------------


class StreamReader(Reader):
    """Rows of an Arrow stream, or of several concatenated ones of equal schema.

    A stream without its end mark gives its rows and a warning.  Raises FormatError for damage.
    """

    format = "stream"

    def __init__(
        self,
        stream: ByteStream,
        *,
        types: Schema | None = None,
        warn: Warn | None = None,
        tell: Warn | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(stream.name, warn)
        self.stream = stream
        head = self._head()
        if head is None:
            raise FormatError("ends before the schema of its stream", where=self.name)
        message = self._parse(head)
        if message.kind != meta.SCHEMA:
            raise FormatError("does not begin with a schema", where=self.name)
        self.metadata = dict(message.metadata)
        self._foreign: Any = None
        self._first = message
        try:
            exact = meta.schema_from_metadata(message.metadata)
        except ConfluoError as e:
            raise FormatError(str(e), where=self.name) from None
        from confluo_tools.formats.foreign_names import known_fields, only_foreign

        only_foreign(rename, exact, self.name)
        known = known_fields(types, exact)
        same = exact is not None and all(known[f.name].type == f.type for f in exact.fields if known is not None)
        if exact is not None and same and message.little_endian and meta.matches(message, exact):
            self.schema = exact
            self._plain(exact, range(len(exact.columns)))
            return
        from confluo_tools.formats import arrow_foreign

        found = arrow_foreign.plain_columns(message, known, self.name, tell, rename) if message.little_endian else None
        if found is not None:
            self._plain(*found)
        else:
            self._foreign = arrow_foreign.open_stream(self.stream, head, known, self.warn, tell, rename)
            self.schema = self._foreign.schema

    def _plain(self, schema: Schema, sources: Sequence[int]) -> None:
        self.schema = schema
        self._columns = [_Plain(i, c) for i, c in zip(sources, schema.columns, strict=True)]
        self._number()

    def _number(self) -> None:
        # Buffers and nodes of a batch are flattened depth first; this finds those of our columns.
        nodes, buffers, node, buffer = {}, {}, 0, 0
        for i, f in enumerate(self._first.fields):
            is_list = f.type == "fixed_size_list"
            nodes[i], buffers[i] = node, buffer
            node += 2 if is_list else 1
            buffer += 3 if is_list else 2
        self._expect = node, buffer
        for c in self._columns:
            if c.field >= 0:
                c.node, c.buffer = nodes[c.field], buffers[c.field]
        self._layout = self.schema.layout

    def _head(self) -> bytes | None:
        """The next message's metadata with its 8 bytes before; b'' for an end mark; None at the end of the input."""
        start = self.stream.read(8)
        if len(start) < 8:
            if not start:
                return None
            raise _cut(self.name)
        mark, size = int.from_bytes(start[:4], "little"), int.from_bytes(start[4:], "little", signed=True)
        if mark != meta.CONTINUATION:
            raise FormatError(f"is not an Arrow stream at byte {self.stream.offset - 8}", where=self.name)
        if size == 0:
            return b""
        if not 0 < size <= meta.MAX_METADATA:
            raise FormatError(f"claims a message of {size} bytes", where=self.name)
        body = self.stream.read(size)
        if len(body) < size:
            raise _cut(self.name)
        return start + body

    def _parse(self, head: bytes) -> meta.Message:
        try:
            return meta.parse_message(head)
        except FormatError as e:
            raise FormatError(e.what, where=self.name, hint=e.hint) from None

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if columns is not None and self._foreign is not None:
            self._foreign.only({*columns, *expr.program.columns})
        yield from super().select(expr, columns, by_time=by_time)

    def blocks(self) -> Iterator[Block]:
        if self._foreign is not None:
            yield from self._foreign
            return
        while True:
            try:
                head = self._head()
                if head is None:
                    if not self.stream.growing:
                        self.warn(self.stream.damage or "has no end mark: its writer was interrupted")
                    return
                if not head:
                    if self.stream.at_end():
                        return
                    self._again()
                    continue
                message = self._parse(head)
                if message.kind != meta.BATCH:
                    raise FormatError("has a second schema without an end mark before it", where=self.name)
                body = self._body(message.body_length)
            except _Cut:
                if not self.stream.growing:
                    self.warn(self.stream.damage or "ends in the middle of a message: its writer was interrupted")
                return
            yield from self._split(message, body)

    def _again(self) -> None:
        # After an end mark another stream of the same fields may follow.
        head = self._head()
        message = self._parse(head) if head else None
        if message is None or message.kind != meta.SCHEMA:
            raise FormatError("has data after its end that are not a stream", where=self.name)
        if repr(message.fields) != repr(self._first.fields):
            raise FormatError("has two streams with different fields", where=self.name, hint="query them one by one")

    def _body(self, size: int) -> memoryview:
        if size <= BIG:
            out = bytearray(size)
            if self.stream.readinto(memoryview(out)) < size:
                raise _cut(self.name)
            return memoryview(out)
        out = bytearray()  # grows with the bytes that arrive
        while len(out) < size:
            piece = self.stream.read(min(BIG, size - len(out)))
            out += piece
            if not piece:
                raise _cut(self.name)
        return memoryview(out)

    def _split(self, message: meta.Message, body: memoryview) -> Iterator[Block]:
        from confluo_tools.core.block.block import Block

        if message.compression:
            raise FormatError("has a compressed batch after plain ones", where=self.name)
        if (len(message.nodes), len(message.buffers)) != self._expect:
            raise FormatError("has a batch of another shape than its schema", where=self.name)
        columns = [c.values(message, body) for c in self._columns]
        try:
            for start in range(0, message.rows, BLOCK_ROWS):
                rows = min(BLOCK_ROWS, message.rows - start)
                pieces = [
                    None if v is None else v[start * c.width : (start + rows) * c.width]
                    for c, v in zip(self._columns, columns, strict=True)
                ]
                yield Block.wrap(self._layout, rows, pieces)
        except ValueError as e:
            raise FormatError(f"has a damaged batch: {e}", where=self.name) from None

    def on_idle(self, call: Callable[[], None]) -> None:
        self.stream.idle = call

    def close(self) -> None:
        self.stream.close()


class _Cut(FormatError):
    pass


def _cut(name: str) -> _Cut:
    return _Cut("ends in the middle of a message", where=name)


class _Plain:
    # One of our columns in a batch: the number of its field (-1: zeros), and where its nodes and buffers begin.
    __slots__ = ("buffer", "field", "is_list", "node", "size", "width")

    def __init__(self, field: int, column: Column) -> None:
        self.field, self.size = field, column.size
        self.width = column.size * column.count
        self.is_list = column.field.type.is_list
        self.node = self.buffer = 0

    def values(self, message: meta.Message, body: memoryview) -> memoryview | None:
        if self.field < 0:
            return None
        offset, size = message.buffers[self.buffer + (2 if self.is_list else 1)]
        values = body[offset : offset + size]
        if message.nodes[self.node][1] or (self.is_list and message.nodes[self.node + 1][1]):
            values = self._without_nulls(message, body, values)
        return values

    def _without_nulls(self, message: meta.Message, body: memoryview, values: memoryview) -> memoryview:
        # The bytes of a null value are undefined; here absent is zero.
        out = bytearray(values)
        layers = [(self.buffer, self.width)]
        if self.is_list:
            layers.append((self.buffer + 1, self.size))
        for buffer, width in layers:
            offset, size = message.buffers[buffer]
            for at, byte in enumerate(body[offset : offset + size]):
                if byte == 255:
                    continue
                for bit in range(8):
                    start = (at * 8 + bit) * width
                    if not byte >> bit & 1 and start + width <= len(out):
                        out[start : start + width] = bytes(width)
        return memoryview(out)
