"""Encoder and decoder of Arrow metadata: schema, record batch and footer messages.

No library writes what a segment needs: a record batch with buffers at fixed places of a preallocated body, and a file
footer over such batches.  Besides, importing a library costs each start of a command 57 ms (nanoarrow) or 299 ms
(pyarrow); this module costs 1 ms.  Only the metadata is here: the bodies are buffers that the core fills.

The bytes are flatbuffers: tables with a small index of their fields (vtable), all offsets relative.
Parents are written before children, so every offset points forward, as the format asks.
The reader trusts nothing: each offset is checked against the message, nesting and counts are bounded;
what does not fit raises FormatError.

    schema_message  batch_message  footer  EOS        bytes to write
    parse_message  parse_footer  schema_from_metadata  their twins
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, FormatError

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema
    from confluo_tools.schema.model import Column

MAGIC = b"ARROW1"
MESSAGE = "confluo:message"  # in the metadata of messages of Kafka
EOS = b"\xff\xff\xff\xff\0\0\0\0"
CONTINUATION = 0xFFFFFFFF
SCHEMA, DICTIONARY, BATCH = 1, 2, 3  # MessageHeader
V4, V5 = 3, 4  # MetadataVersion
MAX_METADATA = 4 << 20  # bytes of one message's metadata that we read
MAX_FIELDS = 4096  # fields of one schema, children counted
MAX_DEPTH = 16

_INT, _FLOAT, _TIMESTAMP, _FIXED_BINARY, _FIXED_LIST, _DURATION = 2, 3, 10, 15, 16, 18
_TYPE_NAMES = {
    1: "null",
    2: "int",
    3: "float",
    4: "binary",
    5: "utf8",
    6: "bool",
    7: "decimal",
    8: "date",
    9: "time",
    10: "timestamp",
    11: "interval",
    12: "list",
    13: "struct",
    14: "union",
    15: "fixed_size_binary",
    16: "fixed_size_list",
    17: "map",
    18: "duration",
    19: "large_binary",
    20: "large_utf8",
    21: "large_list",
    22: "run_end_encoded",
    23: "binary_view",
    24: "utf8_view",
    25: "list_view",
    26: "large_list_view",
}
_UNITS = ("s", "ms", "us", "ns")
_FLOATS = {2: 0, 4: 1, 8: 2}
_NANOSECONDS = 3
_CODECS = ("lz4", "zstd")  # LZ4 is the frame format

Write = Callable[["_Builder"], int]


class _Builder:
    """A flatbuffer that grows at its end."""

    def __init__(self) -> None:
        self.out = bytearray(4)  # offset of the root table

    def finish(self, root: int) -> bytes:
        struct.pack_into("<I", self.out, 0, root)
        return bytes(self.out)

    def align(self, size: int, ahead: int = 0) -> None:
        self.out.extend(bytes(-(len(self.out) + ahead) % size))

    def table(self, fields: Mapping[int, tuple[str, Any]]) -> int:
        """Write a table: slot -> (struct code, value), or ('o', function that writes the child)."""
        slots = max(fields, default=-1) + 1
        self.align(8)
        vtable = len(self.out)
        self.out.extend(bytes(4 + 2 * slots))
        self.align(8)
        start = len(self.out)
        self.out.extend(struct.pack("<i", start - vtable))
        children: list[tuple[int, Write]] = []
        for slot, (code, value) in sorted(fields.items(), key=lambda f: -_SIZE[f[1][0]]):
            self.align(_SIZE[code])
            at = len(self.out)
            struct.pack_into("<H", self.out, vtable + 4 + 2 * slot, at - start)
            if code == "o":
                self.out.extend(bytes(4))
                children.append((at, value))
            else:
                self.out.extend(struct.pack("<" + code, value))
        struct.pack_into("<HH", self.out, vtable, 4 + 2 * slots, len(self.out) - start)
        self._children(children)
        return start

    def _children(self, children: Iterable[tuple[int, Write]]) -> None:
        for at, write in children:
            struct.pack_into("<I", self.out, at, write(self) - at)

    def string(self, text: str) -> int:
        self.align(4)
        start = len(self.out)
        data = text.encode()
        self.out.extend(struct.pack("<I", len(data)) + data + b"\0")
        return start

    def vector(self, writers: Sequence[Write]) -> int:
        self.align(4)
        start = len(self.out)
        self.out.extend(struct.pack("<I", len(writers)) + bytes(4 * len(writers)))
        self._children((start + 4 + 4 * i, w) for i, w in enumerate(writers))
        return start

    def structs(self, code: str, rows: Sequence[Sequence[int]]) -> int:
        self.align(8, ahead=4)
        start = len(self.out)
        self.out.extend(struct.pack("<I", len(rows)))
        for row in rows:
            self.out.extend(struct.pack(code, *row))
        return start


_SIZE = {"o": 4, "?": 1, "B": 1, "h": 2, "i": 4, "q": 8}


def _string(text: str) -> tuple[str, Write]:
    return "o", lambda b: b.string(text)


def _vector(writers: Sequence[Write]) -> tuple[str, Write]:
    return "o", lambda b: b.vector(writers)


def _structs(code: str, rows: Sequence[Sequence[int]]) -> tuple[str, Write]:
    return "o", lambda b: b.structs(code, rows)


def _table(fields: Mapping[int, tuple[str, Any]]) -> Write:
    return lambda b: b.table(fields)


def _key_values(metadata: Mapping[str, str]) -> tuple[str, Write]:
    return _vector([_table({0: _string(k), 1: _string(v)}) for k, v in metadata.items()])


def _number(base: str, size: int) -> tuple[int, Write]:
    if base[0] == "f":
        return _FLOAT, _table({0: ("h", _FLOATS[size])})
    return _INT, _table({0: ("i", size * 8), 1: ("?", base[0] == "i")})


def _arrow_type(kind: str, base: str, size: int) -> tuple[int, Write]:
    if kind == "time":
        return _TIMESTAMP, _table({0: ("h", _NANOSECONDS), 1: _string("UTC")})
    if kind == "duration":
        return _DURATION, _table({0: ("h", _NANOSECONDS)})
    if kind in ("bytes", "text"):
        return _FIXED_BINARY, _table({0: ("i", size)})
    return _number(base, size)


def _field(name: str, type_: tuple[int, Write], children: Sequence[Write] = (), nullable: bool = False) -> Write:
    return _table({0: _string(name), 1: ("?", nullable), 2: ("B", type_[0]), 3: ("o", type_[1]), 5: _vector(children)})


def _column(column: Column) -> Write:
    type_ = column.field.type
    if column.name != column.field.name:  # the 16 bytes of an ip field
        return _field(column.name, _arrow_type("bytes", "bytes", column.size))
    if type_.is_list:
        item = _field("item", _arrow_type(type_.element, type_.base, type_.size))
        return _field(column.name, (_FIXED_LIST, _table({0: ("i", type_.count)})), [item])
    return _field(column.name, _arrow_type(type_.kind, type_.base, type_.size), nullable=column.field.nullable)


def _schema(schema: Schema, metadata: Mapping[str, str] | None) -> Write:
    import json

    text = json.dumps(schema.as_dict(), separators=(",", ":"), ensure_ascii=False)
    pairs = {"confluo:schema": text, **(metadata or {})}
    return _table({0: ("h", 0), 1: _vector([_column(c) for c in schema.columns]), 2: _key_values(pairs)})


def _message(
    kind: int, header: Write, body_length: int, size: int | None, metadata: Mapping[str, str] | None = None
) -> bytes:
    b = _Builder()
    fields: dict[int, tuple[str, Any]] = {0: ("h", V5), 1: ("B", kind), 2: ("o", header), 3: ("q", body_length)}
    if metadata:
        fields[4] = _key_values(metadata)
    return _encapsulate(b.finish(b.table(fields)), size)


def _encapsulate(metadata: bytes, size: int | None) -> bytes:
    total = -(-(8 + len(metadata)) // 8) * 8 if size is None else size
    if total % 8 or total < 8 + len(metadata):
        raise ValueError(f"a message of {8 + len(metadata)} bytes does not fit {total}")
    return struct.pack("<Ii", CONTINUATION, total - 8) + metadata + bytes(total - 8 - len(metadata))


def schema_message(schema: Schema, metadata: Mapping[str, str] | None = None, *, size: int | None = None) -> bytes:
    """The encapsulated schema message: continuation mark, length, metadata, padded with zeros.

    ``metadata`` joins ``confluo:schema`` (the schema as JSON) as key-value metadata.
    The length is a multiple of 8, or exactly ``size`` (ValueError when that is too small).
    """
    return _message(SCHEMA, _schema(schema, metadata), 0, size)


def batch_message(
    schema: Schema,
    rows: int,
    buffers: Sequence[tuple[int, int]],
    body_length: int,
    *,
    size: int | None = None,
    metadata: Mapping[str, str] | None = None,
    nulls: Mapping[int, tuple[int, int, int]] | None = None,
    compression: str | None = None,
) -> bytes:
    """The encapsulated record batch message for ``rows`` rows.

    ``buffers``: (offset in the body, bytes) of each physical column of ``schema``; they may stand anywhere
    in the body, with gaps.  ``nulls``: (number of nulls, offset, bytes) of the validity bits of columns that have
    some; the others have validity buffers of length 0.  ``metadata``: of this batch.
    ``compression``: 'lz4' or 'zstd' if the buffers are compressed; ``buffers`` are their places as they are stored.
    """
    if len(buffers) != len(schema.columns):
        raise ValueError(f"{len(buffers)} buffers for {len(schema.columns)} columns")
    nodes: list[tuple[int, int]] = []
    places: list[tuple[int, int]] = []
    for i, (column, place) in enumerate(zip(schema.columns, buffers, strict=True)):
        count, *bits = (nulls or {}).get(i, (0, 0, 0))
        nodes.append((rows, count))
        places.append((bits[0], bits[1]))
        if column.field.type.is_list:
            nodes.append((rows * column.count, 0))
            places.append((0, 0))
        places.append(place)
    fields = {0: ("q", rows), 1: _structs("<qq", nodes), 2: _structs("<qq", places)}
    if compression is not None:
        fields[3] = "o", _table({0: ("B", _CODECS.index(compression)), 1: ("B", 0)})  # each buffer by itself
    header = _table(fields)
    return _message(BATCH, header, body_length, size, metadata)


class BatchPlaces(NamedTuple):
    """Where a record batch message has its numbers, each of 8 bytes: offsets from its continuation mark.

    ``nodes``: the first of (length, nulls) pairs; ``buffers``: the first of (offset, bytes) pairs.
    """

    body_length: int
    rows: int
    nodes: int
    buffers: int


def batch_places(message: bytes) -> BatchPlaces:
    """The places of a message of `batch_message` with rows and a body (a number of zero has no place)."""
    v = _FlatBuffer(message[8:])
    root = v.follow(0)
    header = v.child(root, 2)
    places = v.slot(root, 3), v.slot(header, 0), v.child(header, 1) + 4, v.child(header, 2) + 4
    return BatchPlaces(*(8 + place for place in places))


def batch_message_bytes(schema: Schema) -> int:
    """Length of a `batch_message` of ``schema``, whatever the rows, without making one."""
    columns = len(schema.columns)
    lists = sum(c.field.type.is_list for c in schema.columns)
    return 112 + 16 * (columns + lists) + 16 * (2 * columns + lists)


def footer(schema: Schema, metadata: Mapping[str, str] | None, blocks: Sequence[tuple[int, int, int]]) -> bytes:
    """What ends an Arrow file after EOS: footer, its length, ``ARROW1``.

    ``blocks``: (offset in the file, bytes of the message with its prefix, bytes of the body) of each batch.
    """
    b = _Builder()
    root = b.table(
        {0: ("h", V5), 1: ("o", _schema(schema, metadata)), 2: _structs("<qi4xq", ()), 3: _structs("<qi4xq", blocks)}
    )
    data = b.finish(root)
    data += bytes(-len(data) % 8)
    return data + struct.pack("<i", len(data)) + MAGIC


class ArrowField:
    """One field of a parsed schema.

    ``type``: 'int', 'float', 'timestamp', 'duration', 'fixed_size_binary', 'fixed_size_list', 'utf8', ...
    ``bits`` and ``signed`` (int, float), ``unit`` ('s' 'ms' 'us' 'ns') and ``timezone`` (timestamp, duration),
    ``width`` (bytes of a fixed_size_binary, elements of a fixed_size_list), ``dictionary`` (encoded or not).
    """

    __slots__ = ("bits", "children", "dictionary", "name", "nullable", "signed", "timezone", "type", "unit", "width")

    def __init__(self, name: str, nullable: bool, type: str) -> None:
        self.name, self.nullable, self.type = name, nullable, type
        self.bits, self.signed, self.unit, self.timezone, self.width = 0, False, "", "", 0
        self.dictionary = False
        self.children: list[ArrowField] = []

    def __repr__(self) -> str:
        inside = f", {self.children!r}" if self.children else ""
        return f"ArrowField({self.name!r}, {self.type}, {self.bits or self.width or self.unit}{inside})"


class Message:
    """A parsed message.  ``kind`` is SCHEMA, DICTIONARY or BATCH; ``body_length`` the bytes that follow it.

    SCHEMA: ``fields``, ``metadata``, ``little_endian``.
    BATCH: ``rows``, ``nodes`` [(length, nulls)], ``buffers`` [(offset, bytes)], all inside the body, ``metadata``,
    ``compression`` (None, 'lz4', 'zstd', 'unknown').
    """

    __slots__ = (
        "body_length",
        "buffers",
        "compression",
        "fields",
        "kind",
        "little_endian",
        "metadata",
        "nodes",
        "rows",
    )

    def __init__(self, kind: int, body_length: int) -> None:
        self.kind, self.body_length = kind, body_length
        self.fields: list[ArrowField] = []
        self.metadata: dict[str, str] = {}
        self.little_endian = True
        self.rows = 0
        self.nodes: list[tuple[int, int]] = []
        self.buffers: list[tuple[int, int]] = []
        self.compression: str | None = None


def _bad(what: str) -> FormatError:
    return FormatError(f"damaged Arrow metadata: {what}")


class _FlatBuffer:
    """Checked reads from a flatbuffer."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.fields = 0  # seen so far, against references that multiply
        self.budget = 4 * len(self.data) + 4096  # bytes of strings and lists that we are ready to read

    def get(self, code: str, at: int) -> Any:
        if at < 0 or at + struct.calcsize(code) > len(self.data):
            raise _bad("an offset leads outside")
        return struct.unpack_from(code, self.data, at)[0]

    def follow(self, at: int) -> int:
        to = at + int(self.get("<I", at))
        if to + 4 > len(self.data):
            raise _bad("an offset leads outside")
        return to

    def slot(self, table: int, slot: int) -> int:
        """The offset of field ``slot`` of the table; 0 when it is absent."""
        vtable = table - self.get("<i", table)
        if 4 + 2 * slot + 2 > self.get("<H", vtable):
            return 0
        offset = self.get("<H", vtable + 4 + 2 * slot)
        return table + offset if offset else 0

    def scalar(self, table: int, slot: int, code: str, default: int = 0) -> int:
        at = self.slot(table, slot)
        return int(self.get(code, at)) if at else default

    def child(self, table: int, slot: int) -> int:
        at = self.slot(table, slot)
        return self.follow(at) if at else 0

    def string(self, table: int, slot: int) -> str:
        at = self.child(table, slot)
        if not at:
            return ""
        n = self.get("<I", at)
        if at + 4 + n > len(self.data):
            raise _bad("a string is longer than the message")
        self.spend(n)
        try:
            return bytes(self.data[at + 4 : at + 4 + n]).decode()
        except UnicodeDecodeError:
            raise _bad("a string is not UTF-8") from None

    def count(self, at: int, size: int) -> int:
        n = int(self.get("<I", at)) if at else 0
        if at + 4 + n * size > len(self.data):
            raise _bad("a list is longer than the message")
        self.spend(n * size)
        return n

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise _bad("its parts overlap")

    def tables(self, table: int, slot: int) -> list[int]:
        at = self.child(table, slot)
        return [self.follow(at + 4 + 4 * i) for i in range(self.count(at, 4))]

    def structs(self, table: int, slot: int, code: str) -> list[tuple[int, ...]]:
        at = self.child(table, slot)
        size = struct.calcsize(code)
        n = self.count(at, size)
        return list(struct.iter_unpack(code, self.data[at + 4 : at + 4 + n * size]))

    def key_values(self, table: int, slot: int) -> dict[str, str]:
        return {self.string(t, 0): self.string(t, 1) for t in self.tables(table, slot)}

    def field(self, table: int, depth: int) -> ArrowField:
        self.fields += 1
        if self.fields > MAX_FIELDS or depth > MAX_DEPTH:
            raise _bad(f"more than {MAX_FIELDS} fields or {MAX_DEPTH} levels")
        number = self.scalar(table, 2, "<B")
        f = ArrowField(
            self.string(table, 0), bool(self.scalar(table, 1, "<B")), _TYPE_NAMES.get(number, f"type {number}")
        )
        type_ = self.child(table, 3)
        f.dictionary = self.slot(table, 4) != 0
        if type_:
            if number == _INT:
                f.bits, f.signed = self.scalar(type_, 0, "<i"), bool(self.scalar(type_, 1, "<B"))
            elif number == _FLOAT:
                f.bits = {0: 16, 1: 32, 2: 64}.get(self.scalar(type_, 0, "<h"), 0)
            elif number == _TIMESTAMP:
                f.unit, f.timezone = self._unit(self.scalar(type_, 0, "<h")), self.string(type_, 1)
            elif number == _DURATION:
                f.unit = self._unit(self.scalar(type_, 0, "<h", 1))
            elif number in (_FIXED_BINARY, _FIXED_LIST):
                f.width = self.scalar(type_, 0, "<i")
        f.children = [self.field(t, depth + 1) for t in self.tables(table, 5)]
        return f

    @staticmethod
    def _unit(n: int) -> str:
        if not 0 <= n < len(_UNITS):
            raise _bad(f"time unit {n}")
        return _UNITS[n]


