"""JSON arrays of objects: written one object per line, and read in any layout, as lines of NDJSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import ByteStream, PieceStream
from confluo_tools.formats.registry import BOM
from confluo_tools.formats.text import MAX_LINE, TextReader, TextWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.reader import Warn
    from confluo_tools.schema import Schema
    from confluo_tools.schema.likely_schema import LikelySchema

MARKS = re.compile(rb'["{}\[\]\r\n]')
IN_TEXT = re.compile(rb'["\\]')
BLANK = b" \t\r\n"


class JsonWriter:
    """Blocks as a JSON array on ``out``, a valid document also when it has no rows; options as of `TextWriter`."""

    def __init__(
        self,
        schema: Schema,
        out: Any,
        *,
        fields: Sequence[str] | None = None,
        numeric: bool = False,
        terminal: bool = False,
    ) -> None:
        self._out, self._begun = out, False
        options: dict[str, Any] = {"fields": fields, "numeric": numeric, "terminal": terminal}
        self._lines = TextWriter("ndjson", schema, _Lines(self._objects), **options)

    def _objects(self, lines: bytes) -> None:
        if lines:
            self._out.write(b",\n" if self._begun else b"[\n")
            self._out.write(lines[:-1].replace(b"\n", b",\n"))  # inside of texts a line end is escaped
            self._begun = True

    def start(self) -> None:
        """Does nothing: the bracket comes with the first row."""

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self._lines.write(block, picks)

    def flush(self) -> None:
        """Does nothing: rows are not buffered here."""

    def close(self) -> None:
        self._out.write(b"\n]\n" if self._begun else b"[]\n")


class _Lines:
    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


class JsonReader(TextReader):
    """Rows of the objects of a JSON array; fields and types as of NDJSON."""

    def __init__(
        self,
        stream: ByteStream,
        *,
        schema: Schema | LikelySchema | None = None,
        types: Schema | None = None,
        warn: Warn | None = None,
        tell: Warn | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        lines = ObjectLines(stream)
        super().__init__(lines, "ndjson", schema=schema, types=types, warn=warn, tell=tell, rename=rename)
        self.format = "json"


class ObjectLines(PieceStream):
    """The objects of the array in another stream, each as a line.  Raises FormatError for what is not such an array."""

    def __init__(self, below: ByteStream) -> None:
        self.below = below
        self.fd, self.name, self.offset, self.waits = below.fd, below.name, 0, below.waits
        self._have, self._at, self._ended, self._close = bytearray(), 0, False, False
        self.damage = below.damage
        self._open = bytearray()  # an object, or what is between two
        self._depth = 0  # of brackets: 1 inside of the array
        self._text = False  # inside of a text
        self._skip = False  # its first byte follows a backslash
        self._done = False

    def _more(self) -> bytes:
        while not self._done:
            data = self.below.some()
            if not data:
                self._done = True
                if self._depth:
                    self.damage = self.below.damage or "ends inside of its array"
                break
            lines = self._lines(data)
            if lines:
                return lines
            if len(self._open) > MAX_LINE:
                raise FormatError(f"has an object of more than {MAX_LINE >> 20} MiB", where=self.name)
        return b""

    def _lines(self, data: bytes) -> bytes:
        out, at = bytearray(), 0
        if self._skip:
            self._open += data[:1]
            self._skip, at = False, 1
        while at < len(data):
            found = (IN_TEXT if self._text else MARKS).search(data, at)
            end = len(data) if found is None else found.start()
            self._open += data[at:end]
            if found is None:
                break
            mark, at = data[end : end + 1], end + 1
            if self._text:
                self._open += mark
                self._text = mark != b'"'
                if mark == b"\\":
                    self._skip = at == len(data)
                    self._open += data[at : at + 1]
                    at += 1
            else:
                self._between(mark, out)
        return bytes(out)

    def _between(self, mark: bytes, out: bytearray) -> None:
        if mark in (b"\r", b"\n"):
            self._open += b" "
            return
        if mark in (b"{", b"["):
            if self._depth == 0:
                if mark != b"[" or self._open.removeprefix(BOM).strip(BLANK):
                    raise FormatError("is not an array of JSON objects", where=self.name)
                self._open.clear()
            elif self._depth == 1:
                if mark != b"{" or bytes(self._open).strip(BLANK) not in (b"", b","):
                    raise FormatError("its array has something else than objects", where=self.name)
                self._open[:] = mark
            else:
                self._open += mark
            self._depth += 1
            return
        self._open += mark
        if mark == b'"':
            self._text = True
            return
        self._depth -= 1
        if self._depth == 1:
            out += self._open + b"\n"
            self._open.clear()
        elif self._depth == 0:
            if bytes(self._open).rstrip(b"]").strip(BLANK):
                raise FormatError("its array has something else than objects", where=self.name)
            self._open.clear()

    def close(self) -> None:
        self.below.close()
