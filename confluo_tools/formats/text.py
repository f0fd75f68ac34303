"""TSV, CSV and NDJSON: rows to lines, and lines to rows.  This module makes the plans that the core works by.

=========== ===================================================================================================
type        text
=========== ===================================================================================================
integers    decimal
f32 f64     the shortest text that reads back as the same value (``3.0``, ``1e+300``, ``nan``, ``inf``)
time        ``2026-11-20T10:00:00.000000001Z``; read: RFC 3339 with any zone, or seconds since 1970
duration    nanoseconds, an integer; read: also ``250us``, ``1.5s``
ip, ipv4    ``10.1.2.3``, ``2001:db8::1``
mac         ``02:00:5e:10:00:01``
enum        its name, else the number
flags       ``syn|ack``; bits without a name as one hexadecimal number
bytes       printable ASCII as it is, everything else and the backslash as ``\\xNN``; zeros at the end left out
text        exactly as given; TSV, which has no quotes, and terminals: see below; zeros at the end left out
list        ``3,7,1``; in JSON an array; zeros at the end left out
=========== ===================================================================================================

Absent (addresses, names, bytes and lists that are zero; times but the first): ``-`` in TSV, nothing in CSV,
``null`` in JSON.

Texts are quoted by the rules of JSON and CSV and have no other escapes.  A byte that is not UTF-8 is ``\\udcNN`` in
JSON (as Python's surrogateescape) and itself elsewhere.  In TSV ``\\xNN`` is a tab, a line end, a text that is only
``-``, ``#`` at the start of a line, and a backslash before ``xNN``.  On a terminal what is not printable is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.foreign_names import clean, fields_named, our_names, schema_of
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.formats.registry import BOM
from confluo_tools.formats.text_dialect import (
    NFDUMP,
    NO_ROWS,
    SUMMARY,
    SUMMARY_MORE,
    delimiter_of,
    names_without_header,
)
from confluo_tools.formats.text_types import compatible, epoch_unit, foreign_type, guess_type, json_values

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks, Staging
    from confluo_tools.core.text.text_writer import Item
    from confluo_tools.schema import Field, Schema
    from confluo_tools.schema.likely_schema import LikelySchema

STYLES = ("tsv", "csv", "ndjson")
PIECE = 1 << 17  # bytes of text printed at a time, about: they stay in the second-level cache
MAX_LINE = 64 << 20  # bytes of a line
COMPLAINTS = 5  # bad lines that are reported one by one
MAX_KEYS = 1000  # different keys of NDJSON objects that are recognised

_OPS = {
    "ipv4": "ipv4",
    "ip": "ip",
    "mac": "mac",
    "time": "time",
    "duration": "duration",
    "enum": "enum",
    "flags": "flags",
    "bytes": "bytes",
    "text": "text",
}


def _item(key: bytes, schema: Schema, field: Field, numeric: bool, style: str, reading: bool = False) -> Item:
    kind = field.type.element
    op = "literal" if field.literal else _OPS.get(kind, "number")
    if numeric and op in ("enum", "flags"):
        op = "number"
    col = schema.index(field.name)
    col6 = col + 1 if op == "ip" else -1
    colv = schema.index(field.version) if op == "ip" and field.version in schema else -1
    if field.present in schema and not reading:
        colv = schema.index(field.present)
    if colv >= 0 and schema.columns[colv].size != 1:
        colv = -1
    always = field is schema.time_field
    names: list[tuple[int, bytes]] = []
    if op in ("enum", "flags"):
        names = [(v, _plain(n, "" if reading else style)) for v, n in field.names.items()]
    if reading and field.names.get(58) == "icmp6":
        names.append((58, b"ipv6-icmp"))  # IANA's name, as Suricata writes it
    return key, op, col, col6, colv, always, names


def _plain(name: str, style: str) -> bytes:
    # Names come from schema files: they must not break a line of their format.
    if style == "ndjson":
        import json

        return json.dumps(name, ensure_ascii=False)[1:-1].encode()
    if style in ("tsv", "csv"):
        name = "".join("_" if c in '\t\r\n,"' else c for c in name)
    return name.encode()


def printing_plan(schema: Schema, names: Sequence[str], style: str, numeric: bool = False) -> list[Item]:
    """The plan by which `Printer` prints these fields of ``schema``, in this order."""
    out = []
    for i, name in enumerate(names):
        key = f'{"," if i else "{"}"{name}":'.encode() if style == "ndjson" else name.encode()
        out.append(_item(key, schema, schema[name], numeric, style))
    return out


class TextWriter:
    """Writes blocks as lines to ``out`` (anything with ``write``).

    ``fields``: names in printed order, all of them by default.  ``header``: TSV ``#fields`` and ``#types``
    lines, CSV a line of names; NDJSON has none.  ``terminal``: escape what is not printable.
    """

    def __init__(
        self,
        format: str,
        schema: Schema,
        out: Any,
        *,
        fields: Sequence[str] | None = None,
        header: bool = True,
        numeric: bool = False,
        terminal: bool = False,
    ) -> None:
        from confluo_tools.core.text.text_writer import Printer

        names = [f.name for f in schema.fields] if fields is None else list(fields)
        self.out = out
        plan = printing_plan(schema, names, format, numeric)
        self.printer = Printer(schema.layout, plan, format, terminal)
        keys = sum(len(item[0]) for item in plan) if format == "ndjson" else 0
        self._rows = max(PIECE // (keys + 8 * len(plan)), 1)  # eight bytes a value are usual
        self._header = header_lines(format, [schema[n] for n in names]) if header else b""

    def start(self) -> None:
        """Write the header, if that has not happened yet."""
        if self._header:
            self.out.write(self._header)
            self._header = b""

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self.start()
        total = block.rows if picks is None else picks.n
        for start in range(0, total, self._rows):
            self.out.write(self.printer.lines(block, picks, start, self._rows))

    def flush(self) -> None:
        """Does nothing: rows are not buffered here."""

    def close(self) -> None:
        self.start()


def header_lines(style: str, fields: Sequence[Field]) -> bytes:
    names = [f.name for f in fields]
    if style == "tsv":
        return ("#fields\t" + "\t".join(names) + "\n#types\t" + "\t".join(f.type.text for f in fields) + "\n").encode()
    return (",".join(names) + "\n").encode() if style == "csv" else b""


# -- reading ---------------------------------------------------------------------------------------------------


class TextReader(Reader):
    """Rows from lines.

    The fields are those of the header (TSV ``#fields``, CSV's first line) or of the first NDJSON objects; ``rename``
    gives some other names.  Values in nested objects are fields with names such as ``a.b``.  The first line of CSV
    decides whether commas, semicolons or tabs separate values.
    Their types: of ``schema`` if given, which also leaves other fields out; else of ``types`` for names it has, else of
    ``#types``, else of the built-in packet schema for names it has, else guessed from the first lines.  ``tell`` prints
    what was taken for what, if part of the fields are those of packets.  A line that does not fit is reported and left
    out, as is a field that begins after the first lines.
    """

    def __init__(
        self,
        stream: ByteStream,
        format: str,
        *,
        schema: Schema | LikelySchema | None = None,
        types: Schema | None = None,
        warn: Warn | None = None,
        tell: Warn | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        from confluo_tools.schema.likely_schema import resolved

        super().__init__(stream.name, warn)
        self.stream, self.format, self._style = stream, format, format
        self._types, self._tell = types, tell
        self.bad_lines = 0
        self._data = b""
        self._at = 0
        self._line = 0  # lines consumed
        self._ended = False
        self._header, self._delimiter = b"", b","
        self._summary = 0  # lines that are still to come of it
        self._skip_bom()
        names, kinds = self._head()
        self._ours = our_names(names, rename, self.name)
        self._first: list[list[str]] | None = None
        self.schema, fields = self._schema(names, kinds, resolved(schema, self._ours.values()))
        self._names, self._fields = names, fields
        self._units: dict[int, str] = {}  # of times that are numbers, by place
        self.given = [self._ours[n] for n in names] if format != "ndjson" else None  # later objects may have more
        self._scanner: Any = None  # made when there are rows

    # -- the header

    def _head(self) -> tuple[list[str], list[str]]:
        if self._style == "ndjson":
            return self._json_names(), []
        if self._style == "csv":
            line = self._peek_line()
            self._delimiter = delimiter_of(line)
            lacking = names_without_header(line)
            if not lacking:
                self._header = self._next_line()
            return [clean(n) for n in _csv_split(lacking or self._text(line), self._delimiter)], []
        names: list[str] = []
        types: list[str] = []
        while self._peek_line()[:1] == b"#" or not names:
            if names and self._peek_line().startswith(b"#fields"):
                break  # another table: see _complain
            line = self._next_line()
            if not line and self._ended:
                break
            words = self._text(line).split("\t")
            if words[0] == "#fields":
                names = [clean(n) for n in words[1:]]
            elif words[0] == "#types":
                types = words[1:]
            elif line[:1] != b"#" and line:
                break
        if not names:
            hint = "TSV begins with: #fields<TAB>ts<TAB>..."
            raise FormatError("has no line of field names", where=self.name, hint=hint)
        return names, types if len(types) == len(names) else []

    def _json_names(self) -> list[str]:
        names: dict[str, None] = {}
        seen = 0
        for row in self._first_objects():
            seen += 1
            names.update(dict.fromkeys(row))
        if not names:
            if seen:
                raise FormatError("its objects have no fields", where=self.name)
            raise FormatError("has no JSON object in its first lines", where=self.name, hint="one object a line")
        return list(names)

    def _schema(self, names: list[str], types: list[str], given: Schema | None) -> tuple[Schema, list[Field | None]]:
        from confluo_tools.schema import Field

        known = given or self._types
        guessed = known is None
        if known is None:
            from confluo_tools.schema import builtin

            known = builtin("packet")
        fields: list[Field | None] = []
        for i, name in enumerate(names):
            plain = self._ours.get(name, "")
            twice = any(f is not None and f.name == plain for f in fields)
            nested = guessed and "." in name and clean(name) == plain  # tcp.ack of others is not our tcp_ack
            unlike = nested or twice
            if plain in known and not unlike and (not guessed or not types or compatible(known[plain], types[i])):
                fields.append(known[plain])
                continue
            if given is not None or not plain or twice:
                fields.append(None)
                continue
            text = (foreign_type(types[i]) if types else "") or guess_type(self._values(names, i), plain)
            field = Field(plain, text)
            fields.append(field)
        used = [f for f in fields if f is not None]
        if not used:
            raise FormatError("none of its fields is in the schema", where=self.name)
        if given is not None:
            missing = [n for n, f in zip(names, fields, strict=True) if f is None]
            if missing:
                plural = "are" if len(missing) > 1 else "is"
                self.warn(f"{fields_named(missing)} {plural} not in the schema and left out")
            return given, fields
        exact = self._types is not None
        return schema_of(used, known, exact, self.name, None if types else self._tell), fields

    def _new_scanner(self, names: list[str], fields: list[Field | None]) -> Any:
        from confluo_tools.core.text.text_reader import Scanner

        explicit = {f.name for f in fields if f is not None}
        plan: list[Item] = []
        for i, (name, field) in enumerate(zip(names, fields, strict=True)):
            if field is None:
                plan.append((_key(name), "skip", -1, -1, -1, False, ()))
                continue
            item = _item(_key(name), self.schema, self.schema[field.name], False, self._style, reading=True)
            if field.version in explicit:  # it has a column of its own in the text
                item = (*item[:4], -1, *item[5:])
            if self._units.get(i, "s") != "s" and item[1] == "time":
                item = (item[0], f"time_{self._units[i]}", *item[2:])
            plan.append(item)
        scanner = Scanner(self.schema.layout, plan, self._style, self._header, self._delimiter)
        scanner.all_keys = len(names) < MAX_KEYS
        return scanner

    # -- the first lines

    def _skip_bom(self) -> None:
        while not self._ended and len(self._data) < len(BOM) and BOM.startswith(self._data):
            more = self.stream.some()
            self._ended, self._data = not more, self._data + more
        if self._data.startswith(BOM):
            self._at = len(BOM)

    def _want(self, lines: int) -> None:
        # Read until _data has that many lines, enough bytes, or all input.
        while not self._ended and self._data.count(b"\n", self._at) < lines and len(self._data) - self._at < 1 << 20:
            more = self.stream.some()
            self._ended = not more
            self._data = self._data[self._at :] + more
            self._at = 0

    def _first_lines(self, most: int) -> list[bytes]:
        # After the first line only the available bytes, without waiting: the input may be live.
        self._want(1)
        if not self.stream.waits:
            self._want(most)
        return self._data[self._at :].split(b"\n")[:most]

    def _peek_line(self) -> bytes:
        self._want(1)
        return self._data[self._at :].split(b"\n", 1)[0].rstrip(b"\r")

    def _next_line(self) -> bytes:
        line = self._peek_line()
        end = self._data.find(b"\n", self._at)
        self._at = len(self._data) if end < 0 else end + 1
        self._line += 1
        return line

    def _text(self, line: bytes) -> str:
        return line.decode("utf-8", "surrogateescape")

    def _first_objects(self) -> list[dict[str, str]]:
        import json

        found = []
        for line in self._first_lines(200):
            try:
                row = json.loads(line)
                if isinstance(row, dict):
                    found.append(dict(json_values(row)))
            except (ValueError, RecursionError):
                continue
        return found

    def _samples(self, names: list[str]) -> list[list[str]]:
        if self._style == "ndjson":
            return [[row.get(n, "") for n in names] for row in self._first_objects()]
        rows: list[list[str]] = []
        for line in self._first_lines(200):
            if line and line[:1] != b"#" and line.rstrip(b"\r") != self._header:
                text = self._text(line.rstrip(b"\r"))
                words = text.split("\t") if self._style == "tsv" else _csv_split(text, self._delimiter)
                if self._style == "csv" and self._header.startswith(NFDUMP) and len(words) < len(names):
                    continue  # its summary
                rows.append(["" if v == "-" else v for v in words])
        return rows

    def _values(self, names: list[str], i: int) -> list[str]:
        if self._first is None:
            self._first = self._samples(names)
        return [row[i] for row in self._first if i < len(row)]

    def _begin(self) -> None:
        for i, field in enumerate(self._fields):
            if field is not None and field.type.element == "time":
                self._units[i] = epoch_unit(self._values(self._names, i))
        self._scanner = self._new_scanner(self._names, self._fields)

    # -- rows

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.core.block.block import Staging

        while self._at < len(self._data) or not self._ended:
            lines = self._data.count(b"\n", self._at)
            before = self._at
            if lines or self._ended:
                block = Staging(self.schema.layout, min(lines + 1, 65536))
                self._fill(block)
                if block.rows:
                    yield block
            if self._at == before:  # less than a line, or quotes that are still open
                if self._ended:
                    break
                more = self.stream.some()
                self._ended = not more
                self._data, self._at = self._data[self._at :] + more, 0
                if len(self._data) > MAX_LINE:
                    raise FormatError(f"has a line of more than {MAX_LINE >> 20} MiB", where=self.name)
        if self.stream.damage:
            self.warn(self.stream.damage)
        if self.bad_lines > COMPLAINTS:
            self.warn(f"{self.bad_lines} lines do not fit the schema and are left out")

    def _fill(self, block: Staging) -> None:
        if self._scanner is None:
            self._begin()
        while block.rows < block.capacity and self._at < len(self._data):
            before = self._at
            self._at = self._scanner.feed(self._data, self._at, block, self._ended and not self.stream.growing)
            if self._scanner.problem == 8:  # a key that the first lines do not have
                self._line += self._data.count(b"\n", before, self._at)
                self._skip_key()
            elif self._scanner.problem:
                self._line += self._data.count(b"\n", before, self._at)
                self._complain(before)
            elif self._at == before:
                break
            else:
                self._line += self._data.count(b"\n", before, self._at)

    def _skip_key(self) -> None:
        name = self._scanner.new_key.decode("utf-8", "surrogateescape")
        shown = name if len(name) <= 40 else name[:37] + "..."
        self.warn(f"line {self._line + 1}: field '{shown}' is not in the first lines, or not in the schema; left out")
        self._names, self._fields = [*self._names, name], [*self._fields, None]
        self._scanner = self._new_scanner(self._names, self._fields)
        if len(self._names) >= MAX_KEYS:
            self.warn(f"has more than {MAX_KEYS} fields; later ones are left out without a message")

    def _complain(self, before: int) -> None:
        from confluo_tools.core.text.text_reader import PROBLEMS

        start, end = self._scanner.bad
        text = self._data[start:end].decode("utf-8", "replace")
        if self._scanner.problem == 7:  # '#'
            words = text.rstrip("\r").split("\t")
            if words[0] == "#fields" and [clean(w) for w in words[1:]] != self._names:
                raise FormatError(f"line {self._line}: other fields begin here", where=self.name)
            return
        if self._of_summary(text.rstrip("\r")):
            return
        self.bad_lines += 1
        if self.bad_lines > COMPLAINTS:
            return
        what = PROBLEMS[self._scanner.problem]
        if self._scanner.field >= 0:
            name = self._names[self._scanner.field]
            field = self.schema[self._ours[name]]
            text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
            shown = text if len(text) <= 40 else text[:37] + "..."
            what = f"'{shown}' " + ("is too long for" if self._scanner.problem == 2 else "is not of type")
            what += f" {field.type.text} (field {name})"
        self.warn(f"line {self._line}: {what}")

    def _of_summary(self, line: str) -> bool:
        # The lines after the rows of nfdump have other fields.
        if self._summary:
            self._summary -= 1
            return True
        nfdump = self._header.startswith(NFDUMP)
        if nfdump and line == SUMMARY:
            self._summary = SUMMARY_MORE
        return nfdump and line in (SUMMARY, NO_ROWS)

    def on_idle(self, call: Callable[[], None]) -> None:
        self.stream.idle = call

    def close(self) -> None:
        self.stream.close()


def _key(name: str) -> bytes:
    # The bytes of a name as the core reads them: a JSON key can have halves of surrogate pairs.
    if name.isascii():
        return name.encode()
    return b"".join(
        bytes([ord(c) & 0xFF]) if "\udc80" <= c <= "\udcff" else c.encode("utf-8", "surrogatepass") for c in name
    )


def _csv_split(line: str, delimiter: bytes) -> list[str]:
    import csv

    return next(csv.reader([line], delimiter=delimiter.decode()), [])
