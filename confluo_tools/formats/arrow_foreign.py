"""Columns of Arrow data from other programs, converted to columns of a schema.

A field of a name we know (the schema in the metadata, else the built-in packet schema) becomes that field when
its type can be cast to it: addresses, MACs, enums and flags also from text.  Others keep their name and a type
guessed from Arrow's.  What cannot be a fixed-width column is left out, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.arrow_enums import enum_field, enum_numbers
from confluo_tools.formats.arrow_meta import ArrowField, Message
from confluo_tools.formats.arrow_values import UNITS
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.foreign_names import detached, our_names, schema_of
from confluo_tools.formats.reader import Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Field, Schema

BLOCK_ROWS = 65536
GUESSED_ROWS = 1000
MAX_LIST = 255  # elements of a list
STRINGS = ("string", "large_string", "string_view")


def _known(exact: Schema | None) -> Schema:
    if exact is not None:
        return exact
    from confluo_tools.schema import builtin

    return builtin("packet")


# -- without pyarrow -------------------------------------------------------------------------------------------


def plain_type(f: ArrowField) -> str:
    """The field type that stores the same bytes as this Arrow field; '' if there is none."""
    if f.dictionary:
        return ""
    if f.type == "fixed_size_list" and len(f.children) == 1 and 1 <= f.width <= 255:
        inner = plain_type(f.children[0])
        return f"list({inner}, {f.width})" if inner and "(" not in inner else ""
    if f.type == "int" and f.bits in (8, 16, 32, 64):
        return f"{'i' if f.signed else 'u'}{f.bits}"
    if f.type == "float" and f.bits in (32, 64):
        return f"f{f.bits}"
    if f.type in ("timestamp", "duration") and f.unit == "ns":
        return "time" if f.type == "timestamp" else "duration"
    if f.type == "fixed_size_binary" and 1 <= f.width <= 65535:
        return f"bytes({f.width})"
    return ""


def _base(text: str) -> str:
    from confluo_tools.schema import Type

    t = Type(text)
    return f"{t.element if t.element in ('time', 'duration') else t.base}/{t.size}/{t.count}/{t.is_list}"


def plain_columns(
    message: Message,
    exact: Schema | None,
    where: str = "",
    tell: Warn | None = None,
    rename: Mapping[str, str] | None = None,
) -> tuple[Schema, list[int]] | None:
    """Our schema of this stream, and the number of the field behind each physical column (-1: zeros).

    None when a field has to be converted.
    """
    from confluo_tools.schema import Field

    known = _known(exact)
    types = [plain_type(f) for f in message.fields]
    if not all(types) or not types:
        return None
    ours = our_names([f.name for f in message.fields], rename, where)
    place = {ours[f.name]: i for i, f in reversed(list(enumerate(message.fields)))}
    fields: list[Field] = []
    sources: list[int] = []
    taken: set[str] = set()
    for i, (f, text) in enumerate(zip(message.fields, types, strict=True)):
        name = ours[f.name]
        if not name or name in taken or place[name] != i:
            if name in taken:
                continue
            return None
        if name in known:
            field = detached(known[name])
            if _base(text) != _base(field.type.text):
                return None
            six = place.get(name + "6", -1) if field.type.kind == "ip" else -1
            if six >= 0 and types[six] != "bytes(16)":
                return None
            sources += [i, six] if field.type.kind == "ip" else [i]
            if six >= 0:
                taken.add(name + "6")
                if name + "6" in (g.name for g in fields):
                    return None
        else:
            field = Field(name, text)
            sources.append(i)
        taken.add(name)
        fields.append(field)
    return schema_of(fields, known, exact is not None, where, tell), sources


# -- with pyarrow ----------------------------------------------------------------------------------------------


def pyarrow(where: str) -> Any:
    """The pyarrow module.  Raises FormatError with the install command if it is missing."""
    try:
        import pyarrow as pa
    except ImportError:
        raise FormatError("needs pyarrow", where=where, hint="pip install 'confluo-tools[parquet]'") from None
    return pa


class _Bytes:
    """A file object for pyarrow: the bytes already read, then the rest of the stream."""

    closed = False

    def __init__(self, start: bytes, rest: ByteStream) -> None:
        self._start, self._rest = start, rest

    def read(self, n: int = -1) -> bytes:
        if self._start:
            out, self._start = self._start[:n], self._start[n:]
            return out + (self._rest.read(n - len(out)) if n > len(out) else b"")
        if n < 0:
            return b"".join(iter(self._rest.some, b""))
        return self._rest.read(n)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class Foreign:
    """Blocks of pyarrow record batches.  ``schema`` is ours.

    ``dictionaries``: all dictionaries of a column with one; without it, that of the first batch.
    ``begun``: batches were read.
    """

    def __init__(
        self,
        schema: Any,
        batches: Iterator[Any],
        exact: Schema | None,
        name: str,
        warn: Warn,
        tell: Warn | None = None,
        rename: Mapping[str, str] | None = None,
        dictionaries: Callable[[int], Iterable[Any]] | None = None,
    ) -> None:
        self.name, self._warn = name, warn
        self._batches, self._dictionaries = batches, dictionaries
        self._names: list[str] = schema.names
        self._only: list[int] | None = None  # numbers of the fields that are read; None: all
        self.begun = False
        self._ahead: list[Any] = []
        known = _known(exact)
        ours = our_names(schema.names, rename, name)
        names = [ours[n] for n in schema.names]
        self._sources: list[tuple[int, Field, int]] = []
        fields: list[Field] = []
        for i, name in enumerate(names):
            second = name[-1:] == "6" and name[:-1] in names and self._is_ip(known, name[:-1])
            if not name or name in names[:i] or second:
                continue
            field = detached(known[name]) if name in known else self._guess(name, i, schema.types[i])
            if field is None:
                warn(f"{self.name}: field '{schema.names[i]}' of type {schema.types[i]} is left out")
                continue
            six = names.index(name + "6") if field.type.kind == "ip" and name + "6" in names else -1
            self._sources.append((i, field, six))
            fields.append(field)
        if not fields:
            raise FormatError("has no field that can be read", where=self.name)
        self.schema = schema_of(fields, known, exact is not None, self.name, tell)

    @staticmethod
    def _is_ip(known: Schema, name: str) -> bool:
        return name in known and known[name].type.kind == "ip"

    def _guess(self, name: str, i: int, type_: Any) -> Field | None:
        import pyarrow as pa

        from confluo_tools.schema import Field

        t = pa.types
        if t.is_dictionary(type_):
            type_ = type_.value_type
            if str(type_) in STRINGS and not self._address_type(i):
                field = enum_field(name, self._dictionaries_of(i))
                if field is not None:
                    return field
        text = ""
        if t.is_boolean(type_):
            text = "u8"
        elif t.is_integer(type_):
            text = f"{'u' if t.is_unsigned_integer(type_) else 'i'}{type_.bit_width}"
        elif t.is_floating(type_):
            text = f"f{max(32, type_.bit_width)}"
        elif t.is_decimal(type_):
            text = "f64"
        elif t.is_timestamp(type_) or t.is_date(type_):
            text = "time"
        elif t.is_duration(type_) or t.is_time(type_):
            text = "duration"
        elif t.is_fixed_size_binary(type_):
            text = f"bytes({type_.byte_width})"
        elif t.is_fixed_size_list(type_) or t.is_list(type_) or t.is_large_list(type_):
            text = self._list_type(i, type_)
        elif str(type_) in STRINGS:
            text = self._address_type(i) or f"text({self._width(i)})"
        elif str(type_) in ("binary", "large_binary", "binary_view"):
            text = f"bytes({self._width(i)})"
        return Field(name, text) if text else None

    def _address_type(self, i: int) -> str:
        """'ip' or 'mac' if the first texts all are such addresses, as in text; otherwise ''."""
        from confluo_tools.formats.text_types import guess_type

        first = self._first_batch()
        texts = [] if first is None else [v for v in first.column(i).slice(0, GUESSED_ROWS).to_pylist() if v]
        found = guess_type(texts) if texts else ""
        return found if found in ("ip", "mac") else ""

    def _dictionaries_of(self, i: int) -> Iterable[Any]:
        if self._dictionaries is not None:
            return self._dictionaries(i)
        first = self._first_batch()
        return [] if first is None else [first.column(i).dictionary]

    def _list_type(self, i: int, type_: Any) -> str:
        """Of a list of numbers, times or durations; with room for twice the longest of the first batch."""
        import pyarrow as pa
        import pyarrow.compute as pc

        t, v, element = pa.types, type_.value_type, ""
        if t.is_integer(v):
            element = f"{'u' if t.is_unsigned_integer(v) else 'i'}{v.bit_width}"
        elif t.is_floating(v) and v.bit_width >= 32:
            element = f"f{v.bit_width}"
        elif t.is_timestamp(v) or t.is_duration(v):
            element = "time" if t.is_timestamp(v) else "duration"
        if t.is_fixed_size_list(type_):
            count = type_.list_size
        else:
            first = self._first_batch()
            longest = 0 if first is None else pc.max(pc.list_value_length(first.column(i))).as_py() or 0
            count = min(max(8, 2 * longest), MAX_LIST) if longest <= MAX_LIST else 0
        return f"list({element}, {count})" if element and 1 <= count <= MAX_LIST else ""

    def _first_batch(self) -> Any:
        if not self._ahead:
            first = self._next()
            if first is not None:
                self._ahead.append(first)
        return self._ahead[0] if self._ahead else None

    def _width(self, i: int) -> int:
        # Room for twice the longest of the first batch.
        first = self._first_batch()
        longest = _longest(first.column(i)) if first is not None else 16
        width = 16
        while width < 2 * longest and width < 32768:
            width *= 2
        return width

    @property
    def clear(self) -> bool:
        """Whether the names say which column is meant: none is there twice; a dot also is a part of a column."""
        return len({*self._names}) == len(self._names) and not any("." in name for name in self._names)

    @property
    def given(self) -> dict[int, str]:
        """{physical column: name of its column in the data}; the second one of an address is not among them."""
        return {numbers[0]: self._names[i] for numbers, i, _ in self._places()}

    def _places(self) -> Iterator[tuple[range, int, int]]:
        # The physical columns of each field, the number of its column in the data, and of the second one or -1.
        first = 0
        for i, field, six in self._sources:
            after = first + len(field.columns)
            yield range(first, after), i, six
            first = after

    def only(self, columns: Set[int], read: Callable[[Sequence[str]], Iterator[Any]] | None = None) -> None:
        """Convert only these physical columns; the others are zeros.  Call it before reading.

        ``read``: gives the batches with only the named columns, from the first batch on.
        """
        if not self.clear:
            return
        self._only = []
        for numbers, i, six in self._places():
            if not columns.isdisjoint(numbers):
                self._only += [i] if six < 0 else [i, six]
        if read is not None:
            wanted = self._only or [self._sources[0][0]]  # it says how many rows there are
            self._batches, self._ahead = read([self._names[i] for i in wanted]), []

    def _next(self) -> Any:
        import pyarrow as pa

        self.begun = True
        batch = next(self._batches, None)
        if batch is not None:
            try:
                batch.validate(full=True)  # pyarrow reads outside the buffers of a malformed batch
            except (pa.ArrowInvalid, pa.ArrowIndexError) as e:
                raise FormatError(f"is damaged: {_first(e)}", where=self.name) from None
        return batch

    def __iter__(self) -> Iterator[Block]:
        from confluo_tools.core.block.block import Block

        layout = self.schema.layout
        while True:
            batch = self._ahead.pop() if self._ahead else self._next()
            if batch is None:
                return
            numbers: Any = range(len(self._names))
            if self._only is not None:
                numbers = {i: batch.schema.get_field_index(self._names[i]) for i in self._only}
            for start in range(0, batch.num_rows, BLOCK_ROWS):
                part = batch.slice(start, BLOCK_ROWS)
                buffers: list[Any] = []
                for i, field, six in self._sources:
                    if i not in numbers:
                        buffers += [None] * len(field.columns)
                        continue
                    second = part.column(numbers[six]) if six >= 0 else None
                    try:
                        buffers += convert(part.column(numbers[i]), field, second)
                    except ConfluoError:
                        raise
                    except Exception as e:  # pyarrow has many kinds
                        what = f"field '{field.name}' cannot be read as {field.type.text}: {_first(e)}"
                        hint = "--schema sets its type, such as text(16)" if field.type.kind == "enum" else ""
                        raise FormatError(what, where=self.name, hint=hint) from None
                yield Block.wrap(layout, part.num_rows, buffers)


def _longest(texts: Any) -> int:
    # In bytes, without a copy of the texts; 16 if there is none.
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary
    if str(texts.type) in ("string_view", "binary_view"):
        texts = texts.cast(pa.large_binary() if str(texts.type) == "binary_view" else pa.large_string())
    found = pc.max(pc.binary_length(texts)).as_py()
    return 16 if found is None else int(found)


def _first(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else type(e).__name__


def open_stream(
    stream: ByteStream,
    head: bytes,
    exact: Schema | None,
    warn: Warn,
    tell: Warn | None = None,
    rename: Mapping[str, str] | None = None,
) -> Foreign:
    """Read on with pyarrow after ``head``, the schema message."""
    pa = pyarrow(stream.name)
    try:
        reader = pa.ipc.open_stream(pa.PythonFile(_Bytes(head, stream), mode="r"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as e:
        raise FormatError(_first(e), where=stream.name) from None
    return Foreign(reader.schema, _batches(reader, stream.name), exact, stream.name, warn, tell, rename)


def _batches(reader: Any, name: str) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from reader
    except (pa.ArrowInvalid, OSError) as e:
        raise FormatError(f"is damaged: {_first(e)}", where=name) from None


def convert(array: Any, field: Field, six: Any = None) -> list[Any]:
    """The buffers of our columns of ``field``.  pyarrow's errors when it cannot be cast."""
    import pyarrow as pa

    t = pa.types
    kind = field.type.kind
    if t.is_dictionary(array.type):
        if kind == "enum" and str(array.type.value_type) in STRINGS:
            numbers = enum_numbers(array, field)
            if numbers is not None:
                return [_values(numbers.cast(_arrow_type(pa, field.type.base)), field.type.size)]
        array = _decoded(array)
    text = str(array.type) in STRINGS
    if field.type.is_list:
        return [_list(array, field)]
    if field.type.is_bytes:
        return [_fixed(array, field.type.size)]
    if text and kind in ("ip", "ipv4", "mac", "enum", "flags"):
        return _from_text(array, field)
    if kind in ("time", "duration"):
        array = _to_ns(array, kind)
    target = _arrow_type(pa, field.type.base)
    main = _values(array.cast(target), field.type.size)
    if kind != "ip":
        return [main]
    return [main, None if six is None else _fixed(six, 16)]


