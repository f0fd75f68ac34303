"""The bytes of a capture file or pipe, decompressed, in pieces."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.decompress import Damage, compression, plain

if TYPE_CHECKING:
    from queue import Queue

CHUNK = 1 << 19
POLL = 0.02  # s between two checks of a growing file


class ByteSource:
    """One input: ``path``, or ``-`` for standard input.

    `read` returns the next bytes, decompressed (compression is detected by the first bytes, never by the name).
    ``begun``: (descriptor, first bytes already read) of an open input.
    A piece stays valid until the second `read` after it.
    ``follow``: at the end of a file wait for it to grow.
    Raises FormatError when the input cannot be opened or read.
    """

    def __init__(self, path: str, *, follow: bool = False, begun: tuple[int, bytes] | None = None) -> None:
        self.name = "standard input" if path == "-" else path
        self.follow = follow
        self.problem = ""  # why the input ended early
        self.at = len(begun[1]) if begun else 0  # bytes of the file read so far, before decompression
        self._stop = False
        self._buffers = (bytearray(CHUNK), bytearray(CHUNK))
        self._turn = 0
        self._first = memoryview(begun[1]) if begun and begun[1] else None
        self._pieces: _Background | None = None
        self._started = False
        self.plain = True  # not compressed, and a file: its size is that of the capture
        try:
            if begun is not None or path == "-":
                self.fd = os.dup(begun[0] if begun is not None else 0)
            else:
                self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise FormatError(_reason(e), where=self.name) from None
        mode = os.fstat(self.fd).st_mode
        if stat.S_ISDIR(mode):
            self.close()
            raise FormatError("is a folder, not a capture", where=self.name)
        self.regular = stat.S_ISREG(mode)
        self.size = os.fstat(self.fd).st_size if self.regular else 0
        if self.regular:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    @property
    def live(self) -> bool:
        """Whether a read may have to wait: a pipe or a followed file."""
        return self.follow or not self.regular

    def begin(self) -> bytes:
        """Wait for the first four bytes (fewer at the end) and return them; `read` returns them again."""
        if self._first is None and not self._started:
            buffer = memoryview(self._buffers[0])
            while self.at < 4 and self._raw(buffer[self.at :], None):
                pass
            self._first, self._turn = buffer[: self.at], 1
        return bytes(self._first[:4]) if self._first is not None else b""

    def read(self, timeout: float | None = None) -> bytes | memoryview | None:
        """The next bytes; b'' at the end; None after ``timeout`` seconds without bytes (None: wait)."""
        if not self._started:
            start = self.begin()
            self._started = True
            kind = compression(start)
            self.plain = self.regular and not kind
            if kind:
                self._pieces = _Background(self, plain(kind, self._compressed(), CHUNK, self.name))
        if self._pieces is not None:
            return self._pieces.get(timeout)
        return self._next(timeout)

    def stop(self) -> None:
        """End the input: a waiting read returns no bytes.  A signal handler may call it."""
        self._stop = True

    def close(self) -> None:
        self._stop = True
        if self._pieces is not None:
            self._pieces.join()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _next(self, timeout: float | None) -> memoryview | None:
        """The next bytes of the file, not decompressed."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        piece = self._raw(memoryview(self._buffers[self._turn]), timeout)
        if piece:
            self._turn ^= 1
        return piece

    def _raw(self, buffer: memoryview, timeout: float | None) -> memoryview | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._stop:
                if not self.regular:
                    ready, _, _ = select.select([self.fd], [], [], 0.1 if timeout is None else timeout)
                    if not ready:
                        if deadline is None:
                            continue
                        return None
                try:
                    n = os.readv(self.fd, [buffer])
                except BlockingIOError:  # another process made the pipe non-blocking and read first
                    continue
                if n or not self.follow or not self.regular:
                    self.at += n
                    return buffer[:n]
                if os.fstat(self.fd).st_size < self.at:
                    self.problem = "became shorter while it was read"
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                time.sleep(POLL)
        except OSError as e:
            raise FormatError(_reason(e), where=self.name) from None
        return buffer[:0]

    def _compressed(self) -> Iterator[bytes]:
        """The compressed bytes, piece by piece."""
        while not self._stop:
            piece = self._next(0.2)
            if piece is not None:
                if not piece:
                    return
                yield bytes(piece)


class _Background:
    """Decompresses in a background thread, a few pieces ahead: zlib and zstd run without the interpreter lock."""

    def __init__(self, source: ByteSource, pieces: Iterator[bytes]) -> None:
        import queue
        import threading

        self._source, self._pieces = source, pieces
        self._queue: Queue[Any] = queue.Queue(4)
        self._empty, self._full = queue.Empty, queue.Full
        self._thread = threading.Thread(target=self._work, name="decompress", daemon=True)
        self._thread.start()

    def get(self, timeout: float | None) -> bytes | None:
        try:
            piece = self._queue.get(timeout=timeout)
        except self._empty:
            return None
        if isinstance(piece, Damage):
            self._source.problem = str(piece)
            return b""
        if isinstance(piece, Exception):
            raise piece
        assert isinstance(piece, bytes)
        return piece

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        end: object = b""
        try:
            for piece in self._pieces:
                if not self._put(piece):
                    return
        except Exception as e:  # re-raised in the thread that reads
            end = e
        self._put(end)

    def _put(self, piece: object) -> bool:
        while not self._source._stop:
            try:
                self._queue.put(piece, timeout=0.1)
                return True
            except self._full:
                continue
        return False


def _reason(e: OSError) -> str:
    return "is closed" if e.errno == errno.EBADF else e.strerror or str(e)
