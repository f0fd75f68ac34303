from collections.abc import Sequence

from confluo_tools.core.multilog.segment import SegmentShape

def seal_in_place(
    path: str, shape: SegmentShape, lane: int, base: int, rows: int, message: bytes, footer: bytes, sync: bool
) -> None: ...
def seal_compact(
    path: str,
    new_path: str,
    shape: SegmentShape,
    lane: int,
    base: int,
    rows: int,
    message: bytes,
    footer: bytes,
    sync: bool,
) -> None: ...
def packed_head(head: bytes, end: int) -> bytes: ...
def places(
    codec: int, rows: int, capacity: int, starts: Sequence[int], buffers: Sequence[Sequence[tuple[int, int]]]
) -> bytes: ...
def find_seal(path: str, shape: SegmentShape, lane: int, base: int) -> int: ...
def seal_packed(
    path: str, uuid: bytes, lane: int, base: int, rows: int, capacity: int, blocks: int, trailer: bytes
) -> None: ...
def offsets() -> dict[str, dict[str, int]]: ...
def crc_of_pages(data: bytes | bytearray | memoryview, hardware: bool = True) -> list[int]: ...