def _decoded(array: Any) -> Any:
    import pyarrow as pa

    if str(array.type.value_type) == "string_view":  # pyarrow takes no elements of these
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_string()))
    return array.dictionary_decode()


def _arrow_type(pa: Any, base: str) -> Any:
    return {"f32": pa.float32(), "f64": pa.float64()}.get(base) or pa.type_for_alias(
        ("uint" if base[0] == "u" else "int") + base[1:]
    )


def _to_ns(array: Any, kind: str) -> Any:
    import pyarrow as pa

    if kind == "time":
        if pa.types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("ns"))
    elif pa.types.is_duration(array.type):
        array = array.cast(pa.duration("ns"))
    elif pa.types.is_time(array.type):
        array = array.cast(pa.time64("ns"))
    return array


def _values(array: Any, width: int) -> memoryview:
    if array.null_count:
        array = array.fill_null(0)
    return memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _fixed(array: Any, size: int) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == size and not array.null_count:
        return memoryview(array.buffers()[1])[array.offset * size : (array.offset + len(array)) * size]
    out = []
    for value in array.to_pylist():
        data = b"" if value is None else value.encode() if isinstance(value, str) else bytes(value)
        if len(data.rstrip(b"\0")) > size:
            raise ValueError(f"a value of {len(data)} bytes is too long")
        out.append(data[:size].ljust(size, b"\0"))
    return b"".join(out)


