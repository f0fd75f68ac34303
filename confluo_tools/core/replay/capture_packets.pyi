from array import array
from typing import final

from _typeshed import ReadableBuffer

from confluo_tools.core.block.block import Block
from confluo_tools.core.replay.packet_store import PacketStore

NEEDED: tuple[str, ...]

@final
class CapturePackets:
    flows: list[tuple[int, int, int, int, int, int, bytes, bytes]]
    split: int
    rows: int
    def __init__(self, most: int) -> None: ...
    def begin(self) -> None: ...
    def packets_of_flows(self) -> array[int]: ...
    def add(self, block: Block) -> None: ...
    def settle(
        self, store: PacketStore, number: ReadableBuffer, both: ReadableBuffer, more: int, least: int
    ) -> None: ...
