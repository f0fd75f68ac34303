from typing import final

from confluo_tools.core.clickhouse.native_batch import NativeBatch, NativeShape
from confluo_tools.core.kafka.message_sink import RowSink

@final
class NativeSink(RowSink):
    shape: NativeShape
    wake: int
    def __init__(self, shape: NativeShape, *, capacity: int, wait: bool = True) -> None: ...
    def first(self) -> NativeBatch | None: ...
    def leave(self) -> None: ...
    @property
    def queued(self) -> int: ...
