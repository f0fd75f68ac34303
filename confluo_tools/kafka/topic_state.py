"""The state of a topic: what may stop deliveries to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluo_tools.kafka import client

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress

LOOK = 3.0  # s for a look at the topic


def why_stalled(address: TopicAddress, settings: dict[str, str]) -> str:
    """Why brokers may take nothing more for the topic of ``address``, as they know it."""
    kafka = client.python_client()
    from confluent_kafka.admin import AdminClient

    try:
        admin = AdminClient(client.admin_settings(address, settings))
        topic = admin.list_topics(timeout=LOOK).topics.get(address.topic)
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
