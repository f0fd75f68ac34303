from typing import final

from confluo_tools.core.kafka.message import MessageShape
from confluo_tools.core.kafka.message_sink import MessageSink

@final
class ByteSink(MessageSink):
    messages: int
    written: int
    written_bytes: int
    failed: int
    connections: int
    error: int
    trouble: int
    def __init__(
        self, fd: int, shape: MessageShape, *, capacity: int, path: bytes = b"", room: int = 0, wait: bool = True
    ) -> None: ...
    def poll(self, timeout: int = 0) -> int: ...
    def purge(self) -> None: ...
    @property
    def queued(self) -> int: ...
    @property
    def part(self) -> int: ...
