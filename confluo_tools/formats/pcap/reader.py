"""Reader of capture files and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.formats.pcap.files import open_captures
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.schema import Schema

ROWS = 1024  # rows per block


class CaptureReader(Reader):
    """Packets of one capture file or pipe.  ``stream``: the same input, with its first bytes already read.

    ``warn`` is called for damage, ``note`` for irregularities.
    """

    format = "pcap"

    def __init__(self, path: str, stream: ByteStream, *, warn: Warn | None = None, note: Warn | None = None) -> None:
        super().__init__(stream.name, warn)
        self._note = note
        self._path, self._begun = path, (stream.fd, stream.taken())
        self.captures = open_captures([path], rows=ROWS, begun=self._begun)
        self._stream = stream
        self.schema = self.captures.schema
        self._idle: Callable[[], None] | None = None

    def fill(self, schema: Schema) -> None:
        """Fill the fields of ``schema`` instead of the usual ones.  Call it before the first block is read."""
        self.captures = open_captures([self._path], schema, rows=ROWS, begun=self._begun)
        self.schema = schema

    def blocks(self) -> Iterator[Block]:
        live = self.captures.live
        for block in self.captures:
            yield block
            if live and block.rows < ROWS and self._idle is not None:
                self._idle()  # not full: the next packet has not arrived yet
        report = self._warn if self.captures.damaged else self._note
        for line in self.captures.warnings:
            if report is not None:
                report(line)

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle = call

    def close(self) -> None:
        self.captures.close()
        self._stream.close()
