from array import array
from typing import final

MAX_PACKETS: int

@final
class PacketStore:
    count: int
    def __init__(self, most: int = ...) -> None: ...
    def __len__(self) -> int: ...
    def by_time(self) -> tuple[array[int], array[int], array[int], array[int]]: ...
