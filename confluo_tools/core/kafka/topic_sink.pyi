from typing import final

from confluo_tools.core.kafka.message import MessageShape
from confluo_tools.core.kafka.message_sink import MessageSink
from confluo_tools.core.kafka.producer import KafkaProducer
from confluo_tools.core.kafka.short_message import ShortShape

SHORT: int

@final
class TopicSink(MessageSink):
    producer: KafkaProducer
    topic: int
    short: ShortShape | None
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
        short: ShortShape | None = None,
    ) -> None: ...
