"""Parts of an archive: Parquet files with the rows of one lane of one log in one hour, sorted by time.

A part is an ordinary Parquet file (zstd, dictionaries, statistics, page checksums) with the columns of the log and
one more, ``log_row``: the number of the row in its lane.  Its path contains the other attributes:

    host=NAME/date=2026-11-20/hour=13/UUID-LANE-FIRST-END.parquet

Rows FIRST to END - 1 of the lane were archived together (a batch); the part has those of this hour.
A field named like a partition (host, date, hour) has a ``_`` appended to its name in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.formats import arrow_meta, arrow_values
from confluo_tools.formats.arrow_foreign import pyarrow
from confluo_tools.formats.parquet_columns import ParquetColumns, held, mapped
from confluo_tools.formats.parquet_encoding import parquet_writer
from confluo_tools.formats.parquet_ranges import ParquetRanges
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.descriptions import with_known

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.objects.remote_file import RemoteFile

ROW = "log_row"
HOUR = 3_600_000_000_000
GROUP = 1 << 17  # rows of a row group, the unit that statistics can skip
BLOCK_ROWS = 65536
SAMPLE = 1 << 14
MAX_PARTS = 4096  # maximum number of different hours in one batch
_PARTITION = re.compile(r"(host|date|hour)_*$")
_NAME = re.compile(r"([0-9a-f]{32})-(\d{3,4})-(\d{16,20})-(\d{16,20})\.parquet$")
_DATE = re.compile(r"date=(-?\d{4,6})-(\d\d)-(\d\d)$")
_HOUR = re.compile(r"hour=(\d\d?)$")


class PartName(NamedTuple):
    """The attributes in the path of a part: rows ``first`` to ``end`` - 1 are the batch; ``hour`` is since 1970 UTC."""

    host: str
    hour: int
    uuid: str
    lane: int
    first: int
    end: int

    @property
    def batch(self) -> tuple[str, int, int, int]:
        return self.uuid, self.lane, self.first, self.end

    @property
    def path(self) -> str:
        """Relative to the archive."""
        from confluo_tools.units import civil_from_days

        days, hour = divmod(self.hour, 24)
        year, month, day = civil_from_days(days)
        folder = f"host={quote(self.host, safe='')}/date={year:04d}-{month:02d}-{day:02d}/hour={hour:02d}"
        return f"{folder}/{self.uuid}-{self.lane:03d}-{self.first:016d}-{self.end:016d}.parquet"


def host_of(folder: str) -> str | None:
    """``host=NAME`` -> NAME."""
    return unquote(folder[5:]) if folder.startswith("host=") and len(folder) > 5 else None


def day_of(folder: str) -> int | None:
    """``date=2026-11-20`` -> days since 1970."""
    from confluo_tools.units import days_from_civil

    match = _DATE.match(folder)
    return None if match is None else days_from_civil(int(match[1]), int(match[2]), int(match[3]))


def hour_of(folder: str) -> int | None:
    match = _HOUR.match(folder)
    return int(match[1]) if match and int(match[1]) < 24 else None


def batch_of(name: str) -> tuple[str, int, int, int] | None:
    """(uuid, lane, first, end) from the file name of a part; None for another file."""
    match = _NAME.match(name)
    return None if match is None else (match[1], int(match[2]), int(match[3]), int(match[4]))


def extended(schema: Schema) -> Schema:
    """The schema of a part: the fields of ``schema`` under their names in the file, then `ROW`.  Raises SchemaError."""
    if ROW in schema:
        raise SchemaError(f"field name '{ROW}' is reserved for archives", hint="rename it")
    fields = [_named(f, f.name + "_" if _PARTITION.match(f.name) else f.name) for f in schema.fields]
    fields.append(Field(ROW, "u64", "", "number of the row in its lane of the log"))
    return Schema(schema.kind, fields, schema.description)


def _named(f: Field, name: str) -> Field:
    return Field(name, f.type, f.unit, f.description, f.names, f.version, f.optional)


def arrow_types(schema: Schema) -> list[Any]:
    """The Arrow types of the columns."""
    types: list[Any] = _arrow_schema(schema, {}).types
    return types


def _arrow_schema(schema: Schema, metadata: Mapping[str, str]) -> Any:
    pa = pyarrow("an archive")
    return pa.ipc.read_schema(pa.py_buffer(arrow_meta.schema_message(schema, dict(metadata))))


def _wrap(type_: Any, buffer: Any, rows: int) -> Any:
    # An Arrow array over the bytes of a column of a block, without copying.
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        values = pa.Array.from_buffers(type_.value_type, rows * type_.list_size, [None, buffer])
        return pa.FixedSizeListArray.from_arrays(values, type=type_)
    return pa.Array.from_buffers(type_, rows, [None, buffer])


def _bytes(array: Any, width: int) -> Any:
    # The reverse of `_wrap`: the buffer of the values of an array, ``width`` bytes each.
    import pyarrow as pa

    rows = len(array)
    if array.null_count:
        raise pa.ArrowInvalid("has nulls")
    if pa.types.is_fixed_size_list(array.type):
        count = array.type.list_size
        array, width = array.flatten(), width // count
        rows *= count
        if len(array) != rows or array.null_count:
            raise pa.ArrowInvalid("has lists of the wrong length")
    return array.buffers()[1].slice(array.offset * width, rows * width)


class PartBuilder:
    """Collects rows of one lane and writes them as parts; ``schema`` is that of the log."""

    def __init__(self, schema: Schema) -> None:
        self.schema = extended(schema)
        self.rows = 0
        self._arrow = _arrow_schema(self.schema, {})
        self._widths = [c.size * c.count for c in self.schema.columns]
        self._batches: list[Any] = []
        self._numbers: Any = None
        assert schema.time_field is not None
        self._time = schema.index(schema.time_field.name)

    def add(self, block: Block, base: int) -> None:
        """Add the rows of ``block``, starting with row ``base`` of the lane.  The bytes are not copied."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._numbers is None:
            self._numbers = arrow_values.numbers(range(BLOCK_ROWS), pa.uint64())
        arrays = [
            _wrap(f.type, pa.py_buffer(block.buffer(i)), block.rows)
            for i, f in enumerate(self._arrow)
            if i < self.schema.layout.n - 1
        ]
        arrays.append(pc.add(self._numbers.slice(0, block.rows), arrow_values.numbers([base], pa.uint64())[0]))
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._arrow))
        self.rows += block.rows

    def split(self) -> tuple[bool, list[tuple[int, Any]]]:
        """Returns (whether the rows were in time order, [(hour, table sorted by time)]) and empties the builder.

        Raises FormatError when the rows span too many hours.
        """
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches, self._arrow)  # shares the memory of the blocks
        self._batches, self.rows = [], 0
        ordered, table = self._by_time(table)
        times = self._times(table)
        parts = []
        at = 0
        while at < len(times):
            hour = times[at].as_py() // HOUR
            end = _bound(times, at, (hour + 1) * HOUR)
            parts.append((hour, table.slice(at, end - at)))
            at = end
            if len(parts) > MAX_PARTS:
                what = f"has rows of more than {MAX_PARTS:,} different hours in one batch"
                raise FormatError(what, hint="are their times right?")
        return bool(ordered), parts

    def joined(self, tables: Sequence[Any]) -> tuple[bool, Any]:
        """Parts of one hour in row order as one table sorted by time, and whether their rows were in that order.

        Columns that a part lacks are zero.
        """
        import pyarrow as pa

        whole = []
        for table in tables:
            columns = [
                table.column(f.name)
                if f.name in table.column_names
                else _wrap(f.type, pa.py_buffer(bytes(width * table.num_rows)), table.num_rows)
                for f, width in zip(self._arrow, self._widths, strict=True)
            ]
            whole.append(pa.Table.from_arrays(columns, schema=self._arrow))
        return self._by_time(pa.concat_tables(whole).combine_chunks())

    def _by_time(self, table: Any) -> tuple[bool, Any]:
        # Whether the rows are in the order of time; the table, sorted if they are not.
        import pyarrow.compute as pc

        times = self._times(table)
        if len(times) < 2 or pc.all(pc.less_equal(times.slice(0, len(times) - 1), times.slice(1))).as_py():
            return True, table
        keys = [(self._arrow.names[self._time], "ascending"), (ROW, "ascending")]
        return False, table.take(pc.sort_indices(table, sort_keys=keys))

    def _times(self, table: Any) -> Any:
        import pyarrow as pa

        return _whole(table.column(self._time)).view(pa.int64())

    def span(self, table: Any) -> tuple[int, int]:
        """The first and the last time of a table that is sorted by time and has rows."""
        times = self._times(table)
        return times[0].as_py(), times[-1].as_py()

    def _columns(self, table: Any) -> Iterator[Any]:
        for i, width in enumerate(self._widths):
            yield _bytes(_whole(table.column(i)), width)

    def encode(self, table: Any, metadata: Mapping[str, str]) -> memoryview:
        """The bytes of one part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _arrow_schema(self.schema, metadata)
        time = self._arrow.names[self._time]
        out = pa.BufferOutputStream()
        writer = parquet_writer(
            out,
            schema,
            self.schema,
            use_dictionary=self._repeated(table),
            write_statistics=True,
            column_encoding={time: "DELTA_BINARY_PACKED", ROW: "DELTA_BINARY_PACKED"},
            write_page_index=True,
            sorting_columns=pq.SortingColumn.from_ordering(schema, [(time, "ascending")]),
            write_page_checksum=True,
        )
        writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=GROUP)
        writer.close()
        return memoryview(out.getvalue()).cast("B")

    def _repeated(self, table: Any) -> list[str]:
        # Columns for which a dictionary saves space, judged by the first rows.  Not floats: a dictionary would unify
        # all NaN.  Not times and row numbers: delta encoding is smaller.
        import pyarrow.compute as pc

        sample = table.slice(0, SAMPLE)
        return [
            c.name
            for i, c in enumerate(self.schema.columns)
            if not c.field.type.is_float
            and not c.field.type.is_list
            and i != self._time
            and c.name != ROW
            and 2 * pc.count_distinct(sample.column(i)).as_py() <= sample.num_rows
        ]

    def same(self, read: bytes, table: Any, written: memoryview) -> bool:
        """Whether what was ``read`` back equals ``written`` and has the rows of ``table`` byte for byte."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            data = pa.py_buffer(read)
            if not data.equals(pa.py_buffer(written)):
                return False
            with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as part:
                schema = part.schema_arrow
                if schema.names != self._arrow.names or schema.types != self._arrow.types:
                    return False
                at = 0
                for group in range(part.num_row_groups):
                    back = part.read_row_group(group, use_threads=False)
                    given = table.slice(at, back.num_rows)
                    at += back.num_rows
                    if not all(a.equals(b) for a, b in zip(self._columns(back), self._columns(given), strict=True)):
                        return False
                return bool(at == table.num_rows)
        except (pa.ArrowInvalid, OSError):
            return False


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bound(times: Any, at: int, limit: int) -> int:
    # The first index from `at` on with a time of at least `limit`.
    end = len(times)
    if times[end - 1].as_py() < limit:
        return end
    while at < end:
        middle = (at + end) // 2
        if times[middle].as_py() < limit:
            at = middle + 1
        else:
            end = middle
    return at


