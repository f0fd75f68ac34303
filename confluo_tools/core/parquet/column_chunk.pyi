from collections.abc import Callable

from _typeshed import ReadableBuffer, WriteableBuffer

from confluo_tools.core.block.block import Picks

def use_wide(wanted: bool) -> None: ...
def crc32(data: ReadableBuffer) -> int: ...
def wanted_stretches(chosen: list[Picks]) -> bytearray | None: ...
def decode(
    chunk: ReadableBuffer,
    uncompress: Callable[[ReadableBuffer, int], ReadableBuffer] | None,
    stored: int,
    size: int,
    out: WriteableBuffer,
    wanted: ReadableBuffer | None = None,
    verify: bool = True,
) -> bool: ...
