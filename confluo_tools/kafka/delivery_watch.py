"""Deliveries that stop: a sender waits without limit, and says so, with the reason."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from confluo_tools.console import tell
from confluo_tools.kafka import client

if TYPE_CHECKING:
    from confluo_tools.core.kafka.producer import KafkaProducer
    from confluo_tools.kafka.address import TopicAddress

STALL = 5.0  # s without a delivery, while messages wait
PAUSE = 0.5  # s between two looks
LOOK = 3.0  # s for a look at the topic


class DeliveryWatch:
    """Reports when the brokers of ``address`` take no messages of ``producer``, and when they take them again.

    It looks, in a thread of its own, while ``since`` is not 0: the time (CLOCK_MONOTONIC, s) when the sender began to
    write, or to wait for the last deliveries.  (A sender that waits for input takes no delivery reports.)
    """

    def __init__(self, address: TopicAddress, settings: dict[str, str], producer: KafkaProducer) -> None:
        self.address, self._settings, self._producer = address, settings, producer
        self.since = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After a last look."""
        self.since = 0.0
        self._ended.set()
        self._thread.join(2 * LOOK)

    def _run(self) -> None:
        acked, moved, stalled = 0, 0.0, False
        ended = False
        while not ended:
            ended = self._ended.wait(PAUSE)
            began, now = self.since, time.monotonic()
            if self._producer.counts["acked"] != acked:
                acked, moved = self._producer.counts["acked"], now
                if stalled:
                    tell(f"{self.address}: messages are delivered again")
                stalled = False
            elif began and now - max(began, moved) > STALL and not stalled:
                stalled = True
                tell(f"{self.address}: waits: {self._producer.queued} messages, none delivered for 5 s: {self._why()}")

    def _why(self) -> str:
        """The state of the topic, as brokers know it."""
        kafka = client.python_client()
        from confluent_kafka.admin import AdminClient

        try:
            admin = AdminClient(client.admin_settings(self.address, self._settings))
            topic = admin.list_topics(timeout=LOOK).topics.get(self.address.topic)
        except kafka.KafkaException:
            return "no broker answers"
        return "the topic does not exist any more" if topic is None else state_of(topic)


def state_of(topic: Any) -> str:
    """What may stop deliveries to a topic.  ``topic``: its metadata, of confluent_kafka."""
    for number, partition in sorted(topic.partitions.items()):
        if partition.leader < 0:
            return f"partition {number} has no leader"
        if len(partition.isrs) < len(partition.replicas):
            in_sync, all = len(partition.isrs), len(partition.replicas)
            return f"partition {number} has {in_sync} of {all} replicas in sync"
    return "all partitions have a leader and all replicas"