class ParquetPart:
    """A part, open for reading.  Raises FormatError when it is not a part or is damaged; OSError."""

    def __init__(self, path: str, file: RemoteFile | None = None) -> None:
        """``file``: the object, if ``path`` is a URL."""
        pa = pyarrow(path)
        import pyarrow.parquet as pq

        self.path = path
        try:
            source = pa.memory_map(path) if file is None else file
            self._file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            self._columns = ParquetColumns(self._file, mapped(source) if file is None else held(file))
            self._arrow = self._file.schema_arrow
            self._ranges = None if file is None else ParquetRanges(file, self._file.metadata)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as e:
            if isinstance(e, OSError) and e.errno is not None:
                raise
            raise FormatError(f"is not a complete Parquet file: {str(e).splitlines()[0]}", where=path) from None
        self.metadata = _as_text(self._arrow.metadata)
        self.rows: int = self._file.metadata.num_rows
        self.groups: int = self._file.metadata.num_row_groups
        self._types = dict(zip(self._arrow.names, self._arrow.types, strict=True))
        self._leaves: dict[str, int] | None = None

    def close(self) -> None:
        self._file.close(force=True)
        if self._ranges is not None:
            self._ranges.close()

    def plan(self, groups: Sequence[int], schema: Schema, first: Sequence[int], rest: Sequence[int]) -> None:
        """These row groups will be read: columns ``first``, and those of ``rest`` where a row matches.

        Of an object, some are read at once.  Raises OSError.
        """
        if self._ranges is not None:
            self._ranges.plan(groups, *([schema.columns[i].name for i in some] for some in (first, rest)))

    @property
    def in_time_order(self) -> bool:
        """Whether the rows of the batch were in the order of time: then its parts follow one another."""
        return self.metadata.get("confluo:ordered") == "1"

    @property
    def schema(self) -> Schema:
        """The schema of the log that the rows are from, without `ROW`."""
        return schema_of(self.metadata, self.path)

    def group_rows(self, group: int) -> int:
        rows: int = self._file.metadata.row_group(group).num_rows
        return rows

    def zone(self, group: int, name: str, unsigned: int = 0) -> tuple[Any, Any] | None:
        """(smallest, largest) value of a column in a row group; None if the file has no statistics.

        ``unsigned``: number of bits of an unsigned column.  NaN is ignored.
        """
        if self._leaves is None:
            file = self._file.metadata.row_group(0) if self.groups else None
            self._leaves = (
                {}
                if file is None
                else {file.column(j).path_in_schema.split(".")[0]: j for j in range(file.num_columns)}
            )
        at = self._leaves.get(name)
        stats = None if at is None else self._file.metadata.row_group(group).column(at).statistics
        if stats is None or not stats.has_min_max:
            return None
        lo, hi = stats.min_raw, stats.max_raw
        if unsigned and isinstance(lo, int) and isinstance(hi, int):
            lo, hi = lo & (1 << unsigned) - 1, hi & (1 << unsigned) - 1
        return lo, hi

    def read(
        self, group: int, schema: Schema, types: Sequence[Any], columns: Sequence[int], wanted: bytearray | None = None
    ) -> dict[int, Any]:
        """{column: bytes} of ``columns`` (numbers in the `extended` ``schema``) of a row group, without missing ones.

        ``types``: `arrow_types` of the schema.  ``wanted``: a byte for each 1,024 rows; where it is 0, values may be
        zeros instead.  Raises FormatError when a column is damaged or has another type.
        """
        import pyarrow as pa

        names = {schema.columns[i].name: i for i in columns if schema.columns[i].name in self._types}
        if not names:
            return {}
        out = {}
        if self._ranges is not None:
            try:
                self._ranges.fetch(group, list(names))
            except OSError as e:
                raise FormatError(f"cannot be read: {e.strerror or e}", where=self.path) from None
        try:
            for name, i in names.items():
                if self._types[name] != types[i]:
                    raise pa.ArrowInvalid(f"column {name} is of type {self._types[name]}, not {types[i]}")
                width = schema.columns[i].size * schema.columns[i].count
                found = self._columns.read(group, name, types[i], width, wanted)
                if found is None:
                    table = self._file.read_row_group(group, columns=[name], use_threads=False)
                    found = _bytes(_whole(table.column(name)), width)
                out[i] = found
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, OSError) as e:
            raise FormatError(f"is damaged: {str(e).splitlines()[0]}", where=self.path) from None
        return out


