"""Columns of a block by name, as sequences of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block


class BlockColumns:
    """The columns of a block that are plain numbers.  Raises SchemaError, with ``where``, for one that is missing."""

    def __init__(self, block: Block, where: str) -> None:
        self._block, self._where = block, where

    def __getitem__(self, name: str) -> Any:
        at = self._block.layout.get(name)
        if at < 0:
            raise SchemaError(f"has no column '{name}'", where=self._where)
        code = self._block.layout.describe(at)[1]
        column: Any = self._block.buffer(at)
        return column.cast(ARRAY_CODES[code - 1])

    def bytes_of(self, name: str, row: int) -> bytes:
        """A column of bytes, at one row; b'' if it is missing."""
        at = self._block.layout.get(name)
        return bytes(self._block.get(at, row)) if at >= 0 else b""
