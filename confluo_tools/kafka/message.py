"""Messages of records: one Arrow stream each, with an envelope: its place in its sequence.

A message is a whole Arrow stream: a schema, one batch, the end mark. Any Arrow program opens one alone; this costs the
bytes of the schema in each message (docs/format.md has the measure). The envelope is a JSON object in the metadata of
the batch, under ``confluo:message`` (in that of the schema, this key has the version); its numbers are padded with
spaces, so that they have fixed places.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.core.kafka.message import MessageShape
from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.kafka.short_message import MAGIC, schema_hash, short_head, short_rows

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

VERSION = 1
KEY = meta.MESSAGE
NUMBERS = ("partition", "seq", "first", "last", "records", "dropped")
DIGITS, CRC_DIGITS = 20, 8
MAX_ROWS = 65536
MAX_MESSAGE = 16 << 20  # bytes of a message that is read; brokers take 1 MB by default
MAX_HEAD = 256 << 10  # bytes of a schema, or of what describes a batch
MAX_SHAPES = 64  # that a reader remembers
MAX_HEADS = 8 << 20  # bytes of their heads
MAX_NAME = 255  # characters of a host, or of a kind of records
SHORT = 200  # characters of foreign text in an error line


class CutError(FormatError):
    """Messages end in the middle of one."""


class Envelope(NamedTuple):
    """The place of a message in its sequence.

    ``host``, ``pipeline``, ``run`` (ns, when the producer began) name a sequence in each ``partition``; ``seq`` counts
    from 0.  ``first``, ``last``: times of its records, ns.  ``dropped``: records of the sequence's pipeline that were
    lost before they were in a message, so far.
    """

    host: str
    pipeline: int
    run: int
    partition: int
    seq: int
    first: int
    last: int
    records: int
    dropped: int


def slim(schema: Schema) -> Schema:
    """The schema without descriptions, as messages carry it."""
    from confluo_tools.schema import Schema

    data = schema.as_dict()
    data["description"] = ""
    data["fields"] = [{k: v for k, v in f.items() if k != "description"} for f in data["fields"]]
    return Schema.from_dict(data)


def shape_of(schema: Schema, host: str, pipeline: int, run: int) -> MessageShape:
    """The shape of the messages of one sequence.  ``schema``: of their rows.  Raises FormatError for a large one."""
    text = envelope_text(host, pipeline, run)
    columns = len(schema.columns)
    # Numbers of zero have no place in a batch message: any others will do.
    batch = meta.batch_message(schema, 1, [(0, 0)] * columns, 64, metadata={KEY: text})
    head = schema_part(schema)
    return _shape(schema, head, batch, text)


def schema_part(schema: Schema) -> bytes:
    """The schema message that the messages with rows of ``schema`` have.  Raises FormatError for a large one."""
    head = meta.schema_message(slim(schema), {"confluo:kind": schema.kind, KEY: str(VERSION)})
    if len(head) > MAX_HEAD:
        raise FormatError(f"a schema of {len(head)} bytes is too large for messages", hint="choose fewer --fields")
    return head


def envelope_text(host: str, pipeline: int, run: int) -> str:
    """The envelope with empty numbers."""
    fixed = json.dumps({"version": VERSION, "host": host, "pipeline": pipeline, "run": run})[:-1]
    numbers = "".join(f', "{name}": {"0":>{DIGITS}}' for name in NUMBERS)
    return f'{fixed}{numbers}, "crc32c": "{"0" * CRC_DIGITS}"}}'


def _shape(schema: Schema, head: bytes, batch: bytes, text: str) -> MessageShape:
    places = meta.batch_places(batch)
    start = len(head) + batch.index(text.encode())
    found = [start + text.index(f'"{name}": ') + len(name) + 4 for name in (*NUMBERS, "crc32c")]
    found[-1] += 1  # the quotation mark
    columns, node, buffer = [], 0, 0
    for column in schema.columns:
        is_list = column.field.type.is_list
        columns.append((node, buffer + (2 if is_list else 1), column.count if is_list else 0))
        node += 2 if is_list else 1
        buffer += 3 if is_list else 2
    time = next((i for i, c in enumerate(schema.columns) if c.name == "ts"), -1)
    return MessageShape(
        schema.layout, head + batch, columns, [*(len(head) + at for at in places), *found], node, buffer, time
    )


class MessageReader:
    """Reads messages of any producer; remembers the shapes and the schemas that it has met.

    ``find``: the schema message with a hash, for short messages that came before their schema; or None.
    """

    def __init__(self, find: Callable[[bytes], bytes | None] = lambda name: None) -> None:
        self._known: list[tuple[MessageShape, Schema, tuple[str, int, int]]] = []
        self._find = find
        self._schemas: dict[bytes, Schema] = {}  # by the hash of their messages

    def read(self, value: bytes) -> tuple[Schema, Block, Envelope]:
        """The rows of a message.  Raises FormatError for what is not one, or is damaged."""
        if value.startswith(MAGIC):
            return self._short(value)
        found = self._met(value)
        if found is None:
            self._known.insert(0, _learn(value))
            self._forget()
            self._keep(_encapsulated(value, 0), self._known[0][1])
            found = self._met(value)
        if found is None:
            del self._known[0]
            raise FormatError("is damaged: its numbers do not fit its length")
        return found

    def learn(self, value: bytes) -> None:
        """Take the schema of a stream without records.  Raises FormatError."""
        head = _encapsulated(value, 0)
        self._keep(head, _schema_of(head))

    def _keep(self, head: bytes, schema: Schema) -> None:
        name = schema_hash(head)
        self._schemas.pop(name, None)
        self._schemas[name] = schema
        if len(self._schemas) > MAX_SHAPES:
            del self._schemas[next(iter(self._schemas))]

    def _short(self, value: bytes) -> tuple[Schema, Block, Envelope]:
        head, host = short_head(value)
        schema = self._schemas.get(head.schema)
        if schema is None:
            message = self._find(head.schema)
            if message is None:
                raise FormatError(f"is short, and its schema is not known: {head.schema.hex()}")
            self.learn(message)
            schema = self._schemas[head.schema]
        rows = short_rows(value, schema.layout)
        place = host, head.pipeline, head.run, head.partition, head.seq, head.first, head.last, head.records
        return schema, rows, Envelope(*place, head.dropped)

    def _met(self, value: bytes) -> tuple[Schema, Block, Envelope] | None:
        """The rows of a message of a shape that is known."""
        for i, (shape, schema, fixed) in enumerate(self._known):
            found = shape.read(value)
            if found is not None:
                if i:
                    self._known.insert(0, self._known.pop(i))
                block, (*numbers, right) = found
                if not right:
                    raise FormatError("is damaged: its checksum is wrong")
                return schema, block, Envelope(*fixed, *numbers)
        return None

    def _forget(self) -> None:
        del self._known[MAX_SHAPES:]
        while len(self._known) > 1 and sum(len(shape.head) for shape, *_ in self._known) > MAX_HEADS:
            del self._known[-1]


def rows_as(schema: Schema, block: Block, wanted: Schema) -> Block:
    """The rows of a message with ``schema`` as rows of ``wanted``; fields that it lacks are zero.

    Raises FormatError for records of another kind, or fields of another type.
    """
    if block.layout is wanted.layout:
        return block
    if schema.kind != wanted.kind:
        raise FormatError(f"has records of kind {schema.kind}, not {wanted.kind}")
    try:
        return block.project(wanted.layout)
    except ValueError as e:
        raise FormatError(f"does not fit the messages before it: {e}") from None


def _learn(value: bytes) -> tuple[MessageShape, Schema, tuple[str, int, int]]:
    """The shape of a message that was not met before: its bytes are checked and parsed."""
    head = _encapsulated(value, 0)
    schema = _schema_of(head)
    batch = _encapsulated(value, len(head))
    message = meta.parse_message(batch)
    text = message.metadata.get(KEY)
    if message.kind != meta.BATCH or text is None:
        raise FormatError(f"has no batch with '{KEY}'")
    if message.compression is not None:
        raise FormatError("has a compressed batch", hint="let Kafka compress: publish --codec")
    fixed = _sender(text)
    try:
        shape = _shape(schema, head, batch, text)
    except ValueError as e:
        raise FormatError(f"has an envelope that cannot be read: {e}") from None
    lists = sum(column.field.type.is_list for column in schema.columns)
    if (len(message.nodes), len(message.buffers)) != (len(schema.columns) + lists, 2 * len(schema.columns) + lists):
        raise FormatError("is damaged: its batch has not the columns of its schema")
    return shape, schema, fixed


def _schema_of(head: bytes) -> Schema:
    """The schema in a schema message.  Raises FormatError unless it is one of these tools."""
    message = meta.parse_message(head)
    if message.kind != meta.SCHEMA:
        raise FormatError("does not begin with a schema")
    try:
        schema = meta.schema_from_metadata(message.metadata)
    except ConfluoError as e:
        raise FormatError(f"has a schema that is wrong: {_short(e)}") from None
    if schema is None or not message.little_endian or not meta.matches(message, schema):
        raise FormatError("is an Arrow stream, but not one of these tools")
    if len(schema.kind) > MAX_NAME or not schema.kind.isprintable():
        raise FormatError(f"has records of a kind with a wrong name: {_short(schema.kind)}")
    return schema


def _sender(text: str) -> tuple[str, int, int]:
    """Host, pipeline and run of an envelope.  Raises FormatError unless it has each of its numbers once."""
    try:
        data = json.loads(text)
        version, host, pipeline, run = (data[name] for name in ("version", "host", "pipeline", "run"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError("has an envelope that is not JSON with version, host, pipeline and run") from None
    if version != VERSION:
        raise FormatError(f"has version {_short(version)} of messages, these tools read {VERSION}")
    numbers = type(pipeline) is type(run) is int and 0 <= pipeline < 1 << 32 and 0 <= run < 1 << 63
    if not numbers or not isinstance(host, str) or not 0 < len(host) <= MAX_NAME or not host.isprintable():
        raise FormatError("has an envelope with a wrong host, pipeline or run")
    if not text.isascii() or any(text.count(f'"{name}": ') != 1 for name in (*NUMBERS, "crc32c")):
        raise FormatError("has an envelope without fixed places for its numbers")
    return host, pipeline, run


def _short(what: object) -> str:
    """Foreign text for an error line."""
    text = str(what)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _encapsulated(value: bytes, at: int) -> bytes:
    """The Arrow message at ``at``, with its 8 bytes of prefix."""
    size = int.from_bytes(value[at + 4 : at + 8], "little")
    if value[at : at + 4] != b"\xff\xff\xff\xff" or not 0 < size <= len(value) - at - 8:
        raise FormatError("is not an Arrow stream")
    if size > MAX_HEAD:
        raise FormatError(f"has {size} bytes of metadata, more than {MAX_HEAD}")
    return value[at : at + 8 + size]


def is_schema(value: bytes) -> bool:
    """Whether this is a stream without records."""
    return value.endswith(meta.EOS) and len(value) == 16 + int.from_bytes(value[4:8], "little")


def split(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The messages of a file, and streams without records, one after the other.  ``read``: n bytes, fewer at the end.

    Line feeds between them are skipped: kcat writes one after each.
    Raises FormatError for what is not a message; CutError after the last whole one.
    """

    def exactly(n: int, most: int) -> bytes:
        if not 0 <= n <= most:
            raise FormatError(f"claims a part of {n} bytes")
        piece = read(n)
        if len(piece) < n:
            raise CutError("ends in the middle of a message")
        return piece

    def message(start: bytes) -> bytes:
        if start[:4] != b"\xff\xff\xff\xff":
            raise FormatError("is not an Arrow stream")
        return start + exactly(int.from_bytes(start[4:], "little"), MAX_HEAD)

    while start := read(8):
        while start[:1] == b"\n":
            start = start[1:] + read(1)
        if not start:
            break
        if len(start) < 8:
            raise CutError("ends in the middle of a message")
        if start.startswith(MAGIC):
            start += exactly(4, 4)
            yield start + exactly(int.from_bytes(start[8:], "little") - len(start), MAX_MESSAGE)
            continue
        head = message(start)
        batch = exactly(8, 8)
        if batch == meta.EOS:
            yield head + batch
            continue
        batch = message(batch)
        body = meta.parse_message(batch).body_length
        yield head + batch + exactly(body + len(meta.EOS), MAX_MESSAGE)
