"""A file that grows: a capture, text or an Arrow stream that another program is still writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError, StoreError
from confluo_tools.formats.growing import Place
from confluo_tools.formats.reader import Reader, Wrapper

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import GrowingStream

HEAD = 4096  # first bytes by which a file is known


class GrowingFileReader(Wrapper):
    """The rows of ``reader``, which reads the growing ``stream``, after those of an earlier ``place`` in it.

    A place is a number of rows: they are parsed again, because a row may depend on what is before it in the file.
    Raises StoreError for a place in another file.
    """

    polled = True

    def __init__(self, reader: Reader, stream: GrowingStream, place: Place | None = None) -> None:
        super().__init__(reader)
        self.schema, self.given, self.filters = reader.schema, reader.given, reader.filters
        self.stream = stream
        self._calls: list[Callable[[], None]] = []
        self.settled: Callable[[], None] = lambda: None  # called after each block, when `places` is exact
        reader.on_idle(self._idle)
        self._skip = self._count = 0
        if place is not None:
            self._skip = self._checked(place)
            self._count = self._skip

    def _checked(self, place: Place) -> int:
        try:
            size, rows, least = int(place.identity.partition(":")[0]), *map(int, place.position)
        except (ValueError, TypeError):
            raise StoreError("is not a file, but the cursor is of one", where=self.name) from None
        if _head(self.stream.fd, size) != place.identity or os.fstat(self.stream.fd).st_size < least:
            what = "is not the file that the cursor was made for, or it was written again"
            raise StoreError(what, where=self.name, hint="name another cursor")
        return rows

    def places(self) -> list[Place]:
        """Where to go on after the rows that were given."""
        fd = self.stream.fd
        return [Place(self.name, _head(fd, HEAD), [self._count, os.lseek(fd, 0, os.SEEK_CUR)])]

    def blocks(self) -> Iterator[Block]:
        left = self._skip
        for block in self.reader:
            if left >= block.rows:
                left -= block.rows
                continue
            if left:
                block = block.slice(left, block.rows - left)
                left = 0
            yield block
            self._count += block.rows
            self.settled()
            if self.stream.stopped():
                return
        if left:
            raise FormatError(f"has {left} records fewer than the cursor says were read", where=self.name)

    def _idle(self) -> None:
        for call in self._calls:
            call()

    def on_idle(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        self.stream.stopped = stopped


def _head(fd: int, size: int) -> str:
    """The identity of a file: how many of its first bytes were looked at, and their digest."""
    from hashlib import sha256

    data: Any = os.pread(fd, min(size, HEAD), 0)
    return f"{len(data)}:{sha256(data).hexdigest()[:32]}"
