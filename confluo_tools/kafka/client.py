"""The client of Kafka: librdkafka, as the package confluent-kafka brings it, or the system's below that package."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.kafka.address import TopicAddress
from confluo_tools.kafka.connection_faults import ConnectionFaults

if TYPE_CHECKING:
    from confluo_tools.core.kafka.producer import KafkaProducer

CONNECT = 5.0  # s that a broker has to take a connection
ANSWER = 10.0  # s that brokers have to answer the first request
SETTLE = 2.0  # s that a new leader has to know how far its messages go
UNKNOWN = (-1, -1001)  # offsets: of a new leader that does not know yet, and of librdkafka for no answer
TRY = 1.0  # s for one try
PAUSE = 0.1  # s between two tries


class UnreachableError(ConfluoError):
    """No broker answers: what a reader that follows waits for."""


def python_client() -> Any:
    """The package confluent_kafka.  Raises UsageError where it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise UsageError(
            "needs the package confluent-kafka", where="kafka://", hint="pip install 'confluo-tools[kafka]'"
        ) from None
    return confluent_kafka


def library() -> str:
    """The path of the librdkafka that `python_client` uses."""
    python_client()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        for line in f:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if "librdkafka" in path.rpartition("/")[2]:
                return path
    raise ConfluoError("confluent-kafka has no librdkafka of its own", hint="reinstall the package confluent-kafka")


def preload() -> None:
    """Load all that producers and administration need: after dropping privileges the files may not be readable."""
    python_client()
    import confluent_kafka.admin  # noqa: F401

    from confluo_tools.core.kafka import producer as core

    core.load(library())
    "broker".encode("idna")  # names of hosts are encoded so


def producer(address: TopicAddress, settings: dict[str, str]) -> KafkaProducer:
    """A compiled producer for the brokers of ``address``.  Raises UsageError for a setting that is wrong."""
    from confluo_tools.core.kafka import producer as core

    try:
        core.load(library())
        return core.KafkaProducer({"bootstrap.servers": address.brokers, **settings})
    except ValueError as e:
        raise UsageError(str(e), where="-X") from None
    except OSError as e:
        raise ConfluoError(str(e), where=str(address)) from None


def partitions(
    address: TopicAddress, settings: dict[str, str], *, create: int = 0, topics: dict[str, int] | None = None
) -> int:
    """The number of partitions of the topic.  ``create``: if it does not exist, make it with this number.

    ``topics``: what `describe` said.  Raises ConfluoError when no broker answers, or the topic does not exist.
    """
    found = (describe(address, settings) if topics is None else topics).get(address.topic, 0)
    if found:
        return found
    if not create:
        hint = "confluo-stream topics lists those that exist"
        raise ConfluoError("the topic does not exist", where=str(address), hint=hint)
    make_topic(address, settings, create)
    count = describe(address, settings).get(address.topic) or create
    wait_for_leaders(address, settings, count)
    return count


def wait_for_leaders(address: TopicAddress, settings: dict[str, str], count: int) -> None:
    """Until the leaders of all partitions of a new topic take requests.  Raises ConfluoError.

    Kafka loses messages that come before: a leader that refuses the first request, and takes the second, never takes
    the first again, and the client believes that it has it (KAFKA-15591).
    """
    end = time.monotonic() + ANSWER
    while True:
        try:
            edges(address, settings, range(count))
            return
        except ConfluoError:
            if time.monotonic() > end:
                raise
        time.sleep(PAUSE)


def describe(address: TopicAddress, settings: dict[str, str]) -> dict[str, int]:
    """{topic: partitions} of all topics.  (A request for one topic could create it.)"""
    kafka = python_client()
    from confluent_kafka.admin import AdminClient

    _knock(address)
    faults = ConnectionFaults()
    try:
        client = AdminClient(admin_settings(address, settings) | {"error_cb": faults.note})
    except kafka.KafkaException as e:
        raise _wrong_settings(e.args[0]) from None
    end = time.monotonic() + ANSWER
    while True:
        began = time.monotonic()
        try:
            found = client.list_topics(timeout=TRY)
            break
        except kafka.KafkaException:
            faults.tried(time.monotonic() - began)
            client.poll(PAUSE)  # takes the errors
            final = faults.final(address.brokers, settings)
            if final or time.monotonic() > end:
                what, hint = faults.explain(address.brokers, settings)
                kind = ConfluoError if final else UnreachableError
                raise kind(what, where=str(address), hint=hint) from None
    return {str(t.topic): len(t.partitions) for t in found.topics.values() if t.error is None}


