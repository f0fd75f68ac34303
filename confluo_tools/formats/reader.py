"""The interface of all inputs: a schema, and blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.schema import Schema

Warn = Callable[[str], None]


class Reader:
    """Rows of one input, block by block.  Iterating once reads it; a block stays valid after the next one.

    ``schema`` of the rows; ``metadata`` that came with them (``confluo:host`` and the like); ``format`` is
    the name of what was read; ``rows`` counts the rows read.  ``warn`` reports problems that are not
    fatal.  ``mark``: no row after the current block is older (ns), as far as known.
    """

    format = ""
    schema: Schema
    filters: Mapping[str, str] | None = None  # what `filter NAME` means here: name -> text; None: nothing has names
    given: Sequence[str] | None = None  # of a table of text: the names in its header, when the schema has more
    by_time = False  # rows come in the order of time, in whatever order they were written
    chosen = False  # the source has the query and returns only rows that it selects
    polled = False  # calls of `on_idle` come again and again while there is nothing to read
    mark = (1 << 63) - 1

    def __init__(self, name: str, warn: Warn | None = None) -> None:
        self.name = name
        self.metadata: dict[str, str] = {}
        self.rows = 0
        self._warn = warn

    def warn(self, what: str) -> None:
        if self._warn is not None:
            self._warn(f"{self.name}: {what}")

    def blocks(self) -> Iterator[Block]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Block]:
        for block in self.blocks():
            self.rows += block.rows
            yield block

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and the rows of each for which ``expr`` (compiled against ``schema``) holds, where there are any.

        ``columns``: numbers of the columns that will be looked at, None for all.  Picks are valid until the next.
        ``by_time``: merge the lanes of a MultiLog; other inputs come as they are.
        """
        program = expr.program
        for block in self:
            picks = program.select(block)
            if len(picks):
                yield block, picks

    def count(self, expr: Any) -> int:
        """The number of rows that `select` would return."""
        return sum([len(picks) for _, picks in self.select(expr, [], by_time=False) if picks is not None])

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        """The rows of `select` aggregated into a new roll-up from ``make``, and their number.

        A ``make`` that limits memory (`GroupSpill`) may take the groups so far out of the roll-up.
        """
        keep = getattr(make, "keep", None)
        rollup, found = make(), 0
        for block, picks in self.select(expr, columns, by_time=False):
            rollup.update(block, picks)
            found += block.rows if picks is None else len(picks)
            if keep is not None:
                rollup = keep(rollup)
        return rollup, found

    def newest(self, expr: Any, most: int) -> Any:
        """``expr``, perhaps limited to a time range that has the newest ``most`` of its rows."""
        return expr

    def aggregate(self, name: str) -> Any:
        """The aggregate that `--agg NAME` means (texts agg, by, where, filter_text); None if the name is unknown."""
        return None

    def explain(self) -> dict[str, Any] | None:
        """How `select` or `count` found the rows; None if it scanned all of them."""
        return None

    def on_idle(self, call: Callable[[], None]) -> None:
        """Have ``call`` called before every wait for more input."""

    def number_from(self, number: int) -> None:
        """Number the source captures from ``number`` on, if the inputs are captures.  Call it before reading."""

    def skip_before(self, time: int) -> None:
        """Rows older than ``time`` (ns) are not wanted: an input that can skip some of them does so."""

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """End as soon as ``stopped()`` holds, if this input is ``polled``."""

    def close(self) -> None:
        pass

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class Wrapper(Reader):
    """A reader around another one, which it uses for `explain`, `on_idle` and `close`."""

    def __init__(self, reader: Reader, warn: Warn | None = None) -> None:
        super().__init__(reader.name, warn)
        self.reader, self.metadata, self.format = reader, reader.metadata, reader.format

    def explain(self) -> dict[str, Any] | None:
        return self.reader.explain()

    @property
    def timed(self) -> bool:
        """Whether the plan measures each step."""
        return bool(getattr(self.reader, "timed", False))

    @timed.setter
    def timed(self, value: bool) -> None:
        self.reader.timed = value  # type: ignore[attr-defined]

    def on_idle(self, call: Callable[[], None]) -> None:
        self.reader.on_idle(call)

    def number_from(self, number: int) -> None:
        self.reader.number_from(number)

    def close(self) -> None:
        self.reader.close()


