"""Topics of Kafka as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.console import warn
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.request import QueryRequest


def is_topic(name: str) -> bool:
    """Whether ``name`` is the address of a topic, right or wrong."""
    return name.startswith("kafka://")


def open_topic(names: Sequence[str], request: QueryRequest | None) -> Reader:
    """The rows of a topic, from the time of the request on.  Raises UsageError when there are other inputs."""
    if len(names) > 1:
        raise UsageError("a topic is read alone", where=names[0], hint="read one topic at a time")
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.settings import settings
    from confluo_tools.kafka.topic_reader import TopicReader

    return TopicReader(parse(names[0]), settings(None), since=request.since if request is not None else None, warn=warn)
