"""Merges several logs into one reader: the union of their fields, rows by time, and the host of each row.

Kinds must be equal.  The fields are those of the first log, then additional ones of later logs; a field that a log
lacks is zero (absent) in its rows.  A field that two logs store in different types is an error.
Rows are ordered by time, ties by input, and within an input in its own order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from confluo_tools.errors import ConfluoError, SchemaError, UsageError
from confluo_tools.formats.reader import Reader, Warn, Wrapper
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.schema_fit import ONE_BY_ONE, with_names

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup

    Chosen = TypeVar("Chosen", Picks, Picks | None)

HOST = "host"
HOST_BYTES = 64
BLOCK_ROWS = 65536
SOON = 0.02  # seconds that merged rows may wait until a block is full


def host_field() -> Field:
    return Field(HOST, f"text({HOST_BYTES})", "", "where the record was taken")


def with_host(schema: Schema) -> Schema:
    """The schema with `host` as its last field; one that has such a field already stays as it is."""
    return schema if HOST in schema else schema.plus([host_field()])


def united(schemas: Sequence[tuple[str, Schema]]) -> Schema:
    """One schema for the rows of several inputs, each (name, schema).  Raises SchemaError naming two that differ."""
    name, first = schemas[0]
    fields = {f.name: (f, name) for f in first.fields}
    found = first
    for other, schema in schemas[1:]:
        if schema.kind != first.kind:
            what = f"holds records of kind '{schema.kind}', {name} of kind '{first.kind}'"
            raise SchemaError(what, where=other, hint=ONE_BY_ONE)
        for field in schema.fields:
            known = fields.setdefault(field.name, (field, other))
            if known[0].type != field.type:
                what = f"stores '{field.name}' as {field.type.text}, {known[1]} as {known[0].type.text}"
                raise SchemaError(what, where=other, hint=ONE_BY_ONE)
        more = [field for field in schema.fields if field.name not in found]
        found = with_names(found.plus(more) if more else found, name, schema, other)
    return found


class Shaped(Wrapper):
    """The rows of ``reader`` with the fields of ``schema``: those that it lacks are zero, or, for `host`, constant.

    ``host``: the value of a last field `host` that ``schema`` has and the input has not; None when there is none.
    """

    def __init__(self, reader: Reader, schema: Schema, host: str | None = None) -> None:
        super().__init__(reader, reader._warn)
        self.schema, self.by_time = schema, reader.by_time
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        own, ours = ([(c.name, c.code, c.size, c.count) for c in s.columns] for s in (reader.schema, schema))
        n = len(own)
        # Its own fields first, in its order: then it can evaluate an expression on these itself.
        self._same = ours[:n] == own
        self._plain = self._same and len(ours) == n
        self._column, self._host = -1, b""
        if host is not None and HOST not in reader.schema and HOST in schema:
            self._column = schema.index(HOST)
            size = schema.columns[self._column].size
            self._host = host.encode("utf-8", "surrogateescape")[:size].ljust(size, b"\0") * BLOCK_ROWS
            self._size = size

    def shape(self, block: Block) -> Block:
        """A block of the input, converted to this schema."""
        from confluo_tools.core.block.block import Block as Make

        layout = self.schema.layout
        if self._plain:
            return block
        if self._column < 0:
            return block.project(layout)
        if not self._same or self._column != layout.n - 1 or block.layout.n != layout.n - 1:
            block = block.project(layout)
        buffers: list[Any] = [block.buffer(i) for i in range(layout.n) if i != self._column]
        buffers.insert(self._column, memoryview(self._host)[: block.rows * self._size])
        return Make.wrap(layout, block.rows, buffers)

    def blocks(self) -> Iterator[Block]:
        for block in self.reader:
            yield self.shape(block)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        own = self._own(expr)
        if own is None:
            yield from super().select(expr, columns, by_time=by_time)
            return
        n = len(self.reader.schema.columns)
        inner = None if columns is None or not self._same else [c for c in columns if c < n]
        before = self.reader.rows
        for block, picks in self.reader.select(own, inner, by_time=by_time):
            yield self.shape(block), picks
        self.rows += self.reader.rows - before

    def count(self, expr: Any) -> int:
        own = self._own(expr)
        if own is None:
            return super().count(expr)
        found = self.reader.count(own)
        self.rows += self.reader.rows
        return found

    def _own(self, expr: Any) -> Any:
        """The expression for the input's own indexes and zone maps; None if it cannot evaluate it."""
        if not (self._same and set(expr.fields) <= {f.name for f in self.reader.schema.fields}):
            return None
        return type(expr)(expr.text, self.reader.schema, expr.syntax, expr.tree, expr.notes, expr.demands)


