"""Topics as the places of chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.kafka.topic_writer import TopicWriter

if TYPE_CHECKING:
    from confluo_tools.core.kafka.message_sink import RowSink
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flow_chain import OpenOutlet


class OutletCounts(NamedTuple):
    delivered: int
    lost: int


class TopicOutlet:
    """A topic, for one chain: the worker of the chain uses `sink`, which also takes delivery reports."""

    def __init__(self, writer: TopicWriter) -> None:
        self._writer, self.linger = writer, writer.linger

    @property
    def sink(self) -> RowSink:
        return self._writer.sink

    @property
    def counts(self) -> OutletCounts:
        return OutletCounts(self._writer.producer.counts["records_acked"], self._writer.lost)

    def report(self) -> None:
        self._writer.report()

    def stop(self, number: int = 0) -> None:
        self._writer.stop(number)

    def close(self) -> None:
        self._writer.close()


def topics(settings: dict[str, str], *, size: int, linger: int, wait: bool, create: int) -> OpenOutlet:
    """What opens topics for chains; the arguments are those of `TopicWriter`."""
    from confluo_tools.kafka.address import parse

    def open_topic(to: str, schema: Schema, pipeline: int) -> TopicOutlet:
        writer = TopicWriter(
            parse(to), schema, settings, size=size, linger=linger, wait=wait, create=create, pipeline=pipeline
        )
        return TopicOutlet(writer)

    return open_topic
