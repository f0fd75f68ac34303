"""Addresses of topics: kafka://HOST:PORT[,HOST:PORT...]/TOPIC[?NAME=VALUE[&NAME=VALUE...]]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from confluo_tools.errors import UsageError

SCHEME = "kafka://"
PORT = 9092
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """``brokers``: as librdkafka takes them, separated by commas.  ``topic``: "" when none is named.

    ``given``: settings of librdkafka, NAME=VALUE each; `str` leaves them out.
    """

    brokers: str
    topic: str
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{SCHEME}{self.brokers}/{self.topic}" if self.topic else f"{SCHEME}{self.brokers}"


def parse(text: str, *, topic: bool = True) -> TopicAddress:
    """The address in ``text``; ``topic``: it names one.  Raises UsageError."""
    text, _, words = text.partition("?")
    brokers, _, name = text.removeprefix(SCHEME).partition("/")
    example = "kafka://broker:9092/telemetry"
    if not text.startswith(SCHEME) or not all(_HOST.fullmatch(b) for b in brokers.split(",")):
        raise UsageError("is not the address of a Kafka broker", where=text, hint=f"write it as {example}")
    if topic and not name:
        raise UsageError("names no topic", where=text, hint=f"write it as {example}")
    if name and not (_TOPIC.fullmatch(name) and name not in (".", "..")):
        raise UsageError(
            f"'{name}' cannot be a topic", where=text, hint="use letters, digits, '.', '_' and '-', at most 249"
        )
    hosts = [b if re.search(r":[0-9]+$", b) else f"{b}:{PORT}" for b in brokers.split(",")]
    return TopicAddress(",".join(hosts), name, tuple(words.split("&")) if words else ())