class Chain(Reader):
    """Several inputs, one after the other, as rows of the first one's schema.

    Fields that a later input lacks are zero; those that only it has are left out, with a warning.  Enums have the
    numbers of the first one.  ``schema``: that of the first one, with names that only later inputs have.
    Raises SchemaError when records of different kinds meet.
    """

    def __init__(
        self,
        first: Reader,
        rest: Sequence[str],
        open_next: Callable[[str], Reader],
        warn: Warn | None = None,
        schema: Schema | None = None,
    ) -> None:
        super().__init__(first.name, warn)
        self.schema, self.format, self.metadata = schema or first.schema, first.format, first.metadata
        self._tables: dict[str, bytes] = {}  # numbers of enums of the current input
        self._now, self._rest, self._open_next = first, list(rest), open_next
        self._idle: Callable[[], None] | None = None
        self._number = 0
        self.given = first.given
        self.filters, self.aggregate = first.filters, first.aggregate  # type: ignore[method-assign]

    def _readers(self) -> Iterator[Reader]:
        yield self._now
        self._now.close()
        for i, path in enumerate(self._rest, self._number + 1):
            self._now = self._open_next(path)
            self._now.number_from(i)
            if self._idle is not None:
                self._now.on_idle(self._idle)
            if self._now.schema.kind != self.schema.kind:
                what = f"holds records of kind '{self._now.schema.kind}', {self.name} of kind '{self.schema.kind}'"
                raise SchemaError(what, where=path)
            self._check_names(path, self._now.schema)
            lost = [f.name for f in self._now.schema.fields if f.name not in self.schema]
            if lost and self._warn is not None:
                self._warn(f"{path}: not in {self.name} and left out: {', '.join(lost)}")
            yield self._now
            self._now.close()

    def _check_names(self, path: str, schema: Schema) -> None:
        # Blocks have numbers of enums and flags: those of all inputs must have one meaning.
        self._tables = {}
        if schema == self.schema:
            return
        from confluo_tools.schema.renumber import renumbered, renumbering
        from confluo_tools.schema.schema_fit import with_names

        self._tables = renumbering(self.schema, schema)
        whole = with_names(self.schema, self.name, renumbered(schema, self._tables, self.schema), path)
        unnamed = [f.name for f in whole.fields if f.names != self.schema[f.name].names]
        if unnamed and self._warn is not None:
            self._warn(
                f"{path}: names of values that {self.name} does not have are printed as numbers: {', '.join(unnamed)}"
            )

    def blocks(self) -> Iterator[Block]:
        for reader in self._readers():
            yield from self._as_ours(reader)

    def _as_ours(self, reader: Reader) -> Iterator[Block]:
        layout = self.schema.layout
        for block in reader:
            try:
                ours = block if block.layout is layout else block.project(layout)
            except ValueError as e:
                raise SchemaError(str(e), where=reader.name) from None
            yield self._numbered(ours) if self._tables else ours

    def _numbered(self, block: Block) -> Block:
        # Enums with our numbers.
        from confluo_tools.core.block.block import Block

        names = self.schema.layout.names
        buffers: list[Any] = [block.buffer(i) for i in range(len(names))]
        for name, table in self._tables.items():
            at = self.schema.index(name)
            buffers[at] = bytes(buffers[at]).translate(table)
        return Block.wrap(self.schema.layout, block.rows, buffers, lane=block.lane, base=block.base)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        for reader in self._readers():
            if reader.schema == self.schema:  # its own way: a MultiLog has indexes
                before = reader.rows
                yield from reader.select(expr, columns, by_time=by_time)
                self.rows += reader.rows - before
                continue
            for block in self._as_ours(reader):
                self.rows += block.rows
                picks = expr.program.select(block)
                if len(picks):
                    yield block, picks

    def number_from(self, number: int) -> None:
        self._number = number
        self._now.number_from(number)

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle = call
        self._now.on_idle(call)

    def close(self) -> None:
        self._now.close()
