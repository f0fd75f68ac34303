"""Rows that wait for a while, so that like ones are written side by side: a compressed log is much smaller then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.block_builder import blocks_of_rows

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

WAIT = 1_000_000_000  # ns that a row waits
MOST = 16_384  # rows that wait


class RowBatch:
    """`append` rows; `blocks` are those that have waited, by connection and kind."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._since = 0
        self.append = self._rows.append

    def blocks(self, now: int, *, last: bool = False) -> Iterator[Block]:
        """The rows, if the first has waited for long, or there are many, or with ``last``.  ``now``: ns."""
        if not self._rows:
            return
        self._since = self._since or now
        if not last and now - self._since < WAIT and len(self._rows) < MOST:
            return
        rows = sorted(self._rows, key=_like)
        self._rows.clear()
        self._since = 0
        yield from blocks_of_rows(self._schema, rows)


def _like(row: dict[str, Any]) -> tuple[int, int]:
    return row.get("cookie", 0), row["kind"]
