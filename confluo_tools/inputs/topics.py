"""Topics of Kafka as inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.console import tell, warn
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.growing import Place
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.kafka.topic_spool import TopicSpool
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema
    from confluo_tools.schema.likely_schema import LikelySchema


def is_topic(name: str) -> bool:
    """Whether ``name`` is the address of a topic, right or wrong."""
    return name.startswith("kafka://")


def open_topic(
    names: Sequence[str],
    request: QueryRequest | None,
    *,
    follow: bool = False,
    group: str | None = None,
    offsets: LogOffsets | None = None,
    input_format: str | None = None,
    schema: Schema | LikelySchema | None = None,
    types: Schema | None = None,
    place: Place | None = None,
) -> Reader:
    """The rows of a topic, from the time of the request on.  Raises UsageError when there are other inputs.

    ``place``: where a cursor goes on, with an identity and offsets.
    ``input_format``: of the lines in messages of other programs, with ``schema`` and ``types`` as in `open_records`.
    The other arguments are those of `TopicReader`.
    """
    if len(names) > 1:
        raise UsageError("a topic is read alone", where=names[0], hint="read one topic at a time")
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.settings import settings
    from confluo_tools.kafka.topic_reader import TopicReader

    if input_format is not None:
        if group is not None or offsets is not None:
            hint = "leave --group out, and write to a pipe: ... -o stream | confluo-query - -w LOG"
            raise UsageError("lines of other programs have no places that a group or a log could keep", hint=hint)
        from confluo_tools.kafka.line_topic import LineTopicReader

        first = request.since if request is not None else None
        address = parse(names[0])
        given = settings(None, address)
        kinds: dict[str, Any] = {"schema": schema, "types": types}
        return LineTopicReader(address, given, input_format, **kinds, since=first, follow=follow, warn=warn, tell=tell)
    since, until = (request.since, request.until) if request is not None else (None, None)
    if offsets is not None:
        since = offsets.since
    address = parse(names[0])
    given = settings(None, address)
    if place is not None and (group is not None or offsets is not None):
        what = "a cursor, a group and a log each keep offsets of their own"
        raise UsageError(what, where=names[0], hint="use one of them")
    reader = TopicReader(
        address, given, since=since, until=until, follow=follow, group=group, offsets=offsets, warn=warn, tell=tell
    )
    if place is not None:
        if not isinstance(place.position, dict) or reader.identity != place.identity:
            reader.close()
            hint = "name another cursor"
            raise UsageError("is not the topic that the cursor was made for", where=names[0], hint=hint)
        reader.consumer.claims = KnownOffsets(place.position)
        reader.start_at(place.position)
    return reader


class KnownOffsets:
    """The offsets of a cursor: `PartitionClaims` of a process that shares nothing."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self.offsets = dict(offsets)

    def claim(self, partition: int) -> bool:
        return True

    def begin(self, partition: int) -> int | None:
        return self.offsets.get(partition)

    def release(self, partitions: Iterable[int]) -> None:
        pass


def spool_of(name: str, *, follow: bool) -> TopicSpool:
    """The topic as a MultiLog that is still empty.  Raises ConfluoError."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import topic_number
    from confluo_tools.kafka.settings import settings
    from confluo_tools.kafka.topic_reader import TopicReader
    from confluo_tools.kafka.topic_spool import TopicSpool

    address = parse(name)
    given = settings(None, address)
    reader = TopicReader(address, given, follow=follow, warn=warn, tell=tell)
    return TopicSpool(reader, topic_number(address, given))


def offsets_of(names: Sequence[str], log: str, options: dict[str, str], since: int | None) -> LogOffsets | None:
    """How far the topic was read into the log, if the input is a topic.  Raises ConfluoError.

    The arguments are those of `LogOffsets`.
    """
    if len(names) != 1 or not is_topic(names[0]):
        return None
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import partitions, topic_number
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.kafka.settings import settings

    address = parse(names[0])
    given = settings(None, address)
    partitions(address, given)  # raises if there is no such topic
    return LogOffsets(log, address.topic, topic_number(address, given), options, since)
