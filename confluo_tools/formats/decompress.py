"""Decompression of gzip, zstd and xz input; the format is detected by the first bytes, never by a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from confluo_tools.errors import FormatError

GZIP, ZSTD, XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zX"
LONGEST_MAGIC = len(ZSTD)
SLICE = 4096  # bytes per call of zstd and xz, where the output may be 32,768 times as large
WINDOW = 1 << 27  # bytes of memory that a zstd frame or an xz block may use


class Damage(Exception):
    """The compressed data are damaged; the message says how."""


def compression(head: bytes) -> str:
    """gzip, zstd, xz or '' (none of them), from the first `LONGEST_MAGIC` bytes."""
    return "gzip" if head[:2] == GZIP else "zstd" if head[:4] == ZSTD else "xz" if head[:4] == XZ else ""


def plain(kind: str, pieces: Iterable[bytes], size: int, name: str = "") -> Iterator[bytes]:
    """The plain bytes, about ``size`` at a time: gzip members, zstd frames or xz streams, one after the other.

    All output of a compressed piece is yielded before the next piece is read.  Zeros behind gzip data (tapes, block
    devices) are left alone.  Raises Damage after the last good bytes; FormatError when zstd is not installed.
    """
    import zlib

    broken: tuple[type[Exception], ...] = (zlib.error,)
    if kind == "zstd":
        try:
            from zstandard import ZstdDecompressor, ZstdError
        except ImportError:
            raise FormatError("is zstd-compressed", where=name, hint="pip install zstandard") from None
        broken = (ZstdError,)
    if kind == "xz":
        import lzma

        broken = (lzma.LZMAError,)
    engine: Any = None
    begun, left = False, b""
    more = iter(pieces)
    for piece in more:
        data = left + piece if left else piece
        left = b""
        while data:
            if engine is None:
                if begun and kind == "gzip" and data[:2] != GZIP:
                    if len(data) < 2:
                        left = data
                        break
                    _only_zeros(data, more)
                    return
                if begun and kind == "xz":  # padding: zeros, four at a time
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                if kind == "gzip":
                    engine = zlib.decompressobj(31)
                elif kind == "zstd":
                    engine = ZstdDecompressor(max_window_size=WINDOW).decompressobj()
                else:
                    engine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW)
                begun = True
            try:
                out, data = (_inflate if kind == "gzip" else _sliced)(engine, data, size)
            except broken as e:
                raise Damage(f"the {kind} data are damaged ({e})") from None
            if engine.eof:
                engine = None
            if out:
                yield out
    if engine is not None:
        raise Damage(f"the {kind} data are cut off")
    _only_zeros(left, ())


def _only_zeros(data: bytes, more: Iterable[bytes]) -> None:
    if data.strip(b"\0") or any(piece.strip(b"\0") for piece in more):
        raise Damage("bytes behind the gzip data were ignored")


def _inflate(engine: Any, data: bytes, size: int) -> tuple[bytes, bytes]:
    out = engine.decompress(data, size)
    return out, engine.unused_data if engine.eof else engine.unconsumed_tail


def _sliced(engine: Any, data: bytes, size: int) -> tuple[bytes, bytes]:
    out: list[bytes] = []
    given, got = 0, 0
    view = memoryview(data)
    while given < len(data) and got < size and not engine.eof:
        out.append(engine.decompress(view[given : given + SLICE]))
        given, got = given + SLICE, got + len(out[-1])
    rest = bytes(view[given:])
    return b"".join(out), engine.unused_data + rest if engine.eof else rest
