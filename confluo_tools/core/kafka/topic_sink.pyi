from typing import final

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.kafka.message import MessageShape
from confluo_tools.core.kafka.producer import KafkaProducer

@final
class TopicSink:
    producer: KafkaProducer
    shape: MessageShape
    topic: int
    partitions: int
    rows: int
    dropped: int
    refused: int
    def __init__(
        self,
        producer: KafkaProducer,
        topic: int,
        shape: MessageShape,
        partitions: int,
        *,
        capacity: int,
        key: int = -1,
        wait: bool = True,
    ) -> None: ...
    def write(self, block: Block, picks: Picks | None = None, *, now: int = 1) -> bool: ...
    def flush(self, before: int = ...) -> bool: ...
    def stop(self) -> None: ...