def _read_schema(view: _FlatBuffer, table: int, message: Message, fields: bool = True) -> None:
    message.little_endian = view.scalar(table, 0, "<h") == 0
    message.fields = [view.field(t, 0) for t in view.tables(table, 1)] if fields else []
    message.metadata = view.key_values(table, 2)


def _read_batch(view: _FlatBuffer, table: int, message: Message) -> None:
    message.rows = view.scalar(table, 0, "<q")
    message.nodes = [(a, b) for a, b in view.structs(table, 1, "<qq")]
    message.buffers = [(a, b) for a, b in view.structs(table, 2, "<qq")]
    compression = view.child(table, 3)
    if compression:
        message.compression = dict(enumerate(_CODECS)).get(view.scalar(compression, 0, "<b"), "unknown")
    if message.rows < 0 or any(length < 0 or nulls < 0 for length, nulls in message.nodes):
        raise _bad("a negative length")
    for offset, size in message.buffers:
        if offset < 0 or size < 0 or offset + size > message.body_length:
            raise _bad(f"a buffer at {offset} of {size} bytes in a body of {message.body_length}")


def parse_message(data: bytes | memoryview, *, fields: bool = True) -> Message:
    """The message with the metadata ``data``, which may begin with its 8 bytes of prefix (continuation, length).

    ``fields``: whether to read the fields of a schema, too; its metadata alone takes a tenth of the time.
    Raises FormatError for anything that does not fit inside ``data``.
    """
    view = memoryview(data)
    if len(view) >= 8 and bytes(view[:4]) == b"\xff\xff\xff\xff":
        size = struct.unpack_from("<i", view, 4)[0]
        if not 0 <= size <= len(view) - 8:
            raise _bad(f"a message of {size} bytes in {len(view) - 8}")
        view = view[8 : 8 + size]
    if len(view) > MAX_METADATA:
        raise _bad(f"{len(view)} bytes of metadata")
    v = _FlatBuffer(view)
    root = v.follow(0)
    version = v.scalar(root, 0, "<h")
    if version not in (V4, V5):
        raise FormatError(f"Arrow metadata version {version + 1} is not supported", hint="write version 4 or 5")
    kind = v.scalar(root, 1, "<B")
    message = Message(kind, v.scalar(root, 3, "<q"))
    header = v.child(root, 2)
    if kind not in (SCHEMA, DICTIONARY, BATCH) or not header or message.body_length < 0:
        raise _bad(f"message kind {kind}")
    if kind == SCHEMA:
        _read_schema(v, header, message, fields)
    elif kind == BATCH:
        message.metadata = v.key_values(root, 4)
        _read_batch(v, header, message)
    return message


