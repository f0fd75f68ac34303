"""The partial of printed rows: the rows themselves, as an Arrow stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial
from confluo_tools.formats.arrow import StreamWriter
from confluo_tools.formats.limit import first_rows

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema


class RowsPartial(Partial):
    """At most ``limit`` rows (None: all) with ``columns`` and the time, by time or in the order of the log."""

    name = "rows"

    def __init__(self, schema: Schema, columns: Sequence[int] | None, limit: int | None, by_time: bool) -> None:
        self.schema, self.limit, self.by_time = schema, limit, by_time
        wanted = set(range(schema.layout.n) if columns is None else columns)
        if schema.time_field is not None or not wanted:
            wanted.add(schema.index(schema.time_field.name) if schema.time_field is not None else 0)
        self.columns = sorted(wanted)
        self._out = _Pieces()
        chosen = {schema.columns[i].field.name for i in wanted}
        self._writer = StreamWriter(schema, self._out, fields=[f.name for f in schema.fields if f.name in chosen])
        self._rows = 0
        self.full = limit == 0

    def settings(self) -> dict[str, Any]:
        return {"columns": self.columns, "limit": self.limit, "by_time": self.by_time}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        return cls(schema, settings["columns"], settings["limit"], settings["by_time"])

    def update(self, block: Block, picks: Picks | None) -> None:
        n = block.rows if picks is None else len(picks)
        if self.limit is not None and self._rows + n >= self.limit:
            block, picks = first_rows(block, picks, self.limit - self._rows)
            self.full = True
        self._rows += n
        self._writer.write(block, picks)

    def dump(self) -> bytes:
        self._writer.start()
        self._writer.close()
        return b"".join(self._out.pieces)


class _Pieces:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writev(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.pieces += [bytes(piece) for piece in pieces]
