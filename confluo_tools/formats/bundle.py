"""Records that travel together: an Arrow stream, compressed as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.formats.arrow import StreamWriter

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema


class Bundle:
    """Records as one compressed Arrow stream."""

    def __init__(self, schema: Schema) -> None:
        from zstandard import ZstdCompressor

        self._zip = ZstdCompressor(level=1).compressobj()
        self._pieces: list[bytes] = []
        self.size = self.rows = 0
        self._out = StreamWriter(schema, self)

    def writev(self, pieces: Sequence[bytes | memoryview]) -> None:
        data = self._zip.compress(b"".join(pieces))
        self._pieces.append(data)
        self.size += len(data)

    def add(self, block: Block) -> None:
        self._out.write(block)
        self.rows += block.rows

    def bytes(self) -> bytes:
        """All of it, ended."""
        self._out.close()
        self._pieces.append(self._zip.flush())
        return b"".join(self._pieces)
