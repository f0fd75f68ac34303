"""Byte input from files and pipes, also compressed, with a look ahead that needs no seeking."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.errors import FormatError
from confluo_tools.formats.decompress import LONGEST_MAGIC, Damage, compression, plain
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluo_tools.objects.remote_file import RemoteFile

CHUNK = 1 << 18  # bytes per read
PAUSE = 0.1  # s between two looks at a file that grows
PIECE = 1 << 22  # bytes of one request to an object store


class ByteStream:
    """Bytes of a descriptor, in order.

    ``name``: in messages.  ``idle`` is called before a read that may wait, so that a writer can flush its buffers.
    ``offset``: bytes returned so far.  ``waits``: whether reads may wait (a pipe, a socket, a terminal).
    ``growing``: more may come after the end, so what is cut off there is neither complete nor damaged.
    """

    growing = False

    def __init__(self, fd: int, name: str, *, close: bool = True) -> None:
        from stat import S_ISREG

        self.fd, self.name, self.offset = fd, name, 0
        self.idle: Callable[[], None] | None = None
        self.damage = ""  # of compressed bytes: why they end early
        self.waits = not S_ISREG(os.fstat(fd).st_mode)
        self._close = close
        self._have = bytearray()
        self._at = 0
        self._ended = False

    # -- reading the descriptor

    def _more(self) -> bytes:
        """Some bytes from the descriptor, b'' at its end."""
        if self.waits and self.idle is not None:
            from select import select

            if not select([self.fd], [], [], 0)[0]:
                self.idle()
        try:
            return os.read(self.fd, CHUNK)
        except OSError as e:
            e.filename = self.name
            raise

    # -- the public interface

    def _fill(self, n: int) -> int:
        # Buffer n bytes, or all remaining ones; returns their number.
        while len(self._have) - self._at < n and not self._ended:
            data = self._more()
            if not data:
                self._ended = True
                break
            if self._at:
                del self._have[: self._at]
                self._at = 0
            self._have += data
        return len(self._have) - self._at

    def peek(self, n: int) -> bytes:
        """The next ``n`` bytes (fewer only at the end), without consuming them."""
        self._fill(n)
        return bytes(self._have[self._at : self._at + n])

    def look(self, n: int, enough: int = 8) -> bytes:
        """Up to ``n`` of the next bytes, without waiting for more than ``enough`` of them or a line."""
        have = self._fill(1)
        while have < enough and not self._ended and b"\n" not in self._have[self._at :]:
            have = self._fill(have + 1)
        return bytes(self._have[self._at : self._at + n])

    def taken(self) -> bytes:
        """Bytes read from the descriptor but not yet returned, for a caller that reads on from it."""
        return bytes(self._have[self._at :])

    def some(self) -> bytes:
        """The available bytes, at least one; b'' at the end."""
        if self._at < len(self._have):
            data = bytes(self._have[self._at :])
            self._have.clear()
            self._at = 0
        else:
            data = b"" if self._ended else self._more()
            self._ended = not data
        self.offset += len(data)
        return data

    def lines(self, longest: int) -> Iterator[bytes]:
        """The lines without their ends.  Raises FormatError for one of more than ``longest`` bytes (whole MiB)."""
        rest = b""
        while piece := self.some():
            lines = (rest + piece if rest else piece).split(b"\n")
            rest = lines.pop()
            if len(rest) > longest:
                raise FormatError(f"has a line of more than {longest >> 20} MiB", where=self.name)
            yield from lines
        if rest and not self.growing:
            yield rest

    def read(self, n: int) -> bytes:
        """``n`` bytes; fewer only at the end."""
        got = min(self._fill(min(n, CHUNK)), n)
        if got == n or self._ended:
            data = bytes(self._have[self._at : self._at + got])
            self._at += got
            self.offset += got
            return data
        out = bytearray(n)
        return bytes(out[: self.readinto(memoryview(out))])

    def readinto(self, out: memoryview) -> int:
        """Fill ``out``; fewer bytes only at the end.  No copy for what is not buffered yet."""
        n = min(len(out), len(self._have) - self._at)
        out[:n] = self._have[self._at : self._at + n]
        self._at += n
        while n < len(out) and not self._ended:
            got = self._into(out[n:])
            self._ended = got == 0
            n += got
        self.offset += n
        return n

    def _into(self, out: memoryview) -> int:
        if self.waits and self.idle is not None:
            from select import select

            if not select([self.fd], [], [], 0)[0]:
                self.idle()
        try:
            return os.readv(self.fd, [out])
        except OSError as e:
            e.filename = self.name
            raise

    def at_end(self) -> bool:
        return self._fill(1) == 0

    def close(self) -> None:
        if self._close and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class GrowingStream(ByteStream):
    """The file at ``path`` as it grows: at its end a read waits until ``stopped()`` holds, or ends if ``once``.

    Raises OSError, FormatError when the file becomes shorter.
    """

    growing = True

    def __init__(self, path: str, *, once: bool = False) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
        self.waits, self.once = True, once
        self.stopped: Callable[[], bool] = lambda: False

    def _more(self) -> bytes:
        out = bytearray(CHUNK)
        return bytes(out[: self._into(memoryview(out))])

    def _into(self, out: memoryview) -> int:
        import time

        while True:
            n = os.readv(self.fd, [out])
            if n or self.once or self.stopped():
                return n
            if os.fstat(self.fd).st_size < os.lseek(self.fd, 0, os.SEEK_CUR):
                raise FormatError("became shorter while it was read", where=self.name)
            if self.idle is not None:
                self.idle()
            time.sleep(PAUSE)


class PieceStream(ByteStream):
    """A stream that comes in pieces of its own size: a subclass has `_more`."""

    def _into(self, out: memoryview) -> int:
        data = self._more()
        n = min(len(out), len(data))
        out[:n] = data[:n]
        self._have[:] = data[n:]
        self._at = 0
        return n


class Unzipped(PieceStream):
    """The decompressed bytes of another stream."""

    def __init__(self, below: ByteStream, kind: str) -> None:
        self.below = below
        self.fd, self.name, self.offset, self.waits = below.fd, below.name, 0, below.waits
        self.growing = below.growing
        self._have, self._at, self._ended, self._close = bytearray(), 0, False, False
        self._pieces = plain(kind, iter(below.some, b""), 4 * CHUNK, below.name)
        self.damage = ""

    @property
    def idle(self) -> Callable[[], None] | None:
        return self.below.idle

    @idle.setter
    def idle(self, call: Callable[[], None] | None) -> None:
        self.below.idle = call

    def _more(self) -> bytes:
        try:
            return next(self._pieces, b"")
        except Damage as e:
            self.damage = str(e)
            return b""

    def close(self) -> None:
        self.below.close()


class ObjectStream(PieceStream):
    """The object at ``url``: a piece is read while the one before it is used.  ``file``: for reads anywhere in it.

    Raises OSError, ObjectStoreError.
    """

    def __init__(self, url: str) -> None:
        from confluo_tools.objects.remote_file import RemoteFile

        self.file: RemoteFile = RemoteFile(url)
        self.fd, self.name, self.offset, self.waits, self.idle, self.damage = -1, url, 0, False, None, ""
        self._have, self._at, self._ended, self._close = bytearray(), 0, False, False
        self._next = 0
        self._coming: Future[memoryview] | None = None

    def _more(self) -> bytes:
        start = self._next
        data = self._coming.result() if self._coming is not None else self.file.bytes_at(start, start + PIECE // 16)
        self._coming = None
        self._next = start + len(data)
        if self._next < self.file.size and start:  # a look at the beginning is often all
            self._coming = self.file.read_ahead(self._next, self._next + PIECE)
        return bytes(data)

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
        self.file.close()


def open_bytes(path: str) -> ByteStream:
    """The bytes of a file, of an object, of stdin for ``-``, or of the first program that connects to unix:PATH."""
    if path == "-":
        return ByteStream(0, "standard input", close=False)
    if path.startswith("unix:"):
        from confluo_tools.formats.listen import listen

        return ByteStream(listen(path), path)
    if is_url(path):
        return ObjectStream(path)
    return ByteStream(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)


def read_whole(path: str, most: int, what: str) -> bytes:
    """A small file; - is standard input.  Raises FormatError; larger than ``most`` bytes, it is "no ``what``"."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as f:
            data = f.read(most + 1)
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=path) from None
    if len(data) > most:
        raise FormatError(f"is larger than {most >> 20} MiB: no {what}", where=path)
    return data


