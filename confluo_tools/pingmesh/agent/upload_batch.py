"""Upload batch: records as an Arrow stream, compressed as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.formats.arrow import StreamWriter

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema


class UploadBatch:
    """Records as one compressed Arrow stream."""

    def __init__(self, schema: Schema) -> None:
        from zstandard import ZstdCompressionParameters, ZstdCompressor

        few = ZstdCompressionParameters.from_level(1, window_log=18)  # a small window: agents have little memory
        self._zip = ZstdCompressor(compression_params=few).compressobj()
        self._pieces: list[bytes] = []
        self.size = self.rows = 0
        self._out = StreamWriter(schema, self)

    def writev(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            if data := self._zip.compress(piece):
                self._pieces.append(data)
                self.size += len(data)

    def add(self, block: Block) -> None:
        self._out.write(block)
        self._out.flush()  # compress now, keep no plain copy
        self.rows += block.rows

    def bytes(self) -> bytes:
        """The complete stream."""
        self._out.close()
        self._pieces.append(self._zip.flush())
        return b"".join(self._pieces)
