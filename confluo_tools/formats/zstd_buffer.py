"""One zstd frame for one buffer: the compiled core calls this, because it loads no packages itself."""

from __future__ import annotations

LEVEL = 3
WINDOW = 8 << 20  # bytes of memory that a frame of a small buffer may use


def compress(data: memoryview) -> bytes:
    """A frame with its size of content."""
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=LEVEL).compress(data)


def decompress_into(frame: memoryview, out: memoryview) -> bool:
    """Fill ``out``; False if the frame is damaged or has not exactly that content."""
    from zstandard import ZstdDecompressor, ZstdError

    size = len(out)
    try:
        with ZstdDecompressor(max_window_size=max(WINDOW, 1 << size.bit_length())).stream_reader(frame) as reader:
            at = 0
            while at < size:
                got = reader.readinto(out[at:])
                if not got:
                    return False
                at += got
            return not reader.read(1)
    except (ZstdError, MemoryError):
        return False