def sniff(stream: ByteStream, n: int) -> bytes:
    """Up to ``n`` of the first bytes, decompressed; nothing is consumed.

    After fewer than 8 bytes, ``stream.damage`` says why compressed bytes end early.
    """
    raw = stream.look(CHUNK, 18)
    if not compression(raw):
        return raw[:n]
    while True:
        plain_bytes = unzip(BytesInMemory(raw, stream.name))
        head = plain_bytes.look(n)
        if len(head) >= min(n, 8) or len(raw) >= CHUNK:
            return head
        if stream._fill(len(raw) + 1) == len(raw):  # the end: the look saw all bytes
            stream.damage = plain_bytes.damage
            return head
        raw = stream.taken()


class BytesInMemory(ByteStream):
    """Bytes that are there already."""

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self.fd, self.name, self.offset, self.waits, self.idle, self.damage = -1, name, 0, False, None, ""
        self._have, self._at, self._ended, self._close = bytearray(data), 0, False, False

    def _more(self) -> bytes:
        return b""


def unzip(stream: ByteStream) -> ByteStream:
    """The stream itself, or its decompressed bytes when it is gzip or zstd."""
    kind = compression(stream.look(LONGEST_MAGIC, LONGEST_MAGIC))
    return Unzipped(stream, kind) if kind else stream