Ranked = tuple["Block", "Picks | None", int]


def merged(
    schema: Schema, streams: Sequence[Iterator[tuple[Block, Chosen]]], columns: Sequence[int] | None
) -> Iterator[tuple[Block, Chosen | Picks]]:
    """Streams of rows by time, ties by stream, each in its own order; a single one is passed through as it is.

    ``columns``: those that are wanted, with the time; None: all.  Without a time one stream follows the other.
    """
    if len(streams) < 2 or schema.time_field is None:
        for stream in streams:
            yield from stream
        return

    def ranked(stream: Iterator[tuple[Block, Chosen]], rank: int) -> Iterator[Ranked]:
        for block, picks in stream:
            yield block, picks, rank

    yield from by_time(schema, [ranked(stream, i) for i, stream in enumerate(streams)], columns)


def by_time(
    schema: Schema, streams: Sequence[Iterator[Ranked]], columns: Sequence[int] | None
) -> Iterator[tuple[Block, Picks]]:
    """Streams of (block, picks, rank) by time, rows of equal time by rank, then by their place in the block.

    Within a block the rows may be in any order; no row of a stream is earlier than those of its blocks before.
    Rows are copied into blocks of their own, except where a block comes next as it is.  A block is yielded before any
    stream is read again.
    """
    from confluo_tools.core.block.block import Picks as Make
    from confluo_tools.core.multilog.log_scan import LaneMerger, in_time_order

    if not streams or schema.time_field is None:
        return
    time_column = schema.index(schema.time_field.name)
    if len(streams) == 1:
        for block, picks, rank in streams[0]:
            picks = Make.of(block.rows) if picks is None else picks
            if in_time_order(block, picks, time_column):
                yield block, picks
            else:
                yield from by_time(schema, [iter([(block, picks, rank)]), iter(())], columns)
        return
    merger = LaneMerger(schema.layout, len(streams), time_column, columns)

    def feed(i: int) -> None:
        block, picks, rank = next(streams[i], (None, None, 0))
        merger.load(i, block, Make.of(block.rows) if block is not None and picks is None else picks, rank)

    for i in range(len(streams)):
        feed(i)
    due = 0.0
    while True:
        i = merger.whole
        if i >= 0:
            before = merger.flush()
            if before is not None:
                yield before, Make.of(len(before))
            yield merger.take(i)
            due = time.monotonic() + SOON
            feed(i)
            continue
        full = merger.step()
        if full is None:
            i = merger.hungry
            if i < 0:
                break
            full = merger.flush() if time.monotonic() >= due else None
            if full is None:
                feed(i)
                continue
        yield full, Make.of(len(full))
        due = time.monotonic() + SOON
    last = merger.flush()
    if last is not None:
        yield last, Make.of(len(last))


