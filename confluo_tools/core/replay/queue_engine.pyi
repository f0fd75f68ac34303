from array import array
from typing import final

from _typeshed import ReadableBuffer

RULE: int
TAGS: int

@final
class QueueRows:
    count: int
    time: array[int]
    leaves: array[int]
    packet: array[int]
    port: array[int]
    queue: array[int]
    used: array[int]
    flags: array[int]
    hop: array[int]
    sharer: array[int]
    share: array[int]
    def __init__(self, room: int) -> None: ...
    def arrived(self, base: int) -> array[int]: ...
    def delays(self) -> array[int]: ...

@final
class QueueEngine:
    events: int
    drops: int
    def __init__(
        self,
        buffer: ReadableBuffer,
        alpha: ReadableBuffer,
        switch_of: ReadableBuffer,
        ps_per_byte: ReadableBuffer,
        delay: ReadableBuffer,
        routes: ReadableBuffer,
        starts: ReadableBuffer,
        *,
        until_sent: bool = True,
    ) -> None: ...
    def load(
        self,
        times: ReadableBuffer,
        sizes: ReadableBuffer,
        flow_of: ReadableBuffer,
        order: ReadableBuffer,
        tags: ReadableBuffer | None = None,
        *,
        decide: int = 0,
        slack: int = 0,
        name_flows: bool = False,
        sample: int = 0,
    ) -> None: ...
    def advance(self, rows: QueueRows) -> bool: ...
    def contents(self) -> dict[tuple[int, int], dict[int, int]]: ...

def gather(table: ReadableBuffer, index: ReadableBuffer, count: int) -> array[int]: ...
def picoseconds(times: ReadableBuffer, base: int) -> array[int]: ...
def time_order(times: ReadableBuffer) -> array[int]: ...