def parse_footer(data: bytes | memoryview) -> tuple[Message, list[tuple[int, int, int]]]:
    """The schema of a file's footer, and (offset, message bytes, body bytes) of each batch.

    ``data`` is the footer alone: without its length and the last ``ARROW1``.
    """
    if len(data) > MAX_METADATA:
        raise _bad(f"{len(data)} bytes of metadata")
    v = _FlatBuffer(data)
    root = v.follow(0)
    message = Message(SCHEMA, 0)
    _read_schema(v, v.child(root, 1), message)
    return message, [(a, b, c) for a, b, c in v.structs(root, 3, "<qi4xq")]


def schema_from_metadata(metadata: Mapping[str, str]) -> Schema | None:
    """The schema that ``confluo:schema`` holds; None when there is no such key.

    Raises SchemaError or FormatError when it is malformed.
    """
    text = metadata.get("confluo:schema")
    if text is None:
        return None
    import json

    from confluo_tools.schema import Schema

    try:
        return Schema.from_dict(json.loads(text), where="confluo:schema")
    except ConfluoError:
        raise
    except (ValueError, RecursionError, TypeError, AttributeError):
        raise FormatError("the key confluo:schema is not a schema in JSON") from None


def matches(message: Message, schema: Schema) -> bool:
    """Whether the fields of ``message`` are exactly the physical columns of ``schema``, none nullable."""
    if len(message.fields) != len(schema.columns):
        return False
    return all(_same(f, c.name, c.field, c) for f, c in zip(message.fields, schema.columns, strict=True))


def _same(f: ArrowField, name: str, field: Field, column: Column) -> bool:
    t = field.type
    if f.name != name or f.nullable or f.dictionary:
        return False
    if name != field.name or t.is_bytes:
        return f.type == "fixed_size_binary" and f.width == column.size
    if t.is_list:
        if f.type != "fixed_size_list" or f.width != t.count or len(f.children) != 1:
            return False
        f = f.children[0]
        if f.nullable or f.dictionary:
            return False
    kind = t.element if t.is_list else t.kind
    if kind == "time":
        return f.type == "timestamp" and f.unit == "ns"
    if kind == "duration":
        return f.type == "duration" and f.unit == "ns"
    if t.is_float:
        return f.type == "float" and f.bits == t.size * 8
    return f.type == "int" and f.bits == t.size * 8 and f.signed == (t.base[0] == "i")
