"""Arrow files and Parquet, and readable Arrow streams, by pyarrow: columns as they are stored, or readable ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta, arrow_values
from confluo_tools.formats.absent import AbsentValues
from confluo_tools.formats.arrow_foreign import Foreign, pyarrow
from confluo_tools.formats.bytestream import ByteStream, ObjectStream
from confluo_tools.formats.foreign_names import known_fields, only_foreign
from confluo_tools.formats.parquet_ranges import ParquetRanges
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Field, Schema

GROUP = 1 << 20  # rows of a Parquet row group
FEW = 2048  # rows that are read at once if they have texts: a file of 300 bytes may hold 20,000 equal ones of 60 KB
TEXTUAL = ("ip", "ipv4", "mac", "enum", "flags", "text")


class _File:
    """A file object for pyarrow that writes to an output."""

    def __init__(self, out: Any) -> None:
        self._out, self._at, self.closed = out, 0, False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._out.write(bytes(view))
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class ArrowFileWriter:
    """Blocks to an Arrow IPC file ('arrow'), an Arrow stream ('stream') or Parquet ('parquet') on ``out``.

    ``readable``: addresses, MACs, enums, flags and texts as text, null when absent, instead of the columns they are
    stored in; and times without a zone, in UTC, because DuckDB does not calculate with ns that have one.  Both are read
    back to the same rows; bytes of a text that are not UTF-8 become ``\\xNN``.
    """

    def __init__(
        self,
        format: str,
        schema: Schema,
        out: Any,
        *,
        fields: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        readable: bool = False,
    ) -> None:
        pa = pyarrow(f"output format {format}")
        self.format, self.schema = format, schema if fields is None else schema.project(fields)
        self.layout = self.schema.layout
        self._absent = AbsentValues(schema, self.schema)
        message = arrow_meta.schema_message(self.schema, dict(metadata or {}))
        self._arrow = pa.ipc.read_schema(pa.py_buffer(message))
        self._columns = [self._column(pa, f, readable) for f in self.schema.fields]
        if readable:
            self._columns = [(first, words, [_zoneless(pa, a) for a in some]) for first, words, some in self._columns]
        self._arrow = pa.schema([a for _, _, arrows in self._columns for a in arrows], self._arrow.metadata)
        self._sink = pa.PythonFile(_File(out), mode="w")
        self._batches: list[Any] = []
        self._rows = 0
        if format != "parquet":
            make = pa.ipc.new_file if format == "arrow" else pa.ipc.new_stream
            self._writer: Any = make(self._sink, self._arrow)
        else:
            self._writer = None  # the first rows decide how columns are encoded

    def start(self) -> None:
        """Does nothing: the header was written when the file was opened."""

    def write(self, block: Block, picks: Picks | None = None) -> None:
        valid = self._absent.valid(block, picks)
        if block.layout is not self.layout:
            block = block.project(self.layout)
        if picks is not None:
            block = block.take(picks)
        if block.rows:
            self._batches.append(self._batch(block, valid))
            self._rows += block.rows
            if self._rows >= (GROUP if self.format == "parquet" else 65536):
                self.flush()

    def write_nullable(self, block: Block, valid: Mapping[int, bytes]) -> None:
        """A block with the validity bits of its columns by number, where they have nulls."""
        self._batches.append(self._batch(block, valid))
        self._rows += block.rows
        if self._rows >= GROUP:
            self.flush()

    def _column(self, pa: Any, field: Field, readable: bool) -> tuple[int, Any, list[Any]]:
        # Number of the first physical column; what makes its values texts, or None; the Arrow fields.
        first = self.schema.index(field.name)
        if readable and field.type.kind == "text":
            return first, _texts, [pa.field(field.name, pa.utf8())]
        if not readable or field.type.kind not in TEXTUAL:
            return first, None, [self._arrow.field(first + i) for i in range(len(field.columns))]
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        printer = Printer(self.layout, printing_plan(self.schema, [field.name], "tsv"), "tsv")

        def words(block: Block, column: int) -> Any:
            import pyarrow.compute as pc

            lines = pc.split_pattern(arrow_values.text(printer.lines(block)), "\n").values.slice(0, block.rows)
            return pc.if_else(pc.equal(lines, arrow_values.text(b"-")), arrow_values.text(None), lines)

        return first, words, [pa.field(field.name, pa.utf8())]

    def _batch(self, block: Block, valid: Mapping[int, bytes] | None = None) -> Any:
        import pyarrow as pa

        arrays = []
        for first, words, fields in self._columns:
            if words is not None:
                arrays.append(_without(words(block, first), (valid or {}).get(first)))
                continue
            for i, field in enumerate(fields, first):
                data = pa.py_buffer(bytes(block.buffer(i)))
                if pa.types.is_fixed_size_list(field.type):
                    values = pa.Array.from_buffers(
                        field.type.value_type, block.rows * field.type.list_size, [None, data]
                    )
                    arrays.append(pa.FixedSizeListArray.from_arrays(values, type=field.type))
                else:
                    bits = (valid or {}).get(i)
                    known = None if bits is None else pa.py_buffer(bits)
                    arrays.append(pa.Array.from_buffers(field.type, block.rows, [known, data]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def flush(self) -> None:
        """Write the rows gathered so far as one batch or row group."""
        if not self._batches:
            return
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches).combine_chunks()
        self._batches, self._rows = [], 0
        if self.format == "parquet":
            self._parquet(table).write_table(table, row_group_size=GROUP)
        else:
            for batch in table.to_batches():
                self._writer.write_batch(batch)

    def _parquet(self, table: Any) -> Any:
        """The writer; ``table``: the first rows."""
        if self._writer is None:
            from confluo_tools.formats.parquet_encoding import SAMPLE, column_encodings, parquet_writer

            dictionary, encodings = column_encodings(table)
            self._writer = parquet_writer(
                self._sink,
                self._arrow,
                self.schema,
                use_dictionary=dictionary,
                column_encoding=encodings or None,
                write_statistics=table.num_rows >= SAMPLE,  # to read fewer rows of a small file saves nothing
            )
        return self._writer

    def close(self) -> None:
        self.flush()
        if self._writer is None:
            self._parquet(self._arrow.empty_table())
        self._writer.close()
        self._sink.close()


def _fixed_width(type_: Any) -> bool:
    try:
        return bool(type_.bit_width)
    except ValueError:
        return False


def _zoneless(pa: Any, field: Any) -> Any:
    return field.with_type(pa.timestamp(field.type.unit)) if pa.types.is_timestamp(field.type) else field


def _without(words: Any, bits: bytes | None) -> Any:
    """``words``, null where a bit is 0."""
    if bits is None:
        return words
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.Array.from_buffers(pa.bool_(), len(words), [None, pa.py_buffer(bits)])
    return pc.if_else(known, words, arrow_values.text(None))


def _texts(block: Block, column: int) -> Any:
    data, size = bytes(block.buffer(column)), block.layout.describe(column)[2]
    values = [data[at : at + size].rstrip(b"\0") for at in range(0, len(data), size)]
    return arrow_values.texts([value.decode("utf-8", "backslashreplace").encode() or None for value in values])


class ArrowFileReader(Reader):
    """Rows of an Arrow file or of Parquet.  A pipe is read into memory, because both formats need seeks."""

    def __init__(
        self,
        stream: ByteStream,
        format: str,
        *,
        types: Schema | None = None,
        warn: Warn | None = None,
        tell: Warn | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(stream.name, warn)
        self.format = format
        pa = pyarrow(stream.name)
        self.stream = stream
        self._parquet: Any = None
        try:
            source: Any = None
            dictionaries = None
            if type(stream) is ObjectStream and format == "parquet":
                source = stream.file
            elif not stream.waits and stream.offset == 0 and type(stream) is ByteStream:
                source = pa.memory_map(f"/dev/fd/{stream.fd}")
            else:
                source = pa.BufferReader(pa.py_buffer(b"".join(iter(stream.some, b""))))
            if format == "arrow":
                reader: Any = pa.ipc.open_file(source)
                schema = reader.schema
                batches = self._guarded(self._ipc(reader))
            else:
                import pyarrow.parquet as pq

                reader = pq.ParquetFile(source, pre_buffer=type(stream) is not ObjectStream)
                schema = reader.schema_arrow
                if reader.num_row_groups > 1:
                    dictionaries = partial(self._dictionaries, reader)
                self._parquet = reader
                batches = self._columns(reader)
            self.metadata = {
                k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in (schema.metadata or {}).items()
            }
            exact = arrow_meta.schema_from_metadata(self.metadata)
            if exact is not None and format == "parquet":
                from confluo_tools.schema.descriptions import with_known

                exact = with_known(exact)
            only_foreign(rename, exact, self.name)
            known = known_fields(types, exact)
            self._foreign = Foreign(schema, batches, known, self.name, self._report, tell, rename, dictionaries)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as e:
            raise FormatError(f"is not a complete {format} file: {str(e).splitlines()[0]}", where=self.name) from None
        self.schema = self._foreign.schema

    def _report(self, what: str) -> None:
        if self._warn is not None:
            self._warn(what)

    def _ipc(self, reader: Any) -> Iterator[Any]:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)

    def _dictionaries(self, reader: Any, column: int) -> Iterator[Any]:
        # Each row group of Parquet has its own dictionary.  A second look at an object store costs
        # requests, so such a column stays text there.
        if type(self.stream) is ObjectStream:
            return
        name = reader.schema_arrow.names[column]
        before = None
        for batch in self._guarded(reader.iter_batches(batch_size=65536, columns=[name])):
            found = batch.column(0).dictionary
            if before is None or not found.equals(before):
                yield found
            before = found

    def _columns(
        self, reader: Any, names: Sequence[str] | None = None, groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        """The batches of these columns and row groups; None: of all."""
        schema = reader.schema_arrow
        types = schema.types if names is None else [schema.field(name).type for name in names]
        size = 65536 if all(map(_fixed_width, types)) else FEW
        if type(self.stream) is ObjectStream:
            return self._guarded(self._fetched(reader, size, names, groups))
        if groups is not None and not groups:
            return iter(())
        return self._guarded(reader.iter_batches(batch_size=size, columns=names, row_groups=groups))

    def _fetched(
        self, reader: Any, size: int, names: Sequence[str] | None, groups: Sequence[int] | None
    ) -> Iterator[Any]:
        stored = names or [column.path.split(".")[0] for column in reader.schema]
        ranges = ParquetRanges(self.stream.file, reader.metadata)  # type: ignore[attr-defined]
        wanted = range(reader.num_row_groups) if groups is None else groups
        ranges.plan(wanted, stored, ())
        for group in wanted:
            ranges.fetch(group, stored)
            yield from reader.iter_batches(batch_size=size, row_groups=[group], columns=names)

    def _guarded(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            yield from batches
        except (pa.ArrowInvalid, OSError) as e:
            what = e.strerror if isinstance(e, OSError) and e.strerror else f"is damaged: {str(e).splitlines()[0]}"
            raise FormatError(what, where=self.name) from None

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if self._parquet is None:
            if columns is not None:
                self._foreign.only({*columns, *expr.program.columns})
        elif self._foreign.clear and not (self._foreign.begun and type(self.stream) is ObjectStream):
            groups = self._possible(expr)
            needed = range(self.schema.layout.n) if columns is None else [*columns, *expr.program.columns]
            self._foreign.only({*needed}, partial(self._columns, self._parquet, groups=groups))
        yield from super().select(expr, columns, by_time=by_time)

    def _possible(self, expr: Any) -> list[int]:
        """The row groups that may have matching rows, by their statistics; the rows of the others count as read."""
        from confluo_tools.formats.parquet_zones import ParquetZones

        known, groups = ParquetZones(self._parquet), []
        given = self._foreign.given.items()
        whole = {i: name for i, name in given if self.schema.columns[i].field.type.base[0] != "f"}

        def held(group: int) -> bool:
            return bool(expr.possible(lambda column: known.zone(group, whole.get(column, ""))))

        for group in range(self._parquet.num_row_groups):
            if held(group):
                groups.append(group)
            else:
                self.rows += self._parquet.metadata.row_group(group).num_rows
        return groups

    def blocks(self) -> Iterator[Block]:
        yield from self._foreign

    def close(self) -> None:
        self.stream.close()
