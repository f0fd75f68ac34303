"""Places outside as the ends of chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluo_tools.core.kafka.message_sink import RowSink
    from confluo_tools.kafka.row_writer import MessageWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flow_chain import OpenOutlet


class OutletCounts(NamedTuple):
    delivered: int
    lost: int


class MessageOutlet:
    """A place for one chain: the worker of the chain uses `sink`, which also goes on with what is under way."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer, self.linger = writer, writer.linger

    @property
    def sink(self) -> RowSink:
        return self._writer.sink

    @property
    def counts(self) -> OutletCounts:
        n = self._writer.counts
        return OutletCounts(n.delivered, n.lost)

    def report(self) -> None:
        self._writer.report()

    def stop(self, number: int = 0) -> None:
        self._writer.stop(number)

    def close(self) -> None:
        self._writer.close()


def places(setting: Sequence[str] | None, codec: str, create: int, *, size: int, linger: int, wait: bool) -> OpenOutlet:
    """What opens the places of chains.  ``setting``, ``codec``, ``create``: for topics; others take none of them."""
    from confluo_tools.kafka.address import SCHEME
    from confluo_tools.stream.destination import Destination

    def open_place(to: str, schema: Schema, pipeline: int) -> MessageOutlet:
        is_topic = to.startswith(SCHEME)
        place = Destination(to, setting, codec=codec, create=create) if is_topic else Destination(to)
        return MessageOutlet(place.open(schema, size=size, linger=linger, wait=wait, pipeline=pipeline))

    return open_place
