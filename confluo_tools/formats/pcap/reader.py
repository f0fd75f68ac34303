"""Reader of capture files and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.formats.bytestream import GrowingStream
from confluo_tools.formats.pcap.files import open_captures
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.schema import Schema

ROWS = 1024  # rows per block


class CaptureReader(Reader):
    """Packets of one capture file or pipe.  ``stream``: the same input, with its first bytes already read.

    A ``stream`` that grows is followed until it is stopped.
    ``warn`` is called for damage, ``note`` for irregularities.
    """

    format = "pcap"

    def __init__(self, path: str, stream: ByteStream, *, warn: Warn | None = None, note: Warn | None = None) -> None:
        super().__init__(stream.name, warn)
        self._note = note
        self._path, self._begun = path, (stream.fd, stream.taken())
        self._stream = stream
        self._idle: Callable[[], None] | None = None
        self._number = 0
        self._open(None)

    def _open(self, schema: Schema | None) -> None:
        growing = self._stream.growing
        self.captures = open_captures([self._path], schema, rows=ROWS, begun=self._begun, follow=growing)
        if growing:
            self.captures.on_wait = self._wait
        self.captures.number = self._number
        self.schema = self.captures.schema

    def fill(self, schema: Schema) -> None:
        """Fill the fields of ``schema`` instead of the usual ones.  Call it before the first block is read."""
        self._open(schema)

    def number_from(self, number: int) -> None:
        self._number = self.captures.number = number

    def blocks(self) -> Iterator[Block]:
        live = self.captures.live
        for block in self.captures:
            yield block
            if live and block.rows < ROWS and self._idle is not None and not self._stream.growing:
                self._idle()  # not full: the next packet has not arrived yet
        report = self._warn if self.captures.damaged else self._note
        for line in self.captures.warnings:
            if report is not None:
                report(line)

    def _wait(self) -> None:
        # At the end of a growing file.
        stream = self._stream
        if isinstance(stream, GrowingStream) and (stream.once or stream.stopped()):
            self.captures.stop()
        elif self._idle is not None:
            self._idle()

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle = call

    def close(self) -> None:
        self.captures.close()
        self._stream.close()
