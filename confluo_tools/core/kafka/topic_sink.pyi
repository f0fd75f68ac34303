from typing import final

from confluo_tools.core.kafka.message import MessageShape
from confluo_tools.core.kafka.message_sink import MessageSink
from confluo_tools.core.kafka.producer import KafkaProducer

@final
class TopicSink(MessageSink):
    producer: KafkaProducer
    topic: int
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
