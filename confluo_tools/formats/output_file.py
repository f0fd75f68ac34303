"""Byte output: standard output, or a file that appears complete or not at all."""

from __future__ import annotations

import atexit
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.objects.address import refuse_url
from confluo_tools.stop_signals import raise_late

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

SMALL = 1 << 16  # pieces below this wait for others
MAX_PIECES = 512  # pieces a writev takes (IOV_MAX is 1024)
_unfinished: dict[str, int] = {}  # {temporary file: process}


class OutputSink:
    """Writes bytes to a descriptor and gathers small pieces.  ``name``: in messages; ``bytes``: written so far.

    As a context manager it ends with `close`, or after an error with `abort`.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name, self.bytes = fd, name, 0
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        if len(data) + len(self._waiting) < SMALL:
            self._waiting += data
            return
        self.flush()
        if len(data) < SMALL:
            self._waiting += data
        else:
            self._out([data])

    def writev(self, pieces: Sequence[bytes | memoryview]) -> None:
        total = sum([len(p) for p in pieces])
        if total + len(self._waiting) < SMALL:
            for piece in pieces:
                self._waiting += piece
            return
        first = [bytes(self._waiting)] if self._waiting else []
        self._waiting.clear()
        rest = [*first, *pieces]
        for start in range(0, len(rest), MAX_PIECES):
            self._out(rest[start : start + MAX_PIECES])

    def flush(self) -> None:
        """Write all gathered bytes."""
        if self._waiting:
            data = bytes(self._waiting)
            self._waiting.clear()  # before the write: a failing one must not be repeated
            self._out([data])

    def _out(self, pieces: Sequence[bytes | memoryview]) -> None:
        left: list[Any] = [p for p in pieces if len(p)]
        while left:
            try:
                n = os.writev(self.fd, left)
            except BlockingIOError:  # another process made our stdout non-blocking
                from select import select

                select([], [self.fd], [])
                continue
            except OSError as e:
                if not isinstance(e, BrokenPipeError):
                    e.filename = self.name
                raise
            self.bytes += n
            at = 0
            while at < len(left) and n >= len(left[at]):
                n -= len(left[at])
                at += 1
            left = left[at:]
            if n:
                left[0] = memoryview(left[0])[n:]

    def close(self) -> None:
        """Finish the output: write all bytes, and put a new file in place."""
        self.flush()

    def abort(self) -> None:
        """Discard the output after an error; a partial file is removed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise


class FileSink(OutputSink):
    """A new file: written under another name in the same folder, synced, then put in place.

    Raises UsageError if ``path`` exists and ``force`` is not given.  A pipe or device is written as it is.
    """

    def __init__(self, path: str, *, force: bool = False) -> None:
        self.path = os.path.realpath(path) if os.path.islink(path) else path
        self.force = force
        self._temporary = ""
        mode = _mode(self.path)
        if mode is not None and not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode):
                raise UsageError("is a folder", where=path)
            super().__init__(os.open(self.path, os.O_WRONLY | os.O_CLOEXEC), path)
            return
        if mode is not None and not force:
            raise exists(path)
        folder, base = os.path.split(self.path)
        name = os.path.join(folder, f".{os.fsdecode(os.fsencode(base)[:200])}.{os.urandom(6).hex()}.tmp")
        _unfinished[name] = os.getpid()
        try:
            # A file of this process: others who may write here can neither guess its name nor make it a link.
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as e:
            _unfinished.pop(name)
            e.filename = path
            raise
        super().__init__(fd, path)
        self._temporary = name
        if mode is not None:
            os.fchmod(fd, stat.S_IMODE(mode))

    def close(self) -> None:
        self.flush()
        if not self._temporary:
            os.close(self.fd)
            return
        try:
            os.fsync(self.fd)
            os.close(self.fd)
            raise_late()
            self._place()
        except OSError as e:
            e.filename = self.name
            raise
        self._done()

    def _done(self) -> None:
        _unfinished.pop(self._temporary, None)
        self._temporary = ""

    def _place(self) -> None:
        if self.force:
            os.replace(self._temporary, self.path)
        else:
            try:
                os.link(self._temporary, self.path)  # fails if the file was created meanwhile
            except FileExistsError:
                raise exists(self.name) from None
            except OSError:  # no hard links here
                os.replace(self._temporary, self.path)
            else:
                os.unlink(self._temporary)
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some file systems cannot
                os.fsync(folder)
        finally:
            os.close(folder)

    def abort(self) -> None:
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary)
            self._done()


@atexit.register
def _remove_unfinished() -> None:
    """At the end of the process: a signal may come before anybody can call `FileSink.abort`."""
    for name, process in _unfinished.items():
        if process == os.getpid():  # not in a fork: the files of its parent
            with suppress(OSError):
                os.unlink(name)


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def exists(path: str) -> UsageError:
    """The error for an output that exists."""
    return UsageError("exists", where=path, hint="--force or CONFLUO_CLOBBER=1 overwrites it")


def open_sink(path: str | None, *, force: bool = False, compression: str = "") -> OutputSink:
    """Standard output for None and ``-``, else a new file.  Raises UsageError for a URL.

    ``compression``: gzip, zstd or xz.
    """
    if path is not None:
        refuse_url(path, "confluo-archive --to writes to stores; or copy the file there")
    below = OutputSink(1, "standard output") if path in (None, "-") else FileSink(str(path), force=force)
    if not compression:
        return below
    try:
        return CompressedSink(below, compression)
    except BaseException:
        below.abort()
        raise


def open_yaml(path: str | None, *, force: bool = False) -> OutputSink:
    """As `open_sink`.  Raises UsageError for a name of a compressed file: no command reads compressed YAML."""
    from confluo_tools.formats.registry import COMPRESSED

    suffix = os.path.splitext(path or "")[1]
    if suffix.lower() in COMPRESSED:
        raise UsageError("YAML is not compressed", where=path or "", hint=f"leave {suffix} out")
    return open_sink(path, force=force)


class CompressedSink(OutputSink):
    """Compresses what is written into the sink ``below``."""

    def __init__(self, below: OutputSink, kind: str) -> None:
        super().__init__(below.fd, below.name)
        self._below, self._engine = below, compressor(kind)

    def _out(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self._below.write(self._engine.compress(piece))
            self.bytes += len(piece)

    def flush(self) -> None:
        """Compress all gathered bytes; what is complete goes to the sink below."""
        super().flush()
        self._below.flush()

    def close(self) -> None:
        super().flush()
        self._below.write(self._engine.flush())
        self._below.close()

    def abort(self) -> None:
        self._below.abort()


def compressor(kind: str) -> Any:
    """What has ``compress`` and ``flush``, for gzip, zstd or xz.  Raises UsageError without the package for zstd."""
    if kind == "gzip":
        import zlib

        return zlib.compressobj(wbits=31)
    if kind == "xz":
        import lzma

        return lzma.LZMACompressor()
    try:
        from zstandard import ZstdCompressor
    except ImportError:
        raise UsageError("zstd is not installed", hint="pip install zstandard; or write .gz") from None
    return ZstdCompressor().compressobj()