class MergedFilters(Mapping[str, str]):
    """The filters of several logs: name -> expression, which must be the same in all logs.

    Raises UsageError with two logs if it differs or one lacks the filter.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = readers

    def __getitem__(self, name: str) -> str:
        given = [(r.name, None if r.filters is None else r.filters.get(name)) for r in self.readers]
        if _agreed("filter", name, [(log, None if t is None else " ".join(t.split())) for log, t in given]) is None:
            raise KeyError(name)
        return str(given[0][1])

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers[0].filters or {})

    def __len__(self) -> int:
        return len(self.readers[0].filters or {})


def _agreed(kind: str, name: str, found: Sequence[tuple[str, Any]]) -> Any:
    """The meaning that all of ``found``, (log, meaning), give; None if none does.  Raises UsageError if they differ."""
    first = next(((log, what) for log, what in found if what is not None), None)
    if first is None:
        return None
    for log, what in found:
        if what is None:
            raise UsageError(f"has no {kind} '{name}' as {first[0]} has", where=log, hint="query the logs one by one")
        if what != first[1]:
            hint = "query the logs one by one, or write its expression"
            raise UsageError(f"defines {kind} '{name}' differently from {first[0]}", where=log, hint=hint)
    return first[1]


def _texts(view: Any) -> tuple[str, ...]:
    return tuple(" ".join((getattr(view, key) or "").split()) for key in ("agg", "by", "where", "filter_text"))


class Merged(Reader):
    """Several readers of one schema, merged by time; ``schema`` may have more names of values.

    ``lost``: an error of this type in one stream of rows is reported to ``warn``, and the rows of the others follow.
    Counts and aggregates raise it.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        schema: Schema,
        *,
        lost: type[ConfluoError] | None = None,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(", ".join(r.name for r in readers[:3]) + (", ..." if len(readers) > 3 else ""))
        self.readers = list(readers)
        self._lost, self._report = lost, warn
        self.schema, self.metadata, self.format = schema, readers[0].metadata, readers[0].format
        self.chosen = all(r.chosen for r in readers)
        self.by_time = all(r.by_time for r in readers)
        self._timed = False
        self._named = [r for r in readers if r.filters is not None]
        self.filters = MergedFilters(self._named) if self._named else None
        self._idle: Callable[[], None] | None = None

    def aggregate(self, name: str) -> Any:
        found = [(r.name, r.aggregate(name)) for r in self._named]
        texts = [(log, None if view is None else _texts(view)) for log, view in found]
        return found[0][1] if found and _agreed("aggregate", name, texts) is not None else None

    def blocks(self) -> Iterator[Block]:
        streams: list[Iterator[tuple[Block, Picks | None]]] = [
            self._guarded((block, None) for block in r) for r in self.readers
        ]
        for block, picks in merged(self.schema, streams, None):
            yield block if picks is None else block.take(picks)

    def __iter__(self) -> Iterator[Block]:
        yield from self.blocks()
        self._sum()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if by_time and self.schema.time_field is not None:
            ts = self.schema.index(self.schema.time_field.name)
            wanted = None if columns is None else sorted({ts, *columns})
            yield from merged(self.schema, [self._guarded(r.select(expr, wanted)) for r in self.readers], wanted)
        else:
            for reader in self.readers:
                yield from self._guarded(reader.select(expr, columns, by_time=by_time))
        self._sum()

    def _guarded(self, stream: Iterable[tuple[Block, Picks | None]]) -> Iterator[tuple[Block, Picks | None]]:
        try:
            yield from stream
        except ConfluoError as e:
            if self._lost is None or not isinstance(e, self._lost) or self._report is None:
                raise
            self._report(f"{e}; the rows of the other logs follow")

    def count(self, expr: Any) -> int:
        found = sum([r.count(expr) for r in self.readers])
        self._sum()
        return found

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        total, found = make(), 0
        limited: Any = make if hasattr(make, "keep") else None
        for i, reader in enumerate(self.readers):
            if limited is not None:
                limited.source = i
            part, n = reader.fold(expr, columns, make)
            part.rank(i)
            total.merge(part)
            found += n
            if limited is not None:
                limited.source = None
                total = limited.keep(total)
        self._sum()
        return total, found

    def newest(self, expr: Any, most: int) -> Any:
        for reader in self.readers:
            expr = reader.newest(expr, most)
        return expr

    def explain(self) -> dict[str, Any] | None:
        plans = [(reader.name, reader.explain()) for reader in self.readers]
        return {"parts": plans} if any(plan is not None for _, plan in plans) else None

    @property
    def timed(self) -> bool:
        """Whether plans measure each step."""
        return self._timed

    @timed.setter
    def timed(self, value: bool) -> None:
        self._timed = value
        for reader in self.readers:
            reader.timed = value  # type: ignore[attr-defined]

    def _sum(self) -> None:
        self.rows = sum([r.rows for r in self.readers])

    def on_idle(self, call: Callable[[], None]) -> None:
        for reader in self.readers:
            reader.on_idle(call)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
