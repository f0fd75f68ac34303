"""The answer to a question: rows in batches, for Python and for every library that takes Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.api.arrow import ArrowForm
    from confluo_tools.core.block.arrow_export import ArrowStream
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema


class Run(NamedTuple):
    """One pass over the rows: their schema, what is known of their origin, and blocks with just these rows.

    ``read``: the schema of the blocks: that of the rows, and behind it the versions of addresses that are not wanted
    themselves.  An IPv4 address 0.0.0.0 is only known from an absent one by its version.
    """

    schema: Schema
    read: Schema
    metadata: Mapping[str, str]
    blocks: Iterator[Block]


def run_of(
    reader: Reader, schema: Schema, names: Sequence[str] | None, pairs: Iterable[tuple[Block, Picks | None]]
) -> Run:
    """A pass over the picked rows of blocks of ``schema``, which are those of ``reader``; it closes the reader.

    ``names``: the fields that are wanted, None: all.
    """
    read = shown = schema
    if names is not None:
        shown, read = schema.project(names), schema.project(schema.with_versions(names))

    def blocks() -> Iterator[Block]:
        layout = read.layout
        with reader:
            for block, picks in pairs:
                part = block if block.layout is layout else block.project(layout)
                yield part if picks is None else part.take(picks)

    return Run(shown, read, reader.metadata, blocks())


class Batch:
    """Up to 65,536 rows, column by column; its memory stays valid as long as the batch or a column is used.

    ``batch["len"]`` is a column as a memoryview of numbers; numpy takes it with no copy (``np.asarray``).  Columns of
    bytes and texts are bytes, N for each row; an ip field has two columns, NAME and NAME6 (docs/python.md).
    """

    def __init__(self, schema: Schema, block: Block, form: ArrowForm) -> None:
        self.schema, self._block, self._form = schema, block, form

    def __len__(self) -> int:
        return self._block.rows

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows of {self.schema.kind})"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [c.name for c in self.schema.columns]

    def __getitem__(self, name: str) -> memoryview:
        """The column ``name``.  Raises SchemaError if there is none."""
        i = self.schema.index(name)
        column = self.schema.columns[i]
        raw: Any = self._block.buffer(i)  # for memoryview, mypy wants the code to be known
        plain = column.code <= len(ARRAY_CODES)
        wide = column.count if plain else column.size
        shape = (len(self), wide) if len(self) and not (plain and wide == 1) else None
        view: memoryview = raw.cast(ARRAY_CODES[column.code - 1] if plain else "B", *([shape] if shape else []))
        return view

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as ``confluo-query -o ndjson`` prints them: addresses, names and times as text, absent as None."""
        import json

        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        read = self._form.read
        plan = printing_plan(read, [f.name for f in self.schema.fields], "ndjson")
        lines = Printer(read.layout, plan, "ndjson").lines(self._block)
        return [json.loads(line) for line in lines.splitlines()]

    def __arrow_c_schema__(self) -> object:
        return self._form.shape.schema()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """A record batch, with no copy of numbers.  Any ``requested_schema`` is declined, as the protocol allows."""
        return self._form.shape.schema(), self._form.shape.array(*self._form.exported(self._block))


class Answer:
    """The rows of an answer.  They are read when they are used, batch by batch.

    Iterate for `Batch` after `Batch`, or hand it to any library that takes Arrow streams: ``pyarrow.table(rows)``,
    ``polars.DataFrame(rows)``, ``duckdb.sql("from rows")``.  Each use reads again: the rows of a MultiLog at the same
    version, other inputs as they are then.
    """

    def __init__(
        self, first: Run, again: Callable[[], Run], *, readable: bool, zone: bool = True, gather: bool = True
    ) -> None:
        self.schema: Schema = first.schema
        self._read = first.read
        self._first: Run | None = first
        self._again, self._readable, self._zone, self._gather = again, readable, zone, gather
        self._metadata = dict(first.metadata)

    def __repr__(self) -> str:
        return f"Answer({', '.join(f.name for f in self.schema.fields)})"

    @cached_property
    def _form(self) -> ArrowForm:
        from confluo_tools.api.arrow import ArrowForm

        return ArrowForm(self.schema, self._metadata, read=self._read, readable=self._readable, zone=self._zone)

    def _blocks(self) -> Iterator[Block]:
        run, self._first = self._first or self._again(), None
        return gathered(run.read, run.blocks) if self._gather else run.blocks

    def __iter__(self) -> Iterator[Batch]:
        """The rows, batch by batch.  Raises ConfluoError."""
        for block in self._blocks():
            yield Batch(self.schema, block, self._form)

    def __arrow_c_schema__(self) -> object:
        return self._form.shape.schema()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """An Arrow stream.  Any ``requested_schema`` is declined, as the protocol allows."""
        return self.stream().capsule()

    def stream(self) -> ArrowStream:
        """An Arrow stream with its error."""
        from confluo_tools.core.block.arrow_export import ArrowStream

        return ArrowStream(self._form.shape, map(self._form.exported, self._blocks()))

    def to_arrow(self) -> Any:
        """A pyarrow.Table; numbers are not copied.  Raises ConfluoError, also without pyarrow."""
        pa = _library("pyarrow")
        stream = self.stream()
        try:
            return pa.RecordBatchReader.from_stream(Exporter(stream)).read_all()
        except (pa.ArrowException, OSError):
            if stream.error is not None:
                raise stream.error from None
            raise

    def to_pandas(self, **options: Any) -> Any:
        """A pandas.DataFrame, made by pyarrow with ``options`` (those of ``pyarrow.Table.to_pandas``)."""
        _library("pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """A polars.DataFrame.  Raises ConfluoError, also without Polars."""
        polars = _library("polars")
        stream = self.stream()
        try:
            return polars.DataFrame(Exporter(stream))
        except Exception:
            if stream.error is not None:
                raise stream.error from None
            raise

    def to_dicts(self) -> list[dict[str, Any]]:
        """All rows as `Batch.to_dicts` gives them: for small answers."""
        return [row for batch in self for row in batch.to_dicts()]


class Exporter:
    """An object with an Arrow stream to give, once."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._stream.capsule()


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfluoError(f"needs {name}", hint=f"pip install {name}") from None


def gathered(schema: Schema, blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows in the same order, with small blocks put together."""
    from confluo_tools.formats.gather import Gatherer

    gatherer = Gatherer(schema.layout)
    for block in blocks:
        yield from gatherer.add(block)
    yield from gatherer.rest()
