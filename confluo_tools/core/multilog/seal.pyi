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
def offsets() -> dict[str, dict[str, int]]: ...
def crc_of_pages(data: bytes | bytearray | memoryview, hardware: bool = True) -> list[int]: ...
