"""Messages of records to files, to standard output and to neighbours."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.console import is_terminal, tell
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.kafka.message import shape_of
from confluo_tools.kafka.row_writer import LINGER, SIZE, PlaceWriter, WriterCounts, rows_of_message

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

UNIX = "unix:"
ROOM = 64 << 20  # bytes that wait for a neighbour


class ByteWriter(PlaceWriter):
    """Writes rows of ``schema`` in messages, one after the other, to ``to``.

    ``to``: a new file; ``-``, standard output; or unix:PATH, the Unix socket of a program that listens: it may come
    later, and again after it left.  ``size``, ``linger``, ``wait``, ``pipeline``: as `TopicWriter` has them.
    Raises UsageError and ConfluoError.
    """

    def __init__(
        self, to: str, schema: Schema, *, size: int = SIZE, linger: int = LINGER, wait: bool = True, pipeline: int = 0
    ) -> None:
        from confluo_tools.core.kafka.byte_sink import ByteSink

        super().__init__("standard output" if to == "-" else to, schema, linger)
        self._socket = to.startswith(UNIX)
        path = socket_path(to) if self._socket else b""
        self._fd = -1 if self._socket else open_file(to)
        shape = shape_of(schema, os.uname().nodename, pipeline, time.time_ns())
        rows, room = rows_of_message(shape, size), ROOM if self._socket else 0
        self.sink: ByteSink = ByteSink(self._fd, shape, capacity=rows, path=path, room=room, wait=wait)
        self._told = 0
        self.go_on()

    def go_on(self) -> None:
        self.sink.poll()
        self.report()

    def report(self) -> None:
        if self.sink.error:
            self._shorten()
            raise ConfluoError(os.strerror(self.sink.error), where=self.name)
        trouble = self.sink.trouble
        if trouble != self._told:
            self._told = trouble
            tell(f"{self.name}: {f'no program listens ({os.strerror(trouble)}); waiting' if trouble else 'connected'}")

    def _shorten(self) -> None:
        """Remove the part of a message at the end of a file."""
        if stat.S_ISREG(os.fstat(self._fd).st_mode):
            with suppress(OSError):
                os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR) - self.sink.part)

    def close(self) -> None:
        self.sink.flush()
        self.wait(self._sending, self.sink.purge)
        self.go_on()
        if self._fd > 2:
            with suppress(OSError):  # a pipe has no disk
                os.fsync(self._fd)
            os.close(self._fd)
        counts = self.counts
        if counts.lost:
            raise ConfluoError(f"{counts.lost} of {counts.rows} records were not delivered", where=self.name)

    def _sending(self) -> bool:
        waiting = self.sink.poll(100)
        if waiting:
            self.go_on()
        return bool(waiting)

    @property
    def counts(self) -> WriterCounts:
        s = self.sink
        return WriterCounts(s.rows, s.written, s.messages, s.failed + s.dropped + s.refused, s.queued)


def open_file(path: str) -> int:
    """A descriptor of a new file, of a pipe or a device, or of standard output."""
    if path == "-":
        if is_terminal(1):
            raise UsageError(
                "messages are not for a terminal", where="--to -", hint="pipe them to confluo-stream unpack"
            )
        return 1
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            return os.open(path, flags)
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise UsageError("exists", where=path, hint="remove it, or write another one") from None
    except OSError as e:
        raise ConfluoError(e.strerror or str(e), where=path) from None


def socket_path(text: str) -> bytes:
    """The path in unix:PATH.  Raises UsageError."""
    path = os.fsencode(text.removeprefix(UNIX))
    if not path or len(path) > 107:  # sun_path of Linux
        raise UsageError("is not the address of a Unix socket", where=text, hint="write unix:PATH, at most 107 bytes")
    return path