def schema_of(metadata: Mapping[Any, Any] | None, path: str) -> Schema:
    """The schema of the log, from the metadata of the part at ``path``.  Raises FormatError."""
    found = arrow_meta.schema_from_metadata(_as_text(metadata))
    if found is None or ROW not in found:
        raise FormatError("is not part of an archive", where=path)
    found = with_known(found)
    fields = [
        _named(f, f.name[:-1] if f.name.endswith("_") and _PARTITION.match(f.name) else f.name)
        for f in found.fields
        if f.name != ROW
    ]
    return Schema(found.kind, fields, found.description)


def _as_text(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    pairs = (metadata or {}).items()
    return {
        key if isinstance(key, str) else key.decode("utf-8", "replace"): (
            value if isinstance(value, str) else value.decode("utf-8", "replace")
        )
        for key, value in pairs
    }


def blocks(schema: Schema, rows: int, buffers: Mapping[int, Any]) -> Iterator[Block]:
    """Blocks of at most 65,536 rows over whole columns, without copying."""
    from confluo_tools.core.block.block import Block

    widths = [c.size * c.count for c in schema.columns]
    for start in range(0, rows, BLOCK_ROWS):
        n = min(BLOCK_ROWS, rows - start)
        yield Block.wrap(
            schema.layout,
            n,
            [buffers[i].slice(start * w, n * w) if i in buffers else None for i, w in enumerate(widths)],
        )


def in_row_order(schema: Schema, pieces: Sequence[Block]) -> Iterator[Block]:
    """Sort blocks of an `extended` schema by `ROW`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow = _arrow_schema(schema, {})
    batches = [
        pa.RecordBatch.from_arrays(
            [_wrap(f.type, pa.py_buffer(bytes(b.buffer(i))), b.rows) for i, f in enumerate(arrow)], schema=arrow
        )
        for b in pieces
    ]
    if not batches:
        return
    table = pa.Table.from_batches(batches, arrow)
    table = table.take(pc.sort_indices(table, sort_keys=[(ROW, "ascending")])).combine_chunks()
    columns = {}
    for i, c in enumerate(schema.columns):
        columns[i] = _bytes(_whole(table.column(i)), c.size * c.count)
    yield from blocks(schema, table.num_rows, columns)