def _list(array: Any, field: Field) -> Any:
    from array import array as numbers

    count, base = field.type.count, field.type.base
    code = {
        "u8": "B",
        "u16": "H",
        "u32": "I",
        "u64": "Q",
        "i8": "b",
        "i16": "h",
        "i32": "i",
        "i64": "q",
        "f32": "f",
        "f64": "d",
    }[base]
    out, scale = numbers(code), 1
    unit = getattr(array.type.value_type, "unit", None)
    if field.type.element in ("time", "duration") and unit is not None:
        import pyarrow as pa

        scale = UNITS[unit]
        array = array.cast(pa.list_(pa.int64()))
    for value in array.to_pylist():
        row = [0 if v is None else v * scale for v in value or ()]
        if len(row) > count:
            raise ValueError(f"a list of {len(row)} elements is too long")
        out.extend(row + [0] * (count - len(row)))
    return out.tobytes()


def _from_text(array: Any, field: Field) -> list[Any]:
    """The values of texts; each text that differs is parsed once."""
    import pyarrow as pa

    if str(array.type) == "string_view":
        array = array.cast(pa.large_string())
    encoded = array.dictionary_encode()
    empty = (0, bytes(16))
    texts = encoded.dictionary.to_pylist()
    parsed = [*(empty if text in ("", "-") else _parse(text, field) for text in texts), empty]
    places = encoded.indices.fill_null(len(texts))
    size = field.type.size
    numbers = pa.py_buffer(b"".join([number.to_bytes(size, "little") for number, _ in parsed]))
    main = pa.Array.from_buffers(_arrow_type(pa, f"u{8 * size}"), len(parsed), [None, numbers]).take(places)
    if field.type.kind != "ip":
        return [_values(main, size)]
    if not any(any(six) for _, six in parsed):
        return [_values(main, size), None]  # of no row
    sixes = pa.py_buffer(b"".join([six for _, six in parsed]))
    return [
        _values(main, size),
        _fixed(pa.Array.from_buffers(pa.binary(16), len(parsed), [None, sixes]).take(places), 16),
    ]


def _parse(text: str, field: Field) -> tuple[int, bytes]:
    from confluo_tools.schema import fold6
    from confluo_tools.units import try_ip

    kind = field.type.kind
    if kind in ("ip", "ipv4"):
        found = try_ip(text)
        if found is None or (kind == "ipv4" and found[0] == 6):
            raise ValueError(f"'{text}' is not an address")
        if found[0] == 4:
            return found[1], bytes(16)
        data = found[1].to_bytes(16, "big")
        return fold6(data), data
    if kind == "mac":
        return int(text.replace(":", "").replace("-", ""), 16), b""
    values = {n: v for v, n in field.names.items()}
    total = 0
    for word in text.split("|") if kind == "flags" else [text]:
        try:
            total |= values[word] if word in values else int(word, 0)
        except ValueError:
            raise ValueError(f"'{word}' is none of its names") from None
    if not 0 <= total < 1 << 8 * field.type.size:
        raise ValueError(f"'{text}' is too large")
    return total, b""