def topic_number(address: TopicAddress, settings: dict[str, str]) -> str:
    """The number that the brokers gave the topic when it was made; "" if they do not say it."""
    kafka = python_client()
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    client = AdminClient(admin_settings(address, settings))
    try:
        found = client.describe_topics(TopicCollection([address.topic]), request_timeout=ANSWER)
        return str(found[address.topic].result().topic_id)
    except kafka.KafkaException:
        return ""  # it is old, or this client may not ask


def edges(address: TopicAddress, settings: dict[str, str], partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """{partition: (offset of its first message, offset after its last one)}.

    A consumer would ask one partition after the other, and behind its own fetch.  Raises ConfluoError.
    """
    kafka = python_client()
    from confluent_kafka import IsolationLevel
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

    client = AdminClient(admin_settings(address, settings))
    every = settings.get("isolation.level") == "read_uncommitted"  # else a consumer stops at open transactions
    level = IsolationLevel.READ_UNCOMMITTED if every else IsolationLevel.READ_COMMITTED
    places = [kafka.TopicPartition(address.topic, p) for p in partitions]
    if not places:
        return {}
    made: Any = OffsetSpec
    end = time.monotonic() + SETTLE
    while True:
        answers = [
            client.list_offsets(dict.fromkeys(places, spec()), isolation_level=level, request_timeout=ANSWER)
            for spec in (made.earliest, made.latest)
        ]
        try:
            low, high = ({place.partition: answer.result().offset for place, answer in one.items()} for one in answers)
        except kafka.KafkaException as e:
            raise unreachable(address, e.args[0]) from None
        unknown = [p for p in low if low[p] in UNKNOWN or high[p] in UNKNOWN]
        if not unknown:
            break
        if time.monotonic() > end:
            raise unreachable(address, f"partition {unknown[0]}: its leader does not say which messages it has")
        time.sleep(PAUSE)
    for p in low:
        if not 0 <= low[p] <= high[p]:
            what = f"partition {p}: the broker says to have {low[p]} up to {high[p]}"
            raise ConfluoError(what, where=str(address), hint="check the broker")
    return {p: (low[p], high[p]) for p in low}


def _knock(address: TopicAddress) -> None:
    """Raise ConfluoError at once when no broker of the address takes a connection; librdkafka would try for long."""
    import socket

    why: OSError | None = None
    for broker in address.brokers.split(","):
        host, _, port = broker.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
            return
        except OSError as e:
            why = e
    raise unreachable(address, why.strerror if why is not None and why.strerror else why)


def make_topic(address: TopicAddress, settings: dict[str, str], count: int) -> None:
    """Create the topic with ``count`` partitions."""
    kafka = python_client()
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    client = AdminClient(admin_settings(address, settings))
    made = client.create_topics([NewTopic(address.topic, num_partitions=count)], operation_timeout=ANSWER)
    try:
        made[address.topic].result()
    except kafka.KafkaException as e:
        error = e.args[0]
        if error.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise ConfluoError(f"cannot create the topic: {error.str()}", where=str(address)) from None


def admin_settings(address: TopicAddress, settings: dict[str, str]) -> dict[str, Any]:
    """Those of ``settings`` that a client without data takes: how to connect."""
    connect = ("security.", "sasl.", "ssl.", "socket.", "broker.", "enable.ssl", "client.id", "https.ca")
    return {
        "bootstrap.servers": address.brokers,
        "log_level": 0,
        **{k: v for k, v in settings.items() if k.startswith(connect)},
    }


def _wrong_settings(error: Any) -> UsageError:
    """The error for settings that no client can be made with.  ``error``: of confluent_kafka."""
    return UsageError(error.str().removeprefix("Failed to create admin client: "), where="-X")


def unreachable(address: TopicAddress, error: Any) -> ConfluoError:
    """The error for brokers that do not answer.  ``error``: of confluent_kafka."""
    text = error.str() if hasattr(error, "str") else str(error)
    return UnreachableError(f"no broker answers: {text}", where=str(address), hint="check the address and -X")
