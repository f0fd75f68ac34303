"""Rows into a MultiLog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.api.answer import Answer, Batch, Exporter
from confluo_tools.api.messages import listen
from confluo_tools.errors import ConfluoError, FormatError, SchemaError, StoreError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

_NO_NAME = re.compile(r"__index_level_\d+__")  # what pandas calls an index without a name, as a part of a frame has it


class Writer:
    """Appends rows to the MultiLog at ``path``; a context manager.

    ``schema``: a `Schema`, the name of a built-in one or the path of one, for a log that is not there yet; it is then
    made.  Each writer has a lane of its own, so several programs may write one log.
    ``sync``: 'none', 'seal' or 'batch', as --sync of confluo-capture(1); None: the mode of the log.
    Raises StoreError, SchemaError, DiskFullError, BusyError.
    """

    def __init__(
        self, path: str | os.PathLike[str], schema: Schema | str | None = None, *, sync: str | None = None
    ) -> None:
        from confluo_tools import multilog

        listen()
        self.path = os.fspath(path)
        if isinstance(schema, str):
            from confluo_tools.schema import named

            schema = named(schema)
        if multilog.is_log(self.path):
            log = multilog.open(self.path)
            if schema is not None and schema.kind != log.schema.kind:
                raise StoreError(f"holds records of kind '{log.schema.kind}', not '{schema.kind}'", where=self.path)
        elif schema is None:
            raise StoreError("there is no such MultiLog", where=self.path, hint="give a schema, and it is made")
        else:
            log = multilog.create(self.path, schema, sync=sync or "none")
        self.schema: Schema = log.schema
        self.rows = 0  # rows written
        self._log = log
        self._writer = log.writer(sync=sync)

    def append(self, rows: Any) -> int:
        """Append rows and publish them; returns their number.

        ``rows``: a `Batch` or an `Answer`; anything that gives Arrow data (a table of pyarrow or Polars, a DuckDB
        relation, a pandas.DataFrame); or dictionaries {field: value} with values as -o ndjson prints them, times also
        as ns since 1970 or datetime, and bytes as bytes.  What a row lacks is absent.
        Raises FormatError for something without rows, SchemaError for a field of another type, DiskFullError: rows
        before the one that did not fit are published.
        """
        before = self.rows
        for block in self._blocks(rows):
            self._writer.append(block.project(self.schema.layout))
            self.rows += block.rows
        return self.rows - before

    def _blocks(self, rows: Any) -> Iterator[Block]:
        if isinstance(rows, Batch):
            self._check(rows.schema)
            yield rows._block.project(rows.schema.layout)
        elif isinstance(rows, Answer):
            yield from self._answer(rows)
        elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            yield from self._arrow(rows)
        elif isinstance(rows, Mapping):
            raise UsageError("append() takes several rows", hint="append([row])")
        elif isinstance(rows, Iterable):
            from confluo_tools.api.dictionary_rows import blocks_of_dictionaries

            yield from blocks_of_dictionaries(self.schema, rows, "append()")
        else:
            raise FormatError(f"{type(rows).__name__} has no rows", hint="give Arrow data or dictionaries")

    def _arrow(self, rows: Any) -> Iterator[Block]:
        from confluo_tools.formats.arrow_foreign import pyarrow

        pa = pyarrow("append()")
        try:
            yield from self._arrow_blocks(pa, rows)
        except pa.ArrowException as e:
            what = f"{type(rows).__name__} cannot be read as rows: {str(e).strip().partition(chr(10))[0]}"
            raise FormatError(what, where="append()", hint="give Arrow data with named columns") from None

    def _answer(self, rows: Answer) -> Iterator[Block]:
        stream = rows.stream()
        try:
            yield from self._arrow(Exporter(stream))
        except (ConfluoError, OSError):
            if stream.error is not None:
                raise stream.error from None
            raise

    def _arrow_blocks(self, pa: Any, rows: Any) -> Iterator[Block]:
        from confluo_tools.formats.arrow_foreign import Foreign

        stream = hasattr(rows, "__arrow_c_stream__")
        table = pa.RecordBatchReader.from_stream(rows) if stream else pa.table(pa.record_batch(rows)).to_reader()
        names = table.schema.names
        kept = [i for i, name in enumerate(names) if self._knows(name) or not _NO_NAME.fullmatch(name)]
        unknown = [names[i] for i in kept if not self._knows(names[i])]
        if unknown:
            raise FormatError(f"the log has no field '{unknown[0]}'", where=self.path, hint="leave the column out")
        schema = pa.schema([table.schema.field(i) for i in kept], metadata=table.schema.metadata)
        self._check_given(schema)
        from confluo_tools.console import tell, warn

        batches = (batch.select(kept) for batch in table) if len(kept) < len(names) else iter(table)
        yield from Foreign(schema, batches, self.schema, "append()", warn, tell)

    def _check_given(self, given: Any) -> None:
        # Columns of numbers that an answer or a batch gave: texts are compared with the names of the log.
        text = (given.metadata or {}).get(b"confluo:schema")
        if text is None:
            return
        import json

        from confluo_tools.schema import Schema

        schema = Schema.from_dict(json.loads(text), "append()")
        names = [f.name for f in schema.fields if f.name in given.names and "int" in str(given.field(f.name).type)]
        if names:
            self._check(schema.project(names))

    def _check(self, given: Schema) -> None:
        """Raise SchemaError unless the values of ``given`` mean the same in the log."""
        from confluo_tools.schema.schema_fit import with_names

        for field in given.fields:
            if field.name in self.schema and field.type != self.schema[field.name].type:
                what = f"has field {field.name} as {self.schema[field.name].type.text}, not {field.type.text}"
                raise SchemaError(what, where=self.path)
        whole = with_names(self.schema, self.path, given, "append()", "append them with readable=True")
        for field in whole.fields:
            new = [name for value, name in field.names.items() if value not in self.schema[field.name].names]
            if new:
                raise SchemaError(f"has no name '{new[0]}' in field {field.name}", where=self.path)

    def _knows(self, name: str) -> bool:
        return any(name == column.name for column in self.schema.columns)

    def close(self) -> None:
        """Seal the rows and free the lane.  A second call does nothing."""
        self._writer.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, value, trace)
        self._log.close()
